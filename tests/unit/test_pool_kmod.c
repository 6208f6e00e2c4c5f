// SPDX-License-Identifier: MIT
/* The provider of a pool that a kernel module keeps: frames, and what other processes do to them.
 */
#include "test.h"
#include "kmod_fixture.h"
#include "pool_books.h"

#include <poll.h>

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

/* A CLEAN frame whose bytes tell where they are: leased. */
static struct ctn_frame_ref written(struct ctn_pool *pool, unsigned int n, uint64_t bytes)
{
	const struct ctn_digest digest = {{(uint8_t)n, 1}};
	const uint8_t owner[CTN_OWNER_DATA] = "layout";
	struct ctn_frame_key key = ctn_test_key(n);
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	uint32_t count, value = n << 16;

	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, bytes, -1, &ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_commit(pool, extents, count), 0);
	for (uint32_t i = 0; i < count; i++) {
		for (uint64_t at = 0; at < extents[i].bytes; at += 4096)
			memcpy(extents[i].addr + at, &value, sizeof(value)), value++;
	}
	CU_ASSERT_EQUAL_FATAL(ctn_pool_seal(pool, ref, &digest, owner), 0);
	return ref;
}

static bool holds(struct ctn_pool *pool, struct ctn_frame_ref ref, unsigned int n)
{
	const struct ctn_extent *extents;
	uint32_t count, value = n << 16;

	if (ctn_pool_extents(pool, ref, &extents, &count) != 0)
		return false;
	for (uint32_t i = 0; i < count; i++) {
		for (uint64_t at = 0; at < extents[i].bytes; at += 4096, value++) {
			if (memcmp(extents[i].addr + at, &value, sizeof(value)) != 0)
				return false;
		}
	}
	return true;
}

