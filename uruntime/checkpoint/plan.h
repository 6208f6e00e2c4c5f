/* SPDX-License-Identifier: MIT */
/* What the files of the plan share. Private to checkpoint. */
#ifndef CTN_CHECKPOINT_PLAN_H
#define CTN_CHECKPOINT_PLAN_H

#include "checkpoint/family.h"

/* Where a tensor in its role lies in host frames. */
struct ctn_place {
	uint32_t part;
	uint64_t frame_offset;
};

/*
 * plan_parts.c: fills plan->parts, but for first_layer and last_layer, and places[], one for
 * each binding. Depends on the checkpoint alone, never on tp and pp.
 */
int ctn_plan_parts(struct ctn_plan *plan, struct ctn_place *places, struct ctn_err *err);

/* plan_split.c: checks that tp divides the model, and what each rank has of it. */
int ctn_plan_check_split(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp,
			 struct ctn_err *err);
void ctn_plan_split(const struct ctn_arch *arch, uint32_t tp, uint32_t tp_rank,
		    struct ctn_rank_plan *rank);

/* The elements of a dimension that a rank has: up to three ranges, q, k and v. */
#define CTN_MAX_RANGES 3

struct ctn_ranges {
	uint64_t start[CTN_MAX_RANGES];
	uint64_t count[CTN_MAX_RANGES];
	uint32_t n;
	uint64_t size; /* in memory, with padding */
};

void ctn_plan_ranges(const struct ctn_arch *arch, const struct ctn_rank_plan *rank,
		     enum ctn_dim dim, struct ctn_ranges *ranges);

/* plan_stages.c: cuts layers of the given bytes into pp contiguous groups, none empty, so that
 * the largest is as small as can be; first[pp] is the count. pp <= count. */
void ctn_plan_stages(const uint64_t *bytes, uint32_t count, uint32_t pp, uint32_t *first);

/*
 * plan_shards.c: what `rank` needs of `layer`. `embed` is the embed layer's shard when it lies
 * on the same rank, which a tied head then aliases; else NULL. Free with ctn_plan_free_shard,
 * also after an error.
 */
int ctn_plan_shard(const struct ctn_plan *plan, const struct ctn_place *places,
		   const struct ctn_rank_plan *rank, uint32_t layer, const struct ctn_shard *embed,
		   struct ctn_shard *shard, struct ctn_err *err);
void ctn_plan_free_shard(struct ctn_shard *shard);

#endif
