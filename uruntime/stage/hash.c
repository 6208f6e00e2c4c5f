// SPDX-License-Identifier: MIT
/* The last step of a job: its digest, held against the manifest. */
#include "stage/private.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * CTN_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

/* Names the first tensor whose bytes are others; if there is none, the manifest is at odds with
 * itself. */
static void name_mismatch(struct ctn_stage_job *job)
{
	const struct ctn_part *part = job->part;
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];

	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_tensor *t = &job->ckpt->tensors[part->tensors[i].tensor];
		struct ctn_digest digest;

		ctn_tensor_digest(job->ckpt, part, i, job->extents, job->extent_count, &digest);
		if (memcmp(&digest, &part->tensors[i].digest, sizeof(digest)) == 0)
			continue;
		ctn_job_fail(job, -EBADMSG,
			     "%.200s: part %u: tensor %.100s: the bytes are not those of the "
			     "manifest: expected digest %s, found %s",
			     job->ckpt->files[t->file].path, part->id, t->name,
			     ctn_digest_format(&part->tensors[i].digest, expected),
			     ctn_digest_format(&digest, found));
		return;
	}
	ctn_job_fail(job, -EBADMSG,
		     "%.200s/" CTN_MANIFEST_NAME
		     ": part %u: digest: expected %s, which its tensors, "
		     "each as it should be, have, found %s",
		     job->ckpt->dir, part->id, ctn_digest_format(&job->result.digest, found),
		     ctn_digest_format(&part->digest, expected));
}

void ctn_hash_job(struct ctn_stage_job *job)
{
	struct ctn_stage *stage = job->stage;
	uint64_t begun = cpu_ns();
	int rc = ctn_digest_part(job->ckpt, job->part, job->extents, job->extent_count,
				 &job->cancelled, &job->result.digest);

	if (rc)
		ctn_job_fail(job, rc, "cancelled while its digest was made");
	else if (job->part->has_digest &&
		 memcmp(&job->result.digest, &job->part->digest, sizeof(job->part->digest)) != 0)
		name_mismatch(job);
	job->result.has_digest = job->result.rc == 0;
	pthread_mutex_lock(&stage->lock);
	stage->stats.hash_cpu_nanoseconds += cpu_ns() - begun;
	pthread_mutex_unlock(&stage->lock);
	ctn_stage_end_job(job);
}
