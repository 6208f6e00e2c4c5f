// SPDX-License-Identifier: MIT
#include "fake_engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000ull

struct ctn_engine {
	struct fake_model *models;
	uint32_t count;
	struct ctn_arch arch;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool stopping;
	uint32_t live, cancelled, submitted;
	struct ctn_request *requests; /* live ones */
	struct fake_submit last;
};

/* All but the script and the parameters is under the engine's lock. */
struct ctn_request {
	struct ctn_engine *engine;
	struct ctn_request *next;
	struct ctn_request_params params;
	struct fake_script script;
	struct ctn_sample *scores; /* of the prompt */
	pthread_t thread;
	int fd;
	bool cancelled, finished;
	struct ctn_sample *tokens;
	size_t count, taken, room;
	enum ctn_finish finish;
};

struct ctn_engine *fake_engine_new(struct fake_model *models, uint32_t count)
{
	struct ctn_engine *e = calloc(1, sizeof(*e));
	pthread_condattr_t attr;

	if (!e)
		abort();
	e->models = models;
	e->count = count;
	e->arch = (struct ctn_arch){.vocab = 512, .max_positions = 4096, .bos = 256};
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->changed, &attr);
	pthread_condattr_destroy(&attr);
	return e;
}

void ctn_engine_stop(struct ctn_engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->stopping = true;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

void ctn_engine_free(struct ctn_engine *e)
{
	ctn_engine_stop(e);
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static uint32_t read_count(struct ctn_engine *e, const uint32_t *count)
{
	uint32_t v;

	pthread_mutex_lock(&e->lock);
	v = *count;
	pthread_mutex_unlock(&e->lock);
	return v;
}

uint32_t fake_engine_live(struct ctn_engine *e)
{
	return read_count(e, &e->live);
}

uint32_t fake_engine_cancelled(struct ctn_engine *e)
{
	return read_count(e, &e->cancelled);
}

uint32_t fake_engine_submitted(struct ctn_engine *e)
{
	return read_count(e, &e->submitted);
}

static struct timespec deadline(uint64_t ms)
{
	uint64_t t = ctn_now_ns() + ms * MS;

	return (struct timespec){.tv_sec = (time_t)(t / CTN_NSEC_PER_SEC),
				 .tv_nsec = (long)(t % CTN_NSEC_PER_SEC)};
}

bool fake_engine_drained(struct ctn_engine *e)
{
	struct timespec end = deadline(10000);
	int rc = 0;

	pthread_mutex_lock(&e->lock);
	while (e->live && !rc)
		rc = pthread_cond_timedwait(&e->changed, &e->lock, &end);
	rc = (int)e->live;
	pthread_mutex_unlock(&e->lock);
	return rc == 0;
}

struct fake_submit fake_engine_last(struct ctn_engine *e)
{
	struct fake_submit last;

	pthread_mutex_lock(&e->lock);
	last = e->last;
	pthread_mutex_unlock(&e->lock);
	return last;
}

/* ---- models ---------------------------------------------------------------------------- */

uint32_t ctn_engine_model_count(const struct ctn_engine *e)
{
	return e->count;
}

void ctn_engine_model(const struct ctn_engine *e, uint32_t model, struct ctn_model_info *info)
{
	const struct fake_model *m = &e->models[model];

	*info = (struct ctn_model_info){.name = m->name,
					.dir = m->dir,
					.reason = m->reason,
					.family = m->reason ? NULL : "fake",
					.arch = m->reason ? NULL : &e->arch,
					.tp = 1,
					.pp = 1,
					.created = 1700000000};
}

int ctn_engine_find_model(const struct ctn_engine *e, const char *name)
{
	for (uint32_t i = 0; i < e->count; i++) {
		if (strcmp(e->models[i].name, name) == 0)
			return (int)i;
	}
	return -ENOENT;
}

/* ---- the life of a request ------------------------------------------------------------- */

static void wake(struct ctn_request *r)
{
	uint64_t one = 1;

	if (write(r->fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

/* Waits for the delay, or for ever; true when the request goes on. Locked. */
static bool pause_request(struct ctn_request *r, bool for_ever, uint64_t end_ns)
{
	struct ctn_engine *e = r->engine;
	uint64_t until = ctn_now_ns() + r->script.delay_ms * MS;

	for (;;) {
		uint64_t now = ctn_now_ns(), next = for_ever ? now + 3600 * 1000 * MS : until;
		struct timespec ts;

		if (r->cancelled || e->stopping) {
			r->finish = CTN_FINISH_CANCELLED;
			return false;
		}
		if (end_ns && now >= end_ns) {
			r->finish = CTN_FINISH_TIMEOUT;
			return false;
		}
		if (now >= next)
			return true;
		if (end_ns && end_ns < next)
			next = end_ns;
		ts = deadline((next - now) / MS + 1);
		pthread_cond_timedwait(&e->changed, &e->lock, &ts);
	}
}

static void give(struct ctn_request *r, uint32_t id)
{
	struct ctn_sample *s;

	if (r->count == r->room) {
		r->room = r->room ? r->room * 2 : 16;
		r->tokens = reallocarray(r->tokens, r->room, sizeof(*r->tokens));
		if (!r->tokens)
			abort();
	}
	s = &r->tokens[r->count++];
	*s = (struct ctn_sample){
		.id = id, .logprob = -0.5f, .top_count = r->params.sampling.logprobs};
	for (uint32_t k = 0; k < s->top_count; k++) {
		s->top_ids[k] = id + k;
		s->top_logprobs[k] = -0.5f * (float)(k + 1);
	}
	wake(r);
}

static void *run_request(void *arg)
{
	struct ctn_request *r = arg;
	struct ctn_engine *e = r->engine;
	uint64_t end_ns =
		r->params.timeout_s > 0 ? ctn_now_ns() + (uint64_t)(r->params.timeout_s * 1e9) : 0;
	const struct fake_script *s = &r->script;

	pthread_mutex_lock(&e->lock);
	r->finish = s->finish;
	for (uint32_t i = 0; pause_request(r, s->hold, end_ns); i++) {
		if (!s->endless && i == s->count)
			break;
		if (r->count == r->params.max_tokens) {
			r->finish = CTN_FINISH_LENGTH;
			break;
		}
		give(r, s->tokens[i % s->count]);
	}
	if (r->finish == CTN_FINISH_CANCELLED && r->cancelled)
		e->cancelled++;
	r->finished = true;
	wake(r);
	pthread_mutex_unlock(&e->lock);
	return NULL;
}

static int check_params(struct ctn_engine *e, const struct ctn_request_params *p,
			uint32_t *retry_after_s, struct ctn_err *err)
{
	int refuse = e->models[p->model].script.refuse;

	if (e->stopping)
		return ctn_err_set(err, -ESHUTDOWN, "the engine stops");
	if (refuse == -EAGAIN && retry_after_s)
		*retry_after_s = 7;
	if (refuse)
		return ctn_err_set(err, refuse, "refused by the script");
	for (uint32_t i = 0; i < p->prompt_len; i++) {
		if (p->prompt[i] >= e->arch.vocab)
			return ctn_err_set(err, -EINVAL,
					   "token id %u: expected less than the vocabulary's %u",
					   p->prompt[i], e->arch.vocab);
	}
	return 0;
}

static void score_prompt(struct ctn_request *r)
{
	r->scores = calloc(r->params.prompt_len, sizeof(*r->scores));
	if (!r->scores)
		abort();
	for (uint32_t i = 1; i < r->params.prompt_len; i++) {
		struct ctn_sample *s = &r->scores[i];

		s->id = s->top_ids[0] = r->params.prompt[i];
		s->logprob = s->top_logprobs[0] = -(float)(i + 1);
		s->top_count = r->params.sampling.logprobs ? 1 : 0;
	}
}

static struct ctn_request *request_new(struct ctn_engine *e, const struct ctn_request_params *p)
{
	struct ctn_request *r = calloc(1, sizeof(*r));

	if (!r)
		abort();
	r->engine = e;
	r->params = *p;
	r->script = e->models[p->model].script;
	/* Else it would fill the memory before the server has read its first token. */
	if (r->script.endless && !r->script.delay_ms)
		r->script.delay_ms = 1;
	r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->fd < 0)
		abort();
	if (p->prompt_logprobs)
		score_prompt(r);
	return r;
}

int ctn_engine_submit(struct ctn_engine *e, const struct ctn_request_params *p,
		      struct ctn_request **req, uint32_t *retry_after_s, struct ctn_err *err)
{
	struct ctn_request *r;
	int rc;

	pthread_mutex_lock(&e->lock);
	rc = check_params(e, p, retry_after_s, err);
	if (rc)
		goto out;
	r = request_new(e, p);
	e->last.params = *p;
	memcpy(e->last.prompt, p->prompt, CTN_MIN(p->prompt_len, 64u) * sizeof(*p->prompt));
	e->live++;
	e->submitted++;
	if (pthread_create(&r->thread, NULL, run_request, r))
		abort();
	*req = r;
out:
	pthread_mutex_unlock(&e->lock);
	return rc;
}

int ctn_request_fd(const struct ctn_request *r)
{
	return r->fd;
}

bool ctn_request_next(struct ctn_request *r, struct ctn_sample *token)
{
	bool there;

	pthread_mutex_lock(&r->engine->lock);
	there = r->taken < r->count;
	if (there)
		*token = r->tokens[r->taken++];
	pthread_mutex_unlock(&r->engine->lock);
	return there;
}

bool ctn_request_finished(struct ctn_request *r, struct ctn_request_result *result)
{
	bool finished;

	pthread_mutex_lock(&r->engine->lock);
	finished = r->finished && r->taken == r->count;
	if (finished) {
		*result = (struct ctn_request_result){
			.finish = r->finish,
			.prompt_tokens = r->params.prompt_len,
			.completion_tokens = (uint32_t)r->count,
			.bytes_staged = 1000,
			.bytes_loaded = 2000,
			.phase_ns[CTN_PHASE_QUEUE] = 1 * MS,
			.phase_ns[CTN_PHASE_LOAD] = 2 * MS,
			.first_token_ns = 3 * MS,
			.total_ns = 4 * MS,
		};
		if (r->finish == CTN_FINISH_ERROR)
			ctn_err_set(&result->err, -EIO, "the script failed the step");
	}
	pthread_mutex_unlock(&r->engine->lock);
	return finished;
}

const struct ctn_sample *ctn_request_prompt_score(const struct ctn_request *r, uint32_t i)
{
	return r->scores && i >= 1 && i < r->params.prompt_len ? &r->scores[i] : NULL;
}

void ctn_request_cancel(struct ctn_request *r)
{
	pthread_mutex_lock(&r->engine->lock);
	r->cancelled = true;
	pthread_cond_broadcast(&r->engine->changed);
	pthread_mutex_unlock(&r->engine->lock);
}

void ctn_request_release(struct ctn_request *r)
{
	struct ctn_engine *e = r->engine;

	ctn_request_cancel(r);
	pthread_join(r->thread, NULL);
	close(r->fd);
	free(r->tokens);
	free(r->scores);
	free(r);
	pthread_mutex_lock(&e->lock);
	e->live--;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

/* ---- control and snapshot -------------------------------------------------------------- */

int ctn_engine_control(struct ctn_engine *e, enum ctn_control what, uint32_t model,
		       struct ctn_err *err)
{
	const struct fake_script *s = &e->models[model].script;
	int rc = s->control;

	pthread_mutex_lock(&e->lock);
	while (s->control_waits && !e->stopping)
		pthread_cond_wait(&e->changed, &e->lock);
	if (e->stopping)
		rc = -ESHUTDOWN;
	pthread_mutex_unlock(&e->lock);
	return rc ? ctn_err_set(err, rc, "control %d was refused by the script", (int)what) : 0;
}

const double ctn_histogram_bounds[CTN_HISTOGRAM_BUCKETS - 1] = {
	0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50};

const char *ctn_outcome_name(enum ctn_outcome outcome)
{
	static const char *const names[] = {"ok", "cancelled", "timeout", "error", "refused"};

	return names[outcome];
}

const char *ctn_phase_name(enum ctn_phase phase)
{
	static const char *const names[CTN_PHASES] = {"queue", "load", "compute", "unexplained"};

	return names[phase];
}

const char *ctn_move_name(enum ctn_move move)
{
	static const char *const names[] = {"stage", "load", "drop_device", "drop_host"};

	return names[move];
}

const char *ctn_move_outcome_name(enum ctn_move_outcome outcome)
{
	static const char *const names[] = {"ok", "failed", "cancelled"};

	return names[outcome];
}

const char *ctn_ahead_name(enum ctn_ahead outcome)
{
	static const char *const names[] = {"hit", "cancelled", "dropped"};

	return names[outcome];
}

const char *ctn_predicted_name(enum ctn_predicted what)
{
	static const char *const names[] = {"load", "stage", "step"};

	return names[what];
}

/* Stands for the stage too: what the server says of it has nothing else to come from. */
const char *ctn_stage_method_name(enum ctn_stage_method method)
{
	static const char *const names[] = {"uring_fixed", "uring", "pread", "buffered"};

	return names[method];
}

static void fill_model(struct ctn_engine *e, uint32_t i, struct ctn_model_snapshot *m)
{
	ctn_engine_model(e, i, &m->info);
	m->state = m->info.reason ? "unservable" : "resident";
	m->queued = 11;
	m->running = 12;
	m->checkpoint_bytes = 13;
	m->host_bytes = 14;
	m->host_total = 15;
	m->device_bytes = 16;
	m->device_total = 17;
	m->kv_bytes = 18;
	for (int k = 0; k < CTN_OUTCOMES; k++)
		m->outcomes[k] = 20 + (uint64_t)k;
	m->ttft = (struct ctn_histogram){
		.buckets = {[0] = 1, [3] = 2, [15] = 4}, .count = 7, .sum_s = 101.5};
	m->switch_time = (struct ctn_histogram){.buckets = {[1] = 3}, .count = 3, .sum_s = 0.004};
}

int ctn_engine_snapshot(struct ctn_engine *e, struct ctn_snapshot *s)
{
	*s = (struct ctn_snapshot){.model_count = e->count, .device_count = 1, .uptime_s = 1.5};
	s->models = calloc(e->count, sizeof(*s->models));
	s->devices = calloc(1, sizeof(*s->devices));
	if (!s->models || !s->devices)
		abort();
	for (uint32_t i = 0; i < e->count; i++)
		fill_model(e, i, &s->models[i]);
	s->devices[0] = (struct ctn_device_snapshot){
		.props = {.id = "host:0", .backend = "host", .link_rate = 200},
		.stats = {.d2h_bytes = 31, .load_bytes = 32},
		.total = 280,
		.free = 37,
		.loading = 38,
		.resident = 39,
		.draining = 40,
		.kv = 41,
		.workspace = 42,
		.comm = 43,
		.frames_loading = 44,
		.frames_resident = 45,
		.frames_draining = 46};
	s->pool = (struct ctn_pool_stats){.provider = "plain",
					  .why = "thp: never",
					  .total_bytes = 210,
					  .free_bytes = 50,
					  .loading_bytes = 80,
					  .clean_bytes = 80,
					  .resident_bytes = 200,
					  .huge_bytes = 50};
	s->host_draining_bytes = 19;
	s->host_staging_frames = 51;
	s->host_clean_frames = 52;
	s->host_draining_frames = 53;
	s->stage.jobs[CTN_STAGE_PREAD] = 54;
	for (int i = 0; i < CTN_MOVES; i++)
		s->moves[i] = (struct ctn_move_counts){
			.outcomes = {60, 61, 62}, .bytes = 63, .nanoseconds = 64000000};
	return 0;
}

void ctn_snapshot_free(struct ctn_snapshot *s)
{
	free(s->models);
	free(s->devices);
}
