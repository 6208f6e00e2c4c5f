// SPDX-License-Identifier: MIT
/* Requests: from the client's call to the last reference. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

/* ---- life ------------------------------------------------------------------------------- */

void request_ref(struct ctn_request *req)
{
	atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
}

static void request_destroy(struct ctn_request *req)
{
	if (req->fd >= 0)
		close(req->fd);
	atomic_fetch_sub(&req->engine->open_requests, 1);
	free(req->tokens);
	free(req->top_ids);
	free(req->top_logprobs);
	free(req->scores);
	free(req->ids);
	free(req->blocks);
	free(req);
}

void request_unref(struct ctn_request *req)
{
	if (atomic_fetch_sub_explicit(&req->refs, 1, memory_order_acq_rel) == 1)
		request_destroy(req);
}

/* Without its memory, but with its descriptor, of which there are only so many. */
static int request_alloc(struct engine_model *m, struct ctn_request **out)
{
	struct ctn_engine *e = m->engine;
	struct ctn_request *req = calloc(1, sizeof(*req));
	int rc;

	if (!req)
		return -ENOMEM;
	if (atomic_fetch_add(&e->open_requests, 1) >= e->cfg.max_requests) {
		rc = -EAGAIN;
		goto fail;
	}
	req->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (req->fd < 0) {
		rc = -errno;
		goto fail;
	}
	atomic_init(&req->refs, 1);
	req->engine = e;
	req->model = m;
	req->slot = NO_SLOT;
	req->submitted_ns = req->phase_since_ns = ctn_now_ns();
	*out = req;
	return 0;
fail:
	atomic_fetch_sub(&e->open_requests, 1);
	free(req);
	return rc;
}

static int check_prompt(const struct engine_model *m, const struct ctn_request_params *params,
			struct ctn_err *err)
{
	const struct ctn_arch *arch = &m->ckpt->arch;

	if (params->prompt_len == 0)
		return ctn_err_set(err, -EINVAL, "prompt: expected at least one token, found none");
	if (params->prompt_len > arch->max_positions ||
	    (params->max_tokens && params->prompt_len == arch->max_positions))
		return ctn_err_set(err, -EINVAL,
				   "prompt: the model's longest sequence is %u tokens, found %u",
				   arch->max_positions, params->prompt_len);
	for (uint32_t i = 0; i < params->prompt_len; i++) {
		if (params->prompt[i] >= arch->vocab)
			return ctn_err_set(err, -EINVAL,
					   "prompt: token %u: expected an id below %u, found %u", i,
					   arch->vocab, params->prompt[i]);
	}
	if (params->sampling.logprobs > CTN_MAX_TOP_LOGPROBS)
		return ctn_err_set(err, -EINVAL, "logprobs: expected at most %d, found %u",
				   CTN_MAX_TOP_LOGPROBS, params->sampling.logprobs);
	return 0;
}

static int alloc_ring(struct ctn_request *req, uint32_t max_tokens, bool scores)
{
	size_t n = CTN_MAX(max_tokens, 1u), top = req->sampling.logprobs;

	req->tokens = calloc(n, sizeof(*req->tokens));
	req->ids = calloc(req->max_length, sizeof(*req->ids));
	req->blocks = calloc(CTN_MAX(req->kv_blocks, 1u), sizeof(*req->blocks));
	if (!req->tokens || !req->ids || !req->blocks)
		return -ENOMEM;
	if (top) {
		req->top_ids = calloc(n * top, sizeof(*req->top_ids));
		req->top_logprobs = calloc(n * top, sizeof(*req->top_logprobs));
		if (!req->top_ids || !req->top_logprobs)
			return -ENOMEM;
	}
	if (scores) {
		req->scores = calloc(req->prompt_len, sizeof(*req->scores));
		if (!req->scores)
			return -ENOMEM;
	}
	return 0;
}

/* One reference, the caller's. -EAGAIN: there are too many. */
static int request_new(struct engine_model *m, const struct ctn_request_params *params,
		       struct ctn_request **out, struct ctn_err *err)
{
	uint32_t generate =
		CTN_MIN(params->max_tokens, m->ckpt->arch.max_positions - params->prompt_len);
	struct ctn_request *req;
	int rc = request_alloc(m, &req);

