// SPDX-License-Identifier: MIT
/*
 * The arithmetic of a step, phase by phase, as the papers write it. What differs between
 * families is data: the architecture's fields, and which tensors are present.
 *
 * Tensor parallelism is Megatron's: QKV and UP are split by output, OUT and DOWN by input, so
 * that each of attention and MLP ends with one sum over ranks; the embedding and the head are
 * split by vocabulary.
 */
#include "model/decoder.h"

#include <errno.h>

static const struct ctn_slot *slot_of(const struct ctn_decoder *dec, uint32_t layer,
				      enum ctn_role role)
{
	return &dec->rank->shards[layer - dec->rank->first_layer].slots[role];
}

static const void *address_of(const struct ctn_decoder *dec, uint32_t layer,
			      const struct ctn_slot *slot)
{
	/* An alias lies in the embed layer, which is layer 0. */
	uint32_t index = (slot->alias ? 0 : layer) - dec->rank->first_layer;

	return (const uint8_t *)dec->cfg.pieces[index][slot->piece] + slot->offset;
}

static struct ctn_matrix matrix(const struct ctn_decoder *dec, uint32_t layer, enum ctn_role role)
{
	const struct ctn_slot *slot = slot_of(dec, layer, role);

	CTN_ASSERT(slot->present);
	return (struct ctn_matrix){
		.data = address_of(dec, layer, slot),
		.encoding = slot->encoding,
		.rows = (uint32_t)slot->rows,
		.cols = (uint32_t)slot->cols,
		.transposed = slot->transposed,
	};
}

/* A table of this rank's share of the vocabulary, without the rows that only pad it. */
static struct ctn_matrix vocab_matrix(const struct ctn_decoder *dec, uint32_t layer,
				      enum ctn_role role)
{
	struct ctn_matrix m = matrix(dec, layer, role);

	m.rows = dec->rank->vocab_count;
	return m;
}

static struct ctn_vector vector(const struct ctn_decoder *dec, uint32_t layer, enum ctn_role role)
{
	const struct ctn_slot *slot = slot_of(dec, layer, role);

	if (!slot->present)
		return (struct ctn_vector){0};
	return (struct ctn_vector){
		.data = address_of(dec, layer, slot),
		.encoding = slot->encoding,
		.count = (uint32_t)slot->cols,
	};
}

static void norm(struct ctn_pass *pass, float *y, const float *x, uint32_t n, uint32_t layer,
		 enum ctn_role w_role, enum ctn_role b_role)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_arch *arch = dec->arch;
	struct ctn_vector w = vector(dec, layer, w_role);
	struct ctn_vector b = vector(dec, layer, b_role);

	if (arch->norm == CTN_NORM_RMS)
		dec->kernels->rms_norm(pass->stream, y, x, n, arch->hidden, &w, arch->norm_eps);
	else
		dec->kernels->layer_norm(pass->stream, y, x, n, arch->hidden, &w, &b,
					 arch->norm_eps);
}

static void gemm(struct ctn_pass *pass, float *y, const float *x, uint32_t n,
		 const struct ctn_matrix *w, const struct ctn_vector *bias, bool accumulate)
{
	pass->dec->kernels->gemm(pass->stream, y, x, n, w, bias, accumulate,
				 pass->dec->buf.scratch);
}

/* residual += sum over ranks of in . W^T, + bias once. */
static int add_sum(struct ctn_pass *pass, const float *in, uint32_t layer, enum ctn_role w_role,
		   enum ctn_role b_role)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_buffers *buf = &dec->buf;
	uint32_t n = pass->step->tokens;
	uint64_t floats = (uint64_t)n * dec->arch->hidden;
	struct ctn_matrix w = matrix(dec, layer, w_role);
	struct ctn_vector bias = vector(dec, layer, b_role);
	int rc;

	if (!dec->cfg.tp) {
		gemm(pass, buf->x, in, n, &w, &bias, true);
		return 0;
	}
	gemm(pass, buf->partial, in, n, &w, dec->rank->tp_rank == 0 ? &bias : NULL, false);
	rc = ctn_comm_all_reduce(dec->cfg.tp, pass->stream, buf->partial, floats);
	if (rc)
		return rc;
	dec->kernels->add(pass->stream, buf->x, buf->partial, floats);
	return 0;
}

