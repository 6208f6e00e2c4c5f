// SPDX-License-Identifier: MIT
/*
 * Collectives between threads of one process, through host memory, on any device backend.
 *
 * Collectives: each rank downloads what it gives into its slot, meets the others, then reads
 * all slots. There are two sets of slots, used in turn: a rank that is already in the next
 * collective writes the other set, and it cannot come to the one after that before all have
 * met again, that is, before all have finished reading. So one meeting a collective is enough.
 *
 * Pairs: each rank has one outbox. `send` waits until it is empty, fills it and returns;
 * `recv` waits until the sender's outbox has something for it, takes it and empties it.
 *
 * `lock` covers everything in the group except the floats: those of a slot are written by its
 * rank before a meeting and read by all after it; those of an outbox belong to the sender
 * while it is empty and to the receiver while it is full.
 */
#include "comm/comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum collective { ALL_REDUCE, ALL_GATHER, BROADCAST };

struct ctn_comm {
	struct ctn_comm_group *group;
	uint32_t rank;
	float *slots[2]; /* max_floats each */
	float *sum;      /* max_floats, this rank's own */
	float *outbox;   /* max_floats */
	bool outbox_full;
	uint32_t outbox_to;
	uint64_t outbox_floats;
};

struct ctn_comm_group {
	uint32_t size;
	uint64_t max_floats;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int code; /* not 0: aborted */
	uint64_t meetings;
	uint32_t arrived; /* at the meeting that is next */
	enum collective kind;
	uint64_t floats; /* kind, floats and root as the first rank to arrive gave them */
	uint32_t root;
	float *memory; /* of all slots, sums and outboxes */
	struct ctn_comm comms[];
};

int ctn_comm_local_new(uint32_t size, uint64_t max_floats, struct ctn_comm **comms,
		       struct ctn_comm_group **group)
{
	struct ctn_comm_group *g;
	uint64_t total;
	float *next;
	int rc = -ENOMEM;

	CTN_ASSERT(size > 0 && max_floats > 0);
	g = calloc(1, sizeof(*g) + size * sizeof(g->comms[0]));
	if (!g)
		return -ENOMEM;
	g->size = size;
	g->max_floats = max_floats;
	if (ctn_mul_overflows(max_floats, 4ull * size, &total) || total > SIZE_MAX / sizeof(float))
		goto fail_group;
	g->memory = malloc(total * sizeof(float));
	if (!g->memory)
		goto fail_group;
	rc = -pthread_mutex_init(&g->lock, NULL);
	if (rc)
		goto fail_memory;
	rc = -pthread_cond_init(&g->changed, NULL);
	if (rc)
		goto fail_lock;
	next = g->memory;
	for (uint32_t r = 0; r < size; r++, next += 4 * max_floats) {
		g->comms[r] = (struct ctn_comm){
			.group = g,
			.rank = r,
			.slots = {next, next + max_floats},
			.sum = next + 2 * max_floats,
			.outbox = next + 3 * max_floats,
		};
		comms[r] = &g->comms[r];
	}
	*group = g;
	return 0;

fail_lock:
	pthread_mutex_destroy(&g->lock);
fail_memory:
	free(g->memory);
fail_group:
	free(g);
	return rc;
}

void ctn_comm_group_free(struct ctn_comm_group *group)
{
	if (!group)
		return;
	pthread_cond_destroy(&group->changed);
	pthread_mutex_destroy(&group->lock);
	free(group->memory);
	free(group);
}

uint32_t ctn_comm_rank(const struct ctn_comm *comm)
{
	return comm->rank;
}

uint32_t ctn_comm_size(const struct ctn_comm *comm)
{
	return comm->group->size;
}

void ctn_comm_abort(struct ctn_comm_group *group, int code)
{
	CTN_ASSERT(code < 0);
	pthread_mutex_lock(&group->lock);
	if (!group->code)
		group->code = code;
	pthread_cond_broadcast(&group->changed);
	pthread_mutex_unlock(&group->lock);
}

void ctn_comm_reset(struct ctn_comm_group *group)
{
	pthread_mutex_lock(&group->lock);
	group->code = 0;
	group->arrived = 0;
	for (uint32_t r = 0; r < group->size; r++)
		group->comms[r].outbox_full = false;
	pthread_mutex_unlock(&group->lock);
}

/* Copies that are complete on return. */
static int download(struct ctn_stream *stream, float *dst, const float *src, uint64_t n)
{
	int rc = ctn_stream_download(stream, dst, src, n * sizeof(float));

	return rc ? rc : ctn_stream_sync(stream);
}

static int upload(struct ctn_stream *stream, float *dst, const float *src, uint64_t n)
{
	return ctn_stream_upload(stream, dst, src, n * sizeof(float));
}

/* The set of slots of the collective that this rank is about to make. The number of meetings
 * cannot change before this rank has come to the next one. */
static uint32_t slot_set(struct ctn_comm_group *g)
{
	uint32_t set;

	pthread_mutex_lock(&g->lock);
	set = g->meetings & 1;
	pthread_mutex_unlock(&g->lock);
	return set;
}

