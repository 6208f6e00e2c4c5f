/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a model on a rig: a thread and a decoder each, as in the daemon, with the memory
 * they need and the groups that they talk through. They wait for the layers of a load, or compute
 * a step while it is under way, and say when. Private to tools/bench_ttft*.c and their tests.
 */
#ifndef CTN_TOOLS_BENCH_RANKS_H
#define CTN_TOOLS_BENCH_RANKS_H

#include "bench.h"
#include "model/model.h"

enum ctn_ranks_work {
	CTN_RANKS_WAIT, /* for every layer, and nothing else */
	CTN_RANKS_STEP  /* wait for a layer, compute it, go on */
};

/* Of one rank, of the work that it does or did last; may be read meanwhile. Times are those of
 * ctn_now_ns; 0: it has not come so far. */
struct ctn_rank_times {
	_Atomic uint64_t *asked; /* [layer - first_layer]: it began to wait for the layer */
	_Atomic uint64_t *ready; /* likewise: its weights could be read */
	_Atomic uint64_t end;
};

struct ctn_bench_ranks;

/* For prompts of `tokens` tokens. Charges the devices; the rig outlives it. */
int ctn_bench_ranks_open(struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
			 uint32_t tokens, struct ctn_bench_ranks **ranks, struct ctn_err *err);
void ctn_bench_ranks_close(struct ctn_bench_ranks *ranks);

/*
 * Threads that begin `work` when the next load of the side begins (by rig->observer), and have
 * ended when it is over. The model is not computed where it is not loaded. After the switch,
 * ctn_bench_ranks_result says how it went.
 */
int ctn_bench_ranks_arm(struct ctn_bench_ranks *ranks, enum ctn_ranks_work work,
			struct ctn_err *err);
/* A step of what is RESIDENT, at once. */
int ctn_bench_ranks_step(struct ctn_bench_ranks *ranks, struct ctn_err *err);

int ctn_bench_ranks_result(const struct ctn_bench_ranks *ranks, struct ctn_err *err);
const struct ctn_rank_times *ctn_bench_ranks_times(const struct ctn_bench_ranks *ranks,
						   uint32_t rank);
/* The first token, and when the last pipeline stage had it. */
uint32_t ctn_bench_ranks_token(const struct ctn_bench_ranks *ranks, uint64_t *ns);

#endif
