// SPDX-License-Identifier: MIT
/* What moves ahead of requests, and room among many: sched's actions for given events. */
#include "test.h"
#include "sched/sched.h"

#include <string.h>

#define S     1000000000ull
#define PIECE (64 * CTN_MIB)
#define BIG   (8ull * CTN_GIB)

struct rig {
	struct ctn_sched *s;
	uint64_t now;
	struct ctn_sched_action a[512];
	uint32_t count;
};

/* Models of BIG bytes on one device that holds `room` of them, `pool` bytes of host memory. */
static void make(struct rig *r, uint32_t models, uint32_t room, uint64_t pool, bool stages)
{
	uint64_t bytes = room * BIG, granule = 1;
	struct ctn_sched_config cfg = {.policy = "default",
				       .device_count = 1,
				       .device_bytes = &bytes,
				       .granules = &granule,
				       .max_models = models,
				       .max_requests = 16,
				       .host_known = true,
				       .stages = stages,
				       .host_bytes = pool};

	memset(r, 0, sizeof(*r));
	r->now = S;
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &r->s, NULL), 0);
	for (uint32_t m = 0; m < models; m++) {
		struct ctn_sched_rank rank = {.weight_bytes = BIG};
		struct ctn_sched_model model = {
			.rank_count = 1, .ranks = &rank, .max_sequences = 1, .host_bytes = BIG};

		CU_ASSERT_EQUAL_FATAL(ctn_sched_add_model(r->s, &model, NULL), 0);
	}
}

static void tell(struct rig *r, struct ctn_sched_event ev)
{
	r->count = ctn_sched_event(r->s, r->now, &ev, r->a, CTN_ARRAY_LEN(r->a));
	CU_ASSERT_FALSE(ctn_sched_more(r->s));
}

static const struct ctn_sched_action *find(const struct rig *r, enum ctn_sched_action_type type)
{
	for (uint32_t i = 0; i < r->count; i++) {
		if (r->a[i].type == type)
			return &r->a[i];
	}
	return NULL;
}

/* A request of the model comes and is answered a second later. */
static void serve(struct rig *r, uint32_t m)
{
	tell(r, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL, .model = m, .kv_blocks = 1});
	if (find(r, CTN_ACT_LOAD)) {
		r->now += S;
		tell(r, (struct ctn_sched_event){.type = CTN_EV_HOST, .model = m});
		tell(r, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = m});
	}
	tell(r, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE});
	tell(r, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
}

/* The pool lost bytes; sched looks at what could be staged when it has asked to be woken. */
static void lacks(struct rig *r, uint32_t m, uint64_t bytes)
{
	tell(r, (struct ctn_sched_event){.type = CTN_EV_HOST, .model = m, .bytes = bytes});
	if (find(r, CTN_ACT_STAGE) || ctn_sched_wake_ns(r->s) == UINT64_MAX)
		return;
	r->now = CTN_MAX(r->now, ctn_sched_wake_ns(r->s));
	tell(r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
}

/* Model 0 had requests, was dropped for one of 1, and has lost its bytes in the pool. */
static void make_lacking(struct rig *r, uint64_t pool, bool stages)
{
	make(r, 3, 1, pool, stages);
	for (uint32_t i = 0; i < 4; i++) {
		r->now += S;
		serve(r, 0);
	}
	serve(r, 1);
	lacks(r, 0, BIG);
}

static void test_pieces_are_staged_one_after_the_other(void)
{
	const struct ctn_sched_action *a;
	uint64_t missing = BIG;
	struct rig r;

	make_lacking(&r, 4 * BIG, true);
	a = find(&r, CTN_ACT_STAGE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT_EQUAL(a->model, 0);
	/* Nothing is known of the disk's speed: the least piece. One at a time. */
	CU_ASSERT_EQUAL(a->bytes, PIECE);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	/* It took 20 ms: a tenth of a second brings five such. */
	r.now += S / 50;
	missing -= PIECE;
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0, .bytes = missing});
	a = find(&r, CTN_ACT_STAGE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT(a->bytes > 4.99 * PIECE && a->bytes < 5.01 * PIECE);
	CU_ASSERT(a->seconds > 0.099 && a->seconds < 0.101);
	/* The last piece is what is missing; then there is nothing to do. */
	r.now += S / 10;
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0, .bytes = 1000});
	a = find(&r, CTN_ACT_STAGE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT_EQUAL(a->bytes, 1000);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0});
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
}

