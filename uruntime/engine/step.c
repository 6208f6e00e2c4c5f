// SPDX-License-Identifier: MIT
/* Batches: which tokens a step computes, and what comes of it. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- the batch of a model --------------------------------------------------------------- */

enum ctn_phase batch_phase(const struct engine_model *m)
{
	return m->loading ? CTN_PHASE_LOAD : m->job ? CTN_PHASE_QUEUE : CTN_PHASE_OTHER;
}

void batch_admit(struct ctn_request *req)
{
	struct engine_model *m = req->model;

	req->admitted = true;
	request_phase(req, batch_phase(m));
	DL_APPEND2(m->batch, req, batch_prev, batch_next);
}

void batch_forget(struct ctn_request *req)
{
	struct engine_model *m = req->model;

	CTN_ASSERT(!req->in_step);
	if (!atomic_load_explicit(&req->ended, memory_order_relaxed))
		m->engine->recomputed += req->computed;
	while (req->block_count)
		m->free_blocks[m->free_block_count++] = req->blocks[--req->block_count];
	req->computed = 0;
}

void batch_remove(struct ctn_request *req)
{
	struct engine_model *m = req->model;

	batch_forget(req);
	DL_DELETE2(m->batch, req, batch_prev, batch_next);
	req->admitted = false;
}

static bool has_ended(struct ctn_request *req)
{
	return atomic_load_explicit(&req->ended, memory_order_relaxed);
}

/* ---- composing -------------------------------------------------------------------------- */

/* What a step may still take. */
struct room {
	uint32_t tokens, sequences, rows, blocks;
};

uint32_t blocks_for(uint32_t tokens)
{
	return (tokens + CTN_KV_BLOCK - 1) / CTN_KV_BLOCK;
}

/* Rows of logits that a share of `n` tokens wants, at most. What was scored before its KV was given
 * up is not scored again. */
static uint32_t rows_for(const struct ctn_request *req, uint32_t n)
{
	uint32_t end = req->computed + n, rows = end == req->length, first, scores;

	if (!req->scores)
		return rows;
	first = CTN_MAX(req->computed, req->scored ? req->scored - 1 : 0);
	scores = CTN_MIN(end, req->prompt_len - 1);
	return rows + (scores > first ? scores - first : 0);
}

/* The lowest, so that a KV budget can shrink without what lies above it. */
static uint32_t take_block(struct engine_model *m)
{
	uint32_t lowest = 0, block;

	for (uint32_t i = 1; i < m->free_block_count; i++) {
		if (m->free_blocks[i] < m->free_blocks[lowest])
			lowest = i;
	}
	block = m->free_blocks[lowest];
	m->free_blocks[lowest] = m->free_blocks[--m->free_block_count];
	return block;
}

/* Blocks for a share of `n` tokens, from the free ones; fewer tokens when there are not as many. */
static uint32_t back(struct ctn_request *req, uint32_t n)
{
	struct engine_model *m = req->model;
	uint32_t want = blocks_for(req->computed + n);

	CTN_ASSERT(want <= req->kv_blocks);
	while (req->block_count < want && m->free_block_count)
		req->blocks[req->block_count++] = take_block(m);
	return CTN_MIN(n, req->block_count * CTN_KV_BLOCK - req->computed);
}

/* How many tokens of a sequence the step takes: all that are not computed, as far as there is
 * room. Scoring a prompt needs a row a token. */
static uint32_t share(const struct ctn_request *req, const struct room *room)
{
	uint32_t n = CTN_MIN(req->length - req->computed, room->tokens);

	while (n && rows_for(req, n) > room->rows)
		n -= CTN_MIN(n, rows_for(req, n) - room->rows);
	return n;
}

static bool take(struct ctn_request *req, struct room *room, struct step_part *part)
{
	uint32_t n = room->sequences ? share(req, room) : 0, blocks;

	if (n)
		n = back(req, n);
	blocks = blocks_for(req->computed + n);
	if (n == 0 || blocks > room->blocks)
		return false;
	*part = (struct step_part){.req = req, .tokens = n};
	room->tokens -= n;
	room->sequences--;
	room->rows -= rows_for(req, n);
	room->blocks -= blocks;
	return true;
}

