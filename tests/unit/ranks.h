/* SPDX-License-Identifier: MIT */
/*
 * All ranks of a checkpoint in one process, for tests: a thread and a host device each,
 * weights brought by the plan's rectangles out of the bytes of the files, comm groups between
 * them. Memory that nobody has written holds NaNs, and guard zones lie between the regions of
 * a rank's memory.
 */
#ifndef CTN_TEST_RANKS_H
#define CTN_TEST_RANKS_H

#include "test.h"
#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define MAX_RANKS   16
#define MAX_LAYERS  16
#define GUARD_BYTES 4096u
#define GUARD       0xa5
#define NAN_BYTE    0xff /* four of them are a NaN, and an index that is out of bounds */

struct ranks;

struct rank {
	struct ranks *all;
	struct ctn_device *dev;
	struct ctn_stream *stream;
	struct ctn_decoder *dec;
	uint8_t *memory; /* guard, pieces, guard, workspace, guard, KV, guard */
	uint64_t memory_bytes;
	uint8_t *guards[4];
	void **pieces[MAX_LAYERS];
	uint32_t waited[MAX_LAYERS + 1]; /* layers waited for in this step, in order */
	uint32_t waits;
	int fail_wait_at; /* layer whose wait fails, -1: none */
	int rc;
	struct ctn_err err;
};

struct ranks {
	struct ctn_checkpoint *ckpt;
	struct ctn_plan *plan;
	struct ctn_limits limits;
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint32_t device_count;
	struct ctn_comm_group *tp_groups[MAX_RANKS], *pp_groups[MAX_RANKS];
	struct ctn_comm *tp_comms[MAX_RANKS], *pp_comms[MAX_RANKS]; /* by rank */
	struct rank rank[MAX_RANKS];
	uint8_t **frames; /* by part */
	const struct ctn_step *step;
	float *logits;
	uint32_t kv_blocks, kv_next;
};

static void ranks_read_frames(struct ranks *r)
{
	r->frames = calloc(r->plan->part_count, sizeof(*r->frames));
	CU_ASSERT_PTR_NOT_NULL_FATAL(r->frames);
	for (uint32_t p = 0; p < r->plan->part_count; p++) {
		const struct ctn_part *part = &r->plan->parts[p];

		r->frames[p] = malloc(part->frame_bytes);
		CU_ASSERT_PTR_NOT_NULL_FATAL(r->frames[p]);
		memset(r->frames[p], NAN_BYTE, part->frame_bytes);
		for (uint32_t i = 0; i < part->run_count; i++) {
			const struct ctn_run *run = &part->runs[i];
			int fd = open(r->ckpt->files[run->file].path, O_RDONLY | O_CLOEXEC);
			ssize_t got = pread(fd, r->frames[p] + run->frame_offset, run->bytes,
					    (off_t)run->file_offset);

			CU_ASSERT_FATAL(got > 0);
			close(fd);
		}
	}
}

/* Loads every piece of a rank over its device's link. */
static void rank_load(struct ranks *r, uint32_t index)
{
	const struct ctn_rank_plan *plan = &r->plan->ranks[index];
	struct rank *rank = &r->rank[index];
	struct ctn_event *event;

	CU_ASSERT_EQUAL_FATAL(ctn_event_new(rank->dev, &event), 0);
	for (uint32_t l = 0; l < plan->layer_count; l++) {
		for (uint32_t p = 0; p < plan->shards[l].piece_count; p++) {
			const struct ctn_piece *piece = &plan->shards[l].pieces[p];
			struct ctn_copy *copies = calloc(piece->rect_count + 1, sizeof(*copies));

			for (uint32_t i = 0; i < piece->rect_count; i++) {
				const struct ctn_rect *rect = &piece->rects[i];

				copies[i] = (struct ctn_copy){
					.src = r->frames[rect->part] + rect->src_offset,
					.dst = (uint8_t *)rank->pieces[l][p] + rect->dst_offset,
					.width = rect->width,
					.height = rect->height,
					.src_pitch = rect->src_pitch,
					.dst_pitch = rect->dst_pitch};
			}
			ctn_event_reset(event);
			CU_ASSERT_EQUAL_FATAL(ctn_device_load(rank->dev, copies, piece->rect_count,
							      event, NULL, NULL),
					      0);
			CU_ASSERT_EQUAL_FATAL(ctn_event_wait(event), 0);
			free(copies);
		}
	}
	ctn_event_free(event);
}

