/* SPDX-License-Identifier: MIT */
/* computron verify: what its files share. Private to tools/verify*.c. */
#ifndef CTN_TOOLS_VERIFY_H
#define CTN_TOOLS_VERIFY_H

#include "checkpoint/checkpoint.h"
#include "stage/stage.h"

#include <jansson.h>

/* A line on the terminal that says how far it is; nothing where standard error is a file. */
struct ctn_progress {
	bool on;
	uint64_t total, begun;
};

void ctn_progress_begin(struct ctn_progress *p, uint64_t total);
void ctn_progress_show(const struct ctn_progress *p, uint64_t done);
/* Clears the line, so that others can be written. */
void ctn_progress_clear(const struct ctn_progress *p);

/* ---- verify_parts.c ---------------------------------------------------------------------- */

struct ctn_verify_result {
	uint64_t bytes; /* of the tensors that were read */
	uint64_t nanoseconds;
	enum ctn_stage_method method; /* of the last part */
	uint32_t failed;              /* parts */
};

/* Called for each part that could not be read, or whose bytes are others. */
typedef void ctn_verify_failed_fn(void *arg, const char *why);

/*
 * Stages every part of the plan into a pool, which holds them against the manifest. `fill` gives
 * parts and tensors the digests that were found. Goes on after a part that fails. -ENOMEM and the
 * like when it cannot be begun.
 */
int ctn_verify_parts(struct ctn_plan *plan, bool fill, ctn_verify_failed_fn *failed, void *arg,
		     struct ctn_verify_result *result, struct ctn_err *err);

#endif
