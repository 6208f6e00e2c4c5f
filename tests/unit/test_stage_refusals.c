// SPDX-License-Identifier: MIT
/* Methods that are refused, by the seam or by the kernel: what takes their place, what is
 * said about it, and that the bytes are right. */
#include "test.h"
#include "sandbox.h"
#include "stage_fixture.h"

#include <sys/resource.h>
#include <sys/syscall.h>

static char sandbox_dir[256]; /* where an ordinary user may write; else empty */
static uint64_t segment_bytes = 16 * CTN_MIB;
static int setup_answer, register_answer, open_answer, read_answer;
static unsigned int setups;
static unsigned int setup_flags[8];

static int refuse_setup(void *ctx, unsigned int entries, unsigned int flags)
{
	(void)ctx;
	(void)entries;
	if (setups < 8)
		setup_flags[setups] = flags;
	setups++;
	return setup_answer;
}

/* A kernel that knows no flags. */
static int only_plain_setup(void *ctx, unsigned int entries, unsigned int flags)
{
	refuse_setup(ctx, entries, flags);
	return flags ? -EINVAL : 0;
}

static int refuse_register(void *ctx, unsigned int buffers)
{
	(void)ctx;
	(void)buffers;
	return register_answer;
}

static int refuse_open(void *ctx, const char *path, int flags)
{
	int fd = (flags & O_DIRECT) && open_answer ? open_answer : open(path, flags);

	(void)ctx;
	return fd == -1 ? -errno : fd;
}

/* Reads of files that were opened with O_DIRECT. */
static ssize_t refuse_pread(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	ssize_t n = -1;

	(void)ctx;
	if (read_answer && (fcntl(fd, F_GETFL) & O_DIRECT))
		return read_answer;
	n = pread(fd, buf, len, (off_t)offset);
	return n < 0 ? -errno : n;
}

static int refuse_result(void *ctx, int result, size_t len)
{
	(void)ctx;
	(void)len;
	return read_answer ? read_answer : result;
}

static const struct ctn_stage_sys refusing = {.open = refuse_open,
					      .pread = refuse_pread,
					      .uring_setup = refuse_setup,
					      .uring_register = refuse_register,
					      .uring_result = refuse_result};

struct outcome {
	struct ctn_stage_result result;
	struct ctn_stage_stats stats;
	bool right;
};

/* Two jobs, so that what the first found out is remembered for the second. */
static struct outcome try(int method, const struct ctn_stage_sys *sys)
{
	struct ctn_pool *pool = fragmented_pool(segment_bytes);
	struct ctn_stage *stage = open_stage(pool, method, 0, sys);
	struct ctn_digest expected;
	struct outcome o = {0};
	struct frame_of f;
	struct sample s;

	setups = 0;
	make_sample(&s, sandbox_dir[0] ? sandbox_dir : ctn_test_tmpdir(), "refusals");
	take_frame(&f, pool, &s, 1);
	for (int i = 0; i < 2; i++)
		o.result = run_job(stage, &s, &f);
	if (o.result.rc == 0)
		o.right = compare(&s, &f, &expected) == 0 &&
			  memcmp(expected.bytes, o.result.digest.bytes, 16) == 0 &&
			  o.result.bytes == s.run_bytes;
	ctn_stage_get_stats(stage, &o.stats);
	ctn_stage_close(stage);
	ctn_pool_abort(pool, f.ref);
	ctn_pool_close(pool);
	return o;
}

static void check_falls_to(enum ctn_stage_method method, const char *why)
{
	struct outcome o = try(-1, &refusing);

	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(o.result.method, method);
	CU_ASSERT_EQUAL(o.stats.jobs[method], 2);
	if (!strstr(o.stats.why, why))
		printf("# expected \"%s\" in: %s\n", why, o.stats.why);
	CU_ASSERT_PTR_NOT_NULL(strstr(o.stats.why, why));
	CU_ASSERT_PTR_NOT_NULL(strstr(o.stats.why, ctn_stage_method_name(method)));
}

static void check_fails(enum ctn_stage_method forced, int rc, const char *what)
{
	struct outcome o = try((int)forced, &refusing);

	CU_ASSERT_EQUAL(o.result.rc, rc);
	if (!strstr(o.result.err.msg, what))
		printf("# expected \"%s\" in: %s\n", what, o.result.err.msg);
	CU_ASSERT_PTR_NOT_NULL(strstr(o.result.err.msg, what));
	CU_ASSERT_PTR_NOT_NULL(strstr(o.result.err.msg, ctn_stage_method_name(forced)));
}

static void test_no_io_uring(void)
{
	static const int answers[] = {-EPERM, -ENOSYS, -ENOMEM};

	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	for (size_t i = 0; i < CTN_ARRAY_LEN(answers); i++) {
		setup_answer = answers[i];
		check_falls_to(CTN_STAGE_PREAD, strerror(-answers[i]));
		CU_ASSERT_EQUAL(setups, 1); /* once for both jobs */
	}
	check_fails(CTN_STAGE_URING, -ENOMEM, "io_uring_setup");
	check_fails(CTN_STAGE_URING_FIXED, -ENOMEM, "io_uring_setup");
	setup_answer = 0;
}

