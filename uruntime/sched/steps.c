// SPDX-License-Identifier: MIT
/*
 * Whose step is next. Where steps share a device by themselves every model that has requests in no
 * step starts one; where a device computes one at a time (exclusive_steps), the model with the
 * oldest such request, so that a batch is composed no earlier than it can begin.
 */
#include "sched/state.h"

/* The oldest admitted request that computes and is in no step. */
static uint64_t oldest_ready(const struct ctn_sched *s, const struct sched_model *m)
{
	for (uint32_t i = m->batch.head; i != NO_REQUEST; i = s->requests[i].next) {
		const struct sched_request *q = &s->requests[i];

		if (!q->no_step && q->step <= m->steps_done)
			return q->arrival;
	}
	return UINT64_MAX;
}

/* When the first step of a model may begin: layers that are there run while the others come, so a
 * step that begins its own length before the end of the load does not wait. */
static uint64_t may_begin_ns(const struct sched_model *m)
{
	uint64_t step_ns = (uint64_t)(1e9 * m->step_s);

	if (m->state == CTN_SCHED_RESIDENT)
		return 0;
	return m->load_due_ns > step_ns ? m->load_due_ns - step_ns : 0;
}

/* The oldest request that its next step could take. */
static uint64_t oldest(const struct ctn_sched *s, const struct sched_model *m)
{
	uint64_t queued = UINT64_MAX;

	if (m->admitted < m->max_sequences && sched_head_arrival(s, m) <= m->barrier)
		queued = sched_head_arrival(s, m);
	return m->ready ? CTN_MIN(queued, oldest_ready(s, m)) : queued;
}

static bool may_step(const struct sched_model *m)
{
	return (m->ready || m->queued) && m->state != CTN_SCHED_ABSENT && !m->cancelling &&
	       sched_steps(m) < m->max_steps && m->kv_admitted <= m->kv_budget;
}

static void start_exclusive(struct ctn_sched *s, uint64_t now_ns)
{
	for (uint32_t i = 0; i < s->model_count; i++)
		s->models[i].stepped = false;
	for (;;) {
		uint64_t least = UINT64_MAX;
		uint32_t next = UINT32_MAX;

		for (uint32_t i = 0; i < s->model_count; i++) {
			const struct sched_model *m = &s->models[i];
			uint64_t arrival;

			if (!may_step(m) || m->stepped || (m->first_stage & s->entering))
				continue;
			if (may_begin_ns(m) > now_ns) {
				s->wake_ns = CTN_MIN(s->wake_ns, may_begin_ns(m));
				continue;
			}
			arrival = oldest(s, m);
			if (arrival < least) {
				least = arrival;
				next = i;
			}
		}
		if (next == UINT32_MAX || !sched_room(s, 1))
			return;
		s->models[next].stepped = true;
		s->policy->admit(s, next, now_ns);
		if (s->models[next].ready && sched_room(s, 1))
			sched_step(s, next, now_ns);
	}
}

void sched_start_steps(struct ctn_sched *s, uint64_t now_ns)
{
	if (s->exclusive_steps) {
		start_exclusive(s, now_ns);
		return;
	}
	for (uint32_t i = 0; i < s->model_count && sched_room(s, 1); i++) {
		if (s->models[i].ready && may_step(&s->models[i]))
			sched_step(s, i, now_ns);
	}
}
