/* SPDX-License-Identifier: MIT */
/* Random operations on a pool by several threads, and the accounts that they must leave. */
#ifndef CTN_POOL_BOOKS_H
#define CTN_POOL_BOOKS_H

#include "pool_fixture.h"

#include <errno.h>
#include <pthread.h>

#define WORKERS   4
#define PER_OWNER 6

struct worker {
	struct ctn_pool *pool;
	unsigned int number;
	uint64_t rng;
	struct ctn_frame_ref refs[PER_OWNER];
	uint64_t charged[PER_OWNER]; /* 0: none */
	unsigned int leases[PER_OWNER];
	bool committed[PER_OWNER];
	bool clean[PER_OWNER];
	unsigned int wrong;
	pthread_t thread;
};

static inline uint32_t random_below(struct worker *w, uint32_t n)
{
	w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(w->rng >> 33) % n;
}

static inline void expect(struct worker *w, int rc, int want)
{
	if (rc != want)
		w->wrong++;
}

static inline void step(struct worker *w)
{
	uint32_t i = random_below(w, PER_OWNER);
	struct ctn_frame_key key = ctn_test_key(w->number * 1000 + i);
	uint64_t bytes = 1 + random_below(w, 9 * (uint32_t)CTN_MIB);
	int rc;

	if (!w->charged[i]) {
		rc = ctn_pool_alloc(w->pool, &key, bytes, -1, &w->refs[i]);
		if (rc == 0) {
			w->charged[i] = (bytes + CTN_EXTENT_ALIGN - 1) / CTN_EXTENT_ALIGN *
					CTN_EXTENT_ALIGN;
			w->committed[i] = false;
			w->clean[i] = false;
			w->leases[i] = 0;
		} else {
			expect(w, rc, -ENOSPC);
		}
		return;
	}
	switch (random_below(w, 6)) {
	case 0:
		rc = ctn_pool_seal(w->pool, w->refs[i], NULL, NULL);
		expect(w, rc, w->clean[i] || !w->committed[i] ? -EINVAL : 0);
		w->leases[i] += rc == 0;
		w->clean[i] = w->clean[i] || rc == 0;
		break;
	case 1:
		rc = ctn_pool_abort(w->pool, w->refs[i]);
		expect(w, rc, w->clean[i] ? -EINVAL : 0);
		if (rc == 0)
			w->charged[i] = 0;
		break;
	case 2:
		rc = ctn_pool_lease(w->pool, w->refs[i]);
		expect(w, rc, w->clean[i] ? 0 : -EBUSY);
		w->leases[i] += rc == 0;
		break;
	case 3:
		if (!w->clean[i])
			expect(w, ctn_test_commit(w->pool, w->refs[i]), 0);
		w->committed[i] = true;
		break;
	case 4:
		if (w->leases[i]) {
			ctn_pool_release(w->pool, w->refs[i]);
			w->leases[i]--;
		}
		break;
	default:
		rc = ctn_pool_evict(w->pool, w->refs[i]);
		expect(w, rc, w->clean[i] && !w->leases[i] ? 0 : -EBUSY);
		if (rc == 0)
			w->charged[i] = 0;
		break;
	}
}

static inline void *work(void *arg)
{
	struct worker *w = arg;

	for (int i = 0; i < 1500; i++)
		step(w);
	return NULL;
}

/* Runs them, on a pool of `total` bytes, and leaves no frame that is held. */
static inline void ctn_test_random_operations(struct ctn_pool *pool, uint64_t total)
{
	uint64_t loading = 0, clean = 0, leased = 0, frames = 0;
	struct worker w[WORKERS] = {0};

	for (unsigned int i = 0; i < WORKERS; i++) {
		w[i].pool = pool;
		w[i].number = i;
		w[i].rng = 77 + i;
		CU_ASSERT_EQUAL_FATAL(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (unsigned int i = 0; i < WORKERS; i++) {
		pthread_join(w[i].thread, NULL);
		CU_ASSERT_EQUAL(w[i].wrong, 0);
		for (unsigned int j = 0; j < PER_OWNER; j++) {
			frames += w[i].charged[j] != 0;
			*(w[i].clean[j] ? &clean : &loading) += w[i].charged[j];
			leased += w[i].leases[j] ? w[i].charged[j] : 0;
		}
	}
	CU_ASSERT_TRUE(frames > 0);
	ctn_test_books(pool, total, loading, clean, leased, frames);
	for (unsigned int i = 0; i < WORKERS; i++) {
		for (unsigned int j = 0; j < PER_OWNER; j++) {
			if (w[i].charged[j] && !w[i].clean[j])
				ctn_pool_abort(pool, w[i].refs[j]);
			for (; w[i].charged[j] && w[i].leases[j]; w[i].leases[j]--)
				ctn_pool_release(pool, w[i].refs[j]);
		}
	}
}

#endif
