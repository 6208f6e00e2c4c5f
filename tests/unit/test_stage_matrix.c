// SPDX-License-Identifier: MIT
/*
 * Each way to read, forced, under each fault: the right bytes, and the counts that the metric
 * shows under its name; or the error, by name, and no count at all. Left to itself the stage goes
 * on by the method that the fault leaves it. (What becomes of each kind of short read, and of
 * files that change in other ways, is in the other programs of stage.)
 */
#include "test.h"
#include "sandbox.h"
#include "stage_fixture.h"

#include <stdatomic.h>
#include <sys/syscall.h>

#define AUTO (-1)

enum fault {
	NO_FAULT,
	OPEN_REFUSES_DIRECT, /* -EINVAL, as a file system without it */
	OPEN_REFUSED,
	READ_REFUSES_DIRECT, /* the first read, and all others of a file opened with O_DIRECT */
	SHORT_READS,
	INTERRUPTED,
	TRY_AGAIN,
	BAD_SECTOR,
	SHRINKS,
	MEMLOCK,
	NO_URING,
	FAULTS
};

struct expected {
	int rc;           /* of a job */
	int method;       /* that read, when rc is 0 */
	const char *says; /* in the error, or in why the best method was not taken */
};

#define OK(method)              \
	{                       \
		0, method, NULL \
	}
#define TO(method, says)        \
	{                       \
		0, method, says \
	}
#define NO(rc, says)        \
	{                   \
		rc, 0, says \
	}
#define F CTN_STAGE_URING_FIXED
#define U CTN_STAGE_URING
#define P CTN_STAGE_PREAD
#define B CTN_STAGE_BUFFERED

/* By fault, then by the method that is forced, AUTO last. */
static const struct expected table[FAULTS][CTN_STAGE_METHODS + 1] = {
	[NO_FAULT] = {OK(F), OK(U), OK(P), OK(B), OK(F)},
	[OPEN_REFUSES_DIRECT] = {NO(-EINVAL, "O_DIRECT refused"), NO(-EINVAL, "O_DIRECT refused"),
				 NO(-EINVAL, "O_DIRECT refused"), OK(B), TO(B, "O_DIRECT refused")},
	[OPEN_REFUSED] = {NO(-EACCES, "Permission denied"), NO(-EACCES, "Permission denied"),
			  NO(-EACCES, "Permission denied"), NO(-EACCES, "Permission denied"),
			  NO(-EACCES, "Permission denied")},
	[READ_REFUSES_DIRECT] = {NO(-EINVAL, "read of"), NO(-EINVAL, "read of"),
				 NO(-EINVAL, "read of"), OK(B), TO(B, "read of")},
	[SHORT_READS] = {OK(F), OK(U), OK(P), OK(B), OK(F)},
	[INTERRUPTED] = {OK(F), OK(U), OK(P), OK(B), OK(F)},
	[TRY_AGAIN] = {OK(F), OK(U), OK(P), OK(B), OK(F)},
	[BAD_SECTOR] = {NO(-EIO, "Input/output error"), NO(-EIO, "Input/output error"),
			NO(-EIO, "Input/output error"), NO(-EIO, "Input/output error"),
			NO(-EIO, "Input/output error")},
	[SHRINKS] = {NO(-ENODATA, "ends at byte"), NO(-ENODATA, "ends at byte"),
		     NO(-ENODATA, "ends at byte"), NO(-ENODATA, "ends at byte"),
		     NO(-ENODATA, "ends at byte")},
	[MEMLOCK] = {NO(-ENOMEM, "65536 bytes"), OK(U), OK(P), OK(B), TO(U, "65536 bytes")},
	[NO_URING] = {NO(-EPERM, "io_uring_setup"), NO(-EPERM, "io_uring_setup"), OK(P), OK(B),
		      TO(P, "io_uring_setup: Operation not permitted")},
};

static const char *const fault_names[FAULTS] = {"no fault",
						"open refuses O_DIRECT",
						"open refused",
						"the first read refuses O_DIRECT",
						"short reads",
						"EINTR",
						"EAGAIN",
						"EIO",
						"it shrinks",
						"memlock 64 KiB",
						"io_uring forbidden"};

/* ---- the faults -------------------------------------------------------------------------- */

static enum fault fault;
static atomic_uint reads;
static char victim[512], other[512]; /* the file that shrinks, and the one beside it */

static int faulty_open(void *ctx, const char *path, int flags)
{
	int fd;

	(void)ctx;
	if (fault == OPEN_REFUSED)
		return -EACCES;
	if (fault == OPEN_REFUSES_DIRECT && flags & O_DIRECT)
		return -EINVAL;
	fd = open(path, flags);
	return fd < 0 ? -errno : fd;
}

/* What the caller sees of a read that had `result`. */
static ssize_t spoil(ssize_t result, size_t len)
{
	unsigned int n = atomic_fetch_add(&reads, 1);

	switch (fault) {
	case SHORT_READS:
		return result > 8192 && (size_t)result == len ? result / 2 / 4096 * 4096 : result;
	case INTERRUPTED:
		return n % 3 ? result : -EINTR;
	case TRY_AGAIN:
		return n % 3 ? result : -EAGAIN;
	case BAD_SECTOR:
		return n == 3 ? -EIO : result;
	case SHRINKS:
		if (n == 0)
			CU_ASSERT_EQUAL(truncate(victim, CTN_MIB + 100), 0);
		return result;
	default:
		return result;
	}
}