/* Decodes first, so that a long prompt does not hold up running streams; then prompts. */
static uint32_t choose(struct engine_model *m, struct step_part *parts, struct room *room)
{
	struct ctn_request *req;
	uint32_t n = 0;

	for (int prompts = 0; prompts < 2; prompts++) {
		DL_FOREACH2(m->batch, req, batch_next)
		{
			bool prompt = req->length - req->computed > 1;

			if (has_ended(req) || req->load_only || prompt != prompts)
				continue;
			n += take(req, room, &parts[n]);
		}
	}
	return n;
}

static void add_rows(struct step_job *job, const struct step_part *part, uint32_t first_token)
{
	struct ctn_request *req = part->req;
	struct ctn_step *step = job->step;

	for (uint32_t i = 0; i < part->tokens; i++) {
		uint32_t position = req->computed + i;
		bool last = position + 1 == req->length;
		bool score = req->scores && position + 1 < req->prompt_len &&
			     position + 1 >= req->scored;
		struct step_row *row = &job->rows[step->rows];

		/* The row after the last token is sampled, unless nothing is asked for. */
		if (!score && !last)
			continue;
		if (!score && req->length == req->max_length)
			continue;
		*row = (struct step_row){.req = req,
					 .sampling = req->sampling,
					 .position = position,
					 .score = score};
		if (score)
			row->id = req->ids[position + 1];
		step->row_tokens[step->rows++] = first_token + i;
	}
}

static void fill(struct step_job *job, uint32_t sequences)
{
	struct ctn_step *step = job->step;
	uint32_t token = 0, block = 0;

	step->rows = 0;
	for (uint32_t s = 0; s < sequences; s++) {
		struct step_part *part = &job->parts[s];
		struct ctn_request *req = part->req;
		uint32_t blocks = blocks_for(req->computed + part->tokens);

		step->seq_start[s] = token;
		step->table_start[s] = block;
		memcpy(&step->block_table[block], req->blocks, blocks * sizeof(uint32_t));
		block += blocks;
		add_rows(job, part, token);
		for (uint32_t i = 0; i < part->tokens; i++, token++) {
			step->ids[token] = req->ids[req->computed + i];
			step->positions[token] = req->computed + i;
		}
		req->in_step = true;
		request_phase(req, req->model->loading ? CTN_PHASE_LOAD : CTN_PHASE_COMPUTE);
	}
	step->seq_start[sequences] = token;
}

static void job_free(struct step_job *job)
{
	if (!job)
		return;
	ctn_step_free(job->step);
	free(job->parts);
	free(job->rows);
	free(job);
}

static void step_taken(struct ctn_mail *mail);

static struct step_job *compose(struct engine_model *m)
{
	const struct ctn_limits *lim = &m->limits;
	struct room room = {lim->max_tokens, lim->max_sequences, lim->max_rows, lim->max_blocks};
	struct step_job *job = calloc(1, sizeof(*job));
	uint32_t n;

	if (!job)
		return NULL;
	job->model = m;
	job->mail.take = step_taken;
	job->parts = calloc(lim->max_sequences, sizeof(*job->parts));
	job->rows = calloc(lim->max_rows, sizeof(*job->rows));
	if (!job->parts || !job->rows)
		goto fail;
	n = choose(m, job->parts, &room);
	job->step = ctn_step_new(lim->max_tokens - room.tokens, n, lim->max_blocks - room.blocks,
				 lim->max_rows - room.rows);
	if (!job->step)
		goto fail;
	fill(job, n);
	return job;
fail:
	job_free(job);
	return NULL;
}

/* ---- absorbing -------------------------------------------------------------------------- */

static bool is_eos(const struct ctn_request *req, uint32_t id)
{
	const struct ctn_arch *arch = &req->model->ckpt->arch;

	for (uint32_t i = 0; !req->ignore_eos && i < arch->eos_count; i++) {
		if (arch->eos[i] == id)
			return true;
	}
	return false;
}

