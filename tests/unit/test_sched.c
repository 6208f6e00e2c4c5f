// SPDX-License-Identifier: MIT
/*
 * The scheduler through its events and actions. A small world outside it keeps accounts of its
 * own: what it is told must always be possible there.
 */
#include "test.h"
#include "sched/sched.h"

#include <errno.h>

#define MODELS   6
#define REQUESTS 64
#define DEVICES  2
#define GRANULE  16

enum phase { FREE, WAITING, ADMITTED, REFUSED };

struct world {
	struct ctn_sched *s;
	uint64_t now;
	uint64_t capacity[DEVICES], used[DEVICES];
	struct ctn_sched_rank ranks[MODELS][DEVICES];
	uint32_t rank_count[MODELS];
	uint32_t models;
	enum ctn_sched_state state[MODELS];
	bool stepping[MODELS], pinned[MODELS];
	uint32_t budget[MODELS], admitted[MODELS], blocks_used[MODELS];
	enum phase phase[REQUESTS];
	uint32_t model_of[REQUESTS], blocks[REQUESTS], most[REQUESTS], steps_left[REQUESTS];
	uint64_t arrival[REQUESTS];
	uint64_t last_ticket, arrivals;
	uint32_t loads, drops, admits, steps, refusals, preemptions;
	bool grows; /* requests come with a part of their blocks */
	uint32_t dropped[64];
	uint32_t action_max;
};

static uint64_t charge(const struct world *w, uint32_t m, uint32_t r, uint32_t blocks)
{
	const struct ctn_sched_rank *k = &w->ranks[m][r];
	uint64_t kv = (k->kv_block_bytes * blocks + GRANULE - 1) / GRANULE * GRANULE;

	return k->weight_bytes + k->workspace_bytes + kv;
}

static void account(struct world *w, uint32_t m, bool plus)
{
	for (uint32_t r = 0; r < w->rank_count[m]; r++) {
		uint32_t d = w->ranks[m][r].device;

		if (plus)
			w->used[d] += charge(w, m, r, w->budget[m]);
		else
			w->used[d] -= charge(w, m, r, w->budget[m]);
		CU_ASSERT_FATAL(w->used[d] <= w->capacity[d]);
	}
}

static void obey(struct world *w, const struct ctn_sched_action *a)
{
	uint32_t m = a->model, q = a->request;

	switch (a->type) {
	case CTN_ACT_REFUSE:
		CU_ASSERT_EQUAL(w->phase[q], WAITING);
		w->phase[q] = REFUSED;
		w->refusals++;
		break;
	case CTN_ACT_DROP:
		CU_ASSERT_EQUAL(w->state[m], CTN_SCHED_RESIDENT);
		CU_ASSERT_EQUAL(w->admitted[m], 0);
		CU_ASSERT_FALSE(w->stepping[m]);
		CU_ASSERT_FALSE(w->pinned[m]);
		account(w, m, false);
		w->state[m] = CTN_SCHED_ABSENT;
		w->budget[m] = 0;
		w->dropped[w->drops++ % 64] = m;
		break;
	case CTN_ACT_LOAD:
		CU_ASSERT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		CU_ASSERT(a->ticket > w->last_ticket);
		w->last_ticket = a->ticket;
		w->state[m] = CTN_SCHED_LOADING;
		account(w, m, true);
		w->loads++;
		break;
	case CTN_ACT_KV_BUDGET:
		CU_ASSERT_NOT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		CU_ASSERT(a->blocks >= w->blocks_used[m]);
		account(w, m, false);
		w->budget[m] = a->blocks;
		account(w, m, true);
		break;
	case CTN_ACT_ADMIT:
		CU_ASSERT_EQUAL(w->phase[q], WAITING);
		CU_ASSERT_NOT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		/* First come, first served within a model. */
		for (uint32_t i = 0; i < REQUESTS; i++)
			CU_ASSERT_FALSE(w->phase[i] == WAITING && w->model_of[i] == m &&
					w->arrival[i] < w->arrival[q]);
		w->phase[q] = ADMITTED;
		w->admitted[m]++;
		w->blocks_used[m] += w->blocks[q];
		CU_ASSERT(w->blocks_used[m] <= w->budget[m]);
		w->admits++;
		break;
	case CTN_ACT_STEP:
		CU_ASSERT_FALSE(w->stepping[m]);
		CU_ASSERT(w->admitted[m] > 0);
		CU_ASSERT(w->blocks_used[m] <= w->budget[m]);
		w->stepping[m] = true;
		w->steps++;
		break;
	case CTN_ACT_PREEMPT:
		CU_ASSERT_FATAL(w->grows && w->phase[q] == ADMITTED && !w->stepping[m]);
		for (uint32_t i = 0; i < REQUESTS; i++)
			CU_ASSERT_FALSE(w->phase[i] == ADMITTED && w->model_of[i] == m &&
					w->arrival[i] > w->arrival[q]);
		w->phase[q] = WAITING;
		w->admitted[m]--;
		w->blocks_used[m] -= w->blocks[q];
		w->preemptions++;
		break;
	case CTN_ACT_DROP_TAIL:
	case CTN_ACT_CANCEL:
	case CTN_ACT_DROP_HOST:
	case CTN_ACT_STAGE:
		CU_FAIL("nobody said that this is possible");
		break;
	}
}

