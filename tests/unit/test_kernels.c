// SPDX-License-Identifier: MIT
/*
 * The CPU kernels against naive references in double precision, written here from the
 * formulas, on random shapes and every storage type. Buffers have exactly the size that the
 * kernel table promises, so that the ASan build sees an access beyond.
 */
#include "test.h"
#include "kernels/cpu/cpu.h"
#include "naive.h"

#include <pthread.h>

static const enum ctn_dtype dtypes[] = {CTN_DTYPE_F32, CTN_DTYPE_F16, CTN_DTYPE_BF16};

/* IEEE 754 by its definition: sign, exponent of `e` bits, mantissa of `m`. */
static double decode(uint32_t bits, int e, int m)
{
	int bias = (1 << (e - 1)) - 1;
	int exponent = (int)(bits >> m) & ((1 << e) - 1);
	double mantissa = (double)(bits & ((1u << m) - 1)) / (1u << m);
	double sign = bits >> (e + m) & 1 ? -1 : 1;

	if (exponent == (1 << e) - 1)
		return mantissa > 0 ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp(mantissa, 1 - bias);
	return sign * ldexp(1 + mantissa, exponent - bias);
}

/* A weight of random values below 2 in storage type, and the same values in double. */
struct weight {
	void *data;
	double *values;
};

static struct weight random_weight(enum ctn_dtype dtype, size_t n)
{
	struct weight w = {alloc(n * ctn_dtype_bits(dtype) / 8), alloc(n * sizeof(double))};

	for (size_t i = 0; i < n; i++) {
		if (dtype == CTN_DTYPE_F32) {
			((float *)w.data)[i] = rnd_float();
			w.values[i] = ((float *)w.data)[i];
		} else if (dtype == CTN_DTYPE_F16) { /* exponents 0 (subnormal) to 2^0 */
			uint16_t bits = (uint16_t)((rnd(2) << 15) | rnd(0x4000));

			((uint16_t *)w.data)[i] = bits;
			w.values[i] = decode(bits, 5, 10);
		} else { /* BF16, exponents 2^-16 to 2^0 */
			uint16_t bits = (uint16_t)((rnd(2) << 15) | (0x3780 + rnd(0x800)));

			((uint16_t *)w.data)[i] = bits;
			w.values[i] = decode(bits, 8, 7);
		}
	}
	return w;
}

static void free_weight(struct weight *w)
{
	free(w->data);
	free(w->values);
}

static bool same_value(float got, double want)
{
	if (isnan(want))
		return isnan(got);
	return got == want && !signbit(got) == !signbit(want);
}

static void test_every_16_bit_value_widens_exactly(void)
{
	uint16_t *bits = alloc(65536 * sizeof(*bits));
	float *got = alloc(65536 * sizeof(*got));
	size_t bad = 0;

	for (uint32_t i = 0; i < 65536; i++)
		bits[i] = (uint16_t)i;
	ctn_cpu_widen(got, bits, CTN_DTYPE_BF16, 65536);
	for (uint32_t i = 0; i < 65536; i++)
		bad += !same_value(got[i], decode(i, 8, 7));
	CU_ASSERT_EQUAL(bad, 0);

	ctn_cpu_widen(got, bits, CTN_DTYPE_F16, 65536);
	for (uint32_t i = 0; i < 65536; i++)
		bad += !same_value(got[i], decode(i, 5, 10));
	CU_ASSERT_EQUAL(bad, 0);

	memset(got, 0, 65536 * sizeof(*got));
	ctn_cpu_widen_f16_portable(got, bits, 65536);
	for (uint32_t i = 0; i < 65536; i++)
		bad += !same_value(got[i], decode(i, 5, 10));
	CU_ASSERT_EQUAL(bad, 0);
	free(bits);
	free(got);
}

static void test_both_ways_to_widen_f16_give_equal_bits(void)
{
	uint16_t *bits = alloc(65533 * sizeof(*bits)); /* not a multiple of the SIMD width */
	float *a = alloc(65533 * sizeof(*a)), *b = alloc(65533 * sizeof(*b));

	if (ctn_cpu_has_f16c()) {
		for (uint32_t i = 0; i < 65533; i++)
			bits[i] = (uint16_t)(65535 - i);
		ctn_cpu_widen_f16_f16c(a, bits, 65533);
		ctn_cpu_widen_f16_portable(b, bits, 65533);
		CU_ASSERT_EQUAL(memcmp(a, b, 65533 * sizeof(*a)), 0);
	}
	free(bits);
	free(a);
	free(b);
	if (!ctn_cpu_has_f16c())
		CTN_SKIP("the processor has no F16C");
}

