// SPDX-License-Identifier: MIT
/* The first step of a job: memory for its frame, which may take seconds, and its digest tree. */
#include "stage/private.h"

#include <string.h>

void ctn_commit_job(struct ctn_stage_job *job)
{
	int rc = 0;

	if (ctn_job_live(job))
		rc = ctn_pool_commit(job->stage->pool, job->extents, job->extent_count);
	if (rc == 0 && ctn_job_live(job) && job->stage->hash)
		rc = ctn_hash_prepare(job);
	if (rc)
		ctn_job_fail(job, rc, "stage: no memory for part %u of %s (%llu bytes): %s",
			     job->part->id, job->ckpt->dir,
			     (unsigned long long)job->part->frame_bytes, strerror(-rc));
	/* Also when it failed or was cancelled: it ends there. */
	ctn_disk_submit(job->disk, job);
}
