// SPDX-License-Identifier: MIT
/*
 * Policy "default", and "clairvoyant", which is the same with foresight: it asks when the next
 * request of a model comes where default has a chance learnt from the past. (A heuristic: with all
 * arrivals known the best order is still a hard problem.)
 *
 * Who is loaded: of the models that wait for their weights, the first by order.c. One load at a
 * time on a link, decided when the link is free: what is dropped for a load that has to wait would
 * be dropped too early. Where it is not known whether the weights are in the pool, a load may be
 * waiting for a disk, and does not count.
 *
 * Who is dropped: see room.c. The queue is the best foresight there is: a model with requests has
 * the chance 1. What is loaded or staged ahead of requests: see ahead.c.
 *
 * How long anyone waits: a model that is there keeps what it has for a residency quantum (room.c),
 * then it is paused, goes behind all that wait then, and whoever it made wait is loaded. So from
 * the arrival of a request until its model is there pass at most: the loads of those before it in
 * the order (each model once, since a paused one goes to the end), the load that was under way, a
 * quantum, and its own load. It needs the caller to carry out pauses; without them, what runs is
 * drained instead.
 *
 * A decision costs O(h + w) in the models that hold something on a device and those that wait for
 * weights, O(h) more for each part of a victim that a load drops, and a look at a word for each
 * model when a link is idle. Chances are computed for holders when room is needed, and for those
 * that lack weights no more often than they can change.
 */
#include "sched/room.h"

#include <float.h>
#include <math.h>

static bool link_known(const struct ctn_sched *s, const struct sched_model *m)
{
	return s->host_known && m->stage_bytes == 0;
}

/* A load for which nobody waits. */
static bool loads_ahead(const struct sched_model *m)
{
	return m->state == CTN_SCHED_LOADING && !m->queued && !m->admitted;
}

/* What runs nothing may be dropped for it, as for a load ahead. */
static bool room_now(struct ctn_sched *s, struct sched_model *m, uint32_t blocks, uint64_t arrival,
		     uint64_t now_ns)
{
	return sched_make_room(s, m, blocks, DBL_MAX, now_ns) == SCHED_ROOM;
}

static void admit(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	while (m->queue.head != NO_REQUEST && m->admitted < m->max_sequences && !m->cancelling) {
		const struct sched_request *q = &s->requests[m->queue.head];
		uint32_t blocks = sched_kv_to_admit(s, m);

		if (q->arrival > m->barrier || !sched_room(s, 2))
			return;
		if (blocks > m->kv_budget) {
			if (sched_make_room(s, m, blocks, INFINITY, now_ns) != SCHED_ROOM) {
				if (sched_refuse_unplaceable(s, m))
					continue;
				return;
			}
			sched_kv_budget(s, model, blocks);
		}
		sched_admit(s, m->queue.head, now_ns);
	}
}

/* Of the models that wait for their weights, the first by order; NULL: none. Where somebody found
 * no room whatever is dropped (`stuck`), what paused requests hold has to become free first. */
static struct sched_model *next_demand(const struct ctn_sched *s, uint64_t busy, uint64_t stuck)
{
	struct sched_model *best = NULL;
	int64_t least = INT64_MAX;

	for (uint32_t i = 0; i < s->waiter_count; i++) {
		const struct sched_waiter *w = &s->waiters[i];
		int64_t key;

		if (w->devices & busy)
			continue;
		if ((w->devices & stuck) &&
		    (!s->models[w->model].admitted || s->models[w->model].in_vain))
			continue;
		key = w->key_ns + sched_behind_ns(s, w->served_s);
		if (!best || key < least || (key == least && w->model < best - s->models)) {
			least = key;
			best = &s->models[w->model];
		}
	}
	return best;
}

static void cancel_ahead(struct ctn_sched *s, uint64_t devices)
{
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *o = &s->models[s->holders[i]];

		if (loads_ahead(o) && !o->cancelling && (o->devices & devices) && sched_room(s, 1))
			sched_cancel(s, s->holders[i]);
	}
}

static bool is_pinned(const struct sched_model *m)
{
	return m->pinned;
}

/* What was paused, and now does not fit beside what has been pinned, is queued again, and refused
 * there. False: it fits, or there is no room for the actions now. */
static bool requeue_unplaceable(struct ctn_sched *s, struct sched_model *m)
{
	if (s->pinned_count == 0 || sched_fits(s, m, m->kv_admitted, is_pinned) ||
	    !sched_room(s, 2))
		return false;
	if (!sched_kv_trim(s, m, is_pinned))
		sched_preempt(s, m->batch.head);
	return true;
}

