/* SPDX-License-Identifier: MIT */
/* What the tests of the CPU kernels share: random numbers, memory, comparison. */
#ifndef CTN_TEST_NAIVE_H
#define CTN_TEST_NAIVE_H

#include "test.h"
#include "kernels/kernels.h"

#include <math.h>

#define K (&ctn_kernels_cpu)

static uint64_t rng = 88172645463325252u;

static uint32_t rnd(uint32_t below)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 20) % below);
}

static float rnd_float(void)
{
	return (float)rnd(2000001) / 1000000 - 1;
}

static void *alloc(size_t bytes)
{
	void *p = malloc(bytes ? bytes : 1);

	CU_ASSERT_PTR_NOT_NULL_FATAL(p);
	return p;
}

static float *random_floats(size_t n)
{
	float *x = alloc(n * sizeof(float));

	for (size_t i = 0; i < n; i++)
		x[i] = rnd_float();
	return x;
}

/* Counts the values that are off, so that one line reports a whole array. */
static size_t off(const float *got, const double *want, size_t n, double tolerance)
{
	size_t bad = 0;

	for (size_t i = 0; i < n; i++)
		bad += !(fabs(got[i] - want[i]) <= tolerance * fmax(1, fabs(want[i])));
	return bad;
}

#endif
