/* SPDX-License-Identifier: MIT */
/*
 * The engine over everything below it, on the three sample models. What it must say stands in
 * their golden.json, which other software made.
 */
#ifndef CTN_ENGINE_FIXTURE_H
#define CTN_ENGINE_FIXTURE_H

#include "machine_fixture.h"
#include "test.h"
#include "engine/engine.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#define MODELS 3

static const char *const names[MODELS] = {"llama-stories260k", "opt-tinystories",
					  "gpt2-tinystories"};

struct golden {
	uint32_t *ids;
	uint32_t count;
};

struct rig {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint32_t device_count;
	struct ctn_engine *engine;
	struct golden golden[MODELS];
};

static inline const char *model_dir(const char *name)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/models/%s", ctn_tests_dir(), name);
	return path;
}

static inline struct golden read_golden(const char *name)
{
	struct golden g = {0};
	char path[PATH_MAX + 16];
	json_t *root, *ids;

	snprintf(path, sizeof(path), "%s/golden.json", model_dir(name));
	root = json_load_file(path, 0, NULL);
	CU_ASSERT_PTR_NOT_NULL_FATAL(root);
	ids = json_object_get(root, "greedy_ids_from_bos");
	g.count = (uint32_t)json_array_size(ids);
	CU_ASSERT_FATAL(g.count > 16);
	g.ids = calloc(g.count, sizeof(*g.ids));
	for (uint32_t i = 0; i < g.count; i++)
		g.ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
	json_decref(root);
	return g;
}

/* With the samples at tp x pp, over a pool that is the rig's from here on; not started yet. `cfg`
 * without what the rig has. */
static inline void rig_open_over(struct rig *rig, const char *device, struct ctn_pool *pool,
				 uint32_t tp, uint32_t pp, struct ctn_engine_config cfg)
{
	struct ctn_stage_config stage = {.method = -1, .hash = true};
	struct ctn_err err = {0};

	memset(rig, 0, sizeof(*rig));
	cfg.poison = true;
	rig->pool = pool;
	stage.pool = rig->pool;
	if (ctn_stage_open(&stage, &rig->stage, &err) ||
	    ctn_devices_open(device, rig->devices, &rig->device_count, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	cfg.pool = rig->pool;
	cfg.stage = rig->stage;
	cfg.devices = rig->devices;
	cfg.device_count = rig->device_count;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_new(&cfg, &rig->engine, &err), 0);
	for (uint32_t m = 0; m < MODELS; m++) {
		struct ctn_model_spec spec = {
			.name = names[m], .dir = model_dir(names[m]), .tp = tp, .pp = pp};

		rig->golden[m] = read_golden(names[m]);
		if (ctn_engine_add_model(rig->engine, &spec, &err)) {
			fprintf(stderr, "%s: %s\n", names[m], err.msg);
			CU_FAIL("a sample model is refused");
		}
	}
}

static inline void rig_open(struct rig *rig, const char *device, const char *provider, uint32_t tp,
			    uint32_t pp, uint32_t max_queue)
{
	struct ctn_engine_config cfg = {.max_queue = max_queue};

	rig_open_over(rig, device, ctn_test_pool(provider, 16 * CTN_MIB, 16 * CTN_MIB, true), tp,
		      pp, cfg);
}

static inline void rig_start(struct rig *rig)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_engine_start(rig->engine, &err), 0);
}

static inline void rig_close(struct rig *rig)
{
	ctn_engine_stop(rig->engine);
	ctn_engine_free(rig->engine);
	machine_close(rig->devices, rig->device_count, rig->stage, rig->pool);
	for (uint32_t m = 0; m < MODELS; m++)
		free(rig->golden[m].ids);
}

/* Waits for the end, at most 60 s; returns how many tokens came. */
static inline uint32_t collect(struct ctn_request *req, struct ctn_sample *tokens, uint32_t max,
			       struct ctn_request_result *result)
{
	uint64_t end = ctn_now_ns() + 60 * CTN_NSEC_PER_SEC;
	uint32_t n = 0;

	for (;;) {
		struct pollfd pfd = {.fd = ctn_request_fd(req), .events = POLLIN};
		struct ctn_sample token;
		uint64_t count;

		if (poll(&pfd, 1, 1000) > 0 && read(pfd.fd, &count, sizeof(count)) < 0)
			perror("eventfd");
		while (ctn_request_next(req, &token)) {
			if (n < max)
				tokens[n] = token;
			n++;
		}
		if (ctn_request_finished(req, result))
			return n;
		CU_ASSERT_FATAL(ctn_now_ns() < end);
	}
}

static inline struct ctn_request *submit(struct rig *rig, uint32_t model, const uint32_t *prompt,
					 uint32_t prompt_len, uint32_t max_tokens)
{
	struct ctn_request_params params = {.model = model,
					    .prompt = prompt,
					    .prompt_len = prompt_len,
					    .max_tokens = max_tokens,
					    .sampling = {.top_p = 1}};
	struct ctn_request *req = NULL;
	struct ctn_err err = {0};

	if (ctn_engine_submit(rig->engine, &params, &req, NULL, &err)) {
		fprintf(stderr, "submit: %s\n", err.msg);
		CU_FAIL_FATAL("submit");
	}
	return req;
}

/* Asks for the golden's ids `from` .. `to` given those before; all must come. */
static inline bool matches(struct rig *rig, uint32_t model, uint32_t from, uint32_t to)
{
	const struct golden *g = &rig->golden[model];
	struct ctn_sample tokens[512];
	struct ctn_request_result result;
	struct ctn_request *req = submit(rig, model, g->ids, from, to - from);
	uint32_t n = collect(req, tokens, 512, &result);
	bool same = n == to - from && result.finish == CTN_FINISH_LENGTH;

	for (uint32_t i = 0; same && i < n; i++)
		same = tokens[i].id == g->ids[from + i];
	ctn_request_release(req);
	return same;
}

static inline void expect_clean_books(struct rig *rig)
{
	struct ctn_snapshot snap;

	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig->engine, &snap), 0);
	CU_ASSERT_EQUAL(snap.ledger_errors, 0);
	for (uint32_t d = 0; d < snap.device_count; d++) {
		const struct ctn_device_snapshot *s = &snap.devices[d];

		CU_ASSERT_EQUAL(s->total, s->free + s->loading + s->resident + s->draining + s->kv +
						  s->workspace + s->comm);
	}
	CU_ASSERT_EQUAL(snap.pool.total_bytes,
			snap.pool.free_bytes + snap.pool.loading_bytes + snap.pool.clean_bytes);
	ctn_snapshot_free(&snap);
}

/* Holds one of the samples with its workspace, and not two. */
#define ONE_MODEL "host,mem=5M"

#endif
