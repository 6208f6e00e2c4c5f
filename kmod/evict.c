// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * How frames leave. First the frame becomes GOING, so that nobody can lease or see it any more;
 * then it is taken out of all page tables, so that nobody can pin it any more; only then the pins
 * that are there tell whether its pages may be given back.
 *
 * A writer's mapping can still touch the range meanwhile. It promised not to pin there (see
 * COMPUTRON_IOC_POOL_HOT); when it breaks that, its device writes to pages that are nobody's, and
 * no frame of anybody is harmed.
 */
#include "evict.h"
#include "order.h"
#include "tend.h"
#include "trace.h"

/* Walks over the runs of a frame, cut into stretches that are hot or not. */
struct stretch {
	u32 run;
	u32 unit; /* within the run */
	u32 first;
	u32 count;
};

/* The next stretch whose pages are to be given back: all, or those that are not hot. */
static bool next_stretch(struct computron_frames *t, const struct computron_frame *f, bool keep_hot,
			 struct stretch *s)
{
	const struct computron_run *run;

	for (; s->run < f->nr_runs; s->run++, s->unit = 0) {
		run = &f->runs[s->run];
		while (s->unit < run->count && keep_hot && READ_ONCE(t->hot[run->first + s->unit]))
			s->unit++;
		s->first = run->first + s->unit;
		s->count = 0;
		while (s->unit < run->count &&
		       !(keep_hot && READ_ONCE(t->hot[run->first + s->unit]))) {
			s->unit++;
			s->count++;
		}
		if (s->count)
			return true;
	}
	return false;
}

static bool unit_busy(struct computron_pool *pool, u32 unit, bool locks)
{
	u64 bytes = pool->frames.unit_bytes;
	struct computron_survey s = {};

	computron_memory_survey(&pool->memory, unit * bytes, bytes, locks, &s);
	return s.pinned || s.locked;
}

/*
 * Pages that are truncated are taken out of page tables once more, with their lock held (view.c).
 * Those in hot ranges stay: faults that found the frame CLEAN are waited for, and are unmapped with
 * the rest.
 */
static int end_hot_faults(struct computron_pool *pool, const struct computron_frame *f,
			  bool reclaim)
{
	u64 bytes = pool->frames.unit_bytes;
	u32 i, unit;

	if (pool->memory.adopted)
		return 0;
	for (i = 0; i < f->nr_runs; i++) {
		for (unit = f->runs[i].first; unit < f->runs[i].first + f->runs[i].count; unit++) {
			if (READ_ONCE(pool->frames.hot[unit]) &&
			    !computron_memory_end_faults(&pool->memory, unit * bytes, bytes,
							 !reclaim))
				return -EBUSY;
		}
	}
	return 0;
}

/*
 * Gives back the pages of a GOING frame, which is ours alone. In reclaim nobody's page lock is
 * waited for: it may be that of the very task that came here for memory.
 */
static int give_back(struct computron_pool *pool, struct computron_frame *f, bool keep_hot,
		     bool reclaim)
{
	struct computron_frames *t = &pool->frames;
	u64 bytes = t->unit_bytes;
	struct stretch s;
	u32 i;

	if (end_hot_faults(pool, f, reclaim))
		return -EBUSY;
	for (i = 0; i < f->nr_runs; i++)
		computron_memory_unmap(&pool->memory, f->runs[i].first * bytes,
				       f->runs[i].count * bytes);
	memset(&s, 0, sizeof(s));
	while (next_stretch(t, f, keep_hot, &s)) {
		for (i = 0; i < s.count; i++) {
			if (unit_busy(pool, s.first + i, reclaim))
				return -EBUSY;
		}
	}
	memset(&s, 0, sizeof(s));
	while (next_stretch(t, f, keep_hot, &s))
		computron_memory_punch(&pool->memory, s.first * bytes, s.count * bytes);
	return 0;
}

/* Evicts a frame that is GOING and was CLEAN. Frees it when that succeeds. */
static int evict(struct computron_pool *pool, struct computron_frame *f, u32 type, u64 cause)
{
	bool reclaim = type == COMPUTRON_EVENT_RECLAIMED;
	struct computron_frames *t = &pool->frames;
	int rc = give_back(pool, f, true, reclaim);

	spin_lock(&t->lock);
	if (rc) {
		computron_frame_stay(t, f);
		t->n.refused++;
		trace_computron_refuse(pool->name, &f->ref, f->units * t->unit_bytes, rc);
		computron_tend_start(pool);
	} else {
		computron_frame_retire(t, f);
		if (reclaim) {
			t->n.reclaims++;
			t->n.reclaimed += f->units;
		} else {
			t->n.evictions++;
			t->n.evicted += f->units;
		}
		computron_events_push(pool->events, type, &f->ref, f->units * t->unit_bytes, cause);
		trace_computron_evict(pool->name, &f->ref, f->units * t->unit_bytes, reclaim);
	}
	computron_pool_settle(pool);
	spin_unlock(&t->lock);
	if (!rc)
		computron_frame_free(f);
	return rc;
}