static void test_ring_flags_in_order(void)
{
	struct ctn_stage_sys old = {.uring_setup = only_plain_setup};
	struct outcome o;

	NEEDS_METHOD(CTN_STAGE_URING);
	o = try(CTN_STAGE_URING, &old);
	CU_ASSERT_TRUE(o.right);
	CU_ASSERT_EQUAL(setups, 3);
	CU_ASSERT_EQUAL(setup_flags[0], (1u << 12) | (1u << 13)); /* SINGLE_ISSUER, DEFER_TASKRUN */
	CU_ASSERT_EQUAL(setup_flags[1], 1u << 8);                 /* COOP_TASKRUN */
	CU_ASSERT_EQUAL(setup_flags[2], 0);
}

static void test_no_registration(void)
{
	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	register_answer = -ENOMEM;
	check_falls_to(CTN_STAGE_URING, "io_uring_register");
	register_answer = -EOPNOTSUPP;
	check_falls_to(CTN_STAGE_URING, strerror(EOPNOTSUPP));
	check_fails(CTN_STAGE_URING_FIXED, -EOPNOTSUPP, "io_uring_register");
	register_answer = 0;
}

static void test_open_refuses_o_direct(void)
{
	open_answer = -EINVAL;
	check_falls_to(CTN_STAGE_BUFFERED, "O_DIRECT refused");
	check_fails(CTN_STAGE_PREAD, -EINVAL, "O_DIRECT refused");
	open_answer = -EACCES;
	CU_ASSERT_EQUAL(try(-1, &refusing).result.rc, -EACCES);
	open_answer = 0;
}

static void test_read_refuses_o_direct(void)
{
	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	for (int i = 0; i < 2; i++) {
		read_answer = i ? -EOPNOTSUPP : -EINVAL;
		check_falls_to(CTN_STAGE_BUFFERED, strerror(-read_answer));
		check_fails(CTN_STAGE_PREAD, read_answer, "read of");
		setup_answer = -EPERM;
		check_falls_to(CTN_STAGE_BUFFERED, strerror(-read_answer));
		setup_answer = 0;
	}
	read_answer = 0;
}

/* ---- refused by the kernel itself ------------------------------------------------------ */

static int check_in_child(enum ctn_stage_method method, const char *why)
{
	struct outcome o = try(-1, NULL);

	if (!o.right || o.result.method != method || !strstr(o.stats.why, why)) {
		printf("# %d %s; method %s; why: %s\n", o.result.rc, o.result.err.msg,
		       ctn_stage_method_name(o.result.method), o.stats.why);
		fflush(stdout);
		return 1;
	}
	return 0;
}

/* What a container's filter does. */
static int filtered_setup(void)
{
	if (ctn_refuse(SYS_io_uring_setup, -1, 0, EPERM) != 0)
		return 2;
	return check_in_child(CTN_STAGE_PREAD, "io_uring_setup: Operation not permitted");
}

/* A kernel that takes no reads after all. */
static int filtered_enter(void)
{
	if (ctn_refuse(SYS_io_uring_enter, -1, 0, EAGAIN) != 0)
		return 2;
	return check_in_child(CTN_STAGE_PREAD, "io_uring_enter: Resource temporarily unavailable");
}

static void test_filtered_system_calls(void)
{
	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	CU_ASSERT_EQUAL(ctn_in_child(filtered_setup), 0);
	if (has_uring())
		CU_ASSERT_EQUAL(ctn_in_child(filtered_enter), 0);
}

/* An ordinary user under a limit on locked memory. */
static int become_user(rlim_t memlock)
{
	struct rlimit lim = {memlock, memlock};

	snprintf(sandbox_dir, sizeof(sandbox_dir), "%.200s/user", ctn_test_tmpdir());
	if (chmod(ctn_test_tmpdir(), 0755) != 0)
		return 2;
	if ((mkdir(sandbox_dir, 0777) != 0 && errno != EEXIST) || chmod(sandbox_dir, 0777) != 0)
		return 3;
	if (setrlimit(RLIMIT_MEMLOCK, &lim) != 0)
		return 4;
	/* A user of its own: the kernel counts locked memory by user, over all its processes, and
	 * gives back what a dead one had locked some time after its end. */
	uid_t alone = 100000 + (uid_t)getppid();

	if (geteuid() == 0 && (setgid(65534) != 0 || setuid(alone) != 0))
		return 5;
	return 0;
}

/* What many systems give. */
static int small_memlock(void)
{
	int rc = become_user(65536);

	return rc ? rc : check_in_child(CTN_STAGE_URING, "65536 bytes");
}

/* Enough for one segment, not for the second: the kernel itself says so. */
static int memlock_for_one_segment(void)
{
	int rc = become_user(6 * CTN_MIB);

	segment_bytes = 4 * CTN_MIB;
	return rc ? rc : check_in_child(CTN_STAGE_URING, ": Cannot allocate memory");
}

static void test_small_memlock_limit(void)
{
	if (!kernel_has_fixed())
		CTN_SKIP("no io_uring with registered buffers: the kernel, or the limit on locked "
			 "memory");
	if (!has_direct())
		CTN_SKIP("no O_DIRECT");
	CU_ASSERT_EQUAL(ctn_in_child(small_memlock), 0);
	CU_ASSERT_EQUAL(ctn_in_child(memlock_for_one_segment), 0);
}

CTN_TESTS("stage_refusals", CTN_TEST(test_no_io_uring), CTN_TEST(test_ring_flags_in_order),
	  CTN_TEST(test_no_registration), CTN_TEST(test_open_refuses_o_direct),
	  CTN_TEST(test_read_refuses_o_direct), CTN_TEST(test_filtered_system_calls),
	  CTN_TEST(test_small_memlock_limit))
