// SPDX-License-Identifier: MIT
#include "bench.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double ctn_bench_median(double *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), ascending);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double ctn_bench_p95(double *v, uint32_t n)
{
	qsort(v, n, sizeof(*v), ascending);
	return v[(uint32_t)(((uint64_t)n * 95 + 99) / 100) - 1];
}
