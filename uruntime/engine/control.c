// SPDX-License-Identifier: MIT
/* Commands from other threads: control and snapshots. The caller waits for its answer. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* On the caller's stack; the engine thread answers once. */
struct command {
	struct ctn_mail mail;
	struct command *next; /* among those that wait for a load to end */
	struct ctn_engine *engine;
	sem_t answered;
	int rc;
	struct ctn_err err;
	enum ctn_control what;
	struct engine_model *model;
	struct ctn_snapshot *snap;
};

static void answer(struct command *c, int rc)
{
	c->rc = rc;
	sem_post(&c->answered);
}

/* Posts a command and waits. Not for the engine thread itself. */
static int ask(struct command *c, void (*take)(struct ctn_mail *mail))
{
	struct ctn_engine *e = c->engine;

	c->mail.take = take;
	if (sem_init(&c->answered, 0, 0) < 0)
		return ctn_err_set(&c->err, -errno, "sem_init: %s", strerror(errno));
	pthread_mutex_lock(&e->gate);
	if (e->closed) {
		pthread_mutex_unlock(&e->gate);
		sem_destroy(&c->answered);
		return ctn_err_set(&c->err, -ESHUTDOWN, "the server is stopping");
	}
	ctn_mailbox_post(&e->mail, &c->mail);
	pthread_mutex_unlock(&e->gate);
	while (sem_wait(&c->answered) < 0)
		CTN_ASSERT(errno == EINTR);
	sem_destroy(&c->answered);
	return c->rc;
}

/* ---- control ---------------------------------------------------------------------------- */

static void load_ended(struct ctn_request *req, void *arg)
{
	struct command *c = arg;

	switch (req->result.finish) {
	case CTN_FINISH_LENGTH:
		answer(c, 0);
		break;
	case CTN_FINISH_ERROR:
		c->err = req->result.err;
		answer(c, c->err.code);
		break;
	default:
		answer(c, ctn_err_set(&c->err, -ESHUTDOWN, "the server is stopping"));
		break;
	}
}

/*
 * -EAGAIN while something of it that nobody waits for is on its way, a load or parts that are
 * staged ahead: a load ends by itself, and a client whose answer came before the last shard was
 * accounted for must not be told that the model is busy.
 */
static int evict(struct engine_model *m, struct ctn_err *err)
{
	struct ctn_engine *e = m->engine;
	struct ctn_sched_event ev = {.type = CTN_EV_EVICT, .model = m->sched_id};
	struct ctn_sched_model_state state;

	ctn_sched_model_state(e->sched, m->sched_id, &state);
	if (m->live || m->job)
		return ctn_err_set(err, -EBUSY, "model \"%s\" has %u requests", m->name, m->live);
	if (state.state == CTN_SCHED_LOADING)
		return -EAGAIN;
	if (state.pinned)
		return ctn_err_set(err, -EBUSY, "model \"%s\" is pinned", m->name);
	engine_tell(e, &ev);
	engine_feed(e);
	if (ctn_pager_stop_ahead(e->pager, m->pager_id))
		return -EAGAIN;
	ctn_pager_drop_host(e->pager, m->pager_id, UINT64_MAX);
	engine_tell_host(m);
	return 0;
}

static void control_taken(struct ctn_mail *mail)
{
	struct command *c = (struct command *)((char *)mail - offsetof(struct command, mail));
	struct engine_model *m = c->model;
	struct ctn_sched_event ev = {.model = m->sched_id};
	int rc = 0;

	switch (c->what) {
	case CTN_CONTROL_LOAD:
		rc = request_want_loaded(m, load_ended, c);
		if (rc)
			answer(c, ctn_err_set(&c->err, rc, "no request: %s", strerror(-rc)));
		return;
	case CTN_CONTROL_EVICT:
		rc = evict(m, &c->err);
		if (rc == -EAGAIN) {
			LL_APPEND(m->engine->waiting, c);
			return;
		}
		break;
	case CTN_CONTROL_PIN:
		ev.type = CTN_EV_PIN;
		engine_tell(m->engine, &ev);
		engine_feed(m->engine);
		break;
	case CTN_CONTROL_UNPIN:
		ev.type = CTN_EV_UNPIN;
		engine_tell(m->engine, &ev);
		engine_feed(m->engine);
		break;
	}
	answer(c, rc);
}

