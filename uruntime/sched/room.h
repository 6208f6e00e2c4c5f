/* SPDX-License-Identifier: MIT */
/* Private to sched: what it costs to be without weights, and room at the least of it. */
#ifndef CTN_SCHED_ROOM_H
#define CTN_SCHED_ROOM_H

#include "sched/state.h"

/* Refreshes what losses of `m` are computed from. */
void sched_value(const struct ctn_sched *s, struct sched_model *m, uint64_t now_ns);
/* What it is expected to cost, in seconds of waiting, that `m` lacks what it lacks. */
double sched_loss(const struct ctn_sched *s, const struct sched_model *m);
/*
 * Drops what is cheapest until `m` can have `blocks` of KV; false, and nothing dropped, if that is
 * not possible now or costs more than `budget`. `arrival` is that of the request for which it is
 * done: victims that have work get it as their barrier and drain. UINT64_MAX: nobody waits, only
 * idle ones are victims.
 */
bool sched_make_room(struct ctn_sched *s, struct sched_model *m, uint32_t blocks, uint64_t arrival,
		     double budget, uint64_t now_ns);

#endif
