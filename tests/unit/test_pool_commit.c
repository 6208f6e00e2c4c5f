// SPDX-License-Identifier: MIT
/* Committing frames and pinning segments, and that nobody waits for it. A call that did would
 * wait for ever here: the gate opens when the calls have returned. */
#include "test.h"
#include "pool_fixture.h"
#include "populate_gate.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Whether the kernel may write there for us; the byte becomes 0. */
static bool writable(uint8_t *addr)
{
	int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, addr, 1);

	close(fd);
	return n == 1;
}

static struct ctn_frame_ref loading(struct ctn_pool *pool, unsigned int n, uint64_t bytes,
				    const struct ctn_extent **extents, uint32_t *count)
{
	struct ctn_frame_key key = ctn_test_key(n);
	struct ctn_frame_ref ref = {0, 0};

	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, bytes, -1, &ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, extents, count), 0);
	return ref;
}

static void test_alloc_touches_nothing(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 64 * CTN_GIB, 0, true);
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;
	uint32_t count;

	populate_gate_take();
	ref = loading(pool, 1, 63 * CTN_GIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	/* Not even poison. */
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 0);
	CU_ASSERT_EQUAL(populate_gate_take(), 0);
	ctn_pool_close(pool);
}

/* What has memory is not asked for again: neither for a frame, nor for its segment. */
static void test_commit_asks_once(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 16 * CTN_MIB, 8 * CTN_MIB, false);
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	uint32_t count;

	populate_gate_take();
	ref = loading(pool, 1, 10 * CTN_MIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	CU_ASSERT_EQUAL(populate_gate_take(), 10 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	CU_ASSERT_EQUAL(populate_gate_take(), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ref = loading(pool, 2, 16 * CTN_MIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	CU_ASSERT_EQUAL(populate_gate_take(), 6 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_close(pool);
}

static void test_commit_of_what_is_not_loading(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	const struct ctn_extent *extents;
	struct ctn_extent copy;
	uint32_t count;

	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), -EINVAL);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, 0), -EINVAL);
	copy = extents[0];
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, &copy, 1), -ESTALE);
	copy.segment = 1;
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, &copy, 1), -EINVAL);
	ctn_pool_close(pool);
}

static void test_commit_without_memory(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, true);
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;
	uint32_t count;

	ref = loading(pool, 1, 6 * CTN_MIB, &extents, &count);
	populate_gate_set(false, -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	ctn_test_books(pool, 8 * CTN_MIB, 6 * CTN_MIB, 0, 0, 1);
	/* It can be had later. */
	populate_gate_set(false, 0);
	populate_gate_take();
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	CU_ASSERT_EQUAL(populate_gate_take(), 6 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	/* Or the frame is given up, unpoisoned: these 2 MiB have never had memory. */
	populate_gate_set(false, -ENOMEM);
	ref = loading(pool, 1, 8 * CTN_MIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 6 * CTN_MIB); /* by the poison of the frame before */
	populate_gate_set(false, 0);
	ctn_pool_close(pool);
}

/* ---- while a thread commits or pins ---------------------------------------------------- */

struct other {
	struct ctn_pool *pool;
	const struct ctn_extent *extents; /* of the frame to commit, or NULL to pin */
	uint32_t count;
	bool pin_waits; /* in the callback too */
	int rc;
	pthread_t thread;
};

static int pin_at_gate(void *arg, const struct ctn_segment *segment)
{
	struct other *o = arg;
	int rc = 0;

	if (o->pin_waits) {
		populate_gate_set(true, 0);
		ctn_populate(segment->addr, 0);
	}
	/* All of it: what had been CLEAN before, and what was sealed since. */
	for (uint64_t at = 0; rc == 0 && at < segment->bytes; at += CTN_EXTENT_ALIGN)
		rc = writable(segment->addr + at) ? 0 : -EFAULT;
	return rc;
}

static void *other_main(void *arg)
{
	struct other *o = arg;

	o->rc = o->extents ? ctn_pool_commit(o->pool, o->extents, o->count)
			   : ctn_pool_pin_segment(o->pool, 0, pin_at_gate, o);
	return NULL;
}

static void start_other(struct other *o)
{
	CU_ASSERT_EQUAL_FATAL(pthread_create(&o->thread, NULL, other_main, o), 0);
	populate_gate_await();
}

/* Every call that the engine makes, on CLEAN frames `ref` of key 1 and `victim`, and on a LOADING
 * one with memory, which is sealed. */
static void use_pool(struct ctn_pool *pool, struct ctn_frame_ref ref, struct ctn_frame_ref victim,
		     struct ctn_frame_ref to_seal)
{
	struct ctn_frame_key key = ctn_test_key(1), fresh = ctn_test_key(50);
	const struct ctn_extent *extents;
	struct ctn_frame_info info;
	struct ctn_frame_ref young;
	struct ctn_segment segment;
	struct ctn_pool_stats s;
	uint32_t count;

	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, victim), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &fresh, 4 * CTN_MIB, -1, &young), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, young), 0);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, to_seal, NULL, NULL), 0);
	ctn_pool_release(pool, to_seal);
	CU_ASSERT_TRUE(ctn_pool_list(pool, NULL, 0) >= 2);
	ctn_pool_segment(pool, 0, &segment);
	ctn_pool_set_hot(pool, 0, segment.hot);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_TRUE(populate_gate_occupied());
}

