// SPDX-License-Identifier: MIT
/* What the engine says: golden texts while models push each other out, on any split. */
#include "engine_fixture.h"

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

CTN_TESTS("engine_texts", CTN_TEST(test_golden_texts_while_models_push_each_other_out),
	  CTN_TEST(test_a_hundred_evictions_each_in_random_order),
	  CTN_TEST(test_four_clients_at_once), CTN_TEST(test_ranks_say_what_one_rank_says),
	  CTN_TEST(test_prompt_scores_are_those_of_generated_tokens),
	  CTN_TEST(test_seeded_sampling_repeats_itself))
