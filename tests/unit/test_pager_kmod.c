// SPDX-License-Identifier: MIT
/* A pager whose pool outlives it: what was staged once is not staged again, unless it is spoiled.
 */
#include "kmod_fixture.h"
#include "pager_fixture.h"

#include <errno.h>
#include <sys/mman.h>

#define POOL_BYTES (64 * CTN_MIB)

static struct module module;

/* A new life of the daemon, over the pool that is there. */
static void begin(struct rig *rig)
{
	struct ctn_stage_config stage = {.method = -1, .hash = true};

	rig_open_over(rig, "host,mem=256M", module_pool(&module, POOL_BYTES, 0), stage);
}

static void load(struct rig *rig, uint32_t model, int rc)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_pager_load(rig->pager, model, 1, &err), rc);
}

/* Stages a model into a pool that was empty, and ends. */
static void first_life(const char *dir, uint64_t *staged)
{
	struct ctn_err err = {0};
	struct rig rig;

	begin(&rig);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BACKGROUND);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	*staged = rig.staged;
	rig_close(&rig);
}

/* The module anew; its pool has a big model from a first life, which *rig has again. */
static void second_life(struct rig *rig, uint64_t *staged)
{
	struct ctn_err err = {0};

	module_new(&module);
	first_life(big_model(), staged);
	begin(rig);
	CU_ASSERT_EQUAL_FATAL(rig_add(rig, big_model(), 1, 1, &err), 0);
}

/* Turns a bit of the n-th frame of the pool, as a fault of the memory does. */
static void spoil(const struct ctn_frame_key *key)
{
	struct ctn_pool *pool = module_pool(&module, POOL_BYTES, 0);
	const struct ctn_extent *extents;
	struct ctn_frame_info info;
	uint8_t *page;
	uint32_t n;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(pool, key, &info), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lease(pool, info.ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, info.ref, &extents, &n), 0);
	page = extents[0].addr +
	       (info.bytes < CTN_EXTENT_ALIGN ? info.bytes / 2 : CTN_MIB) / 4096 * 4096;
	CU_ASSERT_EQUAL_FATAL(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
	page[0] ^= 4;
	mprotect(page, 4096, PROT_READ);
	ctn_pool_release(pool, info.ref);
	ctn_pool_close(pool);
}

static struct ctn_pager_adoption adoption(const struct rig *rig)
{
	struct ctn_pager_adoption a;

	ctn_pager_adoption(rig->pager, &a);
	return a;
}

/* In the background, until nothing waits for its digest. */
static void verify_all(struct rig *rig)
{
	ctn_pager_adopt(rig->pager, CTN_PAGER_VERIFY_BACKGROUND);
	while (adoption(rig).waiting) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig->pager), .events = POLLIN};

		if (poll(&pfd, 1, 5000) > 0)
			ctn_pager_dispatch(rig->pager);
	}
}

/* The bytes that it takes to stage a part. */
static uint64_t run_bytes(const struct rig *rig, uint32_t part)
{
	const struct ctn_part *p = &rig->plan[0]->parts[part];
	uint64_t n = 0;

	/* A run is aligned; its file ends where it ends. */
	for (uint32_t i = 0; i < p->run_count; i++)
		n += CTN_MIN(p->runs[i].bytes,
			     rig->ckpt[0]->files[p->runs[i].file].bytes - p->runs[i].file_offset);
	return n;
}

