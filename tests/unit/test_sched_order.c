// SPDX-License-Identifier: MIT
/*
 * Who is served first, and for how long: deadlines, priorities, shares, the residency quantum,
 * early refusal. A small world runs what sched orders by a clock of its own: a load of a model
 * takes LOAD_S, a step STEP_S.
 */
#include "test.h"
#include "sched/sched.h"

#include <string.h>

#define MODELS   8
#define REQUESTS 64
#define BYTES    1000
#define ENDLESS  UINT32_MAX
#define NEVER    UINT64_MAX
#define S        1000000000ull
#define LOAD_NS  S
#define STEP_NS  (S / 10)

struct world {
	struct ctn_sched *s;
	uint64_t now;
	uint64_t load_ends[MODELS], step_ends[MODELS];
	uint32_t loads[64], load_count, steps[MODELS], drops[MODELS];
	uint32_t model_of[REQUESTS], left[REQUESTS];
	bool queued[REQUESTS], admitted[REQUESTS], in_step[REQUESTS];
	uint64_t loaded_at[MODELS], dropped_at[MODELS], served_at[REQUESTS];
	uint32_t refused;
	struct ctn_sched_action refusal;
	bool exclusive;
};

static void obey(struct world *w, const struct ctn_sched_action *a)
{
	uint32_t m = a->model;

	switch (a->type) {
	case CTN_ACT_LOAD:
		w->loads[w->load_count++ % 64] = m;
		w->load_ends[m] = w->now + LOAD_NS;
		break;
	case CTN_ACT_DROP:
		CU_ASSERT_EQUAL(w->step_ends[m], NEVER);
		CU_ASSERT_EQUAL(w->load_ends[m], NEVER);
		w->drops[m]++;
		w->dropped_at[m] = w->now;
		break;
	case CTN_ACT_ADMIT:
		CU_ASSERT(w->queued[a->request]);
		w->queued[a->request] = false;
		w->admitted[a->request] = true;
		break;
	case CTN_ACT_STEP:
		w->steps[m]++;
		w->step_ends[m] = CTN_MAX(w->now, w->load_ends[m] == NEVER ? 0 : w->load_ends[m]);
		w->step_ends[m] += STEP_NS;
		for (uint32_t q = 0; q < REQUESTS; q++)
			w->in_step[q] |= w->admitted[q] && w->model_of[q] == m;
		break;
	case CTN_ACT_REFUSE:
		w->queued[a->request] = false;
		w->refused++;
		w->refusal = *a;
		break;
	case CTN_ACT_KV_BUDGET:
		break;
	default:
		CU_FAIL("nobody said that this is possible");
	}
}

static void tell(struct world *w, struct ctn_sched_event ev)
{
	struct ctn_sched_action a[MODELS + 8];

	do {
		uint32_t n = ctn_sched_event(w->s, w->now, &ev, a, CTN_ARRAY_LEN(a));

		for (uint32_t i = 0; i < n; i++)
			obey(w, &a[i]);
		ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
	} while (ctn_sched_more(w->s));
}

/* Models of BYTES on one device with room for `room` of them. */
static void make(struct world *w, uint32_t room, bool pauses, bool exclusive,
		 const int32_t *priorities, uint32_t sequences)
{
	uint64_t bytes = room * (BYTES + 10) + 10, granule = 1;
	struct ctn_sched_config cfg = {.policy = "default",
				       .device_count = 1,
				       .device_bytes = &bytes,
				       .granules = &granule,
				       .max_models = MODELS,
				       .max_requests = REQUESTS,
				       .host_known = true,
				       .pauses = pauses,
				       .exclusive_steps = exclusive};

	*w = (struct world){.now = S, .exclusive = exclusive};
	memset(w->load_ends, 0xff, sizeof(w->load_ends));
	memset(w->step_ends, 0xff, sizeof(w->step_ends));
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &w->s, NULL), 0);
	for (uint32_t m = 0; m < MODELS; m++) {
		struct ctn_sched_rank rank = {.weight_bytes = BYTES, .kv_block_bytes = 1};
		struct ctn_sched_model model = {.rank_count = 1,
						.ranks = &rank,
						.max_sequences = sequences,
						.priority = priorities ? priorities[m] : 0};

		CU_ASSERT_EQUAL_FATAL(ctn_sched_add_model(w->s, &model, NULL), 0);
	}
}

