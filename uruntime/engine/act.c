// SPDX-License-Identifier: MIT
/* Between sched and the rest: events go in one at a time, actions are carried out in order. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- the queue of events ---------------------------------------------------------------- */

/* Queues an event; engine_feed hands it to sched. Never recursive, so that sched's mirror and
 * the actions under way stay in step. */
void engine_tell(struct ctn_engine *e, const struct ctn_sched_event *ev)
{
	/* Bounded by what is live: an arrival, growth and an end a slot, and a few events a model.
	 * The ring was made for that. */
	CTN_ASSERT(e->event_count < e->event_cap);
	e->events[(e->event_head + e->event_count++) % e->event_cap] = *ev;
}

void engine_tell_host(struct engine_model *m)
{
	struct ctn_pager *p = m->engine->pager;
	struct ctn_sched_event ev = {.type = CTN_EV_HOST, .model = m->sched_id};
	uint64_t changes = ctn_pager_host_changes(p);

	if (m->host_changes == changes)
		return;
	m->host_changes = changes;
	ev.bytes = ctn_pager_host_missing(p, m->pager_id);
	if (ev.bytes == m->host_missing)
		return;
	m->host_missing = ev.bytes;
	engine_tell(m->engine, &ev);
}

/* Its stage ahead of requests has ended, whatever came of it. */
static void tell_staged(struct engine_model *m)
{
	struct ctn_pager *p = m->engine->pager;
	struct ctn_sched_event ev = {.type = CTN_EV_STAGE_DONE, .model = m->sched_id};

	m->host_changes = ctn_pager_host_changes(p);
	ev.bytes = m->host_missing = ctn_pager_host_missing(p, m->pager_id);
	engine_tell(m->engine, &ev);
}

/* The load of a model that nobody waited for has come to its end, if it was one. */
static void end_ahead(struct engine_model *m, enum ctn_ahead outcome)
{
	m->engine->ahead[outcome] += m->ahead;
	m->ahead = false;
}

void engine_tell_arrival(struct engine_model *m, const struct ctn_sched_event *ev)
{
	end_ahead(m, CTN_AHEAD_HIT);
	engine_tell_host(m);
	engine_tell(m->engine, ev);
}

/* ---- failures --------------------------------------------------------------------------- */

/* Ends every request of a model, queued or admitted. */
static void end_all(struct engine_model *m, const struct ctn_err *err)
{
	struct ctn_request *req, *tmp;

	DL_FOREACH_SAFE (m->engine->requests, req, tmp) {
		if (req->model == m)
			request_end(req, CTN_FINISH_ERROR, err);
	}
}

/* The load of a model has come to nothing: its requests end with the reason, then sched hears
 * that it charges nothing, or what is left when it was cancelled. */
static void load_failed(struct engine_model *m, const struct ctn_err *err)
{
	struct ctn_sched_event ev = {.type = CTN_EV_LOAD_FAILED, .model = m->sched_id};

	m->loading = false;
	if (m->cancelling && err->code == -ECANCELED && !m->engine->stopping) {
		ev.type = CTN_EV_LOAD_CANCELLED;
		ev.kept_layers = m->kept_layers;
		for (uint32_t r = 0; r < m->plan->rank_count; r++)
			m->kept_layers[r] = ctn_pager_kept_layers(m->engine->pager, m->pager_id, r);
		end_ahead(m, CTN_AHEAD_CANCELLED);
	} else {
		end_ahead(m, CTN_AHEAD_DROPPED);
		ctn_warn("model %s: not loaded: %s", m->name, err->msg);
		/* What it had before goes too, as sched takes it. */
		ctn_pager_drop(m->engine->pager, m->pager_id);
		end_all(m, err);
	}
	m->cancelling = false;
	if (m->step_owed) {
		struct ctn_sched_event step = {.type = CTN_EV_STEP_DONE, .model = m->sched_id};

		m->step_owed = false;
		engine_tell(m->engine, &step);
	}
	engine_tell(m->engine, &ev);
	model_leave(m);
}

