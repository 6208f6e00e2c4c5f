// SPDX-License-Identifier: MIT
/*
 * Policy "lru": the oldest waiting request is served first; room is made by dropping whole
 * models that run nothing, the least recently used first.
 *
 * One pass over the models in the order of their oldest queued request. A model that has its
 * weights (or whose weights are on the way) admits; one that has none is loaded when room can
 * be made. Where it cannot because its victims run, those drain: they admit nothing younger, and
 * nothing younger is loaded on these devices or takes more KV there. The others go on. Nobody
 * starves: what runs is finite, and what would take its place waits behind.
 *
 * Victims: models that are not pinned and for which no older request waits; first those that
 * run nothing, then those that drain already, then by last use.
 *
 * Where it is known that the weights are in the pool, a link that carries a load does not get a
 * second one for which something would have to be dropped: that would be dropped too early.
 *
 * Cost of a decision: O(n log n) in the models that have requests, O(n) more for each load.
 */
#include "sched/state.h"

#include <math.h>
#include <stdlib.h>

static bool may_be_victim(const struct ctn_sched *s, const struct sched_model *v,
			  const struct sched_model *m, uint64_t arrival)
{
	return v != m && v->state == CTN_SCHED_RESIDENT && !v->pinned && v->barrier == UINT64_MAX &&
	       sched_head_arrival(s, v) > arrival;
}

static bool runs(const struct sched_model *m)
{
	return sched_steps(m) || m->admitted;
}

/* The better victim of two. */
static bool better_victim(const struct sched_model *a, const struct sched_model *b)
{
	if (runs(a) != runs(b))
		return runs(b);
	if (runs(a) && a->drains != b->drains)
		return a->drains;
	return a->last_used_ns < b->last_used_ns;
}

/* Marks victims by their barrier, until they would make the room; false if they cannot. */
static bool choose_victims(struct ctn_sched *s, const struct sched_model *m,
			   uint64_t need[CTN_SCHED_MAX_DEVICES], uint64_t arrival, uint32_t *count)
{
	while (!sched_satisfied(s, need)) {
		struct sched_model *best = NULL;
		uint64_t short_of = 0;

		for (uint32_t d = 0; d < s->device_count; d++)
			short_of |= (uint64_t)(need[d] > 0) << d;
		for (uint32_t i = 0; i < s->model_count; i++) {
			struct sched_model *v = &s->models[i];

			if ((v->devices & short_of) && may_be_victim(s, v, m, arrival) &&
			    (!best || better_victim(v, best)))
				best = v;
		}
		if (!best)
			return false;
		best->barrier = arrival;
		++*count;
		for (uint32_t r = 0; r < best->rank_count; r++) {
			uint32_t d = best->ranks[r].device;

			need[d] -= CTN_MIN(need[d], sched_held(s, best, r));
		}
	}
	return true;
}

static void unmark(struct ctn_sched *s, uint64_t arrival)
{
	for (uint32_t i = 0; i < s->model_count; i++) {
		if (s->models[i].barrier == arrival)
			s->models[i].barrier = UINT64_MAX;
	}
}

static bool link_busy(const struct ctn_sched *s, const struct sched_model *m)
{
	for (uint32_t i = 0; s->host_known && i < s->model_count; i++) {
		const struct sched_model *o = &s->models[i];

		if (o->state == CTN_SCHED_LOADING && !o->host_missing && (o->devices & m->devices))
			return true;
	}
	return false;
}

/* Drops victims until `m` can have `blocks`; false, and nothing dropped, if that is not
 * possible now; then the victims that run drain. `arrival` is that of the request for which it
 * is done. */
static bool make_room(struct ctn_sched *s, struct sched_model *m, uint32_t blocks, uint64_t arrival)
{
	uint64_t need[CTN_SCHED_MAX_DEVICES];
	uint32_t victims = 0;
	bool running = false;

	/* The load, its KV budget and the admission are still to be emitted. */
	if (!sched_room(s, 3))
		return false;
	sched_lacking(s, m, blocks, need);
	if (sched_satisfied(s, need))
		return true;
	if (m->state == CTN_SCHED_ABSENT && link_busy(s, m))
		return false;
	if (!choose_victims(s, m, need, arrival, &victims)) {
		unmark(s, arrival);
		return false;
	}
	for (uint32_t i = 0; i < s->model_count; i++) {
		if (s->models[i].barrier == arrival)
			running |= runs(&s->models[i]);
	}
	if (running || !sched_room(s, victims + 3))
		return false;
	for (uint32_t i = 0; i < s->model_count; i++) {
		if (s->models[i].barrier == arrival)
			sched_drop(s, i);
	}
	unmark(s, arrival);
	/* What a victim shares with others has not become free. */
	return make_room(s, m, blocks, arrival);
}