static void test_calls_while_a_frame_is_committed(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", CTN_GIB, 64 * CTN_MIB, false);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	struct ctn_frame_ref victim = ctn_test_clean(pool, 2, 4 * CTN_MIB), sealed, big;
	struct other o = {.pool = pool};
	const struct ctn_extent *extents;
	uint32_t count;

	sealed = loading(pool, 3, 4 * CTN_MIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	big = loading(pool, 4, 512 * CTN_MIB, &o.extents, &o.count);
	CU_ASSERT_TRUE(o.count >= 8);
	populate_gate_set(true, 0);
	start_other(&o);
	use_pool(pool, ref, victim, sealed);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, big, NULL, NULL), -EINVAL);
	populate_gate_set(false, 0);
	pthread_join(o.thread, NULL);
	CU_ASSERT_EQUAL(o.rc, 0);
	for (uint32_t i = 0; i < o.count; i++)
		CU_ASSERT_TRUE(writable(o.extents[i].addr));
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, big, NULL, NULL), 0);
	ctn_pool_release(pool, big);
	ctn_test_books(pool, CTN_GIB, 0, 520 * CTN_MIB, 0, 3);
	ctn_pool_close(pool);
}

/* One frame of each kind in the segment that is pinned, and free room. */
static void use_pinned(bool in_callback)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 64 * CTN_MIB, 32 * CTN_MIB, false);
	struct ctn_frame_ref ref, victim, sealed, open_one, late;
	const struct ctn_extent *clean, *gone, *extents, *still;
	struct other o = {.pool = pool, .pin_waits = in_callback};
	uint8_t *clean_addr, *gone_addr, *sealed_addr;
	uint32_t count;

	ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	victim = ctn_test_clean(pool, 2, 4 * CTN_MIB);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &clean, &count), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, victim, &gone, &count), 0);
	clean_addr = clean[0].addr;
	gone_addr = gone[0].addr;
	sealed = loading(pool, 3, 4 * CTN_MIB, &extents, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	sealed_addr = extents[0].addr;
	open_one = loading(pool, 4, 4 * CTN_MIB, &still, &count);
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, still, count), 0);
	CU_ASSERT_EQUAL(still[0].segment, 0);
	CU_ASSERT_EQUAL(extents[0].segment, 0);

	if (!in_callback)
		populate_gate_set(true, 0);
	start_other(&o);
	/* Only the pin itself needs it writable. */
	CU_ASSERT_EQUAL(writable(clean_addr), in_callback);
	use_pool(pool, ref, victim, sealed);
	/* A frame may come and have its memory, too. */
	late = loading(pool, 5, 2 * CTN_MIB, &extents, &count);
	populate_gate_set(false, 0);
	pthread_join(o.thread, NULL);
	CU_ASSERT_EQUAL(o.rc, 0);
	CU_ASSERT_FALSE(writable(clean_addr));
	CU_ASSERT_FALSE(writable(sealed_addr));
	CU_ASSERT_FALSE(writable(gone_addr + 2 * CTN_MIB));
	CU_ASSERT_TRUE(writable(still[0].addr));
	CU_ASSERT_EQUAL(ctn_pool_commit(pool, extents, count), 0);
	CU_ASSERT_TRUE(writable(extents[0].addr));
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, late), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, open_one), 0);
	ctn_test_books(pool, 64 * CTN_MIB, 0, 8 * CTN_MIB, 0, 2);
	ctn_pool_close(pool);
}

static void test_calls_while_a_segment_is_pinned(void)
{
	if (!ctn_test_kernel_at_least(5, 19))
		CTN_SKIP("Linux before 5.19: frames stay writable");
	use_pinned(false);
	use_pinned(true);
}

/* The end of the first pin must not make the segment read-only under the second. */
static void test_two_pins_of_one_segment(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	struct ctn_frame_ref ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	struct other held = {.pool = pool, .pin_waits = true}, quick = {.pool = pool};
	const struct ctn_extent *extents;
	uint8_t *addr;
	uint32_t count;

	if (!ctn_test_kernel_at_least(5, 19))
		CTN_SKIP("Linux before 5.19: frames stay writable");
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	addr = extents[0].addr;
	start_other(&held);
	CU_ASSERT_EQUAL(ctn_pool_pin_segment(pool, 0, pin_at_gate, &quick), 0);
	CU_ASSERT_TRUE(populate_gate_occupied());
	CU_ASSERT_TRUE(writable(addr));
	populate_gate_set(false, 0);
	pthread_join(held.thread, NULL);
	CU_ASSERT_EQUAL(held.rc, 0);
	CU_ASSERT_FALSE(writable(addr));
	ctn_pool_close(pool);
}

static void test_pin_without_memory(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	struct other o = {.pool = pool};

	ctn_test_clean(pool, 1, 4 * CTN_MIB);
	populate_gate_set(false, -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_pin_segment(pool, 0, pin_at_gate, &o), -ENOMEM);
	populate_gate_set(false, 0);
	CU_ASSERT_EQUAL(ctn_pool_pin_segment(pool, 0, pin_at_gate, &o), 0);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 4 * CTN_MIB, 0, 1);
	ctn_pool_close(pool);
}

CTN_TESTS("pool_commit", CTN_TEST(test_alloc_touches_nothing), CTN_TEST(test_commit_asks_once),
	  CTN_TEST(test_commit_of_what_is_not_loading), CTN_TEST(test_commit_without_memory),
	  CTN_TEST(test_calls_while_a_frame_is_committed),
	  CTN_TEST(test_calls_while_a_segment_is_pinned), CTN_TEST(test_two_pins_of_one_segment),
	  CTN_TEST(test_pin_without_memory))
