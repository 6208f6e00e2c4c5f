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
	double chance;

	if (m->lost || m->evicted)
		return 0;
	chance = m->queued || m->admitted ? 1 : sched_chance(s, m, HOST_HORIZON_S, now_ns);
	return m->state == CTN_SCHED_RESIDENT ? 0.5 * chance : chance;
}

static uint64_t in_pool(const struct sched_model *m)
{
	return m->host_bytes - CTN_MIN(m->host_bytes, m->host_missing);
}

/* Bytes in the pool, about `enough` if there are, of models whose chance is less than `most`: what
 * sched_host_need can give for a model with that. */
static uint64_t less_likely(const struct ctn_sched *s, double most, uint64_t enough,
			    uint64_t now_ns)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->model_count && bytes < enough; i++) {
		const struct sched_model *m = &s->models[i];

		/* What is loaded is held. */
		if (m->pinned || m->state == CTN_SCHED_LOADING || in_pool(m) == 0)
			continue;
		if (host_chance(s, m, now_ns) < most)
			bytes += in_pool(m);
	}
	return bytes;
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
	uint64_t used = 0, piece = LEAST_PIECE, room;
	double most = LEAST_CHANCE;

	if (!s->stages || !s->host_known || !s->host_bytes || disk_busy(s))
		return;
	if (now_ns < s->stage_check_ns) {
		s->wake_ns = CTN_MIN(s->wake_ns, s->stage_check_ns);
		return;
	}
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];
		double chance;

		used += in_pool(m);
		if (!m->host_missing || m->state != CTN_SCHED_ABSENT || m->gaps.count == 0)
			continue;
		chance = host_chance(s, m, now_ns);
		if (chance <= LEAST_CHANCE)
			continue;
		if (m->stage_after_ns > now_ns) {
			s->wake_ns = CTN_MIN(s->wake_ns, m->stage_after_ns);
		} else if (chance > most) {
			most = chance;
			best = m;
		}
	}
	s->stage_check_ns = now_ns + STAGE_RETRY_NS;
	if (!best)
		return; /* until something happens */
	if (s->stages_seen)
		piece = CTN_MAX(piece, (uint64_t)(PIECE_S / s->stage_seconds_per_byte));
	piece = CTN_MIN(piece, best->host_missing);
	room = s->host_bytes - CTN_MIN(s->host_bytes, used);
	if (room < piece)
		room += less_likely(s, (1 - MARGIN) * most, piece - room, now_ns);
	if (room < CTN_MIN(piece, LEAST_PIECE) || !sched_room(s, 1)) {
		/* Chances change with time. */
		s->wake_ns = CTN_MIN(s->wake_ns, s->stage_check_ns);
		return;
	}
	s->stage_check_ns = 0;
	sched_stage(s, (uint32_t)(best - s->models), CTN_MIN(piece, room), now_ns);
}

void sched_host_need(struct ctn_sched *s, uint32_t model, uint64_t bytes,
		     const uint64_t *host_evictable, uint64_t now_ns)
{
	const struct sched_model *m = &s->models[model];
	double most = INFINITY;

	/* Nobody waits for what is staged ahead: only what is clearly less likely goes for it. */
	if (s->staging && m->state != CTN_SCHED_LOADING)
		most = (1 - MARGIN) * host_chance(s, m, now_ns);
	sched_make_host_room(s, model, bytes, host_evictable, host_chance, most, now_ns);
}
