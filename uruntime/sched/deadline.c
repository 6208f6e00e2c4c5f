// SPDX-License-Identifier: MIT
/*
 * Early refusal: a request that would miss its deadline, as far as what was measured can tell, is
 * better off elsewhere at once than here in vain.
 *
 * Its end is predicted as: what the link carries and what waits for it with an earlier key, its
 * model's own load, and then the steps that its model needs for its queue up to it and for the
 * request. What was never measured counts as nothing, so that no request is refused for a guess.
 *
 * Cost: O(w + h) in the models that wait for weights and those that hold some.
 */
#include "sched/state.h"

#include <math.h>

/* Of a load of all that it lacks, as far as its speeds were measured. */
static double load_seconds(const struct ctn_sched *s, const struct sched_model *m)
{
	double link = s->loads_seen ? s->seconds_per_byte * (double)m->missing_bytes : 0;
	double disk = s->stage_seconds_per_byte * (double)m->host_missing;

	return CTN_MAX(link, disk);
}

/* Until the load of `m` ends, whatever has to end or to come first included. */
static double until_loaded(const struct ctn_sched *s, const struct sched_model *m, uint64_t now_ns,
			   double *before_s)
{
	double under_way = 0, queue = 0;

	*before_s = 0;
	if (m->state == CTN_SCHED_RESIDENT)
		return 0;
	if (m->state == CTN_SCHED_LOADING)
		return m->load_due_ns > now_ns ? (double)(m->load_due_ns - now_ns) / 1e9 : 0;
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *o = &s->models[s->holders[i]];

		if (o->state == CTN_SCHED_LOADING && o->load_due_ns > now_ns &&
		    (o->queued || o->admitted) && (o->devices & m->devices))
			under_way = CTN_MAX(under_way, (double)(o->load_due_ns - now_ns) / 1e9);
	}
	for (uint32_t i = 0; i < s->waiter_count; i++) {
		const struct sched_waiter *w = &s->waiters[i];

		if (w->model != (uint32_t)(m - s->models) && (w->devices & m->devices) &&
		    w->key_ns <= m->key_ns)
			queue += load_seconds(s, &s->models[w->model]);
	}
	*before_s = under_way + queue;
	return *before_s + load_seconds(s, m);
}

bool sched_refuse_hopeless(struct ctn_sched *s, uint32_t slot, uint64_t now_ns)
{
	const struct sched_request *q = &s->requests[slot];
	const struct sched_model *m = &s->models[q->model];
	double before_s, steps = q->no_step ? 0 : m->steps_each * m->step_s, batches, end_s;
	struct ctn_sched_action *a;

	batches = ceil((double)(m->queued + m->admitted) / m->max_sequences);
	end_s = until_loaded(s, m, now_ns, &before_s) + batches * steps;
	if ((double)now_ns + 1e9 * end_s <= (double)q->deadline_ns || !sched_room(s, 1))
		return false;
	sched_refuse(s, slot, CTN_REFUSED_DEADLINE);
	a = &s->actions[s->action_count - 1];
	/* When what is before it will be over. */
	a->seconds = CTN_MAX(1.0, ceil(before_s + CTN_MAX(batches - 1, 0) * steps));
	return true;
}
