// SPDX-License-Identifier: MIT
/* The public functions: one disk for each storage device that jobs come for. */
#include "stage/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define DEFAULT_DEPTH 16
#define MAX_DEPTH     1024

static const char *const method_names[CTN_STAGE_METHODS] = {
	[CTN_STAGE_URING_FIXED] = "uring-fixed",
	[CTN_STAGE_URING] = "uring",
	[CTN_STAGE_PREAD] = "pread",
	[CTN_STAGE_BUFFERED] = "buffered",
};

const char *ctn_stage_method_name(enum ctn_stage_method method)
{
	return method < CTN_STAGE_METHODS ? method_names[method] : "unknown";
}

int ctn_stage_method_parse(const char *name, enum ctn_stage_method *method)
{
	for (int i = 0; i < CTN_STAGE_METHODS; i++) {
		if (strcmp(method_names[i], name) == 0) {
			*method = (enum ctn_stage_method)i;
			return 0;
		}
	}
	return -ENOENT;
}

int ctn_stage_open(const struct ctn_stage_config *cfg, struct ctn_stage **out, struct ctn_err *err)
{
	struct ctn_stage *stage;
	int rc;

	*out = NULL;
	if (cfg->method < -1 || cfg->method >= CTN_STAGE_METHODS)
		return ctn_err_set(err, -EINVAL, "stage: there is no method %d", cfg->method);
	if (cfg->queue_depth > MAX_DEPTH)
		return ctn_err_set(err, -EINVAL, "stage: queue depth %u is more than %d",
				   cfg->queue_depth, MAX_DEPTH);
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return ctn_err_set(err, -ENOMEM, "stage: out of memory");
	stage->pool = cfg->pool;
	stage->forced = cfg->method;
	stage->queue_depth = cfg->queue_depth ? cfg->queue_depth : DEFAULT_DEPTH;
	stage->hash = cfg->hash;
	ctn_sys_init(&stage->sys, cfg->sys);
	pthread_mutex_init(&stage->lock, NULL);
	rc = ctn_worker_open(&stage->committer, ctn_commit_job);
	if (rc)
		goto free_stage;
	if (stage->hash)
		rc = ctn_hasher_open(&stage->hasher);
	if (rc)
		goto close_committer;
	*out = stage;
	return 0;

close_committer:
	ctn_worker_close(&stage->committer);
free_stage:
	pthread_mutex_destroy(&stage->lock);
	free(stage);
	return ctn_err_set(err, rc, "stage: cannot start a thread: %s", strerror(-rc));
}

void ctn_stage_close(struct ctn_stage *stage)
{
	struct disk *d, *next;

	if (!stage)
		return;
	pthread_mutex_lock(&stage->lock);
	CTN_ASSERT(stage->job_count == 0);
	pthread_mutex_unlock(&stage->lock);
	ctn_worker_close(&stage->committer);
	LL_FOREACH_SAFE(stage->disks, d, next)
	ctn_disk_close(d);
	if (stage->hash)
		ctn_hasher_close(&stage->hasher);
	pthread_mutex_destroy(&stage->lock);
	free(stage);
}

/* The disk of a device, with its thread, made when it is first needed. Under stage.lock. */
static int find_disk(struct ctn_stage *stage, uint64_t id, struct disk **out, struct ctn_err *err)
{
	struct disk *d;
	int rc;

	LL_FOREACH (stage->disks, d) {
		if (d->id == id) {
			*out = d;
			return 0;
		}
	}
	rc = ctn_disk_open(stage, id, &d, err);
	if (rc)
		return rc;
	LL_PREPEND(stage->disks, d);
	*out = d;
	return 0;
}

int ctn_stage_submit(struct ctn_stage *stage, const struct ctn_checkpoint *ckpt,
		     const struct ctn_part *part, const struct ctn_extent *extents,
		     uint32_t extent_count, ctn_stage_done_fn *done, void *arg,
		     struct ctn_stage_job **out, struct ctn_err *err)
{
	struct ctn_stage_job *job;
	uint64_t device = 0;
	int rc = ctn_job_new(stage, ckpt, part, extents, extent_count, &job, err);

	if (rc)
		return rc;
	job->done = done;
	job->arg = arg;
	if (part->run_count)
		device = ckpt->files[part->runs[0].file].device;

	pthread_mutex_lock(&stage->lock);
	rc = find_disk(stage, device, &job->disk, err);
	if (rc == 0) {
		stage->job_count++;
		/* Before it can end. */
		*out = job;
		ctn_worker_submit(&stage->committer, job);
	}
	pthread_mutex_unlock(&stage->lock);
	if (rc)
		ctn_job_free(job);
	return rc;
}

void ctn_stage_cancel(struct ctn_stage *stage, struct ctn_stage_job *job)
{
	struct disk *d = job->disk;

	(void)stage;
	/* It may end, and be gone, as soon as a thread of the stage sees this. */
	atomic_store_explicit(&job->cancelled, true, memory_order_release);
	if (d)
		ctn_disk_wake(d);
}

void ctn_stage_end_job(struct ctn_stage_job *job)
{
	struct ctn_stage *stage = job->stage;

	/* Not counted any more when the caller hears of it: it may close the stage then. */
	pthread_mutex_lock(&stage->lock);
	stage->job_count--;
	pthread_mutex_unlock(&stage->lock);
	job->done(job->arg, &job->result);
	ctn_job_free(job);
}

void ctn_stage_note(struct ctn_stage *stage, const char *why)
{
	pthread_mutex_lock(&stage->lock);
	snprintf(stage->stats.why, sizeof(stage->stats.why), "%s", why);
	pthread_mutex_unlock(&stage->lock);
}

void ctn_stage_get_stats(struct ctn_stage *stage, struct ctn_stage_stats *stats)
{
	pthread_mutex_lock(&stage->lock);
	*stats = stage->stats;
	pthread_mutex_unlock(&stage->lock);
}
