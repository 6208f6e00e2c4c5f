// SPDX-License-Identifier: MIT
/* The workspace of a rank: one function that gives both its size and the addresses in it. */
#include "model/decoder.h"

/* Lays out from `base` on; `bytes` is UINT64_MAX once it has overflowed. */
struct cursor {
	uintptr_t base;
	uint64_t bytes;
};

/* Room for rows x cols elements of 4 bytes (float or uint32_t). */
static void *take(struct cursor *cursor, uint64_t rows, uint64_t cols)
{
	uint64_t at = cursor->bytes, bytes, end;

	if (ctn_mul_overflows(rows, cols, &bytes) || ctn_mul_overflows(bytes, 4, &bytes) ||
	    ctn_add_overflows(bytes, CTN_TENSOR_ALIGN, &bytes) ||
	    ctn_add_overflows(at, bytes, &end)) {
		cursor->bytes = UINT64_MAX;
		return NULL;
	}
	cursor->bytes = ctn_align_down(end, CTN_TENSOR_ALIGN);
	return (void *)(cursor->base + at);
}

uint64_t ctn_buffers_lay_out(const struct ctn_plan *plan, uint32_t rank,
			     const struct ctn_limits *limits, void *base, struct ctn_buffers *b)
{
	const struct ctn_arch *arch = &plan->ckpt->arch;
	const struct ctn_rank_plan *r = &plan->ranks[rank];
	uint64_t tokens = limits->max_tokens, rows = limits->max_rows;
	bool narrow = arch->embed_dim != arch->hidden;
	struct cursor c = {.base = (uintptr_t)base};
	struct cursor phase; /* each phase starts again where the lasting buffers end */
	uint64_t end;

	*b = (struct ctn_buffers){0};
	b->ids = take(&c, tokens, 1);
	b->positions = take(&c, tokens, 1);
	b->seq_start = take(&c, (uint64_t)limits->max_sequences + 1, 1);
	b->token_seq = take(&c, tokens, 1);
	b->table_start = take(&c, limits->max_sequences, 1);
	b->block_table = take(&c, limits->max_blocks, 1);
	b->row_tokens = take(&c, rows, 1);
	b->inv_freq = take(&c, arch->head_dim, 1);
	b->scratch = take(&c, CTN_GEMM_SCRATCH / 4, 1);
	b->x = take(&c, tokens, arch->hidden);
	b->normed = take(&c, tokens, arch->hidden);
	b->partial = plan->tp > 1 ? take(&c, tokens, arch->hidden) : NULL;
	end = c.bytes;

	phase = c;
	b->embedded = narrow ? take(&phase, tokens, arch->embed_dim) : NULL;
	end = CTN_MAX(end, phase.bytes);

	phase = c;
	b->qkv = take(&phase, tokens,
		      ((uint64_t)r->head_count + 2 * (uint64_t)r->kv_head_count) * arch->head_dim);
	b->attended = take(&phase, tokens, (uint64_t)r->head_count * arch->head_dim);
	end = CTN_MAX(end, phase.bytes);

	phase = c;
	b->up = take(&phase, tokens, (arch->gated ? 2 : 1) * (uint64_t)r->ffn_count);
	b->activated = arch->gated ? take(&phase, tokens, r->ffn_count) : NULL;
	end = CTN_MAX(end, phase.bytes);

	phase = c;
	b->rows = take(&phase, rows, arch->hidden);
	b->projected = narrow ? take(&phase, rows, arch->embed_dim) : NULL;
	b->logits = take(&phase, rows, r->vocab_padded);
	b->all_logits = plan->tp > 1 ? take(&phase, plan->tp * rows, r->vocab_padded) : NULL;
	return CTN_MAX(end, phase.bytes);
}

uint64_t ctn_decoder_workspace(const struct ctn_plan *plan, uint32_t rank,
			       const struct ctn_limits *limits)
{
	struct ctn_buffers b;

	return ctn_buffers_lay_out(plan, rank, limits, NULL, &b);
}

uint64_t ctn_decoder_comm_floats(const struct ctn_plan *plan, const struct ctn_limits *limits)
{
	const struct ctn_arch *arch = &plan->ckpt->arch;
	uint64_t activations =
		(uint64_t)limits->max_tokens * CTN_MAX(arch->hidden, arch->embed_dim);
	uint64_t logits = (uint64_t)limits->max_rows * plan->ranks[0].vocab_padded;

	return CTN_MAX(activations, logits);
}
