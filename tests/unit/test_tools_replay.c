// SPDX-License-Identifier: MIT
/* The log of decisions: all of it decided again, and what a reader must not believe. What sched
 * foretold, beside what the links allow. */
#include "engine_fixture.h"
#include "tools/sim_replay.h"

#include <fcntl.h>
#include <sys/stat.h>

#define LINK "10M"
#define RATE 10e6

static void open_logged(struct rig *rig, const char *device, const char *log)
{
	struct ctn_engine_config cfg = {.decision_log = log};

	rig_open_over(rig, device, ctn_test_pool("thp", 16 * CTN_MIB, 16 * CTN_MIB, true), 1, 1,
		      cfg);
	rig_start(rig);
}

static const char *log_path(void)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/decisions", ctn_test_tmpdir());
	return path;
}

/* Loads, steps, a load that is left by its request, pins, an eviction. */
static void some_life(struct rig *rig)
{
	for (uint32_t i = 0; i < 9; i++)
		CU_ASSERT(matches(rig, i % MODELS, 4, 12));
	CU_ASSERT_EQUAL(ctn_engine_control(rig->engine, CTN_CONTROL_LOAD, 0, NULL), 0);
	ctn_request_release(submit(rig, 0, rig->golden[0].ids, 4, 50));
	CU_ASSERT_EQUAL(ctn_engine_control(rig->engine, CTN_CONTROL_PIN, 1, NULL), 0);
	CU_ASSERT(matches(rig, 1, 4, 40));
	CU_ASSERT_EQUAL(ctn_engine_control(rig->engine, CTN_CONTROL_UNPIN, 1, NULL), 0);
	CU_ASSERT_EQUAL(ctn_engine_control(rig->engine, CTN_CONTROL_EVICT, 2, NULL), 0);
	CU_ASSERT(matches(rig, 2, 4, 12));
}

static void write_log(const char *path)
{
	struct rig rig;

	open_logged(&rig, ONE_MODEL ",link=" LINK, path);
	some_life(&rig);
	rig_close(&rig);
}

static int replay(const char *path, struct ctn_replay *r, struct ctn_err *err)
{
	int rc = ctn_sim_replay(path, r, err);

	ctn_sim_replay_free(r);
	return rc;
}

static void test_the_same_is_decided_again(void)
{
	struct ctn_err err = {0};
	struct ctn_replay r;
	struct ctn_replay_errors *loads;

	write_log(log_path());
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(log_path(), &r, &err), 0);
	CU_ASSERT_STRING_EQUAL(r.policy, "default");
	CU_ASSERT_EQUAL(r.models, MODELS);
	CU_ASSERT_EQUAL(r.differ_at, 0);
	CU_ASSERT(r.whole);
	/* An arrival, a load and an end of each of the dozen requests; their steps. */
	CU_ASSERT(r.decisions > 3 * 12 + 90);
	CU_ASSERT(r.actions > 90);
	loads = &r.errors[CTN_REPLAY_LOADS];
	CU_ASSERT(loads->count >= 9);
	CU_ASSERT(r.errors[CTN_REPLAY_STEPS].count > 20);
	CU_ASSERT(loads->predicted_s > 0 && loads->actual_s > 0);
	CU_ASSERT(ctn_replay_percentile(loads, 1) >= ctn_replay_percentile(loads, 0.5));
	ctn_sim_replay_free(&r);
}

/* The lines of the log with each `from` in line `at` (or all, with 0) made `to`. */
static void edit_log(const char *to_path, int at, const char *from, const char *to)
{
	FILE *in = fopen(log_path(), "re"), *out = fopen(to_path, "we");
	char *line = NULL;
	size_t size = 0;

	CU_ASSERT_FATAL(in && out);
	for (int n = 1; getline(&line, &size, in) > 0; n++) {
		char *found = at == 0 || n == at ? strstr(line, from) : NULL;

		if (found)
			fprintf(out, "%.*s%s%s", (int)(found - line), line, to,
				found + strlen(from));
		else
			fputs(line, out);
	}
	free(line);
	fclose(in);
	fclose(out);
}

/* Number of the first line that has `text`. */
static int line_with(const char *text)
{
	FILE *in = fopen(log_path(), "re");
	char *line = NULL;
	size_t size = 0;
	int n = 0, found = 0;

	CU_ASSERT_FATAL(in != NULL);
	while (!found && getline(&line, &size, in) > 0) {
		n++;
		found = strstr(line, text) ? n : 0;
	}
	free(line);
	fclose(in);
	CU_ASSERT_FATAL(found > 0);
	return found;
}