static void rank_new(struct ranks *r, uint32_t index)
{
	const struct ctn_rank_plan *plan = &r->plan->ranks[index];
	struct rank *rank = &r->rank[index];
	uint64_t workspace_bytes = ctn_decoder_workspace(r->plan, index, &r->limits);
	uint64_t kv_bytes = r->kv_blocks * ctn_kv_block_floats(r->plan, index) * sizeof(float);
	uint64_t granule, at = GUARD_BYTES, bytes = 0;
	struct ctn_decoder_config cfg;
	struct ctn_err err = {0};

	CU_ASSERT_FATAL(plan->layer_count <= MAX_LAYERS);
	rank->all = r;
	rank->dev = r->devices[index];
	rank->fail_wait_at = -1;
	granule = ctn_device_props(rank->dev)->granule;
	for (uint32_t l = 0; l < plan->layer_count; l++)
		bytes += plan->shards[l].bytes;
	bytes += workspace_bytes + kv_bytes + 4 * GUARD_BYTES;
	rank->memory_bytes = ctn_align_up(bytes, granule);
	CU_ASSERT_EQUAL_FATAL(
		ctn_device_reserve(rank->dev, rank->memory_bytes, (void **)&rank->memory), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_device_map(rank->dev, rank->memory, rank->memory_bytes), 0);
	memset(rank->memory, NAN_BYTE, rank->memory_bytes);
	rank->guards[0] = rank->memory;
	for (uint32_t l = 0; l < plan->layer_count; l++) {
		rank->pieces[l] = calloc(plan->shards[l].piece_count + 1, sizeof(*rank->pieces[l]));
		for (uint32_t p = 0; p < plan->shards[l].piece_count; p++) {
			rank->pieces[l][p] = rank->memory + at;
			at += plan->shards[l].pieces[p].bytes;
		}
	}
	rank_load(r, index);
	cfg = (struct ctn_decoder_config){.plan = r->plan,
					  .rank = index,
					  .dev = rank->dev,
					  .tp = r->tp_comms[index],
					  .pp = r->pp_comms[index],
					  .limits = r->limits,
					  .pieces = (void *const *const *)rank->pieces};
	rank->guards[1] = rank->memory + at;
	cfg.workspace = rank->guards[1] + GUARD_BYTES;
	rank->guards[2] = (uint8_t *)cfg.workspace + workspace_bytes;
	cfg.kv = rank->guards[2] + GUARD_BYTES;
	rank->guards[3] = (uint8_t *)cfg.kv + kv_bytes;
	for (int i = 0; i < 4; i++)
		memset(rank->guards[i], GUARD, GUARD_BYTES);
	CU_ASSERT_EQUAL_FATAL(ctn_stream_new(rank->dev, &rank->stream), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_decoder_new(&cfg, &rank->dec, &err), 0);
}