static void tell(struct world *w, struct ctn_sched_event ev)
{
	struct ctn_sched_action actions[2 * MODELS + 64];
	uint32_t max = w->action_max ? w->action_max : CTN_MIN(2 * MODELS + 64, 76);

	do {
		uint32_t n = ctn_sched_event(w->s, w->now++, &ev, actions, max);

		CU_ASSERT(n <= max);
		for (uint32_t i = 0; i < n; i++)
			obey(w, &actions[i]);
		ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
	} while (ctn_sched_more(w->s));
	for (uint32_t d = 0; d < DEVICES; d++)
		CU_ASSERT_EQUAL(w->used[d], ctn_sched_charged(w->s, d));
}

static void world_init(struct world *w, uint64_t bytes0, uint64_t bytes1)
{
	static const uint64_t granules[DEVICES] = {GRANULE, GRANULE};
	struct ctn_sched_config cfg = {.device_count = DEVICES,
				       .device_bytes = w->capacity,
				       .granules = granules,
				       .max_models = MODELS,
				       .max_requests = REQUESTS};

	memset(w, 0, sizeof(*w));
	w->capacity[0] = bytes0;
	w->capacity[1] = bytes1;
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &w->s, NULL), 0);
}

static int add_model(struct world *w, uint32_t ranks, uint64_t weights, uint64_t kv,
		     uint32_t sequences, struct ctn_err *err)
{
	uint32_t m = w->models;
	struct ctn_sched_model model = {
		.rank_count = ranks, .ranks = w->ranks[m], .max_sequences = sequences};
	int rc;

	for (uint32_t r = 0; r < ranks; r++)
		w->ranks[m][r] = (struct ctn_sched_rank){.device = ranks == 1 ? m % DEVICES : r,
							 .weight_bytes = weights,
							 .workspace_bytes = 32,
							 .kv_block_bytes = kv};
	w->rank_count[m] = ranks;
	rc = ctn_sched_add_model(w->s, &model, err);
	w->models += rc == 0;
	return rc;
}

static void arrive(struct world *w, uint32_t q, uint32_t m, uint32_t blocks, uint32_t steps)
{
	CU_ASSERT_EQUAL_FATAL(w->phase[q], FREE);
	w->phase[q] = WAITING;
	w->model_of[q] = m;
	w->most[q] = blocks;
	w->blocks[q] = w->grows ? (blocks + 2) / 3 : blocks;
	w->steps_left[q] = steps;
	w->arrival[q] = w->arrivals++;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL,
					 .model = m,
					 .request = q,
					 .kv_blocks = blocks,
					 .kv_first = w->grows ? w->blocks[q] : 0});
}

static void done(struct world *w, uint32_t q)
{
	if (w->phase[q] == ADMITTED) {
		w->admitted[w->model_of[q]]--;
		w->blocks_used[w->model_of[q]] -= w->blocks[q];
	}
	w->phase[q] = FREE;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = q});
}

static void load_done(struct world *w, uint32_t m)
{
	w->state[m] = CTN_SCHED_RESIDENT;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = m});
}

static void load_failed(struct world *w, uint32_t m)
{
	/* The engine ends every request of the model first; sched may admit meanwhile. */
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] != FREE && w->model_of[q] == m)
			done(w, q);
	}
	if (w->stepping[m]) {
		w->stepping[m] = false;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
	}
	account(w, m, false);
	w->state[m] = CTN_SCHED_ABSENT;
	w->budget[m] = 0;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_FAILED, .model = m});
}

static void grow(struct world *w, uint32_t q)
{
	if (!w->grows || w->blocks[q] == w->most[q])
		return;
	w->blocks[q]++;
	w->blocks_used[w->model_of[q]]++;
	tell(w,
	     (struct ctn_sched_event){.type = CTN_EV_KV, .request = q, .kv_blocks = w->blocks[q]});
}

