// SPDX-License-Identifier: MIT
/*
 * The engine over everything below it, on the three sample models. What it must say stands in
 * their golden.json, which other software made.
 */
#include "pool_fixture.h"
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

static const char *model_dir(const char *name)
{
	static _Thread_local char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/models/%s", ctn_tests_dir(), name);
	return path;
}

static struct golden read_golden(const char *name)
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

/* With `models` of the samples at tp x pp, not started yet. */
static void rig_open(struct rig *rig, const char *device, const char *provider, uint32_t tp,
		     uint32_t pp, uint32_t max_queue)
{
	struct ctn_stage_config stage = {.method = -1, .hash = true};
	struct ctn_engine_config cfg = {.max_queue = max_queue, .poison = true};
	struct ctn_err err = {0};

	memset(rig, 0, sizeof(*rig));
	rig->pool = ctn_test_pool(provider, 16 * CTN_MIB, 16 * CTN_MIB, true);
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

static void rig_start(struct rig *rig)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_engine_start(rig->engine, &err), 0);
}

static void rig_close(struct rig *rig)
{
	struct ctn_pool_stats stats;

	ctn_engine_stop(rig->engine);
	ctn_engine_free(rig->engine);
	for (uint32_t d = 0; d < rig->device_count; d++) {
		struct ctn_device_memory mem;

		ctn_device_get_memory(rig->devices[d], &mem);
		CU_ASSERT_EQUAL(mem.free, mem.total);
	}
	ctn_devices_close(rig->devices, rig->device_count);
	ctn_stage_close(rig->stage);
	ctn_pool_get_stats(rig->pool, false, &stats);
	CU_ASSERT_EQUAL(stats.leased_bytes, 0);
	CU_ASSERT_EQUAL(stats.loading_bytes, 0);
	ctn_pool_close(rig->pool);
	for (uint32_t m = 0; m < MODELS; m++)
		free(rig->golden[m].ids);
}