static void test_life_of_a_frame(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	const struct ctn_extent *extents;
	struct ctn_frame_info info;
	struct ctn_frame_ref ref, again;
	struct ctn_pool *pool;
	struct module m;
	uint32_t count;

	module_new(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 0, 0, 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 0, -1, &ref), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 16 * CTN_MIB + 1, -1, &ref), -EFBIG);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &ref), 0);
	ctn_test_books(pool, 16 * CTN_MIB, 4 * CTN_MIB, 0, 0, 1);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &again), -EEXIST);
	CU_ASSERT_EQUAL(again.generation, ref.generation);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	CU_ASSERT_EQUAL(info.state, CTN_FRAME_LOADING);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), -EBUSY);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL_FATAL(count, 1);
	CU_ASSERT_EQUAL(extents[0].bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL((uintptr_t)extents[0].addr % CTN_EXTENT_ALIGN, 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), -ESTALE);

	ref = written(pool, 1, 3 * CTN_MIB);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 4 * CTN_MIB, 4 * CTN_MIB, 1);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	CU_ASSERT_EQUAL(info.state, CTN_FRAME_CLEAN);
	CU_ASSERT_EQUAL(info.bytes, 3 * CTN_MIB);
	CU_ASSERT_EQUAL(info.charged, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(info.leases, 1);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -EBUSY);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_extents(pool, ref, &extents, &count), -ESTALE);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_frames_outlive_whoever_filled_them(void)
{
	const struct ctn_digest digest = {{7, 1}};
	const uint8_t owner[CTN_OWNER_DATA] = "layout", other[CTN_OWNER_DATA] = "other";
	struct ctn_frame_key key = ctn_test_key(7), gone = ctn_test_key(8);
	struct ctn_frame_info info, infos[4];
	struct ctn_frame_ref ref, loading;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	ref = written(pool, 7, 11 * CTN_MIB);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &gone, CTN_MIB, -1, &loading), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, loading), 0);
	ctn_pool_close(pool);

	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	ctn_test_books(pool, 24 * CTN_MIB, 0, 12 * CTN_MIB, 0, 1);
	CU_ASSERT_EQUAL(ctn_pool_list(pool, infos, 4), 1);
	CU_ASSERT_EQUAL(memcmp(&infos[0].key, &key, sizeof(key)), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lookup(pool, &key, &info), 0);
	CU_ASSERT_EQUAL(info.state, CTN_FRAME_CLEAN);
	CU_ASSERT_EQUAL(info.ref.id, ref.id);
	CU_ASSERT_EQUAL(info.ref.generation, ref.generation);
	CU_ASSERT_EQUAL(info.bytes, 11 * CTN_MIB);
	CU_ASSERT_TRUE(info.has_digest);
	CU_ASSERT_EQUAL(memcmp(&info.digest, &digest, sizeof(digest)), 0);
	CU_ASSERT_EQUAL(memcmp(info.owner, owner, sizeof(owner)), 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup_content(pool, &digest, owner, &info), 0);
	CU_ASSERT_EQUAL(info.ref.generation, ref.generation);
	CU_ASSERT_EQUAL(ctn_pool_lookup_content(pool, &digest, other, &info), -ENOENT);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &gone, &info), -ENOENT);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lease(pool, ref), 0);
	CU_ASSERT_TRUE(holds(pool, ref, 7));
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	/* What was counted before us is not ours. */
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.evictions, 1);
	ctn_pool_close(pool);
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.evictions, 0);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_a_frame_of_many_extents(void)
{
	struct ctn_frame_ref small[12], ref;
	const struct ctn_extent *extents;
	struct ctn_pool *pool;
	uint64_t bytes = 0;
	struct module m;
	uint32_t count;

	module_new(&m);
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	for (unsigned int i = 0; i < 12; i++)
		small[i] = ctn_test_clean(pool, 100 + i, CTN_EXTENT_ALIGN);
	for (unsigned int i = 0; i < 12; i += 2)
		CU_ASSERT_EQUAL(ctn_pool_evict(pool, small[i]), 0);
	ref = written(pool, 3, 12 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL(count, 6);
	for (uint32_t i = 0; i < count; i++) {
		struct ctn_segment seg;

		ctn_pool_segment(pool, extents[i].segment, &seg);
		CU_ASSERT_EQUAL(extents[i].addr, seg.addr + extents[i].segment_offset);
		CU_ASSERT(extents[i].segment_offset + extents[i].bytes <= seg.bytes);
		bytes += extents[i].bytes;
	}
	CU_ASSERT_EQUAL(bytes, 12 * CTN_MIB);
	ctn_pool_release(pool, ref);
	ctn_pool_close(pool);
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_lease(pool, ref), 0);
	CU_ASSERT_TRUE(holds(pool, ref, 3));
	ctn_pool_release(pool, ref);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_room(void)
{
	struct ctn_frame_key key = ctn_test_key(50);
	struct ctn_frame_ref ref, refs[4];
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	/* The odd bytes are not used. */
	pool = module_pool(&m, 9 * CTN_MIB, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_segment_count(pool), 2);
	for (unsigned int i = 0; i < 4; i++)
		refs[i] = ctn_test_clean(pool, i, CTN_EXTENT_ALIGN);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 1, -1, &ref), -ENOSPC);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, refs[2]), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &ref), -ENOSPC);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 1, -1, &ref), 0);
	CU_ASSERT_EQUAL(ref.id, refs[2].id);
	CU_ASSERT_NOT_EQUAL(ref.generation, refs[2].generation);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, refs[2]), -ESTALE);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 6 * CTN_MIB, 0, 3);
	ctn_pool_close(pool);
	module_free(&m);
}

/* ---- other processes --------------------------------------------------------------------- */

