/* SPDX-License-Identifier: MIT */
/* Who computes on which devices: stages of steps, first come first served. A stage runs on all its
 * devices at once; one that finds some of them taken holds the others, so that nobody overtakes. */
#ifndef CTN_TOOLS_SIM_STAGES_H
#define CTN_TOOLS_SIM_STAGES_H

#include "base/base.h"

struct ctn_sim_waiting_stage {
	uint32_t step;
	uint64_t devices;
};

struct ctn_sim_stages {
	struct ctn_sim_waiting_stage *waiting;
	uint32_t count, cap;
	uint64_t taken; /* bit set of devices that compute */
};

/* At most `cap` wait at a time. -ENOMEM. */
int ctn_sim_stages_init(struct ctn_sim_stages *s, uint32_t cap);
void ctn_sim_stages_free(struct ctn_sim_stages *s);
void ctn_sim_stages_add(struct ctn_sim_stages *s, uint32_t step, uint64_t devices);
/* The next that can start now takes its devices; false if there is none. */
bool ctn_sim_stages_start(struct ctn_sim_stages *s, uint32_t *step);
void ctn_sim_stages_end(struct ctn_sim_stages *s, uint64_t devices);

#endif
