/* SPDX-License-Identifier: MIT */
/*
 * Stands in front of the library's ctn_populate: memory is not found before the test says so,
 * or not at all. Included by one file of a program. The pages come when they are touched.
 */
#ifndef CTN_POPULATE_GATE_H
#define CTN_POPULATE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* As pool/ has it for itself: commits memory to [addr, addr + bytes), or -ENOMEM. */
int ctn_populate(uint8_t *addr, uint64_t bytes);

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool closed;
	int answer;
	unsigned int inside; /* callers that wait at the gate */
	uint64_t bytes;      /* asked for, of all calls */
} populate_gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

int ctn_populate(uint8_t *addr, uint64_t bytes)
{
	int rc;

	(void)addr;
	pthread_mutex_lock(&populate_gate.lock);
	populate_gate.bytes += bytes;
	populate_gate.inside++;
	pthread_cond_broadcast(&populate_gate.cond);
	while (populate_gate.closed)
		pthread_cond_wait(&populate_gate.cond, &populate_gate.lock);
	populate_gate.inside--;
	rc = populate_gate.answer;
	pthread_mutex_unlock(&populate_gate.lock);
	return rc;
}

static inline void populate_gate_set(bool closed, int answer)
{
	pthread_mutex_lock(&populate_gate.lock);
	populate_gate.closed = closed;
	populate_gate.answer = answer;
	pthread_cond_broadcast(&populate_gate.cond);
	pthread_mutex_unlock(&populate_gate.lock);
}

/* Until a caller waits at the closed gate. */
static inline void populate_gate_await(void)
{
	pthread_mutex_lock(&populate_gate.lock);
	while (!populate_gate.inside)
		pthread_cond_wait(&populate_gate.cond, &populate_gate.lock);
	pthread_mutex_unlock(&populate_gate.lock);
}

static inline bool populate_gate_occupied(void)
{
	bool yes;

	pthread_mutex_lock(&populate_gate.lock);
	yes = populate_gate.inside > 0;
	pthread_mutex_unlock(&populate_gate.lock);
	return yes;
}

/* Bytes asked for since the last call of this. */
static inline uint64_t populate_gate_take(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&populate_gate.lock);
	bytes = populate_gate.bytes;
	populate_gate.bytes = 0;
	pthread_mutex_unlock(&populate_gate.lock);
	return bytes;
}

#endif
