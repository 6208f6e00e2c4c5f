// SPDX-License-Identifier: MIT
/*
 * Layers that models have in common: charged once, by an account of the test's own that knows
 * nothing but which model has which layers.
 */
#include "test.h"
#include "sched/sched.h"

#define TUNED    8
#define MODELS   10 /* the last two share nothing and need nearly the whole device */
#define LAYERS   4
#define LAYER    100
#define SHARED   60
#define WORK     10
#define KV       2
#define REQUESTS 64

struct world {
	struct ctn_sched *s;
	uint64_t now, capacity;
	uint32_t kept[MODELS];
	bool there[MODELS], loading[MODELS], cancelling[MODELS];
	uint32_t budget[MODELS], steps[MODELS];
	int phase[REQUESTS]; /* 0 free, 1 waits, 2 admitted */
	uint32_t model_of[REQUESTS];
	uint32_t loads, drops, admits;
};

static uint64_t layer_bytes(uint32_t m)
{
	return m < TUNED ? LAYER : 500;
}

static uint64_t used(const struct world *w)
{
	uint64_t sum = 0;

	for (uint32_t m = 0; m < MODELS; m++) {
		sum += w->budget[m] * KV + (w->there[m] ? WORK : 0);
		sum += w->kept[m] * (layer_bytes(m) - (m < TUNED ? SHARED : 0));
	}
	for (uint32_t i = 0; i < LAYERS; i++) {
		for (uint32_t m = 0; m < TUNED; m++) {
			if (w->kept[m] > i) {
				sum += SHARED;
				break;
			}
		}
	}
	return sum;
}

static void obey(struct world *w, const struct ctn_sched_action *a)
{
	uint32_t m = a->model;

	switch (a->type) {
	case CTN_ACT_DROP:
	case CTN_ACT_DROP_TAIL:
		CU_ASSERT_FATAL(!w->loading[m] && !w->steps[m]);
		w->drops++;
		w->kept[m] = a->type == CTN_ACT_DROP ? 0 : a->layers;
		w->there[m] = false;
		w->budget[m] = 0;
		break;
	case CTN_ACT_LOAD:
		CU_ASSERT_FATAL(!w->there[m]);
		w->loads++;
		w->kept[m] = LAYERS;
		w->there[m] = w->loading[m] = true;
		break;
	case CTN_ACT_CANCEL:
		w->cancelling[m] = true;
		break;
	case CTN_ACT_KV_BUDGET:
		w->budget[m] = a->blocks;
		break;
	case CTN_ACT_ADMIT:
		CU_ASSERT_EQUAL(w->phase[a->request], 1);
		w->phase[a->request] = 2;
		w->admits++;
		break;
	case CTN_ACT_STEP:
		w->steps[m]++;
		break;
	default:
		CU_FAIL("an action that nobody asked for");
	}
}

static void tell(struct world *w, struct ctn_sched_event ev)
{
	struct ctn_sched_action actions[256];
	uint32_t n = ctn_sched_event(w->s, ++w->now * 1000000, &ev, actions, 256);

	for (uint32_t i = 0; i < n; i++) {
		obey(w, &actions[i]);
		CU_ASSERT_FATAL(used(w) <= w->capacity);
	}
	CU_ASSERT_EQUAL_FATAL(ctn_sched_charged(w->s, 0), used(w));
}

static void share(struct world *w, uint32_t m)
{
	for (uint32_t i = 0; i < LAYERS; i++)
		CU_ASSERT_EQUAL(ctn_sched_share(w->s, m, 0, i, i, SHARED), 0);
}