/**
 * computron_evict() - evicts a frame by request
 * @pool: the pool
 * @ref: the frame
 * @cause: number of the file that asks
 *
 * Context: process, may sleep.
 * Return: 0; -ESTALE; -EBUSY: leased, not CLEAN, or pinned; -EINTR.
 */
int computron_evict(struct computron_pool *pool, const struct computron_ref *ref, u64 cause)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	int rc;

	rc = computron_pool_lock_frame(pool, ref, &f);
	if (!rc && f->state != COMPUTRON_FRAME_CLEAN)
		rc = -EBUSY;
	if (!rc && f->leases) {
		t->n.refused++;
		trace_computron_refuse(pool->name, ref, f->units * t->unit_bytes, -EBUSY);
		rc = -EBUSY;
	}
	if (!rc)
		computron_frame_depart(t, f);
	computron_pool_unlock(pool);
	return rc ? rc : evict(pool, f, COMPUTRON_EVENT_EVICTED, cause);
}

/**
 * computron_evict_all() - evicts every CLEAN frame that can be
 * @pool: a pool that was destroyed
 *
 * Context: process, may sleep.
 */
void computron_evict_all(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	u32 unit = 0;

	for (;;) {
		spin_lock(&t->lock);
		while ((f = computron_frames_next(t, unit))) {
			unit = f->ref.id + 1;
			if (f->state == COMPUTRON_FRAME_CLEAN && !f->leases)
				break;
		}
		if (f)
			computron_frame_depart(t, f);
		spin_unlock(&t->lock);
		if (!f)
			break;
		evict(pool, f, COMPUTRON_EVENT_EVICTED, 0);
	}
}

/**
 * computron_evict_oldest() - evicts one frame because memory is short
 * @pool: the pool, not an adopted one
 *
 * Context: reclaim.
 * Return: bytes that it was charged outside of hot ranges; 0 when there is no frame to be had; what
 * it did not get for pins counts as not to be had, and is held aside.
 */
u64 computron_evict_oldest(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	u64 bytes = 0;

	for (;;) {
		spin_lock(&t->lock);
		f = computron_order_victim(t);
		if (f) {
			bytes = f->warm_units * t->unit_bytes;
			computron_frame_depart(t, f);
		}
		spin_unlock(&t->lock);
		if (!f)
			return 0;
		if (!evict(pool, f, COMPUTRON_EVENT_RECLAIMED, 0))
			return bytes;
	}
}

/**
 * computron_abandon() - gives up a frame that was LOADING or QUARANTINED
 * @pool: the pool
 * @f: the frame, GOING
 * @keep_hot: pages in hot ranges stay, pinned or not: its owner says that nothing writes to them
 *
 * Context: process, may sleep.
 */
void computron_abandon(struct computron_pool *pool, struct computron_frame *f, bool keep_hot)
{
	struct computron_frames *t = &pool->frames;
	int rc = give_back(pool, f, keep_hot, false);

	spin_lock(&t->lock);
	if (rc) {
		computron_frame_quarantine(t, f);
		computron_tend_start(pool);
	} else {
		computron_frame_retire(t, f);
	}
	computron_pool_settle(pool);
	spin_unlock(&t->lock);
	if (!rc)
		computron_frame_free(f);
}

/**
 * computron_scrub() - a new frame does not begin with what somebody left in its units
 * @pool: the pool
 * @f: a LOADING frame that is busy for the caller and has no memory of its own yet
 *
 * Memory without a frame comes from writers that touch units before they are given to a frame. In
 * hot ranges it stays.
 *
 * Context: process, may sleep.
 */
void computron_scrub(struct computron_pool *pool, struct computron_frame *f)
{
	u64 bytes = pool->frames.unit_bytes;
	struct stretch s = {};
	u32 unit;

	while (next_stretch(&pool->frames, f, true, &s)) {
		for (unit = s.first; unit < s.first + s.count; unit++) {
			if (!computron_memory_present(&pool->memory, unit * bytes, bytes))
				continue;
			computron_memory_unmap(&pool->memory, unit * bytes, bytes);
			computron_memory_punch(&pool->memory, unit * bytes, bytes);
		}
	}
}

/* The run number @i of a frame, while there is one. */
static bool get_run(struct computron_pool *pool, const struct computron_ref *ref, u32 i,
		    struct computron_run *run)
{
	struct computron_frame *f;
	bool there;

	spin_lock(&pool->frames.lock);
	there = !computron_frames_find(&pool->frames, ref, &f) && i < f->nr_runs;
	if (there)
		*run = f->runs[i];
	spin_unlock(&pool->frames.lock);
	return there;
}

/**
 * computron_pinned() - whether a frame is pinned outside of hot ranges
 * @pool: the pool
 * @ref: the frame, which may go meanwhile
 *
 * Context: process, may sleep.
 * Return: whether a pin was seen.
 */
bool computron_pinned(struct computron_pool *pool, const struct computron_ref *ref)
{
	struct computron_run run;
	u32 i, unit;

	for (i = 0; get_run(pool, ref, i, &run); i++) {
		for (unit = run.first; unit < run.first + run.count; unit++) {
			if (!READ_ONCE(pool->frames.hot[unit]) && unit_busy(pool, unit, false))
				return true;
		}
	}
	return false;
}
