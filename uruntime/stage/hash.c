// SPDX-License-Identifier: MIT
/* The last step of a job: its digest. */
#include "stage/private.h"

#include <time.h>

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

void ctn_hash_job(struct ctn_stage_job *job)
{
	struct ctn_stage *stage = job->stage;
	uint64_t begun = cpu_ns();
	int rc = ctn_digest_part(job->ckpt, job->part, job->extents, job->extent_count,
				 &job->cancelled, &job->result.digest);

	if (rc)
		ctn_job_fail(job, rc, "cancelled while its digest was made");
	pthread_mutex_lock(&stage->lock);
	stage->stats.hash_cpu_nanoseconds += cpu_ns() - begun;
	pthread_mutex_unlock(&stage->lock);
	ctn_stage_end_job(job);
}