static void arrive(struct world *w, uint32_t q, uint32_t m, uint32_t steps, double deadline_s)
{
	uint64_t deadline = deadline_s > 0 ? w->now + (uint64_t)(deadline_s * S) : 0;

	w->model_of[q] = m;
	w->left[q] = steps;
	w->queued[q] = true;
	w->served_at[q] = 0;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL,
					 .model = m,
					 .request = q,
					 .kv_blocks = 1,
					 .deadline_ns = deadline});
	if (w->refused && w->refusal.request == q)
		tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = q});
}

static void end_step(struct world *w, uint32_t m)
{
	w->step_ends[m] = NEVER;
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (!w->in_step[q] || w->model_of[q] != m)
			continue;
		w->in_step[q] = false;
		if (w->left[q] != ENDLESS && --w->left[q] == 0) {
			w->admitted[q] = false;
			w->served_at[q] = w->now;
			tell(w,
			     (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = q});
		}
	}
	tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
}

static void run_until(struct world *w, uint64_t end)
{
	for (;;) {
		uint64_t next = CTN_MIN(ctn_sched_wake_ns(w->s), end);

		for (uint32_t m = 0; m < MODELS; m++)
			next = CTN_MIN(next, CTN_MIN(w->load_ends[m], w->step_ends[m]));
		w->now = CTN_MAX(w->now, next);
		if (next == end)
			return;
		for (uint32_t m = 0; m < MODELS; m++) {
			if (w->load_ends[m] <= w->now) {
				w->load_ends[m] = NEVER;
				w->loaded_at[m] = w->now;
				tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE,
								 .model = m});
			}
			if (w->step_ends[m] <= w->now)
				end_step(w, m);
		}
		if (ctn_sched_wake_ns(w->s) <= w->now)
			tell(w, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	}
}

/* ---- order ------------------------------------------------------------------------------ */

static void check_loads(const struct world *w, const uint32_t *order, uint32_t count)
{
	CU_ASSERT_EQUAL_FATAL(w->load_count, count);
	for (uint32_t i = 0; i < count; i++)
		CU_ASSERT_EQUAL(w->loads[i], order[i]);
}

static void test_the_earliest_deadline_is_loaded_first(void)
{
	struct world w;

	make(&w, MODELS, false, false, NULL, 4);
	arrive(&w, 0, 0, 1, 0);
	arrive(&w, 1, 1, 1, 0); /* as if it were 10 s */
	arrive(&w, 2, 2, 1, 9);
	arrive(&w, 3, 3, 1, 5);
	arrive(&w, 4, 4, 1, 500); /* the same: it came later than 1 */
	run_until(&w, 20 * S);
	check_loads(&w, (const uint32_t[]){0, 3, 2, 1, 4}, 5);
	ctn_sched_free(w.s);
}

static void test_a_priority_is_worth_ten_seconds_of_waiting(void)
{
	static const int32_t priorities[MODELS] = {0, 0, 1, -1, 0};
	struct world w;

	make(&w, MODELS, false, false, priorities, 4);
	arrive(&w, 0, 0, 1, 0);
	arrive(&w, 3, 3, 1, 0);
	arrive(&w, 1, 1, 1, 0);
	arrive(&w, 2, 2, 1, 0);
	run_until(&w, w.now + S / 2);
	/* Ten seconds later than one of a priority less would have it the other way round. */
	arrive(&w, 4, 4, 1, 0);
	run_until(&w, 20 * S);
	check_loads(&w, (const uint32_t[]){0, 2, 1, 4, 3}, 5);
	ctn_sched_free(w.s);
}