static void test_what_was_in_vain_is_put_off(void)
{
	uint64_t since;
	struct rig r;

	/* Nothing has come, again and again: not at once, but after a while. */
	make_lacking(&r, 4 * BIG, true);
	for (uint32_t i = 0; i < 3; i++) {
		CU_ASSERT_PTR_NOT_NULL_FATAL(find(&r, CTN_ACT_STAGE));
		tell(&r,
		     (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0, .bytes = BIG});
		CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
		r.now += 5 * S;
		tell(&r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
		CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
		CU_ASSERT_FATAL(ctn_sched_wake_ns(r.s) <= r.now + 6 * S);
		r.now = ctn_sched_wake_ns(r.s);
		tell(&r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	}
	ctn_sched_free(r.s);
	/* Memory is short: what was taken is not put back at once. */
	make_lacking(&r, 4 * BIG, true);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0});
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_FRAME_LOST, .model = 0, .bytes = BIG});
	r.now += S;
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_HOST, .model = 0, .bytes = BIG});
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	r.now += 10 * S;
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
	/* A load has brought all of it meanwhile: that was not in vain. */
	make_lacking(&r, 4 * BIG, true);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_HOST, .model = 0});
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0});
	since = r.now;
	lacks(&r, 0, BIG);
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_STAGE));
	CU_ASSERT(r.now < since + S);
	ctn_sched_free(r.s);
}

/* Who is asked for room while nobody waits gives none of what is as likely to be needed, and none
 * that is pinned, or the model's own. */
static void test_room_for_what_is_ahead(void)
{
	uint64_t evictable[3] = {BIG, BIG, 0};
	struct ctn_sched_event need = {
		.type = CTN_EV_HOST_NEED, .model = 0, .bytes = BIG, .host_evictable = evictable};
	struct rig r;

	make_lacking(&r, 4 * BIG, true);
	CU_ASSERT_PTR_NOT_NULL_FATAL(find(&r, CTN_ACT_STAGE));
	tell(&r, need);
	CU_ASSERT_EQUAL_FATAL(r.count, 1);
	CU_ASSERT_EQUAL(r.a[0].type, CTN_ACT_DROP_HOST);
	CU_ASSERT_EQUAL(r.a[0].model, 1);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = 1});
	tell(&r, need);
	CU_ASSERT_EQUAL(r.count, 0);
	/* A load of the model takes what it has to; once that has ended nobody waits again. */
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_UNPIN, .model = 1});
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL, .model = 0, .kv_blocks = 1});
	CU_ASSERT_PTR_NOT_NULL_FATAL(find(&r, CTN_ACT_LOAD));
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = 1});
	tell(&r, need);
	CU_ASSERT_EQUAL_FATAL(r.count, 1);
	CU_ASSERT_EQUAL(r.a[0].model, 1);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = 0});
	tell(&r, need);
	CU_ASSERT_EQUAL(r.count, 0);
	ctn_sched_free(r.s);
}

static void test_a_piece_is_what_there_is_room_for(void)
{
	const struct ctn_sched_action *a;
	struct rig r;

	make_lacking(&r, 2 * BIG + 2 * PIECE, true);
	CU_ASSERT_PTR_NOT_NULL_FATAL(find(&r, CTN_ACT_STAGE));
	for (uint32_t m = 1; m < 3; m++)
		tell(&r, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = m});
	/* The disk would bring five such in the next tenth of a second. */
	r.now += S / 50;
	tell(&r,
	     (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0, .bytes = BIG - PIECE});
	a = find(&r, CTN_ACT_STAGE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT_EQUAL(a->bytes, PIECE);
	r.now += S / 50;
	tell(&r, (struct ctn_sched_event){
			 .type = CTN_EV_STAGE_DONE, .model = 0, .bytes = BIG - 2 * PIECE});
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	/* What is asked for less has room for more; that is seen soon. */
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_UNPIN, .model = 2});
	CU_ASSERT_FATAL(ctn_sched_wake_ns(r.s) < r.now + S);
	r.now = ctn_sched_wake_ns(r.s);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_TIMER});
	a = find(&r, CTN_ACT_STAGE);
	CU_ASSERT_PTR_NOT_NULL_FATAL(a);
	CU_ASSERT(a->bytes > PIECE);
	ctn_sched_free(r.s);
}