/* NULL when the model cannot be split so. */
static struct ranks *ranks_new(const char *dir, uint32_t tp, uint32_t pp,
			       const struct ctn_limits *limits, uint32_t kv_blocks)
{
	struct ranks *r = calloc(1, sizeof(*r));
	struct ctn_err err = {0};
	char spec[64];
	uint64_t floats;

	CU_ASSERT_PTR_NOT_NULL_FATAL(r);
	r->limits = *limits;
	r->kv_blocks = kv_blocks;
	if (ctn_checkpoint_open(dir, &r->ckpt, &err) != 0) {
		printf("# %s\n", err.msg);
		CU_FAIL_FATAL("the checkpoint does not open");
	}
	if (ctn_plan_build(r->ckpt, tp, pp, &r->plan, &err) != 0) {
		ctn_checkpoint_close(r->ckpt);
		free(r);
		return NULL;
	}
	CU_ASSERT_FATAL(r->plan->rank_count <= MAX_RANKS);
	snprintf(spec, sizeof(spec), "host:%u,mem=64M", r->plan->rank_count);
	CU_ASSERT_EQUAL_FATAL(ctn_devices_open(spec, r->devices, &r->device_count, &err), 0);
	floats = ctn_decoder_comm_floats(r->plan, limits);
	for (uint32_t s = 0; tp > 1 && s < pp; s++)
		CU_ASSERT_EQUAL_FATAL(
			ctn_comm_local_new(tp, floats, &r->tp_comms[s * tp], &r->tp_groups[s]), 0);
	for (uint32_t t = 0; pp > 1 && t < tp; t++) {
		struct ctn_comm *comms[MAX_RANKS];

		CU_ASSERT_EQUAL_FATAL(ctn_comm_local_new(pp, floats, comms, &r->pp_groups[t]), 0);
		for (uint32_t s = 0; s < pp; s++)
			r->pp_comms[s * tp + t] = comms[s];
	}
	ranks_read_frames(r);
	for (uint32_t i = 0; i < r->plan->rank_count; i++)
		rank_new(r, i);
	return r;
}

static void ranks_free(struct ranks *r)
{
	for (uint32_t i = 0; i < r->plan->rank_count; i++) {
		struct rank *rank = &r->rank[i];

		ctn_decoder_free(rank->dec);
		ctn_stream_free(rank->stream);
		ctn_device_unmap(rank->dev, rank->memory, rank->memory_bytes, true);
		ctn_device_unreserve(rank->dev, rank->memory, rank->memory_bytes);
		for (uint32_t l = 0; l < MAX_LAYERS; l++)
			free(rank->pieces[l]);
		ctn_comm_group_free(r->tp_groups[i]);
		ctn_comm_group_free(r->pp_groups[i]);
	}
	for (uint32_t p = 0; p < r->plan->part_count; p++)
		free(r->frames[p]);
	free(r->frames);
	ctn_devices_close(r->devices, r->device_count);
	ctn_plan_free(r->plan);
	ctn_checkpoint_close(r->ckpt);
	free(r);
}

static int rank_wait(void *arg, uint32_t layer, struct ctn_stream *stream)
{
	struct rank *rank = arg;

	(void)stream;
	if (rank->waits < MAX_LAYERS + 1)
		rank->waited[rank->waits++] = layer;
	return (int)layer == rank->fail_wait_at ? -ECANCELED : 0;
}

static void ranks_abort(struct ranks *r, int code)
{
	for (uint32_t i = 0; i < MAX_RANKS; i++) {
		if (r->tp_groups[i])
			ctn_comm_abort(r->tp_groups[i], code);
		if (r->pp_groups[i])
			ctn_comm_abort(r->pp_groups[i], code);
	}
}

static void *rank_run(void *arg)
{
	struct rank *rank = arg;
	struct ranks *r = rank->all;
	uint32_t index = (uint32_t)(rank - r->rank);
	bool first_of_last_stage = index == (r->plan->pp - 1) * r->plan->tp;

	rank->waits = 0;
	rank->rc = ctn_decoder_forward(rank->dec, rank->stream, r->step, rank_wait, rank,
				       first_of_last_stage ? r->logits : NULL, &rank->err);
	if (rank->rc)
		ranks_abort(r, -EPIPE);
	return NULL;
}

