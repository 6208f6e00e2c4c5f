/* SPDX-License-Identifier: MIT */
/* computron sim --replay: a decision log, decided again by the same code. Private to tools. */
#ifndef CTN_TOOLS_SIM_REPLAY_H
#define CTN_TOOLS_SIM_REPLAY_H

#include "base/base.h"

#include <stdio.h>

/* What sched predicted of one kind, beside what came. */
struct ctn_replay_errors {
	uint64_t count;
	double predicted_s, actual_s; /* sums */
	double off_s;                 /* sum of the absolute errors */
	double *relative;             /* |predicted - actual| / actual, of each; owned */
	size_t cap;
};

enum { CTN_REPLAY_LOADS, CTN_REPLAY_STEPS, CTN_REPLAY_KINDS };

struct ctn_replay {
	char policy[32];
	uint64_t models, decisions, actions;
	bool whole;         /* it ends as a log ends: the daemon was not killed */
	uint64_t differ_at; /* line of the first decision that is another now; 0: none */
	char differs[512];  /* what was decided then and now */
	struct ctn_replay_errors errors[CTN_REPLAY_KINDS];
};

/*
 * Feeds the events of `path` to sched, and stops at the first decision that differs from the one in
 * the log. -EINVAL with the line for what is no such log, or tells of events that cannot be.
 */
int ctn_sim_replay(const char *path, struct ctn_replay *r, struct ctn_err *err);
void ctn_sim_replay_free(struct ctn_replay *r);
/* Nearest rank; 0 when there are none. Sorts. */
double ctn_replay_percentile(struct ctn_replay_errors *e, double share);
int ctn_sim_replay_print(struct ctn_replay *r, bool json, struct ctn_err *err);

/* What was read of the file and not taken yet; all zeros at first. */
struct ctn_replay_lines {
	size_t at, len;
	char bytes[1 << 16];
};

/* One line with its end, or the rest of the file without one, into *line: 1; 0 when there is no
 * more. -EFBIG for one of more than 64 MiB, or than there is memory. */
int ctn_replay_line(struct ctn_replay_lines *l, FILE *f, struct ctn_buf *line);

#endif
