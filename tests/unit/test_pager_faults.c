// SPDX-License-Identifier: MIT
/*
 * Loads and evictions whose every allocation and system call fails in turn, by every way to read
 * and every kind of memory: each ends in an error that says why, or goes well by other means; then
 * all goes well again, and nothing is left behind. (What stays allocated is found by LeakSanitizer
 * in the build that has it.)
 */
#include "ckpt_files.h"
#include "failing_calls.h"
#include "huge_fixture.h"
#include "pool_fixture.h"
#include "stage_fixture.h"
#include "test.h"
#include "pager/pager.h"

#include <dirent.h>
#include <malloc.h>

#define POOL_BYTES (6 * CTN_MIB)
#define CYCLES     1000 /* enough for every call to fail by each of its errors */

/* Under the sanitizers a call in so many, unless $CTN_LONG is set. */
#define THINNED 6

struct rig {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_device *device;
	struct ctn_pager *pager;
	uint32_t loaded, failed; /* events */
	struct ctn_err err;      /* of the last that failed */
};

/* How the bytes are read, and the memory that they come to. */
struct way {
	const char *provider;
	int method;
};

static struct ctn_checkpoint *ckpt;
static struct ctn_plan *plan;

/* A part that has a frame of its own, and one of small parts. */
static void open_model(void)
{
	const struct gen_model m = {.family = "llama",
				    .layers = 1,
				    .hidden = 256,
				    .heads = 4,
				    .kv_heads = 4,
				    .head_dim = 64,
				    .ffn = 256,
				    .vocab = 4200,
				    .embed_dim = 256,
				    .positions = 64,
				    .tied = true,
				    .dtype = "BF16",
				    .files = 2};

	/* Else a thread that finds the arenas of the others in use now and then maps one more,
	 * which stays. (The sanitizers have an allocator of their own.) */
	mallopt(M_ARENA_MAX, 1);
	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(gen_write(&m), &ckpt, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(ckpt, 1, 1, &plan, NULL), 0);
	CU_ASSERT_TRUE(plan->part_count > 1 && plan->host_bytes <= POOL_BYTES);
}

static void close_model(void)
{
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
	plan = NULL;
	ckpt = NULL;
}

static void on_event(void *arg, const struct ctn_pager_event *ev)
{
	struct rig *rig = arg;

	if (ev->type == CTN_PAGER_LOADED) {
		rig->loaded++;
	} else if (ev->type == CTN_PAGER_FAILED) {
		rig->failed++;
		rig->err = *ev->err;
	}
}

