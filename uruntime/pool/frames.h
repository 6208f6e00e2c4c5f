/* SPDX-License-Identifier: MIT */
/* Private to pool/: the frame table in this process. */
#ifndef CTN_POOL_FRAMES_H
#define CTN_POOL_FRAMES_H

#include "pool/memory.h"
#include "pool/pool_ops.h"

/* A pool whose frames are kept here and whose segments come from `memory`. */
int ctn_frames_open(const struct ctn_pool_config *cfg, const struct ctn_memory_ops *memory,
		    struct ctn_pool **pool, struct ctn_err *err);

#endif