/* A step ends: requests of the model are a step older, and done when none is left. */
static void step_done(struct world *w, uint32_t m)
{
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] != ADMITTED || w->model_of[q] != m)
			continue;
		if (--w->steps_left[q] == 0)
			done(w, q);
		else
			grow(w, q);
	}
	w->stepping[m] = false;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
}

/* One thing that the world owes happens; false when it owes nothing. */
static bool progress(struct world *w, uint32_t pick)
{
	uint32_t can[2 * MODELS], n = 0;

	for (uint32_t m = 0; m < w->models; m++) {
		if (w->state[m] == CTN_SCHED_LOADING)
			can[n++] = m;
		else if (w->stepping[m])
			can[n++] = MODELS + m;
	}
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] == REFUSED) {
			done(w, q);
			return true;
		}
	}
	if (n == 0)
		return false;
	pick = can[pick % n];
	if (pick < MODELS)
		load_done(w, pick);
	else
		step_done(w, pick - MODELS);
	return true;
}

static uint32_t waiting(const struct world *w)
{
	uint32_t n = 0;

	for (uint32_t q = 0; q < REQUESTS; q++)
		n += w->phase[q] == WAITING;
	return n;
}

/* ---- tests ------------------------------------------------------------------------------ */

static void test_first_request_loads_and_steps_at_once(void)
{
	struct world w;

	world_init(&w, 1000, 1000);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 100, 10, 4, NULL), 0);
	arrive(&w, 0, 0, 2, 1);
	CU_ASSERT_EQUAL(w.loads, 1);
	CU_ASSERT_EQUAL(w.admits, 1);
	/* Layers overlap: the step starts while the load is under way. */
	CU_ASSERT_EQUAL(w.steps, 1);
	CU_ASSERT_EQUAL(w.used[0], 100 + 32 + 32);
	ctn_sched_free(w.s);
}

static void test_victim_is_the_least_recently_used(void)
{
	struct world w;

	world_init(&w, 320, 16);
	/* All on device 0: it holds two of the three. */
	for (uint32_t m = 0; m < 3; m++) {
		w.ranks[m][0] = (struct ctn_sched_rank){.device = 0,
							.weight_bytes = 96,
							.workspace_bytes = 32,
							.kv_block_bytes = 16};
		w.rank_count[m] = 1;
		CU_ASSERT_EQUAL_FATAL(
			ctn_sched_add_model(w.s,
					    &(struct ctn_sched_model){.rank_count = 1,
								      .ranks = w.ranks[m],
								      .max_sequences = 1},
					    NULL),
			0);
		w.models++;
	}
	for (uint32_t i = 0; i < 2; i++) {
		arrive(&w, i, i, 1, 1);
		load_done(&w, i);
		step_done(&w, i);
	}
	/* 0 is used again: now 1 is the older. */
	arrive(&w, 0, 0, 1, 1);
	step_done(&w, 0);
	arrive(&w, 2, 2, 1, 1);
	CU_ASSERT_EQUAL(w.drops, 1);
	CU_ASSERT_EQUAL(w.dropped[0], 1);
	ctn_sched_free(w.s);
}

static void test_what_can_never_fit_is_refused(void)
{
	struct ctn_err err = {0};
	struct world w;

	world_init(&w, 320, 320);
	CU_ASSERT_EQUAL(add_model(&w, 1, 400, 10, 4, &err), -EFBIG);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "320"));
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 100, 10, 4, NULL), 0);
	arrive(&w, 0, 0, 100, 1);
	CU_ASSERT_EQUAL(w.refusals, 1);
	CU_ASSERT_EQUAL(w.loads, 0);
	ctn_sched_free(w.s);
}

static void test_what_pins_exclude_is_refused_not_parked(void)
{
	struct world w;

	world_init(&w, 320, 320);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 2, 160, 16, 4, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 2, 160, 16, 4, NULL), 0);
	w.pinned[0] = true;
	tell(&w, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = 0});
	arrive(&w, 0, 0, 1, 1);
	load_done(&w, 0);
	step_done(&w, 0);
	arrive(&w, 1, 1, 1, 1);
	CU_ASSERT_EQUAL(w.refusals, 1);
	done(&w, 1);
	w.pinned[0] = false;
	tell(&w, (struct ctn_sched_event){.type = CTN_EV_UNPIN, .model = 0});
	arrive(&w, 1, 1, 1, 1);
	CU_ASSERT_EQUAL(w.refusals, 1);
	CU_ASSERT_EQUAL(w.loads, 2);
	ctn_sched_free(w.s);
}

