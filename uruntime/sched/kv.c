// SPDX-License-Identifier: MIT
/*
 * KV blocks: a request is admitted with those of its prompt and gets more as it grows.
 *
 * What runs must not be stopped again at once, so beside others it is admitted only if each that
 * runs, and itself, could grow by an eighth and one block: whoever is pre-empted will have gained
 * a share of what must be computed again. When a model between steps cannot have what its requests
 * need, its youngest goes back to the queue, in its old place.
 *
 * Nobody is stopped for ever: of a model the oldest request is the last to go, and a request that
 * went though it was alone, or for the second time, comes back with all that it can ever need.
 * Alone on its devices that fits, or it was refused when it came.
 */
#include "sched/state.h"

static uint32_t headroom(const struct sched_request *q)
{
	return CTN_MIN(q->kv_most - q->kv_blocks, 1 + q->kv_blocks / 8);
}

static uint32_t batch_headroom(const struct ctn_sched *s, const struct sched_model *m)
{
	uint32_t sum = 0;

	for (uint32_t i = m->batch.head; i != NO_REQUEST; i = s->requests[i].next)
		sum += headroom(&s->requests[i]);
	return sum;
}

uint32_t sched_kv_to_admit(const struct ctn_sched *s, const struct sched_model *m)
{
	const struct sched_request *q = &s->requests[m->queue.head];
	uint32_t blocks = m->kv_admitted + q->kv_blocks;

	if (m->kv_admitted)
		blocks += batch_headroom(s, m) + headroom(q);
	return blocks;
}

bool sched_kv_trim(struct ctn_sched *s, const struct sched_model *m,
		   bool (*of)(const struct sched_model *))
{
	bool any = false;

	for (uint32_t i = 0; i < s->model_count; i++) {
		const struct sched_model *o = &s->models[i];

		if (o == m || !of(o) || !(o->devices & m->devices) ||
		    o->state == CTN_SCHED_LOADING || sched_steps(o) ||
		    o->kv_budget <= o->kv_admitted || !sched_room(s, 1))
			continue;
		sched_kv_budget(s, i, o->kv_admitted);
		any = true;
	}
	return any;
}

void sched_kv_grow(struct ctn_sched *s, uint32_t slot, uint32_t blocks)
{
	struct sched_request *q = &s->requests[slot];

	CTN_ASSERT(q->state == REQUEST_ADMITTED && blocks <= q->kv_most);
	if (blocks <= q->kv_blocks)
		return;
	s->models[q->model].kv_admitted += blocks - q->kv_blocks;
	q->kv_blocks = blocks;
	s->growing = true;
}

static uint64_t oldest_admitted(const struct ctn_sched *s, const struct sched_model *m)
{
	uint64_t oldest = UINT64_MAX;

	for (uint32_t i = m->batch.head; i != NO_REQUEST; i = s->requests[i].next)
		oldest = CTN_MIN(oldest, s->requests[i].arrival);
	return oldest;
}

/* The youngest of those that need KV. */
static void preempt_youngest(struct ctn_sched *s, struct sched_model *m)
{
	uint32_t youngest = NO_REQUEST, with_kv = 0;
	struct sched_request *q;

	for (uint32_t i = m->batch.head; i != NO_REQUEST; i = s->requests[i].next) {
		q = &s->requests[i];
		if (q->kv_blocks == 0)
			continue;
		with_kv++;
		if (youngest == NO_REQUEST || q->arrival > s->requests[youngest].arrival)
			youngest = i;
	}
	q = &s->requests[youngest];
	sched_preempt(s, youngest);
	if (with_kv == 1 || q->preempted)
		q->kv_blocks = q->kv_most;
	q->preempted = true;
}

void sched_kv_give_back(struct ctn_sched *s, struct sched_model *m)
{
	preempt_youngest(s, m);
	sched_kv_budget(s, (uint32_t)(m - s->models), m->kv_admitted);
}

/* False for want of room for actions. */
static bool settle(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	while (m->kv_admitted > m->kv_budget) {
		uint32_t ample = m->kv_admitted + batch_headroom(s, m);
		uint64_t need[CTN_SCHED_MAX_DEVICES];

		if (!sched_room(s, 1))
			return false;
		sched_lacking(s, m, ample, need);
		if (sched_satisfied(s, need))
			sched_kv_budget(s, model, ample);
		else if (s->policy->room_now(s, m, m->kv_admitted, oldest_admitted(s, m), now_ns))
			sched_kv_budget(s, model, m->kv_admitted);
		else if (!s->more && sched_room(s, 2))
			preempt_youngest(s, m);
		else
			return false;
	}
	return true;
}

void sched_kv_settle(struct ctn_sched *s, uint64_t now_ns)
{
	bool left = false;

	for (uint32_t i = 0; s->growing && i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		if (m->kv_admitted > m->kv_budget)
			left |= sched_steps(m) || !settle(s, i, now_ns);
	}
	s->growing = left;
}
