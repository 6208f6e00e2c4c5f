// SPDX-License-Identifier: MIT
/* A pool with one frame, and runs of the daemon's stage into it. */
#include "bench_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POISON 0xa5

static double cpu_seconds(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / CTN_NSEC_PER_SEC;
}

/* ---- open, close ------------------------------------------------------------------------- */

static int open_frame(struct ctn_stage_rig *rig, struct ctn_err *err)
{
	int rc = ctn_pool_alloc(rig->pool, &rig->file->part.key, rig->file->part.frame_bytes, -1,
				&rig->frame);

	if (rc)
		return ctn_err_set(err, rc, "pool: a frame of %llu bytes: %s",
				   (unsigned long long)rig->file->part.frame_bytes, strerror(-rc));
	rc = ctn_pool_extents(rig->pool, rig->frame, &rig->extents, &rig->extent_count);
	/* Here, so that no run is charged for it. */
	if (rc == 0)
		rc = ctn_stage_rig_commit(rig);
	if (rc == 0) {
		ctn_stage_rig_register(rig);
		return 0;
	}
	ctn_pool_abort(rig->pool, rig->frame);
	return ctn_err_set(err, rc, "pool: memory for a frame of %llu bytes: %s",
			   (unsigned long long)rig->file->part.frame_bytes, strerror(-rc));
}

int ctn_stage_rig_open(struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		       struct ctn_stage_rig *rig, struct ctn_err *err)
{
	struct ctn_pool_config pool = {
		.provider = cfg->provider,
		.bytes = ctn_align_up(file->part.frame_bytes, CTN_EXTENT_ALIGN),
		.node = -1,
		.temporary = true};
	int rc;

	pool.hot_bytes = pool.bytes; /* all, also of kmod */
	*rig = (struct ctn_stage_rig){.cfg = cfg, .file = file};
	rc = ctn_pool_open(&pool, &rig->pool, err);
	if (rc)
		return rc;
	rc = open_frame(rig, err);
	if (rc) {
		ctn_pool_close(rig->pool);
		return rc;
	}
	return 0;
}

void ctn_stage_rig_close(struct ctn_stage_rig *rig)
{
	if (rig->stage)
		ctn_stage_close(rig->stage);
	ctn_pool_abort(rig->pool, rig->frame);
	ctn_pool_close(rig->pool);
	*rig = (struct ctn_stage_rig){0};
}

/* The stage that does, or does not, make digests. */
static int want_stage(struct ctn_stage_rig *rig, bool hash, struct ctn_err *err)
{
	struct ctn_stage_config cfg = {.pool = rig->pool,
				       .method = rig->cfg->method,
				       .queue_depth = rig->cfg->depth,
				       .hash = hash};

	if (rig->stage && rig->hash == hash)
		return 0;
	if (rig->stage)
		ctn_stage_close(rig->stage);
	rig->stage = NULL;
	rig->hash = hash;
	return ctn_stage_open(&cfg, &rig->stage, err);
}

/* ---- a run ------------------------------------------------------------------------------- */

struct waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	struct ctn_stage_result result;
};

static void on_done(void *arg, const struct ctn_stage_result *result)
{
	struct waiter *w = arg;

	pthread_mutex_lock(&w->lock);
	w->result = *result;
	w->done = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

static int stage_file(struct ctn_stage_rig *rig, struct ctn_stage_result *result,
		      struct ctn_err *err)
{
	struct waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
	struct ctn_stage_job *job;
	int rc = ctn_stage_submit(rig->stage, &rig->file->ckpt, &rig->file->part, rig->extents,
				  rig->extent_count, on_done, &w, &job, err);

	if (rc)
		return rc;
	pthread_mutex_lock(&w.lock);
	while (!w.done)
		pthread_cond_wait(&w.cond, &w.lock);
	pthread_mutex_unlock(&w.lock);
	*result = w.result;
	return result->rc ? ctn_err_set(err, result->rc, "%s", result->err.msg) : 0;
}

/* The page cache as the run is to find it. */
static int set_cache(struct ctn_stage_rig *rig, struct ctn_err *err)
{
	uint64_t bytes = rig->file->tensor.bytes;
	char *buf;
	int rc = 0;

	if (!rig->cfg->cached) {
		rc = -posix_fadvise(rig->file->fd, 0, (off_t)bytes, POSIX_FADV_DONTNEED);
	} else if ((buf = malloc(CTN_MIB))) {
		for (uint64_t at = 0; at < bytes && rc == 0; at += CTN_MIB)
			rc = ctn_pread_all(rig->file->fd, buf, CTN_MIN(bytes - at, CTN_MIB), at);
		free(buf);
	} else {
		rc = -ENOMEM;
	}
	return rc ? ctn_err_set(err, rc, "%s: %s", rig->file->file.path, strerror(-rc)) : 0;
}

int ctn_stage_rig_verify(struct ctn_stage_rig *rig, double *cpu_s, struct ctn_err *err)
{
	double begun = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
	struct ctn_digest found;

	ctn_part_digest(&rig->file->ckpt, &rig->file->part, rig->extents, rig->extent_count,
			&found);
	if (cpu_s)
		*cpu_s = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begun;
	if (memcmp(&found, &rig->file->digest, sizeof(found)) != 0)
		return ctn_err_set(err, -EBADMSG, "%s: other bytes arrived than the file holds",
				   rig->file->file.path);
	return 0;
}

int ctn_stage_rig_run(struct ctn_stage_rig *rig, bool hash, struct ctn_stage_run *run,
		      struct ctn_err *err)
{
	struct ctn_stage_stats before, after;
	struct ctn_disk_counts disk, disk_after;
	struct ctn_stage_result result;
	double cpu;
	uint64_t begun;
	int rc = want_stage(rig, hash, err);

	if (rc == 0)
		rc = set_cache(rig, err);
	if (rc)
		return rc;
	/* What an earlier run left must not pass for this one's. */
	for (uint32_t i = 0; i < rig->extent_count; i++)
		memset(rig->extents[i].addr, POISON, rig->extents[i].bytes);

	ctn_stage_get_stats(rig->stage, &before);
	ctn_disk_counts(rig->file, &disk);
	cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
	begun = ctn_now_ns();
	rc = stage_file(rig, &result, err);
	*run = (struct ctn_stage_run){.seconds = (double)(ctn_now_ns() - begun) / CTN_NSEC_PER_SEC,
				      .cpu_s = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu};
	if (rc)
		return rc;
	ctn_disk_counts(rig->file, &disk_after);
	ctn_stage_get_stats(rig->stage, &after);

	run->bytes = result.bytes;
	run->method = result.method;
	run->hash_cpu_s = (double)(after.hash_cpu_nanoseconds - before.hash_cpu_nanoseconds) /
			  CTN_NSEC_PER_SEC;
	run->cpu_s -= run->hash_cpu_s;
	run->reads = after.reads - before.reads;
	/* Little's law. */
	run->depth = (double)(after.read_nanoseconds - before.read_nanoseconds) / CTN_NSEC_PER_SEC /
		     run->seconds;
	run->disk = ctn_disk_counts_between(&disk, &disk_after);
	if (hash && memcmp(&result.digest, &rig->file->digest, sizeof(result.digest)) != 0)
		return ctn_err_set(err, -EBADMSG, "%s: stage made a digest that is not the file's",
				   rig->file->file.path);
	return ctn_stage_rig_verify(rig, &run->hash_alone_cpu_s, err);
}