/* After every round of the engine: who waited for a load to end may go on. */
void control_retry(struct ctn_engine *e)
{
	struct command *c, *tmp;

	LL_FOREACH_SAFE(e->waiting, c, tmp)
	{
		int rc = evict(c->model, &c->err);

		if (rc == -EAGAIN)
			continue;
		LL_DELETE(e->waiting, c);
		answer(c, rc);
	}
}

int ctn_engine_control(struct ctn_engine *e, enum ctn_control what, uint32_t model,
		       struct ctn_err *err)
{
	struct command c = {.engine = e, .what = what};
	int rc;

	if (model >= e->model_count)
		return ctn_err_set(err, -ENOENT, "no model %u", model);
	c.model = e->models[model];
	if (c.model->reason)
		return ctn_err_set(err, -ENODEV, "model \"%s\" is not served: %s", c.model->name,
				   c.model->reason);
	rc = ask(&c, control_taken);
	if (rc && err)
		*err = c.err;
	return rc;
}

/* ---- snapshots -------------------------------------------------------------------------- */

static const char *state_name(const struct engine_model *m, enum ctn_sched_state state,
			      const struct ctn_model_snapshot *s)
{
	if (m->reason)
		return "unservable";
	if (state == CTN_SCHED_LOADING)
		return "loading";
	if (s->device_bytes == 0)
		return "idle";
	return s->device_bytes == s->device_total ? "resident" : "partial";
}

static void snap_model(struct ctn_engine *e, uint32_t i, struct ctn_model_snapshot *s)
{
	struct engine_model *m = e->models[i];
	struct ctn_sched_model_state state = {0};
	struct ctn_pager_model_stats pages;
	const struct ctn_request *req;

	ctn_engine_model(e, i, &s->info);
	if (!m->reason) {
		ctn_sched_model_state(e->sched, m->sched_id, &state);
		ctn_pager_model_stats(e->pager, m->pager_id, &pages);
		s->pinned = state.pinned;
		s->queued = state.queued;
		s->running = state.admitted;
		/* Who waits for the weights waits, as users see it. */
		DL_FOREACH2(m->batch, req, batch_next)
		{
			bool waits = req->phase == CTN_PHASE_LOAD;

			s->queued += waits;
			s->running -= waits;
		}
		s->checkpoint_bytes = m->ckpt->bytes;
		s->host_bytes = pages.host_bytes;
		s->host_total = pages.host_total;
		s->device_bytes = pages.device_bytes;
		s->device_total = pages.device_total;
		s->bytes_staged = pages.bytes_staged;
		s->bytes_loaded = pages.bytes_loaded;
		for (uint32_t r = 0; r < m->plan->rank_count; r++)
			s->kv_bytes += m->workers[r].kv_block_bytes * m->kv_budget;
	}
	s->switches = m->switches;
	memcpy(s->outcomes, m->outcomes, sizeof(s->outcomes));
	s->outcomes[CTN_OUTCOME_REFUSED] += atomic_load(&m->refused);
	s->ttft = m->ttft;
	s->switch_time = m->switch_time;
	s->state = state_name(m, state.state, s);
}

static void snap_device(struct ctn_engine *e, uint32_t d, struct ctn_device_snapshot *s)
{
	struct ctn_device_ledger l;

	ctn_pager_device_ledger(e->pager, d, &l);
	s->props = *ctn_device_props(e->devices[d]);
	ctn_device_get_stats(e->devices[d], &s->stats);
	s->total = l.total;
	s->free = l.free;
	s->loading = l.loading;
	s->resident = l.resident;
	s->draining = l.draining;
	s->kv = l.claims[CTN_CLAIM_KV];
	s->workspace = l.claims[CTN_CLAIM_WORKSPACE];
	s->comm = l.claims[CTN_CLAIM_COMM];
	s->frames_loading = l.frames_loading;
	s->frames_resident = l.frames_resident;
	s->frames_draining = l.frames_draining;
}