	if (rc == -EAGAIN)
		return ctn_err_set(err, rc, "the server has %u requests already",
				   m->engine->cfg.max_requests);
	if (rc)
		return ctn_err_set(err, rc, "no request: %s", strerror(-rc));
	req->sampling = params->sampling;
	req->ignore_eos = params->ignore_eos;
	req->timeout_s = params->timeout_s;
	req->prompt_len = req->length = params->prompt_len;
	req->max_length = params->prompt_len + generate;
	/* The last generated token is not fed back: its k and v are never stored. */
	req->kv_blocks = blocks_for(CTN_MAX(req->max_length - (generate > 0), 1u));
	rc = alloc_ring(req, generate, params->prompt_logprobs);
	if (rc) {
		request_destroy(req);
		return ctn_err_set(err, rc, "no request: %s", strerror(-rc));
	}
	memcpy(req->ids, params->prompt, params->prompt_len * sizeof(*req->ids));
	*out = req;
	return 0;
}

/* ---- the client's side ------------------------------------------------------------------ */

static void submit_taken(struct ctn_mail *mail)
{
	struct ctn_request *req =
		(struct ctn_request *)((char *)mail - offsetof(struct ctn_request, submit_mail));

	request_accept(req);
	request_unref(req);
}

/* Seconds until a full queue has likely lost one request. */
static uint32_t retry_after(const struct engine_model *m)
{
	double s = atomic_load_explicit(&m->request_seconds, memory_order_relaxed);

	if (s <= 0)
		s = 1;

	return s < 1 ? 1 : s > 60 ? 60 : (uint32_t)(s + 0.5);
}

static void count_refused(struct engine_model *m, uint32_t *retry_after_s)
{
	atomic_fetch_add(&m->refused, 1);
	if (retry_after_s)
		*retry_after_s = retry_after(m);
}

int ctn_engine_submit(struct ctn_engine *e, const struct ctn_request_params *params,
		      struct ctn_request **out, uint32_t *retry_after_s, struct ctn_err *err)
{
	struct engine_model *m;
	struct ctn_request *req = NULL;
	int rc;

	if (params->model >= e->model_count)
		return ctn_err_set(err, -ENOENT, "no model %u", params->model);
	m = e->models[params->model];
	if (!m->ckpt)
		return ctn_err_set(err, -ENODEV, "model \"%s\" is not served: %s", m->name,
				   m->reason);
	rc = check_prompt(m, params, err);
	if (rc)
		return rc;
	if (atomic_fetch_add(&m->unfinished, 1) >= e->cfg.max_queue) {
		atomic_fetch_sub(&m->unfinished, 1);
		count_refused(m, retry_after_s);
		return ctn_err_set(err, -EAGAIN, "the queue of model \"%s\" is full (%u requests)",
				   m->name, e->cfg.max_queue);
	}
	rc = request_new(m, params, &req, err);
	if (rc) {
		atomic_fetch_sub(&m->unfinished, 1);
		if (rc == -EAGAIN)
			count_refused(m, retry_after_s);
		return rc;
	}
	req->submit_mail.take = submit_taken;
	pthread_mutex_lock(&e->gate);
	if (e->closed) {
		pthread_mutex_unlock(&e->gate);
		atomic_fetch_sub(&m->unfinished, 1);
		request_unref(req);
		return ctn_err_set(err, -ESHUTDOWN, "the server is stopping");
	}
	request_ref(req);
	ctn_mailbox_post(&e->mail, &req->submit_mail);
	pthread_mutex_unlock(&e->gate);
	*out = req;
	return 0;
}

int ctn_request_fd(const struct ctn_request *req)
{
	return req->fd;
}

bool ctn_request_next(struct ctn_request *req, struct ctn_sample *token)
{
	uint32_t i = req->consumed, top = req->sampling.logprobs;

	if (i == atomic_load_explicit(&req->produced, memory_order_acquire))
		return false;
	*token = (struct ctn_sample){
		.id = req->tokens[i].id, .logprob = req->tokens[i].logprob, .top_count = top};
	if (top) {
		memcpy(token->top_ids, &req->top_ids[(size_t)i * top], top * sizeof(uint32_t));
		memcpy(token->top_logprobs, &req->top_logprobs[(size_t)i * top],
		       top * sizeof(float));
	}
	req->consumed++;
	return true;
}

bool ctn_request_finished(struct ctn_request *req, struct ctn_request_result *result)
{
	if (!atomic_load_explicit(&req->ended, memory_order_acquire))
		return false;
	if (req->consumed != atomic_load_explicit(&req->produced, memory_order_acquire))
		return false;
	*result = req->result;
	return true;
}

const struct ctn_sample *ctn_request_prompt_score(const struct ctn_request *req, uint32_t i)
{
	bool there = atomic_load_explicit(&req->produced, memory_order_acquire) > 0 ||
		     atomic_load_explicit(&req->ended, memory_order_acquire);

	if (!req->scores || !there || i == 0 || i >= req->scored)
		return NULL;
	return &req->scores[i];
}

