// SPDX-License-Identifier: MIT
/*
 * Policy "default", and "clairvoyant", which is the same with foresight: it asks when the next
 * request of a model comes where default has a chance learnt from the past. (A heuristic: with all
 * arrivals known the best order is still a hard problem.)
 *
 * Who is loaded: of the models that wait for their weights, the one with the oldest request. One
 * load at a time on a link, decided when the link is free: what is dropped for a load that has to
 * wait would be dropped too early. Where it is not known whether the weights are in the pool, a
 * load may be waiting for a disk, and does not count.
 *
 * Who is dropped: see room.c. The queue is the best foresight there is: a model with requests has
 * the chance 1.
 *
 * What is loaded ahead: when a link has nothing else to do, the model whose absence costs most, if
 * what must go for it costs clearly less. Such a load is cancelled as soon as a request needs the
 * link; the layers that have come stay.
 *
 * A decision costs O(n) in the models without a load, O(n) more for each part of a victim that a
 * load drops. Chances are computed for models that hold weights when room is needed, and for those
 * that lack some no more often than they can change.
 */
#include "sched/room.h"

#include <math.h>

#define MARGIN        0.3   /* of the gain of a load ahead: what is lost is less sure */
#define LEAST_GAIN_S  0.003 /* seconds of waiting that a load ahead must save */
#define LEAST_SHARE   0.2   /* and of the seconds that the load takes */
#define RETRY_NS      (20 * 1000000ull)
#define LEAST_WAKE_NS (50 * 1000000ull)

static bool link_known(const struct ctn_sched *s, const struct sched_model *m)
{
	return s->host_known && m->host_missing == 0;
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
	return sched_make_room(s, m, blocks, UINT64_MAX, INFINITY, now_ns);
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
			if (!sched_make_room(s, m, blocks, q->arrival, INFINITY, now_ns)) {
				if (sched_refuse_unplaceable(s, m))
					continue;
				return;
			}
			sched_kv_budget(s, model, blocks);
		}
		sched_admit(s, m->queue.head, now_ns);
	}
}

/* Of the models that wait for their weights, the one to be served first; NULL: none. */
static struct sched_model *next_demand(const struct ctn_sched *s, uint64_t busy)
{
	struct sched_model *best = NULL;

	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		if (m->state == CTN_SCHED_ABSENT && m->queued && !m->lost && !(m->devices & busy) &&
		    (!best || sched_head_arrival(s, m) < sched_head_arrival(s, best)))
			best = m;
	}
	return best;
}

static void cancel_ahead(struct ctn_sched *s, uint64_t devices)
{
	for (uint32_t i = 0; i < s->model_count; i++) {
		const struct sched_model *o = &s->models[i];

		if (loads_ahead(o) && !o->cancelling && (o->devices & devices) && sched_room(s, 1))
			sched_cancel(s, i);
	}
}

/* Loads what is waited for; adds the devices for which it goes on waiting to *busy. */
static void load_demanded(struct ctn_sched *s, uint64_t *busy, uint64_t ahead, uint64_t now_ns)
{
	struct sched_model *m;

	while ((m = next_demand(s, *busy))) {
		uint32_t blocks = sched_kv_to_admit(s, m);

		if (m->devices & ahead)
			cancel_ahead(s, m->devices);
		else if (sched_make_room(s, m, blocks, sched_head_arrival(s, m), INFINITY, now_ns))
			sched_load(s, (uint32_t)(m - s->models), blocks, now_ns);
		else if (sched_refuse_unplaceable(s, m))
			continue;
		if (link_known(s, m) || m->state == CTN_SCHED_ABSENT)
			*busy |= m->devices;
	}
}

/* What is gained if all of `m` were there. Notes when that is worth asking again. */
static double gain(const struct ctn_sched *s, struct sched_model *m, uint64_t now_ns)
{
	const struct sched_gaps *g = &m->gaps;
	uint64_t scale_ns = (uint64_t)(1e9 * CTN_MIN(g->scale_s, 1e6));
	double gain_s;

	if (m->check_ns > now_ns)
		return 0;
	sched_value(s, m, now_ns);
	gain_s = sched_loss(s, m);
	/* After bursty gaps the chance only falls until the next request, after regular ones it
	 * grows; if nothing has come for long, the past says no more. */
	if (gain_s >= LEAST_GAIN_S)
		m->check_ns = now_ns + CTN_MAX(RETRY_NS, (now_ns - g->last_ns) / 8);
	else if (g->shape > 1 && now_ns < g->last_ns + 2 * scale_ns)
		m->check_ns = now_ns + CTN_MAX(LEAST_WAKE_NS, scale_ns / 20);
	else
		m->check_ns = UINT64_MAX;
	return gain_s;
}

static void load_ahead(struct ctn_sched *s, uint64_t busy, uint64_t now_ns)
{
	struct sched_model *best = NULL;
	double most = LEAST_GAIN_S;

	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];
		double gain_s;

		if (m->state != CTN_SCHED_ABSENT || m->queued || m->admitted || m->lost ||
		    m->gaps.count == 0 || m->host_missing || (m->devices & busy))
			continue;
		gain_s = gain(s, m, now_ns);
		s->wake_ns = CTN_MIN(s->wake_ns, m->check_ns);
		if (gain_s < LEAST_SHARE * sched_load_seconds(s, m))
			continue;
		if (gain_s >= most && m->missing_bytes) {
			most = gain_s;
			best = m;
		}
	}
	if (best && sched_make_room(s, best, 1, UINT64_MAX, (1 - MARGIN) * most, now_ns))
		sched_load(s, (uint32_t)(best - s->models), 1, now_ns);
}

static void decide(struct ctn_sched *s, uint64_t now_ns)
{
	uint64_t busy = 0, ahead = 0;

	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		m->barrier = UINT64_MAX;
		if (m->state != CTN_SCHED_LOADING || !link_known(s, m))
			continue;
		if (s->cancels && loads_ahead(m))
			ahead |= m->devices;
		else
			busy |= m->devices;
	}
	sched_kv_settle(s, now_ns);
	load_demanded(s, &busy, ahead, now_ns);
	if (s->cancels && s->host_known)
		load_ahead(s, busy | ahead, now_ns);
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		m->drains = m->barrier != UINT64_MAX;
		if (!s->exclusive_steps && m->queued && m->state != CTN_SCHED_ABSENT)
			admit(s, i, now_ns);
	}
	sched_start_steps(s, now_ns);
}

const struct sched_policy sched_policy_default = {.name = "default",
						  .decide = decide,
						  .admit = admit,
						  .room_now = room_now,
						  .host_need = sched_lru_host_need};
const struct sched_policy sched_policy_clairvoyant = {.name = "clairvoyant",
						      .decide = decide,
						      .admit = admit,
						      .room_now = room_now,
						      .host_need = sched_lru_host_need};
