// SPDX-License-Identifier: MIT
/* The provider of a pool that a kernel module keeps: opening, what stands in for it, its memory. */
#include "test.h"
#include "kmod_fixture.h"
#include "stage_fixture.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- refusals ----------------------------------------------------------------------------- */

/* Whoever asks for it is told what is wrong; whoever does not gets the next best, and is told. */
static void refused(struct module *m, const char *word, int code)
{
	struct ctn_pool_config cfg = module_config(m, 8 * CTN_MIB, 0);
	struct ctn_err err = {0};
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	int rc = ctn_pool_open(&cfg, &pool, &err);

	CU_ASSERT_EQUAL(rc, code);
	CU_ASSERT_PTR_NOT_NULL_FATAL(strstr(err.msg, word));
	cfg.provider = NULL;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, &err), 0);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_STRING_NOT_EQUAL(s.provider, "kmod");
	CU_ASSERT_EQUAL(strncmp(s.why, "kmod: ", 6), 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(s.why, word));
	ctn_pool_close(pool);
}

static void test_another_provider_stands_in(void)
{
	struct fake_kmod_faults *f;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	f = fake_kmod_faults(m.fake);
	f->open = -ENOENT;
	refused(&m, "modprobe computron", -ENOTSUP);
	f->open = -EACCES;
	refused(&m, "usermod", -ENOTSUP);
	f->open = 0;
	f->info = -ENOTTY;
	refused(&m, "no computron module", -ENOTSUP);
	f->info = 0;
	f->unit = 512 * CTN_MIB;
	refused(&m, "536870912", -ENOTSUP);
	f->unit = 0;
	f->max_bytes = 4 * CTN_MIB;
	refused(&m, "max_bytes", -ENOSPC);
	f->max_bytes = 0;
	pool = module_pool(&m, 8 * CTN_MIB, 0);
	ctn_pool_close(pool);
	f->pool_open = -EACCES;
	refused(&m, "another user", -EACCES);
	f->pool_open = 0;
	CU_ASSERT_EQUAL(fake_kmod_files(m.fake), 0);
	module_free(&m);
}

static void test_abi(void)
{
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	NEEDS_FAKE(&m);
	/* A newer one serves as well, by the rules of the header. */
	fake_kmod_faults(m.fake)->abi = COMPUTRON_ABI + 1;
	pool = module_pool(&m, 8 * CTN_MIB, 0);
	ctn_pool_close(pool);
	if (COMPUTRON_ABI > 1) {
		fake_kmod_faults(m.fake)->abi = COMPUTRON_ABI - 1;
		refused(&m, "ABI", -ENOTSUP);
	}
	module_free(&m);
}

static void test_it_is_the_first_choice(void)
{
	struct ctn_pool_config cfg;
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	cfg = module_config(&m, 8 * CTN_MIB, 0);
	cfg.provider = NULL;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_STRING_EQUAL(s.provider, "kmod");
	CU_ASSERT_STRING_EQUAL(s.why, "");
	ctn_pool_close(pool);
	module_free(&m);
}

static void test_names(void)
{
	static const char *const bad[] = {"", ".hidden", "a/b", "with space",
					  "a-name-of-thirty-two-characters-"};
	struct ctn_pool_config cfg;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	cfg = module_config(&m, 8 * CTN_MIB, 0);
	for (size_t i = 0; i < CTN_ARRAY_LEN(bad); i++) {
		struct ctn_err err = {0};

		cfg.name = bad[i];
		CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, bad[i]));
	}
	module_free(&m);
}

/* ---- a pool that is there ---------------------------------------------------------------- */

