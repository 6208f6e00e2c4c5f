// SPDX-License-Identifier: MIT
/*
 * Policy "lru": the oldest waiting request is served first; room is made by dropping whole
 * models that nobody runs, the least recently used first.
 *
 * One pass over the models in the order of their oldest queued request. A model that has its
 * weights (or whose weights are on the way) admits; one that has none is loaded when room can
 * be made. Where it cannot, its request is the barrier of its devices: from then on nothing
 * younger is admitted or loaded there, so the running sequences end and room comes. Nobody
 * starves: what runs is finite, and what is younger waits behind.
 *
 * Victims: models that run nothing and are not pinned; first those that nobody waits for, by
 * last use, then those whose oldest request is younger than the one that needs room.
 *
 * Cost of a decision: O(n log n) in the models that have requests, O(n) more for each load.
 */
#include "sched/state.h"

#include <stdlib.h>

static bool may_be_victim(const struct ctn_sched *s, const struct sched_model *v,
			  const struct sched_model *m, uint64_t arrival)
{
	return v != m && v->state == CTN_SCHED_RESIDENT && !v->pinned && sched_steps(v) == 0 &&
	       v->admitted == 0 && sched_head_arrival(s, v) > arrival;
}

/* The better victim of two: nobody waits for it, then the least recently used. */
static bool better_victim(const struct sched_model *a, const struct sched_model *b)
{
	if (!a->queued != !b->queued)
		return !a->queued;
	return a->last_used_ns < b->last_used_ns;
}

/* Drops victims until `m` can have `blocks`; false, and nothing dropped, if that is not
 * possible now. `arrival` is that of the request for which it is done. */
static bool make_room(struct ctn_sched *s, struct sched_model *m, uint32_t blocks, uint64_t arrival)
{
	uint64_t need[CTN_SCHED_MAX_DEVICES];
	uint64_t possible[CTN_SCHED_MAX_DEVICES] = {0};
	uint32_t victims = 0;

	/* The load, its KV budget and the admission are still to be emitted. */
	if (!sched_room(s, 3))
		return false;
	sched_lacking(s, m, blocks, need);
	if (sched_satisfied(s, need))
		return true;
	for (uint32_t i = 0; i < s->model_count; i++) {
		const struct sched_model *v = &s->models[i];

		if (!may_be_victim(s, v, m, arrival))
			continue;
		victims++;
		for (uint32_t r = 0; r < v->rank_count; r++)
			possible[v->ranks[r].device] += sched_held(s, v, r);
	}
	for (uint32_t d = 0; d < s->device_count; d++) {
		if (possible[d] < need[d])
			return false;
	}
	if (!sched_room(s, victims + 3))
		return false;
	while (!sched_satisfied(s, need)) {
		uint32_t best = UINT32_MAX;

		for (uint32_t i = 0; i < s->model_count; i++) {
			const struct sched_model *v = &s->models[i];
			bool helps = false;

			for (uint32_t d = 0; d < s->device_count; d++)
				helps |= need[d] && (v->devices & 1ull << d);
			if (helps && may_be_victim(s, v, m, arrival) &&
			    (best == UINT32_MAX || better_victim(v, &s->models[best])))
				best = i;
		}
		CTN_ASSERT(best != UINT32_MAX);
		sched_drop(s, best);
		sched_lacking(s, m, blocks, need);
	}
	return true;
}

static bool is_pinned(const struct sched_model *m)
{
	return m->pinned;
}

/* A request that only the unpinning of a model could help must not wait for ever, nor be a
 * barrier to others. Refuses the head of the queue if it is such a one. */
static bool refuse_unplaceable(struct ctn_sched *s, const struct sched_model *m)
{
	uint32_t head = m->queue.head;

	if (sched_fits(s, m, s->requests[head].kv_blocks, is_pinned) || !sched_room(s, 1))
		return false;
	sched_refuse(s, head, CTN_REFUSED_PINNED, 0);
	return true;
}

/* Admits what the queue of a model with weights has, in order, up to the barrier. Returns the
 * arrival of the request that found no room, UINT64_MAX if none. */