static void check_gemm(enum ctn_dtype dtype, uint32_t out, uint32_t in, uint32_t n, bool transposed,
		       bool with_bias, bool accumulate)
{
	struct weight w = random_weight(dtype, (size_t)out * in);
	struct weight bias = random_weight(dtype, out);
	struct ctn_matrix matrix = {.data = w.data,
				    .encoding = {dtype},
				    .rows = transposed ? in : out,
				    .cols = transposed ? out : in,
				    .transposed = transposed};
	struct ctn_vector vector = {with_bias ? bias.data : NULL, {dtype}, out};
	float *x = random_floats((size_t)n * in);
	float *y = random_floats((size_t)n * out);
	double *want = alloc((size_t)n * out * sizeof(double));
	void *scratch = alloc(CTN_GEMM_SCRATCH);
	size_t bad = 0;

	for (uint32_t t = 0; t < n; t++) {
		for (uint32_t o = 0; o < out; o++) {
			double sum = accumulate ? y[(size_t)t * out + o] : 0;

			for (uint32_t i = 0; i < in; i++)
				sum += x[(size_t)t * in + i] *
				       w.values[transposed ? (size_t)i * out + o
							   : (size_t)o * in + i];
			want[(size_t)t * out + o] = sum + (with_bias ? bias.values[o] : 0);
		}
	}
	if (!accumulate) /* what y held must not count, whatever it was */
		memset(y, 0xff, (size_t)n * out * sizeof(float));
	K->gemm(NULL, y, x, n, &matrix, &vector, accumulate, scratch);
	/* Each of `in` additions may round a sum that has grown like the square root of in. */
	bad = off(y, want, (size_t)n * out, 2e-5 + 5e-8 * in);
	if (bad)
		printf("# gemm %s out %u in %u n %u transposed %d bias %d accumulate %d\n",
		       ctn_dtype_name(dtype), out, in, n, transposed, with_bias, accumulate);
	CU_ASSERT_EQUAL(bad, 0);
	free_weight(&w);
	free_weight(&bias);
	free(x);
	free(y);
	free(want);
	free(scratch);
}

static void test_gemm(void)
{
	for (uint32_t round = 0; round < 240; round++)
		check_gemm(dtypes[round % 3], 1 + rnd(90), 1 + rnd(90),
			   1 + rnd(round & 64 ? 6 : 40), round & 8, round & 16, round & 32);
}

static void test_gemm_larger_than_the_scratch(void)
{
	for (uint32_t d = 0; d < 3; d++) {
		for (uint32_t transposed = 0; transposed < 2; transposed++) {
			check_gemm(dtypes[d], 700, 1000, 17, transposed, true, false);
			check_gemm(dtypes[d], 700, 1000, 1, transposed, true, true);
			/* one row is longer than the scratch memory */
			check_gemm(dtypes[d], 2, 300001, 2, transposed, true, true);
			check_gemm(dtypes[d], 300001, 2, 16, transposed, true, false);
		}
	}
}

/* A token's result must not depend on which others are decoded with it. */
static void test_few_rows_do_not_depend_on_each_other(void)
{
	for (uint32_t transposed = 0; transposed < 2; transposed++) {
		struct weight w = random_weight(CTN_DTYPE_BF16, 130 * 130);
		struct ctn_matrix matrix = {w.data, {CTN_DTYPE_BF16}, 130, 130, transposed};
		float *x = random_floats(7 * 130), *together = random_floats(7 * 130);
		float *alone = random_floats(7 * 130);
		void *scratch = alloc(CTN_GEMM_SCRATCH);

		K->gemm(NULL, together, x, 7, &matrix, NULL, false, scratch);
		for (uint32_t t = 0; t < 7; t++)
			K->gemm(NULL, alone + t * 130, x + t * 130, 1, &matrix, NULL, false,
				scratch);
		CU_ASSERT_EQUAL(memcmp(together, alone, 7 * 130 * sizeof(float)), 0);
		free_weight(&w);
		free(x);
		free(together);
		free(alone);
		free(scratch);
	}
}

static void test_gemm_of_nothing(void)
{
	float y[3] = {1, 2, 3}, x[1] = {1}, w[3] = {5, 5, 5};
	struct ctn_matrix matrix = {w, {CTN_DTYPE_F32}, 3, 1, false};

	K->gemm(NULL, y, x, 0, &matrix, NULL, false, NULL);
	CU_ASSERT(y[0] == 1 && y[1] == 2 && y[2] == 3);
	matrix.rows = 0;
	K->gemm(NULL, y, x, 1, &matrix, NULL, false, NULL);
	CU_ASSERT(y[0] == 1 && y[1] == 2 && y[2] == 3);
}

/* ---- GEMM from several threads at once: the BLAS build must allow it ---- */

#define THREADS 4
#define SIZE    72

