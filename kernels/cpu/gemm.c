// SPDX-License-Identifier: MIT
/*
 * GEMM of F32 activations with weights in their storage type.
 *
 * y starts as the bias and the products are added to it tile by tile. F32 tiles are used where
 * they lie; others are widened into the scratch memory first. Two ways to multiply:
 *
 *   few rows   plain loops. Decoding reads every weight once for a few multiplications, so
 *              memory sets the pace, and the copy that BLAS makes of a weight would cost more
 *              than the product. The result of a row does not depend on the rows beside it.
 *   many rows  OpenBLAS, under a lock. Its serial build as Debian and Ubuntu ship it (0.3.21,
 *              no USE_LOCKING) hands the same work buffer to two threads that ask at once,
 *              and both get wrong products; tests/unit/test_kernels.c shows it when the lock
 *              is taken out. A tile holds the lock, not a whole product, so that the ranks
 *              that share this process take turns.
 */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Rows of activations from which OpenBLAS is faster. */
#define MANY_ROWS 8u

/* A tile of few rows stays in the first-level cache, one of many in the second. */
#define FEW_ROWS_TILE  2048u
#define MANY_ROWS_TILE (uint32_t)(CTN_GEMM_SCRATCH / sizeof(float))

static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;

/* Of OpenBLAS: its work buffer, taken by the first product and kept; with room for its header. */
#define BLAS_BUFFER ((size_t)136 << 20)
/* Too large for the way without a buffer that it has for small matrices. */
#define FIRST_PRODUCT 128

static void start_with_bias(float *y, uint32_t n, uint32_t out, const struct ctn_vector *bias,
			    bool accumulate)
{
	bool has_bias = bias && bias->data;

	if (!accumulate) {
		memset(y, 0, (size_t)n * out * sizeof(float));
		if (has_bias && n > 0)
			ctn_cpu_widen(y, bias->data, bias->encoding.dtype, out);
		for (uint32_t t = 1; has_bias && t < n; t++)
			memcpy(y + (size_t)t * out, y, out * sizeof(float));
		return;
	}
	/* A piece of the bias at a time, so that no kernel needs memory for it. */
	for (uint32_t first = 0; has_bias && first < out; first += 256) {
		uint32_t count = CTN_MIN(256u, out - first);
		float piece[256];

		ctn_cpu_widen(piece, ctn_cpu_at(bias->data, bias->encoding.dtype, first),
			      bias->encoding.dtype, count);
		for (uint32_t t = 0; t < n; t++) {
			for (uint32_t i = 0; i < count; i++)
				y[(size_t)t * out + first + i] += piece[i];
		}
	}
}

/* `rows` x `cols` weights as F32, rows `ld` apart. Stored rows are outputs, or inputs when
 * the weight is transposed. */
struct tile {
	const float *data;
	uint32_t rows, cols, ld;
	bool transposed;
};

/* y += products of the tile; x and y point at the first input and output that it has. */
static void add_few_rows(float *y, uint32_t out, const float *x, uint32_t in, uint32_t n,
			 const struct tile *tile)
{
	for (uint32_t r = 0; r < tile->rows; r++) {
		const float *w = tile->data + (size_t)r * tile->ld;

		for (uint32_t t = 0; t < n; t++) {
			const float *xt = x + (size_t)t * in;
			float *yt = y + (size_t)t * out;

			if (tile->transposed)
				ctn_cpu_add_scaled(yt, xt[r], w, tile->cols);
			else
				yt[r] += ctn_cpu_dot(xt, w, tile->cols);
		}
	}
}

static void add_many_rows(float *y, uint32_t out, const float *x, uint32_t in, uint32_t n,
			  const struct tile *tile)
{
	uint32_t outs = tile->transposed ? tile->cols : tile->rows;
	uint32_t ins = tile->transposed ? tile->rows : tile->cols;

	pthread_mutex_lock(&blas_lock);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, tile->transposed ? CblasNoTrans : CblasTrans,
		    (int)n, (int)outs, (int)ins, 1, x, (int)in, tile->data, (int)tile->ld, 1, y,
		    (int)out);
	pthread_mutex_unlock(&blas_lock);
}

void ctn_cpu_gemm(struct ctn_stream *stream, float *y, const float *x, uint32_t n,
		  const struct ctn_matrix *w, const struct ctn_vector *bias, bool accumulate,
		  void *scratch)
{
	enum ctn_dtype dtype = w->encoding.dtype;
	uint32_t out = w->transposed ? w->cols : w->rows;
	uint32_t in = w->transposed ? w->rows : w->cols;
	uint32_t elements = n < MANY_ROWS ? FEW_ROWS_TILE : MANY_ROWS_TILE;
	uint32_t max_cols = CTN_MAX(CTN_MIN(w->cols, elements), 1u);
	uint32_t max_rows = elements / max_cols;

	(void)stream;
	CTN_ASSERT(w->rows <= INT_MAX && w->cols <= INT_MAX && n <= INT_MAX);
	start_with_bias(y, n, out, bias, accumulate);
	for (uint64_t col = 0; n > 0 && col < w->cols; col += max_cols) {
		uint32_t cols = (uint32_t)CTN_MIN(max_cols, w->cols - col);

		for (uint64_t row = 0; row < w->rows; row += max_rows) {
			uint32_t rows = (uint32_t)CTN_MIN(max_rows, w->rows - row);
			struct tile tile = {scratch, rows, cols, cols, w->transposed};
			const void *from = ctn_cpu_at(w->data, dtype, row * w->cols + col);

			if (dtype == CTN_DTYPE_F32) {
				tile.data = from;
				tile.ld = w->cols;
			}
			for (uint32_t r = 0; dtype != CTN_DTYPE_F32 && r < rows; r++)
				ctn_cpu_widen((float *)scratch + (size_t)r * cols,
					      ctn_cpu_at(from, dtype, (uint64_t)r * w->cols), dtype,
					      cols);
			(n < MANY_ROWS ? add_few_rows : add_many_rows)(
				y + (w->transposed ? col : row), out,
				x + (w->transposed ? row : col), in, n, &tile);
		}
	}
}

/*
 * OpenBLAS asks again and again, for ever, when there is no memory for its buffer. So we see first
 * whether there is, and have it take the buffer now. We hold the lock around every product: one
 * buffer is all that it will need.
 */
int ctn_kernels_cpu_start(struct ctn_err *err)
{
	const int n = FIRST_PRODUCT;
	size_t bytes = (size_t)n * n * sizeof(float);
	void *probe = malloc(BLAS_BUFFER);
	float *m = calloc(3, bytes);
	int rc = 0;

	free(probe);
	if (!probe || !m) {
		rc = ctn_err_set(err, -ENOMEM, "the CPU kernels need %zu MiB of address space",
				 BLAS_BUFFER >> 20);
		goto out;
	}
	pthread_mutex_lock(&blas_lock);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, m, n, m + n * n, n, 1,
		    m + 2 * n * n, n);
	pthread_mutex_unlock(&blas_lock);
out:
	free(m);
	return rc;
}