static ssize_t faulty_pread(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	ssize_t n;

	(void)ctx;
	if (fault == READ_REFUSES_DIRECT && fcntl(fd, F_GETFL) & O_DIRECT)
		return -EINVAL;
	n = pread(fd, buf, len, (off_t)offset);
	return spoil(n < 0 ? -errno : n, len);
}

/* By a ring only what was opened with O_DIRECT is read. */
static int faulty_result(void *ctx, int result, size_t len)
{
	(void)ctx;
	return fault == READ_REFUSES_DIRECT ? -EINVAL : (int)spoil(result, len);
}

static const struct ctn_stage_sys sys = {
	.open = faulty_open, .pread = faulty_pread, .uring_result = faulty_result};

/* ---- a trial ------------------------------------------------------------------------------ */

static int method; /* that is forced, or AUTO */

static bool contains(const char *text, const char *what)
{
	if (strstr(text, what))
		return true;
	printf("# expected \"%s\" in: %s\n", what, text);
	return false;
}

/* Whether it went as the table has it. */
static bool as_expected(const struct expected *e, const struct ctn_stage_result *r,
			const struct ctn_stage_stats *stats, bool right)
{
	const char *says = e->rc ? r->err.msg : stats->why;
	uint64_t jobs = 0;

	for (int m = 0; m < CTN_STAGE_METHODS; m++)
		jobs += stats->jobs[m];
	if (r->rc != e->rc || (e->says && !contains(says, e->says)))
		return false;
	if (e->rc)
		return jobs == 0 && r->err.code == e->rc &&
		       (method == AUTO || fault == OPEN_REFUSED || fault >= BAD_SECTOR ||
			contains(r->err.msg, ctn_stage_method_name(method)));
	return right && jobs == 1 && stats->jobs[e->method] == 1 && (int)r->method == e->method &&
	       (e->says || !stats->why[0]);
}

/* In a process of its own where the fault is one of the process's. 0: as expected. */
static int try(void)
{
	const struct expected *e = &table[fault][method == AUTO ? CTN_STAGE_METHODS : method];
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage *stage = open_stage(pool, method, 4, &sys);
	struct ctn_digest digest;
	struct ctn_stage_result result;
	struct ctn_stage_stats stats;
	bool right = false, good;
	struct frame_of f;
	struct sample s;

	atomic_store(&reads, 0);
	snprintf(victim, sizeof(victim), "%s/matrix-0", ctn_test_tmpdir());
	snprintf(other, sizeof(other), "%s/matrix-1", ctn_test_tmpdir());
	/* Another user's, where an earlier trial was one's. */
	unlink(victim);
	unlink(other);
	make_sample(&s, ctn_test_tmpdir(), "matrix");
	take_frame(&f, pool, &s, 1);
	result = run_job(stage, &s, &f);
	ctn_stage_get_stats(stage, &stats);
	if (result.rc == 0)
		right = compare(&s, &f, &digest) == 0 &&
			memcmp(&digest, &result.digest, sizeof(digest)) == 0;
	good = as_expected(e, &result, &stats, right);
	if (!good)
		printf("# %s: %d %s; by %s; why: %s; bytes %s\n", fault_names[fault], result.rc,
		       result.err.msg, ctn_stage_method_name(result.method), stats.why,
		       right ? "right" : "wrong or none");
	ctn_stage_close(stage);
	ctn_pool_abort(pool, f.ref);
	ctn_pool_close(pool);
	fflush(stdout);
	return good ? 0 : 1;
}

/* The kernel counts what a user locks over all its processes. */
static int try_with_little_memory(void)
{
	struct rlimit lim = {65536, 65536};
	uid_t alone = 200000 + (uid_t)getppid();

	if (setrlimit(RLIMIT_MEMLOCK, &lim) != 0)
		return 2;
	if (geteuid() == 0 && (chown(ctn_test_tmpdir(), alone, alone) != 0 || setgid(alone) != 0 ||
			       setuid(alone) != 0))
		return 3;
	return try();
}

static int try_without_uring(void)
{
	return ctn_refuse(SYS_io_uring_setup, -1, 0, EPERM) ? 2 : try();
}

static void try_all(int forced)
{
	method = forced;
	for (int i = 0; i < FAULTS; i++) {
		fault = (enum fault)i;
		if (fault == MEMLOCK)
			CU_ASSERT_EQUAL(ctn_in_child(try_with_little_memory), 0)
		else if (fault == NO_URING)
			CU_ASSERT_EQUAL(ctn_in_child(try_without_uring), 0)
		else
			CU_ASSERT_EQUAL(try(), 0);
	}
}

/* ---- tests -------------------------------------------------------------------------------- */

static void test_uring_fixed(void)
{
	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	try_all(CTN_STAGE_URING_FIXED);
}

static void test_uring(void)
{
	NEEDS_METHOD(CTN_STAGE_URING);
	try_all(CTN_STAGE_URING);
}

static void test_pread(void)
{
	NEEDS_METHOD(CTN_STAGE_PREAD);
	try_all(CTN_STAGE_PREAD);
}

static void test_buffered(void)
{
	try_all(CTN_STAGE_BUFFERED);
}

static void test_left_to_itself(void)
{
	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	try_all(AUTO);
}

CTN_TESTS("stage_matrix", CTN_TEST(test_uring_fixed), CTN_TEST(test_uring), CTN_TEST(test_pread),
	  CTN_TEST(test_buffered), CTN_TEST(test_left_to_itself))
