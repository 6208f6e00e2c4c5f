// SPDX-License-Identifier: MIT
/* The accounts of a pool whose frames come and go: by many threads, or by loss. */
#include "test.h"
#include "pool_books.h"

#include <errno.h>
#include <poll.h>

static bool readable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) == 1;
}

static void test_lossy_loses_and_tells(void)
{
	struct ctn_pool *pool = ctn_test_pool("lossy", 64 * CTN_MIB, 0, false);
	struct ctn_frame_key loading_key = ctn_test_key(100), key;
	struct ctn_frame_ref refs[8], loading, lost;
	struct ctn_frame_info info;
	unsigned int losses = 0;

	CU_ASSERT_TRUE_FATAL(ctn_pool_event_fd(pool) >= 0);
	for (unsigned int i = 0; i < 8; i++)
		refs[i] = ctn_test_clean(pool, i, 2 * CTN_MIB);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &loading_key, 2 * CTN_MIB, -1, &loading), 0);
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, refs[3]), 0);
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	ctn_pool_lossy_set(pool, 5, 2);
	for (unsigned int i = 0; i < 100; i++) {
		key = ctn_test_key(i % 8);
		ctn_pool_lookup(pool, &key, &info);
	}
	ctn_pool_lossy_set(pool, 0, 0);
	/* All went but the leased one and the LOADING one, each with one event. */
	CU_ASSERT_TRUE(readable(ctn_pool_event_fd(pool)));
	while (ctn_pool_next_loss(pool, &lost)) {
		CU_ASSERT_NOT_EQUAL(lost.generation, refs[3].generation);
		CU_ASSERT_EQUAL(ctn_pool_lease(pool, lost), -ESTALE);
		losses++;
	}
	CU_ASSERT_EQUAL(losses, 7);
	CU_ASSERT_FALSE(readable(ctn_pool_event_fd(pool)));
	ctn_test_books(pool, 64 * CTN_MIB, 2 * CTN_MIB, 2 * CTN_MIB, 2 * CTN_MIB, 2);
	ctn_pool_release(pool, refs[3]);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, loading), 0);
	ctn_pool_close(pool);
}

static void test_books_after_random_operations(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 96 * CTN_MIB, 16 * CTN_MIB, false);

	ctn_test_random_operations(pool, 96 * CTN_MIB);
	ctn_pool_close(pool);
}

CTN_TESTS("pool_books", CTN_TEST(test_lossy_loses_and_tells),
	  CTN_TEST(test_books_after_random_operations))
