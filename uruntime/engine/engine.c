// SPDX-License-Identifier: MIT
/* The engine: making it, its thread, stopping it. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

/* ---- making one ------------------------------------------------------------------------- */

static int make_sched(struct ctn_engine *e, struct ctn_err *err)
{
	uint64_t bytes[CTN_MAX_DEVICES], granules[CTN_MAX_DEVICES];
	struct ctn_sched_config cfg = {.policy = e->cfg.policy ? e->cfg.policy : "default",
				       .device_count = e->cfg.device_count,
				       .device_bytes = bytes,
				       .granules = granules,
				       .max_models = ENGINE_MAX_MODELS,
				       .max_requests = ENGINE_MAX_REQUESTS,
				       .partial_drops = true,
				       .pauses = true,
				       .cancels = true,
				       .host_known = true,
				       .stages = e->cfg.stage_ahead};
	struct ctn_pool_stats pool;
	int rc;

	if (cfg.stages) {
		ctn_pool_get_stats(e->cfg.pool, false, &pool);
		cfg.host_bytes = pool.total_bytes;
	}
	for (uint32_t d = 0; d < e->cfg.device_count; d++) {
		const struct ctn_device_props *props = ctn_device_props(e->devices[d]);

		bytes[d] = props->mem_bytes;
		granules[d] = props->granule;
	}
	rc = ctn_sched_new(&cfg, &e->sched, err);
	if (rc == 0 && e->cfg.decision_log)
		e->decisions = decisions_open(e->cfg.decision_log, &cfg, e->action_max);
	return rc;
}

static int make_pager(struct ctn_engine *e, struct ctn_err *err)
{
	struct ctn_pager_config cfg = {.devices = e->devices,
				       .device_count = e->cfg.device_count,
				       .pool = e->cfg.pool,
				       .stage = e->cfg.stage,
				       .max_models = ENGINE_MAX_MODELS,
				       .poison = e->cfg.poison,
				       .event = engine_pager_event,
				       .event_arg = e};

	return ctn_pager_new(&cfg, &e->pager, err);
}

