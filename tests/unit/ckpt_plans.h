/* SPDX-License-Identifier: MIT */
/* What holds of every plan, each recomputed in the simplest way. */
#ifndef CTN_TEST_CKPT_PLANS_H
#define CTN_TEST_CKPT_PLANS_H

#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

static inline struct ctn_checkpoint *open_checkpoint(const char *dir)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};

	if (ctn_checkpoint_open(dir, &ckpt, &err))
		printf("# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(ckpt);
	return ckpt;
}

static inline struct ctn_plan *build(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp)
{
	struct ctn_plan *plan = NULL;
	struct ctn_err err = {0};

	if (ctn_plan_build(ckpt, tp, pp, &plan, &err))
		printf("# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
	return plan;
}

/* A part lives from the first to the last layer whose shards read it. */
static inline void check_lifetimes(const struct ctn_plan *plan)
{
	for (uint32_t i = 0; i < plan->part_count; i++) {
		uint32_t first = UINT32_MAX, last = 0;

		for (uint32_t r = 0; r < plan->rank_count; r++) {
			for (uint32_t k = 0; k < plan->ranks[r].layer_count; k++) {
				const struct ctn_shard *s = &plan->ranks[r].shards[k];

				for (uint32_t n = 0; n < s->part_count; n++) {
					CU_ASSERT_TRUE(n == 0 || s->parts[n - 1] < s->parts[n]);
					if (s->parts[n] != i)
						continue;
					first = CTN_MIN(first, s->layer);
					last = CTN_MAX(last, s->layer);
				}
			}
		}
		CU_ASSERT_EQUAL(plan->parts[i].first_layer, first);
		CU_ASSERT_EQUAL(plan->parts[i].last_layer, last);
	}
}

/* Every tensor in use is in one part, once. */
static inline void check_coverage(const struct ctn_plan *plan)
{
	uint32_t *seen = calloc(plan->ckpt->tensor_count, sizeof(*seen));
	uint64_t bytes = 0, host = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		uint64_t part_bytes = 0;

		CU_ASSERT_EQUAL(p->id, i);
		for (uint32_t k = 0; k < p->tensor_count; k++) {
			CU_ASSERT_EQUAL(seen[p->tensors[k].tensor]++, 0);
			part_bytes += plan->ckpt->tensors[p->tensors[k].tensor].bytes;
		}
		CU_ASSERT_EQUAL(p->tensor_bytes, part_bytes);
		CU_ASSERT_TRUE(!p->pack || p->frame_bytes <= CTN_PACK_MAX);
		CU_ASSERT_TRUE(p->pack || p->tensor_bytes >= CTN_SMALL_PART ||
			       p->first_layer == p->last_layer || plan->ckpt->arch.tied);
		CU_ASSERT_TRUE(i == 0 || p->first_layer >= p[-1].first_layer);
		CU_ASSERT_TRUE(p->first_layer <= p->last_layer);
		bytes += part_bytes;
		host += p->frame_bytes;
	}
	CU_ASSERT_EQUAL(plan->ckpt->bytes, bytes);
	CU_ASSERT_EQUAL(plan->host_bytes, host);
	free(seen);
	check_lifetimes(plan);
}

static inline void check_window(const struct ctn_plan *plan)
{
	uint64_t window = 0;

	for (uint32_t layer = 0; layer < plan->ckpt->arch.layers + 2; layer++) {
		uint64_t alive = 0;

		for (uint32_t i = 0; i < plan->part_count; i++) {
			const struct ctn_part *p = &plan->parts[i];

			if (p->first_layer <= layer && layer <= p->last_layer)
				alive += (p->frame_bytes + 2097151) / 2097152 * 2097152;
		}
		window = CTN_MAX(window, alive);
	}
	CU_ASSERT_EQUAL(plan->host_window, window);
}

/* The smallest possible largest stage, by trying every partition. */
static inline uint64_t best_partition(const uint64_t *bytes, uint32_t count, uint32_t stages)
{
	uint64_t best = UINT64_MAX, sum = 0;

	if (stages == 1) {
		for (uint32_t i = 0; i < count; i++)
			sum += bytes[i];
		return sum;
	}
	for (uint32_t n = 1; n + stages - 1 <= count; n++) {
		uint64_t rest;

		sum += bytes[n - 1];
		rest = best_partition(bytes + n, count - n, stages - 1);
		best = CTN_MIN(best, CTN_MAX(sum, rest));
	}
	return best;
}

static inline void check_stages(const struct ctn_plan *plan)
{
	const uint32_t layers = plan->ckpt->arch.layers + 2;
	uint64_t bytes[64] = {0}, largest = 0;
	uint32_t next = 0;

	CU_ASSERT_EQUAL_FATAL(plan->rank_count, plan->tp * plan->pp);
	CU_ASSERT_TRUE_FATAL(layers <= 64);
	for (uint32_t pp = 0; pp < plan->pp; pp++) {
		for (uint32_t tp = 0; tp < plan->tp; tp++) {
			const struct ctn_rank_plan *r = &plan->ranks[pp * plan->tp + tp];

			CU_ASSERT_EQUAL(r->tp_rank, tp);
			CU_ASSERT_EQUAL(r->pp_rank, pp);
			CU_ASSERT_EQUAL(r->first_layer, next);
			CU_ASSERT_TRUE(r->layer_count > 0);
			CU_ASSERT_EQUAL(r->bytes, plan->ranks[pp * plan->tp].bytes);
			for (uint32_t i = 0; i < r->layer_count; i++)
				bytes[r->first_layer + i] = r->shards[i].bytes;
			largest = CTN_MAX(largest, r->bytes);
		}
		next += plan->ranks[pp * plan->tp].layer_count;
	}
	CU_ASSERT_EQUAL(next, layers);
	CU_ASSERT_EQUAL(largest, best_partition(bytes, layers, plan->pp));
}

#endif