static void test_who_waits_gets_older_than_any_priority(void)
{
	static const int32_t priorities[MODELS] = {1, 0};
	struct world w;
	uint32_t q = 2;

	/* Room for one; a request for 0 with every second, for longer than the ten that they are
	 * preferred. */
	make(&w, 1, false, true, priorities, 1);
	arrive(&w, 0, 0, 1, 0);
	arrive(&w, 1, 1, 1, 0);
	while (w.served_at[1] == 0 && w.now < 30 * S) {
		run_until(&w, w.now + S / 10);
		if (q < REQUESTS && w.now % S < S / 10)
			arrive(&w, q++, 0, 8, 0);
	}
	CU_ASSERT(w.served_at[1] > 0);
	ctn_sched_free(w.s);
}

/* Where a device computes one step at a time and one model has a queue of seconds. */
static void test_a_long_queue_is_not_in_the_way_of_others(void)
{
	struct world w;
	uint64_t came;

	make(&w, 2, false, true, NULL, 1);
	arrive(&w, 0, 0, 1, 0);
	arrive(&w, 1, 1, 1, 0);
	run_until(&w, 5 * S);
	for (uint32_t q = 10; q < 60; q++)
		arrive(&w, q, 0, 1, 0); /* five seconds of steps */
	run_until(&w, w.now + S);
	came = w.now;
	arrive(&w, 2, 1, 1, 0);
	run_until(&w, came + 3 * S);
	CU_ASSERT(w.served_at[2] > 0);
	/* A second that the other may be ahead, the step under way, its own step. */
	CU_ASSERT(w.served_at[2] - came <= S + 3 * STEP_NS);
	run_until(&w, came + 10 * S);
	CU_ASSERT(w.served_at[59] > 0);
	ctn_sched_free(w.s);
}

/* ---- the residency quantum --------------------------------------------------------------- */

static void test_a_quantum_of_four_loads(void)
{
	struct world w;
	uint64_t came;

	make(&w, 1, true, false, NULL, 4);
	arrive(&w, 0, 0, ENDLESS, 0);
	run_until(&w, 3 * S);
	CU_ASSERT_EQUAL(w.loaded_at[0], 2 * S);
	came = w.now;
	arrive(&w, 1, 1, ENDLESS, 0);
	run_until(&w, came + 4 * LOAD_NS - S / 1000);
	CU_ASSERT_EQUAL(w.drops[0], 0);
	CU_ASSERT(w.steps[0] >= 45);
	/* When it is over: the step that runs, and then the load. */
	run_until(&w, came + 4 * LOAD_NS + STEP_NS + LOAD_NS);
	CU_ASSERT_EQUAL(w.drops[0], 1);
	CU_ASSERT(w.dropped_at[0] <= came + 4 * LOAD_NS + STEP_NS);
	CU_ASSERT(w.loaded_at[1] > 0);
	/* And in turn, as long as both have work: a quantum from when it is there. */
	run_until(&w, came + 60 * S);
	CU_ASSERT(w.drops[0] >= 5 && w.drops[0] <= 6);
	CU_ASSERT(w.drops[1] >= 4 && w.drops[1] <= w.drops[0]);
	CU_ASSERT(w.steps[0] > 200 && w.steps[1] > 200);
	ctn_sched_free(w.s);
}