static void take_row(struct step_row *row)
{
	struct ctn_request *req = row->req;

	if (has_ended(req))
		return;
	if (row->rc) {
		struct ctn_err err;

		ctn_err_set(&err, row->rc, "sampling: %s",
			    row->rc == -EDOM ? "the model's logits are not all numbers"
					     : strerror(-row->rc));
		request_end(req, CTN_FINISH_ERROR, &err);
	} else if (row->score) {
		req->scores[row->position + 1] = row->sample;
		req->scored = row->position + 2;
	} else if (is_eos(req, row->sample.id)) {
		request_end(req, CTN_FINISH_STOP, NULL);
	} else {
		req->ids[req->length++] = row->sample.id;
		request_publish(req, &row->sample);
		if (req->length == req->max_length)
			request_end(req, CTN_FINISH_LENGTH, NULL);
	}
}

/* What the batch waits for, after a step has begun or ended. */
static void set_phases(struct engine_model *m)
{
	struct ctn_request *req;

	DL_FOREACH2(m->batch, req, batch_next)
	{
		if (!req->in_step)
			request_phase(req, batch_phase(m));
	}
}

/* Told before the end of the step, so that sched knows when it decides on the next one. */
static void tell_growth(struct ctn_request *req)
{
	struct ctn_sched_event ev = {
		.type = CTN_EV_KV, .request = req->slot, .kv_blocks = blocks_for(req->length)};

	if (ev.kv_blocks <= req->kv_asked)
		return;
	req->kv_asked = ev.kv_blocks;
	engine_tell(req->engine, &ev);
}

/* In the engine thread: all ranks are done with the step. */
static void step_taken(struct ctn_mail *mail)
{
	struct step_job *job = (struct step_job *)((char *)mail - offsetof(struct step_job, mail));
	struct engine_model *m = job->model;
	struct ctn_engine *e = m->engine;
	int rc = atomic_load(&job->rc);
	struct ctn_sched_event ev = {.type = CTN_EV_STEP_DONE,
				     .model = m->sched_id,
				     .seconds = (double)(ctn_now_ns() - job->started_ns) / 1e9};

	m->job = NULL;
	for (uint32_t s = 0; s < job->step->sequences && rc == 0; s++)
		job->parts[s].req->computed += job->parts[s].tokens;
	for (uint32_t i = 0; i < job->step->rows && rc == 0; i++)
		take_row(&job->rows[i]);
	for (uint32_t s = 0; s < job->step->sequences; s++) {
		struct ctn_request *req = job->parts[s].req;

		/* A load that failed ends its requests itself, with its own reason. */
		if (rc && !ctn_pager_failing(e->pager, m->pager_id))
			request_end(req, CTN_FINISH_ERROR, &job->err);
		/* Scoring alone ends when the prompt is computed. */
		else if (!has_ended(req) && req->computed == req->max_length)
			request_end(req, CTN_FINISH_LENGTH, NULL);
		req->in_step = false;
		if (has_ended(req))
			request_release_slot(req);
		else
			tell_growth(req);
	}
	set_phases(m);
	if (rc) {
		for (uint32_t i = 0; i < m->group_count; i++)
			ctn_comm_reset(m->groups[i].group);
	}
	engine_tell(e, &ev);
	ctn_pager_unuse(e->pager, m->pager_id);
	job_free(job);
}

/* Starts one step over the batch. False when there is nothing to compute: everything has
 * ended since sched was told. */
bool step_start(struct engine_model *m)
{
	struct step_job *job;
	struct ctn_err err = {0};

	CTN_ASSERT(!m->job);
	job = compose(m);
	if (!job || job->step->sequences == 0) {
		struct ctn_request *req, *tmp;

		if (!job) {
			ctn_err_set(&err, -ENOMEM, "out of memory for a step");
			DL_FOREACH_SAFE2(m->batch, req, tmp, batch_next)
			request_end(req, CTN_FINISH_ERROR, &err);
		}
		job_free(job);
		return false;
	}
	job->started_ns = ctn_now_ns();
	atomic_init(&job->ranks_left, m->plan->rank_count);
	m->job = job;
	set_phases(m);
	ctn_pager_use(m->engine->pager, m->pager_id);
	for (uint32_t r = 0; r < m->plan->rank_count; r++)
		worker_give(&m->workers[r], job);
	return true;
}