/* x += Attention(Norm(x)), or x = Norm(x + Attention(x)) in a post-LN model. */
static int attention(struct ctn_pass *pass, uint32_t layer)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_kernels *k = dec->kernels;
	const struct ctn_buffers *buf = &dec->buf;
	uint32_t n = pass->step->tokens;
	/* KV counts this rank's own layers; layer 0 is the embedding, which has none. */
	uint32_t kv_layer = layer - CTN_MAX(dec->rank->first_layer, 1u);
	const float *in = dec->arch->norm_first ? buf->normed : buf->x;
	struct ctn_matrix qkv = matrix(dec, layer, CTN_ROLE_QKV_W);
	struct ctn_vector qkv_bias = vector(dec, layer, CTN_ROLE_QKV_B);
	int rc;

	if (dec->arch->norm_first)
		norm(pass, buf->normed, buf->x, n, layer, CTN_ROLE_NORM1_W, CTN_ROLE_NORM1_B);
	gemm(pass, buf->qkv, in, n, &qkv, &qkv_bias, false);
	if (dec->arch->positions == CTN_POSITIONS_ROPE)
		k->rope(pass->stream, buf->qkv, &pass->batch, &dec->shape, buf->inv_freq);
	k->kv_store(pass->stream, buf->qkv, &pass->batch, &dec->shape, &dec->kv, kv_layer);
	k->attention(pass->stream, buf->attended, buf->qkv, &pass->batch, &dec->shape, &dec->kv,
		     kv_layer);
	rc = add_sum(pass, buf->attended, layer, CTN_ROLE_OUT_W, CTN_ROLE_OUT_B);
	if (rc == 0 && !dec->arch->norm_first)
		norm(pass, buf->x, buf->x, n, layer, CTN_ROLE_NORM1_W, CTN_ROLE_NORM1_B);
	return rc;
}

static enum ctn_act activation_of(const struct ctn_arch *arch)
{
	switch (arch->activation) {
	case CTN_ACT_SILU:
		return CTN_KERNEL_SILU;
	case CTN_ACT_RELU:
		return CTN_KERNEL_RELU;
	case CTN_ACT_GELU:
		return CTN_KERNEL_GELU;
	case CTN_ACT_GELU_TANH:
		return CTN_KERNEL_GELU_TANH;
	}
	CTN_ASSERT(false);
	return CTN_KERNEL_SILU;
}

/* x += Down(act(Up(Norm(x)))), Up gated or not; or the norm last, as above. */
static int mlp(struct ctn_pass *pass, uint32_t layer)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_kernels *k = dec->kernels;
	const struct ctn_buffers *buf = &dec->buf;
	uint32_t n = pass->step->tokens, ffn = dec->rank->ffn_count;
	const float *in = dec->arch->norm_first ? buf->normed : buf->x;
	float *activated = dec->arch->gated ? buf->activated : buf->up;
	struct ctn_matrix up = matrix(dec, layer, CTN_ROLE_UP_W);
	struct ctn_vector up_bias = vector(dec, layer, CTN_ROLE_UP_B);
	int rc;

	if (dec->arch->norm_first)
		norm(pass, buf->normed, buf->x, n, layer, CTN_ROLE_NORM2_W, CTN_ROLE_NORM2_B);
	gemm(pass, buf->up, in, n, &up, &up_bias, false);
	if (dec->arch->gated)
		k->activate_gated(pass->stream, activated, buf->up, n, ffn,
				  activation_of(dec->arch));
	else
		k->activate(pass->stream, activated, n, ffn, activation_of(dec->arch));
	rc = add_sum(pass, activated, layer, CTN_ROLE_DOWN_W, CTN_ROLE_DOWN_B);
	if (rc == 0 && !dec->arch->norm_first)
		norm(pass, buf->x, buf->x, n, layer, CTN_ROLE_NORM2_W, CTN_ROLE_NORM2_B);
	return rc;
}

