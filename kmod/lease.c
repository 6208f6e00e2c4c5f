// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * What one file holds in its pool: leases and hot ranges. Counted here for each file, so that
 * exactly these end with it.
 */
#include <linux/slab.h>

#include "evict.h"
#include "file.h"
#include "order.h"
#include "trace.h"

static u64 leases_of(struct computron_file *file, u64 id)
{
	void *entry = xa_load(&file->leases, id);

	lockdep_assert_held(&file->lock);
	return entry ? xa_to_value(entry) : 0;
}

/* Only growing from 0 can fail. */
static int set_leases(struct computron_file *file, u64 id, u64 count)
{
	lockdep_assert_held(&file->lock);
	if (!count) {
		xa_erase(&file->leases, id);
		return 0;
	}
	return xa_err(xa_store(&file->leases, id, xa_mk_value(count), GFP_KERNEL_ACCOUNT));
}

/**
 * computron_file_lease_begin() - a lease is entered, which may or may not come to be
 * @file: whose
 * @id: of the frame
 *
 * Context: process, may sleep. The file's lock is held afterwards, when it returns 0.
 * Return: 0 or -ENOMEM.
 */
int computron_file_lease_begin(struct computron_file *file, u64 id)
{
	int rc;

	mutex_lock(&file->lock);
	rc = set_leases(file, id, leases_of(file, id) + 1);
	if (rc)
		mutex_unlock(&file->lock);
	return rc;
}

/**
 * computron_file_lease_end() - and here it is known
 * @file: whose
 * @id: of the frame
 * @made: the frame was leased
 */
void computron_file_lease_end(struct computron_file *file, u64 id, bool made)
{
	if (!made)
		set_leases(file, id, leases_of(file, id) - 1);
	mutex_unlock(&file->lock);
}

/**
 * computron_file_lease() - one more lease
 * @file: whose
 * @ref: the frame
 *
 * Context: process, may sleep.
 * Return: 0, -ESTALE, -EBUSY, -ENODEV, -EOVERFLOW, -ENOMEM, -EINTR.
 */
int computron_file_lease(struct computron_file *file, const struct computron_ref *ref)
{
	struct computron_pool *pool = file->pool;
	struct computron_frame *f;
	int rc;

	if (ref->id >= pool->frames.units.count)
		return -ESTALE;
	rc = computron_file_lease_begin(file, ref->id);
	if (rc)
		return rc;
	rc = computron_pool_lock_frame(pool, ref, &f);
	if (!rc && pool->dead)
		rc = -ENODEV;
	if (!rc)
		rc = computron_frame_lease(&pool->frames, f);
	if (!rc)
		trace_computron_lease(pool->name, ref, f->units * pool->frames.unit_bytes,
				      f->leases);
	computron_pool_unlock(pool);
	computron_file_lease_end(file, ref->id, !rc);
	return rc;
}

/**
 * computron_file_has_lease() - whether it has a lease
 * @file: whose
 * @id: of the frame
 *
 * Return: true when it has one or more.
 */
bool computron_file_has_lease(struct computron_file *file, u64 id)
{
	bool has;

	mutex_lock(&file->lock);
	has = leases_of(file, id);
	mutex_unlock(&file->lock);
	return has;
}

/**
 * computron_file_release() - one lease less
 * @file: whose
 * @ref: the frame
 *
 * Context: process, may sleep.
 * Return: 0, -ESTALE, -EINVAL: it has none, -EINTR.
 */
int computron_file_release(struct computron_file *file, const struct computron_ref *ref)
{
	struct computron_pool *pool = file->pool;
	struct computron_frame *f;
	bool last = false;
	u64 had;
	int rc;

	mutex_lock(&file->lock);
	had = leases_of(file, ref->id);
	rc = computron_pool_lock_frame(pool, ref, &f);
	if (!rc && !had)
		rc = -EINVAL;
	if (!rc) {
		computron_frame_release(&pool->frames, f, 1);
		last = pool->dead && !f->leases;
	}
	computron_pool_unlock(pool);
	if (!rc)
		set_leases(file, ref->id, had - 1);
	mutex_unlock(&file->lock);
	if (last)
		computron_evict_all(pool);
	return rc;
}

static int hot_on(struct computron_file *file, u32 first, u32 count)
{
	struct computron_pool *pool = file->pool;
	u64 settled;
	int rc;

	if (!file->hot) {
		file->hot = kvcalloc(BITS_TO_LONGS(pool->frames.units.count), sizeof(long),
				     GFP_KERNEL_ACCOUNT);
		if (!file->hot)
			return -ENOMEM;
	}
	if (find_next_bit(file->hot, first + count, first) < first + count)
		return -EINVAL;
	do {
		spin_lock(&pool->frames.lock);
		rc = computron_hot_on(&pool->frames, first, count);
		settled = pool->settled;
		spin_unlock(&pool->frames.lock);
		if (rc == -EAGAIN && computron_pool_wait(pool, settled))
			rc = -EINTR;
	} while (rc == -EAGAIN);
	if (!rc)
		bitmap_set(file->hot, first, count);
	return rc;
}

static int hot_off(struct computron_file *file, u32 first, u32 count)
{
	struct computron_pool *pool = file->pool;

	if (!file->hot || find_next_zero_bit(file->hot, first + count, first) < first + count)
		return -EINVAL;
	spin_lock(&pool->frames.lock);
	computron_hot_off(&pool->frames, first, count);
	spin_unlock(&pool->frames.lock);
	bitmap_clear(file->hot, first, count);
	return 0;
}

/**
 * computron_file_hot() - a range becomes hot, or not any more
 * @file: a writer
 * @offset: of the range, in whole units
 * @bytes: of it, likewise
 * @on: it becomes hot
 *
 * Context: process, may sleep.
 * Return: 0, -EINVAL, -EBUSY, -EOVERFLOW, -ENOMEM, -EINTR.
 */
int computron_file_hot(struct computron_file *file, u64 offset, u64 bytes, bool on)
{
	u64 unit = file->pool->frames.unit_bytes;
	u32 first, count;
	int rc;

	if (!bytes || bytes > file->pool->bytes || offset > file->pool->bytes - bytes ||
	    ((offset | bytes) & (unit - 1)))
		return -EINVAL;
	first = div64_u64(offset, unit);
	count = div64_u64(bytes, unit);
	mutex_lock(&file->lock);
	rc = on ? hot_on(file, first, count) : hot_off(file, first, count);
	mutex_unlock(&file->lock);
	return rc;
}

/**
 * computron_file_drop_all() - the file ends: so do its leases and hot ranges
 * @file: a file that nobody uses any more
 */
void computron_file_drop_all(struct computron_file *file)
{
	struct computron_pool *pool = file->pool;
	struct computron_frames *t = &pool->frames;
	unsigned long id;
	void *entry;
	u32 unit;
	bool dead;

	xa_for_each(&file->leases, id, entry) {
		spin_lock(&t->lock);
		computron_frame_release(t, t->by_unit[id], xa_to_value(entry));
		spin_unlock(&t->lock);
		cond_resched();
	}
	xa_destroy(&file->leases);
	spin_lock(&t->lock);
	if (file->hot) {
		for (unit = find_next_bit(file->hot, t->units.count, 0); unit < t->units.count;
		     unit = find_next_bit(file->hot, t->units.count, unit + 1))
			computron_hot_off(t, unit, 1);
	}
	dead = pool->dead;
	spin_unlock(&t->lock);
	if (dead)
		computron_evict_all(pool);
}