/* A hot model gets a new request with every step; a cold one must not wait for ever. */
static void test_a_stream_of_requests_starves_nobody(void)
{
	struct world w;
	uint32_t steps = 0;

	world_init(&w, 200, 200);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 2, 100, 1, 4, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 2, 100, 1, 4, NULL), 0);
	for (uint32_t q = 0; q < 4; q++)
		arrive(&w, q, 0, 1, 3 + q);
	load_done(&w, 0);
	arrive(&w, 63, 1, 1, 1);
	while (w.phase[63] == WAITING && steps < 100) {
		for (uint32_t q = 0; q < 8; q++) {
			if (w.phase[q] == FREE) {
				arrive(&w, q, 0, 1, 4);
				break;
			}
		}
		step_done(&w, 0);
		steps++;
	}
	/* The four that ran before it came need 6 steps at most. */
	CU_ASSERT(steps <= 7);
	CU_ASSERT_EQUAL(w.phase[63], ADMITTED);
	ctn_sched_free(w.s);
}

static uint32_t rnd(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

/* Random traffic, failures, pins: every action is possible, all work is done in the end. */
static uint32_t random_run(uint64_t seed, uint32_t action_max, bool grows)
{
	struct world w;

	world_init(&w, 512, 640);
	w.grows = grows;
	w.action_max = action_max;
	for (uint32_t m = 0; m < MODELS; m++)
		CU_ASSERT_EQUAL_FATAL(
			add_model(&w, 1 + m % 2, 64 + 48 * (m % 4), 8 + m, 1 + m % 3, NULL), 0);
	for (uint32_t i = 0; i < 3000; i++) {
		uint32_t r = rnd(&seed) % 100, q = rnd(&seed) % REQUESTS;
		uint32_t m = rnd(&seed) % MODELS;

		if (r < 40 && w.phase[q] == FREE) {
			arrive(&w, q, m, 1 + rnd(&seed) % 12, 1 + rnd(&seed) % 5);
		} else if (r < 45 && (w.phase[q] == WAITING || w.phase[q] == ADMITTED) &&
			   !w.stepping[w.model_of[q]]) {
			done(&w, q);
		} else if (r < 48 && w.state[m] == CTN_SCHED_LOADING) {
			load_failed(&w, m);
		} else if (r < 50) {
			w.pinned[m] = !w.pinned[m];
			tell(&w,
			     (struct ctn_sched_event){
				     .type = w.pinned[m] ? CTN_EV_PIN : CTN_EV_UNPIN, .model = m});
		} else if (r < 52) {
			bool may = !w.pinned[m];

			if (may)
				tell(&w,
				     (struct ctn_sched_event){.type = CTN_EV_EVICT, .model = m});
		} else {
			progress(&w, rnd(&seed));
		}
	}
	for (uint32_t m = 0; m < MODELS; m++) {
		w.pinned[m] = false;
		tell(&w, (struct ctn_sched_event){.type = CTN_EV_UNPIN, .model = m});
	}
	for (uint32_t i = 0; i < 10000 && progress(&w, rnd(&seed)); i++)
		;
	CU_ASSERT_EQUAL(waiting(&w), 0);
	CU_ASSERT(w.drops > 0);
	ctn_sched_free(w.s);
	return w.preemptions;
}

static void test_random_events_never_break_the_accounts(void)
{
	for (uint64_t seed = 1; seed <= 50; seed++)
		random_run(seed, 0, false);
}

static void test_a_small_action_buffer_loses_nothing(void)
{
	for (uint64_t seed = 100; seed <= 120; seed++)
		random_run(seed, MODELS + 8, seed % 2);
}

static void test_requests_grow_and_all_end(void)
{
	uint32_t preemptions = 0;

	for (uint64_t seed = 200; seed <= 250; seed++)
		preemptions += random_run(seed, 0, true);
	CU_ASSERT(preemptions > 50);
}

/* The device holds the model and six blocks; one request begins with one block, the next with two.
 */
static void test_the_youngest_gives_way_and_comes_back_last(void)
{
	struct world w;

	world_init(&w, 96 + 32 + 6 * 16, 16);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 96, 16, 4, NULL), 0);
	w.grows = true;
	arrive(&w, 0, 0, 3, 9);
	load_done(&w, 0);
	arrive(&w, 1, 0, 5, 9);
	CU_ASSERT_EQUAL(w.phase[0], ADMITTED);
	CU_ASSERT_EQUAL(w.phase[1], ADMITTED);
	step_done(&w, 0);
	CU_ASSERT_EQUAL(w.preemptions, 0); /* two blocks and three */
	step_done(&w, 0);
	CU_ASSERT_EQUAL(w.preemptions, 1);
	CU_ASSERT_EQUAL(w.phase[0], ADMITTED);
	CU_ASSERT_EQUAL(w.phase[1], WAITING);
	/* Whoever comes now stands behind it. */
	arrive(&w, 2, 0, 3, 1);
	CU_ASSERT_EQUAL(w.phase[2], WAITING);
	while (w.phase[1] == WAITING)
		step_done(&w, 0);
	CU_ASSERT_EQUAL(w.phase[0], FREE);
	ctn_sched_free(w.s);
}

