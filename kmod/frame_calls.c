// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Calls on frames.
 */
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "evict.h"
#include "export.h"
#include "trace.h"

/* Runs of a frame: most have few. */
#define FIRST_ROOM 4
/* Rows and extents that are copied at a time. */
#define ROWS    16
#define EXTENTS 16

/* A frame of this file, LOADING and not busy. The lock is held afterwards in any case. */
static int lock_loading(struct computron_file *file, const struct computron_ref *ref,
			struct computron_frame **f) __acquires(&file->pool->frames.lock)
{
	int rc = computron_pool_lock_frame(file->pool, ref, f);

	if (rc)
		return rc;
	if ((*f)->state != COMPUTRON_FRAME_LOADING)
		return -EINVAL;
	if ((*f)->owner != file)
		return -EPERM;
	return (*f)->busy ? -EBUSY : 0;
}

/* Counts the pages of a frame that is busy for us. */
static void survey(struct computron_pool *pool, const struct computron_frame *f,
		   struct computron_survey *s)
{
	u64 unit = pool->frames.unit_bytes;
	u32 i;

	memset(s, 0, sizeof(*s));
	for (i = 0; i < f->nr_runs; i++)
		computron_memory_survey(&pool->memory, f->runs[i].first * unit,
					f->runs[i].count * unit, false, s);
}

/*
 * Gives memory to a frame that is busy for us. It is not busy afterwards, so that other threads may
 * have done away with it; without memory and with @drop it has departed.
 */
static int populate(struct computron_pool *pool, struct computron_frame *f, bool drop, u64 *huge)
{
	struct computron_frames *t = &pool->frames;
	u64 unit = t->unit_bytes;
	struct computron_survey s;
	int rc = 0;
	u32 i;

	for (i = 0; !rc && i < f->nr_runs; i++)
		rc = computron_memory_populate(&pool->memory, f->runs[i].first * unit,
					       f->runs[i].count * unit, pool->node);
	survey(pool, f, &s);
	*huge = s.huge;
	spin_lock(&t->lock);
	computron_frame_counted(t, f, s.huge);
	f->populated = !rc;
	f->busy = false;
	if (rc && drop)
		computron_frame_depart(t, f);
	spin_unlock(&t->lock);
	if (rc && drop)
		computron_abandon(pool, f, true);
	return rc;
}

/* Enters a new frame, with as much room for runs as it takes. */
static int enter(struct computron_file *file, const struct computron_frame_alloc *alloc, u32 units,
		 bool busy, struct computron_ref *ref, struct computron_frame **entered)
{
	struct computron_pool *pool = file->pool;
	struct computron_frame *f;
	u32 room = FIRST_ROOM;
	u64 settled;
	int rc;

	for (;;) {
		f = computron_frame_new(alloc->key, alloc->bytes, units, room);
		if (!f)
			return -ENOMEM;
		f->busy = busy;
		spin_lock(&pool->frames.lock);
		rc = pool->dead
			     ? -ENODEV
			     : computron_frames_enter(&pool->frames, f, file, &file->loading, ref);
		settled = pool->settled;
		if (!rc)
			trace_computron_alloc(pool->name, ref, units * pool->frames.unit_bytes, -1);
		spin_unlock(&pool->frames.lock);
		if (!rc)
			break;
		computron_frame_free(f);
		if (rc == -ENOBUFS)
			room = min(room * 4, units);
		else if (rc == -EAGAIN)
			rc = computron_pool_wait(pool, settled);
		if (rc && rc != -ENOBUFS)
			return rc;
	}
	*entered = f;
	return 0;
}

int computron_call_alloc(struct computron_call *call, void *arg)
{
	struct computron_pool *pool = call->file->pool;
	struct computron_frame_alloc *alloc = arg;
	u64 unit = pool->frames.unit_bytes;
	bool reserve = alloc->flags & COMPUTRON_ALLOC_RESERVE;
	struct computron_frame *f;
	u32 units;
	int rc;

	if (!alloc->bytes || alloc->reserved)
		return -EINVAL;
	if (alloc->bytes > pool->bytes)
		return -EFBIG;
	units = DIV64_U64_ROUND_UP(alloc->bytes, unit);
	alloc->charged = units * unit;
	alloc->huge_bytes = 0;
	alloc->extents = 0;
	/* A frame that is not busy may be gone before we look at it again. */
	rc = enter(call->file, alloc, units, true, &alloc->ref, &f);
	if (rc)
		return rc;
	computron_scrub(pool, f);
	alloc->extents = f->nr_runs;
	if (reserve) {
		spin_lock(&pool->frames.lock);
		f->busy = false;
		spin_unlock(&pool->frames.lock);
		return 0;
	}
	return populate(pool, f, true, &alloc->huge_bytes);
}

