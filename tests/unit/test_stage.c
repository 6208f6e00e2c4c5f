// SPDX-License-Identifier: MIT
/* The right bytes and digests, by every method; what is reported of them. */
#include "test.h"
#include "stage_fixture.h"

#include <dirent.h>

static void check_right(const struct sample *s, const struct frame_of *f,
			const struct ctn_stage_result *r)
{
	struct ctn_digest expected, again;

	if (r->rc)
		printf("# %s\n", r->err.msg);
	CU_ASSERT_EQUAL(r->rc, 0);
	CU_ASSERT_EQUAL(compare(s, f, &expected), 0);
	CU_ASSERT_EQUAL(memcmp(r->digest.bytes, expected.bytes, 16), 0);
	CU_ASSERT_EQUAL(r->bytes, s->run_bytes);
	ctn_part_digest(&s->ckpt, &s->part, f->extents, f->count, &again);
	CU_ASSERT_EQUAL(memcmp(again.bytes, expected.bytes, 16), 0);
}

static int open_flags;
static unsigned int registered;

static int watch_open(void *ctx, const char *path, int flags)
{
	int fd = open(path, flags);

	(void)ctx;
	open_flags = flags;
	return fd < 0 ? -errno : fd;
}

static int watch_register(void *ctx, unsigned int buffers)
{
	(void)ctx;
	registered += buffers;
	return 0;
}

static const struct ctn_stage_sys watch = {.open = watch_open, .uring_register = watch_register};

static void try_method(enum ctn_stage_method method)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage *stage = open_stage(pool, (int)method, 0, &watch);
	struct ctn_stage_stats stats;
	struct ctn_stage_result r;
	uint64_t ns = 0;
	struct frame_of f;
	struct sample s;
	unsigned int segments = 0;

	make_sample(&s, ctn_test_tmpdir(), "methods");
	registered = 0;
	for (unsigned int round = 0; round < 3; round++) {
		take_frame(&f, pool, &s, 1);
		CU_ASSERT_TRUE(f.count > 3);
		r = run_job(stage, &s, &f);
		check_right(&s, &f, &r);
		CU_ASSERT_EQUAL(r.method, method);
		CU_ASSERT_TRUE(r.nanoseconds > 0);
		ns += r.nanoseconds;
		for (uint32_t i = 0; i < f.count && round == 0; i++)
			segments += i == 0 || f.extents[i].segment != f.extents[i - 1].segment;
		CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	}
	CU_ASSERT_EQUAL((open_flags & O_DIRECT) != 0, method != CTN_STAGE_BUFFERED);
	/* Each hot segment once, and only by the method that needs it. */
	if (method == CTN_STAGE_URING_FIXED)
		CU_ASSERT_TRUE(registered >= 1 && registered <= 4 && registered <= segments)
	else
		CU_ASSERT_EQUAL(registered, 0);
	ctn_stage_get_stats(stage, &stats);
	for (int m = 0; m < CTN_STAGE_METHODS; m++) {
		CU_ASSERT_EQUAL(stats.jobs[m], m == (int)method ? 3 : 0);
		CU_ASSERT_EQUAL(stats.bytes[m], m == (int)method ? 3 * s.run_bytes : 0);
	}
	CU_ASSERT_EQUAL(stats.nanoseconds, ns);
	CU_ASSERT_TRUE(stats.reads >= 3 * s.run_bytes / CTN_MIB);
	/* All of them together were never idle, and never more than there are requests. */
	CU_ASSERT_TRUE(stats.read_nanoseconds >= ns && stats.read_nanoseconds <= 16 * ns);
	CU_ASSERT_TRUE(stats.hash_cpu_nanoseconds > 0);
	CU_ASSERT_STRING_EQUAL(stats.why, "");
	ctn_stage_close(stage);
	ctn_pool_close(pool);
}

static void test_uring_fixed(void)
{
	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	try_method(CTN_STAGE_URING_FIXED);
}

static void test_uring(void)
{
	NEEDS_METHOD(CTN_STAGE_URING);
	try_method(CTN_STAGE_URING);
}

static void test_pread(void)
{
	NEEDS_METHOD(CTN_STAGE_PREAD);
	try_method(CTN_STAGE_PREAD);
}

static void test_buffered(void)
{
	try_method(CTN_STAGE_BUFFERED);
}

static void test_the_best_method_is_taken(void)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage *stage = open_stage(pool, -1, 0, NULL);
	struct ctn_stage_stats stats;
	struct ctn_stage_result r;
	struct frame_of f;
	struct sample s;

	make_sample(&s, ctn_test_tmpdir(), "best");
	take_frame(&f, pool, &s, 1);
	r = run_job(stage, &s, &f);
	check_right(&s, &f, &r);
	CU_ASSERT_EQUAL(r.method, best_method(s.paths[0]));
	ctn_stage_get_stats(stage, &stats);
	CU_ASSERT_EQUAL(stats.why[0] == '\0', r.method == CTN_STAGE_URING_FIXED);
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