static void test_another_decision_is_found(void)
{
	char path[PATH_MAX], expected[64];
	struct ctn_err err = {0};
	struct ctn_replay r;
	int at;

	write_log(log_path());
	snprintf(path, sizeof(path), "%s/edited", ctn_test_tmpdir());
	CU_ASSERT(line_with("\"reason\":\"a request waits for it\"") > 0);
	at = line_with("\"type\":\"load\"");
	edit_log(path, at, "\"type\":\"load\"", "\"type\":\"step\"");
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(path, &r, &err), 0);
	CU_ASSERT_EQUAL(r.differ_at, (uint64_t)at);
	CU_ASSERT_PTR_NOT_NULL(strstr(r.differs, "step"));
	CU_ASSERT_PTR_NOT_NULL(strstr(r.differs, "load"));
	ctn_sim_replay_free(&r);

	/* A device of half the size: it shows with the first model that does not fit any more. */
	edit_log(path, 1, "\"device_bytes\":[5242880]", "\"device_bytes\":[1048576]");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EFBIG);

	/* No such policy. */
	edit_log(path, 1, "\"policy\":\"default\"", "\"policy\":\"wishful\"");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -ENOENT);

	/* What cannot have been is refused by line: sched is not asked to believe it. */
	at = line_with("\"type\":\"load_done\"");
	snprintf(expected, sizeof(expected), "line %d:", at);
	edit_log(path, at, "\"type\":\"load_done\"", "\"type\":\"load_cancelled\"");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, expected));
	edit_log(path, at, "\"type\":\"load_done\"", "\"type\":\"stage_done\"");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, expected));
	edit_log(path, at, "{\"ns\":", "{\"ns\":-");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	edit_log(path, at, "{", "");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	at = line_with("\"type\":\"arrival\"");
	edit_log(path, at, "\"type\":\"arrival\"", "\"type\":\"request_done\"");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	edit_log(path, at, "\"type\":\"arrival\"", "\"type\":\"arrival\",\"model\":99");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	/* More KV than the request said that it might need. */
	at = line_with("\"type\":\"kv\"");
	edit_log(path, at, "\"kv_blocks\":", "\"kv_blocks\":9");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	edit_log(path, 0, "\"actual_s\":", "\"actual_s\":-");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	edit_log(path, 1, "{\"config\"", "{\"comfit\"");
	CU_ASSERT_EQUAL(replay(path, &r, &err), -EINVAL);
	CU_ASSERT_EQUAL(replay("/nonexistent/log", &r, &err), -ENOENT);
	/* A line without an end. */
	CU_ASSERT_EQUAL(replay("/dev/zero", &r, &err), -EINVAL);
}

/* A daemon that is killed leaves a log without an end, and half a line. */
static void test_half_a_log_is_decided_again_as_far_as_it_goes(void)
{
	struct ctn_err err = {0};
	struct ctn_replay r;
	struct stat st;

	write_log(log_path());
	CU_ASSERT_EQUAL_FATAL(stat(log_path(), &st), 0);
	CU_ASSERT_EQUAL_FATAL(truncate(log_path(), st.st_size * 2 / 3), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(log_path(), &r, &err), 0);
	CU_ASSERT_EQUAL(r.differ_at, 0);
	CU_ASSERT(!r.whole);
	CU_ASSERT(r.decisions > 50);
	ctn_sim_replay_free(&r);
}

/* The next daemon does not write over what tells why the last one died. */
static void test_the_log_before_is_kept(void)
{
	char link[PATH_MAX], before[PATH_MAX + 2];
	struct ctn_err err = {0};
	struct ctn_replay r;
	struct stat st, kept;

	snprintf(link, sizeof(link), "%s/link", ctn_test_tmpdir());
	snprintf(before, sizeof(before), "%s.1", log_path());
	write_log(log_path());
	CU_ASSERT_EQUAL_FATAL(truncate(log_path(), 20000), 0);
	CU_ASSERT_EQUAL_FATAL(stat(log_path(), &st), 0);
	CU_ASSERT_EQUAL_FATAL(symlink(log_path(), link), 0);
	write_log(link);
	CU_ASSERT_EQUAL_FATAL(stat(before, &kept), 0);
	CU_ASSERT_EQUAL(kept.st_ino, st.st_ino);
	CU_ASSERT_EQUAL(kept.st_size, 20000);
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(link, &r, &err), 0);
	CU_ASSERT(r.whole);
	CU_ASSERT_EQUAL(r.differ_at, 0);
	ctn_sim_replay_free(&r);
	CU_ASSERT_EQUAL_FATAL(lstat(link, &kept), 0);
	CU_ASSERT(S_ISLNK(kept.st_mode));
}

static void expect_service_without_log(const char *path)
{
	struct ctn_snapshot snap;
	struct rig rig;

	open_logged(&rig, ONE_MODEL, path);
	some_life(&rig);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	CU_ASSERT(snap.decisions_failed);
	ctn_snapshot_free(&snap);
	rig_close(&rig);
}

/* What is there cannot be kept: it is not written over either. */
static void test_a_log_that_cannot_be_kept_stays(void)
{
	char path[PATH_MAX], before[PATH_MAX + 2];
	struct ctn_err err = {0};
	struct ctn_replay r;

	snprintf(path, sizeof(path), "%s/kept", ctn_test_tmpdir());
	snprintf(before, sizeof(before), "%s.1", path);
	CU_ASSERT_EQUAL_FATAL(mkdir(before, 0700), 0);
	write_log(path);
	expect_service_without_log(path);
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(path, &r, &err), 0);
	CU_ASSERT(r.whole);
	ctn_sim_replay_free(&r);
}

