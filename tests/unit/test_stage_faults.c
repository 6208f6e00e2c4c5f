// SPDX-License-Identifier: MIT
/* Reads that fail, fall short or are interrupted, files that change, jobs that are cancelled:
 * the right bytes or the right error, by every method. */
#include "test.h"
#include "stage_fixture.h"

#include <stdatomic.h>

/* What to do to the result of call number n (from 0) of a read of `len` bytes. */
typedef ssize_t fault_fn(unsigned int n, ssize_t result, size_t len);

static fault_fn *fault;
static atomic_uint calls;
static void (*before_read)(unsigned int n);

static ssize_t faulty_pread(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	unsigned int n = atomic_fetch_add(&calls, 1);
	ssize_t result;

	(void)ctx;
	if (before_read)
		before_read(n);
	result = pread(fd, buf, len, (off_t)offset);
	if (result < 0)
		result = -errno;
	return fault ? fault(n, result, len) : result;
}

static int faulty_result(void *ctx, int result, size_t len)
{
	unsigned int n = atomic_fetch_add(&calls, 1);

	(void)ctx;
	if (before_read)
		before_read(n);
	return fault ? (int)fault(n, result, len) : result;
}

static const struct ctn_stage_sys sys = {.pread = faulty_pread, .uring_result = faulty_result};

static ssize_t halves(unsigned int n, ssize_t result, size_t len)
{
	(void)n;
	return result > 8192 && (size_t)result == len ? result / 2 / 4096 * 4096 : result;
}

/* Between two offsets that O_DIRECT takes. */
static ssize_t odd_pieces(unsigned int n, ssize_t result, size_t len)
{
	(void)len;
	return n % 3 == 0 && result > 300000 ? 200000 + 777 : result;
}

/* Not enough to go on from, a few times in a row. */
static ssize_t crumbs(unsigned int n, ssize_t result, size_t len)
{
	(void)len;
	return n % 8 && result > 100 ? 100 : result;
}

static ssize_t interrupted(unsigned int n, ssize_t result, size_t len)
{
	(void)len;
	return n % 3 ? result : -EINTR;
}

static ssize_t try_again(unsigned int n, ssize_t result, size_t len)
{
	(void)len;
	return n % 3 ? result : -EAGAIN;
}

static ssize_t always_again(unsigned int n, ssize_t result, size_t len)
{
	(void)n;
	(void)result;
	(void)len;
	return -EAGAIN;
}

static ssize_t always_nothing(unsigned int n, ssize_t result, size_t len)
{
	(void)n;
	(void)result;
	(void)len;
	return 0;
}

static ssize_t bad_sector(unsigned int n, ssize_t result, size_t len)
{
	(void)len;
	return n == 5 ? -EIO : result;
}

static bool works(enum ctn_stage_method method)
{
	if (method == CTN_STAGE_BUFFERED)
		return true;
	if (!has_direct())
		return false;
	if (method == CTN_STAGE_PREAD)
		return true;
	return method == CTN_STAGE_URING ? has_uring() : has_fixed();
}

struct trial {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct sample sample;
	struct frame_of frame;
	struct ctn_stage_result result;
};

/* Runs one job with the fault in place; everything stays there to be looked at. */
static void begin_trial(struct trial *t, enum ctn_stage_method method, uint32_t depth,
			fault_fn *with, void (*before)(unsigned int))
{
	atomic_store(&calls, 0);
	fault = with;
	before_read = before;
	t->pool = fragmented_pool(16 * CTN_MIB);
	t->stage = open_stage(t->pool, (int)method, depth, &sys);
	make_sample(&t->sample, ctn_test_tmpdir(), "faults");
	take_frame(&t->frame, t->pool, &t->sample, 1);
}

static void end_trial(struct trial *t)
{
	ctn_stage_close(t->stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(t->pool, t->frame.ref), 0);
	ctn_pool_close(t->pool);
	fault = NULL;
	before_read = NULL;
}

