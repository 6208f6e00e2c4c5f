// SPDX-License-Identifier: MIT
/* The memory of a job's frame: found by the stage and not by the caller, while other jobs are
 * read; or not found. */
#include "test.h"
#include "stage_fixture.h"
#include "populate_gate.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool closed;
} read_gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static void set_read_gate(bool closed)
{
	pthread_mutex_lock(&read_gate.lock);
	read_gate.closed = closed;
	pthread_cond_broadcast(&read_gate.cond);
	pthread_mutex_unlock(&read_gate.lock);
}

static ssize_t pread_at_gate(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	ssize_t n;

	(void)ctx;
	pthread_mutex_lock(&read_gate.lock);
	while (read_gate.closed)
		pthread_cond_wait(&read_gate.cond, &read_gate.lock);
	pthread_mutex_unlock(&read_gate.lock);
	n = pread(fd, buf, len, (off_t)offset);
	return n < 0 ? -errno : n;
}

static const struct ctn_stage_sys sys = {.pread = pread_at_gate};

struct trial {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct sample sample;
	struct frame_of frames[2]; /* the first has memory, the second has not */
	struct waiter waiters[2];
	struct ctn_stage_job *jobs[2];
};

static char folder[] = "a-checkpoint";

static void begin_trial(struct trial *t)
{
	struct ctn_frame_key key = ctn_test_key(2);
	struct frame_of *f = &t->frames[1];

	memset(t, 0, sizeof(*t));
	t->pool = ctn_test_pool("plain", 64 * CTN_MIB, 16 * CTN_MIB, true);
	t->stage = open_stage(t->pool, CTN_STAGE_BUFFERED, 0, &sys);
	make_sample(&t->sample, ctn_test_tmpdir(), "commit");
	t->sample.ckpt.dir = folder;
	t->sample.part.id = 77;
	take_frame(&t->frames[0], t->pool, &t->sample, 1);
	f->pool = t->pool;
	CU_ASSERT_EQUAL_FATAL(
		ctn_pool_alloc(t->pool, &key, t->sample.part.frame_bytes, -1, &f->ref), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(t->pool, f->ref, &f->extents, &f->count), 0);
}

static void submit(struct trial *t, int i)
{
	waiter_init(&t->waiters[i]);
	CU_ASSERT_EQUAL_FATAL(ctn_stage_submit(t->stage, &t->sample.ckpt, &t->sample.part,
					       t->frames[i].extents, t->frames[i].count,
					       waiter_done, &t->waiters[i], &t->jobs[i], NULL),
			      0);
}

static void check_right(struct trial *t, int i)
{
	struct ctn_digest expected;

	waiter_wait(&t->waiters[i]);
	CU_ASSERT_EQUAL(t->waiters[i].result.rc, 0);
	CU_ASSERT_EQUAL(compare(&t->sample, &t->frames[i], &expected), 0);
	CU_ASSERT_EQUAL(memcmp(expected.bytes, t->waiters[i].result.digest.bytes, 16), 0);
}

/* Nothing is left behind: all of the pool is free again. */
static void end_trial(struct trial *t)
{
	ctn_stage_close(t->stage);
	for (int i = 0; i < 2; i++)
		CU_ASSERT_EQUAL(ctn_pool_abort(t->pool, t->frames[i].ref), 0);
	ctn_test_books(t->pool, 64 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_close(t->pool);
}

/* The second job's memory is awaited, by nobody but itself: its submission has returned, and
 * the first is read from its first byte to its last. */
static void test_reads_go_on_while_a_job_commits(void)
{
	struct trial t;

	begin_trial(&t);
	set_read_gate(true);
	submit(&t, 0);
	populate_gate_set(true, 0);
	submit(&t, 1);
	populate_gate_await();
	set_read_gate(false);
	check_right(&t, 0);
	CU_ASSERT_TRUE(populate_gate_occupied());
	pthread_mutex_lock(&t.waiters[1].lock);
	CU_ASSERT_EQUAL(t.waiters[1].calls, 0);
	pthread_mutex_unlock(&t.waiters[1].lock);
	populate_gate_set(false, 0);
	check_right(&t, 1);
	end_trial(&t);
}

static void test_no_memory_fails_the_job(void)
{
	struct ctn_stage_result r;
	struct trial t;

	begin_trial(&t);
	populate_gate_set(false, -ENOMEM);
	r = run_job(t.stage, &t.sample, &t.frames[1]);
	CU_ASSERT_EQUAL(r.rc, -ENOMEM);
	CU_ASSERT_EQUAL(r.bytes, 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(r.err.msg, "part 77"));
	CU_ASSERT_PTR_NOT_NULL(strstr(r.err.msg, folder));
	/* Others have theirs, and what was refused may be given later. */
	submit(&t, 0);
	check_right(&t, 0);
	populate_gate_set(false, 0);
	submit(&t, 1);
	check_right(&t, 1);
	end_trial(&t);
}

/* One that waits for its memory, and one that waits behind it. */
static void test_cancel_before_there_is_memory(void)
{
	struct trial t;

	begin_trial(&t);
	populate_gate_set(true, 0);
	submit(&t, 1);
	populate_gate_await();
	submit(&t, 0);
	ctn_stage_cancel(t.stage, t.jobs[0]);
	ctn_stage_cancel(t.stage, t.jobs[1]);
	populate_gate_set(false, 0);
	for (int i = 0; i < 2; i++) {
		waiter_wait(&t.waiters[i]);
		CU_ASSERT_EQUAL(t.waiters[i].result.rc, -ECANCELED);
		CU_ASSERT_EQUAL(t.waiters[i].result.bytes, 0);
		CU_ASSERT_EQUAL(t.waiters[i].calls, 1);
	}
	end_trial(&t);
}

CTN_TESTS("stage_commit", CTN_TEST(test_reads_go_on_while_a_job_commits),
	  CTN_TEST(test_no_memory_fails_the_job), CTN_TEST(test_cancel_before_there_is_memory))