static void snap_moves(struct ctn_engine *e, struct ctn_snapshot *snap)
{
	static const enum ctn_pager_move moves[CTN_MOVES] = {
		[CTN_MOVE_STAGE] = CTN_PAGER_STAGE,
		[CTN_MOVE_LOAD] = CTN_PAGER_LOAD,
		[CTN_MOVE_DROP_DEVICE] = CTN_PAGER_DROP_DEVICE,
		[CTN_MOVE_DROP_HOST] = CTN_PAGER_DROP_HOST,
	};

	for (int i = 0; i < CTN_MOVES; i++) {
		struct ctn_pager_move_stats s;

		ctn_pager_move_stats(e->pager, moves[i], &s);
		snap->moves[i].outcomes[CTN_MOVE_OK] = s.ok;
		snap->moves[i].outcomes[CTN_MOVE_FAILED] = s.failed;
		snap->moves[i].outcomes[CTN_MOVE_CANCELLED] = s.cancelled;
		snap->moves[i].bytes = s.bytes;
		snap->moves[i].nanoseconds = s.nanoseconds;
	}
}

static void snapshot_taken(struct ctn_mail *mail)
{
	struct command *c = (struct command *)((char *)mail - offsetof(struct command, mail));
	struct ctn_engine *e = c->engine;
	struct ctn_snapshot *snap = c->snap;
	struct ctn_host_ledger host;
	struct ctn_err err = {0};

	if (ctn_pager_check(e->pager, &err)) {
		ctn_error("ledger: %s", err.msg);
		e->ledger_errors++;
	}
	for (uint32_t i = 0; i < e->model_count; i++)
		snap_model(e, i, &snap->models[i]);
	for (uint32_t d = 0; d < e->cfg.device_count; d++)
		snap_device(e, d, &snap->devices[d]);
	ctn_pool_get_stats(e->cfg.pool, false, &snap->pool);
	ctn_pager_adoption(e->pager, &snap->adoption);
	ctn_pager_host_ledger(e->pager, &host);
	snap->host_staging_frames = host.frames_staging;
	snap->host_draining_frames = host.frames_draining;
	snap->host_draining_bytes = host.bytes_draining;
	snap->host_clean_frames = snap->pool.frames - host.frames_staging - host.frames_draining;
	ctn_stage_get_stats(e->cfg.stage, &snap->stage);
	snap_moves(e, snap);
	memcpy(snap->phases, e->phases, sizeof(snap->phases));
	snap->pauses = e->pauses;
	snap->preemptions = e->preemptions;
	snap->recomputed_tokens = e->recomputed;
	memcpy(snap->ahead, e->ahead, sizeof(snap->ahead));
	snap->staged_ahead_bytes = e->staged_ahead_bytes;
	memcpy(snap->predictions, e->predictions, sizeof(snap->predictions));
	decisions_state(e->decisions, &snap->decision_lines, &snap->decisions_failed);
	snap->decisions_failed |= e->cfg.decision_log && !e->decisions;
	snap->ledger_errors = e->ledger_errors;
	snap->uptime_s = (double)(ctn_now_ns() - e->started_ns) / 1e9;
	answer(c, 0);
}

int ctn_engine_snapshot(struct ctn_engine *e, struct ctn_snapshot *snap)
{
	struct command c = {.engine = e, .snap = snap};
	struct ctn_pool_stats pool;
	int rc;

	*snap = (struct ctn_snapshot){.model_count = e->model_count,
				      .device_count = e->cfg.device_count};
	snap->models = calloc(CTN_MAX(e->model_count, 1u), sizeof(*snap->models));
	snap->devices = calloc(CTN_MAX(e->cfg.device_count, 1u), sizeof(*snap->devices));
	if (!snap->models || !snap->devices) {
		ctn_snapshot_free(snap);
		return -ENOMEM;
	}
	rc = ask(&c, snapshot_taken);
	if (rc) {
		ctn_snapshot_free(snap);
		return rc;
	}
	/* The kernel's own figures are slow to read: not in the engine thread. */
	ctn_pool_get_stats(e->cfg.pool, true, &pool);
	snap->pool.resident_bytes = pool.resident_bytes;
	snap->pool.huge_bytes = pool.huge_bytes;
	snap->pool.module_bytes = pool.module_bytes;
	snap->pool.module_huge_bytes = pool.module_huge_bytes;
	snap->pool.module_pinned_bytes = pool.module_pinned_bytes;
	return 0;
}

void ctn_snapshot_free(struct ctn_snapshot *snap)
{
	free(snap->models);
	free(snap->devices);
	*snap = (struct ctn_snapshot){0};
}
