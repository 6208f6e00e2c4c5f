/* SPDX-License-Identifier: MIT */
/* What `computron bench swap` measures, and how it is told. Private to tools/bench_swap*.c. */
#ifndef CTN_TOOLS_BENCH_SWAP_H
#define CTN_TOOLS_BENCH_SWAP_H

#include "bench.h"

/* Seconds, [round]; `single` are the switches at (1, 1). */
struct ctn_swap_samples {
	double *load, *drop, *bare, *single;
	uint32_t rounds, singles;
	uint64_t d2h_bytes; /* in all that was timed */
	/* Of the rounds that were watched instead. */
	uint32_t watched_rounds;
	uint64_t watched_pieces, missed_pieces;
	double end_s[CTN_MAX_DEVICES]; /* [rank]: the latest */
};

int ctn_swap_samples_init(struct ctn_swap_samples *s, uint32_t rounds);
void ctn_swap_samples_free(struct ctn_swap_samples *s);

/* Prints the figures: a table, or JSON. Sorts the samples. */
int ctn_swap_report(struct ctn_bench_rig *rig, struct ctn_swap_samples *s, bool json,
		    struct ctn_err *err);

#endif
