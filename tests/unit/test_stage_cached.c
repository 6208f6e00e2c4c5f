// SPDX-License-Identifier: MIT
/* A file that lies in the page cache is read from there. */
#include "test.h"
#include "sandbox.h"
#include "stage_fixture.h"

#include <sys/syscall.h>

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

static char sandbox_dir[256]; /* where an ordinary user may read; else empty */

/* Into the page cache, or out of it. */
static void set_cached(const struct sample *s, unsigned int file, bool cached)
{
	int fd = open(s->paths[file], O_RDONLY | O_CLOEXEC);
	char buf[65536];

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	while (cached && read(fd, buf, sizeof(buf)) > 0)
		;
	close(fd);
}

struct outcome {
	struct ctn_stage_result result;
	struct ctn_stage_stats stats;
	bool right;
};

static struct outcome stage_sample(const struct sample *s, int method,
				   const struct ctn_stage_sys *sys)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage *stage = open_stage(pool, method, 0, sys);
	struct ctn_digest expected;
	struct outcome o = {0};
	struct frame_of f;

	take_frame(&f, pool, s, 1);
	o.result = run_job(stage, s, &f);
	o.right = o.result.rc == 0 && compare(s, &f, &expected) == 0 &&
		  memcmp(expected.bytes, o.result.digest.bytes, 16) == 0 &&
		  o.result.bytes == s->run_bytes;
	ctn_stage_get_stats(stage, &o.stats);
	ctn_stage_close(stage);
	ctn_pool_abort(pool, f.ref);
	ctn_pool_close(pool);
	return o;
}

static void test_cached_files_are_read_from_the_cache(void)
{
	struct outcome o;
	struct sample s;

	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	make_sample(&s, ctn_test_tmpdir(), "cached");
	set_cached(&s, 0, true);
	set_cached(&s, 1, true);
	o = stage_sample(&s, -1, NULL);
	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(o.result.method, CTN_STAGE_BUFFERED);
	CU_ASSERT_EQUAL(o.stats.jobs[CTN_STAGE_BUFFERED], 1);
	CU_ASSERT_PTR_NOT_NULL(strstr(o.stats.why, "is in the page cache"));
	CU_ASSERT_PTR_NOT_NULL(strstr(o.stats.why, s.paths[0]) ? s.paths[0]
							       : strstr(o.stats.why, s.paths[1]));

	/* The disk keeps its method for what is not in the cache. */
	set_cached(&s, 0, false);
	set_cached(&s, 1, false);
	o = stage_sample(&s, -1, NULL);
	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(o.result.method, best_method(s.paths[0]));
	CU_ASSERT_PTR_NULL(strstr(o.stats.why, "page cache"));
}

/* A part of two files, one of them cached: right, and told by the slower method. */
static void test_one_of_two_files(void)
{
	struct outcome o;
	struct sample s;

	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	make_sample(&s, ctn_test_tmpdir(), "one-of-two");
	set_cached(&s, 1, true);
	o = stage_sample(&s, -1, NULL);
	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(o.result.method, CTN_STAGE_BUFFERED);
	CU_ASSERT_PTR_NOT_NULL(strstr(o.stats.why, s.paths[1]));
}

static void test_a_forced_method_is_kept(void)
{
	struct outcome o;
	struct sample s;

	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	make_sample(&s, ctn_test_tmpdir(), "forced");
	set_cached(&s, 0, true);
	set_cached(&s, 1, true);
	o = stage_sample(&s, CTN_STAGE_PREAD, NULL);
	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(o.result.method, CTN_STAGE_PREAD);
}

/* ---- how much is enough ------------------------------------------------------------------ */

static int tenths, answer;

static int say_cached(void *ctx, int fd, uint64_t offset, uint64_t bytes, uint64_t *cached)
{
	(void)ctx;
	(void)fd;
	(void)offset;
	*cached = bytes * (uint64_t)tenths / 10 + 1;
	return answer;
}

