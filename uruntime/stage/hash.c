// SPDX-License-Identifier: MIT
/* The thread that makes digests, so that no I/O thread waits for one. */
#include "stage/private.h"

#include <time.h>
#include <utlist.h>

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static void hash_job(struct ctn_stage_job *job)
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
}

static void *hash_main(void *arg)
{
	struct ctn_stage *stage = arg;
	struct ctn_stage_job *job;

	for (;;) {
		pthread_mutex_lock(&stage->hash_lock);
		while (!stage->hashing && !stage->hash_stop)
			pthread_cond_wait(&stage->hash_cond, &stage->hash_lock);
		job = stage->hashing;
		if (job)
			DL_DELETE(stage->hashing, job);
		pthread_mutex_unlock(&stage->hash_lock);
		if (!job)
			return NULL;
		hash_job(job);
		ctn_stage_end_job(job);
	}
}

int ctn_hash_open(struct ctn_stage *stage)
{
	pthread_mutex_init(&stage->hash_lock, NULL);
	pthread_cond_init(&stage->hash_cond, NULL);
	return -pthread_create(&stage->hash_thread, NULL, hash_main, stage);
}

void ctn_hash_close(struct ctn_stage *stage)
{
	pthread_mutex_lock(&stage->hash_lock);
	stage->hash_stop = true;
	pthread_cond_signal(&stage->hash_cond);
	pthread_mutex_unlock(&stage->hash_lock);
	pthread_join(stage->hash_thread, NULL);
	pthread_cond_destroy(&stage->hash_cond);
	pthread_mutex_destroy(&stage->hash_lock);
}

void ctn_hash_submit(struct ctn_stage *stage, struct ctn_stage_job *job)
{
	pthread_mutex_lock(&stage->hash_lock);
	DL_APPEND(stage->hashing, job);
	pthread_cond_signal(&stage->hash_cond);
	pthread_mutex_unlock(&stage->hash_lock);
}
