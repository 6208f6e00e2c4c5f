/* SPDX-License-Identifier: MIT */
/* What `computron bench ttft` measures, and how it is told. Private to tools/bench_ttft*.c. */
#ifndef CTN_TOOLS_BENCH_TTFT_H
#define CTN_TOOLS_BENCH_TTFT_H

#include "bench_ranks.h"

/* Where the model is when its first request comes; another one is RESIDENT, but for PARTIAL. */
enum ctn_ttft_start {
	CTN_TTFT_COLD,    /* on disk */
	CTN_TTFT_WARM,    /* in the pool */
	CTN_TTFT_PARTIAL, /* in the pool, and the first half of each rank's layers on its device */
	CTN_TTFT_STARTS
};

/* Seconds, [round]; by layer [layer of the model * rounds + round]: the slowest of the ranks
 * that have it. */
struct ctn_ttft_samples {
	uint32_t rounds, layers;
	struct ctn_ttft_case {
		double *loaded;  /* by layer: from the decision to its load event */
		double *overlap; /* the first token, computed while it is loaded */
		double *serial;  /* the first token, computed once all is RESIDENT */
	} cases[CTN_TTFT_STARTS];
	double *compute; /* by layer: all of it, with what is said between ranks */
};

int ctn_ttft_samples_init(struct ctn_ttft_samples *s, uint32_t rounds, uint32_t layers);
void ctn_ttft_samples_free(struct ctn_ttft_samples *s);

/* The bound of DESIGN: f(i) = max(loaded(i), f(i - 1)) + c(i), f of the last layer. */
double ctn_ttft_bound(const double *loaded, const double *compute, uint32_t layers);

/* Prints the figures: a table, or JSON. Sorts the samples. */
int ctn_ttft_report(const struct ctn_bench_rig *rig, struct ctn_ttft_samples *s, bool json,
		    struct ctn_err *err);

#endif
