// SPDX-License-Identifier: MIT
/*
 * The figures of 2023 to print beside ours: Computron (arXiv 2306.13835), OPT-13B in FP16 between
 * host memory and four A100, each on a PCIe 4.0 x16 link. A test holds them against
 * tests/traces/computron-2023.json.
 */
#include "bench.h"

static const struct ctn_bench_published published[] = {
	{1, 1, 1.2376, 1.35045}, {2, 1, 0.63195, 0.7324}, {4, 1, 0.44695, 0.68865},
	{1, 2, 0.6212, 0.85815}, {1, 4, 0.3795, 0.64455}, {2, 2, 0.31835, 0.4231},
};

const struct ctn_bench_published *ctn_bench_published(uint32_t tp, uint32_t pp)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(published); i++) {
		if (published[i].tp == tp && published[i].pp == pp)
			return &published[i];
	}
	return NULL;
}