static void test_what_was_staged_is_not_staged_again(void)
{
	static const enum ctn_pager_verify modes[] = {
		CTN_PAGER_VERIFY_OFF, CTN_PAGER_VERIFY_BACKGROUND, CTN_PAGER_VERIFY_BEFORE};
	struct ctn_pager_adoption a;
	struct ctn_err err = {0};
	uint64_t staged;
	struct rig rig;

	module_new(&module);
	first_life(big_model(), &staged);
	CU_ASSERT(staged > 0);
	for (size_t i = 0; i < CTN_ARRAY_LEN(modes); i++) {
		begin(&rig);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
		ctn_pager_adopt(rig.pager, modes[i]);
		a = adoption(&rig);
		CU_ASSERT_EQUAL(a.frames, rig.plan[0]->part_count);
		CU_ASSERT(a.bytes >= rig.plan[0]->host_bytes);
		CU_ASSERT_EQUAL(a.unfit, 0);
		load(&rig, 0, 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(rig.loaded[0], 1);
		CU_ASSERT_EQUAL(rig.staged, 0);
		CU_ASSERT(rig.moved > 0);
		a = adoption(&rig);
		CU_ASSERT_EQUAL(a.waiting, 0);
		CU_ASSERT_EQUAL(a.verified, i ? a.frames : 0);
		CU_ASSERT_EQUAL(a.spoiled + a.lost, 0);
		rig_close(&rig);
	}
	module_free(&module);
}

/* Before the first use: the wrong bytes go nowhere, and the part is staged anew. */
static void test_spoiled_frames_are_staged_again(void)
{
	struct ctn_err err = {0};
	uint64_t staged;
	struct rig rig;

	module_new(&module);
	first_life(big_model(), &staged);
	for (uint32_t i = 0; i < 3; i++) {
		begin(&rig);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
		/* The first, the last, and one between them. */
		i = i == 2 ? rig.plan[0]->part_count - 1 : i;
		spoil(&rig.plan[0]->parts[i].key);
		ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BEFORE);
		load(&rig, 0, 0);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(rig.failed[0], 0);
		CU_ASSERT_EQUAL(rig.loaded[0], 1);
		CU_ASSERT_EQUAL(rig.staged, run_bytes(&rig, i));
		CU_ASSERT_EQUAL(adoption(&rig).spoiled, 1);
		CU_ASSERT_EQUAL(adoption(&rig).verified, rig.plan[0]->part_count - 1);
		rig_close(&rig);
	}
	module_free(&module);
}

/* In the background: what was loaded from it fails, and the next load is right. */
static void test_a_load_from_a_spoiled_frame_fails(void)
{
	uint64_t staged;
	struct rig rig;

	second_life(&rig, &staged);
	spoil(&rig.plan[0]->parts[0].key);
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BACKGROUND);
	/* It takes all its leases here, before the first digest is looked at. */
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 0);
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	CU_ASSERT_EQUAL(rig.err.code, -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(rig.err.msg, "model.safetensors: part 0"));
	expect_empty_device(&rig);
	CU_ASSERT_EQUAL(adoption(&rig).spoiled, 1);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.staged, run_bytes(&rig, 0));
	rig_close(&rig);
	module_free(&module);
}

/* A model that is resident already, and in use: it fails when nobody uses it any more. */
static void test_a_resident_model_of_a_spoiled_frame_fails(void)
{
	struct ctn_err err = {0};
	uint64_t staged;
	struct rig rig;

	second_life(&rig, &staged);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, sample("gpt2-tinystories"), 1, 1, &err), 1);
	spoil(&rig.plan[0]->parts[1].key);
	load(&rig, 0, 0);
	load(&rig, 1, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	ctn_pager_use(rig.pager, 0);
	verify_all(&rig);
	CU_ASSERT_TRUE(ctn_pager_failing(rig.pager, 0));
	CU_ASSERT_FALSE(ctn_pager_failing(rig.pager, 1));
	CU_ASSERT_EQUAL(rig.failed[0], 0);
	ctn_pager_unuse(rig.pager, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	CU_ASSERT_EQUAL(rig.failed[1], 0);
	CU_ASSERT_EQUAL(rig.err.code, -EBADMSG);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 2);
	CU_ASSERT_EQUAL(rig.staged, run_bytes(&rig, 1));
	load(&rig, 1, -EALREADY);
	rig_close(&rig);
	module_free(&module);
}

/* A second model of the same bytes must not join the first one's device frames while a step runs on
 * them: they are wrong, and go when it has ended. */
static void test_nobody_joins_a_spoiled_device_frame(void)
{
	struct ctn_err err = {0};
	uint64_t staged;
	struct rig rig;

	module_new(&module);
	first_life(big_model(), &staged);
	begin(&rig);
	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), i);
	spoil(&rig.plan[0]->parts[1].key);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	/* They do share frames: the second load finds all of them. */
	load(&rig, 1, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	CU_ASSERT_EQUAL(rig.moved, 0);
	CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 1), 0);
	ctn_pager_use(rig.pager, 0);
	verify_all(&rig);
	CU_ASSERT_TRUE(ctn_pager_failing(rig.pager, 0));
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "wrong"));
	ctn_pager_unuse(rig.pager, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.failed[0], 1);
	expect_empty_device(&rig);
	load(&rig, 1, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[1], 2);
	CU_ASSERT_EQUAL(rig.staged, run_bytes(&rig, 1));
	rig_close(&rig);
	module_free(&module);
}