/* Waits for the end, at most 60 s; returns how many tokens came. */
static uint32_t collect(struct ctn_request *req, struct ctn_sample *tokens, uint32_t max,
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

static struct ctn_request *submit(struct rig *rig, uint32_t model, const uint32_t *prompt,
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
static bool matches(struct rig *rig, uint32_t model, uint32_t from, uint32_t to)
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

static void expect_clean_books(struct rig *rig)
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

/* ---- tests ------------------------------------------------------------------------------ */

/* Holds one of the samples with its workspace, and not two. */
#define ONE_MODEL "host,mem=5M"

static void test_golden_texts_while_models_push_each_other_out(void)
{
	struct ctn_snapshot snap;
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	for (uint32_t i = 0; i < 9; i++) {
		uint32_t m = i % MODELS;

		CU_ASSERT(matches(&rig, m, 1, CTN_MIN(rig.golden[m].count, 120u)));
	}
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	for (uint32_t m = 0; m < MODELS; m++)
		CU_ASSERT_EQUAL(snap.models[m].switches, 3);
	ctn_snapshot_free(&snap);
	expect_clean_books(&rig);
	rig_close(&rig);
}

static uint32_t rnd(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

static void test_a_hundred_evictions_each_in_random_order(void)
{
	uint64_t seed = 42;
	uint32_t done[MODELS] = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=64M", "lossy", 1, 1, 0);
	rig_start(&rig);
	ctn_pool_lossy_set(rig.pool, 3, 5);
	while (done[0] + done[1] + done[2] < 100 * MODELS) {
		uint32_t m = rnd(&seed) % MODELS, from;
		struct ctn_err err = {0};

		if (done[m] == 100)
			continue;
		done[m]++;
		from = 1 + rnd(&seed) % 60;
		CU_ASSERT(matches(&rig, m, from, from + 8));
		CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_EVICT, m, &err), 0);
	}
	ctn_pool_lossy_set(rig.pool, 0, 0);
	expect_clean_books(&rig);
	rig_close(&rig);
}

struct client {
	struct rig *rig;
	uint64_t seed;
	uint32_t wrong;
};

static void *client_main(void *arg)
{
	struct client *c = arg;

	for (int i = 0; i < 25; i++) {
		uint32_t m = rnd(&c->seed) % MODELS, from = 1 + rnd(&c->seed) % 80;

		c->wrong += !matches(c->rig, m, from, from + 1 + rnd(&c->seed) % 30);
	}
	return NULL;
}

static void test_four_clients_at_once(void)
{
	struct client clients[4];
	pthread_t threads[4];
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	for (uint64_t i = 0; i < 4; i++) {
		clients[i] = (struct client){.rig = &rig, .seed = i + 1};
		pthread_create(&threads[i], NULL, client_main, &clients[i]);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_EQUAL(clients[i].wrong, 0);
	}
	expect_clean_books(&rig);
	rig_close(&rig);
}

static void test_ranks_say_what_one_rank_says(void)
{
	static const struct {
		uint32_t tp, pp;
	} splits[] = {{2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}};

	for (size_t i = 0; i < CTN_ARRAY_LEN(splits); i++) {
		struct rig rig;

		rig_open(&rig, "host:4,mem=8M", "thp", splits[i].tp, splits[i].pp, 0);
		rig_start(&rig);
		for (uint32_t m = 0; m < MODELS; m++)
			CU_ASSERT(matches(&rig, m, 1, 40));
		expect_clean_books(&rig);
		rig_close(&rig);
	}
}

static void test_a_cancelled_request_frees_its_slot(void)
{
	struct ctn_request_result result;
	struct ctn_snapshot snap;
	struct rig rig;

	rig_open(&rig, "host,mem=64M,link=2M", "thp", 1, 1, 0);
	rig_start(&rig);
	/* The load takes half a second: cancelled while it waits for its model. */
	for (uint32_t i = 0; i < 20; i++) {
		uint64_t start = ctn_now_ns();
		struct ctn_request *req = submit(&rig, i % MODELS, rig.golden[0].ids, 4, 100);

		ctn_request_cancel(req);
		ctn_request_cancel(req);
		collect(req, NULL, 0, &result);
		CU_ASSERT_EQUAL(result.finish, CTN_FINISH_CANCELLED);
		CU_ASSERT(ctn_now_ns() - start < CTN_NSEC_PER_SEC);
		ctn_request_release(req);
	}
	/* Released without a cancel: the same. */
	ctn_request_release(submit(&rig, 0, rig.golden[0].ids, 4, 100));
	CU_ASSERT(matches(&rig, 0, 4, 20));
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT_EQUAL(snap.models[0].running + snap.models[0].queued, 0);
	CU_ASSERT_EQUAL(snap.models[0].outcomes[CTN_OUTCOME_CANCELLED] +
				snap.models[1].outcomes[CTN_OUTCOME_CANCELLED] +
				snap.models[2].outcomes[CTN_OUTCOME_CANCELLED],
			21);
	ctn_snapshot_free(&snap);
	rig_close(&rig);
}

static void test_a_deadline_ends_a_request(void)
{
	struct ctn_request_result result;
	struct rig rig;
	struct ctn_request_params params = {
		.model = 0, .prompt_len = 4, .max_tokens = 10, .timeout_s = 0.1};
	struct ctn_request *req;
	uint64_t start;

	rig_open(&rig, "host,mem=64M,link=1M", "thp", 1, 1, 0);
	rig_start(&rig);
	params.prompt = rig.golden[0].ids;
	start = ctn_now_ns();
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	collect(req, NULL, 0, &result);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_TIMEOUT);
	CU_ASSERT(ctn_now_ns() - start >= 100000000);
	ctn_request_release(req);
	/* The load that was under way serves the next one. */
	CU_ASSERT(matches(&rig, 0, 4, 12));
	rig_close(&rig);
}

static void test_a_full_queue_refuses_with_a_hint(void)
{
	struct ctn_request *reqs[4] = {0}, *more = NULL;
	struct ctn_request_params params = {.model = 0, .prompt_len = 4, .max_tokens = 50};
	uint32_t hint = 0;
	struct rig rig;

	rig_open(&rig, "host,mem=64M,link=1M", "thp", 1, 1, 4);
	rig_start(&rig);
	params.prompt = rig.golden[0].ids;
	for (int i = 0; i < 4; i++)
		CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &reqs[i], NULL, NULL), 0);
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &more, &hint, NULL), -EAGAIN);
	CU_ASSERT(hint >= 1);
	/* Another model's queue is its own. */
	params.model = 1;
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &more, &hint, NULL), 0);
	ctn_request_release(more);
	for (int i = 0; i < 4; i++)
		ctn_request_release(reqs[i]);
	rig_close(&rig);
}

static void test_bad_requests_are_refused_by_name(void)
{
	uint32_t ids[600] = {1, 512};
	struct ctn_request_params params = {
		.model = 0, .prompt = ids, .prompt_len = 2, .max_tokens = 1};
	struct ctn_request *req;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -EINVAL);
	rig_start(&rig);
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "512"));
	params.prompt_len = 600;
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -EINVAL);
	params.prompt_len = 0;
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -EINVAL);
	params.model = 3;
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -ENOENT);
	ctn_engine_stop(rig.engine);
	params.model = 0;
	params.prompt_len = 1;
	CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -ESHUTDOWN);
	rig_close(&rig);
}

