// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The counts of a pool, for the ioctl, sysfs and procfs.
 */
#include <linux/sched.h>

#include "order.h"
#include "pool.h"

/* Looks at the memory of every unit that belongs to a frame, as it is now. */
static void survey(struct computron_pool *pool, struct computron_pool_stat *stat)
{
	struct computron_frames *t = &pool->frames;
	struct computron_survey s;
	u32 unit;
	bool framed;

	stat->huge = 0;
	stat->pinned = 0;
	for (unit = 0; unit < t->units.count; unit++) {
		spin_lock(&t->lock);
		framed = t->by_unit[unit];
		spin_unlock(&t->lock);
		if (!framed)
			continue;
		memset(&s, 0, sizeof(s));
		computron_memory_survey(&pool->memory, unit * t->unit_bytes, t->unit_bytes, false,
					&s);
		stat->huge += s.huge;
		if (s.pinned)
			stat->pinned += t->unit_bytes;
		if (fatal_signal_pending(current))
			return;
	}
}

/**
 * computron_pool_stat() - fills in the counts
 * @pool: the pool
 * @look: whether to look at every page
 * @stat: to be filled, but for size and flags
 *
 * Context: process; sleeps when it looks.
 */
void computron_pool_stat(struct computron_pool *pool, bool look, struct computron_pool_stat *stat)
{
	struct computron_frames *t = &pool->frames;
	u64 unit = t->unit_bytes;

	spin_lock(&t->lock);
	stat->unit_bytes = unit;
	stat->bytes = pool->bytes;
	stat->quota = t->quota * unit;
	stat->floor = t->floor * unit;
	stat->loading = t->n.loading * unit;
	stat->clean = t->n.clean * unit;
	stat->quarantined = t->n.quarantined * unit;
	stat->used = stat->loading + stat->clean + stat->quarantined;
	stat->leased = t->n.leased * unit;
	stat->reclaimable = pool->memory.adopted ? 0 : computron_order_reclaimable(t) * unit;
	stat->hot = t->n.hot * unit;
	stat->populated = computron_memory_populated(&pool->memory);
	stat->huge = t->n.huge_bytes;
	stat->pinned = ((u64)t->n.held + t->n.quarantined) * unit;
	stat->frames = t->n.frames;
	stat->files = pool->files;
	stat->allocs = t->n.allocs;
	stat->seals = t->n.seals;
	stat->evictions = t->n.evictions;
	stat->evicted_bytes = t->n.evicted * unit;
	stat->reclaims = t->n.reclaims;
	stat->reclaimed_bytes = t->n.reclaimed * unit;
	stat->refused = t->n.refused;
	stat->node = pool->node;
	stat->reserved = 0;
	spin_unlock(&t->lock);
	if (look)
		survey(pool, stat);
}