/* Frames of the right key that somebody sealed otherwise. */
static void test_frames_that_do_not_fit(void)
{
	struct ctn_err err = {0};
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct rig rig;
	uint32_t n;

	module_new(&module);
	begin(&rig);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	for (uint32_t i = 0; i < 2; i++) {
		const struct ctn_part *part = &rig.plan[0]->parts[i];

		/* One is too short; what the bytes of the other are nobody says. */
		CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(rig.pool, &part->key,
						     i ? part->frame_bytes : CTN_MIB, -1, &ref),
				      0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(rig.pool, ref, &extents, &n), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_commit(rig.pool, extents, n), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_seal(rig.pool, ref, NULL, NULL), 0);
		ctn_pool_release(rig.pool, ref);
	}
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_OFF);
	CU_ASSERT_EQUAL(adoption(&rig).frames, 0);
	CU_ASSERT_EQUAL(adoption(&rig).unfit, 2);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	rig_close(&rig);
	module_free(&module);
}

/* Frames of models that are not served any more make room, and sched is not asked. */
static void test_strangers_make_room(void)
{
	const uint64_t bytes = 4 * CTN_MIB;
	struct ctn_err err = {0};
	struct ctn_pool_stats s;
	struct rig rig;

	module_new(&module);
	begin(&rig);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	for (unsigned int i = 0; i < POOL_BYTES / bytes; i++)
		ctn_test_clean(rig.pool, 1000 + i, bytes);
	ctn_pool_get_stats(rig.pool, false, &s);
	CU_ASSERT_EQUAL(s.free_bytes, 0);
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BACKGROUND);
	CU_ASSERT_EQUAL(adoption(&rig).frames, 0);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.host_needs, 0);
	/* No more of them than had to go. */
	ctn_pool_get_stats(rig.pool, false, &s);
	CU_ASSERT(s.frames > rig.plan[0]->part_count);
	rig_close(&rig);
	module_free(&module);
}

static void test_frames_that_go_while_they_wait(void)
{
	struct ctn_err err = {0};
	uint64_t staged;
	struct rig rig;

	module_new(&module);
	NEEDS_FAKE(&module);
	first_life(big_model(), &staged);
	begin(&rig);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, big_model(), 1, 1, &err), 0);
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BEFORE);
	/* All but the first, which is being hashed. */
	CU_ASSERT_EQUAL(fake_kmod_reclaim(module.fake, POOL_NAME, 100),
			rig.plan[0]->part_count - 1);
	load(&rig, 0, 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.staged, staged - run_bytes(&rig, 0));
	CU_ASSERT_EQUAL(adoption(&rig).verified, 1);
	CU_ASSERT_EQUAL(adoption(&rig).lost, rig.plan[0]->part_count - 1);
	rig_close(&rig);
	module_free(&module);
}

static void test_it_can_be_stopped(void)
{
	uint64_t staged;
	struct rig rig;

	second_life(&rig, &staged);
	ctn_pager_adopt(rig.pager, CTN_PAGER_VERIFY_BACKGROUND);
	ctn_pager_stop_adoption(rig.pager);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(adoption(&rig).waiting, 0);
	rig_close(&rig);
	module_free(&module);
}

CTN_TESTS("pager_kmod", CTN_TEST(test_what_was_staged_is_not_staged_again),
	  CTN_TEST(test_spoiled_frames_are_staged_again),
	  CTN_TEST(test_a_load_from_a_spoiled_frame_fails),
	  CTN_TEST(test_a_resident_model_of_a_spoiled_frame_fails),
	  CTN_TEST(test_nobody_joins_a_spoiled_device_frame), CTN_TEST(test_frames_that_do_not_fit),
	  CTN_TEST(test_strangers_make_room), CTN_TEST(test_frames_that_go_while_they_wait),
	  CTN_TEST(test_it_can_be_stopped))
