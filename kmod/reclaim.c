// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory is short: gives back memory that belongs to no frame, then CLEAN frames, down to the floor
 * of each pool. Objects are pages, so that the amounts compare with those of the page cache.
 *
 * One caller at a time, one batch a call: the reclaim of several tasks at once, and of priorities
 * that rise quickly, would else take far more than is lacking. Nothing is allocated, and only locks
 * are waited for that are never held across an allocation.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>

#include "compat.h"
#include "evict.h"
#include "order.h"
#include "reclaim.h"

static unsigned int reclaim_batch = 32U << 20;
module_param(reclaim_batch, uint, 0444);
MODULE_PARM_DESC(reclaim_batch, "bytes that memory pressure takes at a time, in whole frames");

static bool reclaim = true;
module_param(reclaim, bool, 0644);
MODULE_PARM_DESC(reclaim, "whether memory pressure takes anything");

/* Units that are searched for memory without a frame in a call. */
#define STRAY_UNITS 4096

static DEFINE_MUTEX(reclaiming);

/*
 * Memory that no frame accounts for: writers can touch units that have no frame. In hot ranges it
 * has to stay; so much, at the least, is not there.
 */
static u64 stray_bytes(struct computron_pool *pool)
{
	struct computron_frames *t = &pool->frames;
	u64 framed = (u64)t->n.loading + t->n.clean + t->n.quarantined + t->n.hot_free;
	u64 populated = computron_memory_populated(&pool->memory);

	lockdep_assert_held(&t->lock);
	framed *= t->unit_bytes;
	return populated > framed ? populated - framed : 0;
}

/* Pages that could be given back now. */
static unsigned long countable(void)
{
	struct computron_pool *pool;
	u64 bytes = 0;

	spin_lock(&computron_pools_lock);
	list_for_each_entry(pool, &computron_pools, listed) {
		if (pool->memory.adopted)
			continue;
		spin_lock(&pool->frames.lock);
		bytes += computron_order_reclaimable(&pool->frames) * pool->frames.unit_bytes;
		bytes += stray_bytes(pool);
		spin_unlock(&pool->frames.lock);
	}
	spin_unlock(&computron_pools_lock);
	return min_t(u64, bytes >> PAGE_SHIFT, LONG_MAX / 4);
}

static unsigned long count_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	unsigned long pages = READ_ONCE(reclaim) ? countable() : 0;

	return pages ? pages : SHRINK_EMPTY;
}

/* A unit that is neither free nor a frame's, for the moment, is ours. */
static u64 give_back_unit(struct computron_pool *pool, u32 unit)
{
	u64 bytes = pool->frames.unit_bytes, freed = 0;
	struct computron_run run = {unit, 1};
	struct computron_survey s = {};

	if (computron_memory_present(&pool->memory, unit * bytes, bytes)) {
		computron_memory_unmap(&pool->memory, unit * bytes, bytes);
		computron_memory_survey(&pool->memory, unit * bytes, bytes, true, &s);
		if (!s.pinned && !s.locked) {
			computron_memory_punch(&pool->memory, unit * bytes, bytes);
			freed = s.present;
		}
	}
	spin_lock(&pool->frames.lock);
	computron_units_give(&pool->frames.units, &run);
	computron_pool_settle(pool);
	spin_unlock(&pool->frames.lock);
	return freed;
}

static u64 reclaim_strays(struct computron_pool *pool, u64 want)
{
	struct computron_frames *t = &pool->frames;
	u32 left = min_t(u32, STRAY_UNITS, t->units.count), unit;
	u64 freed = 0;
	bool ours;

	while (freed < want && left--) {
		spin_lock(&t->lock);
		if (stray_bytes(pool) < PAGE_SIZE) {
			spin_unlock(&t->lock);
			break;
		}
		if (pool->stray >= t->units.count)
			pool->stray = 0;
		unit = pool->stray++;
		ours = !t->hot[unit] && computron_units_take_at(&t->units, unit);
		spin_unlock(&t->lock);
		if (ours)
			freed += give_back_unit(pool, unit);
	}
	return freed;
}

static u64 reclaim_pool(struct computron_pool *pool, u64 want)
{
	u64 freed = reclaim_strays(pool, want), more;

	while (freed < want) {
		more = computron_evict_oldest(pool);
		if (!more)
			break;
		freed += more;
	}
	return freed;
}

/* As computron_pool_after; the last reference to a pool is not dropped here. */
static struct computron_pool *next_pool(struct computron_pool *pool)
{
	struct computron_pool *next = computron_pool_at(pool ? pool->serial + 1 : 0);

	if (pool)
		computron_pool_put_later(pool);
	return next;
}

static unsigned long scan_objects(struct shrinker *shrinker, struct shrink_control *sc)
{
	u64 want = (u64)sc->nr_to_scan << PAGE_SHIFT, freed = 0;
	struct computron_pool *pool = NULL;

	/* Whoever may not enter file systems may hold locks of one. */
	if (!(sc->gfp_mask & __GFP_FS) || !READ_ONCE(reclaim) || !mutex_trylock(&reclaiming))
		return SHRINK_STOP;
	while (freed < want && (pool = next_pool(pool))) {
		if (!pool->memory.adopted)
			freed += reclaim_pool(pool, want - freed);
	}
	if (pool)
		computron_pool_put_later(pool);
	mutex_unlock(&reclaiming);
	if (!freed)
		return SHRINK_STOP;
	/* Else reclaim goes on as if nothing had been freed. */
	mm_account_reclaimed_pages(freed >> PAGE_SHIFT);
	/* Enough for now, whatever is left to scan: who still lacks memory comes again. */
	freed >>= PAGE_SHIFT;
	sc->nr_scanned = 2 * (countable() + freed);
	return freed;
}

/* Tells lockdep at once what it would else see when memory is short for the first time. */
static void prime_lockdep(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
	mutex_lock(&reclaiming);
	mutex_unlock(&reclaiming);
	fs_reclaim_release(GFP_KERNEL);
}

static COMPAT_SHRINKER(shrinker);

/**
 * computron_reclaim_init() - the shrinker is registered, last of all
 *
 * Return: 0 or -ENOMEM.
 */
int computron_reclaim_init(void)
{
	prime_lockdep();
	return compat_shrinker_register(&shrinker, count_objects, scan_objects,
					max(reclaim_batch >> PAGE_SHIFT, 1U));
}

/**
 * computron_reclaim_exit() - and is the first to go
 */
void computron_reclaim_exit(void)
{
	compat_shrinker_unregister(&shrinker);
}
