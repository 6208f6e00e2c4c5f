// SPDX-License-Identifier: MIT
/*
 * What is moved before anybody asks for it.
 *
 * Host to device: when a link has nothing else to do, the model whose absence costs most, if what
 * must go for it costs clearly less. Such a load is cancelled as soon as a request needs the link;
 * the layers that have come stay where the caller can keep them.
 *
 * Disk to host: when no load waits for the disk, a little of the model that is most likely to be
 * asked for, while there is room, or something less likely to go. It comes in pieces of PIECE_S, so
 * nobody who needs the disk waits longer, and there is nothing to cancel.
 */
#include "sched/room.h"

#include <math.h>

#define MARGIN        0.3   /* of the gain of a load ahead: what is lost is less sure */
#define LEAST_GAIN_S  0.003 /* seconds of waiting that a load ahead must save */
#define LEAST_SHARE   0.2   /* and of the seconds that the load takes */
#define RETRY_NS      (20 * 1000000ull)
#define LEAST_WAKE_NS (50 * 1000000ull)

#define HOST_HORIZON_S 5.0
#define LEAST_CHANCE   0.01 /* of a request within that, for which the disk is used */
#define PIECE_S        0.1
#define LEAST_PIECE    (64 * CTN_MIB)
#define STAGE_RETRY_NS (200 * 1000000ull)

/* ---- host to device --------------------------------------------------------------------- */

/* What is gained if all of `m` were there. Notes when that is worth asking again. */
static double gain(const struct ctn_sched *s, struct sched_model *m, uint64_t *check_ns,
		   uint64_t now_ns)
{
	const struct sched_gaps *g = &m->gaps;
	uint64_t scale_ns = (uint64_t)(1e9 * CTN_MIN(g->scale_s, 1e6));
	double gain_s;

	sched_value(s, m, now_ns);
	gain_s = sched_loss(s, m);
	/* After bursty gaps the chance only falls until the next request, after regular ones it
	 * grows; if nothing has come for long, the past says no more. */
	if (gain_s >= LEAST_GAIN_S)
		*check_ns = now_ns + CTN_MAX(RETRY_NS, (now_ns - g->last_ns) / 8);
	else if (g->shape > 1 && now_ns < g->last_ns + 2 * scale_ns)
		*check_ns = now_ns + CTN_MAX(LEAST_WAKE_NS, scale_ns / 20);
	else
		*check_ns = UINT64_MAX - 1;
	return gain_s;
}

void sched_load_ahead(struct ctn_sched *s, uint64_t busy, uint64_t now_ns)
{
	uint64_t all = s->device_count == 64 ? UINT64_MAX : (1ull << s->device_count) - 1;
	struct sched_model *best = NULL;
	double most = LEAST_GAIN_S;

	if (!s->cancels || !s->host_known || (busy & all) == all)
		return;
	for (uint32_t i = 0; i < s->model_count; i++) {
		uint64_t *check = &s->check_ns[i];
		struct sched_model *m = &s->models[i];
		double gain_s;

		if (*check > now_ns) {
			s->wake_ns = CTN_MIN(s->wake_ns, *check);
			continue;
		}
		if (m->devices & busy)
			continue;
		gain_s = gain(s, m, check, now_ns);
		s->wake_ns = CTN_MIN(s->wake_ns, *check);
		if (gain_s >= most &&
		    gain_s >= LEAST_SHARE * sched_load_seconds(s, m, m->missing_bytes)) {
			most = gain_s;
			best = m;
		}
	}
	if (s->wake_ns == UINT64_MAX - 1)
		s->wake_ns = UINT64_MAX;
	if (best && sched_make_room(s, best, 1, (1 - MARGIN) * most, now_ns) == SCHED_ROOM)
		sched_load(s, (uint32_t)(best - s->models), 1, now_ns);
}

/* ---- disk to host ----------------------------------------------------------------------- */

/* The chance that the bytes of a model in the pool are needed soon: those of one that has all its
 * weights are not before these have been dropped. */
static double host_chance(const struct ctn_sched *s, const struct sched_model *m, uint64_t now_ns)
{
	double chance = m->queued || m->admitted ? 1 : sched_chance(s, m, HOST_HORIZON_S, now_ns);

	return m->state == CTN_SCHED_RESIDENT ? 0.5 * chance : chance;
}

static bool disk_busy(const struct ctn_sched *s)
{
	if (s->staging)
		return true;
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *m = &s->models[s->holders[i]];

		if (m->state == CTN_SCHED_LOADING && m->stage_bytes)
			return true;
	}
	return false;
}

void sched_stage_ahead(struct ctn_sched *s, uint64_t now_ns)
{
	struct sched_model *best = NULL;
	double most = LEAST_CHANCE, least = INFINITY;
	uint64_t used = 0, piece = LEAST_PIECE;

	if (!s->stages || !s->host_known || !s->host_bytes || disk_busy(s))
		return;
	if (now_ns < s->stage_check_ns) {
		s->wake_ns = CTN_MIN(s->wake_ns, s->stage_check_ns);
		return;
	}
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];
		uint64_t has = m->host_bytes - CTN_MIN(m->host_bytes, m->host_missing);
		double chance;

		used += has;
		if (m->lost || m->evicted || m->gaps.count == 0) {
			least = has ? 0 : least;
			continue;
		}
		chance = host_chance(s, m, now_ns);
		if (has && !m->pinned)
			least = CTN_MIN(least, chance);
		if (m->host_missing && m->state == CTN_SCHED_ABSENT && chance > most) {
			most = chance;
			best = m;
		}
	}
	s->stage_check_ns = now_ns + STAGE_RETRY_NS;
	if (s->stages_seen)
		piece = CTN_MAX(piece, (uint64_t)(PIECE_S / s->stage_seconds_per_byte));
	if (best)
		piece = CTN_MIN(piece, best->host_missing);
	if (!best || !sched_room(s, 1) ||
	    (used + piece > s->host_bytes && (1 - MARGIN) * most <= least)) {
		/* Somebody's chance may grow; without anybody who lacks something, none. */
		if (best)
			s->wake_ns = CTN_MIN(s->wake_ns, s->stage_check_ns);
		return;
	}
	s->stage_check_ns = 0;
	sched_stage(s, (uint32_t)(best - s->models), piece, now_ns);
}

void sched_host_need(struct ctn_sched *s, uint32_t model, uint64_t bytes,
		     const uint64_t *host_evictable, uint64_t now_ns)
{
	sched_make_host_room(s, model, bytes, host_evictable, host_chance, now_ns);
}