static void test_other_sizes(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	struct ctn_pool_config cfg;
	struct ctn_frame_info info;
	struct ctn_err err = {0};
	struct ctn_pool *pool;
	struct module m;
	int other;

	module_new(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 8 * CTN_MIB);
	ctn_test_clean(pool, 1, CTN_MIB);
	ctn_pool_close(pool);

	/* Whoever does not mind gets it as it is. */
	cfg = module_config(&m, 64 * CTN_MIB, 0);
	cfg.bytes_wished = true;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	CU_ASSERT_EQUAL(ctn_pool_segment_count(pool), 2);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	ctn_pool_close(pool);
	/* The same size, and no wish for the segments. */
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	CU_ASSERT_EQUAL(ctn_pool_segment_count(pool), 2);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	ctn_pool_close(pool);

	/* Somebody uses it: it stays, and that is told. */
	other = module_other(&m);
	cfg = module_config(&m, 24 * CTN_MIB, 0);
	CU_ASSERT_EQUAL(ctn_pool_open(&cfg, &pool, &err), -EBUSY);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "in use"));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "16.00 MiB"));
	m.sys->close(m.sys->ctx, other);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	CU_ASSERT_EQUAL(ctn_pool_lookup(pool, &key, &info), 0);
	ctn_pool_close(pool);

	/* Nobody does: made anew. */
	pool = module_pool(&m, 24 * CTN_MIB, 0);
	ctn_test_books(pool, 24 * CTN_MIB, 0, 0, 0, 0);
	ctn_test_clean(pool, 1, CTN_MIB);
	ctn_pool_close(pool);
	pool = module_pool(&m, 24 * CTN_MIB, 4 * CTN_MIB);
	ctn_test_books(pool, 24 * CTN_MIB, 0, 0, 0, 0);
	CU_ASSERT_EQUAL(ctn_pool_segment_count(pool), 6);
	ctn_pool_close(pool);
	module_free(&m);
}

/* Tools take a pool of their own, beside the daemon's, and leave none. */
static void test_temporary_pools(void)
{
	struct computron_info info = {0}, after = {0};
	struct ctn_pool_config cfg;
	struct ctn_pool *daemon, *a, *b;
	struct ctn_pool_stats s;
	struct module m;
	int dev;

	module_new(&m);
	daemon = module_pool(&m, 8 * CTN_MIB, 0);
	cfg = module_config(&m, 16 * CTN_MIB, 0);
	cfg.temporary = true;
	dev = module_device(&m);
	CU_ASSERT_EQUAL(MODULE_CALL(&m, dev, COMPUTRON_IOC_INFO, &info), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &a, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &b, NULL), 0);
	ctn_test_clean(a, 1, CTN_MIB);
	ctn_test_books(b, 16 * CTN_MIB, 0, 0, 0, 0);
	ctn_pool_get_stats(daemon, false, &s);
	CU_ASSERT_EQUAL(s.frames, 0);
	ctn_pool_close(a);
	ctn_pool_close(b);
	/* A pool counts until the last of its memory is given back. */
	for (int i = 0; i < 500; i++) {
		CU_ASSERT_EQUAL(MODULE_CALL(&m, dev, COMPUTRON_IOC_INFO, &after), 0);
		if (after.pools == info.pools)
			break;
		usleep(10000);
	}
	CU_ASSERT_EQUAL(after.pools, info.pools);
	m.sys->close(m.sys->ctx, dev);
	ctn_pool_close(daemon);
	module_free(&m);
}

/* ---- faults ------------------------------------------------------------------------------ */

static void test_no_memory(void)
{
	struct ctn_frame_key key = ctn_test_key(1);
	struct fake_kmod_faults *f;
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	struct module m;
	uint32_t count;

	module_new(&m);
	NEEDS_FAKE(&m);
	f = fake_kmod_faults(m.fake);
	pool = module_pool(&m, 8 * CTN_MIB, 0);
	f->extents = -ENOMEM;
	CU_ASSERT_EQUAL(ctn_pool_alloc(pool, &key, CTN_MIB, -1, &ref), -ENOMEM);
	ctn_test_books(pool, 8 * CTN_MIB, 0, 0, 0, 0);
	f->extents = 0;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, CTN_MIB, -1, &ref), 0);
	f->populate = -ENOMEM;
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), -ENOMEM);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -EINVAL);
	f->populate = 0;
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), 0);
	f->seal = -ENOMEM;
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), -ENOMEM);
	/* LOADING still, and ours to write. */
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	extents[0].addr[0] = 1;
	f->seal = 0;
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), 0);
	ctn_pool_release(pool, ref);
	f->extents = -ENOMEM;
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), -ENOMEM);
	ctn_test_books(pool, 8 * CTN_MIB, 0, CTN_EXTENT_ALIGN, 0, 1);
	f->extents = 0;
	CU_ASSERT_EQUAL(ctn_pool_lease(pool, ref), 0);
	ctn_pool_release(pool, ref);
	ctn_pool_close(pool);
	module_free(&m);
}