/* Whoever runs must not drain for it. */
static bool room_now(struct ctn_sched *s, struct sched_model *m, uint32_t blocks, uint64_t arrival,
		     uint64_t now_ns)
{
	if (make_room(s, m, blocks, arrival))
		return true;
	unmark(s, arrival);
	return false;
}

static bool is_pinned(const struct sched_model *m)
{
	return m->pinned;
}

/* A request that only the unpinning of a model could help must not wait for ever, nor be a
 * barrier to others. Refuses the head of the queue if it is such a one, unless KV that the pinned
 * do not use can be had: true if it is worth another look. */
bool sched_refuse_unplaceable(struct ctn_sched *s, const struct sched_model *m)
{
	uint32_t head = m->queue.head;

	/* It was refused when it came if it did not fit alone. */
	if (s->pinned_count == 0 || sched_fits(s, m, s->requests[head].kv_most, is_pinned) ||
	    !sched_room(s, 1))
		return false;
	if (sched_kv_trim(s, m, is_pinned))
		return true;
	sched_refuse(s, head, CTN_REFUSED_PINNED);
	return true;
}

static void bar(struct ctn_sched *s, const struct sched_model *m, uint64_t arrival)
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		if (m->devices & 1ull << d)
			s->wanted[d] = CTN_MIN(s->wanted[d], arrival);
	}
}

/* May a request take room there, or does an older one wait for it? */
static bool barred(const struct ctn_sched *s, const struct sched_model *m, uint64_t arrival)
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		if ((m->devices & 1ull << d) && s->wanted[d] < arrival)
			return true;
	}
	return false;
}

/* Admits what the queue of a model with weights has, in order, up to its barrier. */
static void admit(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	while (m->queue.head != NO_REQUEST && m->admitted < m->max_sequences) {
		const struct sched_request *q = &s->requests[m->queue.head];
		uint32_t blocks = sched_kv_to_admit(s, m);

		if (q->arrival > m->barrier || !sched_room(s, 2))
			return;
		if (blocks > m->kv_budget) {
			if (barred(s, m, q->arrival))
				return;
			if (!make_room(s, m, blocks, q->arrival)) {
				if (sched_refuse_unplaceable(s, m))
					continue;
				bar(s, m, q->arrival);
				return;
			}
			sched_kv_budget(s, model, blocks);
		}
		sched_admit(s, m->queue.head, now_ns);
	}
}

/* The model with the oldest request of those that wait. */
static void serve(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	while (m->state == CTN_SCHED_ABSENT) {
		uint64_t arrival = sched_head_arrival(s, m);
		uint32_t blocks;

		if (arrival == UINT64_MAX || barred(s, m, arrival))
			return;
		blocks = sched_kv_to_admit(s, m);
		if (make_room(s, m, blocks, arrival)) {
			sched_load(s, model, blocks, now_ns);
		} else if (!sched_refuse_unplaceable(s, m)) {
			bar(s, m, arrival);
			return;
		}
	}
	if (!s->exclusive_steps)
		admit(s, model, now_ns);
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
	uint32_t waiting = 0;

	s->reason = "the oldest request first";
	for (uint32_t d = 0; d < s->device_count; d++)
		s->wanted[d] = UINT64_MAX;
	for (uint32_t i = 0; i < s->model_count; i++)
		s->models[i].barrier = UINT64_MAX;
	/* First: whom it pre-empts waits as well. */
	sched_kv_settle(s, now_ns);
	for (uint32_t i = 0; i < s->model_count; i++) {
		if (s->models[i].queued && !s->models[i].lost)
			s->order[waiting++] = i;
	}
	sorted_by = s;
	qsort(s->order, waiting, sizeof(*s->order), by_head);
	for (uint32_t i = 0; i < waiting; i++)
		serve(s, s->order[i], now_ns);
	for (uint32_t i = 0; i < s->model_count; i++)
		s->models[i].drains = s->models[i].barrier != UINT64_MAX;
	s->reason = NULL;
	sched_start_steps(s, now_ns);
}

static void host_need(struct ctn_sched *s, uint32_t model, uint64_t bytes,
		      const uint64_t *host_evictable, uint64_t now_ns)
{
	sched_make_host_room(s, model, bytes, host_evictable, NULL, INFINITY, now_ns);
}

const struct sched_policy sched_policy_lru = {.name = "lru",
					      .decide = decide,
					      .admit = admit,
					      .room_now = room_now,
					      .host_need = host_need};
