/* SPDX-License-Identifier: MIT */
/* What the two forms of `computron inspect` share. Private to tools/inspect*.c. */
#ifndef CTN_TOOLS_INSPECT_H
#define CTN_TOOLS_INSPECT_H

#include "checkpoint/checkpoint.h"

/* Tensors and bytes by dtype. */
struct ctn_dtype_sums {
	uint64_t count[CTN_DTYPE_COUNT];
	uint64_t bytes[CTN_DTYPE_COUNT];
	uint64_t total;
};

void ctn_inspect_sum(const struct ctn_tensor *tensors, uint32_t count, struct ctn_dtype_sums *sums);

/* "embed", "head" or the number of a layer from 0, as in the names of tensors. */
const char *ctn_inspect_layer_name(const struct ctn_arch *arch, uint32_t layer, char out[16]);
const char *ctn_inspect_kind_name(enum ctn_part_kind kind);

/* Bytes that the rectangles of a shard bring: without padding. */
uint64_t ctn_inspect_payload(const struct ctn_shard *shard);

/* The same as JSON on stdout. `whole` is the plan of one rank; `split` the one that was asked
 * for, or NULL. Negative errno. */
int ctn_inspect_container_json(const char *path, const struct ctn_container *c);
int ctn_inspect_checkpoint_json(const struct ctn_checkpoint *ckpt, const struct ctn_plan *whole,
				const struct ctn_plan *split);

#endif
