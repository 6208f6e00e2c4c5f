// SPDX-License-Identifier: MIT
/* Jobs that read nothing: the bytes of a part in one frame, or in two, by the threads that hash. */
#include "stage/private.h"

#include <errno.h>
#include <string.h>

bool ctn_chunk_equal(const struct ctn_stage_job *job, const struct chunk *c)
{
	uint64_t at = c->frame_offset, end = at + c->bytes;

	while (at < end) {
		uint64_t left, other_left, n;
		const uint8_t *p = ctn_locate(job->extents, job->extent_count, at, &left);
		const uint8_t *q = ctn_locate(job->others, job->other_count, at, &other_left);

		n = CTN_MIN(end - at, CTN_MIN(left, other_left));
		if (!p || !q || memcmp(p, q, n) != 0)
			return false;
		at += n;
	}
	return true;
}

/* `others` as in the job. */
static int start(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		 const struct ctn_part *part, const struct ctn_extent *extents,
		 uint32_t extent_count, const struct ctn_extent *others, uint32_t other_count,
		 ctn_stage_done_fn *done, void *arg, struct ctn_stage_job **out,
		 struct ctn_err *err)
{
	struct ctn_stage_job *job;
	int rc;

	if (!stage->hash || part->tensor_bytes == 0)
		return ctn_err_set(err, -EINVAL, "stage: part %u of %s cannot be %s: %s", part->id,
				   ckpt->dir, others ? "compared" : "checked",
				   stage->hash ? "it has no bytes" : "there is no digest");
	rc = ctn_job_new(stage, ckpt, part, extents, extent_count, &job, err);
	if (rc)
		return rc;
	job->others = others;
	job->other_count = other_count;
	job->done = done;
	job->arg = arg;
	rc = ctn_hash_prepare(job);
	if (rc) {
		ctn_job_free(job);
		return ctn_err_set(err, rc, "stage: out of memory");
	}
	pthread_mutex_lock(&stage->lock);
	stage->job_count++;
	pthread_mutex_unlock(&stage->lock);
	/* Before it can end. */
	*out = job;
	ctn_hash_all(job);
	return 0;
}

int ctn_stage_compare(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		      const struct ctn_part *part, const struct ctn_extent *extents,
		      uint32_t extent_count, const struct ctn_extent *others, uint32_t other_count,
		      ctn_stage_done_fn *done, void *arg, struct ctn_stage_job **out,
		      struct ctn_err *err)
{
	return start(stage, ckpt, part, extents, extent_count, others, other_count, done, arg, out,
		     err);
}

int ctn_stage_check(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		    const struct ctn_part *part, const struct ctn_extent *extents,
		    uint32_t extent_count, ctn_stage_done_fn *done, void *arg,
		    struct ctn_stage_job **out, struct ctn_err *err)
{
	return start(stage, ckpt, part, extents, extent_count, NULL, 0, done, arg, out, err);
}