static void check_right(struct trial *t)
{
	struct ctn_digest expected;

	if (t->result.rc)
		printf("# %s\n", t->result.err.msg);
	CU_ASSERT_EQUAL(t->result.rc, 0);
	CU_ASSERT_EQUAL(compare(&t->sample, &t->frame, &expected), 0);
	CU_ASSERT_EQUAL(memcmp(expected.bytes, t->result.digest.bytes, 16), 0);
	CU_ASSERT_EQUAL(t->result.bytes, t->sample.run_bytes);
}

static void check_says(const struct trial *t, int rc, const char *what)
{
	CU_ASSERT_EQUAL(t->result.rc, rc);
	CU_ASSERT_EQUAL(t->result.err.code, rc);
	if (!strstr(t->result.err.msg, what))
		printf("# expected \"%s\" in: %s\n", what, t->result.err.msg);
	CU_ASSERT_PTR_NOT_NULL(strstr(t->result.err.msg, what));
}

static void by_every_method(void (*fn)(enum ctn_stage_method))
{
	for (int m = 0; m < CTN_STAGE_METHODS; m++) {
		if (works((enum ctn_stage_method)m))
			fn((enum ctn_stage_method)m);
	}
}

static void right_with(enum ctn_stage_method method, fault_fn *with)
{
	struct trial t;

	begin_trial(&t, method, 0, with, NULL);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_right(&t);
	CU_ASSERT_EQUAL(t.result.method, method);
	end_trial(&t);
}

static void try_short(enum ctn_stage_method method)
{
	right_with(method, halves);
	right_with(method, odd_pieces);
	/* Through the page cache every byte is progress: the same fault, more reads. */
	right_with(method, crumbs);
}

static void test_short_reads_go_on(void)
{
	by_every_method(try_short);
}

static void try_interrupted(enum ctn_stage_method method)
{
	right_with(method, interrupted);
	right_with(method, try_again);
}

static void test_interrupted_reads_go_on(void)
{
	by_every_method(try_interrupted);
}

static void try_no_progress(enum ctn_stage_method method)
{
	struct trial t;

	begin_trial(&t, method, 0, always_again, NULL);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -EIO, "makes no progress");
	check_says(&t, -EIO, "faults-");
	CU_ASSERT_TRUE(atomic_load(&calls) < 16 * 100);
	end_trial(&t);

	begin_trial(&t, method, 0, always_nothing, NULL);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -EIO, "makes no progress");
	end_trial(&t);
}

static void test_no_progress_is_an_error(void)
{
	by_every_method(try_no_progress);
}

static void try_bad_sector(enum ctn_stage_method method)
{
	struct trial t;
	char offset[64];

	/* One read at a time: the sixth is the second of the fourth tensor's run. */
	begin_trial(&t, method, 1, bad_sector, NULL);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -EIO, "Input/output error");
	check_says(&t, -EIO, "faults-");
	CU_ASSERT_EQUAL(sscanf(strstr(t.result.err.msg, " at "), " at %63[0-9]", offset), 1);
	CU_ASSERT_EQUAL(strtoull(offset, NULL, 10) % 4096, 0);
	CU_ASSERT_EQUAL(atomic_load(&calls), 6);

	/* The stage goes on: the next job is right. */
	fault = NULL;
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_right(&t);
	end_trial(&t);

	/* With many in flight the error is the same. */
	begin_trial(&t, method, 16, bad_sector, NULL);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -EIO, "Input/output error");
	end_trial(&t);
}

static void test_a_bad_sector(void)
{
	by_every_method(try_bad_sector);
}

/* ---- files that change ----------------------------------------------------------------- */

