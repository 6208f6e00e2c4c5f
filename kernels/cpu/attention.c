// SPDX-License-Identifier: MIT
/* Rotary positions, and attention over paged KV. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

void ctn_cpu_rope(struct ctn_stream *stream, float *qkv, const struct ctn_batch *batch,
		  const struct ctn_attention_shape *shape, const float *inv_freq)
{
	uint32_t half = shape->head_dim / 2;
	uint32_t rotated = shape->heads + shape->kv_heads; /* q and k; v is not rotated */

	(void)stream;
	for (uint32_t t = 0; t < batch->tokens; t++) {
		float *row = qkv + (size_t)t * shape->qkv_stride;

		for (uint32_t i = 0; i < half; i++) {
			/* The angle is rounded to F32, as the models were trained with it. */
			float angle = (float)batch->positions[t] * inv_freq[i];
			float c = cosf(angle), s = sinf(angle);

			for (uint32_t h = 0; h < rotated; h++) {
				float *a = row + (size_t)h * shape->head_dim + i, *b = a + half;
				float x = *a, y = *b;

				*a = x * c - y * s;
				*b = y * c + x * s;
			}
		}
	}
}

/* Keys (which 0) or values (which 1) of one head in block `index` of sequence `seq`:
 * [CTN_KV_BLOCK][head_dim]. */
static float *kv_rows(const struct ctn_batch *batch, const struct ctn_attention_shape *shape,
		      const struct ctn_kv_cache *kv, uint32_t layer, uint32_t seq, uint32_t index,
		      uint32_t which, uint32_t kv_head)
{
	uint32_t block = batch->block_table[batch->table_start[seq] + index];
	size_t head = (size_t)which * shape->kv_heads + kv_head;

	return kv->base + block * kv->block_stride + layer * kv->layer_stride +
	       head * CTN_KV_BLOCK * shape->head_dim;
}

void ctn_cpu_kv_store(struct ctn_stream *stream, const float *qkv, const struct ctn_batch *batch,
		      const struct ctn_attention_shape *shape, const struct ctn_kv_cache *kv,
		      uint32_t layer)
{
	uint32_t dim = shape->head_dim;

	(void)stream;
	for (uint32_t t = 0; t < batch->tokens; t++) {
		const float *from = qkv + (size_t)t * shape->qkv_stride + shape->heads * dim;
		uint32_t index = batch->positions[t] / CTN_KV_BLOCK;
		uint32_t slot = batch->positions[t] % CTN_KV_BLOCK;

		for (uint32_t which = 0; which < 2; which++) {
			for (uint32_t h = 0; h < shape->kv_heads; h++, from += dim)
				memcpy(kv_rows(batch, shape, kv, layer, batch->token_seq[t], index,
					       which, h) +
					       slot * dim,
				       from, dim * sizeof(float));
		}
	}
}

/*
 * One query head of one token: softmax(scale * q . k) . v over positions 0 .. last, block by
 * block in one pass ("online" softmax): `out` and `sum` are relative to the largest score so
 * far, and shrink when a larger one comes.
 */
static void attend(float *out, const float *q, const struct ctn_batch *batch,
		   const struct ctn_attention_shape *shape, const struct ctn_kv_cache *kv,
		   uint32_t layer, uint32_t seq, uint32_t last, uint32_t kv_head)
{
	uint32_t dim = shape->head_dim;
	float max = -INFINITY;
	double sum = 0;

	memset(out, 0, dim * sizeof(float));
	for (uint32_t index = 0; index <= last / CTN_KV_BLOCK; index++) {
		uint32_t count = CTN_MIN(CTN_KV_BLOCK, last - index * CTN_KV_BLOCK + 1);
		const float *k = kv_rows(batch, shape, kv, layer, seq, index, 0, kv_head);
		const float *v = kv_rows(batch, shape, kv, layer, seq, index, 1, kv_head);
		float score[CTN_KV_BLOCK];
		float new_max = max;

		for (uint32_t j = 0; j < count; j++) {
			score[j] = shape->scale * ctn_cpu_dot(q, k + j * dim, dim);
			new_max = fmaxf(new_max, score[j]);
		}
		if (new_max > max) {
			float shrink = expf(max - new_max); /* 0 at the first block */

			for (uint32_t i = 0; i < dim; i++)
				out[i] *= shrink;
			sum *= shrink;
			max = new_max;
		}
		for (uint32_t j = 0; j < count; j++, v += dim) {
			float weight = expf(score[j] - max);

			sum += weight;
			ctn_cpu_add_scaled(out, weight, v, dim);
		}
	}
	for (uint32_t i = 0; i < dim; i++)
		out[i] = (float)(out[i] / sum);
}

void ctn_cpu_attention(struct ctn_stream *stream, float *out, const float *qkv,
		       const struct ctn_batch *batch, const struct ctn_attention_shape *shape,
		       const struct ctn_kv_cache *kv, uint32_t layer)
{
	uint32_t dim = shape->head_dim;
	uint32_t group = shape->heads / shape->kv_heads; /* query heads that share a kv head */

	(void)stream;
	for (uint32_t t = 0; t < batch->tokens; t++) {
		const float *q = qkv + (size_t)t * shape->qkv_stride;

		for (uint32_t h = 0; h < shape->heads; h++, q += dim, out += dim)
			attend(out, q, batch, shape, kv, layer, batch->token_seq[t],
			       batch->positions[t], h / group);
	}
}
