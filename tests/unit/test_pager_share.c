// SPDX-License-Identifier: MIT
/* Equal bytes become one frame: unread by the manifests, or by comparing what was staged. */
#include "tuned_fixture.h"

#include <errno.h>

/* ---- by the manifests -------------------------------------------------------------------- */

static void test_a_tuned_model_shares_the_rest_unread(void)
{
	static const char *const providers[] = {"plain", "lossy"};
	char *dir = big_folder(), *tuned;

	write_manifest(dir);
	tuned = tuned_folder(dir, 5);
	write_manifest(tuned);
	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		struct ctn_pager_model_stats stats;
		uint64_t read, charged, alone, host[MAX_MODELS];
		struct ctn_err err = {0};
		struct rig rig;

		rig_open(&rig, "host,mem=512M", providers[i], 128 * CTN_MIB);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 2, 1, &err), 1);
		differing(rig.plan[0], rig.plan[1], &read, &charged);
		CU_ASSERT(read > 0 && read < rig.ckpt[1]->bytes / 2);
		load_and_drop(&rig, 0, true);
		alone = clean_bytes(&rig);
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT(stats.host_bytes > 0 && stats.host_bytes < stats.host_total);
		load_and_drop(&rig, 1, true);
		CU_ASSERT_EQUAL(rig.staged, read);
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT_EQUAL(rig.moved, stats.device_total);
		CU_ASSERT_EQUAL(clean_bytes(&rig), alone + charged);
		for (uint32_t m = 0; m < 2; m++) {
			ctn_pager_model_stats(rig.pager, m, &stats);
			CU_ASSERT_EQUAL(stats.host_bytes, stats.host_total);
		}
		/* Each frame could be freed once, for one of the two. */
		ctn_pager_host_evictable(rig.pager, host);
		CU_ASSERT_EQUAL(host[0] + host[1], alone + charged);
		CU_ASSERT_EQUAL(host[1], charged);
		CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
		/* Without the frames of the other it reads its own, which the other shares then. */
		CU_ASSERT_EQUAL(ctn_pager_drop_host(rig.pager, 0, UINT64_MAX), alone);
		load_and_drop(&rig, 1, true);
		CU_ASSERT(rig.staged > rig.ckpt[1]->bytes / 2);
		load_and_drop(&rig, 0, true);
		CU_ASSERT_EQUAL(rig.staged, read);
		rig_close(&rig);
	}
	free(tuned);
	free(dir);
}

static void test_equal_parts_on_their_way_are_awaited(void)
{
	struct ctn_pager_move_stats moves;
	struct ctn_err err = {0};
	uint64_t read, charged, all;
	char *dir, *tuned;
	struct rig rig;

	rig_open_tuned(&rig, &dir, &tuned);
	differing(rig.plan[0], rig.plan[1], &read, &charged);
	all = model_bytes(rig.plan[0]);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0], 1);
	CU_ASSERT_EQUAL(rig.loaded[1], 1);
	ctn_pager_move_stats(rig.pager, CTN_PAGER_STAGE, &moves);
	CU_ASSERT_EQUAL(moves.bytes, all + read);
	rig_close(&rig);
	free(tuned);
	free(dir);
}

/* Equal bytes at other places in the frame: the digest is the same, the frame is of no use. */
static void test_another_layout_is_not_shared(void)
{
	struct gen_model odd = big;
	char *dir = big_folder(), *other;
	struct ctn_err err = {0};
	struct rig rig;

	write_manifest(dir);
	odd.odd = 64;
	other = copy_folder(gen_write(&odd));
	write_manifest(other);
	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, other, 1, 1, &err), 1);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++)
		CU_ASSERT_EQUAL(memcmp(&rig.plan[0]->parts[i].digest, &rig.plan[1]->parts[i].digest,
				       sizeof(struct ctn_digest)),
				0);
	load_and_drop(&rig, 0, true);
	load_and_drop(&rig, 1, true);
	CU_ASSERT(rig.staged >= rig.ckpt[1]->bytes);
	rig_close(&rig);
	free(other);
	free(dir);
}

/* ---- by comparing ------------------------------------------------------------------------ */

static uint64_t all_file_bytes(const struct ctn_plan *plan)
{
	uint64_t all = 0;

	for (uint32_t i = 0; i < plan->part_count; i++)
		all += file_bytes(plan, i);
	return all;
}

static void test_what_was_staged_gives_way_to_what_is_there(void)
{
	static const char *const providers[] = {"plain", "lossy"};
	char *dir = big_folder(), *tuned = tuned_folder(dir, 5);

	for (size_t i = 0; i < CTN_ARRAY_LEN(providers); i++) {
		struct ctn_pager_model_stats stats;
		uint64_t read, charged, alone;
		struct ctn_err err = {0};
		struct rig rig;

		rig_open(&rig, "host,mem=512M", providers[i], 128 * CTN_MIB);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
		CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 2, 1, &err), 1);
		differing(rig.plan[0], rig.plan[1], &read, &charged);
		load_and_drop(&rig, 0, true);
		alone = clean_bytes(&rig);
		load_and_drop(&rig, 1, true);
		CU_ASSERT_EQUAL(rig.staged, all_file_bytes(rig.plan[1]));
		CU_ASSERT_EQUAL(clean_bytes(&rig), alone + charged);
		CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
		/* What was found to be equal is so for as long as that frame is there. */
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT_EQUAL(stats.host_bytes, stats.host_total);
		load_and_drop(&rig, 1, true);
		CU_ASSERT_EQUAL(rig.staged, 0);
		/* Then it is read again, and the other finds it. */
		CU_ASSERT_EQUAL(ctn_pager_drop_host(rig.pager, 0, UINT64_MAX), alone);
		ctn_pager_model_stats(rig.pager, 1, &stats);
		CU_ASSERT(stats.host_bytes < stats.host_total / 2);
		load_and_drop(&rig, 1, true);
		CU_ASSERT(rig.staged > rig.ckpt[1]->bytes / 2);
		load_and_drop(&rig, 0, true);
		CU_ASSERT_EQUAL(clean_bytes(&rig), alone + charged);
		rig_close(&rig);
	}
	free(tuned);
	free(dir);
}

