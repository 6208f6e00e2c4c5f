/* SPDX-License-Identifier: MIT */
/* Private to the simulator: the world around sched. */
#ifndef CTN_TOOLS_SIM_WORLD_H
#define CTN_TOOLS_SIM_WORLD_H

#include "sim.h"
#include "sim_stages.h"
#include "sched/sched.h"

#include <errno.h>
#include <math.h>

#define CTN_SIM_NONE UINT32_MAX

enum { CTN_SIM_LOADED, CTN_SIM_STAGED, CTN_SIM_STAGE_READY, CTN_SIM_STAGE_DONE, CTN_SIM_WAKE };

struct sim_load {
	uint64_t done_ns;
	uint64_t taken_ns; /* of the link that carries most */
	uint64_t begun_ns;
	double predicted_s;
	bool cancelled;
	uint64_t start_ns[CTN_SIM_MAX_DEVICES]; /* by rank: when its link has come to it */
	/* By rank: when its first missing layer is there, and its last; 0: nothing is missing. */
	uint64_t first_ns[CTN_SIM_MAX_DEVICES], last_ns[CTN_SIM_MAX_DEVICES];
};

struct sim_model {
	uint32_t device; /* of rank 0; the others follow */
	enum ctn_sched_state state;
	uint32_t kept[CTN_SIM_MAX_DEVICES]; /* layers, by rank */
	struct sim_load load;
	uint32_t *ready; /* admitted requests that are in no step */
	uint32_t ready_count;
	uint32_t next_arrival; /* of the model, an index into the workload */
	uint64_t in_pool;      /* bytes; all of it where the pool holds every model */
	bool pool_changed;     /* sched is to hear of it */
	/* Requests wait for a load that has not begun: since when, and what its link had carried.
	 */
	bool waits;
	uint64_t waits_since_ns, carried_ns, loads_before;
};

/* A step on its way through the stages. */
struct sim_step {
	uint32_t model, stage;
	uint32_t *requests;
	uint32_t count;
	uint32_t next_free;
};

struct sim_world {
	const struct ctn_sim_setup *setup;
	struct ctn_sim_result *result;
	struct ctn_sched *sched;
	bool free_loads;
	uint64_t now, stage_ns;
	uint32_t ranks;
	struct ctn_sim_heap heap;
	struct ctn_sim_stages stages;
	struct sim_model *models;
	uint32_t model_count;
	uint64_t link_free[CTN_SIM_MAX_DEVICES];
	uint64_t link_ns[CTN_SIM_MAX_DEVICES]; /* that it carries, up to link_free */
	uint64_t disk_free;
	uint64_t pool_free; /* bytes */
	uint32_t staging;   /* a model */
	uint64_t *evictable;
	uint64_t loads_begun;
	bool any_pool_changed;
	struct sim_step *steps;
	uint32_t step_count, free_step;
	uint32_t *slot_arrival, *free_slots, *slot_left; /* by slot; its steps to come */
	uint32_t slot_count, free_slot_count;
	uint32_t *ended; /* slots that sched has refused and not heard the end of */
	uint32_t ended_count;
	uint32_t *next_of_model; /* by arrival: the next of the same model */
	struct ctn_sched_action *actions;
	uint32_t action_max;
	uint64_t wake_ns;
	struct ctn_err *err;
	int rc;
};

static inline uint64_t sim_ns(double seconds)
{
	return (uint64_t)llround(seconds * 1e9);
}

/* ---- sim_moves.c ------------------------------------------------------------------------ */

/* All bytes of a model in the pool. */
uint64_t sim_whole(const struct sim_world *w, uint32_t model);
void sim_load(struct sim_world *w, uint32_t model, double predicted_s);
void sim_cancel(struct sim_world *w, uint32_t model);
/* Brings `bytes` of the model into the pool, if there is room; CTN_SIM_STAGED follows. */
void sim_stage(struct sim_world *w, uint32_t model, uint64_t bytes);
void sim_drop_host(struct sim_world *w, uint32_t model, uint64_t bytes);
/* A request begins to wait for a load of its model. */
void sim_wait(struct sim_world *w, uint32_t model);
/* The earliest time at which the ranks of a stage can run through it without waiting for a
 * layer: layers arrive evenly, so the first and the last missing one decide. */
uint64_t sim_stage_ready(const struct sim_world *w, uint32_t model, uint32_t stage);

#endif