static void test_host_victims(void)
{
	struct ctn_sched_action a[16];
	uint64_t evictable[MODELS] = {100, 100, 100};
	struct world w;
	uint32_t n;

	world_init(&w, 1000, 1000);
	for (uint32_t m = 0; m < 3; m++)
		CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 100, 10, 4, NULL), 0);
	for (uint32_t i = 0; i < 3; i++) {
		arrive(&w, i, 2 - i, 1, 1);
		load_done(&w, 2 - i);
		step_done(&w, 2 - i);
	}
	/* Least recently used first: 2, then 1; the one that asks (here 2) is the last. */
	n = ctn_sched_event(w.s, w.now++,
			    &(struct ctn_sched_event){.type = CTN_EV_HOST_NEED,
						      .model = 0,
						      .bytes = 150,
						      .host_evictable = evictable},
			    a, 16);
	CU_ASSERT_EQUAL_FATAL(n, 2);
	CU_ASSERT_EQUAL(a[0].model, 2);
	CU_ASSERT_EQUAL(a[0].bytes, 100);
	CU_ASSERT_EQUAL(a[1].model, 1);
	CU_ASSERT_EQUAL(a[1].bytes, 50);
	n = ctn_sched_event(w.s, w.now++,
			    &(struct ctn_sched_event){.type = CTN_EV_HOST_NEED,
						      .model = 2,
						      .bytes = 1000,
						      .host_evictable = evictable},
			    a, 16);
	CU_ASSERT_EQUAL_FATAL(n, 3);
	CU_ASSERT_EQUAL(a[2].model, 2);
	ctn_sched_free(w.s);
}

static void test_a_lost_device_refuses_its_models(void)
{
	struct world w;

	world_init(&w, 1000, 1000);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 100, 10, 1, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(add_model(&w, 1, 100, 10, 1, NULL), 0);
	arrive(&w, 0, 0, 1, 1);
	arrive(&w, 1, 0, 1, 1);
	tell(&w, (struct ctn_sched_event){.type = CTN_EV_DEVICE_LOST, .device = 0});
	CU_ASSERT_EQUAL(w.refusals, 1);
	arrive(&w, 2, 0, 1, 1);
	CU_ASSERT_EQUAL(w.refusals, 2);
	arrive(&w, 3, 1, 1, 1);
	CU_ASSERT_EQUAL(w.refusals, 2);
	CU_ASSERT_EQUAL(w.phase[3], ADMITTED);
	ctn_sched_free(w.s);
}

static void test_policies_by_name(void)
{
	struct ctn_sched_config cfg = {.policy = "fortune", .device_count = 1};
	uint64_t one = 1;
	struct ctn_sched *s;

	cfg.device_bytes = cfg.granules = &one;
	CU_ASSERT_EQUAL(ctn_sched_new(&cfg, &s, NULL), -ENOENT);
	for (const char *const *p = ctn_sched_policies(); *p; p++) {
		cfg.policy = *p;
		CU_ASSERT_EQUAL(ctn_sched_new(&cfg, &s, NULL), 0);
		ctn_sched_free(s);
	}
}

CTN_TESTS("sched", CTN_TEST(test_first_request_loads_and_steps_at_once),
	  CTN_TEST(test_victim_is_the_least_recently_used),
	  CTN_TEST(test_what_can_never_fit_is_refused),
	  CTN_TEST(test_what_pins_exclude_is_refused_not_parked),
	  CTN_TEST(test_a_stream_of_requests_starves_nobody),
	  CTN_TEST(test_random_events_never_break_the_accounts),
	  CTN_TEST(test_a_small_action_buffer_loses_nothing),
	  CTN_TEST(test_requests_grow_and_all_end),
	  CTN_TEST(test_the_youngest_gives_way_and_comes_back_last), CTN_TEST(test_host_victims),
	  CTN_TEST(test_a_lost_device_refuses_its_models), CTN_TEST(test_policies_by_name))