static void set_mtime(const char *path, int64_t ns)
{
	struct timespec times[2] = {
		{.tv_nsec = UTIME_OMIT},
		{.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}};

	CU_ASSERT_EQUAL(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void touch(const char *path)
{
	set_mtime(path, 1234567890000000000);
}

static const struct sample *victim;

static void touch_victim(unsigned int n)
{
	if (n == 3)
		touch(victim->paths[0]);
}

static void cut_victim(unsigned int n)
{
	if (n == 0)
		CU_ASSERT_EQUAL(truncate(victim->paths[0], CTN_MIB + 100), 0);
}

static void try_changed(enum ctn_stage_method method)
{
	struct trial t;
	char expected[64], found[64];

	begin_trial(&t, method, 0, NULL, NULL);
	snprintf(expected, sizeof(expected), "mtime %lld ns",
		 (long long)t.sample.files[0].mtime_ns);
	touch(t.sample.paths[0]);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ESTALE, "faults-0: changed since it was registered");
	check_says(&t, -ESTALE, expected);
	check_says(&t, -ESTALE, "mtime 1234567890000000000 ns");
	CU_ASSERT_EQUAL(atomic_load(&calls), 0);
	end_trial(&t);

	begin_trial(&t, method, 0, NULL, NULL);
	snprintf(expected, sizeof(expected), "%llu bytes",
		 (unsigned long long)t.sample.files[0].bytes);
	CU_ASSERT_EQUAL(truncate(t.sample.paths[0], 4321), 0);
	set_mtime(t.sample.paths[0], t.sample.files[0].mtime_ns);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ESTALE, expected);
	check_says(&t, -ESTALE, "4321 bytes");
	end_trial(&t);

	/* Another file of the same size and time in its place. */
	begin_trial(&t, method, 0, NULL, NULL);
	snprintf(expected, sizeof(expected), "inode %llu",
		 (unsigned long long)t.sample.files[0].inode);
	snprintf(found, sizeof(found), "%s/other", ctn_test_tmpdir());
	write_file(found, t.sample.files[0].bytes, 9);
	set_mtime(found, t.sample.files[0].mtime_ns);
	CU_ASSERT_EQUAL(rename(found, t.sample.paths[0]), 0);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ESTALE, expected);
	end_trial(&t);

	/* Another file system in the place of its folder's. */
	begin_trial(&t, method, 0, NULL, NULL);
	t.sample.files[0].device++;
	snprintf(expected, sizeof(expected), "device %llu",
		 (unsigned long long)t.sample.files[0].device);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ESTALE, expected);
	end_trial(&t);

	begin_trial(&t, method, 0, NULL, NULL);
	CU_ASSERT_EQUAL(unlink(t.sample.paths[0]), 0);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ENOENT, "faults-0: No such file");
	end_trial(&t);

	/* Something that open could wait for. */
	begin_trial(&t, method, 0, NULL, NULL);
	CU_ASSERT_EQUAL(unlink(t.sample.paths[0]), 0);
	CU_ASSERT_EQUAL(mkfifo(t.sample.paths[0], 0600), 0);
	t.result = run_job(t.stage, &t.sample, &t.frame);
	CU_ASSERT_TRUE(t.result.rc < 0);
	CU_ASSERT_EQUAL(unlink(t.sample.paths[0]), 0);
	end_trial(&t);

	/* While it is read. */
	begin_trial(&t, method, 1, NULL, touch_victim);
	victim = &t.sample;
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ESTALE, "changed since it was registered");
	end_trial(&t);

	begin_trial(&t, method, 1, NULL, cut_victim);
	victim = &t.sample;
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_says(&t, -ENODATA, "faults-0: ends at byte 1048676, expected 5242957 bytes");
	end_trial(&t);
}

static void test_files_that_change(void)
{
	by_every_method(try_changed);
}

/* ---- cancelling ------------------------------------------------------------------------ */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool reached; /* a read is in flight */
	bool go_on;
	unsigned int inside; /* reads that have not returned */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

/* Stops reads until the test has done what it wants to do meanwhile. */
static void hold_at_gate(unsigned int n)
{
	(void)n;
	pthread_mutex_lock(&gate.lock);
	gate.inside++;
	gate.reached = true;
	pthread_cond_broadcast(&gate.cond);
	while (!gate.go_on)
		pthread_cond_wait(&gate.cond, &gate.lock);
	gate.inside--;
	pthread_mutex_unlock(&gate.lock);
}

