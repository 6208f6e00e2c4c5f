// SPDX-License-Identifier: MIT
/* Every call of sched: logged, and held against what it predicted. */
#include "engine/state.h"

#include <math.h>

/* A prediction has come true, more or less. */
static void learnt(struct ctn_engine *e, enum ctn_predicted what,
		   const struct decision_outcome *outcome)
{
	struct ctn_prediction *p = &e->predictions[what];

	p->predicted_s += outcome->predicted_s;
	p->actual_s += outcome->actual_s;
	histogram_add(&p->error, fabs(outcome->predicted_s - outcome->actual_s));
}

/* The event is the end of what sched has predicted. */
static bool foretold(struct ctn_engine *e, uint64_t now_ns, const struct ctn_sched_event *ev,
		     struct decision_outcome *outcome)
{
	struct engine_model *m;

	if (ev->type != CTN_EV_LOAD_DONE && ev->type != CTN_EV_STEP_DONE)
		return false;
	m = e->by_sched[ev->model];
	if (ev->type == CTN_EV_LOAD_DONE) {
		outcome->predicted_s = m->load_expected_s;
		outcome->actual_s = (double)(now_ns - m->load_since_ns) / 1e9;
		m->load_expected_s = 0;
	} else {
		outcome->predicted_s = m->step_expected_s;
		outcome->actual_s = (double)(now_ns - m->step_since_ns) / 1e9;
		m->step_expected_s = 0;
	}
	if (outcome->predicted_s <= 0)
		return false;
	learnt(e, ev->type == CTN_EV_LOAD_DONE ? m->load_kind : CTN_PREDICTED_STEP, outcome);
	return true;
}

static void foretell(struct ctn_engine *e, uint64_t now_ns, const struct ctn_sched_action *a)
{
	struct engine_model *m = e->by_sched[a->model];

	if (a->type == CTN_ACT_LOAD) {
		m->load_expected_s = a->seconds;
		m->load_since_ns = now_ns;
		m->load_kind = m->host_missing ? CTN_PREDICTED_STAGE : CTN_PREDICTED_LOAD;
	} else if (a->type == CTN_ACT_STEP) {
		/* One that waits for layers takes as long as these do. */
		m->step_expected_s = m->loading ? 0 : a->seconds;
		m->step_since_ns = now_ns;
	}
}

uint32_t engine_decide(struct ctn_engine *e, const struct ctn_sched_event *ev,
		       struct ctn_sched_action *actions, uint32_t max)
{
	uint64_t now_ns = ctn_now_ns();
	struct decision_outcome outcome;
	bool came = foretold(e, now_ns, ev, &outcome);
	uint32_t n = ctn_sched_event(e->sched, now_ns, ev, actions, max);

	decisions_add(e->decisions, e->sched, now_ns, ev, max, actions, n, came ? &outcome : NULL);
	for (uint32_t i = 0; i < n; i++)
		foretell(e, now_ns, &actions[i]);
	return n;
}
