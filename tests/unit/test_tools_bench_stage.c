// SPDX-License-Identifier: MIT
/* What `computron bench stage` stands on: that it would see wrong bytes, what it refuses to
 * measure, what it counts, and its arithmetic. */
#include "test.h"
#include "stage_fixture.h"
#include "tools/bench_stage.h"

#define BYTES (3 * CTN_MIB + 333)

static const char *sample_file(uint64_t bytes)
{
	static char path[512];

	snprintf(path, sizeof(path), "%s/sample", ctn_test_tmpdir());
	write_file(path, bytes, 5);
	return path;
}

static bool works(enum ctn_stage_method method)
{
	if (method == CTN_STAGE_BUFFERED)
		return true;
	if (method == CTN_STAGE_PREAD)
		return has_direct();
	return has_direct() && (method == CTN_STAGE_URING ? has_uring() : has_fixed());
}

static void test_every_method_is_verified(void)
{
	struct ctn_stage_file file;
	struct ctn_stage_run run;
	struct ctn_stage_rig rig;
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_stage_file_open(sample_file(BYTES), UINT64_MAX, &file, &err), 0);
	for (int m = 0; m < CTN_STAGE_METHODS; m++) {
		struct ctn_stage_rig_config cfg = {.method = m, .provider = "plain", .depth = 4};

		if (!works((enum ctn_stage_method)m))
			continue;
		CU_ASSERT_EQUAL_FATAL(ctn_stage_rig_open(&file, &cfg, &rig, &err), 0);
		for (int hash = 0; hash < 2; hash++) {
			CU_ASSERT_EQUAL(ctn_stage_rig_run(&rig, hash, &run, &err), 0);
			CU_ASSERT_EQUAL((int)run.method, m);
			CU_ASSERT_EQUAL(run.bytes, BYTES);
			CU_ASSERT_EQUAL(run.reads, 4); /* of a MiB each, and what is left */
			CU_ASSERT_TRUE(run.seconds > 0);
			CU_ASSERT_TRUE(run.depth > 0 && run.depth <= 4);
			CU_ASSERT_EQUAL(run.hash_cpu_s > 0, hash == 1);
			CU_ASSERT_TRUE(run.hash_alone_cpu_s > 0);
		}
		/* Any byte of the file, also the last one, which lies in a block of its own. */
		for (uint64_t at = 0; at < BYTES; at += (BYTES - 1) / 2) {
			rig.extents[0].addr[at] ^= 1;
			CU_ASSERT_EQUAL(ctn_stage_rig_verify(&rig, NULL, &err), -EBADMSG);
			rig.extents[0].addr[at] ^= 1;
			CU_ASSERT_EQUAL(ctn_stage_rig_verify(&rig, NULL, &err), 0);
		}
		ctn_stage_rig_close(&rig);
	}
	ctn_stage_file_close(&file);
}

/* What is there from an earlier run does not pass for what this one brought. */
static void test_other_bytes_are_seen(void)
{
	struct ctn_stage_rig_config cfg = {
		.method = CTN_STAGE_BUFFERED, .provider = "plain", .depth = 4};
	struct ctn_stage_file file;
	struct ctn_stage_run run;
	struct ctn_stage_rig rig;
	struct ctn_err err = {0};
	char path[512];

	snprintf(path, sizeof(path), "%s", sample_file(BYTES));
	CU_ASSERT_EQUAL_FATAL(ctn_stage_file_open(path, UINT64_MAX, &file, &err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_stage_rig_open(&file, &cfg, &rig, &err), 0);
	CU_ASSERT_EQUAL(ctn_stage_rig_run(&rig, false, &run, &err), 0);
	/* Another file in its place, of which only the digest can tell. */
	write_file(path, BYTES, 6);
	identify_file(file.file.path, &file.file);
	CU_ASSERT_EQUAL(ctn_stage_rig_run(&rig, false, &run, &err), -EBADMSG);
	CU_ASSERT_EQUAL(ctn_stage_rig_run(&rig, true, &run, &err), -EBADMSG);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, path));
	ctn_stage_rig_close(&rig);
	ctn_stage_file_close(&file);
}

static int refused(const char *path, const char *word)
{
	struct ctn_stage_file file;
	struct ctn_err err = {0};
	int rc = ctn_stage_file_open(path, UINT64_MAX, &file, &err);

	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, word));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, path));
	if (rc == 0)
		ctn_stage_file_close(&file);
	return rc;
}

static void test_what_measures_nothing_is_refused(void)
{
	const char *path = sample_file(0);

	CU_ASSERT_EQUAL(refused(path, "bytes"), -EINVAL);
	CU_ASSERT_EQUAL(truncate(path, 8 << 20), 0);
	CU_ASSERT_EQUAL(refused(path, "hole"), -ENODATA);
	CU_ASSERT_EQUAL(refused(ctn_test_tmpdir(), "regular"), -EINVAL);
	CU_ASSERT_EQUAL(refused("/no/such/file", "No such file"), -ENOENT);
}

/* ---- figures ----------------------------------------------------------------------------- */