static void test_method_names(void)
{
	enum ctn_stage_method m;

	for (int i = 0; i < CTN_STAGE_METHODS; i++) {
		CU_ASSERT_EQUAL(
			ctn_stage_method_parse(ctn_stage_method_name((enum ctn_stage_method)i), &m),
			0);
		CU_ASSERT_EQUAL((int)m, i);
	}
	CU_ASSERT_EQUAL(ctn_stage_method_parse("telepathy", &m), -ENOENT);
}

/* A part of one empty tensor is read without reading; its digest is that of nothing. */
static void test_a_part_without_bytes(void)
{
	struct ctn_pool *pool = ctn_test_pool("plain", 8 * CTN_MIB, 0, false);
	struct ctn_stage *stage = open_stage(pool, -1, 0, NULL);
	struct span span = {0, 10, 0};
	struct ctn_stage_result r;
	struct frame_of f;
	struct sample s;

	make_sample(&s, ctn_test_tmpdir(), "empty");
	lay_out(&s, &span, 1);
	take_frame(&f, pool, &s, 1);
	r = run_job(stage, &s, &f);
	check_right(&s, &f, &r);
	CU_ASSERT_EQUAL(r.bytes, 0);
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

static void test_without_hashing(void)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage_config cfg = {.pool = pool, .method = CTN_STAGE_BUFFERED};
	struct ctn_digest expected, none = {{0}};
	struct ctn_stage_result r;
	struct ctn_stage *stage;
	struct frame_of f;
	struct sample s;

	CU_ASSERT_EQUAL_FATAL(ctn_stage_open(&cfg, &stage, NULL), 0);
	make_sample(&s, ctn_test_tmpdir(), "no-hash");
	take_frame(&f, pool, &s, 1);
	r = run_job(stage, &s, &f);
	CU_ASSERT_EQUAL(r.rc, 0);
	CU_ASSERT_EQUAL(compare(&s, &f, &expected), 0);
	CU_ASSERT_EQUAL(memcmp(&r.digest, &none, sizeof(none)), 0);
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

/* What is wrong with a plan or a frame is said at once, and `done` never comes. */
static void test_bad_layouts(void)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage *stage = open_stage(pool, -1, 0, NULL);
	struct ctn_extent odd;
	struct frame_of f, g;
	struct sample s;

	make_sample(&s, ctn_test_tmpdir(), "layout");
	take_frame(&f, pool, &s, 1);
	s.runs[0].file_offset += 512;
	CU_ASSERT_EQUAL(run_job(stage, &s, &f).rc, -EINVAL);
	s.runs[0].file_offset -= 512;
	s.runs[0].file = 2;
	CU_ASSERT_EQUAL(run_job(stage, &s, &f).rc, -EINVAL);
	s.runs[0].file = 0;
	s.runs[0].bytes += 6 * CTN_MIB;
	CU_ASSERT_EQUAL(run_job(stage, &s, &f).rc, -EINVAL);
	s.runs[0].bytes -= 6 * CTN_MIB;
	g = f;
	g.count--;
	CU_ASSERT_EQUAL(run_job(stage, &s, &g).rc, -EINVAL);
	odd = f.extents[0];
	odd.addr += 8;
	g.extents = &odd;
	g.count = 1;
	CU_ASSERT_EQUAL(run_job(stage, &s, &g).rc, -EINVAL);
	CU_ASSERT_EQUAL(run_job(stage, &s, &f).rc, 0);
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

/* Jobs from several threads at once, on two storage devices where there are two; frames of
 * an earlier round stay CLEAN in the segments that the second device's ring registers. */
#define SUBMITTERS 4

struct submitter {
	struct ctn_stage *stage;
	struct ctn_pool *pool;
	const struct sample *sample;
	struct frame_of frames[2];
	unsigned int key;
	unsigned int wrong;
	pthread_t thread;
};

static void *submit_two(void *arg)
{
	struct submitter *u = arg;
	struct ctn_stage_job *jobs[2];
	struct ctn_digest expected;
	struct waiter w[2];

	for (unsigned int i = 0; i < 2; i++) {
		waiter_init(&w[i]);
		take_frame(&u->frames[i], u->pool, u->sample, u->key + i);
		u->wrong += ctn_stage_submit(u->stage, &u->sample->ckpt, &u->sample->part,
					     u->frames[i].extents, u->frames[i].count, waiter_done,
					     &w[i], &jobs[i], NULL) != 0;
	}
	for (unsigned int i = 0; i < 2; i++) {
		waiter_wait(&w[i]);
		u->wrong += w[i].result.rc != 0;
		u->wrong += compare(u->sample, &u->frames[i], &expected);
		u->wrong += memcmp(expected.bytes, w[i].result.digest.bytes, 16) != 0;
		u->wrong += ctn_pool_seal(u->pool, u->frames[i].ref, &expected, NULL) != 0;
		ctn_pool_release(u->pool, u->frames[i].ref);
	}
	return NULL;
}

static void test_many_jobs_on_two_devices(void)
{
	unsigned int descriptors = open_descriptors();
	struct ctn_pool *pool = ctn_test_pool(NULL, 512 * CTN_MIB, 64 * CTN_MIB, false);
	struct ctn_stage *stage = open_stage(pool, -1, 0, NULL);
	bool shm = access("/dev/shm", W_OK) == 0;
	struct submitter u[SUBMITTERS] = {0};
	struct ctn_stage_stats stats;
	struct sample s[2];
	char name[64];
	uint64_t jobs = 0;

	snprintf(name, sizeof(name), "ctn-test-%d", (int)getpid());
	make_sample(&s[0], ctn_test_tmpdir(), "many");
	make_sample(&s[1], shm ? "/dev/shm" : ctn_test_tmpdir(), name);
	for (unsigned int round = 0; round < 2; round++) {
		for (unsigned int i = 0; i < SUBMITTERS; i++) {
			u[i] = (struct submitter){.stage = stage,
						  .pool = pool,
						  .sample = &s[round ? i % 2 : 0],
						  .key = round * 100 + i * 2};
			pthread_create(&u[i].thread, NULL, submit_two, &u[i]);
		}
		for (unsigned int i = 0; i < SUBMITTERS; i++) {
			pthread_join(u[i].thread, NULL);
			CU_ASSERT_EQUAL(u[i].wrong, 0);
		}
	}
	ctn_stage_get_stats(stage, &stats);
	for (int m = 0; m < CTN_STAGE_METHODS; m++)
		jobs += stats.jobs[m];
	CU_ASSERT_EQUAL(jobs, 4 * SUBMITTERS);
	ctn_stage_close(stage);
	ctn_pool_close(pool);
	CU_ASSERT_EQUAL(open_descriptors(), descriptors);
	unlink(s[1].paths[0]);
	unlink(s[1].paths[1]);
}

/* Warm segments are read into without being registered; the forced method says no. */
static void test_warm_segments(void)
{
	struct ctn_pool *pool = fragmented_pool(16 * CTN_MIB);
	struct ctn_stage_stats stats;
	struct ctn_stage_result r;
	struct ctn_stage *stage;
	struct frame_of f;
	struct sample s;

	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	make_sample(&s, ctn_test_tmpdir(), "warm");
	take_frame(&f, pool, &s, 1);
	stage = open_stage(pool, -1, 0, NULL);
	r = run_job(stage, &s, &f);
	check_right(&s, &f, &r);
	CU_ASSERT_EQUAL(r.method, CTN_STAGE_URING_FIXED);
	for (uint32_t i = 0; i < ctn_pool_segment_count(pool); i++)
		ctn_pool_set_hot(pool, i, false);
	r = run_job(stage, &s, &f);
	check_right(&s, &f, &r);
	CU_ASSERT_EQUAL(r.method, CTN_STAGE_URING);
	ctn_stage_get_stats(stage, &stats);
	CU_ASSERT_PTR_NOT_NULL(strstr(stats.why, "is warm"));
	for (uint32_t i = 0; i < ctn_pool_segment_count(pool); i++)
		ctn_pool_set_hot(pool, i, true);
	r = run_job(stage, &s, &f);
	check_right(&s, &f, &r);
	CU_ASSERT_EQUAL(r.method, CTN_STAGE_URING_FIXED);
	ctn_stage_close(stage);

	ctn_pool_set_hot(pool, f.extents[0].segment, false);
	stage = open_stage(pool, CTN_STAGE_URING_FIXED, 0, NULL);
	r = run_job(stage, &s, &f);
	CU_ASSERT_EQUAL(r.rc, -ENOTSUP);
	CU_ASSERT_PTR_NOT_NULL(strstr(r.err.msg, "uring-fixed"));
	ctn_stage_close(stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
	ctn_pool_close(pool);
}

CTN_TESTS("stage", CTN_TEST(test_uring_fixed), CTN_TEST(test_uring), CTN_TEST(test_pread),
	  CTN_TEST(test_buffered), CTN_TEST(test_the_best_method_is_taken),
	  CTN_TEST(test_method_names), CTN_TEST(test_a_part_without_bytes),
	  CTN_TEST(test_without_hashing), CTN_TEST(test_bad_layouts),
	  CTN_TEST(test_many_jobs_on_two_devices), CTN_TEST(test_warm_segments))