static void test_slack_ends_a_quantum(void)
{
	struct world w;
	uint64_t came;

	make(&w, 1, true, false, NULL, 4);
	arrive(&w, 1, 1, 1, 0);
	run_until(&w, 4 * S);
	arrive(&w, 0, 0, ENDLESS, 0);
	run_until(&w, 8 * S);
	came = w.now;
	/* Its load takes a second and its step a tenth. */
	arrive(&w, 1, 1, 1, 2.5);
	CU_ASSERT_EQUAL(w.refused, 0);
	run_until(&w, came + 3 * S);
	CU_ASSERT(w.dropped_at[0] >= came + S && w.dropped_at[0] <= came + 1500 * S / 1000);
	CU_ASSERT(w.served_at[1] > 0 && w.served_at[1] <= came + 2500 * S / 1000 + STEP_NS);
	ctn_sched_free(w.s);
}

/* One that was late before the victim came waits for its quantum; one behind it that is not, and
 * says until when it is of use, does not. */
static void test_slack_behind_one_that_is_late(void)
{
	struct world w;
	uint64_t came;

	for (uint32_t behind = 0; behind < 2; behind++) {
		make(&w, 1, true, false, NULL, 4);
		arrive(&w, 1, 1, 1, 0);
		run_until(&w, 4 * S);
		arrive(&w, 2, 2, ENDLESS, 0);
		run_until(&w, 8 * S);
		came = w.now;
		arrive(&w, 3, 3, ENDLESS, 0);
		run_until(&w, w.now + S / 100);
		arrive(&w, 0, 0, ENDLESS, 0);
		run_until(&w, w.now + S / 100);
		arrive(&w, 1, 1, 1, 0);
		run_until(&w, came + 11 * S);
		check_loads(&w, (const uint32_t[]){1, 2, 3, 0}, 4);
		CU_ASSERT(w.loaded_at[0] > came + 9 * S);
		if (behind)
			arrive(&w, 4, 1, 1, 2.5);
		CU_ASSERT_EQUAL(w.refused, 0);
		run_until(&w, came + 16 * S);
		CU_ASSERT(w.served_at[1] > 0);
		if (behind) {
			CU_ASSERT(w.dropped_at[0] >= came + 12 * S);
			CU_ASSERT(w.served_at[4] > 0 &&
				  w.served_at[4] <= came + 13500 * S / 1000 + STEP_NS);
		} else {
			CU_ASSERT(w.dropped_at[0] >= w.loaded_at[0] + 4 * LOAD_NS);
		}
		ctn_sched_free(w.s);
	}
}

static void test_who_was_paused_goes_behind_those_who_wait(void)
{
	struct world w;

	make(&w, 1, true, false, NULL, 4);
	arrive(&w, 0, 0, ENDLESS, 0);
	run_until(&w, 3 * S);
	for (uint32_t m = 1; m < 5; m++)
		arrive(&w, m, m, 1, 0);
	run_until(&w, 30 * S);
	/* The four are served one after the other, not one for each quantum of the first. */
	check_loads(&w, (const uint32_t[]){0, 1, 2, 3, 4, 0}, 6);
	CU_ASSERT(w.served_at[4] - 3 * S <= 4 * LOAD_NS + 4 * (LOAD_NS + STEP_NS) + STEP_NS);
	ctn_sched_free(w.s);
}

static void test_a_pinned_model_stays(void)
{
	struct world w;

	make(&w, 2, true, false, NULL, 4);
	tell(&w, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = 0});
	arrive(&w, 0, 0, 1, 0);
	for (uint32_t q = 1; q < 20; q++) {
		run_until(&w, w.now + 2 * S);
		arrive(&w, q, 1 + q % 3, 1, 0);
	}
	run_until(&w, w.now + 2 * S);
	CU_ASSERT_EQUAL(w.drops[0], 0);
	CU_ASSERT(w.drops[1] > 0 && w.drops[2] > 0 && w.drops[3] > 0);
	CU_ASSERT_EQUAL(w.refused, 0);
	ctn_sched_free(w.s);
}

/* Loads of all models and a step of each that waits for no layer; then nothing is there. */
static void measure(struct world *w)
{
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t m = 0; m < MODELS; m++)
			arrive(w, m, m, 1, 0);
		run_until(w, w->now + 20 * S);
	}
	for (uint32_t m = 0; m < MODELS; m++)
		tell(w, (struct ctn_sched_event){.type = CTN_EV_EVICT, .model = m});
}

