/* SPDX-License-Identifier: MIT */
/*
 * kernels/cpu: the reference kernels, private parts. A kernel has run when it returns, so the
 * stream is never used. Any number of threads may call kernels at once.
 */
#ifndef CTN_KERNELS_CPU_H
#define CTN_KERNELS_CPU_H

#include "kernels/kernels.h"

/* dst[i] = src[i] as F32, n elements; exact for every value, subnormals, infinities and NaNs
 * included. dtype is F32, F16 or BF16. */
void ctn_cpu_widen(float *dst, const void *src, enum ctn_dtype dtype, size_t n);

/* The two ways to widen F16; ctn_cpu_widen takes the first where the processor has F16C. */
bool ctn_cpu_has_f16c(void);
void ctn_cpu_widen_f16_f16c(float *dst, const uint16_t *src, size_t n);
void ctn_cpu_widen_f16_portable(float *dst, const uint16_t *src, size_t n);

/* The first of elements `first` .. of `data`. */
static inline const void *ctn_cpu_at(const void *data, enum ctn_dtype dtype, uint64_t first)
{
	return (const uint8_t *)data + first * (ctn_dtype_bits(dtype) / 8);
}

/* Four floats side by side at any address: the compiler may not reorder a float sum into SIMD
 * lanes by itself, and short sums round less than one long. */
typedef float ctn_lanes __attribute__((vector_size(16), aligned(4), may_alias));
#define CTN_LANES 4u

/* Four sums of lanes, so that one addition need not wait for the one before. */
static inline float ctn_cpu_dot(const float *a, const float *b, uint32_t n)
{
	ctn_lanes sums[4] = {{0}};
	float sum = 0;
	uint32_t i = 0;

	for (; i + 4 * CTN_LANES <= n; i += 4 * CTN_LANES) {
		const ctn_lanes *x = (const ctn_lanes *)(a + i), *y = (const ctn_lanes *)(b + i);

		sums[0] += x[0] * y[0];
		sums[1] += x[1] * y[1];
		sums[2] += x[2] * y[2];
		sums[3] += x[3] * y[3];
	}
	for (; i < n; i++)
		sum += a[i] * b[i];
	sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
	return sum + ((sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]));
}

/* y += a * x */
static inline void ctn_cpu_add_scaled(float *y, float a, const float *x, uint32_t n)
{
	uint32_t i = 0;

	for (; i + CTN_LANES <= n; i += CTN_LANES)
		*(ctn_lanes *)(y + i) += a * *(const ctn_lanes *)(x + i);
	for (; i < n; i++)
		y[i] += a * x[i];
}

void ctn_cpu_gemm(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
		  const struct ctn_matrix *w, const struct ctn_vector *bias, bool accumulate,
		  void *scratch);
void ctn_cpu_embed(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
		   const uint32_t *ids, uint32_t n, uint32_t first);
void ctn_cpu_add_positions(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
			   const uint32_t *positions, uint32_t n, uint32_t offset);
void ctn_cpu_rms_norm(struct ctn_stream *stream, float *y, const float *x, uint32_t n, uint32_t dim,
		      const struct ctn_vector *w, float eps);
void ctn_cpu_layer_norm(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			uint32_t dim, const struct ctn_vector *w, const struct ctn_vector *b,
			float eps);
void ctn_cpu_rope(struct ctn_stream *stream, float *qkv, const struct ctn_batch *batch,
		  const struct ctn_attention_shape *shape, const float *inv_freq);
void ctn_cpu_kv_store(struct ctn_stream *stream, const float *qkv, const struct ctn_batch *batch,
		      const struct ctn_attention_shape *shape, const struct ctn_kv_cache *kv,
		      uint32_t layer);
void ctn_cpu_attention(struct ctn_stream *stream, float *out, const float *qkv,
		       const struct ctn_batch *batch, const struct ctn_attention_shape *shape,
		       const struct ctn_kv_cache *kv, uint32_t layer);
void ctn_cpu_activate(struct ctn_stream *stream, float *x, uint32_t n, uint32_t dim,
		      enum ctn_act act);
void ctn_cpu_activate_gated(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			    uint32_t dim, enum ctn_act act);
void ctn_cpu_add(struct ctn_stream *stream, float *y, const float *x, uint64_t n);
void ctn_cpu_gather(struct ctn_stream *stream, float *y, const float *x, const uint32_t *rows,
		    uint32_t n, uint32_t dim);

#endif