static void test_a_request_larger_than_the_kv_memory_is_refused(void)
{
	struct ctn_request_params params = {.model = 0, .prompt_len = 1, .max_tokens = 400};
	struct ctn_request_result result;
	struct ctn_request *req;
	struct rig rig;
	struct ctn_snapshot snap;
	char device[64];

	/* Room for the model and a few KV blocks. */
	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	CU_ASSERT(matches(&rig, 0, 1, 4));
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	snprintf(device, sizeof(device), "host,mem=%llu",
		 (unsigned long long)(snap.devices[0].resident + snap.devices[0].workspace +
				      2 * snap.devices[0].props.granule));
	ctn_snapshot_free(&snap);
	rig_close(&rig);

	rig_open(&rig, device, "thp", 1, 1, 0);
	rig_start(&rig);
	params.prompt = rig.golden[0].ids;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	collect(req, NULL, 0, &result);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_ERROR);
	CU_ASSERT_PTR_NOT_NULL(strstr(result.err.msg, "KV"));
	ctn_request_release(req);
	CU_ASSERT(matches(&rig, 0, 1, 8));
	rig_close(&rig);
}

static void test_prompt_scores_are_those_of_generated_tokens(void)
{
	struct ctn_request_params params = {
		.model = 2, .prompt_len = 40, .prompt_logprobs = true, .sampling = {.logprobs = 3}};
	struct ctn_sample tokens[64];
	struct ctn_request_result result;
	struct ctn_request *req;
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	params.prompt = rig.golden[2].ids;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	CU_ASSERT_EQUAL(collect(req, NULL, 0, &result), 0);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_LENGTH);
	CU_ASSERT_PTR_NULL(ctn_request_prompt_score(req, 0));
	{
		/* The greedy text scores itself: the same tokens, one by one, with logprobs. */
		struct ctn_request *gen;
		uint32_t n;

		params.prompt_len = 1;
		params.max_tokens = 39;
		params.prompt_logprobs = false;
		CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &gen, NULL, NULL), 0);
		n = collect(gen, tokens, 64, &result);
		CU_ASSERT_EQUAL(n, 39);
		for (uint32_t i = 0; i < n; i++) {
			const struct ctn_sample *s = ctn_request_prompt_score(req, i + 1);

			CU_ASSERT_PTR_NOT_NULL_FATAL(s);
			CU_ASSERT_EQUAL(s->id, tokens[i].id);
			CU_ASSERT(fabsf(s->logprob - tokens[i].logprob) < 1e-3f);
			CU_ASSERT_EQUAL(s->top_count, 3);
			CU_ASSERT_EQUAL(s->top_ids[0], tokens[i].id);
			CU_ASSERT_EQUAL(tokens[i].top_ids[0], tokens[i].id);
		}
		ctn_request_release(gen);
	}
	ctn_request_release(req);
	rig_close(&rig);
}

static void test_seeded_sampling_repeats_itself(void)
{
	struct ctn_request_params params = {
		.model = 0,
		.prompt_len = 4,
		.max_tokens = 30,
		.sampling = {.temperature = 1, .top_p = 0.95f, .seed = 7}};
	struct ctn_sample a[32], b[32], c[32];
	struct ctn_request_result result;
	struct ctn_request *req;
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	params.prompt = rig.golden[0].ids;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	CU_ASSERT_EQUAL(collect(req, a, 32, &result), 30);
	ctn_request_release(req);
	/* The model is pushed out in between. */
	CU_ASSERT(matches(&rig, 1, 1, 8));
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	CU_ASSERT_EQUAL(collect(req, b, 32, &result), 30);
	ctn_request_release(req);
	params.sampling.seed = 8;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
	CU_ASSERT_EQUAL(collect(req, c, 32, &result), 30);
	ctn_request_release(req);
	{
		uint32_t same = 0, other = 0;

		for (int i = 0; i < 30; i++) {
			same += a[i].id == b[i].id;
			other += a[i].id == c[i].id;
		}
		CU_ASSERT_EQUAL(same, 30);
		CU_ASSERT(other < 30);
	}
	rig_close(&rig);
}