static void world_open(struct world *w, const char *policy, bool shares)
{
	uint64_t granule = 1;
	struct ctn_sched_config cfg = {.policy = policy,
				       .device_count = 1,
				       .device_bytes = &w->capacity,
				       .granules = &granule,
				       .max_models = MODELS,
				       .max_requests = REQUESTS,
				       .partial_drops = true,
				       .cancels = true};

	memset(w, 0, sizeof(*w));
	/* All eight at once with three requests each, if they share. */
	w->capacity = LAYERS * SHARED + TUNED * (LAYERS * (LAYER - SHARED) + WORK + 3 * KV);
	w->capacity = CTN_MAX(w->capacity, 4 * 500ull + WORK + 3 * KV);
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &w->s, NULL), 0);
	for (uint32_t m = 0; m < MODELS; m++) {
		uint64_t b = layer_bytes(m), layers[LAYERS] = {b, b, b, b};
		struct ctn_sched_rank rank = {.weight_bytes = LAYERS * b,
					      .workspace_bytes = WORK,
					      .kv_block_bytes = KV,
					      .layer_bytes = layers,
					      .layer_count = LAYERS};
		struct ctn_sched_model model = {
			.rank_count = 1, .ranks = &rank, .max_sequences = 8};

		CU_ASSERT_EQUAL_FATAL(ctn_sched_add_model(w->s, &model, NULL), 0);
		if (shares && m < TUNED)
			share(w, m);
	}
}

/* A request for a model, and all that it takes until it has ended. */
static void serve(struct world *w, uint32_t m)
{
	uint32_t q = 0;

	while (w->phase[q])
		q++;
	w->phase[q] = 1;
	w->model_of[q] = m;
	tell(w, (struct ctn_sched_event){
			.type = CTN_EV_ARRIVAL, .model = m, .request = q, .kv_blocks = 1});
	for (uint32_t turn = 0; w->phase[q] != 2 || w->loading[m] || w->steps[m]; turn++) {
		CU_ASSERT_FATAL(turn < 20);
		for (uint32_t i = 0; i < MODELS; i++) {
			if (w->loading[i]) {
				w->loading[i] = w->cancelling[i] = false;
				tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE,
								 .model = i});
			}
		}
		if (w->phase[q] == 2 && w->steps[m])
			break;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	}
	w->phase[q] = 0;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = q});
	while (w->steps[m]) {
		w->steps[m]--;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
	}
}

static void with_policy(const char *policy)
{
	struct world w;

	world_open(&w, policy, true);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t m = 0; m < TUNED; m++)
			serve(&w, m);
		/* They are all there beside each other. */
		if (round == 0)
			CU_ASSERT_EQUAL(w.drops, 0);
	}
	CU_ASSERT_EQUAL(w.loads, TUNED);
	/* One that needs the room of all of them gets it, though each drop frees little. */
	serve(&w, TUNED);
	CU_ASSERT_EQUAL(w.kept[TUNED], LAYERS);
	serve(&w, TUNED + 1);
	for (uint32_t m = 0; m < TUNED; m++)
		serve(&w, m);
	for (uint32_t i = 0; i < 300; i++)
		serve(&w, (i * 7 + i / 3) % MODELS);
	ctn_sched_free(w.s);
}

static void test_layers_in_common_are_charged_once(void)
{
	with_policy("lru");
	with_policy("default");
}

/* What is found to be shared while it is there is not charged twice from then on. */
static void test_found_to_be_shared_later(void)
{
	uint64_t apart;
	struct world w;

	world_open(&w, "lru", false);
	for (uint32_t m = 0; m < 2; m++) {
		struct ctn_sched_action actions[64];
		struct ctn_sched_event ev = {
			.type = CTN_EV_ARRIVAL, .model = m, .request = m, .kv_blocks = 1};

		ctn_sched_event(w.s, ++w.now, &ev, actions, 64);
	}
	apart = ctn_sched_charged(w.s, 0);
	CU_ASSERT_EQUAL(apart, 2 * (LAYERS * LAYER + WORK + KV));
	share(&w, 0);
	CU_ASSERT_EQUAL(ctn_sched_charged(w.s, 0), apart);
	share(&w, 1);
	CU_ASSERT_EQUAL(ctn_sched_charged(w.s, 0), apart - LAYERS * SHARED);
	ctn_sched_free(w.s);
}

CTN_TESTS("sched_share", CTN_TEST(test_layers_in_common_are_charged_once),
	  CTN_TEST(test_found_to_be_shared_later))