static void cancel_taken(struct ctn_mail *mail)
{
	struct ctn_request *req =
		(struct ctn_request *)((char *)mail - offsetof(struct ctn_request, cancel_mail));

	if (req->slot != NO_SLOT)
		request_end(req, CTN_FINISH_CANCELLED, NULL);
	request_unref(req);
}

void ctn_request_cancel(struct ctn_request *req)
{
	struct ctn_engine *e = req->engine;

	if (atomic_load_explicit(&req->ended, memory_order_acquire) ||
	    atomic_exchange(&req->cancel_posted, true))
		return;
	req->cancel_mail.take = cancel_taken;
	pthread_mutex_lock(&e->gate);
	/* A stopping engine ends every request by itself. */
	if (!e->closed) {
		request_ref(req);
		ctn_mailbox_post(&e->mail, &req->cancel_mail);
	}
	pthread_mutex_unlock(&e->gate);
}

void ctn_request_release(struct ctn_request *req)
{
	if (!req)
		return;
	ctn_request_cancel(req);
	request_unref(req);
}

/* ---- the engine's side ------------------------------------------------------------------ */

static void signal_client(struct ctn_request *req)
{
	uint64_t one = 1;

	/* It fails only when the counter is full: then the descriptor is readable anyway. */
	if (write(req->fd, &one, sizeof(one)) < 0)
		CTN_ASSERT(errno == EAGAIN);
}

void request_publish(struct ctn_request *req, const struct ctn_sample *sample)
{
	uint32_t i = atomic_load_explicit(&req->produced, memory_order_relaxed);
	uint32_t top = req->sampling.logprobs;
	uint64_t now = ctn_now_ns();

	if (i == 0) {
		struct ctn_request_result *r = &req->result;

		r->first_token_ns = now - req->submitted_ns;
		histogram_add(&req->model->ttft, (double)r->first_token_ns / 1e9);
	}
	req->tokens[i] = (struct ring_token){.id = sample->id, .logprob = sample->logprob};
	if (top) {
		memcpy(&req->top_ids[(size_t)i * top], sample->top_ids, top * sizeof(uint32_t));
		memcpy(&req->top_logprobs[(size_t)i * top], sample->top_logprobs,
		       top * sizeof(float));
	}
	atomic_store_explicit(&req->produced, i + 1, memory_order_release);
	signal_client(req);
}

void request_accept(struct ctn_request *req)
{
	struct engine_model *m = req->model;
	struct ctn_engine *e = req->engine;
	struct ctn_sched_event ev = {.type = CTN_EV_ARRIVAL};

	if (e->free_slot_count == 0) {
		struct ctn_err err;

		ctn_err_set(&err, -EAGAIN, "the server has %d requests already",
			    ENGINE_MAX_REQUESTS);
		if (!req->load_only)
			atomic_fetch_sub(&m->unfinished, 1);
		req->result.finish = CTN_FINISH_ERROR;
		req->result.err = err;
		atomic_store_explicit(&req->ended, true, memory_order_release);
		signal_client(req);
		if (req->on_end)
			req->on_end(req, req->on_end_arg);
		return;
	}
	request_ref(req);
	req->slot = e->free_slots[--e->free_slot_count];
	e->slots[req->slot] = req;
	DL_APPEND(e->requests, req);
	m->live++;
	ctn_pager_moved(e->pager, m->pager_id, &req->staged_before, &req->loaded_before);
	if (req->timeout_s > 0) {
		req->deadline_ns = req->submitted_ns + (uint64_t)(req->timeout_s * 1e9);
		e->timer_stale = true;
	}
	ev.model = m->sched_id;
	ev.request = req->slot;
	/* Its prompt, and the token after it. */
	req->kv_asked = CTN_MIN(blocks_for(req->prompt_len + 1), req->kv_blocks);
	ev.kv_blocks = req->kv_blocks;
	ev.kv_first = req->kv_asked;
	ev.no_step = req->load_only;
	ev.deadline_ns = req->deadline_ns;
	engine_tell_arrival(m, &ev);
}

static enum ctn_outcome outcome_of(const struct ctn_request_result *r)
{
	switch (r->finish) {
	case CTN_FINISH_STOP:
	case CTN_FINISH_LENGTH:
		return CTN_OUTCOME_OK;
	case CTN_FINISH_CANCELLED:
		return CTN_OUTCOME_CANCELLED;
	case CTN_FINISH_TIMEOUT:
		return CTN_OUTCOME_TIMEOUT;
	default:
		return r->retry_after_s ? CTN_OUTCOME_REFUSED : CTN_OUTCOME_ERROR;
	}
}