int computron_call_populate(struct computron_call *call, void *arg)
{
	struct computron_frame_populate *wish = arg;
	struct computron_pool *pool = call->file->pool;
	struct computron_frame *f;
	int rc = lock_loading(call->file, &wish->ref, &f);

	if (!rc)
		f->busy = true;
	computron_pool_unlock(pool);
	return rc ? rc : populate(pool, f, false, &wish->huge_bytes);
}

int computron_call_seal(struct computron_call *call, void *arg)
{
	struct computron_frame_seal *seal = arg;
	struct computron_file *file = call->file;
	struct computron_pool *pool = file->pool;
	struct computron_frames *t = &pool->frames;
	bool lease = seal->flags & COMPUTRON_SEAL_LEASE;
	struct computron_survey s;
	struct computron_frame *f;
	int rc;

	if (!(seal->flags & COMPUTRON_SEAL_DIGEST) &&
	    memchr_inv(seal->digest, 0, sizeof(seal->digest)))
		return -EINVAL;
	rc = lock_loading(file, &seal->ref, &f);
	if (!rc)
		f->busy = true;
	computron_pool_unlock(pool);
	if (rc)
		return rc;
	survey(pool, f, &s);
	if (s.present < f->units * t->unit_bytes)
		rc = -EINVAL;
	else if (lease)
		rc = computron_file_lease_begin(file, seal->ref.id);

	seal->huge_bytes = s.huge;
	spin_lock(&t->lock);
	f->busy = false;
	computron_frame_counted(t, f, s.huge);
	if (!rc) {
		computron_frame_seal(t, f,
				     seal->flags & COMPUTRON_SEAL_DIGEST ? seal->digest : NULL,
				     seal->owner);
		if (lease)
			WARN_ON_ONCE(computron_frame_lease(t, f));
		trace_computron_seal(pool->name, &seal->ref, f->units * t->unit_bytes, s.huge);
	}
	spin_unlock(&t->lock);
	if (!rc && lease)
		computron_file_lease_end(file, seal->ref.id, true);
	return rc;
}

int computron_call_abort(struct computron_call *call, void *arg)
{
	struct computron_pool *pool = call->file->pool;
	struct computron_frame_op *op = arg;
	struct computron_frame *f;
	int rc = lock_loading(call->file, &op->ref, &f);

	if (!rc)
		computron_frame_depart(&pool->frames, f);
	computron_pool_unlock(pool);
	if (!rc)
		computron_abandon(pool, f, true);
	return rc;
}

/* The frame that is looked for, or an error. -EAGAIN: it is GOING. */
static int look_up(struct computron_frames *t, const struct computron_frame_lookup *lookup,
		   struct computron_frame **f)
{
	lockdep_assert_held(&t->lock);
	if (lookup->flags == COMPUTRON_LOOKUP_REF)
		return computron_frames_find(t, &lookup->info.ref, f);
	if (lookup->flags == COMPUTRON_LOOKUP_CONTENT)
		*f = computron_frames_by_content(t, lookup->info.digest, lookup->info.owner);
	else
		*f = computron_frames_by_key(t, lookup->info.key);
	if (!*f)
		return -ENOENT;
	return (*f)->state == COMPUTRON_FRAME_GOING ? -EAGAIN : 0;
}