/* ---- actions ---------------------------------------------------------------------------- */

static void act_refuse(struct ctn_request *req, enum ctn_sched_refusal why, double seconds)
{
	static const char *const reasons[] = {
		[CTN_REFUSED_PINNED] = "the model does not fit beside the pinned models",
		[CTN_REFUSED_DEVICE] = "a device of the model is out of service",
		[CTN_REFUSED_DEADLINE] = "as measured, the answer would come after the timeout",
	};
	static const int codes[] = {[CTN_REFUSED_TOO_LARGE] = -E2BIG,
				    [CTN_REFUSED_PINNED] = -ENOSPC,
				    [CTN_REFUSED_DEVICE] = -ENODEV,
				    [CTN_REFUSED_DEADLINE] = -EAGAIN};
	struct ctn_err err;

	if (atomic_load_explicit(&req->ended, memory_order_relaxed))
		return; /* its client reads the result already */
	if (why == CTN_REFUSED_TOO_LARGE)
		ctn_err_set(&err, codes[why],
			    "prompt (%u tokens) and max_tokens (%u) need %u KV blocks, more than "
			    "the devices have memory for beside the model",
			    req->prompt_len, req->max_length - req->prompt_len, req->kv_blocks);
	else
		ctn_err_set(&err, codes[why], "%s", reasons[why]);
	if (why == CTN_REFUSED_DEADLINE)
		req->result.retry_after_s = (uint32_t)CTN_MIN(CTN_MAX(seconds, 1.0), 3600.0);
	request_end(req, CTN_FINISH_ERROR, &err);
}

static void act_load(struct engine_model *m, uint64_t ticket)
{
	struct ctn_err err = {0};
	int rc;

	if (m->engine->stopping)
		return; /* nobody waits any more, and a load ahead would not be the last */
	m->ahead = m->live == 0;
	rc = model_reserve(m, ticket, &err);
	if (rc == -EALREADY) {
		struct ctn_sched_event ev = {.type = CTN_EV_LOAD_DONE, .model = m->sched_id};

		engine_tell(m->engine, &ev);
	} else if (rc) {
		load_failed(m, &err);
	}
}

static void act_kv_budget(struct engine_model *m, uint32_t blocks)
{
	struct ctn_err err;
	int rc;

	if (!m->reserved && blocks > m->kv_budget)
		return; /* its load has just ended; sched is about to hear of it */
	rc = model_set_kv(m, blocks);
	if (rc == 0)
		return;
	/* sched's mirror said that there is room: without it no request of the model can go on. */
	ctn_err_set(&err, rc, "no memory for %u KV blocks: %s", blocks, strerror(-rc));
	ctn_error("model %s: %s", m->name, err.msg);
	end_all(m, &err);
}

static void act_admit(struct ctn_request *req)
{
	if (atomic_load_explicit(&req->ended, memory_order_relaxed))
		return; /* its end is on the way to sched */
	batch_admit(req);
	if (req->load_only && !req->model->loading)
		request_end(req, CTN_FINISH_LENGTH, NULL);
}

static void act_step(struct engine_model *m)
{
	struct ctn_sched_event ev = {.type = CTN_EV_STEP_DONE, .model = m->sched_id};

	if (ctn_pager_failing(m->engine->pager, m->pager_id))
		m->step_owed = true; /* it must not run, nor be asked for again and again */
	else if (!m->reserved || !step_start(m)) /* sched is about to hear that its load ended */
		engine_tell(m->engine, &ev);
}

/* Its sequences wait where they are, with the KV that they have. */
static void paused(struct engine_model *m)
{
	struct ctn_request *req;

	end_ahead(m, CTN_AHEAD_DROPPED);
	m->engine->pauses += m->batch != NULL;
	DL_FOREACH2(m->batch, req, batch_next)
	request_phase(req, CTN_PHASE_QUEUE);
	model_leave(m);
}

static void act_drop(struct engine_model *m)
{
	if (ctn_pager_drop(m->engine->pager, m->pager_id))
		ctn_error("model %s: drop refused", m->name);
	paused(m);
}