/* Written by the engine alone, read by clients that are refused. */
static void mean_request(struct engine_model *m, double seconds)
{
	double mean = atomic_load_explicit(&m->request_seconds, memory_order_relaxed);

	mean = mean == 0 ? seconds : 0.9 * mean + 0.1 * seconds;
	atomic_store_explicit(&m->request_seconds, mean, memory_order_relaxed);
}

void request_phase(struct ctn_request *req, enum ctn_phase phase)
{
	uint64_t now;

	/* What has ended (and waits for its step) belongs to its client. */
	if (req->phase == phase || atomic_load_explicit(&req->ended, memory_order_relaxed))
		return;
	now = ctn_now_ns();
	req->result.phase_ns[req->phase] += now - req->phase_since_ns;
	req->phase = phase;
	req->phase_since_ns = now;
}

const char *ctn_phase_name(enum ctn_phase phase)
{
	static const char *const names[CTN_PHASES] = {[CTN_PHASE_QUEUE] = "queue",
						      [CTN_PHASE_LOAD] = "load",
						      [CTN_PHASE_COMPUTE] = "compute",
						      [CTN_PHASE_OTHER] = "unexplained"};

	return names[phase];
}

static void end_phases(struct ctn_request *req, uint64_t now)
{
	struct ctn_request_result *r = &req->result;

	r->phase_ns[req->phase] += now - req->phase_since_ns;
	req->phase_since_ns = now;
	if (req->load_only)
		return;
	for (int i = 0; i < CTN_PHASES; i++)
		histogram_add(&req->engine->phases[i], (double)r->phase_ns[i] / 1e9);
	ctn_info("request of model %s: %s after %u tokens: %.1f ms: queue %.1f, load %.1f, "
		 "compute %.1f, unexplained %.1f",
		 req->model->name, ctn_outcome_name(outcome_of(r)), r->completion_tokens,
		 (double)r->total_ns / 1e6, (double)r->phase_ns[CTN_PHASE_QUEUE] / 1e6,
		 (double)r->phase_ns[CTN_PHASE_LOAD] / 1e6,
		 (double)r->phase_ns[CTN_PHASE_COMPUTE] / 1e6,
		 (double)r->phase_ns[CTN_PHASE_OTHER] / 1e6);
}

void request_end(struct ctn_request *req, enum ctn_finish finish, const struct ctn_err *err)
{
	struct engine_model *m = req->model;
	struct ctn_request_result *r = &req->result;
	uint64_t now = ctn_now_ns(), staged, loaded;

	if (atomic_load_explicit(&req->ended, memory_order_relaxed))
		return;
	r->finish = finish;
	if (err)
		r->err = *err;
	ctn_pager_moved(req->engine->pager, m->pager_id, &staged, &loaded);
	r->prompt_tokens = req->prompt_len;
	r->completion_tokens = atomic_load_explicit(&req->produced, memory_order_relaxed);
	r->bytes_staged = staged - req->staged_before;
	r->bytes_loaded = loaded - req->loaded_before;
	r->total_ns = now - req->submitted_ns;
	end_phases(req, now);
	if (!req->load_only) {
		m->outcomes[outcome_of(r)]++;
		if (outcome_of(r) == CTN_OUTCOME_OK)
			mean_request(m, (double)r->total_ns / 1e9);
		atomic_fetch_sub(&m->unfinished, 1);
	}
	atomic_store_explicit(&req->ended, true, memory_order_release);
	signal_client(req);
	if (req->on_end)
		req->on_end(req, req->on_end_arg);
	if (!req->in_step)
		request_release_slot(req);
}

/* No step uses it: its blocks are free, sched hears of it, and then its slot is free. */
void request_release_slot(struct ctn_request *req)
{
	struct ctn_sched_event ev = {.type = CTN_EV_REQUEST_DONE, .request = req->slot};

	if (req->admitted)
		batch_remove(req);
	engine_tell(req->engine, &ev);
}

void requests_expire(struct ctn_engine *e, uint64_t now_ns)
{
	struct ctn_request *req, *tmp;

	DL_FOREACH_SAFE (e->requests, req, tmp) {
		if (req->deadline_ns && req->deadline_ns <= now_ns)
			request_end(req, CTN_FINISH_TIMEOUT, NULL);
	}
}

int request_want_loaded(struct engine_model *m, void (*on_end)(struct ctn_request *req, void *arg),
			void *arg)
{
	struct ctn_request *req;
	int rc = request_alloc(m, &req);

	if (rc)
		return rc;
	req->load_only = true;
	req->on_end = on_end;
	req->on_end_arg = arg;
	request_accept(req);
	request_unref(req);
	return 0;
}
