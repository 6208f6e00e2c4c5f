/* SPDX-License-Identifier: MIT */
/*
 * The kernel table: one prototype a kernel, supplied by the device backend. kernels/cpu is
 * the plain reference; kernels/cuda the fast one; tests run both and compare.
 *
 * Activations are F32, row-major, one row a token. Weights stay in their storage type (F32,
 * F16, BF16) and are widened on the fly. All addresses are device addresses. A kernel is
 * enqueued on the stream and may run later; on the host backend it has run on return. Sizes
 * are in elements. No kernel allocates; a kernel that needs scratch takes it from `scratch`
 * of CTN_GEMM_SCRATCH bytes.
 */
#ifndef CTN_KERNELS_H
#define CTN_KERNELS_H

#include "base/base.h"

struct ctn_stream;

/* A weight. rows x cols as stored; `transposed` means stored [in, out], else [out, in]. */
struct ctn_matrix {
	const void *data;
	struct ctn_encoding encoding;
	uint32_t rows, cols;
	bool transposed;
};

/* A weight vector; data NULL means absent. */
struct ctn_vector {
	const void *data;
	struct ctn_encoding encoding;
	uint32_t count;
};

/* Scratch for widening a tile of a weight: at most 1 MiB. */
#define CTN_GEMM_SCRATCH (1u << 20)

/* Tokens in one KV block. */
#define CTN_KV_BLOCK 16u

/*
 * Paged KV of one rank: block b of layer l (counted among the rank's own decoder layers) is
 * at base + b * block_stride + l * layer_stride, and holds
 * [2 (k, v)][kv_heads][CTN_KV_BLOCK][head_dim] floats.
 */
struct ctn_kv_cache {
	float *base;
	uint64_t block_stride; /* floats */
	uint64_t layer_stride; /* floats */
};

/* The tokens of a step, as device arrays. Sequence s has tokens
 * [seq_start[s], seq_start[s+1]) of the batch and blocks
 * block_table[table_start[s] ...]; the last of its tokens is at position
 * positions[seq_start[s+1] - 1]. */
struct ctn_batch {
	uint32_t tokens;
	uint32_t sequences;
	const uint32_t *positions;   /* [tokens] */
	const uint32_t *seq_start;   /* [sequences + 1] */
	const uint32_t *token_seq;   /* [tokens]: its sequence */
	const uint32_t *block_table; /* all sequences' block ids, concatenated */
	const uint32_t *table_start; /* [sequences] */
};

struct ctn_attention_shape {
	uint32_t heads;    /* query heads on this rank */
	uint32_t kv_heads; /* kv heads on this rank; heads % kv_heads == 0 */
	uint32_t head_dim;
	uint32_t qkv_stride; /* floats from one token's row to the next:
			      * (heads + 2 kv_heads) * head_dim */
	float scale;
};

enum ctn_act { CTN_KERNEL_SILU, CTN_KERNEL_RELU, CTN_KERNEL_GELU, CTN_KERNEL_GELU_TANH };

struct ctn_kernels {
	const char *name;

	/* y[n, out] = x[n, in] . W^T + bias (+ y when `accumulate`); out and in by W. */
	void (*gemm)(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
		     const struct ctn_matrix *w, const struct ctn_vector *bias, bool accumulate,
		     void *scratch);

	/* y[t] = row ids[t] - first of the table, or zeros when it has no such row. */
	void (*embed)(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
		      const uint32_t *ids, uint32_t n, uint32_t first);

	/* y[t] += row positions[t] + offset of the table. */
	void (*add_positions)(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
			      const uint32_t *positions, uint32_t n, uint32_t offset);

	/* y = x / sqrt(mean(x^2) + eps) * w, by row. y may be x. */
	void (*rms_norm)(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			 uint32_t dim, const struct ctn_vector *w, float eps);

	/* y = (x - mean) / sqrt(var + eps) * w + b, by row; w and b may be absent. y may be x. */
	void (*layer_norm)(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			   uint32_t dim, const struct ctn_vector *w, const struct ctn_vector *b,
			   float eps);

	/* Rotates q and k in rows of [q | k | v] in place (the half-split layout of Hugging
	 * Face): pairs (i, i + head_dim / 2) by positions[t] * inv_freq[i]. */
	void (*rope)(struct ctn_stream *stream, float *qkv, const struct ctn_batch *batch,
		     const struct ctn_attention_shape *shape, const float *inv_freq);

	/* Stores k and v of every token of the batch into its sequence's blocks. */
	void (*kv_store)(struct ctn_stream *stream, const float *qkv, const struct ctn_batch *batch,
			 const struct ctn_attention_shape *shape, const struct ctn_kv_cache *kv,
			 uint32_t layer);

	/* Causal attention of each token over its sequence's stored positions 0 .. its own.
	 * out[t] is [heads * head_dim]. */
	void (*attention)(struct ctn_stream *stream, float *out, const float *qkv,
			  const struct ctn_batch *batch, const struct ctn_attention_shape *shape,
			  const struct ctn_kv_cache *kv, uint32_t layer);

	/* x = act(x), n * dim elements in place. */
	void (*activate)(struct ctn_stream *stream, float *x, uint32_t n, uint32_t dim,
			 enum ctn_act act);

	/* y[t, i] = act(x[t, i]) * x[t, dim + i]; x has rows of 2 dim, y rows of dim. */
	void (*activate_gated)(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			       uint32_t dim, enum ctn_act act);

	/* y += x, n elements. */
	void (*add)(struct ctn_stream *stream, float *y, const float *x, uint64_t n);

	/* y[i] = x[rows[i]], rows of dim. */
	void (*gather)(struct ctn_stream *stream, float *y, const float *x, const uint32_t *rows,
		       uint32_t n, uint32_t dim);
};

/* kernels/cpu: the reference. */
extern const struct ctn_kernels ctn_kernels_cpu;
/* Before the first kernel runs: takes the memory that they will ever need beside scratch. -ENOMEM.
 * Any number of times. */
int ctn_kernels_cpu_start(struct ctn_err *err);

#endif