/* ---- its memory --------------------------------------------------------------------------- */

static int write_all(void *arg, const struct ctn_segment *segment)
{
	*(bool *)arg = segment->hot;
	for (uint64_t at = 0; at < segment->bytes; at += 4096)
		((volatile uint8_t *)segment->addr)[at] |= 0;
	return 7;
}

/* A child with a pool of its own does `act` to a frame and writes to it. */
static int write_in_child(void (*act)(struct ctn_pool *, struct ctn_frame_ref))
{
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_pool *pool;
	struct module m;
	uint32_t count;
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		module_new(&m);
		pool = module_pool(&m, 8 * CTN_MIB, 0);
		ref = ctn_test_clean(pool, 1, 4 * CTN_MIB);
		if (ctn_pool_lease(pool, ref) || ctn_pool_extents(pool, ref, &extents, &count))
			_exit(1);
		act(pool, ref);
		signal(SIGSEGV, SIG_DFL);
		*(volatile uint8_t *)(extents[0].addr + 12345) = 1;
		_exit(0);
	}
	CU_ASSERT_EQUAL(waitpid(pid, &status, 0), pid);
	return status;
}

static void act_nothing(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	(void)pool;
	(void)ref;
}

static void act_pin(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	bool hot;

	(void)ref;
	if (ctn_pool_pin_segment(pool, 0, write_all, &hot) != 7)
		_exit(2);
}