static void act_drop_tail(struct engine_model *m, uint32_t rank, uint32_t layers)
{
	if (ctn_pager_drop_tail(m->engine->pager, m->pager_id, rank, layers))
		ctn_error("model %s: drop refused", m->name);
	if (m->reserved) /* not for every rank again */
		paused(m);
}

static void act_preempt(struct ctn_request *req)
{
	if (!req->admitted)
		return; /* it has ended */
	req->model->engine->preemptions++;
	batch_forget(req);
	batch_remove(req);
	request_phase(req, CTN_PHASE_QUEUE);
}

static void act_drop_host(struct engine_model *m, uint64_t bytes)
{
	ctn_pager_drop_host(m->engine->pager, m->pager_id, bytes);
	engine_tell_host(m);
}

static void act_stage(struct engine_model *m, uint64_t bytes)
{
	struct ctn_engine *e = m->engine;
	int rc;

	if (e->stopping)
		return; /* an answer would only bring the next one */
	/* One at a time: sched has had the end of the last one. */
	rc = ctn_pager_stage_ahead(e->pager, m->pager_id, bytes);
	CTN_ASSERT(rc == 0);
}

static void act_cancel(struct engine_model *m)
{
	m->cancelling = true;
	ctn_pager_cancel(m->engine->pager, m->pager_id);
}

static void carry_out(struct ctn_engine *e, const struct ctn_sched_action *a)
{
	struct engine_model *m = e->by_sched[a->model];

	switch (a->type) {
	case CTN_ACT_REFUSE:
		act_refuse(e->slots[a->request], a->why, a->seconds);
		break;
	case CTN_ACT_DROP:
		act_drop(m);
		break;
	case CTN_ACT_DROP_TAIL:
		act_drop_tail(m, a->rank, a->layers);
		break;
	case CTN_ACT_PREEMPT:
		act_preempt(e->slots[a->request]);
		break;
	case CTN_ACT_CANCEL:
		act_cancel(m);
		break;
	case CTN_ACT_LOAD:
		act_load(m, a->ticket);
		break;
	case CTN_ACT_KV_BUDGET:
		act_kv_budget(m, a->blocks);
		break;
	case CTN_ACT_ADMIT:
		act_admit(e->slots[a->request]);
		break;
	case CTN_ACT_STEP:
		act_step(m);
		break;
	case CTN_ACT_STAGE:
		act_stage(m, a->bytes);
		break;
	case CTN_ACT_DROP_HOST:
		act_drop_host(m, a->bytes);
		break;
	}
}

/* The end of a request has reached sched: nothing refers to its slot any more. */
static void free_slot(struct ctn_engine *e, uint32_t slot)
{
	struct ctn_request *req = e->slots[slot];

	e->slots[slot] = NULL;
	e->free_slots[e->free_slot_count++] = slot;
	DL_DELETE(e->requests, req);
	req->model->live--;
	req->slot = NO_SLOT;
	request_unref(req);
}

void engine_feed(struct ctn_engine *e)
{
	while (e->event_count) {
		struct ctn_sched_event ev = e->events[e->event_head];
		bool more;

		e->event_head = (e->event_head + 1) % e->event_cap;
		e->event_count--;
		do {
			uint32_t n = engine_decide(e, &ev, e->actions, e->action_max);

			more = ctn_sched_more(e->sched);
			if (ev.type == CTN_EV_REQUEST_DONE)
				free_slot(e, ev.request);
			for (uint32_t i = 0; i < n; i++)
				carry_out(e, &e->actions[i]);
			ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
		} while (more);
	}
	if (e->wake_ns != ctn_sched_wake_ns(e->sched)) {
		e->wake_ns = ctn_sched_wake_ns(e->sched);
		e->timer_stale = true;
	}
}

/* ---- the pager's events ----------------------------------------------------------------- */

