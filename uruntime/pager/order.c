// SPDX-License-Identifier: MIT
/*
 * The order in which the parts of a load are staged. Execution order would fill the first pipeline
 * stage before the second one gets a byte, and its link would stand idle as long. So a part's turn
 * comes when all stages have had as many bytes as its own needs before it: the links start
 * together.
 *
 * That holds parts of all stages at a time. A pool that has no room for the whole model pages it
 * in execution order, for which its host window suffices.
 */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>

struct turn {
	uint32_t part;
	uint64_t before; /* bytes of the same pipeline stage that come first; the least of the
			    stages */
};

static int by_turn(const void *pa, const void *pb)
{
	const struct turn *a = pa, *b = pb;

	if (a->before != b->before)
		return a->before < b->before ? -1 : 1;
	return (a->part > b->part) - (a->part < b->part);
}

/* Every tensor-parallel rank of a pipeline stage reads the same parts. */
static void walk_stage(const struct ctn_plan *plan, const struct ctn_rank_plan *rank,
		       struct turn *turns)
{
	uint64_t before = 0;
	uint32_t seen = 0; /* parts below have had their turn, here or in a stage before */

	for (uint32_t i = 0; i < rank->layer_count; i++) {
		const struct ctn_shard *shard = &rank->shards[i];

		for (uint32_t k = 0; k < shard->part_count; k++) {
			uint32_t part = shard->parts[k];

			if (part < seen)
				continue;
			seen = part + 1;
			turns[part].before = CTN_MIN(turns[part].before, before);
			before += plan->parts[part].frame_bytes;
		}
	}
}

int pager_order(const struct ctn_plan *plan, uint64_t pool_bytes, uint32_t **order)
{
	uint32_t n = CTN_MAX(plan->part_count, 1u);
	struct turn *turns = calloc(n, sizeof(*turns));
	uint64_t all = 0;

	*order = calloc(n, sizeof(**order));
	if (!turns || !*order) {
		free(turns);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < plan->part_count; i++) {
		turns[i] = (struct turn){.part = i, .before = UINT64_MAX};
		all += ctn_align_up(plan->parts[i].frame_bytes, CTN_EXTENT_ALIGN);
	}
	for (uint32_t r = 0; r < plan->rank_count; r += plan->tp)
		walk_stage(plan, &plan->ranks[r], turns);
	if (all <= pool_bytes)
		qsort(turns, plan->part_count, sizeof(*turns), by_turn);
	for (uint32_t i = 0; i < plan->part_count; i++)
		(*order)[i] = turns[i].part;
	free(turns);
	return 0;
}