static void test_clean_is_read_only(void)
{
	int status = write_in_child(act_nothing);

	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	status = write_in_child(act_pin);
	CU_ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void test_hot_segments(void)
{
	struct ctn_frame_key key = ctn_test_key(3);
	struct ctn_pool_config cfg;
	const struct ctn_extent *extents;
	struct ctn_frame_ref ref;
	struct ctn_segment seg;
	struct ctn_pool *pool;
	bool hot = false;
	struct module m;
	uint32_t count;

	module_new(&m);
	/* None is, unless somebody says so: what is hot cannot be taken back. */
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	for (uint32_t i = 0; i < 3; i++) {
		ctn_pool_segment(pool, i, &seg);
		CU_ASSERT_FALSE(seg.hot);
	}
	ctn_pool_close(pool);
	cfg = module_config(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	cfg.hot_bytes = 17 * CTN_MIB;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	for (uint32_t i = 0; i < 3; i++) {
		ctn_pool_segment(pool, i, &seg);
		CU_ASSERT_EQUAL(seg.hot, i < 2);
	}
	/* A LOADING frame stays writable over a pin, and a CLEAN one can be evicted after it. */
	CU_ASSERT_EQUAL_FATAL(ctn_pool_alloc(pool, &key, 4 * CTN_MIB, -1, &ref), 0);
	CU_ASSERT_EQUAL(ctn_test_commit(pool, ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_pin_segment(pool, 0, write_all, &hot), 7);
	CU_ASSERT_TRUE(hot);
	CU_ASSERT_EQUAL_FATAL(ctn_pool_extents(pool, ref, &extents, &count), 0);
	memset(extents[0].addr, 0x11, extents[0].bytes);
	CU_ASSERT_EQUAL(ctn_pool_seal(pool, ref, NULL, NULL), 0);
	ctn_pool_release(pool, ref);
	if (m.fake)
		fake_kmod_pin(m.fake, POOL_NAME, ref.id, true);
	CU_ASSERT_EQUAL(ctn_pool_evict(pool, ref), 0);
	ctn_pool_set_hot(pool, 0, false);
	ctn_pool_segment(pool, 0, &seg);
	CU_ASSERT_FALSE(seg.hot);
	ctn_pool_set_hot(pool, 0, true);
	ctn_pool_segment(pool, 0, &seg);
	CU_ASSERT_TRUE(seg.hot);
	ctn_pool_close(pool);
	/* It ended with us. */
	pool = module_pool(&m, 24 * CTN_MIB, 8 * CTN_MIB);
	ctn_pool_set_hot(pool, 1, true);
	ctn_pool_segment(pool, 1, &seg);
	CU_ASSERT_TRUE(seg.hot);
	ctn_pool_close(pool);
	module_free(&m);
}

/* What DMA still writes for a process that was killed stands in the way, for a moment. */
static void test_hot_after_a_kill(void)
{
	struct ctn_pool_config cfg;
	struct ctn_segment seg;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	cfg = module_config(&m, 16 * CTN_MIB, 8 * CTN_MIB);
	cfg.hot_bytes = 8 * CTN_MIB;
	if (m.fake)
		fake_kmod_faults(m.fake)->hot_busy = 5;
	CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
	ctn_pool_segment(pool, 0, &seg);
	CU_ASSERT_TRUE(seg.hot);
	ctn_pool_close(pool);
	module_free(&m);
}

/* The mappings are this process's own, and the module's word is kept apart from /proc's. */
static void test_the_kernels_figures(void)
{
	struct ctn_pool_stats s;
	struct ctn_pool *pool;
	struct module m;

	module_new(&m);
	pool = module_pool(&m, 16 * CTN_MIB, 0);
	ctn_test_clean(pool, 1, 6 * CTN_MIB);
	ctn_pool_get_stats(pool, true, &s);
	CU_ASSERT_EQUAL(s.resident_bytes, 6 * CTN_MIB);
	CU_ASSERT(s.huge_bytes <= s.resident_bytes);
	CU_ASSERT_EQUAL(s.module_bytes, 6 * CTN_MIB);
	CU_ASSERT(s.module_huge_bytes <= s.module_bytes);
	if (m.fake)
		CU_ASSERT_EQUAL(s.module_huge_bytes, 4 * CTN_MIB);
	ctn_pool_get_stats(pool, false, &s);
	CU_ASSERT_EQUAL(s.module_bytes, 0);
	ctn_pool_close(pool);
	module_free(&m);
}

/* By the best method that there is, registered where that is allowed, and otherwise not. */
static void test_staging_into_it(void)
{
	static const uint64_t hot_bytes[] = {UINT64_MAX, 32 * CTN_MIB};

	for (size_t i = 0; i < CTN_ARRAY_LEN(hot_bytes); i++) {
		struct ctn_pool_config cfg;
		struct ctn_digest expected;
		struct ctn_stage_result r;
		struct ctn_stage *stage;
		struct ctn_pool *pool;
		struct frame_of f;
		struct sample s;
		struct module m;

		module_new(&m);
		make_sample(&s, ctn_test_tmpdir(), i ? "hot" : "warm");
		cfg = module_config(&m, 32 * CTN_MIB, 16 * CTN_MIB);
		cfg.hot_bytes = hot_bytes[i];
		CU_ASSERT_EQUAL_FATAL(ctn_pool_open(&cfg, &pool, NULL), 0);
		stage = open_stage(pool, -1, 0, NULL);
		take_frame(&f, pool, &s, 1);
		r = run_job(stage, &s, &f);
		CU_ASSERT_EQUAL(r.rc, 0);
		if (i)
			CU_ASSERT_EQUAL(r.method, best_method(s.paths[0]));
		CU_ASSERT_EQUAL(compare(&s, &f, &expected), 0);
		CU_ASSERT_EQUAL(memcmp(&expected, &r.digest, sizeof(expected)), 0);
		ctn_stage_close(stage);
		CU_ASSERT_EQUAL(ctn_pool_abort(pool, f.ref), 0);
		ctn_pool_close(pool);
		module_free(&m);
	}
}

CTN_TESTS("pool_kmod_open", CTN_TEST(test_another_provider_stands_in), CTN_TEST(test_abi),
	  CTN_TEST(test_it_is_the_first_choice), CTN_TEST(test_names), CTN_TEST(test_other_sizes),
	  CTN_TEST(test_temporary_pools), CTN_TEST(test_no_memory),
	  CTN_TEST(test_clean_is_read_only), CTN_TEST(test_hot_segments),
	  CTN_TEST(test_hot_after_a_kill), CTN_TEST(test_the_kernels_figures),
	  CTN_TEST(test_staging_into_it))