struct job {
	float *x, *w, *y, *want;
	uint32_t n;
	bool equal;
};

static void *gemm_many_times(void *arg)
{
	struct job *job = arg;
	struct ctn_matrix matrix = {job->w, {CTN_DTYPE_F32}, SIZE, SIZE, false};

	job->equal = true;
	for (int i = 0; i < 4000; i++) {
		K->gemm(NULL, job->y, job->x, job->n, &matrix, NULL, false, NULL);
		job->equal &= memcmp(job->y, job->want, job->n * SIZE * sizeof(float)) == 0;
	}
	return NULL;
}

static void test_gemm_from_threads_gives_equal_bits(void)
{
	struct job jobs[THREADS];
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++) {
		uint32_t n = i ? SIZE : 3; /* both ways to multiply */
		struct ctn_matrix matrix;

		jobs[i] = (struct job){random_floats((size_t)n * SIZE),
				       random_floats(SIZE * SIZE),
				       random_floats((size_t)n * SIZE),
				       random_floats((size_t)n * SIZE),
				       n,
				       false};
		matrix = (struct ctn_matrix){jobs[i].w, {CTN_DTYPE_F32}, SIZE, SIZE, false};
		K->gemm(NULL, jobs[i].want, jobs[i].x, n, &matrix, NULL, false, NULL);
	}
	for (int i = 0; i < THREADS; i++)
		CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, gemm_many_times, &jobs[i]),
				      0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_TRUE(jobs[i].equal);
		free(jobs[i].x);
		free(jobs[i].w);
		free(jobs[i].y);
		free(jobs[i].want);
	}
}

/* ---- rows ---- */

static void test_embed_gives_rows_or_zeros(void)
{
	for (uint32_t d = 0; d < 3; d++) {
		uint32_t rows = 7, dim = 13, n = 40, first = 5;
		struct weight w = random_weight(dtypes[d], rows * dim);
		struct ctn_matrix table = {w.data, {dtypes[d]}, rows, dim, false};
		float *y = random_floats(n * dim);
		uint32_t ids[40];
		size_t bad = 0;

		for (uint32_t t = 0; t < n; t++)
			ids[t] = t < 2 ? t * UINT32_MAX : rnd(20);
		K->embed(NULL, y, &table, ids, n, first);
		for (uint32_t t = 0; t < n; t++) {
			bool there = ids[t] >= first && ids[t] < first + rows;

			for (uint32_t i = 0; i < dim; i++)
				bad += y[t * dim + i] !=
				       (there ? w.values[(ids[t] - first) * dim + i] : 0);
		}
		CU_ASSERT_EQUAL(bad, 0);
		free_weight(&w);
		free(y);
	}
}

static void test_positions_are_added_with_their_offset(void)
{
	for (uint32_t d = 0; d < 3; d++) {
		uint32_t rows = 12, dim = 300, n = 5, offset = 2;
		struct weight w = random_weight(dtypes[d], rows * dim);
		struct ctn_matrix table = {w.data, {dtypes[d]}, rows, dim, false};
		float *y = random_floats(n * dim);
		double *want = alloc(n * dim * sizeof(double));
		uint32_t positions[5] = {0, 9, 3, 3, 7};

		for (uint32_t i = 0; i < n * dim; i++)
			want[i] = y[i] + w.values[(positions[i / dim] + offset) * dim + i % dim];
		K->add_positions(NULL, y, &table, positions, n, offset);
		CU_ASSERT_EQUAL(off(y, want, n * dim, 1e-6), 0);
		free_weight(&w);
		free(y);
		free(want);
	}
}

/* y by the definition of either norm. */
static void naive_norm(double *y, const float *x, uint32_t dim, const double *w, const double *b,
		       double eps, bool centred)
{
	double mean = 0, square = 0;

	for (uint32_t i = 0; i < dim; i++)
		mean += centred ? (double)x[i] / dim : 0;
	for (uint32_t i = 0; i < dim; i++)
		square += (x[i] - mean) * (x[i] - mean) / dim;
	for (uint32_t i = 0; i < dim; i++)
		y[i] = (x[i] - mean) / sqrt(square + eps) * (w ? w[i] : 1) + (b ? b[i] : 0);
}

