/* SPDX-License-Identifier: MIT */
/*
 * model: the decoder of one rank, driven by the architecture and the plan over the device's
 * kernel table; paged KV; sampling.
 */
#ifndef CTN_MODEL_H
#define CTN_MODEL_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "comm/comm.h"
#include "device/device.h"

/* ---- steps ----------------------------------------------------------------------------- */

/*
 * One forward pass of one batch. Self-contained and immutable: it holds no pointer into
 * anyone's state, so that it could cross a network. Sequence s has tokens
 * [seq_start[s], seq_start[s+1]), at consecutive positions that end where its context ends,
 * and enough block ids to hold positions 0 .. last.
 */
struct ctn_step {
	uint64_t id;
	uint32_t tokens;
	uint32_t sequences;
	uint32_t blocks;       /* entries of block_table */
	uint32_t rows;         /* tokens whose logits are wanted */
	uint32_t *ids;         /* [tokens] */
	uint32_t *positions;   /* [tokens] */
	uint32_t *seq_start;   /* [sequences + 1] */
	uint32_t *table_start; /* [sequences] */
	uint32_t *block_table; /* [blocks] */
	uint32_t *row_tokens;  /* [rows] */
};

/* One allocation for all arrays; NULL when out of memory. Free with ctn_step_free. */
struct ctn_step *ctn_step_new(uint32_t tokens, uint32_t sequences, uint32_t blocks, uint32_t rows);
void ctn_step_free(struct ctn_step *step);

/* ---- the decoder of one rank ----------------------------------------------------------- */

/* Bounds of a step; they size the workspace. */
struct ctn_limits {
	uint32_t max_tokens;
	uint32_t max_sequences;
	uint32_t max_blocks; /* of all sequences of a step together */
	uint32_t max_rows;
};

struct ctn_decoder;

/* Bytes of device workspace that a rank needs for steps within the limits. */
uint64_t ctn_decoder_workspace(const struct ctn_plan *plan, uint32_t rank,
			       const struct ctn_limits *limits);
/* What one rank gives to one collective or sends at most: max_floats of its comm groups. */
uint64_t ctn_decoder_comm_floats(const struct ctn_plan *plan, const struct ctn_limits *limits);
/* Floats of one KV block of a rank, over all its layers; the distance between blocks. */
uint64_t ctn_kv_block_floats(const struct ctn_plan *plan, uint32_t rank);

struct ctn_decoder_config {
	const struct ctn_plan *plan; /* outlives the decoder */
	uint32_t rank;
	struct ctn_device *dev;
	struct ctn_comm *tp; /* ranks of this pipeline stage; NULL when tp is 1 */
	struct ctn_comm *pp; /* ranks of this tp position, by stage; NULL when pp is 1 */
	struct ctn_limits limits;
	void *const *const *pieces; /* [layer - first_layer][piece]: device addresses; the table
				     * outlives the decoder, and what it says of a layer is
				     * read in each step after the layer's wait */
	void *workspace;            /* device, ctn_decoder_workspace() bytes; must be mapped
				     * while a step runs */
	void *kv;                   /* device, base of the KV blocks; likewise */
};

/* Allocates host memory only. -ENOMEM; -EINVAL when tp or pp does not fit the plan. */
int ctn_decoder_new(const struct ctn_decoder_config *cfg, struct ctn_decoder **dec,
		    struct ctn_err *err);
void ctn_decoder_free(struct ctn_decoder *dec);

/*
 * Called before the first kernel of a layer that reads its weights; returns when they may be
 * read by work enqueued on `stream` from now on (it may enqueue a wait, or block), or a
 * negative errno that ends the step.
 */
typedef int ctn_layer_wait_fn(void *arg, uint32_t layer, struct ctn_stream *stream);

/*
 * Runs a step on this rank's stream and waits for its end. On the last stage `logits`
 * (host, [rows, vocab]) is filled, on tp rank 0 of it alone; elsewhere it may be NULL. The
 * caller owns step and logits. One thread at a time per decoder. A step with no rows does not
 * touch the head. -EINVAL for a step that breaks the limits or itself (block ids are trusted),
 * before any work. A failed step leaves the KV of its tokens undefined and nothing else; with
 * several ranks the caller aborts their groups, so that no other rank waits.
 */
int ctn_decoder_forward(struct ctn_decoder *dec, struct ctn_stream *stream,
			const struct ctn_step *step, ctn_layer_wait_fn *wait, void *wait_arg,
			float *logits, struct ctn_err *err);

/* ---- sampling -------------------------------------------------------------------------- */

#define CTN_MAX_TOP_LOGPROBS 20

struct ctn_sampling {
	float temperature; /* 0: greedy */
	uint32_t top_k;    /* 0: all */
	float top_p;       /* 1: all */
	uint64_t seed;
	uint32_t logprobs; /* how many of the most likely tokens to report */
};

struct ctn_sample {
	uint32_t id;
	float logprob; /* natural, of the unscaled distribution */
	uint32_t top_count;
	uint32_t top_ids[CTN_MAX_TOP_LOGPROBS];
	float top_logprobs[CTN_MAX_TOP_LOGPROBS];
};

/*
 * Chooses the token that follows position `position` (its own position is position + 1). The
 * random number is a function of (seed, position) alone. Greedy ties go to the lowest id.
 * `scratch` is ctn_sample_scratch(vocab) bytes. -EDOM when the logits have a NaN or their
 * largest is not finite.
 */
size_t ctn_sample_scratch(uint32_t vocab);
int ctn_sample_token(const float *logits, uint32_t vocab, const struct ctn_sampling *params,
		     uint32_t position, void *scratch, struct ctn_sample *out);
/* Fills logprob and top of `out` for a token that is given (prompt logprobs). */
int ctn_score_token(const float *logits, uint32_t vocab, uint32_t id, uint32_t logprobs,
		    void *scratch, struct ctn_sample *out);

#endif