/* Waits until all ranks are here. Ranks that come for different collectives abort the group:
 * one of them would otherwise take the bytes of something else. */
static int meet(struct ctn_comm_group *g, enum collective kind, uint64_t n, uint32_t root)
{
	uint64_t meeting;
	int rc;

	pthread_mutex_lock(&g->lock);
	if (!g->code && g->arrived == 0) {
		g->kind = kind;
		g->floats = n;
		g->root = root;
	}
	if (!g->code && (g->kind != kind || g->floats != n || g->root != root)) {
		g->code = -EPROTO;
		pthread_cond_broadcast(&g->changed);
	}
	meeting = g->meetings;
	if (!g->code && ++g->arrived == g->size) {
		g->arrived = 0;
		g->meetings++;
		pthread_cond_broadcast(&g->changed);
	}
	while (!g->code && g->meetings == meeting)
		pthread_cond_wait(&g->changed, &g->lock);
	/* A meeting that took place counts, whatever came after. */
	rc = g->meetings != meeting ? 0 : g->code;
	pthread_mutex_unlock(&g->lock);
	return rc;
}

/* Puts n floats of x (if this rank gives any) where the others can read them after the
 * meeting, and meets them. */
static int give_and_meet(struct ctn_comm *comm, struct ctn_stream *stream, enum collective kind,
			 const float *x, uint64_t n, uint32_t root, uint32_t *set)
{
	struct ctn_comm_group *g = comm->group;
	int rc = 0;

	if (n > g->max_floats || root >= g->size)
		return -EINVAL;
	*set = slot_set(g);
	if (kind != BROADCAST || root == comm->rank)
		rc = download(stream, comm->slots[*set], x, n);
	return rc ? rc : meet(g, kind, n, root);
}

int ctn_comm_all_reduce(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n)
{
	struct ctn_comm_group *g = comm->group;
	uint32_t set;
	int rc;

	if (g->size == 1)
		return 0;
	rc = give_and_meet(comm, stream, ALL_REDUCE, x, n, 0, &set);
	if (rc)
		return rc;
	memcpy(comm->sum, g->comms[0].slots[set], n * sizeof(float));
	for (uint32_t r = 1; r < g->size; r++) {
		const float *from = g->comms[r].slots[set];

		for (uint64_t i = 0; i < n; i++)
			comm->sum[i] += from[i];
	}
	return upload(stream, x, comm->sum, n);
}

int ctn_comm_all_gather(struct ctn_comm *comm, struct ctn_stream *stream, float *out,
			const float *x, uint64_t n)
{
	struct ctn_comm_group *g = comm->group;
	uint32_t set;
	int rc = give_and_meet(comm, stream, ALL_GATHER, x, n, 0, &set);

	for (uint32_t r = 0; rc == 0 && r < g->size; r++)
		rc = upload(stream, out + r * n, g->comms[r].slots[set], n);
	return rc;
}

int ctn_comm_broadcast(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n,
		       uint32_t root)
{
	uint32_t set;
	int rc = give_and_meet(comm, stream, BROADCAST, x, n, root, &set);

	if (rc || root == comm->rank)
		return rc;
	return upload(stream, x, comm->group->comms[root].slots[set], n);
}

int ctn_comm_send(struct ctn_comm *comm, struct ctn_stream *stream, const float *x, uint64_t n,
		  uint32_t to)
{
	struct ctn_comm_group *g = comm->group;
	int rc;

	if (n > g->max_floats || to >= g->size || to == comm->rank)
		return -EINVAL;
	pthread_mutex_lock(&g->lock);
	while (!g->code && comm->outbox_full)
		pthread_cond_wait(&g->changed, &g->lock);
	rc = g->code;
	pthread_mutex_unlock(&g->lock);
	if (!rc)
		rc = download(stream, comm->outbox, x, n);
	if (rc)
		return rc;
	pthread_mutex_lock(&g->lock);
	rc = g->code;
	if (!rc) {
		comm->outbox_full = true;
		comm->outbox_to = to;
		comm->outbox_floats = n;
		pthread_cond_broadcast(&g->changed);
	}
	pthread_mutex_unlock(&g->lock);
	return rc;
}

int ctn_comm_recv(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n,
		  uint32_t from)
{
	struct ctn_comm_group *g = comm->group;
	struct ctn_comm *sender;
	int rc;

	if (n > g->max_floats || from >= g->size || from == comm->rank)
		return -EINVAL;
	sender = &g->comms[from];
	pthread_mutex_lock(&g->lock);
	while (!g->code && !(sender->outbox_full && sender->outbox_to == comm->rank))
		pthread_cond_wait(&g->changed, &g->lock);
	if (!g->code && sender->outbox_floats != n) {
		g->code = -EPROTO;
		pthread_cond_broadcast(&g->changed);
	}
	rc = g->code;
	pthread_mutex_unlock(&g->lock);
	if (rc)
		return rc;
	rc = upload(stream, x, sender->outbox, n);
	pthread_mutex_lock(&g->lock);
	sender->outbox_full = false;
	pthread_cond_broadcast(&g->changed);
	pthread_mutex_unlock(&g->lock);
	return rc;
}