static void open_gate(void)
{
	pthread_mutex_lock(&gate.lock);
	gate.go_on = true;
	pthread_cond_broadcast(&gate.cond);
	pthread_mutex_unlock(&gate.lock);
}

static void await_gate(void)
{
	pthread_mutex_lock(&gate.lock);
	while (!gate.reached)
		pthread_cond_wait(&gate.cond, &gate.lock);
	pthread_mutex_unlock(&gate.lock);
}

/* Two jobs: the first is cancelled with reads in flight, the second before it has any. */
static void try_cancel(enum ctn_stage_method method)
{
	struct ctn_stage_job *jobs[2];
	struct ctn_digest expected;
	struct frame_of second;
	struct waiter w[2];
	struct trial t;

	gate.reached = gate.go_on = false;
	begin_trial(&t, method, 2, NULL, hold_at_gate);
	take_frame(&second, t.pool, &t.sample, 2);
	for (int i = 0; i < 2; i++) {
		const struct frame_of *f = i ? &second : &t.frame;

		waiter_init(&w[i]);
		CU_ASSERT_EQUAL_FATAL(ctn_stage_submit(t.stage, &t.sample.ckpt, &t.sample.part,
						       f->extents, f->count, waiter_done, &w[i],
						       &jobs[i], NULL),
				      0);
	}
	await_gate();
	ctn_stage_cancel(t.stage, jobs[1]);
	ctn_stage_cancel(t.stage, jobs[0]);
	ctn_stage_cancel(t.stage, jobs[0]);
	/* A read is held, so the first job cannot have ended. */
	pthread_mutex_lock(&w[0].lock);
	CU_ASSERT_EQUAL(w[0].calls, 0);
	pthread_mutex_unlock(&w[0].lock);
	open_gate();
	for (int i = 0; i < 2; i++) {
		waiter_wait(&w[i]);
		CU_ASSERT_EQUAL(w[i].result.rc, -ECANCELED);
		CU_ASSERT_EQUAL(w[i].calls, 1);
	}
	pthread_mutex_lock(&gate.lock);
	CU_ASSERT_EQUAL(gate.inside, 0);
	pthread_mutex_unlock(&gate.lock);
	CU_ASSERT_TRUE(atomic_load(&calls) <= 4);

	before_read = NULL;
	t.result = run_job(t.stage, &t.sample, &t.frame);
	check_right(&t);
	/* Nothing was read into the frame of the second. */
	CU_ASSERT_EQUAL(compare(&t.sample, &second, &expected), 7);
	CU_ASSERT_EQUAL(ctn_pool_abort(t.pool, second.ref), 0);
	end_trial(&t);
}

static void test_cancel(void)
{
	by_every_method(try_cancel);
}

/* A job that is all read when it is cancelled may end either way, but only once. */
static void test_cancel_at_random_moments(void)
{
	struct trial t;

	begin_trial(&t, -1, 4, NULL, NULL);
	for (unsigned int i = 0; i < 60; i++) {
		struct timespec pause = {0, i * 200000};
		struct ctn_stage_job *job;
		struct waiter w;

		waiter_init(&w);
		CU_ASSERT_EQUAL_FATAL(ctn_stage_submit(t.stage, &t.sample.ckpt, &t.sample.part,
						       t.frame.extents, t.frame.count, waiter_done,
						       &w, &job, NULL),
				      0);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&w.lock);
		if (!w.calls)
			ctn_stage_cancel(t.stage, job);
		pthread_mutex_unlock(&w.lock);
		waiter_wait(&w);
		CU_ASSERT_TRUE(w.result.rc == 0 || w.result.rc == -ECANCELED);
		t.result = w.result;
		if (w.result.rc == 0)
			check_right(&t);
	}
	end_trial(&t);
}

CTN_TESTS("stage_faults", CTN_TEST(test_short_reads_go_on), CTN_TEST(test_interrupted_reads_go_on),
	  CTN_TEST(test_no_progress_is_an_error), CTN_TEST(test_a_bad_sector),
	  CTN_TEST(test_files_that_change), CTN_TEST(test_cancel),
	  CTN_TEST(test_cancel_at_random_moments))