static uint64_t admit_queued(struct ctn_sched *s, uint32_t model, uint64_t barrier, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	while (m->queue.head != NO_REQUEST && m->admitted < m->max_sequences) {
		const struct sched_request *q = &s->requests[m->queue.head];
		uint32_t blocks = m->kv_admitted + q->kv_blocks;

		if (q->arrival > barrier || !sched_room(s, 2))
			return UINT64_MAX;
		if (blocks > m->kv_budget) {
			if (!make_room(s, m, blocks, q->arrival)) {
				if (refuse_unplaceable(s, m))
					continue;
				return q->arrival;
			}
			sched_kv_budget(s, model, blocks);
		}
		sched_admit(s, m->queue.head, now_ns);
	}
	return UINT64_MAX;
}

static _Thread_local const struct ctn_sched *sorted_by;

static int by_head(const void *a, const void *b)
{
	uint64_t x = sched_head_arrival(sorted_by, &sorted_by->models[*(const uint32_t *)a]);
	uint64_t y = sched_head_arrival(sorted_by, &sorted_by->models[*(const uint32_t *)b]);

	return x < y ? -1 : x > y;
}

static void decide(struct ctn_sched *s, uint64_t now_ns)
{
	uint64_t barrier[CTN_SCHED_MAX_DEVICES];
	uint32_t waiting = 0;

	for (uint32_t d = 0; d < s->device_count; d++)
		barrier[d] = UINT64_MAX;
	for (uint32_t i = 0; i < s->model_count; i++) {
		if (s->models[i].queued && !s->models[i].lost)
			s->order[waiting++] = i;
	}
	sorted_by = s;
	qsort(s->order, waiting, sizeof(*s->order), by_head);
	for (uint32_t i = 0; i < waiting; i++) {
		uint32_t model = s->order[i];
		struct sched_model *m = &s->models[model];
		uint64_t limit = UINT64_MAX, blocked;

	again:
		for (uint32_t d = 0; d < s->device_count; d++) {
			if (m->devices & 1ull << d)
				limit = CTN_MIN(limit, barrier[d]);
		}
		blocked = sched_head_arrival(s, m);
		if (blocked == UINT64_MAX || blocked > limit)
			continue;
		if (m->state == CTN_SCHED_ABSENT) {
			uint32_t blocks = s->requests[m->queue.head].kv_blocks;

			if (!make_room(s, m, blocks, blocked)) {
				if (refuse_unplaceable(s, m))
					goto again;
				goto barred;
			}
			sched_load(s, model, blocks, now_ns);
		}
		blocked = admit_queued(s, model, limit, now_ns);
		if (blocked == UINT64_MAX)
			continue;
	barred:
		for (uint32_t d = 0; d < s->device_count; d++) {
			if (m->devices & 1ull << d)
				barrier[d] = CTN_MIN(barrier[d], blocked);
		}
	}
	sched_start_steps(s, now_ns);
}

/* Host victims in order: not pinned, least recently used; the model that needs the room last. */
static bool better_host_victim(const struct ctn_sched *s, uint32_t a, uint32_t b, uint32_t self)
{
	const struct sched_model *x = &s->models[a], *y = &s->models[b];

	if (a == self || b == self)
		return b == self;
	if (x->pinned != y->pinned)
		return y->pinned;
	return x->last_used_ns < y->last_used_ns;
}

void sched_lru_host_need(struct ctn_sched *s, uint32_t model, uint64_t bytes,
			 const uint64_t *host_evictable)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->model_count; i++) {
		if (host_evictable[i])
			s->order[n++] = i;
	}
	while (bytes && n && sched_room(s, 1)) {
		uint32_t best = 0;
		uint64_t take;

		for (uint32_t i = 1; i < n; i++) {
			if (better_host_victim(s, s->order[i], s->order[best], model))
				best = i;
		}
		take = CTN_MIN(bytes, host_evictable[s->order[best]]);
		sched_drop_host(s, s->order[best], take);
		bytes -= take;
		s->order[best] = s->order[--n];
	}
}

const struct sched_policy sched_policy_lru = {
	.name = "lru", .decide = decide, .host_need = sched_lru_host_need};