static void test_what_others_load_is_not_there(void)
{
	struct computron_frame_alloc a = {.flags = COMPUTRON_ALLOC_RESERVE, .bytes = 3 * CTN_MIB};
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_frame_info info;
	struct ctn_pool_stats s;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	struct module m;
	int other;

	module_new(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	other = module_other(&m);
	memcpy(a.key, key.bytes, sizeof(a.key));
	CU_ASSERT_EQUAL_FATAL(MODULE_CALL(&m, other, COMPUTRON_IOC_FRAME_ALLOC, &a), 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	CU_ASSERT_EQUAL(ctn_pool_list(pool, NULL, 0), 0);
	/* Nobody would tell us when it is there: not to be waited for. */
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &ref), -EBUSY);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.loading_bytes, 0);
	CU_ASSERT_EQUAL(s.held_bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(s.free_bytes, 12 * CTN_MIB);
	/* It is killed. */
	m.sys->close(m.sys->ctx, other);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 3 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_test_books(pool, 16 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_losses_are_told(void)
{
	struct computron_frame_op op = {0};
	struct ctn_frame_ref refs[3], lost;
	struct ctn_frame_key key;
	struct ctn_frame_info info;
	struct ctn_pool *pool;
	struct module m;
	int other;

	module_new(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	for (unsigned int i = 0; i < 3; i++)
		refs[i] = ctn_test_clean(pool, i, CTN_MIB);
	other = module_other(&m);
	CU_ASSERT_TRUE_FATAL(ctn_pool_event_fd(pool) >= 0);
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	CU_ASSERT_FALSE(ctn_pool_next_loss(pool, &lost));
	/* By ourselves: no news. */
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, refs[0]), 0);
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	/* A lease keeps a frame, whoever holds it. */
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, refs[1]), 0);
	op.ref.id = refs[1].id;
	op.ref.generation = refs[1].generation;
	CU_ASSERT_EQUAL(MODULE_CALL(&m, other, COMPUTRON_IOC_FRAME_EVICT, &op), -EBUSY);
	ctn_pool_release(pool, refs[1]);
	CU_ASSERT_EQUAL(MODULE_CALL(&m, other, COMPUTRON_IOC_FRAME_LEASE, &op), 0);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, refs[1]), -EBUSY);
	CU_ASSERT_EQUAL(MODULE_CALL(&m, other, COMPUTRON_IOC_FRAME_RELEASE, &op), 0);
	/* By another. */
	CU_ASSERT_EQUAL(MODULE_CALL(&m, other, COMPUTRON_IOC_FRAME_EVICT, &op), 0);
	CU_ASSERT_TRUE(readable(ctn_pool_event_fd(pool)));
	CU_ASSERT_TRUE(ctn_pool_next_loss(pool, &lost));
	CU_ASSERT_EQUAL(lost.id, refs[1].id);
	CU_ASSERT_EQUAL(lost.generation, refs[1].generation);
	CU_ASSERT_FALSE(ctn_pool_next_loss(pool, &lost));
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	key = ctn_test_key(1);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, refs[1]), -ESTALE);
	ctn_test_books(pool, 16 * CTN_MIB, 0, CTN_EXTENT_ALIGN, 0, 1);
	m.sys->close(m.sys->ctx, other);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_two_on_one_pool(void)
{
	struct ctn_frame_key key = ctn_test_key(5);
	struct ctn_pool *a, *b;
	struct ctn_frame_info info;
	struct ctn_frame_ref ref, lost;
	struct module m;

	module_new(&m);
	a = module_pool(&m, 16 * CTN_MIB, 0);
	b = module_pool(&m, 16 * CTN_MIB, 0);
	ref = written(a, 5, 5 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_lookup(b, &key, &info), 0);
	CU_ASSERT_EQUAL(ctn_pool_lease(b, info.ref), 0);
	CU_ASSERT_TRUE(holds(b, info.ref, 5));
	CU_ASSERT_EQUAL(ctn_pool_lookup(a, &key, &info), 0);
	CU_ASSERT_EQUAL(info.leases, 2);
	ctn_pool_release(a, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(a, ref), -EBUSY);
	ctn_pool_release(b, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(b, ref), 0);
	CU_ASSERT_TRUE(ctn_pool_next_loss(a, &lost));
	CU_ASSERT_EQUAL(lost.generation, ref.generation);
	CU_ASSERT_FALSE(ctn_pool_next_loss(b, &lost));
	ctn_pool_close(b);
	ctn_pool_close(a);
	module_free(&m);
}

/* ---- memory is short ---------------------------------------------------------------------- */

