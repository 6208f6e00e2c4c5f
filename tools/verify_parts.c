// SPDX-License-Identifier: MIT
/*
 * All parts of a plan through the daemon's own stage and a pool. One thread submits them and
 * takes what comes back; a few are under way at once, so that the disk does not wait for digests.
 */
#include "verify.h"

#include "pool/pool.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS      4
#define SMALL_POOL (256 * CTN_MIB)
#define REDRAW_MS  200

struct slot {
	struct run *run;
	struct ctn_part *part; /* NULL: spare */
	struct ctn_frame_ref frame;
	const struct ctn_extent *extents;
	uint32_t extent_count;
	struct ctn_stage_result result;
	struct ctn_mail mail;
};

struct run {
	struct ctn_plan *plan;
	bool fill;
	ctn_verify_failed_fn *failed;
	void *arg;
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_mailbox mail;
	struct slot slots[SLOTS];
	uint32_t under_way;
	struct ctn_progress progress;
	struct ctn_verify_result *result;
};

/* ---- one part ---------------------------------------------------------------------------- */

static void fail(struct run *run, const char *why)
{
	run->result->failed++;
	ctn_progress_clear(&run->progress);
	run->failed(run->arg, why);
}

static void take(struct ctn_mail *mail)
{
	struct slot *s = (struct slot *)((char *)mail - offsetof(struct slot, mail));
	struct run *run = s->run;

	if (s->result.rc)
		fail(run, s->result.err.msg);
	run->result->method = s->result.method;
	run->result->bytes += s->part->tensor_bytes;
	ctn_pool_abort(run->pool, s->frame);
	s->part = NULL;
	run->under_way--;
}

static void fill_digests(struct ctn_part *part, const struct ctn_stage_result *result)
{
	part->digest = result->digest;
	part->has_digest = true;
	for (uint32_t i = 0; i < part->tensor_count; i++)
		part->tensors[i].digest = result->tensor_digests[i];
}

/* From a thread of the stage, which the part is in the hands of. */
static void on_done(void *arg, const struct ctn_stage_result *result)
{
	struct slot *s = arg;

	s->result = *result;
	if (s->run->fill && result->has_digest)
		fill_digests(s->part, result);
	s->mail.take = take;
	ctn_mailbox_post(&s->run->mail, &s->mail);
}

/* -ENOSPC: when another has ended. */
static int submit(struct run *run, struct slot *s, struct ctn_part *part, struct ctn_err *err)
{
	struct ctn_stage_job *job;
	int rc = ctn_pool_alloc(run->pool, &part->key, part->frame_bytes, -1, &s->frame);

	if (rc == -ENOSPC && run->under_way)
		return rc;
	if (rc)
		return ctn_err_set(err, rc, "no frame of %llu bytes for part %u: %s",
				   (unsigned long long)part->frame_bytes, part->id, strerror(-rc));
	rc = ctn_pool_extents(run->pool, s->frame, &s->extents, &s->extent_count);
	s->run = run;
	s->part = part;
	if (rc == 0)
		rc = ctn_stage_submit(run->stage, run->plan->ckpt, part, s->extents,
				      s->extent_count, on_done, s, &job, err);
	else
		ctn_err_set(err, rc, "frame of part %u: %s", part->id, strerror(-rc));
	if (rc == 0) {
		run->under_way++;
		return 0;
	}
	s->part = NULL;
	ctn_pool_abort(run->pool, s->frame);
	return rc;
}

/* ---- all of them ------------------------------------------------------------------------- */

static struct slot *spare(struct run *run)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		if (!run->slots[i].part)
			return &run->slots[i];
	}
	return NULL;
}

static void wait_for_one(struct run *run)
{
	struct pollfd pfd = {.fd = run->mail.fd, .events = POLLIN};

	/* The time that is left changes also while nothing ends. */
	if (poll(&pfd, 1, run->progress.on ? REDRAW_MS : -1) > 0)
		ctn_mailbox_take(&run->mail);
	ctn_progress_show(&run->progress, run->result->bytes);
}

static void read_all(struct run *run)
{
	struct ctn_err err = {0};
	struct slot *s;

	for (uint32_t i = 0; i < run->plan->part_count;) {
		int rc = -ENOSPC;

		s = spare(run);
		if (s)
			rc = submit(run, s, &run->plan->parts[i], &err);
		if (rc == -ENOSPC && run->under_way) {
			wait_for_one(run);
			continue;
		}
		if (rc)
			fail(run, err.msg);
		i++;
	}
	while (run->under_way)
		wait_for_one(run);
	ctn_progress_clear(&run->progress);
}

/* Two of the largest parts have room, or one where memory is scarce. */
static uint64_t pool_bytes(const struct ctn_plan *plan)
{
	uint64_t largest = 0, all = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const uint64_t bytes = ctn_align_up(plan->parts[i].frame_bytes, CTN_EXTENT_ALIGN);

		largest = CTN_MAX(largest, bytes);
		all += bytes;
	}
	if (2 * largest > ctn_pool_default_bytes())
		return largest;
	return CTN_MIN(all, CTN_MAX(2 * largest, SMALL_POOL));
}

int ctn_verify_parts(struct ctn_plan *plan, bool fill, ctn_verify_failed_fn *failed, void *arg,
		     struct ctn_verify_result *result, struct ctn_err *err)
{
	struct ctn_pool_config pool = {
		.bytes = pool_bytes(plan), .temporary = true, .hot_bytes = UINT64_MAX, .node = -1};
	struct ctn_stage_config stage = {.method = -1, .hash = true};
	struct run *run = calloc(1, sizeof(*run));
	uint64_t begun = ctn_now_ns(), total = 0;
	int rc;

	*result = (struct ctn_verify_result){0};
	if (!run)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	run->plan = plan;
	run->fill = fill;
	run->failed = failed;
	run->arg = arg;
	run->result = result;
	rc = ctn_mailbox_init(&run->mail);
	if (rc) {
		ctn_err_set(err, rc, "no mailbox: %s", strerror(-rc));
		goto free_run;
	}
	rc = ctn_pool_open(&pool, &run->pool, err);
	if (rc)
		goto free_mail;
	stage.pool = run->pool;
	rc = ctn_stage_open(&stage, &run->stage, err);
	if (rc)
		goto close_pool;
	for (uint32_t i = 0; i < plan->part_count; i++)
		total += plan->parts[i].tensor_bytes;
	ctn_progress_begin(&run->progress, total);
	read_all(run);
	result->nanoseconds = ctn_now_ns() - begun;
	ctn_stage_close(run->stage);
close_pool:
	ctn_pool_close(run->pool);
free_mail:
	ctn_mailbox_destroy(&run->mail);
free_run:
	free(run);
	return rc;
}