/* The pool has no room: sched names victims, they are dropped at once, inside this call. */
static void host_need(struct ctn_engine *e, struct engine_model *m, uint64_t bytes)
{
	struct ctn_sched_action drops[16];
	struct ctn_sched_event ev = {.type = CTN_EV_HOST_NEED,
				     .model = m->sched_id,
				     .bytes = bytes,
				     .host_evictable = e->host_evictable};
	uint32_t n;

	ctn_pager_host_evictable(e->pager, e->pager_evictable);
	for (uint32_t i = 0; i < e->served_count; i++)
		e->host_evictable[i] = e->pager_evictable[e->by_sched[i]->pager_id];
	n = engine_decide(e, &ev, drops, CTN_ARRAY_LEN(drops));
	for (uint32_t i = 0; i < n; i++)
		act_drop_host(e->by_sched[drops[i].model], drops[i].bytes);
}

static void loaded(struct engine_model *m, const struct ctn_pager_event *pev)
{
	struct ctn_sched_event ev = {.type = CTN_EV_LOAD_DONE, .model = m->sched_id};
	struct ctn_request *req, *tmp;

	m->loading = m->cancelling = false;
	m->switches++;
	histogram_add(&m->switch_time, (double)pev->nanoseconds / 1e9);
	ctn_info("model %s: resident after %.1f ms (%llu bytes staged, %llu loaded)", m->name,
		 (double)pev->nanoseconds / 1e6, (unsigned long long)pev->bytes_staged,
		 (unsigned long long)pev->bytes_loaded);
	DL_FOREACH_SAFE2(m->batch, req, tmp, batch_next)
	{
		request_phase(req, req->in_step ? CTN_PHASE_COMPUTE : batch_phase(m));
		if (req->load_only)
			request_end(req, CTN_FINISH_LENGTH, NULL);
	}
	engine_tell_host(m);
	engine_tell(m->engine, &ev);
}

static void staged(struct engine_model *m, const struct ctn_pager_event *pev)
{
	struct ctn_engine *e = m->engine;

	e->staged_ahead_bytes += pev->bytes_staged;
	/* Once: it is tried again as long as requests are likely. A load has the error anew. */
	if (pev->err && !m->stage_failed)
		ctn_warn("model %s: not staged ahead of requests: %s", m->name, pev->err->msg);
	m->stage_failed = pev->err != NULL;
	tell_staged(m);
}

/* Told to sched at once: it decides nothing, and its mirror then has less than before. */
static void shared(struct ctn_engine *e, const struct engine_model *m,
		   const struct ctn_pager_event *pev)
{
	uint32_t layer = pev->layer - m->plan->ranks[pev->rank].first_layer;

	decisions_share(e->decisions, m->sched_id, pev->rank, layer, pev->frame, pev->bytes);
	if (ctn_sched_share(e->sched, m->sched_id, pev->rank, layer, pev->frame, pev->bytes))
		ctn_warn("model %s: layer %u is charged though it is shared: out of memory",
			 m->name, pev->layer);
}

void engine_pager_event(void *arg, const struct ctn_pager_event *pev)
{
	struct ctn_engine *e = arg;
	struct engine_model *m = e->by_pager[pev->model];
	struct ctn_sched_event ev = {.bytes = pev->bytes};

	if (!m)
		return; /* it was refused when the pager knew it already: nothing of it is loaded */
	ev.model = m->sched_id;
	switch (pev->type) {
	case CTN_PAGER_LOADED:
		loaded(m, pev);
		break;
	case CTN_PAGER_FAILED:
		load_failed(m, pev->err);
		break;
	case CTN_PAGER_HOST_NEED:
		host_need(e, m, pev->bytes);
		break;
	case CTN_PAGER_STAGED:
		staged(m, pev);
		break;
	case CTN_PAGER_SHARED:
		shared(e, m, pev);
		break;
	case CTN_PAGER_FRAME_LOST:
		ev.type = CTN_EV_FRAME_LOST;
		engine_tell(e, &ev);
		/* Nobody looks for what else is gone before it is of use. */
		ev.type = CTN_EV_HOST;
		ev.bytes = m->host_missing += pev->bytes;
		engine_tell(e, &ev);
		break;
	}
}
