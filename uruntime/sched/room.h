/* SPDX-License-Identifier: MIT */
/* Private to sched: what it costs to be without weights, room at the least of it, and what is
 * moved ahead of requests. */
#ifndef CTN_SCHED_ROOM_H
#define CTN_SCHED_ROOM_H

#include "sched/state.h"

/* ---- room.c ---- */

/* Refreshes what losses of `m` are computed from. */
void sched_value(const struct ctn_sched *s, struct sched_model *m, uint64_t now_ns);
/* What it is expected to cost, in seconds of waiting, that `m` lacks what it lacks. */
double sched_loss(const struct ctn_sched *s, const struct sched_model *m);

enum sched_room_found {
	SCHED_ROOM,       /* there is */
	SCHED_ROOM_LATER, /* victims drain, or it costs more than the budget */
	SCHED_ROOM_NEVER  /* not by dropping what can be dropped now */
};

/*
 * Drops what is cheapest until `m` can have `blocks` of KV; nothing is dropped if that is not
 * possible now or costs more than `budget`. INFINITY: requests of `m` wait, and victims that have
 * work drain; else only idle ones are victims.
 */
enum sched_room_found sched_make_room(struct ctn_sched *s, struct sched_model *m, uint32_t blocks,
				      double budget, uint64_t now_ns);

/* ---- ahead.c ---- */

/* Loads the model whose absence costs most, where no link of it is in `busy`. */
void sched_load_ahead(struct ctn_sched *s, uint64_t busy, uint64_t now_ns);
/* Stages a little of the model that is most likely to need it, when the disk has nothing to do. */
void sched_stage_ahead(struct ctn_sched *s, uint64_t now_ns);
/* host_need of a policy: what is least likely to be needed leaves the pool. */
void sched_host_need(struct ctn_sched *s, uint32_t model, uint64_t bytes,
		     const uint64_t *host_evictable, uint64_t now_ns);

#endif
