// SPDX-License-Identifier: MIT
/* Kernels on rows: embedding, norms, activations, sums. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* Elements of a weight vector that are widened at a time, on the stack. */
#define CHUNK 256u

void ctn_cpu_embed(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
		   const uint32_t *ids, uint32_t n, uint32_t first)
{
	enum ctn_dtype dtype = table->encoding.dtype;
	uint32_t dim = table->cols;

	(void)stream;
	for (uint32_t t = 0; t < n; t++, y += dim) {
		uint32_t row = ids[t] - first; /* wraps to a large number below `first` */

		if (row < table->rows)
			ctn_cpu_widen(y, ctn_cpu_at(table->data, dtype, (uint64_t)row * dim), dtype,
				      dim);
		else
			memset(y, 0, dim * sizeof(float));
	}
}

void ctn_cpu_add_positions(struct ctn_stream *stream, float *y, const struct ctn_matrix *table,
			   const uint32_t *positions, uint32_t n, uint32_t offset)
{
	enum ctn_dtype dtype = table->encoding.dtype;
	uint32_t dim = table->cols;
	float w[CHUNK];

	(void)stream;
	for (uint32_t t = 0; t < n; t++, y += dim) {
		uint64_t row = (uint64_t)positions[t] + offset;

		CTN_ASSERT(row < table->rows);
		for (uint32_t i = 0; i < dim; i += CHUNK) {
			uint32_t count = CTN_MIN(CHUNK, dim - i);

			ctn_cpu_widen(w, ctn_cpu_at(table->data, dtype, row * dim + i), dtype,
				      count);
			for (uint32_t j = 0; j < count; j++)
				y[i + j] += w[j];
		}
	}
}

/* y = (x - mean) * scale * w + b for one row; an absent w is ones, an absent b zeros. */
static void scale_row(float *y, const float *x, uint32_t dim, float mean, float scale,
		      const struct ctn_vector *w, const struct ctn_vector *b)
{
	float wide[CHUNK];

	for (uint32_t i = 0; i < dim; i += CHUNK) {
		uint32_t count = CTN_MIN(CHUNK, dim - i);

		for (uint32_t j = 0; j < count; j++)
			y[i + j] = (x[i + j] - mean) * scale;
		if (w && w->data) {
			ctn_cpu_widen(wide, ctn_cpu_at(w->data, w->encoding.dtype, i),
				      w->encoding.dtype, count);
			for (uint32_t j = 0; j < count; j++)
				y[i + j] *= wide[j];
		}
		if (b && b->data) {
			ctn_cpu_widen(wide, ctn_cpu_at(b->data, b->encoding.dtype, i),
				      b->encoding.dtype, count);
			for (uint32_t j = 0; j < count; j++)
				y[i + j] += wide[j];
		}
	}
}

void ctn_cpu_rms_norm(struct ctn_stream *stream, float *y, const float *x, uint32_t n, uint32_t dim,
		      const struct ctn_vector *w, float eps)
{
	(void)stream;
	for (uint32_t t = 0; t < n; t++, x += dim, y += dim) {
		double sum = 0;

		for (uint32_t i = 0; i < dim; i++)
			sum += (double)x[i] * x[i];
		scale_row(y, x, dim, 0, (float)(1 / sqrt(sum / dim + eps)), w, NULL);
	}
}

void ctn_cpu_layer_norm(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			uint32_t dim, const struct ctn_vector *w, const struct ctn_vector *b,
			float eps)
{
	(void)stream;
	for (uint32_t t = 0; t < n; t++, x += dim, y += dim) {
		double mean = 0, var = 0;

		for (uint32_t i = 0; i < dim; i++)
			mean += x[i];
		mean /= dim;
		for (uint32_t i = 0; i < dim; i++)
			var += (x[i] - mean) * (x[i] - mean);
		var /= dim;
		scale_row(y, x, dim, (float)mean, (float)(1 / sqrt(var + eps)), w, b);
	}
}

static float act_one(float x, enum ctn_act act)
{
	switch (act) {
	case CTN_KERNEL_SILU:
		return x / (1 + expf(-x));
	case CTN_KERNEL_RELU:
		return x < 0 ? 0 : x; /* a NaN stays one */
	case CTN_KERNEL_GELU:
		return 0.5f * x * (1 + erff(x * 0.70710678118654752f)); /* 1 / sqrt(2) */
	case CTN_KERNEL_GELU_TANH:
		/* sqrt(2 / pi) */
		return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
	}
	CTN_ASSERT(false);
	return x;
}

void ctn_cpu_activate(struct ctn_stream *stream, float *x, uint32_t n, uint32_t dim,
		      enum ctn_act act)
{
	size_t count = (size_t)n * dim;

	(void)stream;
	for (size_t i = 0; i < count; i++)
		x[i] = act_one(x[i], act);
}

void ctn_cpu_activate_gated(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
			    uint32_t dim, enum ctn_act act)
{
	(void)stream;
	for (uint32_t t = 0; t < n; t++, y += dim, x += 2 * (size_t)dim) {
		for (uint32_t i = 0; i < dim; i++)
			y[i] = act_one(x[i], act) * x[dim + i];
	}
}

void ctn_cpu_add(struct ctn_stream *stream, float *y, const float *x, uint64_t n)
{
	(void)stream;
	for (uint64_t i = 0; i < n; i++)
		y[i] += x[i];
}

void ctn_cpu_gather(struct ctn_stream *stream, float *y, const float *x, const uint32_t *rows,
		    uint32_t n, uint32_t dim)
{
	(void)stream;
	for (uint32_t i = 0; i < n; i++, y += dim)
		memcpy(y, x + (size_t)rows[i] * dim, dim * sizeof(float));
}