static void test_norms(void)
{
	for (uint32_t round = 0; round < 24; round++) {
		enum ctn_dtype dtype = dtypes[round % 3];
		uint32_t n = 1 + rnd(4), dim = 1 + rnd(600);
		struct weight w = random_weight(dtype, dim), b = random_weight(dtype, dim);
		struct ctn_vector wv = {w.data, {dtype}, dim}, bv = {b.data, {dtype}, dim};
		struct ctn_vector absent = {NULL, {dtype}, 0};
		bool plain = round & 4; /* without w and b */
		float *x = random_floats(n * dim), *y = random_floats(n * dim);
		double *want = alloc(n * dim * sizeof(double));

		for (uint32_t i = 0; i < n * dim; i++)
			x[i] += 3; /* a mean that matters */
		for (uint32_t t = 0; t < n; t++)
			naive_norm(want + t * dim, x + t * dim, dim, w.values, NULL, 1e-5, false);
		K->rms_norm(NULL, y, x, n, dim, &wv, 1e-5f);
		CU_ASSERT_EQUAL(off(y, want, n * dim, 2e-6), 0);

		for (uint32_t t = 0; t < n; t++)
			naive_norm(want + t * dim, x + t * dim, dim, plain ? NULL : w.values,
				   plain ? NULL : b.values, 1e-5, true);
		/* in place, as the post-LN decoder does it */
		K->layer_norm(NULL, x, x, n, dim, plain ? &absent : &wv, plain ? NULL : &bv, 1e-5f);
		CU_ASSERT_EQUAL(off(x, want, n * dim, 1e-5), 0);
		free_weight(&w);
		free_weight(&b);
		free(x);
		free(y);
		free(want);
	}
}

static double naive_act(double x, enum ctn_act act)
{
	const double pi = 3.14159265358979323846;

	switch (act) {
	case CTN_KERNEL_SILU:
		return x / (1 + exp(-x));
	case CTN_KERNEL_RELU:
		return fmax(x, 0);
	case CTN_KERNEL_GELU:
		return x * 0.5 * erfc(-x / sqrt(2));
	case CTN_KERNEL_GELU_TANH:
		return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3))));
	}
	return NAN;
}

static void test_activations(void)
{
	uint32_t n = 3, dim = 50;

	for (int act = CTN_KERNEL_SILU; act <= CTN_KERNEL_GELU_TANH; act++) {
		float *x = random_floats(n * 2 * dim), *y = random_floats(n * dim);
		double *want = alloc(n * 2 * dim * sizeof(double));

		for (uint32_t i = 0; i < n * 2 * dim; i++)
			x[i] *= i % 3 ? 3 : 90; /* also where exp overflows */
		for (uint32_t t = 0; t < n; t++) {
			for (uint32_t i = 0; i < dim; i++)
				want[t * dim + i] =
					naive_act(x[t * 2 * dim + i], (enum ctn_act)act) *
					x[t * 2 * dim + dim + i];
		}
		K->activate_gated(NULL, y, x, n, dim, (enum ctn_act)act);
		CU_ASSERT_EQUAL(off(y, want, n * dim, 1e-6 * 90), 0);

		for (uint32_t i = 0; i < n * 2 * dim; i++)
			want[i] = naive_act(x[i], (enum ctn_act)act);
		K->activate(NULL, x, n, 2 * dim, (enum ctn_act)act);
		CU_ASSERT_EQUAL(off(x, want, n * 2 * dim, 1e-6), 0);
		free(x);
		free(y);
		free(want);
	}
}

static void test_a_nan_survives_every_activation(void)
{
	for (int act = CTN_KERNEL_SILU; act <= CTN_KERNEL_GELU_TANH; act++) {
		float x = NAN;

		K->activate(NULL, &x, 1, 1, (enum ctn_act)act);
		CU_ASSERT_TRUE(isnan(x));
	}
}

static void test_add_and_gather(void)
{
	float y[6] = {1, 2, 3, 4, 5, 6}, x[6] = {10, 20, 30, 40, 50, 60}, z[4];
	uint32_t rows[2] = {2, 0};

	K->add(NULL, y, x, 5);
	CU_ASSERT(y[0] == 11 && y[1] == 22 && y[2] == 33 && y[3] == 44 && y[4] == 55 && y[5] == 6);
	K->gather(NULL, z, x, rows, 2, 2);
	CU_ASSERT(z[0] == 50 && z[1] == 60 && z[2] == 10 && z[3] == 20);
}

CTN_TESTS("kernels", CTN_TEST(test_every_16_bit_value_widens_exactly),
	  CTN_TEST(test_both_ways_to_widen_f16_give_equal_bits), CTN_TEST(test_gemm),
	  CTN_TEST(test_gemm_larger_than_the_scratch),
	  CTN_TEST(test_few_rows_do_not_depend_on_each_other), CTN_TEST(test_gemm_of_nothing),
	  CTN_TEST(test_gemm_from_threads_gives_equal_bits),
	  CTN_TEST(test_embed_gives_rows_or_zeros),
	  CTN_TEST(test_positions_are_added_with_their_offset), CTN_TEST(test_norms),
	  CTN_TEST(test_activations), CTN_TEST(test_a_nan_survives_every_activation),
	  CTN_TEST(test_add_and_gather))
