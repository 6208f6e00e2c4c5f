// SPDX-License-Identifier: MIT
/* Memory that the kernel does not give. Each test is a child process that returns the number
 * of what went wrong in it. */
#include "test.h"
#include "pool_fixture.h"
#include "sandbox.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int commit_with_no_memory_left(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 24 * CTN_MIB, 8 * CTN_MIB, true);
	struct ctn_frame_key key = ctn_test_key(2);
	struct ctn_frame_ref old = ctn_test_clean(pool, 1, 6 * CTN_MIB), ref;
	struct ctn_frame_info info;
	struct ctn_pool_stats s;

	if (ctn_refuse(SYS_madvise, 2, MADV_POPULATE_WRITE, ENOMEM) != 0)
		return 1;
	if (ctn_pool_alloc(pool, &key, 8 * CTN_MIB, -1, &ref) != 0 ||
	    ctn_test_commit(pool, ref) != -ENOMEM || ctn_pool_abort(pool, ref) != 0)
		return 2;
	if (ctn_pool_lookup(pool, &key, &info) != -ENOENT)
		return 3;
	ctn_pool_get_stats(pool, false, &s);
	if (s.free_bytes != 18 * CTN_MIB || s.clean_bytes != 6 * CTN_MIB || s.frames != 1)
		return 4;
	/* What an evicted frame leaves has memory and serves again. */
	if (ctn_pool_evict(pool, old) != 0)
		return 5;
	if (ctn_pool_alloc(pool, &key, 6 * CTN_MIB, -1, &ref) != 0 ||
	    ctn_test_commit(pool, ref) != 0)
		return 6;
	if (ctn_pool_abort(pool, ref) != 0)
		return 7;
	ctn_pool_close(pool);
	return 0;
}

static void test_commit_with_no_memory_left(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(commit_with_no_memory_left), 0);
}

/* Linux before 5.14 does not know the advice: pages are touched, and what is there stays. */
static int commit_without_the_advice(void)
{
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	uint32_t count;

	if (ctn_refuse(SYS_madvise, 2, MADV_POPULATE_WRITE, EINVAL) != 0)
		return 1;
	pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
	ctn_pool_get_stats(pool, true, &s);
	if (s.resident_bytes != 4 * CTN_MIB)
		return 2;
	if (ctn_pool_extents(pool, ref, &extents, &count) != 0 || extents[0].addr[77] != 0)
		return 3;
	ctn_pool_close(pool);
	return 0;
}

static void test_commit_without_the_advice(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(commit_without_the_advice), 0);
}

static unsigned long mapped_pages(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	if (!f || fscanf(f, "%lu", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	return pages;
}

/* Room in the address space for some segments of the pool, not for all. */
static int open_without_addresses(void)
{
	struct ctn_pool_config cfg = {.provider = "plain", .bytes = 64 * CTN_GIB, .node = -1};
	struct ctn_err err = {0};
	struct ctn_pool *pool;
	struct rlimit lim;
	unsigned long before = mapped_pages();

	lim.rlim_cur = lim.rlim_max = before * (rlim_t)sysconf(_SC_PAGESIZE) + 3 * CTN_GIB;
	if (setrlimit(RLIMIT_AS, &lim) != 0)
		return 1;
	if (ctn_pool_open(&cfg, &pool, &err) != -ENOMEM || !strstr(err.msg, "segment"))
		return 2;
	/* Three segments were there and are not any more; the C library may keep a little. */
	if (mapped_pages() > before + CTN_GIB / (unsigned long)sysconf(_SC_PAGESIZE))
		return 3;
	return 0;
}

static void test_open_without_addresses(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(open_without_addresses), 0);
}

/* A process may be forbidden to have huge pages. */
static int best_without_huge_pages(void)
{
	struct ctn_pool_config cfg = {.provider = "thp", .bytes = 64 * CTN_MIB, .node = -1};
	struct ctn_pool_stats s;
	struct ctn_err err = {0};
	struct ctn_pool *pool;

	if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
		return 1;
	if (ctn_pool_open(&cfg, &pool, &err) != -ENOTSUP || !strstr(err.msg, "provider thp"))
		return 2;
	if (ctn_refuse(SYS_memfd_create, -1, 0, EINVAL) != 0)
		return 5;
	cfg.provider = "hugetlb";
	if (ctn_pool_open(&cfg, &pool, &err) != -ENOTSUP || !strstr(err.msg, "provider hugetlb"))
		return 6;
	cfg.provider = NULL;
	if (ctn_pool_open(&cfg, &pool, &err) != 0)
		return 3;
	ctn_pool_get_stats(pool, false, &s);
	if (strcmp(s.provider, "plain") != 0 ||
	    !strstr(s.why, "hugetlb: this kernel gives no huge pages") ||
	    !strstr(s.why, "thp: transparent huge pages are disabled"))
		return 4;
	ctn_pool_close(pool);
	return 0;
}

static void test_best_without_huge_pages(void)
{
	CU_ASSERT_EQUAL(ctn_in_child(best_without_huge_pages), 0);
}

CTN_TESTS("pool_refusals", CTN_TEST(test_commit_with_no_memory_left),
	  CTN_TEST(test_commit_without_the_advice), CTN_TEST(test_open_without_addresses),
	  CTN_TEST(test_best_without_huge_pages))
