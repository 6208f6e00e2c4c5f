/* SPDX-License-Identifier: MIT */
/* model: private parts of the decoder. */
#ifndef CTN_MODEL_DECODER_H
#define CTN_MODEL_DECODER_H

#include "model/model.h"

/* Addresses in a rank's workspace; all on the device. Those of a step's phases (embedding,
 * attention, MLP, head) share memory, as no two phases live at once. */
struct ctn_buffers {
	uint32_t *ids, *positions, *seq_start, *token_seq, *table_start, *block_table, *row_tokens;
	float *inv_freq;
	void *scratch;     /* of GEMM */
	float *x;          /* [tokens, hidden]: the residual stream */
	float *normed;     /* [tokens, hidden] */
	float *partial;    /* [tokens, hidden]: this rank's share of a sum, tp > 1 */
	float *embedded;   /* [tokens, embed_dim], when that is not hidden */
	float *qkv;        /* [tokens, (heads + 2 kv_heads) * head_dim] */
	float *attended;   /* [tokens, heads * head_dim] */
	float *up;         /* [tokens, ffn], gated: [tokens, 2 ffn] */
	float *activated;  /* [tokens, ffn], gated only */
	float *rows;       /* [rows, hidden] */
	float *projected;  /* [rows, embed_dim], when that is not hidden */
	float *logits;     /* [rows, vocab_padded] */
	float *all_logits; /* [tp, rows, vocab_padded], tp > 1 */
};

/* Lays the buffers out from `base` on; returns the bytes they take, UINT64_MAX when that
 * overflows. A NULL base only measures. */
uint64_t ctn_buffers_lay_out(const struct ctn_plan *plan, uint32_t rank,
			     const struct ctn_limits *limits, void *base, struct ctn_buffers *b);

struct ctn_decoder {
	struct ctn_decoder_config cfg;
	const struct ctn_arch *arch;
	const struct ctn_rank_plan *rank;
	const struct ctn_kernels *kernels;
	struct ctn_attention_shape shape;
	struct ctn_kv_cache kv;
	struct ctn_buffers buf;
	float *inv_freq;     /* host, [head_dim / 2]; NULL without rope */
	uint32_t *token_seq; /* host, [max_tokens] */
};

/* -EINVAL, naming what is wrong, when a step breaks the limits, the architecture or itself. */
int ctn_step_check(const struct ctn_step *step, const struct ctn_limits *limits,
		   const struct ctn_arch *arch, struct ctn_err *err);

/* Fills inv_freq[head_dim / 2]: theta^(-2i / head_dim), scaled as the architecture says. */
void ctn_rope_frequencies(const struct ctn_rope *rope, uint32_t head_dim, float *inv_freq);

/* One step on its way through one rank. */
struct ctn_pass {
	const struct ctn_decoder *dec;
	struct ctn_stream *stream;
	const struct ctn_step *step;
	struct ctn_batch batch; /* its arrays are in dec->buf */
	float *logits;          /* host */
};

/* The phases of a step. Each enqueues its work and returns 0 or a negative errno. */
int ctn_pass_embed(struct ctn_pass *pass);
int ctn_pass_layer(struct ctn_pass *pass, uint32_t layer);
int ctn_pass_head(struct ctn_pass *pass, uint32_t layer);

#endif
