/* SPDX-License-Identifier: MIT */
/*
 * Private to engine: the decision log. JSON, one object a line, in the order of the calls of sched:
 *
 *   {"config": ...}    first: what sched was made of
 *   {"model": ...}     a model, numbered from 0 in the order of these lines
 *   {"share": ...}     bytes that models have in common, from here on
 *   {"ns": ...}        a decision: the event, the actions, what came of an earlier prediction, and
 *                      the state after it
 *   {"end": ...}       last, unless the daemon was killed
 *
 * It is all that sched was told, so that `computron sim --replay` has it decide again.
 *
 * The engine thread appends to memory; a thread of the log's own writes. One that cannot write, or
 * not as fast as the engine decides, says so once and writes no more: a log with holes is of no
 * use.
 */
#ifndef CTN_ENGINE_DECISIONS_H
#define CTN_ENGINE_DECISIONS_H

#include "base/base.h"
#include "sched/sched.h"

struct decisions;

/* What became of a prediction. */
struct decision_outcome {
	double predicted_s, actual_s;
};

/* NULL when it cannot be opened or made; the log of errors has the reason. */
struct decisions *decisions_open(const char *path, const struct ctn_sched_config *cfg,
				 uint32_t max_actions);
/* Writes what is left. */
void decisions_close(struct decisions *d);

/* All of these do nothing with NULL, and after a failure. */
void decisions_model(struct decisions *d, const char *name, const struct ctn_sched_model *model);
void decisions_share(struct decisions *d, uint32_t model, uint32_t rank, uint32_t layer,
		     uint32_t frame, uint64_t bytes);
/* `outcome`: NULL when the event is the end of nothing that was predicted. */
void decisions_add(struct decisions *d, const struct ctn_sched *sched, uint64_t now_ns,
		   const struct ctn_sched_event *ev, uint32_t max,
		   const struct ctn_sched_action *actions, uint32_t count,
		   const struct decision_outcome *outcome);

/* Any thread: lines that were handed to the log, and whether it has failed. */
void decisions_state(const struct decisions *d, uint64_t *lines, bool *failed);

#endif
