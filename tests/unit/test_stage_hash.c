// SPDX-License-Identifier: MIT
/* Digests of parts and tensors, whatever order the reads complete in; frames compared. */
#include "test.h"
#include "stage_fixture.h"

struct trial {
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct sample sample;
	struct frame_of frame, other;
};

static void begin_trial(struct trial *t, int method, const struct ctn_stage_sys *sys)
{
	t->pool = fragmented_pool(16 * CTN_MIB);
	t->stage = open_stage(t->pool, method, 0, sys);
	make_sample(&t->sample, ctn_test_tmpdir(), "hash");
	take_frame(&t->frame, t->pool, &t->sample, 1);
	take_frame(&t->other, t->pool, &t->sample, 2);
}

static void end_trial(struct trial *t)
{
	ctn_stage_close(t->stage);
	CU_ASSERT_EQUAL(ctn_pool_abort(t->pool, t->frame.ref), 0);
	CU_ASSERT_EQUAL(ctn_pool_abort(t->pool, t->other.ref), 0);
	ctn_pool_close(t->pool);
}

/* ---- digests ----------------------------------------------------------------------------- */

/* Later reads pass the first ones by: four are in work, and the first of four waits. */
static ssize_t overtaken(void *ctx, int fd, void *buf, size_t len, uint64_t offset)
{
	const struct timespec pause = {0, 3000000};
	ssize_t n;

	(void)ctx;
	if (offset / CTN_MIB % 4 == 0)
		nanosleep(&pause, NULL);
	n = pread(fd, buf, len, (off_t)offset);
	return n < 0 ? -errno : n;
}

static struct ctn_digest tensor_digests[MAX_TENSORS];

static void keep_digests(void *arg, const struct ctn_stage_result *result)
{
	if (result->has_digest)
		memcpy(tensor_digests, result->tensor_digests,
		       8 * sizeof(tensor_digests[0])); /* of make_sample */
	waiter_done(arg, result);
}

static struct ctn_digest naive_digest(const struct sample *s, uint32_t i)
{
	const struct ctn_tensor *tensor = &s->tensors[i];
	uint8_t *data = read_naively(&s->files[tensor->file], tensor);
	XXH128_canonical_t chunks[8], root;
	struct ctn_digest digest;
	size_t n = 0;

	for (uint64_t at = 0; at < tensor->bytes; at += 1048576)
		XXH128_canonicalFromHash(
			&chunks[n++],
			XXH3_128bits(data + at, CTN_MIN(tensor->bytes - at, 1048576u)));
	XXH128_canonicalFromHash(&root, XXH3_128bits(chunks, n * sizeof(chunks[0])));
	memcpy(digest.bytes, root.digest, sizeof(digest.bytes));
	free(data);
	return digest;
}

static void test_reads_in_any_order(void)
{
	static const struct ctn_stage_sys sys = {.pread = overtaken};
	struct ctn_stage_job *job;
	struct ctn_digest expected;
	struct waiter w;
	struct trial t;

	begin_trial(&t, CTN_STAGE_BUFFERED, &sys);
	CU_ASSERT_EQUAL(t.sample.part.tensor_count, 8);
	waiter_init(&w);
	CU_ASSERT_EQUAL_FATAL(ctn_stage_submit(t.stage, &t.sample.ckpt, &t.sample.part,
					       t.frame.extents, t.frame.count, keep_digests, &w,
					       &job, NULL),
			      0);
	waiter_wait(&w);
	CU_ASSERT_EQUAL(w.result.rc, 0);
	CU_ASSERT_EQUAL(compare(&t.sample, &t.frame, &expected), 0);
	CU_ASSERT_EQUAL(memcmp(w.result.digest.bytes, expected.bytes, 16), 0);
	for (uint32_t i = 0; i < t.sample.part.tensor_count; i++) {
		expected = naive_digest(&t.sample, i);
		CU_ASSERT_EQUAL(memcmp(tensor_digests[i].bytes, expected.bytes, 16), 0);
	}
	end_trial(&t);
}

/* ---- comparisons ------------------------------------------------------------------------- */

