// SPDX-License-Identifier: MIT
/* (checkpoint, tp, pp) -> plan: puts together what the other plan_*.c make. */
#include "checkpoint/manifest.h"
#include "checkpoint/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(const struct ctn_plan *plan, struct ctn_err *err)
{
	return ctn_err_set(err, -ENOMEM, "%s: out of memory", plan->ckpt->dir);
}

/*
 * Which layers each stage has, in first[0 .. pp]. Every tensor-parallel rank of a stage has the
 * same bytes (vocabulary padded, key-value heads replicated), so that rank 0 stands for all.
 */
static int cut_stages(const struct ctn_plan *plan, const struct ctn_place *places, uint32_t *first,
		      struct ctn_err *err)
{
	const uint32_t layers = ctn_layer_count(&plan->ckpt->arch);
	struct ctn_rank_plan rank = {0};
	uint64_t *bytes;
	int rc = 0;

	first[0] = 0;
	first[1] = layers;
	if (plan->pp == 1)
		return 0;
	bytes = calloc(layers, sizeof(*bytes));
	if (!bytes)
		return no_memory(plan, err);
	ctn_plan_split(&plan->ckpt->arch, plan->tp, 0, &rank);
	for (uint32_t layer = 0; !rc && layer < layers; layer++) {
		struct ctn_shard shard;

		rc = ctn_plan_shard(plan, places, &rank, layer, NULL, &shard, err);
		bytes[layer] = shard.bytes;
		ctn_plan_free_shard(&shard);
	}
	if (!rc)
		ctn_plan_stages(bytes, layers, plan->pp, first);
	free(bytes);
	return rc;
}

static int build_rank(struct ctn_plan *plan, const struct ctn_place *places,
		      struct ctn_rank_plan *rank, uint32_t layers, struct ctn_err *err)
{
	rank->shards = calloc(layers, sizeof(*rank->shards));
	if (!rank->shards)
		return no_memory(plan, err);
	for (uint32_t i = 0; i < layers; i++) {
		const struct ctn_shard *embed = plan->pp == 1 && i > 0 ? &rank->shards[0] : NULL;
		int rc;

		rank->layer_count++;
		rc = ctn_plan_shard(plan, places, rank, rank->first_layer + i, embed,
				    &rank->shards[i], err);
		if (rc)
			return rc;
		rank->bytes += rank->shards[i].bytes;
	}
	return 0;
}

static int build_ranks(struct ctn_plan *plan, const struct ctn_place *places, struct ctn_err *err)
{
	uint32_t *first = calloc((size_t)plan->pp + 1, sizeof(*first));
	int rc;

	plan->ranks = calloc((size_t)plan->tp * plan->pp, sizeof(*plan->ranks));
	if (!first || !plan->ranks) {
		rc = no_memory(plan, err);
		goto out;
	}
	rc = cut_stages(plan, places, first, err);
	for (uint32_t pp_rank = 0; !rc && pp_rank < plan->pp; pp_rank++) {
		for (uint32_t tp_rank = 0; !rc && tp_rank < plan->tp; tp_rank++) {
			struct ctn_rank_plan *rank = &plan->ranks[plan->rank_count++];

			ctn_plan_split(&plan->ckpt->arch, plan->tp, tp_rank, rank);
			rank->pp_rank = pp_rank;
			rank->first_layer = first[pp_rank];
			rc = build_rank(plan, places, rank, first[pp_rank + 1] - first[pp_rank],
					err);
		}
	}
out:
	free(first);
	return rc;
}

/* When each part is first and last needed. A part that only a tied head reads again lives
 * until then, unless the head aliases the embedding on the device. */
static void find_lifetimes(struct ctn_plan *plan)
{
	for (uint32_t i = 0; i < plan->part_count; i++)
		plan->parts[i].first_layer = UINT32_MAX;
	for (uint32_t r = 0; r < plan->rank_count; r += plan->tp) {
		const struct ctn_rank_plan *rank = &plan->ranks[r];

		for (uint32_t i = 0; i < rank->layer_count; i++) {
			const struct ctn_shard *shard = &rank->shards[i];

			for (uint32_t k = 0; k < shard->part_count; k++) {
				struct ctn_part *part = &plan->parts[shard->parts[k]];

				part->first_layer = CTN_MIN(part->first_layer, shard->layer);
				part->last_layer = CTN_MAX(part->last_layer, shard->layer);
			}
		}
	}
}

/* The most that is alive at one layer: what starts there, less what has ended before. */
static int find_host_window(struct ctn_plan *plan, struct ctn_err *err)
{
	const uint32_t layers = ctn_layer_count(&plan->ckpt->arch);
	uint64_t *starts = calloc((size_t)layers + 1, sizeof(*starts));
	uint64_t *ends = calloc((size_t)layers + 1, sizeof(*ends));
	uint64_t alive = 0;
	int rc = 0;

	if (!starts || !ends) {
		rc = no_memory(plan, err);
		goto out;
	}
	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *part = &plan->parts[i];
		const uint64_t bytes = ctn_align_up(part->frame_bytes, 2 * CTN_MIB);

		starts[part->first_layer] += bytes;
		ends[part->last_layer + 1] += bytes;
	}
	for (uint32_t layer = 0; layer < layers; layer++) {
		alive = alive + starts[layer] - ends[layer];
		plan->host_window = CTN_MAX(plan->host_window, alive);
	}
out:
	free(starts);
	free(ends);
	return rc;
}

int ctn_plan_build(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp,
		   struct ctn_plan **out, struct ctn_err *err)
{
	struct ctn_place *places = NULL;
	struct ctn_plan *plan;
	int rc;

	rc = ctn_plan_check_split(ckpt, tp, pp, err);
	if (rc)
		return rc;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	plan->ckpt = ckpt;
	plan->tp = tp;
	plan->pp = pp;
	places = calloc(ctn_priv(ckpt)->binding_count, sizeof(*places));
	rc = places ? ctn_plan_parts(plan, places, err) : no_memory(plan, err);
	if (!rc)
		rc = ctn_manifest_apply(plan, err);
	if (!rc)
		rc = build_ranks(plan, places, err);
	if (!rc) {
		find_lifetimes(plan);
		rc = find_host_window(plan, err);
	}
	free(places);
	if (rc) {
		ctn_plan_free(plan);
		return rc;
	}
	*out = plan;
	return 0;
}

void ctn_plan_free(struct ctn_plan *plan)
{
	if (!plan)
		return;
	for (uint32_t i = 0; i < plan->part_count; i++) {
		free(plan->parts[i].runs);
		free(plan->parts[i].tensors);
	}
	free(plan->parts);
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		for (uint32_t i = 0; i < plan->ranks[r].layer_count; i++)
			ctn_plan_free_shard(&plan->ranks[r].shards[i]);
		free(plan->ranks[r].shards);
	}
	free(plan->ranks);
	free(plan);
}
