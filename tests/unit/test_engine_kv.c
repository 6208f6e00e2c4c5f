// SPDX-License-Identifier: MIT
/*
 * More requests than the KV memory holds: they are admitted by their prompts, sent back to the
 * queue when the memory runs out, and say what they say alone.
 */
#include "engine_fixture.h"

#define STREAMS 12
#define LONGEST 200

/* Bytes that a model of the samples takes on each device beside its KV. */
static uint64_t bytes_without_kv(uint32_t model, uint32_t tp, uint32_t pp)
{
	uint64_t most = 0;
	struct ctn_snapshot snap;
	struct rig rig;

	rig_open(&rig, "host:4,mem=64M", "thp", tp, pp, 0);
	rig_start(&rig);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, model, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	for (uint32_t d = 0; d < snap.device_count; d++)
		most = CTN_MAX(most,
			       ctn_align_up(snap.devices[d].resident + snap.devices[d].workspace,
					    snap.devices[d].props.granule));
	ctn_snapshot_free(&snap);
	rig_close(&rig);
	return most;
}

struct small {
	uint32_t tp, pp;
	uint64_t kv_bytes; /* of a device, beside what the model takes */
	const char *policy;
};

/* Devices that hold the model, and KV for little more than one long stream of it. */
static void open_small(struct rig *rig, uint32_t model, struct small small)
{
	struct ctn_engine_config cfg = {.policy = small.policy};
	char device[64];

	snprintf(
		device, sizeof(device), "host:%u,mem=%llu", small.tp * small.pp,
		(unsigned long long)(bytes_without_kv(model, small.tp, small.pp) + small.kv_bytes));
	rig_open_over(rig, device, ctn_test_pool("thp", 16 * CTN_MIB, 16 * CTN_MIB, true), small.tp,
		      small.pp, cfg);
	rig_start(rig);
}

struct counts {
	uint64_t preemptions, recomputed, loads; /* of all models */
	uint32_t queued, running;
};

static struct counts counts_of(struct rig *rig, uint32_t model)
{
	struct ctn_snapshot snap;
	struct counts c;

	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig->engine, &snap), 0);
	c = (struct counts){.preemptions = snap.preemptions,
			    .recomputed = snap.recomputed_tokens,
			    .queued = snap.models[model].queued,
			    .running = snap.models[model].running};
	for (uint32_t i = 0; i < snap.model_count; i++)
		c.loads += snap.models[i].switches;
	ctn_snapshot_free(&snap);
	return c;
}

/* A stream of golden ids: from `from` on. */
struct stream {
	struct ctn_request *req;
	uint32_t from, to;
};

static void start_streams(struct rig *rig, uint32_t model, struct stream *streams, uint32_t count)
{
	const struct golden *g = &rig->golden[model];

	for (uint32_t i = 0; i < count; i++) {
		streams[i].from = 1 + 3 * i;
		streams[i].to = g->count - i;
		streams[i].req = submit(rig, model, g->ids, streams[i].from,
					streams[i].to - streams[i].from);
	}
}

static void expect_golden(struct rig *rig, uint32_t model, struct stream *stream)
{
	const struct golden *g = &rig->golden[model];
	struct ctn_sample tokens[LONGEST];
	struct ctn_request_result result;
	uint32_t n = collect(stream->req, tokens, LONGEST, &result), wrong = 0;

	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_LENGTH);
	CU_ASSERT_EQUAL_FATAL(n, stream->to - stream->from);
	for (uint32_t i = 0; i < n; i++)
		wrong += tokens[i].id != g->ids[stream->from + i];
	CU_ASSERT_EQUAL(wrong, 0);
	ctn_request_release(stream->req);
}

/* KV of 200 tokens of llama: 13 blocks of 20 KiB on one rank, a quarter of that on each of 2 x 2.
 */
static void test_texts_are_golden_though_kv_runs_out(void)
{
	static const struct small smalls[] = {{1, 1, 320 << 10, "lru"},
					      {1, 1, 320 << 10, "default"},
					      {2, 2, 128 << 10, "lru"},
					      {2, 1, 192 << 10, "default"}};

	for (size_t k = 0; k < CTN_ARRAY_LEN(smalls); k++) {
		struct stream streams[STREAMS];
		struct counts c;
		struct rig rig;

		open_small(&rig, 0, smalls[k]);
		start_streams(&rig, 0, streams, STREAMS);
		for (uint32_t i = 0; i < STREAMS; i++)
			expect_golden(&rig, 0, &streams[i]);
		c = counts_of(&rig, 0);
		CU_ASSERT(c.preemptions >= 3);
		/* Whoever goes back had a block at least, and nobody is tossed to and fro. */
		CU_ASSERT(c.recomputed >= c.preemptions);
		CU_ASSERT(c.preemptions <= 3 * STREAMS);
		printf("# tp %u pp %u %s: %llu pre-emptions, %llu tokens computed again\n",
		       smalls[k].tp, smalls[k].pp, smalls[k].policy,
		       (unsigned long long)c.preemptions, (unsigned long long)c.recomputed);
		expect_clean_books(&rig);
		rig_close(&rig);
	}
}