static int watch(struct ctn_engine *e, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

	return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int open_descriptors(struct ctn_engine *e)
{
	int rc;

	e->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (e->epoll_fd < 0)
		return -errno;
	e->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (e->timer_fd < 0)
		return -errno;
	rc = watch(e, e->mail.fd);
	if (rc == 0)
		rc = watch(e, e->timer_fd);
	if (rc == 0)
		rc = watch(e, ctn_pager_fd(e->pager));
	return rc;
}

static int make_tables(struct ctn_engine *e)
{
	e->models = calloc(ENGINE_MAX_MODELS, sizeof(*e->models));
	e->by_sched = calloc(ENGINE_MAX_MODELS, sizeof(*e->by_sched));
	e->by_pager = calloc(ENGINE_MAX_MODELS, sizeof(*e->by_pager));
	e->host_evictable = calloc(ENGINE_MAX_MODELS, sizeof(*e->host_evictable));
	e->pager_evictable = calloc(ENGINE_MAX_MODELS, sizeof(*e->pager_evictable));
	e->slots = calloc(ENGINE_MAX_REQUESTS, sizeof(*e->slots));
	e->free_slots = calloc(ENGINE_MAX_REQUESTS, sizeof(*e->free_slots));
	/* An arrival, growth and an end a slot, and for each model a handful of others. */
	e->event_cap = 3 * ENGINE_MAX_REQUESTS + 8 * ENGINE_MAX_MODELS;
	e->events = calloc(e->event_cap, sizeof(*e->events));
	e->action_max = 2 * ENGINE_MAX_MODELS;
	e->actions = calloc(e->action_max, sizeof(*e->actions));
	if (!e->models || !e->by_sched || !e->by_pager || !e->host_evictable ||
	    !e->pager_evictable || !e->slots || !e->free_slots || !e->events || !e->actions)
		return -ENOMEM;
	for (uint32_t i = ENGINE_MAX_REQUESTS; i-- > 0;)
		e->free_slots[e->free_slot_count++] = i;
	return 0;
}

int ctn_engine_new(const struct ctn_engine_config *cfg, struct ctn_engine **engine,
		   struct ctn_err *err)
{
	struct ctn_engine *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = ctn_mailbox_init(&e->mail);
	if (rc) {
		free(e);
		return ctn_err_set(err, rc, "engine: %s", strerror(-rc));
	}
	e->epoll_fd = e->timer_fd = -1;
	pthread_mutex_init(&e->gate, NULL);
	e->closed = true; /* until there is a thread that reads the mail */
	e->cfg = *cfg;
	e->cfg.max_queue = cfg->max_queue ? cfg->max_queue : 256;
	e->cfg.max_requests = cfg->max_requests ? cfg->max_requests : ENGINE_MAX_REQUESTS;
	e->cfg.max_sequences = cfg->max_sequences ? cfg->max_sequences : 16;
	e->cfg.step_tokens = cfg->step_tokens ? cfg->step_tokens : 128;
	e->started_ns = ctn_now_ns();
	e->wake_ns = UINT64_MAX;
	if (cfg->device_count > CTN_MAX_DEVICES) {
		rc = ctn_err_set(err, -EINVAL, "devices: expected at most %d, found %u",
				 CTN_MAX_DEVICES, cfg->device_count);
		goto fail;
	}
	memcpy(e->devices, cfg->devices, cfg->device_count * sizeof(*e->devices));
	e->cfg.devices = e->devices;
	rc = make_tables(e);
	if (rc) {
		ctn_err_set(err, rc, "out of memory");
		goto fail;
	}
	rc = make_sched(e, err);
	if (rc)
		goto fail;
	rc = make_pager(e, err);
	if (rc)
		goto fail;
	rc = open_descriptors(e);
	if (rc) {
		ctn_err_set(err, rc, "engine: %s", strerror(-rc));
		goto fail;
	}
	*engine = e;
	return 0;
fail:
	ctn_engine_free(e);
	return rc;
}

/* ---- models ----------------------------------------------------------------------------- */

static void model_free(struct engine_model *m)
{
	if (!m)
		return;
	ctn_plan_free(m->plan);
	ctn_checkpoint_close(m->ckpt);
	free(m->devices);
	free(m->kept_layers);
	free(m->name);
	free(m->dir);
	free(m->reason);
	free(m);
}

int ctn_engine_add_model(struct ctn_engine *e, const struct ctn_model_spec *spec,
			 struct ctn_err *err)
{
	struct ctn_err why = {0};
	struct engine_model *m;
	int rc;

	CTN_ASSERT(!e->started);
	if (ctn_engine_find_model(e, spec->name) >= 0)
		return ctn_err_set(err, -EEXIST, "model \"%s\": the name is taken", spec->name);
	if (e->model_count == ENGINE_MAX_MODELS)
		return ctn_err_set(err, -ENOSPC, "expected at most %d models", ENGINE_MAX_MODELS);
	m = calloc(1, sizeof(*m));
	if (!m)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	m->engine = e;
	m->created = time(NULL);
	m->name = strdup(spec->name);
	m->dir = strdup(spec->dir);
	if (!m->name || !m->dir) {
		model_free(m);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	rc = model_open(m, spec, &why);
	if (rc == 0) {
		m->sched_id = e->served_count;
		e->by_sched[e->served_count++] = m;
		e->by_pager[m->pager_id] = m;
	} else {
		/* What the pager knows of it keeps plan and checkpoint; nothing is ever loaded. */
		model_close(m);
		m->reason = strdup(why.msg);
		if (!m->reason) {
			rc = -ENOMEM;
			ctn_err_set(&why, rc, "out of memory");
		}
		if (err)
			*err = why;
	}
	e->models[e->model_count++] = m;
	return rc;
}

uint32_t ctn_engine_model_count(const struct ctn_engine *e)
{
	return e->model_count;
}

void ctn_engine_model(const struct ctn_engine *e, uint32_t model, struct ctn_model_info *info)
{
	const struct engine_model *m = e->models[model];

	*info = (struct ctn_model_info){.name = m->name,
					.dir = m->dir,
					.reason = m->reason,
					.tp = m->tp,
					.pp = m->pp,
					.created = m->created};
	if (m->ckpt) {
		info->family = ctn_family_name(m->ckpt->family);
		info->arch = m->reason ? NULL : &m->ckpt->arch;
	}
}

int ctn_engine_find_model(const struct ctn_engine *e, const char *name)
{
	for (uint32_t i = 0; i < e->model_count; i++) {
		if (strcmp(e->models[i]->name, name) == 0)
			return (int)i;
	}
	return -ENOENT;
}

/* ---- the thread ------------------------------------------------------------------------- */

/* Wakes at the earliest deadline, and when sched wants it. */
static void arm_timer(struct ctn_engine *e)
{
	struct itimerspec spec = {0};
	uint64_t earliest = e->wake_ns == UINT64_MAX ? 0 : e->wake_ns;
	const struct ctn_request *req;

	if (!e->timer_stale)
		return;
	e->timer_stale = false;
	DL_FOREACH (e->requests, req) {
		if (req->deadline_ns && !atomic_load(&req->ended) &&
		    (!earliest || req->deadline_ns < earliest))
			earliest = req->deadline_ns;
	}
	spec.it_value.tv_sec = (time_t)(earliest / CTN_NSEC_PER_SEC);
	spec.it_value.tv_nsec = (long)(earliest % CTN_NSEC_PER_SEC);
	if (timerfd_settime(e->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL) < 0)
		ctn_error("timerfd_settime: %s", strerror(errno));
}

static void take_timer(struct ctn_engine *e)
{
	uint64_t ticks, now = ctn_now_ns();

	if (read(e->timer_fd, &ticks, sizeof(ticks)) < 0)
		return;
	e->timer_stale = true;
	requests_expire(e, now);
	if (e->wake_ns <= now) {
		struct ctn_sched_event ev = {.type = CTN_EV_TIMER};

		engine_tell(e, &ev);
	}
}

static bool idle(const struct ctn_engine *e)
{
	for (uint32_t i = 0; i < e->served_count; i++) {
		if (e->by_sched[i]->job)
			return false;
	}
	return !e->requests && !e->waiting && ctn_pager_active(e->pager) == 0 &&
	       e->event_count == 0;
}

static void *engine_main(void *arg)
{
	struct ctn_engine *e = arg;

	while (!e->stopping || !idle(e)) {
		struct epoll_event evs[4];
		int n;

		arm_timer(e);
		n = epoll_wait(e->epoll_fd, evs, CTN_ARRAY_LEN(evs), -1);
		if (n < 0 && errno != EINTR) {
			ctn_error("epoll_wait: %s", strerror(errno));
			return NULL;
		}
		for (int i = 0; i < n; i++) {
			if (evs[i].data.fd == e->mail.fd)
				ctn_mailbox_take(&e->mail);
			else if (evs[i].data.fd == e->timer_fd)
				take_timer(e);
			else
				ctn_pager_dispatch(e->pager);
		}
		engine_feed(e);
		control_retry(e);
	}
	return NULL;
}

static void adopt(struct ctn_engine *e)
{
	struct ctn_pager_adoption a;
	char size[32];

	ctn_pager_adopt(e->pager, e->cfg.adopt_verify);
	ctn_pager_adoption(e->pager, &a);
	if (a.frames || a.unfit)
		ctn_info("pool: %llu frames (%s) were there and need not be staged, %llu did not "
			 "fit and were evicted",
			 (unsigned long long)a.frames, ctn_format_size(a.bytes, size),
			 (unsigned long long)a.unfit);
}

int ctn_engine_start(struct ctn_engine *e, struct ctn_err *err)
{
	int rc;

	/* The pager belongs to this thread until there is that one. */
	ctn_pager_find_shared(e->pager);
	adopt(e);
	for (uint32_t i = 0; i < e->served_count; i++)
		engine_tell_host(e->by_sched[i]);
	engine_feed(e);
	rc = -pthread_create(&e->thread, NULL, engine_main, e);
	if (rc)
		return ctn_err_set(err, rc, "engine thread: %s", strerror(-rc));
	e->started = true;
	pthread_mutex_lock(&e->gate);
	e->closed = false;
	pthread_mutex_unlock(&e->gate);
	return 0;
}

/* ---- stopping --------------------------------------------------------------------------- */

static void stop_taken(struct ctn_mail *mail)
{
	struct ctn_engine *e =
		(struct ctn_engine *)((char *)mail - offsetof(struct ctn_engine, stop_mail));
	struct ctn_request *req, *tmp;

	e->stopping = true;
	ctn_pager_stop_adoption(e->pager);
	DL_FOREACH_SAFE (e->requests, req, tmp)
		request_end(req, CTN_FINISH_CANCELLED, NULL);
	for (uint32_t i = 0; i < e->served_count; i++) {
		ctn_pager_cancel(e->pager, e->by_sched[i]->pager_id);
		ctn_pager_stop_ahead(e->pager, e->by_sched[i]->pager_id);
	}
}

void ctn_engine_stop(struct ctn_engine *e)
{
	pthread_mutex_lock(&e->gate);
	if (!e->closed) {
		e->closed = true;
		e->stop_mail.take = stop_taken;
		ctn_mailbox_post(&e->mail, &e->stop_mail);
	}
	pthread_mutex_unlock(&e->gate);
	if (e->started && !e->joined) {
		pthread_join(e->thread, NULL);
		e->joined = true;
	}
}

void ctn_engine_free(struct ctn_engine *e)
{
	if (!e)
		return;
	ctn_engine_stop(e);
	for (uint32_t i = 0; i < e->model_count; i++)
		model_close(e->models[i]);
	ctn_pager_free(e->pager);
	for (uint32_t i = 0; i < e->model_count; i++)
		model_free(e->models[i]);
	decisions_close(e->decisions);
	ctn_sched_free(e->sched);
	if (e->epoll_fd >= 0)
		close(e->epoll_fd);
	if (e->timer_fd >= 0)
		close(e->timer_fd);
	ctn_mailbox_destroy(&e->mail);
	pthread_mutex_destroy(&e->gate);
	free(e->models);
	free(e->by_sched);
	free(e->by_pager);
	free(e->host_evictable);
	free(e->pager_evictable);
	free(e->slots);
	free(e->free_slots);
	free(e->events);
	free(e->actions);
	free(e);
}