static void test_control(void)
{
	struct ctn_err err = {0};
	struct ctn_snapshot snap;
	struct ctn_request *req;
	struct rig rig;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 0, &err), -ESHUTDOWN);
	rig_start(&rig);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 0, &err), 0);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 0, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT_STRING_EQUAL(snap.models[0].state, "resident");
	CU_ASSERT_STRING_EQUAL(snap.models[1].state, "idle");
	ctn_snapshot_free(&snap);

	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_PIN, 0, &err), 0);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_EVICT, 0, &err), -EBUSY);
	/* Nothing fits beside it: said at once, not parked. */
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 1, &err), -ENOSPC);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "pinned"));
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_UNPIN, 0, &err), 0);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT_STRING_EQUAL(snap.models[0].state, "idle");
	CU_ASSERT_EQUAL(snap.models[0].device_bytes, 0);
	CU_ASSERT(snap.models[0].host_bytes > 0);
	ctn_snapshot_free(&snap);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_EVICT, 0, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT_EQUAL(snap.models[0].host_bytes, 0);
	ctn_snapshot_free(&snap);

	req = submit(&rig, 1, rig.golden[1].ids, 4, 200);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_EVICT, 1, &err), -EBUSY);
	ctn_request_release(req);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 99, &err), -ENOENT);
	rig_close(&rig);
}

static void test_a_bad_checkpoint_is_listed_and_stops_nobody(void)
{
	struct ctn_model_spec spec = {.name = "ghost", .dir = "/nonexistent"};
	struct ctn_model_info info;
	struct ctn_err err = {0};
	struct ctn_request *req;
	struct rig rig;
	int m;

	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	CU_ASSERT(ctn_engine_add_model(rig.engine, &spec, &err) < 0);
	spec.name = names[0];
	CU_ASSERT_EQUAL(ctn_engine_add_model(rig.engine, &spec, &err), -EEXIST);
	/* More ranks than there are devices. */
	spec = (struct ctn_model_spec){.name = "wide", .dir = model_dir(names[0]), .tp = 2};
	CU_ASSERT_EQUAL(ctn_engine_add_model(rig.engine, &spec, &err), -EINVAL);
	m = ctn_engine_find_model(rig.engine, "ghost");
	CU_ASSERT_EQUAL_FATAL(m, 3);
	ctn_engine_model(rig.engine, (uint32_t)m, &info);
	CU_ASSERT_PTR_NOT_NULL_FATAL(info.reason);
	CU_ASSERT_PTR_NOT_NULL(strstr(info.reason, "/nonexistent"));
	rig_start(&rig);
	{
		struct ctn_request_params params = {
			.model = 3, .prompt = rig.golden[0].ids, .prompt_len = 1};

		CU_ASSERT_EQUAL(ctn_engine_submit(rig.engine, &params, &req, NULL, &err), -ENODEV);
	}
	CU_ASSERT(matches(&rig, 0, 1, 8));
	rig_close(&rig);
}

static void test_stop_ends_everything_at_once(void)
{
	struct ctn_request *reqs[30];
	struct ctn_request_result result;
	struct rig rig;
	uint64_t start;

	rig_open(&rig, "host,mem=5M,link=300K", "thp", 1, 1, 0);
	rig_start(&rig);
	for (uint32_t i = 0; i < 30; i++)
		reqs[i] = submit(&rig, i % MODELS, rig.golden[0].ids, 4, 200);
	usleep(50000);
	start = ctn_now_ns();
	ctn_engine_stop(rig.engine);
	/* A load of 1 MB takes 3 s here; its pieces under way end first. */
	CU_ASSERT(ctn_now_ns() - start < 10 * CTN_NSEC_PER_SEC);
	for (uint32_t i = 0; i < 30; i++) {
		collect(reqs[i], NULL, 0, &result);
		CU_ASSERT_EQUAL(result.finish, CTN_FINISH_CANCELLED);
		ctn_request_release(reqs[i]);
	}
	rig_close(&rig);
}

CTN_TESTS("engine", CTN_TEST(test_golden_texts_while_models_push_each_other_out),
	  CTN_TEST(test_a_hundred_evictions_each_in_random_order),
	  CTN_TEST(test_four_clients_at_once), CTN_TEST(test_ranks_say_what_one_rank_says),
	  CTN_TEST(test_a_cancelled_request_frees_its_slot),
	  CTN_TEST(test_a_deadline_ends_a_request), CTN_TEST(test_a_full_queue_refuses_with_a_hint),
	  CTN_TEST(test_bad_requests_are_refused_by_name),
	  CTN_TEST(test_a_request_larger_than_the_kv_memory_is_refused),
	  CTN_TEST(test_prompt_scores_are_those_of_generated_tokens),
	  CTN_TEST(test_seeded_sampling_repeats_itself), CTN_TEST(test_control),
	  CTN_TEST(test_a_bad_checkpoint_is_listed_and_stops_nobody),
	  CTN_TEST(test_stop_ends_everything_at_once))