/* What a request said, with the scores of its prompt. */
struct answer {
	struct ctn_sample tokens[LONGEST], scores[LONGEST];
	uint32_t count;
};

static struct ctn_request *ask(struct rig *rig, uint32_t i)
{
	struct ctn_request_params params = {
		.prompt = rig->golden[0].ids,
		.prompt_len = 20 + i,
		.max_tokens = 120,
		.ignore_eos = true,
		.prompt_logprobs = true,
		.sampling = {.temperature = 0.9f, .top_p = 0.95f, .seed = 77 + i, .logprobs = 3}};
	struct ctn_request *req = NULL;

	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig->engine, &params, &req, NULL, NULL), 0);
	return req;
}

static void take_answer(struct ctn_request *req, uint32_t i, struct answer *answer)
{
	struct ctn_request_result result;

	answer->count = collect(req, answer->tokens, LONGEST, &result);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_LENGTH);
	for (uint32_t p = 1; p < 20 + i; p++) {
		const struct ctn_sample *s = ctn_request_prompt_score(req, p);

		CU_ASSERT_PTR_NOT_NULL_FATAL(s);
		answer->scores[p] = *s;
	}
	ctn_request_release(req);
}

static bool same(const struct ctn_sample *a, const struct ctn_sample *b)
{
	return a->id == b->id && fabsf(a->logprob - b->logprob) < 1e-3f && a->top_count == 3 &&
	       b->top_count == 3 && a->top_ids[0] == b->top_ids[0] &&
	       fabsf(a->top_logprobs[2] - b->top_logprobs[2]) < 1e-3f;
}

static void test_seeds_and_scores_survive(void)
{
	static struct answer alone[STREAMS], crowded[STREAMS];
	struct ctn_request *reqs[STREAMS];
	struct rig rig;

	open_small(&rig, 0, (struct small){1, 1, 256 << 10, NULL});
	for (uint32_t i = 0; i < STREAMS; i++)
		take_answer(ask(&rig, i), i, &alone[i]);
	CU_ASSERT_EQUAL(counts_of(&rig, 0).preemptions, 0);
	for (uint32_t i = 0; i < STREAMS; i++)
		reqs[i] = ask(&rig, i);
	for (uint32_t i = 0; i < STREAMS; i++)
		take_answer(reqs[i], i, &crowded[i]);
	CU_ASSERT(counts_of(&rig, 0).preemptions > 0);
	for (uint32_t i = 0; i < STREAMS; i++) {
		uint32_t wrong = 0;

		CU_ASSERT_EQUAL(alone[i].count, 120);
		CU_ASSERT_EQUAL_FATAL(crowded[i].count, alone[i].count);
		for (uint32_t k = 0; k < alone[i].count; k++)
			wrong += !same(&alone[i].tokens[k], &crowded[i].tokens[k]);
		for (uint32_t k = 1; k < 20 + i; k++)
			wrong += !same(&alone[i].scores[k], &crowded[i].scores[k]);
		CU_ASSERT_EQUAL(wrong, 0);
	}
	rig_close(&rig);
}

/* Waits until requests that had begun are in the queue. */
static void wait_for_preemption(struct rig *rig)
{
	uint64_t end = ctn_now_ns() + 30 * CTN_NSEC_PER_SEC;
	struct counts c;

	do {
		usleep(500);
		c = counts_of(rig, 0);
		CU_ASSERT_FATAL(ctn_now_ns() < end);
	} while (!c.preemptions || !c.queued);
}

static void test_whoever_was_preempted_can_go(void)
{
	struct ctn_request_params params = {
		.max_tokens = 190, .prompt_len = 2, .timeout_s = 0.05, .sampling = {.top_p = 1}};
	struct stream streams[STREAMS];
	struct ctn_request_result result;
	struct ctn_request *late;
	struct rig rig;

	open_small(&rig, 0, (struct small){1, 1, 320 << 10, NULL});
	start_streams(&rig, 0, streams, STREAMS);
	params.prompt = rig.golden[0].ids;
	CU_ASSERT_EQUAL_FATAL(ctn_engine_submit(rig.engine, &params, &late, NULL, NULL), 0);
	wait_for_preemption(&rig);
	/* The youngest are the first to be pre-empted. */
	for (uint32_t i = STREAMS / 3; i < STREAMS; i++)
		ctn_request_cancel(streams[i].req);
	for (uint32_t i = STREAMS / 3; i < STREAMS; i++) {
		collect(streams[i].req, NULL, 0, &result);
		CU_ASSERT(result.finish == CTN_FINISH_CANCELLED ||
			  result.finish == CTN_FINISH_LENGTH);
		ctn_request_release(streams[i].req);
	}
	collect(late, NULL, 0, &result);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_TIMEOUT);
	ctn_request_release(late);
	for (uint32_t i = 0; i < STREAMS / 3; i++)
		expect_golden(&rig, 0, &streams[i]);
	CU_ASSERT_EQUAL(counts_of(&rig, 0).running + counts_of(&rig, 0).queued, 0);
	expect_clean_books(&rig);
	rig_close(&rig);
}