int ctn_pass_layer(struct ctn_pass *pass, uint32_t layer)
{
	int rc = attention(pass, layer);

	return rc ? rc : mlp(pass, layer);
}

/* x = embedding of the ids, brought to the model's width, + learned positions. */
int ctn_pass_embed(struct ctn_pass *pass)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_arch *arch = dec->arch;
	const struct ctn_buffers *buf = &dec->buf;
	uint32_t n = pass->step->tokens;
	bool project = slot_of(dec, 0, CTN_ROLE_PROJECT_IN)->present;
	float *embedded = project ? buf->embedded : buf->x;
	struct ctn_matrix table = vocab_matrix(dec, 0, CTN_ROLE_EMBED);

	dec->kernels->embed(pass->stream, embedded, &table, buf->ids, n, dec->rank->vocab_first);
	if (dec->cfg.tp) { /* ranks without the row gave zeros */
		int rc = ctn_comm_all_reduce(dec->cfg.tp, pass->stream, embedded,
					     (uint64_t)n * arch->embed_dim);

		if (rc)
			return rc;
	}
	if (project) {
		struct ctn_matrix w = matrix(dec, 0, CTN_ROLE_PROJECT_IN);

		gemm(pass, buf->x, embedded, n, &w, NULL, false);
	}
	if (arch->positions == CTN_POSITIONS_LEARNED) {
		struct ctn_matrix positions = matrix(dec, 0, CTN_ROLE_POSITIONS);

		dec->kernels->add_positions(pass->stream, buf->x, &positions, buf->positions, n,
					    arch->position_offset);
	}
	return 0;
}

/* Gathers every rank's share of the logits and puts each row together on the host. */
static int download_logits(struct ctn_pass *pass)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_rank_plan *stage = dec->rank - dec->rank->tp_rank; /* its tp rank 0 */
	uint32_t rows = pass->step->rows;
	uint64_t share = (uint64_t)rows * dec->rank->vocab_padded;
	const float *from = dec->buf.logits;

	if (dec->cfg.tp) {
		int rc = ctn_comm_all_gather(dec->cfg.tp, pass->stream, dec->buf.all_logits,
					     dec->buf.logits, share);

		if (rc || dec->rank->tp_rank != 0)
			return rc;
		from = dec->buf.all_logits;
	}
	for (uint32_t r = 0; r < dec->cfg.plan->tp; r++, from += share) {
		uint32_t count = stage[r].vocab_count;

		for (uint32_t row = 0; row < rows; row++) {
			float *to = pass->logits + (uint64_t)row * dec->arch->vocab +
				    stage[r].vocab_first;
			int rc = ctn_stream_download(pass->stream, to, from + (uint64_t)row * count,
						     count * sizeof(float));

			if (rc)
				return rc;
		}
	}
	return 0;
}

/* logits = Head(Norm(x)) for the tokens that want them. */
int ctn_pass_head(struct ctn_pass *pass, uint32_t layer)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_buffers *buf = &dec->buf;
	uint32_t n = pass->step->rows;
	struct ctn_matrix head = vocab_matrix(dec, layer, CTN_ROLE_HEAD);
	const float *in = buf->rows;

	dec->kernels->gather(pass->stream, buf->rows, buf->x, buf->row_tokens, n,
			     dec->arch->hidden);
	if (dec->arch->final_norm)
		norm(pass, buf->rows, buf->rows, n, layer, CTN_ROLE_NORM_F_W, CTN_ROLE_NORM_F_B);
	if (slot_of(dec, layer, CTN_ROLE_PROJECT_OUT)->present) {
		struct ctn_matrix w = matrix(dec, layer, CTN_ROLE_PROJECT_OUT);

		gemm(pass, buf->projected, in, n, &w, NULL, false);
		in = buf->projected;
	}
	gemm(pass, buf->logits, in, n, &head, NULL, false);
	return download_logits(pass);
}