int computron_call_lookup(struct computron_call *call, void *arg)
{
	struct computron_pool *pool = call->file->pool;
	struct computron_frame_lookup *lookup = arg;
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;
	u64 settled;
	int rc;

	if (lookup->flags == (COMPUTRON_LOOKUP_REF | COMPUTRON_LOOKUP_CONTENT))
		return -EINVAL;
	do {
		spin_lock(&t->lock);
		rc = look_up(t, lookup, &f);
		if (!rc)
			computron_frame_describe(t, f, call->file, &lookup->info);
		settled = pool->settled;
		spin_unlock(&t->lock);
		if (rc == -EAGAIN && computron_pool_wait(pool, settled))
			rc = -EINTR;
	} while (rc == -EAGAIN);
	return rc;
}

/* Up to @max rows from unit *@next on, which moves on. */
static u32 gather(struct computron_file *file, u64 *next, struct computron_frame_info *rows,
		  u32 max)
{
	struct computron_frames *t = &file->pool->frames;
	struct computron_frame *f;
	u32 n = 0;

	spin_lock(&t->lock);
	while (n < max && *next < t->units.count) {
		f = computron_frames_next(t, *next);
		if (!f)
			break;
		computron_frame_describe(t, f, file, &rows[n++]);
		*next = f->ref.id + 1;
	}
	if (n < max)
		*next = ~0ULL;
	spin_unlock(&t->lock);
	return n;
}

int computron_call_list(struct computron_call *call, void *arg)
{
	struct computron_frame_list *list = arg;
	struct computron_frame_info *rows;
	u32 done = 0, n, i;
	int rc = 0;

	rows = kcalloc(ROWS, sizeof(*rows), GFP_KERNEL);
	if (!rows)
		return -ENOMEM;
	while (!rc && done < list->count && list->next != ~0ULL) {
		n = gather(call->file, &list->next, rows, min_t(u32, ROWS, list->count - done));
		for (i = 0; !rc && i < n; i++)
			rc = computron_call_row(list->frames, done++, list->row_bytes, &rows[i],
						sizeof(rows[i]));
		if (fatal_signal_pending(current))
			rc = -EINTR;
		cond_resched();
	}
	kfree(rows);
	list->count = done;
	list->total = READ_ONCE(call->file->pool->frames.n.frames);
	return rc;
}

int computron_call_extents(struct computron_call *call, void *arg)
{
	struct computron_frame_extents *wish = arg;
	struct computron_pool *pool = call->file->pool;
	struct computron_extent __user *to = u64_to_user_ptr(wish->extents);
	u64 unit = pool->frames.unit_bytes;
	struct computron_extent some[EXTENTS];
	struct computron_frame *f;
	u32 done = 0, n, i;
	int rc;

	do {
		n = 0;
		rc = computron_pool_lock_frame(pool, &wish->ref, &f);
		if (!rc) {
			wish->total = f->nr_runs;
			n = min3(wish->count - done, wish->total - done, (u32)EXTENTS);
			for (i = 0; i < n; i++) {
				some[i].offset = f->runs[done + i].first * unit;
				some[i].bytes = f->runs[done + i].count * unit;
			}
		}
		computron_pool_unlock(pool);
		if (!rc && n && copy_to_user(to + done, some, n * sizeof(some[0])))
			rc = -EFAULT;
		done += n;
	} while (!rc && n == EXTENTS);
	wish->count = done;
	return rc;
}

int computron_call_lease(struct computron_call *call, void *arg)
{
	struct computron_frame_op *op = arg;

	return computron_file_lease(call->file, &op->ref);
}

int computron_call_release(struct computron_call *call, void *arg)
{
	struct computron_frame_op *op = arg;

	return computron_file_release(call->file, &op->ref);
}

int computron_call_evict(struct computron_call *call, void *arg)
{
	struct computron_frame_op *op = arg;

	return computron_evict(call->file->pool, &op->ref, call->file->number);
}

int computron_call_export(struct computron_call *call, void *arg)
{
	struct computron_frame_export *export = arg;
	struct computron_frame *f;
	int rc;

	if (export->reserved)
		return -EINVAL;
	rc = computron_pool_lock_frame(call->file->pool, &export->ref, &f);
	computron_pool_unlock(call->file->pool);
	if (rc)
		return rc;
	if (!computron_file_has_lease(call->file, export->ref.id))
		return -EPERM;
	rc = computron_call_give(
		call, computron_export(call->file->pool, &export->ref, call->file->writer));
	export->fd = call->fd;
	return rc;
}