#define ROUNDS 3

/* 2 GiB each; the seconds of three rounds. */
static const char *verdict(const double ours[ROUNDS], const double peers[2 * ROUNDS],
			   struct ctn_stage_figures *f)
{
	struct ctn_stage_samples s;

	CU_ASSERT_EQUAL_FATAL(ctn_stage_samples_init(&s, ROUNDS, 1), 0);
	s.rounds = ROUNDS;
	s.hash_rounds = 1;
	s.with_peer = true;
	s.hashed[0] = (struct ctn_stage_run){
		.bytes = 2 * CTN_GIB, .seconds = 1, .hash_cpu_s = 0.3, .hash_alone_cpu_s = 0.24};
	for (unsigned int i = 0; i < 2 * ROUNDS; i++)
		s.peers[i] = (struct ctn_stage_run){.bytes = 2 * CTN_GIB,
						    .seconds = peers[i],
						    .cpu_s = 0.2,
						    .reads = 2048,
						    .depth = 15,
						    .disk = {true, 4096, 2 * CTN_GIB, 3000}};
	for (unsigned int i = 0; i < ROUNDS; i++)
		s.ours[i] = (struct ctn_stage_run){.bytes = 2 * CTN_GIB,
						   .seconds = ours[i],
						   .cpu_s = 0.1 * (i + 1),
						   .reads = 1024,
						   .depth = 16,
						   .method = CTN_STAGE_URING};
	CU_ASSERT_EQUAL_FATAL(ctn_stage_compute(&s, f), 0);
	ctn_stage_samples_free(&s);
	return f->verdict;
}

static bool near(double found, double expected)
{
	return found > expected * (1 - 1e-9) && found < expected * (1 + 1e-9);
}

static void test_figures(void)
{
	static const double ours[] = {4, 1, 2}, peers[] = {2, 2, 9, 2, 2, 8};
	struct ctn_stage_figures f;

	CU_ASSERT_STRING_EQUAL(verdict(ours, peers, &f), "pass");
	CU_ASSERT_TRUE(near(f.gb_per_s, 1.073741824));
	CU_ASSERT_TRUE(near(f.cpu_s_per_gib, 0.1));
	CU_ASSERT_TRUE(near(f.hash_cpu_s_per_gib, 0.15));
	CU_ASSERT_TRUE(near(f.hash_ratio, 1.25));
	/* A second with the digest; two for reading alone, a quarter of one for hashing. */
	CU_ASSERT_TRUE(near(f.hash_time_ratio, 0.5));
	CU_ASSERT_TRUE(near(f.reads, 1024));
	CU_ASSERT_TRUE(near(f.read_bytes, 2097152));
	CU_ASSERT_TRUE(near(f.depth, 16));
	CU_ASSERT_EQUAL(f.disk_reads, 0);
	CU_ASSERT_EQUAL(f.method, CTN_STAGE_URING);
	CU_ASSERT_TRUE(near(f.peer_gb_per_s, 1.073741824));
	CU_ASSERT_TRUE(near(f.ratio, 1));
	CU_ASSERT_EQUAL(f.peer_variation, 0);
	CU_ASSERT_TRUE(near(f.peer_cpu_s_per_gib, 0.1));
	CU_ASSERT_TRUE(near(f.peer_read_bytes, 1048576));
	CU_ASSERT_TRUE(near(f.peer_disk_reads, 4096));
	CU_ASSERT_TRUE(near(f.peer_disk_read_bytes, 524288));
	CU_ASSERT_TRUE(near(f.peer_disk_depth, 1.5));
}

static void test_verdicts(void)
{
	static const double at_1[] = {1, 1, 1}, at_104[] = {1.04, 1.04, 1.04},
			    at_106[] = {1.06, 1.06, 1.06};
	static const double steady[] = {1, 1, 1, 1, 1, 1}, within[] = {1, 1.04, 1, 1.04, 1, 1.04},
			    beyond[] = {1, 1.06, 1, 1.06, 1, 1.06},
			    faster[] = {1.06, 1, 1.06, 1, 1.06, 1};
	struct ctn_stage_figures f;

	CU_ASSERT_STRING_EQUAL(verdict(at_104, steady, &f), "pass");
	CU_ASSERT_STRING_EQUAL(verdict(at_106, steady, &f), "fail");
	CU_ASSERT_STRING_EQUAL(verdict(at_1, within, &f), "pass");
	CU_ASSERT_STRING_EQUAL(verdict(at_1, beyond, &f), "inconclusive");
	CU_ASSERT_STRING_EQUAL(verdict(at_1, faster, &f), "inconclusive");
	CU_ASSERT_STRING_EQUAL(verdict(at_106, beyond, &f), "inconclusive");
}

CTN_TESTS("tools_bench_stage", CTN_TEST(test_every_method_is_verified),
	  CTN_TEST(test_other_bytes_are_seen), CTN_TEST(test_what_measures_nothing_is_refused),
	  CTN_TEST(test_figures), CTN_TEST(test_verdicts))