/* Alone it fits to the last block, and nobody else may keep it from its end; one block more is
 * refused when it comes. */
static void test_who_fits_alone_ends_and_who_does_not_is_refused(void)
{
	struct stream streams[STREAMS];
	struct ctn_request_result result;
	struct ctn_request *req;
	uint32_t fits = 0;
	struct rig rig;

	open_small(&rig, 0, (struct small){1, 1, 256 << 10, NULL});
	start_streams(&rig, 0, streams, 3);
	for (uint32_t i = 0; i < 3; i++) {
		collect(streams[i].req, NULL, 0, &result);
		fits += result.finish == CTN_FINISH_LENGTH;
		if (result.finish == CTN_FINISH_ERROR) {
			CU_ASSERT_EQUAL(result.err.code, -E2BIG);
			CU_ASSERT_EQUAL(result.completion_tokens, 0);
			CU_ASSERT_PTR_NOT_NULL(strstr(result.err.msg, "13 KV blocks"));
		}
		ctn_request_release(streams[i].req);
	}
	CU_ASSERT_EQUAL(fits, 0); /* 12 blocks of 20 KiB are there */
	req = submit(&rig, 0, rig.golden[0].ids, 1, 192);
	start_streams(&rig, 0, streams, 1);
	ctn_request_release(streams[0].req);
	CU_ASSERT_EQUAL(collect(req, NULL, 0, &result), 192);
	CU_ASSERT_EQUAL(result.finish, CTN_FINISH_LENGTH);
	ctn_request_release(req);
	rig_close(&rig);
}

struct client {
	struct rig *rig;
	uint32_t model, wrong;
};

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint32_t count = c->rig->golden[c->model].count;

	for (uint32_t i = 0; i < 4; i++)
		c->wrong += !matches(c->rig, c->model, 1 + 5 * i, count - i);
	return NULL;
}

/* All three share a device that has room for their weights, and for little KV. */
static void test_models_that_grow_side_by_side(void)
{
	static const char *const policies[] = {"lru", "default"};
	uint64_t bytes = 0;

	for (uint32_t m = 0; m < MODELS; m++)
		bytes += bytes_without_kv(m, 1, 1);
	for (size_t k = 0; k < CTN_ARRAY_LEN(policies); k++) {
		struct ctn_engine_config cfg = {.policy = policies[k]};
		struct client clients[12];
		pthread_t threads[12];
		char device[64];
		struct counts c;
		struct rig rig;

		snprintf(device, sizeof(device), "host,mem=%llu",
			 (unsigned long long)bytes + (512 << 10));
		rig_open_over(&rig, device, ctn_test_pool("thp", 16 * CTN_MIB, 16 * CTN_MIB, true),
			      1, 1, cfg);
		rig_start(&rig);
		for (uint32_t i = 0; i < CTN_ARRAY_LEN(clients); i++) {
			clients[i] = (struct client){.rig = &rig, .model = i % MODELS};
			pthread_create(&threads[i], NULL, client_main, &clients[i]);
		}
		for (uint32_t i = 0; i < CTN_ARRAY_LEN(clients); i++) {
			pthread_join(threads[i], NULL);
			CU_ASSERT_EQUAL(clients[i].wrong, 0);
		}
		c = counts_of(&rig, 0);
		/* Who gives way goes back to the queue, or its whole model leaves. */
		CU_ASSERT(c.preemptions > 0 || c.loads > MODELS);
		printf("# %s: %llu pre-emptions, %llu tokens computed again\n", policies[k],
		       (unsigned long long)c.preemptions, (unsigned long long)c.recomputed);
		expect_clean_books(&rig);
		rig_close(&rig);
	}
}

CTN_TESTS("engine_kv", CTN_TEST(test_texts_are_golden_though_kv_runs_out),
	  CTN_TEST(test_seeds_and_scores_survive), CTN_TEST(test_whoever_was_preempted_can_go),
	  CTN_TEST(test_who_fits_alone_ends_and_who_does_not_is_refused),
	  CTN_TEST(test_models_that_grow_side_by_side))