/* Something on the devices of `m` still moves or computes, so that room may come by itself. */
static bool goes_on(const struct ctn_sched *s, const struct sched_model *m)
{
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *o = &s->models[s->holders[i]];

		if ((o->devices & m->devices) && o->state != CTN_SCHED_ABSENT &&
		    (o->state == CTN_SCHED_LOADING || o->admitted || sched_steps(o) ||
		     o->barrier != UINT64_MAX))
			return true;
	}
	return false;
}

static bool anyone(const struct sched_model *m)
{
	return true;
}

/* Nobody who is paused there fits beside what the others hold for their paused requests: KV that
 * nobody uses leaves, else the last of them in the order gives that of its youngest one back. */
static bool give_way(struct ctn_sched *s, const struct sched_model *m)
{
	struct sched_model *last = NULL;
	int64_t most = INT64_MIN;

	if (goes_on(s, m) || !sched_room(s, 2))
		return false;
	if (sched_kv_trim(s, m, anyone))
		return true;
	for (uint32_t i = 0; i < s->waiter_count; i++) {
		const struct sched_waiter *w = &s->waiters[i];
		struct sched_model *o = &s->models[w->model];

		if (o != m && o->kv_admitted && (o->devices & m->devices) && w->key_ns >= most) {
			most = w->key_ns;
			last = o;
		}
	}
	if (!last)
		return false;
	sched_kv_give_back(s, last);
	return true;
}

/* Loads what is waited for; adds the devices for which it goes on waiting to *busy. */
static void load_demanded(struct ctn_sched *s, uint64_t *busy, uint64_t ahead, uint64_t now_ns)
{
	struct sched_model *m, *first = NULL;
	uint64_t stuck = 0;

	for (uint32_t i = 0; i < s->waiter_count; i++)
		s->models[s->waiters[i].model].in_vain = false;
	while ((m = next_demand(s, *busy, stuck))) {
		uint32_t blocks = m->admitted ? m->kv_admitted : sched_kv_to_admit(s, m);
		enum sched_room_found found = SCHED_ROOM_LATER;

		if (m->devices & ahead)
			cancel_ahead(s, m->devices);
		else
			found = sched_make_room(s, m, blocks, INFINITY, now_ns);
		if (found == SCHED_ROOM) {
			sched_load(s, (uint32_t)(m - s->models), blocks, now_ns);
			if (link_known(s, m))
				*busy |= m->devices;
		} else if (m->admitted ? requeue_unplaceable(s, m)
				       : sched_refuse_unplaceable(s, m)) {
			continue;
		} else if (found == SCHED_ROOM_NEVER) {
			/* One that is paused may fit where this one does not. */
			m->in_vain = true;
			stuck |= m->devices;
			if (!first && m->admitted)
				first = m;
		} else {
			*busy |= m->devices;
		}
	}
	if (first && !(first->devices & *busy) && give_way(s, first))
		s->more = true;
	*busy |= stuck;
}

static void decide(struct ctn_sched *s, uint64_t now_ns)
{
	uint64_t busy = 0, ahead = 0;

	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *m = &s->models[s->holders[i]];

		m->barrier = UINT64_MAX;
		m->yields = false;
		if (m->state != CTN_SCHED_LOADING || !link_known(s, m))
			continue;
		if (s->cancels && loads_ahead(m))
			ahead |= m->devices;
		else
			busy |= m->devices;
	}
	sched_advance(s);
	s->reason = "KV grows";
	sched_kv_settle(s, now_ns);
	s->reason = "a request waits for it";
	load_demanded(s, &busy, ahead, now_ns);
	s->reason = "ahead of requests";
	sched_load_ahead(s, busy | ahead, now_ns);
	sched_stage_ahead(s, now_ns);
	s->reason = "its weights are there, or on the way";
	/* Downwards: an admission may drop others, and the last takes the place of one. */
	for (uint32_t i = s->holder_count; i-- > 0;) {
		struct sched_model *m;

		if (i >= s->holder_count)
			continue;
		m = &s->models[s->holders[i]];
		if (!s->exclusive_steps && m->queued && m->state != CTN_SCHED_ABSENT)
			admit(s, s->holders[i], now_ns);
	}
	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *m = &s->models[s->holders[i]];

		m->drains = m->barrier != UINT64_MAX;
	}
	s->reason = NULL;
	sched_start_steps(s, now_ns);
}

const struct sched_policy sched_policy_default = {.name = "default",
						  .foresees = true,
						  .decide = decide,
						  .admit = admit,
						  .room_now = room_now,
						  .host_need = sched_host_need};
const struct sched_policy sched_policy_clairvoyant = {.name = "clairvoyant",
						      .foresees = true,
						      .decide = decide,
						      .admit = admit,
						      .room_now = room_now,
						      .host_need = sched_host_need};
