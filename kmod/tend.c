// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The kernel does not say when a page is unpinned, so somebody has to look. QUARANTINED frames are
 * freed then; CLEAN frames that could not be evicted can be counted as reclaimable again.
 *
 * QUARANTINED frames keep their pool, and the module. Held ones do not: they wait for nothing.
 */
#include <linux/module.h>

#include "evict.h"
#include "order.h"
#include "tend.h"

/* How often to look. */
#define QUARANTINE_PERIOD (HZ / 10)
#define HOLD_PERIOD       HZ

static void tend_quarantined(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	LIST_HEAD(round);

	spin_lock(&t->lock);
	list_splice_init(&t->quarantined, &round);
	while (!list_empty(&round)) {
		f = list_first_entry(&round, struct computron_frame, order);
		computron_frame_depart(t, f);
		spin_unlock(&t->lock);
		computron_abandon(pool, f, false);
		spin_lock(&t->lock);
	}
	spin_unlock(&t->lock);
}

static void tend_held(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	struct computron_ref ref;
	LIST_HEAD(round);
	bool pinned;

	spin_lock(&t->lock);
	list_splice_init(&t->held, &round);
	while (!list_empty(&round)) {
		f = list_first_entry(&round, struct computron_frame, order);
		list_move_tail(&f->order, &t->held);
		ref = f->ref;
		spin_unlock(&t->lock);
		pinned = computron_pinned(pool, &ref);
		spin_lock(&t->lock);
		if (!pinned && !computron_frames_find(t, &ref, &f))
			computron_order_unhold(t, f);
	}
	spin_unlock(&t->lock);
}

static void tend(struct work_struct *work)
{
	struct computron_pool *pool =
		container_of(to_delayed_work(work), struct computron_pool, tend);
	struct computron_frames *t = &pool->frames;
	bool let_go = false;

	tend_quarantined(pool);
	tend_held(pool);
	spin_lock(&t->lock);
	if (!list_empty(&t->quarantined)) {
		queue_delayed_work(computron_wq, &pool->tend, QUARANTINE_PERIOD);
	} else {
		let_go = pool->kept;
		pool->kept = false;
		if (!list_empty(&t->held))
			queue_delayed_work(computron_wq, &pool->tend, HOLD_PERIOD);
	}
	spin_unlock(&t->lock);
	if (let_go) {
		computron_pool_put_later(pool); /* which waits for us */
		module_put(THIS_MODULE); /* the end of the module waits for the end of this */
	}
}

/**
 * computron_tend_init() - for a new pool
 * @pool: the pool
 */
void computron_tend_init(struct computron_pool *pool)
{
	INIT_DELAYED_WORK(&pool->tend, tend);
}

/**
 * computron_tend_start() - there is a frame on one of the lists
 * @pool: the pool
 *
 * Context: the lock of the frames is held; also in reclaim. The caller has a reference to the pool,
 * and the module cannot go while it is here.
 */
void computron_tend_start(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;

	lockdep_assert_held(&t->lock);
	if (!list_empty(&t->quarantined)) {
		if (!pool->kept) {
			pool->kept = true;
			computron_pool_get(pool);
			__module_get(THIS_MODULE);
		}
		mod_delayed_work(computron_wq, &pool->tend, QUARANTINE_PERIOD);
	} else {
		queue_delayed_work(computron_wq, &pool->tend, HOLD_PERIOD);
	}
}

/**
 * computron_tend_stop() - the pool ends
 * @pool: a pool without references
 *
 * Context: process, may sleep.
 */
void computron_tend_stop(struct computron_pool *pool)
{
	cancel_delayed_work_sync(&pool->tend);
}