static void test_most_of_it_must_be_there(void)
{
	const struct ctn_stage_sys sys = {.cached = say_cached};
	struct sample s;

	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	make_sample(&s, ctn_test_tmpdir(), "tenths");
	answer = 0;
	for (tenths = 0; tenths <= 10; tenths++) {
		struct outcome o = stage_sample(&s, -1, &sys);

		CU_ASSERT_TRUE(o.right);
		CU_ASSERT_EQUAL(o.result.method,
				tenths >= 9 ? CTN_STAGE_BUFFERED : best_method(s.paths[0]));
	}
	answer = -EPERM;
	CU_ASSERT_EQUAL(stage_sample(&s, -1, &sys).result.method, best_method(s.paths[0]));
}

/* ---- who is asked ------------------------------------------------------------------------ */

static int check_sample(bool cached, enum ctn_stage_method method)
{
	struct outcome o;
	struct sample s;

	make_sample(&s, ctn_test_tmpdir(), "child");
	set_cached(&s, 0, cached);
	set_cached(&s, 1, cached);
	o = stage_sample(&s, -1, NULL);
	if (o.right && o.result.method == method)
		return 0;
	printf("# %d %s; method %s\n", o.result.rc, o.result.err.msg,
	       ctn_stage_method_name(o.result.method));
	fflush(stdout);
	return 1;
}

/* Linux before 6.5. */
static int by_mincore(void)
{
	char path[512];

	if (ctn_refuse(SYS_cachestat, -1, 0, ENOSYS) != 0)
		return 2;
	if (check_sample(true, CTN_STAGE_BUFFERED) != 0)
		return 3;
	snprintf(path, sizeof(path), "%s/child-0", ctn_test_tmpdir());
	return check_sample(false, best_method(path)) == 0 ? 0 : 4;
}

/* Whom cachestat refuses, mincore would tell that everything is there. */
static int by_nobody(void)
{
	char path[512];

	if (ctn_refuse(SYS_cachestat, -1, 0, EPERM) != 0)
		return 2;
	snprintf(path, sizeof(path), "%s/child-0", ctn_test_tmpdir());
	return check_sample(true, best_method(path)) == 0 ? 0 : 3;
}

/* And so it is with mincore alone, for a user who may only read. */
static int by_mincore_of_a_reader(void)
{
	struct outcome o;
	struct sample s;

	make_sample(&s, sandbox_dir, "reader");
	chmod(s.paths[0], 0444);
	chmod(s.paths[1], 0444);
	if (ctn_refuse(SYS_cachestat, -1, 0, ENOSYS) != 0)
		return 2;
	if (setgid(65534) != 0 || setuid(65534) != 0)
		return 3;
	o = stage_sample(&s, -1, NULL);
	/* Not registered: the limit on locked memory is not the point here. */
	return o.right && o.result.method != CTN_STAGE_BUFFERED ? 0 : 4;
}

static void test_kernels_without_the_call(void)
{
	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	CU_ASSERT_EQUAL(ctn_in_child(by_mincore), 0);
	CU_ASSERT_EQUAL(ctn_in_child(by_nobody), 0);
	if (geteuid() != 0)
		return;
	snprintf(sandbox_dir, sizeof(sandbox_dir), "%.200s/reader", ctn_test_tmpdir());
	CU_ASSERT_EQUAL(mkdir(sandbox_dir, 0755), 0);
	CU_ASSERT_EQUAL(chmod(ctn_test_tmpdir(), 0755), 0);
	CU_ASSERT_EQUAL(ctn_in_child(by_mincore_of_a_reader), 0);
}

CTN_TESTS("stage_cached", CTN_TEST(test_cached_files_are_read_from_the_cache),
	  CTN_TEST(test_one_of_two_files), CTN_TEST(test_a_forced_method_is_kept),
	  CTN_TEST(test_most_of_it_must_be_there), CTN_TEST(test_kernels_without_the_call))