static void test_the_kernel_takes_frames(void)
{
	struct ctn_pool_config cfg;
	struct ctn_frame_key key = ctn_test_key(90);
	struct ctn_frame_ref refs[5], loading, lost;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	unsigned int told = 0;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	cfg = module_config(&m, 24 * CTN_MIB, 0);
	cfg.floor_bytes = 4 * CTN_MIB;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	for (unsigned int i = 0; i < 5; i++)
		refs[i] = ctn_test_clean(pool, i, CTN_EXTENT_ALIGN);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, refs[0]), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, CTN_MIB, -1, &loading), 0);
	CU_ASSERT_EQUAL(fake_kmod_reclaim(m.fake, POOL_NAME, 100), 3);
	while (ctn_pool_next_loss(pool, &lost))
		told += lost.generation != refs[0].generation &&
			lost.generation != loading.generation;
	CU_ASSERT_EQUAL(told, 3);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.losses, 3);
	CU_ASSERT_EQUAL(s.evictions, 0);
	ctn_test_books(pool, 24 * CTN_MIB, CTN_EXTENT_ALIGN, 2 * CTN_EXTENT_ALIGN, CTN_EXTENT_ALIGN,
		       3);
	ctn_pool_release(pool, refs[0]);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, loading), 0);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_more_losses_than_the_kernel_keeps(void)
{
	struct ctn_frame_ref lost;
	struct ctn_pool *pool;
	unsigned int told = 0;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	for (unsigned int i = 0; i < COMPUTRON_EVENTS + 6; i++) {
		ctn_test_clean(pool, i, CTN_MIB);
		CU_ASSERT_EQUAL(fake_kmod_reclaim(m.fake, POOL_NAME, 1), 1);
	}
	while (ctn_pool_next_loss(pool, &lost))
		told++;
	CU_ASSERT_EQUAL(told, COMPUTRON_EVENTS);
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	ctn_pool_close(pool);
	module_free(&m);
}

/* Frames go between the two counts: the sums still are of one moment. */
static void test_counts_while_frames_go(void)
{
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	pool = module_pool(&m, 32 * CTN_MIB, 0);
	for (unsigned int i = 0; i < 7; i++)
		ctn_test_clean(pool, i, CTN_MIB);
	fake_kmod_faults(m.fake)->reclaim_in_stat = true;
	ctn_pool_get_stats(pool, false, &s);
	fake_kmod_faults(m.fake)->reclaim_in_stat = false;
	CU_ASSERT(s.frames < 7);
	CU_ASSERT_EQUAL(s.free_bytes + s.clean_bytes + s.loading_bytes + s.held_bytes,
			s.total_bytes);
	CU_ASSERT_EQUAL(s.clean_bytes, s.frames * CTN_EXTENT_ALIGN);
	ctn_pool_close(pool);
	module_free(&m);
}

/* What is given up while a device may still write to it is charged until that has ended. */
static void test_quarantine(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_pool_stats s;
	struct ctn_frame_ref ref, again;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	pool = module_pool(&m, 8 * CTN_MIB, 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 4 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), 0);
	fake_kmod_pin(m.fake, POOL_NAME, ref.id, true);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.held_bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(s.free_bytes, 4 * CTN_MIB);
	CU_ASSERT_EQUAL(s.frames, 0);
	/* Its key is free. */
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 4 * CTN_MIB, -1, &again), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, again), 0);
	fake_kmod_pin(m.fake, POOL_NAME, ref.id, false);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_random_operations(void)
{
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	pool = module_pool(&m, 96 * CTN_MIB, 16 * CTN_MIB);
	ctn_test_random_operations(pool, 96 * CTN_MIB);
	ctn_pool_close(pool);
	module_free(&m);
}

CTN_TESTS("pool_kmod", CTN_TEST(test_life_of_a_frame),
	  CTN_TEST(test_frames_outlive_whoever_filled_them), CTN_TEST(test_a_frame_of_many_extents),
	  CTN_TEST(test_room), CTN_TEST(test_what_others_load_is_not_there),
	  CTN_TEST(test_losses_are_told), CTN_TEST(test_two_on_one_pool),
	  CTN_TEST(test_the_kernel_takes_frames), CTN_TEST(test_more_losses_than_the_kernel_keeps),
	  CTN_TEST(test_counts_while_frames_go), CTN_TEST(test_quarantine),
	  CTN_TEST(test_random_operations))