static struct ctn_stage_result compare_frames(struct trial *t, bool cancel)
{
	struct ctn_stage_result refused = {0};
	struct ctn_stage_job *job;
	struct waiter w;

	waiter_init(&w);
	pthread_mutex_lock(&w.lock); /* it cannot end before it was cancelled */
	refused.rc = ctn_stage_compare(t->stage, &t->sample.ckpt, &t->sample.part, t->frame.extents,
				       t->frame.count, t->other.extents, t->other.count,
				       waiter_done, &w, &job, &refused.err);
	if (refused.rc == 0 && cancel)
		ctn_stage_cancel(t->stage, job);
	pthread_mutex_unlock(&w.lock);
	if (refused.rc)
		return refused;
	waiter_wait(&w);
	return w.result;
}

/* The byte of a frame. */
static uint8_t *byte_at(const struct frame_of *f, uint64_t at)
{
	for (uint32_t i = 0; i < f->count; at -= f->extents[i++].bytes) {
		if (at < f->extents[i].bytes)
			return f->extents[i].addr + at;
	}
	return NULL;
}

static void test_frames_are_compared(void)
{
	struct ctn_stage_result r;
	struct trial t;

	begin_trial(&t, -1, NULL);
	CU_ASSERT_EQUAL(run_job(t.stage, &t.sample, &t.frame).rc, 0);
	CU_ASSERT_EQUAL(run_job(t.stage, &t.sample, &t.other).rc, 0);
	r = compare_frames(&t, false);
	CU_ASSERT_EQUAL(r.rc, 0);
	CU_ASSERT(r.equal && !r.has_digest);
	for (uint32_t i = 0; i < t.sample.part.tensor_count; i++) {
		const uint64_t bytes = t.sample.tensors[i].bytes;
		const uint64_t first = t.sample.part_tensors[i].frame_offset;
		const uint64_t places[] = {first, first + bytes / 2, first + bytes - 1};

		for (size_t k = 0; bytes && k < CTN_ARRAY_LEN(places); k++) {
			*byte_at(&t.other, places[k]) ^= 0x80;
			r = compare_frames(&t, false);
			CU_ASSERT(r.rc == 0 && !r.equal);
			*byte_at(&t.other, places[k]) ^= 0x80;
		}
	}
	/* What lies between tensors belongs to none. */
	CU_ASSERT(t.sample.part_tensors[0].frame_offset > 0);
	*byte_at(&t.other, 0) ^= 1;
	r = compare_frames(&t, false);
	CU_ASSERT(r.rc == 0 && r.equal);
	end_trial(&t);
}

static void test_a_comparison_is_cancelled(void)
{
	struct trial t;

	begin_trial(&t, -1, NULL);
	CU_ASSERT_EQUAL(run_job(t.stage, &t.sample, &t.frame).rc, 0);
	CU_ASSERT_EQUAL(run_job(t.stage, &t.sample, &t.other).rc, 0);
	for (unsigned int i = 0; i < 50; i++) {
		struct ctn_stage_result r = compare_frames(&t, true);

		/* It may have been all done. */
		CU_ASSERT(r.rc == -ECANCELED ? !r.equal : r.rc == 0 && r.equal);
	}
	end_trial(&t);
}

static void test_nothing_to_compare_by(void)
{
	struct ctn_stage_config cfg = {.method = CTN_STAGE_BUFFERED};
	struct ctn_stage_result r;
	struct trial t;

	begin_trial(&t, CTN_STAGE_BUFFERED, NULL);
	ctn_stage_close(t.stage);
	cfg.pool = t.pool;
	t.sample.ckpt.dir = t.sample.paths[0];
	CU_ASSERT_EQUAL_FATAL(ctn_stage_open(&cfg, &t.stage, NULL), 0);
	r = compare_frames(&t, false);
	CU_ASSERT_EQUAL(r.rc, -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(r.err.msg, "there is no digest"));
	end_trial(&t);
}

CTN_TESTS("stage_hash", CTN_TEST(test_reads_in_any_order), CTN_TEST(test_frames_are_compared),
	  CTN_TEST(test_a_comparison_is_cancelled), CTN_TEST(test_nothing_to_compare_by))