static void test_a_log_that_cannot_be_written_stops_nothing(void)
{
	expect_service_without_log("/dev/full");
	expect_service_without_log("/nonexistent/decisions");
}

/* A FIFO that nobody reads is not waited for, neither at the start nor at the end. */
static void test_a_log_without_a_reader_stops_nothing(void)
{
	char path[PATH_MAX];
	struct rig rig;
	int fd;

	snprintf(path, sizeof(path), "%s/fifo", ctn_test_tmpdir());
	CU_ASSERT_EQUAL_FATAL(mkfifo(path, 0600), 0);
	expect_service_without_log(path);
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	CU_ASSERT_FATAL(fd >= 0);
	/* Less than a line of the state of models. */
	CU_ASSERT(fcntl(fd, F_SETPIPE_SZ, 4096) > 0);
	open_logged(&rig, ONE_MODEL, path);
	some_life(&rig);
	rig_close(&rig);
	close(fd);
}

/* The second one is told, and the first one's stays whole. */
static void test_a_log_is_one_daemons(void)
{
	struct ctn_err err = {0};
	struct ctn_replay r;
	struct rig rig;

	open_logged(&rig, ONE_MODEL, log_path());
	some_life(&rig);
	expect_service_without_log(log_path());
	some_life(&rig);
	rig_close(&rig);
	CU_ASSERT_EQUAL_FATAL(ctn_sim_replay(log_path(), &r, &err), 0);
	CU_ASSERT_EQUAL(r.differ_at, 0);
	CU_ASSERT(r.whole);
	ctn_sim_replay_free(&r);
}

static void test_what_was_foretold_is_counted(void)
{
	const struct ctn_prediction *loads, *steps;
	uint64_t bytes = 0, switches = 0;
	struct ctn_snapshot snap;
	/* Whole models: the tails that `default` takes of these are a few bytes. */
	struct ctn_engine_config cfg = {.policy = "lru"};
	double link_s;
	struct rig rig;

	rig_open_over(&rig, ONE_MODEL ",link=" LINK,
		      ctn_test_pool("thp", 16 * CTN_MIB, 16 * CTN_MIB, true), 1, 1, cfg);
	rig_start(&rig);
	for (uint32_t i = 0; i < 12; i++)
		CU_ASSERT(matches(&rig, i % MODELS, 4, 12));
	/* A load is told of when all of it is there: the last may end after the answer. */
	CU_ASSERT_EQUAL(ctn_engine_control(rig.engine, CTN_CONTROL_LOAD, 11 % MODELS, NULL), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_engine_snapshot(rig.engine, &snap), 0);
	for (uint32_t m = 0; m < MODELS; m++) {
		bytes += snap.models[m].bytes_loaded;
		switches += snap.models[m].switches;
	}
	loads = &snap.predictions[CTN_PREDICTED_LOAD];
	steps = &snap.predictions[CTN_PREDICTED_STEP];
	CU_ASSERT_EQUAL(snap.predictions[CTN_PREDICTED_STAGE].error.count, MODELS);
	CU_ASSERT_EQUAL(loads->error.count, switches - MODELS);
	/* What the links needed at least is arithmetic. */
	link_s = (double)bytes / RATE;
	CU_ASSERT(loads->actual_s + snap.predictions[CTN_PREDICTED_STAGE].actual_s > 0.99 * link_s);
	printf("# loads: foretold %.3f s, were %.3f s, off by %.3f s; the links need %.3f s\n",
	       loads->predicted_s, loads->actual_s, loads->error.sum_s, link_s);
	/* The first loads taught the speed: foretold is no guess any more. */
	CU_ASSERT(loads->predicted_s > 0.6 * loads->actual_s);
	CU_ASSERT(loads->error.sum_s < 0.5 * loads->actual_s);
	CU_ASSERT(loads->error.sum_s >= fabs(loads->predicted_s - loads->actual_s) - 1e-6);
	CU_ASSERT(steps->error.count > 0);
	CU_ASSERT(steps->predicted_s > 0 && steps->actual_s > 0);
	ctn_snapshot_free(&snap);
	rig_close(&rig);
}

CTN_TESTS("tools_replay", CTN_TEST(test_the_same_is_decided_again),
	  CTN_TEST(test_another_decision_is_found),
	  CTN_TEST(test_half_a_log_is_decided_again_as_far_as_it_goes),
	  CTN_TEST(test_the_log_before_is_kept), CTN_TEST(test_a_log_that_cannot_be_kept_stays),
	  CTN_TEST(test_a_log_that_cannot_be_written_stops_nothing),
	  CTN_TEST(test_a_log_without_a_reader_stops_nothing), CTN_TEST(test_a_log_is_one_daemons),
	  CTN_TEST(test_what_was_foretold_is_counted))
