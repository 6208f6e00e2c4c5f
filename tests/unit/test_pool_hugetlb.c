// SPDX-License-Identifier: MIT
/* The provider of reserved huge pages, where some can be had. */
#include "test.h"
#include "huge_fixture.h"
#include "pool_fixture.h"
#include "stage_fixture.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define PAGES 24

/* What the kernel says that this process has of them. */
static uint64_t hugetlb_bytes(void)
{
	unsigned long kib = 0;
	char line[256];
	FILE *f = fopen("/proc/self/status", "re");

	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "HugetlbPages: %lu kB", &kib);
	if (f)
		fclose(f);
	return kib * 1024;
}

static void test_memory_is_what_was_reserved(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	const struct ctn_extent *extents;
	struct ctn_pool_stats s;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	unsigned long at_first;
	uint32_t n;

	if (!huge_have(PAGES))
		CTN_SKIP("no huge pages can be reserved");
	at_first = huge_usable();
	/* Two segments, the second of them shorter. */
	pool = ctn_test_pool("hugetlb", 20 * CTN_MIB, 16 * CTN_MIB, true);
	/* Promised from the start, and there when a frame is committed. */
	CU_ASSERT_EQUAL(huge_usable(), at_first - 10);
	CU_ASSERT_EQUAL(hugetlb_bytes(), 0);
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, 17 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), 0);
	CU_ASSERT_EQUAL(hugetlb_bytes(), 18 * CTN_MIB);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_STRING_EQUAL(s.provider, "hugetlb");
	CU_ASSERT_EQUAL(s.resident_bytes, 18 * CTN_MIB);
	CU_ASSERT_EQUAL(s.huge_bytes, 18 * CTN_MIB);

	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &n), 0);
	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_EQUAL((uintptr_t)extents[i].addr % CTN_EXTENT_ALIGN, 0);
		memset(extents[i].addr, (int)i + 1, extents[i].bytes);
	}
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_EQUAL(extents[i].addr[0], i + 1);
		CU_ASSERT_EQUAL(extents[i].addr[extents[i].bytes - 1], i + 1);
	}
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 18 * CTN_MIB);
	CU_ASSERT_EQUAL(s.huge_bytes, 18 * CTN_MIB);
	ctn_pool_release(pool, ref);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_pool_close(pool);
	CU_ASSERT_EQUAL(huge_usable(), at_first);
}

/* Without more huge pages than there are: the reason, and the number that would do. */
static void test_too_few(void)
{
	uint64_t want = (uint64_t)(huge_usable() + 5) * 2 * CTN_MIB;
	unsigned long need = huge_count("nr_hugepages") + 5;
	struct ctn_pool_config cfg = {
		.provider = "hugetlb", .bytes = want, .node = -1, .kmod_sys = &ctn_test_no_kmod};
	char number[64], free_pages[64];
	struct ctn_pool_stats s;
	struct ctn_err err = {0};
	struct ctn_pool *pool;

	if (access(HUGE_COUNTS "nr_hugepages", R_OK) != 0)
		CTN_SKIP("no huge pages can be reserved");
	snprintf(number, sizeof(number), "sysctl vm.nr_hugepages=%lu", need);
	snprintf(free_pages, sizeof(free_pages), "(HugePages_Free %lu)", huge_usable());
	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -ENOMEM);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, number));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, free_pages));
	cfg.provider = NULL;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, &err), 0);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_STRING_NOT_EQUAL(s.provider, "hugetlb");
	CU_ASSERT_PTR_NOT_NULL(strstr(s.why, "; hugetlb: "));
	CU_ASSERT_PTR_NOT_NULL(strstr(s.why, number));
	ctn_pool_close(pool);
}

static void test_preferred_when_enough(void)
{
	struct ctn_pool_stats s;
	struct ctn_pool *pool;

	if (!huge_have(PAGES))
		CTN_SKIP("no huge pages can be reserved");
	pool = ctn_test_pool(NULL, 8 * CTN_MIB, 0, false);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_STRING_EQUAL(s.provider, "hugetlb");
	CU_ASSERT_PTR_NULL(strstr(s.why, "hugetlb"));
	ctn_pool_close(pool);
}

/* A late write to a sealed frame ends the process that makes it. */
static void test_clean_is_read_only(void)
{
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	int status = 0;
	uint32_t n;
	pid_t pid;

	if (!huge_have(PAGES))
		CTN_SKIP("no huge pages can be reserved");
	if (!ctn_test_kernel_at_least(5, 19))
		CTN_SKIP("Linux before 5.19 does not protect frames");
	fflush(NULL);
	/* In a child that opens its own: pools are not inherited. */
	pid = fork();
	if (pid == 0) {
		pool = ctn_test_pool("hugetlb", 4 * CTN_MIB, 0, false);
		ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
		signal(SIGSEGV, SIG_DFL);
		if (ctn_pool_lease(pool, ref) == 0 &&
		    ctn_pool_extents(pool, ref, &extents, &n) == 0)
			*(volatile uint8_t *)extents[0].addr = 1;
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* By the best method that there is, registered where that is allowed. */
static void test_staging_into_it(void)
{
	struct ctn_digest expected;
	struct ctn_stage_result r;
	struct ctn_stage *stage;
	struct ctn_pool *pool;
	struct frame_of f;
	struct sample s;

	if (!huge_have(PAGES))
		CTN_SKIP("no huge pages can be reserved");
	make_sample(&s, ctn_test_tmpdir(), "hugetlb");
	pool = ctn_test_pool("hugetlb", 32 * CTN_MIB, 16 * CTN_MIB, false);
	stage = open_stage(pool, -1, 0, NULL);
	take_frame(&f, pool, &s, 1);
	r = run_job(stage, &s, &f);
	CU_ASSERT_EQUAL(r.rc, 0);
	CU_ASSERT_EQUAL(r.method, best_method(s.paths[0]));
	CU_ASSERT_EQUAL(compare(&s, &f, &expected), 0);
	CU_ASSERT_EQUAL(memcmp(&expected, &r.digest, sizeof(expected)), 0);
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

CTN_TESTS("pool_hugetlb", CTN_TEST(test_memory_is_what_was_reserved), CTN_TEST(test_too_few),
	  CTN_TEST(test_preferred_when_enough), CTN_TEST(test_clean_is_read_only),
	  CTN_TEST(test_staging_into_it))
