// SPDX-License-Identifier: MIT
/* How requests end: cancelled, late, refused, stopped; and control of models. */
#include "engine_fixture.h"

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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWNESS 10
#else
#define SLOWNESS 1
#endif

/* Milliseconds until no request of the model holds a slot or KV: then it can be evicted. */
static double until_free(struct rig *rig, uint32_t model)
{
	uint64_t start = ctn_now_ns();
	struct ctn_snapshot snap;
	struct ctn_err err = {0};
	int rc;

	while ((rc = ctn_engine_control(rig->engine, CTN_CONTROL_EVICT, model, &err)) == -EBUSY)
		usleep(500);
	CU_ASSERT_EQUAL(rc, 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig->engine, &snap), 0);
	CU_ASSERT_EQUAL(snap.models[model].running + snap.models[model].queued, 0);
	CU_ASSERT_EQUAL(snap.devices[0].free, snap.devices[0].total);
	CU_ASSERT_EQUAL(snap.pool.leased_bytes, 0);
	ctn_snapshot_free(&snap);
	return (double)(ctn_now_ns() - start) / 1e6;
}

/* Ends a request early after `tokens` tokens, by cancel or by its deadline, several times; returns
 * the median of the milliseconds until what it had was free. */
static double early_end(const char *device, uint32_t tokens, double timeout_s)
{
	struct ctn_request_params params = {
		.model = 0, .prompt_len = 4, .max_tokens = 400, .timeout_s = timeout_s};
	/* That foresees nothing: it must not refuse what would be late. */
	struct ctn_engine_config cfg = {.policy = "lru"};
	double ms[5];
	struct rig rig;

	rig_open_over(&rig, device, ctn_test_pool("thp", 16 * CTN_MIB, 16 * CTN_MIB, true), 1, 1,
		      cfg);
	rig_start(&rig);
	params.prompt = rig.golden[0].ids;
	params.ignore_eos = true;
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 0, NULL), 0);
	for (int i = 0; i < 5; i++) {
		struct ctn_request_result result;
		struct ctn_request *req;
		struct ctn_sample token;
		uint32_t n = 0;

		CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &req, NULL, NULL), 0);
		while (n < tokens)
			n += ctn_request_next(req, &token) ? 1 : (usleep(200), 0);
		if (!timeout_s)
			ctn_request_cancel(req);
		collect(req, NULL, 0, &result);
		CU_ASSERT_EQUAL(result.finish,
				timeout_s ? CTN_FINISH_TIMEOUT : CTN_FINISH_CANCELLED);
		ms[i] = until_free(&rig, 0);
		for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) {
			double t = ms[k];

			ms[k] = ms[k - 1];
			ms[k - 1] = t;
		}
		ctn_request_release(req);
	}
	rig_close(&rig);
	return ms[2];
}

static void test_an_early_end_frees_everything_at_once(void)
{
	/* In steps of less than a millisecond; in steps of 7 layers x 20 ms, whose end it waits
	 * for. */
	CU_ASSERT(early_end(ONE_MODEL, 2, 0) < 50 * SLOWNESS);
	CU_ASSERT(early_end(ONE_MODEL ",layer_ms=1", 0, 0.05) < 50 * SLOWNESS);
	CU_ASSERT(early_end(ONE_MODEL ",layer_ms=20", 1, 0) < 50 * SLOWNESS + 7 * 20);
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

	/* Room for the model and a few KV blocks. The last shard may still be on its way in the
	 * account when the answer is there. */
	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	rig_start(&rig);
	CU_ASSERT(matches(&rig, 0, 1, 4));
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	snprintf(device, sizeof(device), "host,mem=%llu",
		 (unsigned long long)(snap.devices[0].loading + snap.devices[0].resident +
				      snap.devices[0].workspace +
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
	/* All of it or its last layers: as much as the policy had to take. */
	CU_ASSERT_STRING_NOT_EQUAL(snap.models[0].state, "resident");
	CU_ASSERT(snap.models[0].device_bytes < snap.models[0].device_total);
	CU_ASSERT(snap.models[0].host_bytes > 0);
	ctn_snapshot_free(&snap);
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_EVICT, 0, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT_STRING_EQUAL(snap.models[0].state, "idle");
	CU_ASSERT_EQUAL(snap.models[0].device_bytes, 0);
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

/* A checkpoint whose file changes after registration: its requests end with the file's name, and
 * the models beside it go on. */
static void test_a_load_that_fails_ends_its_requests_by_name(void)
{
	char dir[PATH_MAX], cmd[3 * PATH_MAX], file[PATH_MAX + 32];
	struct ctn_model_spec spec = {.name = "brittle", .dir = dir};
	struct ctn_request_result result;
	struct ctn_request *reqs[8];
	struct ctn_err err = {0};
	struct rig rig;

	snprintf(dir, sizeof(dir), "%s/brittle", ctn_test_tmpdir());
	snprintf(cmd, sizeof(cmd), "cp -r %s %s", model_dir(names[0]), dir);
	CU_ASSERT_EQUAL_FATAL(system(cmd), 0);
	snprintf(file, sizeof(file), "%s/model.safetensors", dir);
	rig_open(&rig, ONE_MODEL, "thp", 1, 1, 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_add_model(rig.engine, &spec, &err), 0);
	rig_start(&rig);
	CU_ASSERT(matches(&rig, 0, 1, 8));
	CU_ASSERT_EQUAL_FATAL(truncate(file, 100000), 0);
	for (int round = 0; round < 20; round++) {
		for (int i = 0; i < 8; i++)
			reqs[i] = submit(&rig, i % 4 == 3 ? 1 : 3, rig.golden[1].ids, 4, 20);
		for (int i = 0; i < 8; i++) {
			collect(reqs[i], NULL, 0, &result);
			if (i % 4 == 3) {
				CU_ASSERT_EQUAL(result.finish, CTN_FINISH_LENGTH);
			} else {
				CU_ASSERT_EQUAL(result.finish, CTN_FINISH_ERROR);
				CU_ASSERT_PTR_NOT_NULL(strstr(result.err.msg, "model.safetensors"));
			}
			ctn_request_release(reqs[i]);
		}
	}
	CU_ASSERT(matches(&rig, 0, 1, 8));
	expect_clean_books(&rig);
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

CTN_TESTS("engine_ends", CTN_TEST(test_a_cancelled_request_frees_its_slot),
	  CTN_TEST(test_an_early_end_frees_everything_at_once),
	  CTN_TEST(test_a_deadline_ends_a_request), CTN_TEST(test_a_full_queue_refuses_with_a_hint),
	  CTN_TEST(test_bad_requests_are_refused_by_name),
	  CTN_TEST(test_a_request_larger_than_the_kv_memory_is_refused), CTN_TEST(test_control),
	  CTN_TEST(test_a_bad_checkpoint_is_listed_and_stops_nobody),
	  CTN_TEST(test_a_load_that_fails_ends_its_requests_by_name),
	  CTN_TEST(test_stop_ends_everything_at_once))