static void test_of_two_that_come_together_one_gives_way(void)
{
	char *dir = big_folder(), *tuned = tuned_folder(dir, 5);
	uint64_t read, charged, alone = 0;
	struct ctn_err err = {0};
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 1, 1, &err), 1);
	differing(rig.plan[0], rig.plan[1], &read, &charged);
	for (uint32_t i = 0; i < rig.plan[0]->part_count; i++)
		alone += ctn_align_up(rig.plan[0]->parts[i].frame_bytes, CTN_EXTENT_ALIGN);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 0, 1, &err), 0);
	CU_ASSERT_EQUAL(ctn_pager_load(rig.pager, 1, 2, &err), 0);
	CU_ASSERT_FATAL(settle(&rig));
	CU_ASSERT_EQUAL(rig.loaded[0] + rig.loaded[1], 2);
	CU_ASSERT_EQUAL(clean_bytes(&rig), alone + charged);
	rig_close(&rig);
	free(tuned);
	free(dir);
}

/* A frame that says of itself what the part's says, by digest and layout, and holds other bytes:
 * as if two contents had one digest. */
static void put_impostor(struct rig *rig, const struct ctn_frame_info *of)
{
	const struct ctn_frame_key key = {{0xee}};
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	uint32_t count;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(rig->pool, &key, of->bytes, -1, &ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(rig->pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_commit(rig->pool, extents, count), 0);
	for (uint32_t i = 0; i < count; i++)
		memset(extents[i].addr, 0x5a, extents[i].bytes);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_seal(rig->pool, ref, &of->digest, of->owner), 0);
	ctn_pool_release(rig->pool, ref);
}

static void test_one_digest_is_not_enough(void)
{
	struct ctn_err err = {0};
	struct ctn_frame_info info;
	char *dir = big_folder();
	uint64_t alone;
	struct rig rig;

	rig_open(&rig, "host,mem=256M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	load_and_drop(&rig, 0, true);
	alone = clean_bytes(&rig);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(rig.pool, &rig.plan[0]->parts[0].key, &info), 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(rig.pool, info.ref), 0);
	put_impostor(&rig, &info);
	load_and_drop(&rig, 0, true);
	CU_ASSERT_EQUAL(rig.staged, file_bytes(rig.plan[0], 0));
	CU_ASSERT_EQUAL(clean_bytes(&rig), alone + info.charged);
	CU_ASSERT_EQUAL(ctn_pool_lookup(rig.pool, &rig.plan[0]->parts[0].key, &info), 0);
	rig_close(&rig);
	free(dir);
}

/* At any moment, also while it compares. */
static void test_cancelled_while_it_shares(void)
{
	char *dir = big_folder(), *tuned = tuned_folder(dir, 5);
	struct ctn_err err = {0};
	uint32_t ended = 0;
	struct rig rig;

	rig_open(&rig, "host,mem=512M", "plain", 128 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, dir, 1, 1, &err), 0);
	CU_ASSERT_EQUAL_FATAL(rig_add(&rig, tuned, 1, 1, &err), 1);
	load_and_drop(&rig, 0, true);
	for (uint32_t i = 0; i < 40; i++) {
		ctn_pager_drop_host(rig.pager, 1, UINT64_MAX);
		CU_ASSERT_EQUAL_FATAL(ctn_pager_load(rig.pager, 1, 1, &err), 0);
		for (uint32_t k = 0; k < i; k++) {
			struct pollfd pfd = {.fd = ctn_pager_fd(rig.pager), .events = POLLIN};

			if (poll(&pfd, 1, 1) > 0)
				ctn_pager_dispatch(rig.pager);
		}
		ctn_pager_cancel(rig.pager, 1);
		CU_ASSERT_FATAL(settle(&rig));
		CU_ASSERT_EQUAL(rig.loaded[1] + rig.failed[1], ++ended);
		CU_ASSERT_EQUAL(ctn_pager_drop(rig.pager, 1), 0);
		CU_ASSERT_EQUAL(ctn_pager_check(rig.pager, &err), 0);
	}
	load_and_drop(&rig, 1, true);
	rig_close(&rig);
	free(tuned);
	free(dir);
}

CTN_TESTS("pager_share", CTN_TEST(test_a_tuned_model_shares_the_rest_unread),
	  CTN_TEST(test_equal_parts_on_their_way_are_awaited),
	  CTN_TEST(test_another_layout_is_not_shared),
	  CTN_TEST(test_what_was_staged_gives_way_to_what_is_there),
	  CTN_TEST(test_of_two_that_come_together_one_gives_way),
	  CTN_TEST(test_one_digest_is_not_enough), CTN_TEST(test_cancelled_while_it_shares))
