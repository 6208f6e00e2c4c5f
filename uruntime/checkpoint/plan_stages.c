// SPDX-License-Identifier: MIT
/* The partition of layers over pipeline stages: the least bound on a stage's bytes by binary
 * search, then stages filled up to it from the front. */
#include "checkpoint/plan.h"

/* Fills stages up to `bound`, leaving a layer for each stage to come; true when all fit. */
static bool fill_stages(const uint64_t *bytes, uint32_t count, uint32_t pp, uint64_t bound,
			uint32_t *first)
{
	uint32_t layer = 0;

	for (uint32_t stage = 0; stage < pp; stage++) {
		const uint32_t end = count - (pp - 1 - stage);
		uint64_t sum = 0;

		first[stage] = layer;
		while (layer < end && bytes[layer] <= bound - sum)
			sum += bytes[layer++];
		if (layer == first[stage])
			return false;
	}
	first[pp] = layer;
	return layer == count;
}

void ctn_plan_stages(const uint64_t *bytes, uint32_t count, uint32_t pp, uint32_t *first)
{
	uint64_t low = 0, high = 0;

	CTN_ASSERT(pp >= 1 && pp <= count);
	for (uint32_t i = 0; i < count; i++)
		high += bytes[i];
	while (low < high) {
		const uint64_t mid = low + (high - low) / 2;

		if (fill_stages(bytes, count, pp, mid, first))
			high = mid;
		else
			low = mid + 1;
	}
	fill_stages(bytes, count, pp, high, first);
}