/* Runs a step on all ranks; logits is [rows, vocab]. The return code of rank 0. */
static int ranks_forward(struct ranks *r, const struct ctn_step *step, float *logits)
{
	uint32_t n = r->plan->rank_count;
	pthread_t threads[MAX_RANKS];
	size_t bad = 0;

	r->step = step;
	r->logits = logits;
	for (uint32_t i = 1; i < n; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, rank_run, &r->rank[i]), 0);
	rank_run(&r->rank[0]);
	for (uint32_t i = 1; i < n; i++)
		pthread_join(threads[i], NULL);
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t g = 0; g < 4; g++) {
			for (uint32_t b = 0; b < GUARD_BYTES; b++)
				bad += r->rank[i].guards[g][b] != GUARD;
		}
	}
	CU_ASSERT_EQUAL(bad, 0);
	return r->rank[0].rc;
}

/* Room for a row a token of the largest step. */
static float *new_logits(const struct ranks *r)
{
	float *logits = malloc((size_t)r->limits.max_rows * r->ckpt->arch.vocab * sizeof(float));

	CU_ASSERT_PTR_NOT_NULL_FATAL(logits);
	return logits;
}

/* ---- sequences ---- */

#define MAX_CONTEXT 512

struct seq {
	uint32_t ids[MAX_CONTEXT];
	uint32_t len;  /* ids that are known */
	uint32_t done; /* ids whose KV is stored */
	uint32_t blocks[MAX_CONTEXT / CTN_KV_BLOCK];
	uint32_t block_count;
};

/* Blocks are given to whoever asks next, so that those of a sequence lie apart (7 is coprime
 * to the numbers of blocks used here), the last first, so that what is stored behind a block
 * meets the guard. */
static uint32_t seq_block(struct ranks *r, struct seq *seq, uint32_t index)
{
	while (seq->block_count <= index) {
		CU_ASSERT_FATAL(r->kv_next < r->kv_blocks);
		seq->blocks[seq->block_count++] =
			r->kv_blocks - 1 - (uint32_t)(7ull * r->kv_next++ % r->kv_blocks);
	}
	return seq->blocks[index];
}

/* A step that feeds the next counts[i] ids of each sequence, with a row for each token. */
static struct ctn_step *step_of(struct ranks *r, struct seq *const *seqs, const uint32_t *counts,
				uint32_t n)
{
	uint32_t tokens = 0, blocks = 0, t = 0, b = 0;
	struct ctn_step *step;

	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_FATAL(seqs[i]->done + counts[i] <= seqs[i]->len);
		tokens += counts[i];
		blocks += (seqs[i]->done + counts[i] - 1) / CTN_KV_BLOCK + 1;
	}
	step = ctn_step_new(tokens, n, blocks, tokens);
	CU_ASSERT_PTR_NOT_NULL_FATAL(step);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t end = seqs[i]->done + counts[i];

		step->seq_start[i] = t;
		step->table_start[i] = b;
		for (uint32_t p = seqs[i]->done; p < end; p++, t++) {
			step->ids[t] = seqs[i]->ids[p];
			step->positions[t] = p;
			step->row_tokens[t] = t;
		}
		for (uint32_t k = 0; k <= (end - 1) / CTN_KV_BLOCK; k++)
			step->block_table[b++] = seq_block(r, seqs[i], k);
	}
	step->seq_start[n] = t;
	return step;
}

/* Feeds and runs; logits gets a row for each token fed, in order. */
static void feed(struct ranks *r, struct seq *const *seqs, const uint32_t *counts, uint32_t n,
		 float *logits)
{
	struct ctn_step *step = step_of(r, seqs, counts, n);
	int rc = ranks_forward(r, step, logits);

	if (rc)
		printf("# %s\n", r->rank[0].err.msg);
	CU_ASSERT_EQUAL_FATAL(rc, 0);
	for (uint32_t i = 0; i < n; i++)
		seqs[i]->done += counts[i];
	ctn_step_free(step);
}

static uint32_t argmax(const float *x, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++) {
		if (x[i] > x[best])
			best = i;
	}
	return best;
}

/* The largest |a - b|; NaN when there is one. */
static double max_diff(const float *a, const float *b, size_t n)
{
	double max = 0;

	for (size_t i = 0; i < n; i++) {
		double d = fabs((double)a[i] - b[i]);

		if (!(d <= max))
			max = d;
	}
	return max;
}

#endif
