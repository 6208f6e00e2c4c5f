// SPDX-License-Identifier: MIT
/*
 * Whose step is next. Where steps share a device by themselves every model that has requests in no
 * step starts one; where a device computes one at a time (exclusive_steps), the model with the
 * oldest such request, so that a batch is composed no earlier than it can begin.
 */
#include "sched/state.h"

/* The oldest admitted request that computes and is in no step. */
static int64_t oldest_ready(const struct ctn_sched *s, const struct sched_model *m)
{
	int64_t least = INT64_MAX;

	for (uint32_t i = m->batch.head; i != NO_REQUEST; i = s->requests[i].next) {
		const struct sched_request *q = &s->requests[i];

		if (!q->no_step && q->step <= m->steps_done)
			least = CTN_MIN(least, q->key_ns);
		/* Without deadlines keys are in the order of arrival. */
		if (least < INT64_MAX && !m->deadlines)
			break;
	}
	return least;
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

/* The key of the first request that its next step could take; INT64_MAX: there is none. */
static int64_t first_key(const struct ctn_sched *s, const struct sched_model *m)
{
	int64_t key = INT64_MAX;

	if (m->queued && m->admitted < m->max_sequences && sched_head_arrival(s, m) <= m->barrier)
		key = m->key_ns;
	if (m->ready)
		key = CTN_MIN(key, oldest_ready(s, m));
	return key == INT64_MAX ? key : key + sched_behind_ns(s, m->served_s);
}

static bool may_step(const struct sched_model *m)
{
	return (m->ready || m->queued) && m->state != CTN_SCHED_ABSENT && !m->cancelling &&
	       !m->yields && sched_steps(m) < m->max_steps && m->kv_admitted <= m->kv_budget;
}

static void start_exclusive(struct ctn_sched *s, uint64_t now_ns)
{
	for (uint32_t i = 0; i < s->holder_count; i++)
		s->models[s->holders[i]].stepped = false;
	for (;;) {
		int64_t least = INT64_MAX;
		uint32_t next = UINT32_MAX;

		for (uint32_t i = 0; i < s->holder_count; i++) {
			uint32_t id = s->holders[i];
			const struct sched_model *m = &s->models[id];
			int64_t key;

			if (!may_step(m) || m->stepped || (m->first_stage & s->entering))
				continue;
			if (may_begin_ns(m) > now_ns) {
				s->wake_ns = CTN_MIN(s->wake_ns, may_begin_ns(m));
				continue;
			}
			key = first_key(s, m);
			if (key < least || (key == least && id < next)) {
				least = key;
				next = id;
			}
		}
		if (least == INT64_MAX || !sched_room(s, 1))
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
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *m = &s->models[s->holders[i]];

		if (m->ready && may_step(m) && sched_room(s, 1))
			sched_step(s, s->holders[i], now_ns);
	}
}