static void test_a_load_that_waits_for_the_disk_has_it(void)
{
	struct rig r;

	make_lacking(&r, 4 * BIG, true);
	CU_ASSERT_PTR_NOT_NULL_FATAL(find(&r, CTN_ACT_STAGE));
	lacks(&r, 2, BIG);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL, .model = 2, .kv_blocks = 1});
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_LOAD));
	r.now += S / 50;
	tell(&r,
	     (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE, .model = 0, .bytes = BIG - PIECE});
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	r.now += S;
	lacks(&r, 2, 0);
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = 2});
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
}

static void test_nothing_better_leaves_the_pool_for_it(void)
{
	struct rig r;

	/* 0 has a request now and then, 1 ten in a second: 0 is not worth what it would cost. */
	make(&r, 3, 1, BIG, true);
	for (uint32_t i = 0; i < 6; i++) {
		r.now += 5 * S;
		serve(&r, 0);
	}
	for (uint32_t i = 0; i < 40; i++) {
		r.now += S / 10;
		serve(&r, 1);
	}
	lacks(&r, 2, BIG);
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	lacks(&r, 0, BIG);
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	/* When nobody asks for 1 any more, it goes. */
	for (uint32_t i = 0; i < 200; i++) {
		r.now += 5 * S;
		serve(&r, 0);
	}
	serve(&r, 2);
	lacks(&r, 2, BIG);
	lacks(&r, 0, BIG);
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
}

static void test_without_a_pool_that_stages(void)
{
	struct rig r;

	make_lacking(&r, 4 * BIG, false);
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
	make_lacking(&r, 0, true);
	CU_ASSERT_PTR_NULL(find(&r, CTN_ACT_STAGE));
	ctn_sched_free(r.s);
}

/* Of a hundred that are there, with one request each long ago, the oldest go, and no more. */
static void test_room_among_many(void)
{
	struct ctn_sched_config cfg = {.policy = "default",
				       .device_count = 1,
				       .max_models = 101,
				       .max_requests = 16,
				       .host_known = true};
	uint64_t bytes = 100, granule = 1;
	bool dropped[101] = {false};
	struct rig r = {.now = S};
	uint32_t drops = 0;

	cfg.device_bytes = &bytes;
	cfg.granules = &granule;
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &r.s, NULL), 0);
	for (uint32_t m = 0; m < 101; m++) {
		struct ctn_sched_rank rank = {.weight_bytes = m < 100 ? 1 : 37};

		CU_ASSERT_EQUAL_FATAL(
			ctn_sched_add_model(r.s,
					    &(struct ctn_sched_model){.rank_count = 1,
								      .ranks = &rank,
								      .max_sequences = 1},
					    NULL),
			0);
	}
	for (uint32_t i = 0; i < 100; i++) {
		r.now += S;
		serve(&r, i * 37 % 100);
	}
	r.now += 10000 * S;
	tell(&r, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL, .model = 100, .kv_blocks = 1});
	for (uint32_t i = 0; i < r.count; i++) {
		if (r.a[i].type != CTN_ACT_DROP)
			continue;
		CU_ASSERT_FALSE(dropped[r.a[i].model]);
		dropped[r.a[i].model] = true;
		drops++;
	}
	CU_ASSERT_EQUAL(drops, 37);
	for (uint32_t i = 0; i < 100; i++)
		CU_ASSERT_EQUAL(dropped[i * 37 % 100], i < 37);
	CU_ASSERT_PTR_NOT_NULL(find(&r, CTN_ACT_LOAD));
	ctn_sched_free(r.s);
}

CTN_TESTS("sched_ahead", CTN_TEST(test_pieces_are_staged_one_after_the_other),
	  CTN_TEST(test_what_was_in_vain_is_put_off), CTN_TEST(test_room_for_what_is_ahead),
	  CTN_TEST(test_a_piece_is_what_there_is_room_for),
	  CTN_TEST(test_a_load_that_waits_for_the_disk_has_it),
	  CTN_TEST(test_nothing_better_leaves_the_pool_for_it),
	  CTN_TEST(test_without_a_pool_that_stages), CTN_TEST(test_room_among_many))
