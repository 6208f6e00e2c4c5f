// SPDX-License-Identifier: MIT
/* An engine whose pool outlives it: right texts without reading, and after wrong bytes. */
#include "kmod_fixture.h"
#include "engine_fixture.h"

#include <sys/mman.h>

#define POOL_BYTES (32 * CTN_MIB)

static void begin(struct rig *rig, const struct module *m, enum ctn_pager_verify verify)
{
	struct ctn_engine_config cfg = {.adopt_verify = verify};

	rig_open_over(rig, "host,mem=64M", module_pool(m, POOL_BYTES, 0), 1, 1, cfg);
	rig_start(rig);
}

static void expect_golden(struct rig *rig)
{
	for (uint32_t i = 0; i < MODELS; i++)
		CU_ASSERT_TRUE(matches(rig, i, 1, 13));
}

static struct ctn_snapshot snapshot(struct rig *rig)
{
	struct ctn_snapshot snap;

	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig->engine, &snap), 0);
	return snap;
}

static uint64_t staged(struct rig *rig)
{
	struct ctn_snapshot snap = snapshot(rig);
	uint64_t n = 0;

	for (uint32_t i = 0; i < snap.model_count; i++)
		n += snap.models[i].bytes_staged;
	ctn_snapshot_free(&snap);
	return n;
}

/* Waits until every digest was made; returns what they said. */
static struct ctn_pager_adoption adopted(struct rig *rig)
{
	struct ctn_pager_adoption a;
	uint64_t end = ctn_now_ns() + 20 * CTN_NSEC_PER_SEC;

	do {
		struct ctn_snapshot snap = snapshot(rig);

		a = snap.adoption;
		ctn_snapshot_free(&snap);
		usleep(5000);
	} while (a.waiting && ctn_now_ns() < end);
	return a;
}

/* Turns bits in the middle of every frame. */
static uint32_t spoil_all(const struct module *m)
{
	struct ctn_pool *pool = module_pool(m, POOL_BYTES, 0);
	struct ctn_frame_info infos[64];
	size_t n = ctn_pool_list(pool, infos, 64);

	CU_ASSERT_FATAL(n > 0 && n <= 64);
	for (size_t i = 0; i < n; i++) {
		const struct ctn_extent *extents;
		uint8_t *page;
		uint32_t count;

		CU_ASSERT_EQUAL_FATAL(ctn_pool_lease(pool, infos[i].ref), 0);
		CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, infos[i].ref, &extents, &count), 0);
		page = extents[0].addr + infos[i].bytes / 2 / 4096 * 4096;
		CU_ASSERT_EQUAL_FATAL(mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
		for (uint32_t k = 0; k < 4096; k++)
			page[k] ^= 0x40;
		mprotect(page, 4096, PROT_READ);
		ctn_pool_release(pool, infos[i].ref);
	}
	ctn_pool_close(pool);
	return (uint32_t)n;
}

static void test_nothing_is_read_again(void)
{
	struct module m;
	struct rig rig;

	module_new(&m);
	begin(&rig, &m, CTN_PAGER_VERIFY_BACKGROUND);
	expect_golden(&rig);
	CU_ASSERT(staged(&rig) > 0);
	rig_close(&rig);
	for (int i = 0; i < 3; i++) {
		begin(&rig, &m, (enum ctn_pager_verify)i);
		expect_golden(&rig);
		CU_ASSERT_EQUAL(staged(&rig), 0);
		CU_ASSERT_EQUAL(adopted(&rig).spoiled, 0);
		expect_clean_books(&rig);
		rig_close(&rig);
	}
	module_free(&m);
}

static void test_wrong_bytes_before_their_first_use(void)
{
	struct module m;
	struct rig rig;
	uint32_t n;

	module_new(&m);
	begin(&rig, &m, CTN_PAGER_VERIFY_OFF);
	expect_golden(&rig);
	rig_close(&rig);
	n = spoil_all(&m);
	begin(&rig, &m, CTN_PAGER_VERIFY_BEFORE);
	expect_golden(&rig);
	CU_ASSERT_EQUAL(adopted(&rig).spoiled, n);
	rig_close(&rig);
	module_free(&m);
}

/* Requests run on them at first: they fail or have said what they said; afterwards all is right. */
static void test_wrong_bytes_in_the_background(void)
{
	struct ctn_request *reqs[2 * MODELS];
	struct ctn_sample tokens[512];
	struct ctn_request_result result;
	struct module m;
	struct rig rig;
	uint32_t n;

	module_new(&m);
	begin(&rig, &m, CTN_PAGER_VERIFY_OFF);
	expect_golden(&rig);
	rig_close(&rig);
	n = spoil_all(&m);
	begin(&rig, &m, CTN_PAGER_VERIFY_BACKGROUND);
	for (uint32_t i = 0; i < 2 * MODELS; i++)
		reqs[i] = submit(&rig, i % MODELS, rig.golden[i % MODELS].ids, 1, 40);
	for (uint32_t i = 0; i < 2 * MODELS; i++) {
		collect(reqs[i], tokens, 512, &result);
		if (result.finish == CTN_FINISH_ERROR)
			CU_ASSERT_EQUAL(result.err.code, -EBADMSG);
		ctn_request_release(reqs[i]);
	}
	CU_ASSERT_EQUAL(adopted(&rig).spoiled, n);
	expect_golden(&rig);
	expect_clean_books(&rig);
	rig_close(&rig);
	module_free(&m);
}

CTN_TESTS("engine_kmod", CTN_TEST(test_nothing_is_read_again),
	  CTN_TEST(test_wrong_bytes_before_their_first_use),
	  CTN_TEST(test_wrong_bytes_in_the_background))