/* ---- what is there ----------------------------------------------------------------------- */

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	CU_ASSERT_PTR_NOT_NULL_FATAL(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static unsigned int step(void)
{
	return SANITIZED && !getenv("CTN_LONG") ? THINNED : 1;
}

/* The sanitizers map memory of their own as they need it. */
static unsigned int mappings(void)
{
	FILE *f = __real_fopen("/proc/self/maps", "re");
	unsigned int n = 0;
	int c;

	CU_ASSERT_PTR_NOT_NULL_FATAL(f);
	while ((c = getc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

/* Stage would read files from the page cache that an earlier life has read through it. */
static void uncache_model(void)
{
	for (uint32_t i = 0; i < ckpt->file_count; i++) {
		int fd = __real_open(ckpt->files[i].path, O_RDONLY | O_CLOEXEC);

		CU_ASSERT_EQUAL_FATAL(fsync(fd), 0);
		CU_ASSERT_EQUAL(__real_posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		close(fd);
	}
}

/* ---- the rig ------------------------------------------------------------------------------ */

static const struct ctn_stage_sys sys = {.uring_result = failing_result};

static void close_rig(struct rig *rig)
{
	if (rig->pager)
		ctn_pager_free(rig->pager);
	if (rig->device)
		ctn_devices_close(&rig->device, 1);
	ctn_stage_close(rig->stage);
	if (rig->pool)
		ctn_pool_close(rig->pool);
	*rig = (struct rig){0};
}

static int open_rig(struct rig *rig, const struct way *way, struct ctn_err *err)
{
	struct ctn_pool_config pool = {.provider = way->provider,
				       .bytes = POOL_BYTES,
				       .segment_bytes = POOL_BYTES / 3,
				       .hot_bytes = UINT64_MAX,
				       .node = -1,
				       .poison = true};
	struct ctn_stage_config stage = {.method = way->method, .hash = true, .sys = &sys};
	struct ctn_pager_config pager = {
		.max_models = 1, .poison = true, .event = on_event, .event_arg = rig};
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint32_t device = 0, count;
	int rc;

	*rig = (struct rig){0};
	rc = ctn_pool_open(&pool, &rig->pool, err);
	if (rc == 0) {
		stage.pool = rig->pool;
		rc = ctn_stage_open(&stage, &rig->stage, err);
	}
	if (rc == 0)
		rc = ctn_devices_open("host,mem=8M", devices, &count, err);
	if (rc == 0) {
		rig->device = devices[0];
		pager.pool = rig->pool;
		pager.stage = rig->stage;
		pager.devices = devices;
		pager.device_count = 1;
		rc = ctn_pager_new(&pager, &rig->pager, err);
	}
	if (rc == 0)
		rc = ctn_pager_add_model(rig->pager, plan, &device, err);
	if (rc < 0)
		close_rig(rig);
	return rc;
}

/* Dispatches until nothing moves; false if that takes more than 30 s. */
static bool settle(struct rig *rig)
{
	uint64_t end = ctn_now_ns() + 30 * CTN_NSEC_PER_SEC;

	while (ctn_pager_active(rig->pager)) {
		struct pollfd pfd = {.fd = ctn_pager_fd(rig->pager), .events = POLLIN};

		if (ctn_now_ns() > end)
			return false;
		if (__real_poll(&pfd, 1, 100) > 0)
			ctn_pager_dispatch(rig->pager);
	}
	return true;
}

/* One cycle; 0, or why the load did not go well. */
static int load_and_evict(struct rig *rig, struct ctn_err *err)
{
	uint32_t loaded = rig->loaded, failed = rig->failed;
	int rc = ctn_pager_load(rig->pager, 0, 1, err);

	if (rc)
		return rc;
	CU_ASSERT_TRUE_FATAL(settle(rig));
	CU_ASSERT_EQUAL(rig->loaded - loaded + rig->failed - failed, 1);
	if (rig->failed != failed) {
		*err = rig->err;
		rc = err->code;
	} else {
		CU_ASSERT_EQUAL(ctn_pager_drop(rig->pager, 0), 0);
	}
	ctn_pager_drop_host(rig->pager, 0, UINT64_MAX);
	return rc;
}

static void check_nothing_is_held(struct rig *rig)
{
	struct ctn_device_memory memory;
	struct ctn_device_ledger ledger;
	struct ctn_host_ledger host;
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL(ctn_pager_check(rig->pager, &err), 0);
	CU_ASSERT_STRING_EQUAL(err.msg, "");
	ctn_pager_device_ledger(rig->pager, 0, &ledger);
	CU_ASSERT_EQUAL(ledger.free, ledger.total);
	ctn_device_get_memory(rig->device, &memory);
	CU_ASSERT_EQUAL(memory.free, memory.total);
	ctn_pager_host_ledger(rig->pager, &host);
	CU_ASSERT_EQUAL(host.frames_staging + host.frames_draining + host.bytes_draining, 0);
	ctn_test_books(rig->pool, POOL_BYTES, 0, 0, 0, 0);
}

/* An error is one line that says something. */
static void check_says(int rc, const struct ctn_err *err)
{
	if (rc >= 0)
		return;
	CU_ASSERT_EQUAL(err->code, rc);
	CU_ASSERT_TRUE(err->msg[0] != '\0' && !strchr(err->msg, '\n'));
}

/* Which call had failed where something was wrong afterwards. */
static void describe(unsigned int n)
{
	int call = atomic_load(&calls.failed);

	if (call >= 0)
		printf("# call %u, %s, error %u\n", n, failing_calls[call].name,
		       atomic_load(&calls.turn));
}

/* ---- tests --------------------------------------------------------------------------------- */

/* Without a failure it goes well, by the method that is meant. */
static void check_first(struct rig *rig, const struct way *way, int rc, const struct ctn_err *err)
{
	int method = way->method < 0 ? (int)best_method(ckpt->files[0].path) : way->method;
	struct ctn_stage_stats stats;

	if (rc)
		printf("# %s\n", err->msg);
	CU_ASSERT_EQUAL_FATAL(rc, 0);
	ctn_stage_get_stats(rig->stage, &stats);
	CU_ASSERT_EQUAL(stats.jobs[method], plan->part_count);
	CU_ASSERT_STRING_EQUAL(stats.why, "");
}

/* From nothing to a model that is loaded, and back. */
static void whole_life(const struct way *way, unsigned int n, unsigned int turn, bool on)
{
	struct ctn_err err = {0};
	struct rig rig;
	int rc;

	uncache_model();
	calls_begin(n, turn, on);
	calls_exempt = false;
	rc = open_rig(&rig, way, &err);
	check_says(rc, &err);
	if (rc == 0) {
		rc = load_and_evict(&rig, &err);
		check_says(rc, &err);
	}
	calls_exempt = true;
	calls_end();
	if (n == 0)
		check_first(&rig, way, rc, &err);
	if (rig.pager) {
		check_nothing_is_held(&rig);
		/* Without failures it goes well. */
		rc = load_and_evict(&rig, &err);
		if (rc)
			printf("# %s\n", err.msg);
		CU_ASSERT_EQUAL(rc, 0);
		check_nothing_is_held(&rig);
		close_rig(&rig);
	}
}

/* What a life in which call number n failed must leave as it was. */
static void check_life(const struct way *way, unsigned int n, unsigned int turn, bool on,
		       unsigned int descriptors, unsigned int maps)
{
	unsigned int failures = CU_get_number_of_failures();

	whole_life(way, n, turn, on);
	CU_ASSERT_EQUAL(open_descriptors(), descriptors);
	if (!SANITIZED)
		CU_ASSERT_TRUE(mappings() <= maps);
	if (CU_get_number_of_failures() != failures)
		describe(n);
}

static void every_call_of_a_life(const struct way *way)
{
	unsigned int descriptors, maps, lives = 0;

	/* Threads and files leave behind what the C library keeps for the next ones. */
	for (int i = 0; i < 2; i++)
		whole_life(way, 0, 0, false);
	descriptors = open_descriptors();
	maps = mappings();
	for (unsigned int n = 1;; n += step()) {
		unsigned int errors;

		check_life(way, n, 0, false, descriptors, maps);
		lives++;
		if (atomic_load(&calls.failed) < 0)
			break;
		errors = call_errors((enum call)atomic_load(&calls.failed));
		for (unsigned int turn = 0; turn < errors; turn++, lives++)
			check_life(way, n, turn, true, descriptors, maps);
	}
	printf("# %u lives\n", lives);
}

static void try_way(const char *provider, int method)
{
	struct way way = {provider, method};

	calls_exempt = true;
	open_model();
	every_call_of_a_life(&way);
	close_model();
}

static void test_the_best_method(void)
{
	try_way("thp", -1);
}

static void test_pread(void)
{
	NEEDS_METHOD(CTN_STAGE_PREAD);
	try_way("plain", CTN_STAGE_PREAD);
}

static void test_buffered(void)
{
	try_way("plain", CTN_STAGE_BUFFERED);
}

static void test_uring_and_a_pool_that_loses_frames(void)
{
	NEEDS_METHOD(CTN_STAGE_URING);
	try_way("lossy", CTN_STAGE_URING);
}

static void test_uring_fixed_and_huge_pages(void)
{
	NEEDS_METHOD(CTN_STAGE_URING_FIXED);
	if (!huge_have(POOL_BYTES / CTN_EXTENT_ALIGN))
		CTN_SKIP("no huge pages can be reserved");
	try_way("hugetlb", CTN_STAGE_URING_FIXED);
}

/* Whether the stage still reads as it did at first. */
static bool as_at_first(struct rig *rig)
{
	struct ctn_stage_stats stats;

	ctn_stage_get_stats(rig->stage, &stats);
	return stats.why[0] == '\0';
}

/*
 * One pool, one stage and one pager for many cycles, in each of which another call fails. They
 * give way to a new set when a failure has taught the stage to use another method, so that the
 * best one is met again.
 */
static void test_a_thousand_cycles(void)
{
	const struct way way = {"thp", -1};
	unsigned int descriptors, maps, inside = 0, failed = 0, sets = 0, n = 0, turn = 0;
	struct rig rig = {0};
	struct ctn_err err = {0};

	calls_exempt = true;
	open_model();
	for (int i = 0; i < 2; i++)
		whole_life(&way, 0, 0, false);
	descriptors = open_descriptors();
	maps = mappings();
	for (unsigned int cycle = 0; cycle < CYCLES / step(); cycle++) {
		unsigned int failures = CU_get_number_of_failures();

		if (!rig.pager) {
			uncache_model();
			CU_ASSERT_EQUAL_FATAL(open_rig(&rig, &way, &err), 0);
			CU_ASSERT_EQUAL_FATAL(load_and_evict(&rig, &err), 0);
			inside = open_descriptors();
			sets++;
		}
		n += step();
		calls_begin(n, turn, false);
		calls_exempt = false;
		check_says(load_and_evict(&rig, &err), &err);
		calls_exempt = true;
		calls_end();
		failed += atomic_load(&calls.failed) >= 0;
		check_nothing_is_held(&rig);
		CU_ASSERT_TRUE(open_descriptors() <= inside);
		if (CU_get_number_of_failures() != failures)
			describe(n);
		if (atomic_load(&calls.failed) < 0) {
			n = 0;
			turn++;
		}
		if (!as_at_first(&rig))
			close_rig(&rig);
	}
	if (rig.pager)
		close_rig(&rig);
	CU_ASSERT_EQUAL(open_descriptors(), descriptors);
	if (!SANITIZED)
		CU_ASSERT_TRUE(mappings() <= maps);
	printf("# %u calls failed, %u times from the first, in %u sets\n", failed, turn, sets);
	/* All of them, by all of their errors. */
	CU_ASSERT_TRUE(turn >= MAX_ERRORS);
	close_model();
}

CTN_TESTS("pager_faults", CTN_TEST(test_the_best_method), CTN_TEST(test_pread),
	  CTN_TEST(test_buffered), CTN_TEST(test_uring_and_a_pool_that_loses_frames),
	  CTN_TEST(test_uring_fixed_and_huge_pages), CTN_TEST(test_a_thousand_cycles))
