// SPDX-License-Identifier: MIT
/* Memory that cannot be had: the frame table over a memory of the test's own. */
#include "test.h"
#include "pool_fixture.h"

#include "pool/frames.h"

#include <errno.h>
#include <sys/mman.h>

static int populates_until_failure;
static int maps_until_failure;
static int mapped;

static int map(uint64_t bytes, int node, struct ctn_memory *m, struct ctn_err *err)
{
	if (maps_until_failure-- == 0)
		return ctn_err_set(err, -ENOMEM, "none left");
	m->base_bytes = m->bytes = bytes;
	m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	m->addr = m->base;
	m->node = node;
	mapped++;
	return m->base == MAP_FAILED ? -ENOMEM : 0;
}

static void unmap(struct ctn_memory *m)
{
	munmap(m->base, m->base_bytes);
	mapped--;
}

static int populate(uint8_t *addr, uint64_t bytes)
{
	(void)addr;
	(void)bytes;
	return populates_until_failure-- == 0 ? -ENOMEM : 0;
}

static const struct ctn_memory_ops memory = {map, unmap, populate};

static struct ctn_pool *open_pool(int maps, struct ctn_err *err, int *rc)
{
	struct ctn_pool_config cfg = {
		.bytes = 24 * CTN_MIB, .segment_bytes = 8 * CTN_MIB, .node = -1};
	struct ctn_pool *pool = NULL;

	maps_until_failure = maps;
	*rc = ctn_frames_open(&cfg, &memory, &pool, err);
	if (*rc == 0)
		pool->provider = &ctn_pool_provider_plain;
	return pool;
}

static void test_alloc_without_memory_changes_nothing(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_frame_info info;
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	int rc;

	pool = open_pool(-1, NULL, &rc);
	CU_ASSERT_PTR_NOT_NULL_FATAL(pool);
	/* Three extents: the second cannot be committed. */
	populates_until_failure = 1;
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 24 * CTN_MIB, -1, &ref), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), -ENOENT);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.free_bytes, 24 * CTN_MIB);
	CU_ASSERT_EQUAL(s.frames, 0);
	/* What was committed is not committed again: two extents are left, and they work. */
	populates_until_failure = 2;
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 24 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(populates_until_failure, 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 24 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, ref), 0);
	ctn_pool_close(pool);
	CU_ASSERT_EQUAL(mapped, 0);
}

static void test_open_without_memory_leaves_nothing(void)
{
	struct ctn_err err = {0};
	int rc;

	CU_ASSERT_PTR_NULL(open_pool(2, &err, &rc));
	CU_ASSERT_EQUAL(rc, -ENOMEM);
	CU_ASSERT_STRING_EQUAL(err.msg, "none left");
	CU_ASSERT_EQUAL(mapped, 0);
}

CTN_TESTS("pool_memory", CTN_TEST(test_alloc_without_memory_changes_nothing),
	  CTN_TEST(test_open_without_memory_leaves_nothing))