/* ---- early refusal ----------------------------------------------------------------------- */

static void test_nothing_is_refused_for_a_guess(void)
{
	struct world w;

	make(&w, 1, false, false, NULL, 4);
	arrive(&w, 0, 0, 1, 0.000001);
	CU_ASSERT_EQUAL(w.refused, 0);
	ctn_sched_free(w.s);
}

static void test_what_would_be_late_is_refused_at_once(void)
{
	struct world w;

	make(&w, MODELS, false, false, NULL, 4);
	measure(&w);
	/* A load and a step: 1.1 s. */
	arrive(&w, 10, 0, 1, 1.05);
	CU_ASSERT_EQUAL_FATAL(w.refused, 1);
	CU_ASSERT_EQUAL(w.refusal.request, 10);
	CU_ASSERT_EQUAL(w.refusal.why, CTN_REFUSED_DEADLINE);
	CU_ASSERT_EQUAL(w.refusal.seconds, 1);
	arrive(&w, 11, 0, 1, 1.15);
	CU_ASSERT_EQUAL(w.refused, 1);
	/* Behind that one and two more loads: 4.1 s; it is worth coming again after 3. */
	arrive(&w, 12, 1, 1, 0);
	arrive(&w, 13, 2, 1, 0);
	arrive(&w, 14, 3, 1, 3);
	CU_ASSERT_EQUAL(w.refused, 1); /* it goes before those two */
	run_until(&w, w.now + 4200 * S / 1000);
	CU_ASSERT_EQUAL(w.served_at[14] > 0, true);
	/* Of a model that is there: as many steps as its queue needs. */
	arrive(&w, 15, 3, 1, 0.05);
	CU_ASSERT_EQUAL_FATAL(w.refused, 2);
	CU_ASSERT_EQUAL(w.refusal.request, 15);
	arrive(&w, 16, 3, 1, 0.15);
	CU_ASSERT_EQUAL(w.refused, 2);
	ctn_sched_free(w.s);
}

static void test_when_to_come_again(void)
{
	struct world w;

	make(&w, MODELS, false, false, NULL, 4);
	measure(&w);
	/* One load under way, three with deadlines before its own: four seconds go by first. */
	for (uint32_t m = 0; m < 4; m++)
		arrive(&w, 10 + m, m, 1, 4.2);
	CU_ASSERT_EQUAL(w.refused, 0);
	arrive(&w, 20, 5, 1, 4.3);
	CU_ASSERT_EQUAL_FATAL(w.refused, 1);
	CU_ASSERT_EQUAL(w.refusal.request, 20);
	CU_ASSERT_EQUAL(w.refusal.seconds, 4);
	arrive(&w, 21, 6, 1, 5.2);
	CU_ASSERT_EQUAL(w.refused, 1);
	ctn_sched_free(w.s);
}

CTN_TESTS("sched_order", CTN_TEST(test_the_earliest_deadline_is_loaded_first),
	  CTN_TEST(test_a_priority_is_worth_ten_seconds_of_waiting),
	  CTN_TEST(test_who_waits_gets_older_than_any_priority),
	  CTN_TEST(test_a_long_queue_is_not_in_the_way_of_others),
	  CTN_TEST(test_a_quantum_of_four_loads), CTN_TEST(test_slack_ends_a_quantum),
	  CTN_TEST(test_slack_behind_one_that_is_late),
	  CTN_TEST(test_who_was_paused_goes_behind_those_who_wait),
	  CTN_TEST(test_a_pinned_model_stays), CTN_TEST(test_nothing_is_refused_for_a_guess),
	  CTN_TEST(test_what_would_be_late_is_refused_at_once), CTN_TEST(test_when_to_come_again))
