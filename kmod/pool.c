// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Pools. See pool.h.
 */
#include <linux/atomic.h>
#include <linux/capability.h>
#include <linux/module.h>
#include <linux/nodemask.h>
#include <linux/sched/signal.h>

#include "evict.h"
#include "pool.h"
#include "sysfs.h"
#include "tend.h"

DEFINE_MUTEX(computron_pools_mutex); /* see pool.h */
DEFINE_SPINLOCK(computron_pools_lock);
LIST_HEAD(computron_pools);
struct workqueue_struct *computron_wq;

static unsigned long max_bytes;
module_param(max_bytes, ulong, 0644);
MODULE_PARM_DESC(max_bytes, "limit of the sizes of all pools but adopted ones; 0: 3/4 of memory");

static unsigned int max_pools = 64;
module_param(max_pools, uint, 0644);
MODULE_PARM_DESC(max_pools, "how many pools there can be");

/* Of all pools whose memory is not freed yet. */
static atomic64_t total_bytes;
static atomic_t total_pools;
static u64 last_serial; /* computron_pools_lock */

/**
 * computron_pools_limit() - the limit of the sizes of all pools together
 *
 * Return: bytes.
 */
u64 computron_pools_limit(void)
{
	u64 limit = READ_ONCE(max_bytes);

	return limit ? limit : ((u64)totalram_pages() << PAGE_SHIFT) / 4 * 3;
}

static int try_charge(u64 bytes)
{
	if (atomic_inc_return(&total_pools) > READ_ONCE(max_pools))
		goto err_pools;
	if (atomic64_add_return(bytes, &total_bytes) > computron_pools_limit())
		goto err_bytes;
	return 0;

err_bytes:
	atomic64_sub(bytes, &total_bytes);
err_pools:
	atomic_dec(&total_pools);
	return -ENOSPC;
}

static void uncharge(u64 bytes)
{
	atomic64_sub(bytes, &total_bytes);
	atomic_dec(&total_pools);
}

/* Pools without references whose memory is mapped still: they are charged until it is not. */
static DEFINE_MUTEX(lingering_mutex);
static LIST_HEAD(lingering);

/* Returns whether there was one that nobody maps any more, or @all of them were freed. */
static bool end_lingering(bool all)
{
	struct computron_pool *pool, *next;
	bool any = false;

	mutex_lock(&lingering_mutex);
	list_for_each_entry_safe(pool, next, &lingering, listed) {
		if (!all && computron_memory_in_use(&pool->memory))
			continue;
		list_del(&pool->listed);
		computron_memory_close(&pool->memory);
		uncharge(pool->bytes);
		kfree(pool);
		any = true;
	}
	mutex_unlock(&lingering_mutex);
	return any;
}

static int charge(u64 bytes)
{
	int rc;

	do {
		rc = try_charge(bytes);
	} while (rc && end_lingering(false));
	return rc;
}

/**
 * computron_pools_count() - all pools together
 * @pools: how many have a name
 * @bytes: sizes, adopted ones apart, of these and of those that are still in use without one
 */
void computron_pools_count(u32 *pools, u64 *bytes)
{
	struct computron_pool *pool;

	end_lingering(false);
	*pools = 0;
	spin_lock(&computron_pools_lock);
	list_for_each_entry(pool, &computron_pools, listed)
		++*pools;
	spin_unlock(&computron_pools_lock);
	*bytes = atomic64_read(&total_bytes);
}

static bool name_is_good(const char *name)
{
	size_t len = strnlen(name, COMPUTRON_NAME_BYTES);

	return len && len < COMPUTRON_NAME_BYTES && name[0] != '.' &&
	       strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
		       len;
}

static void end_pool(struct computron_pool *pool)
{
	computron_tend_stop(pool);
	computron_frames_fini(&pool->frames);
	kvfree(pool->events);
	if (computron_memory_let_go(&pool->memory)) {
		mutex_lock(&lingering_mutex);
		list_add_tail(&pool->listed, &lingering);
		mutex_unlock(&lingering_mutex);
		return;
	}
	computron_memory_close(&pool->memory);
	uncharge(pool->memory.adopted ? 0 : pool->bytes);
	kfree(pool);
}

static void end_work(struct work_struct *work)
{
	end_pool(container_of(work, struct computron_pool, end));
}

static void last_put(struct kref *refs)
{
	end_pool(container_of(refs, struct computron_pool, refs));
}

static void last_put_later(struct kref *refs)
{
	struct computron_pool *pool = container_of(refs, struct computron_pool, refs);

	queue_work(computron_wq, &pool->end);
}

/**
 * computron_pool_get() - one more reference
 * @pool: the pool
 */
void computron_pool_get(struct computron_pool *pool)
{
	kref_get(&pool->refs);
}

/**
 * computron_pool_put() - one reference less
 * @pool: the pool; when this was the last its memory is free, as soon as nobody maps it
 *
 * Context: process, may sleep.
 */
void computron_pool_put(struct computron_pool *pool)
{
	kref_put(&pool->refs, last_put);
}

/**
 * computron_pool_put_later() - one reference less, and nothing else for now
 * @pool: the pool
 *
 * Context: reclaim, and the pool's own work.
 */
void computron_pool_put_later(struct computron_pool *pool)
{
	kref_put(&pool->refs, last_put_later);
}

static int check_wish(const struct computron_pool_wish *wish, u64 unit)
{
	if (!name_is_good(wish->name))
		return -EINVAL;
	if (wish->node < -1 ||
	    (wish->node >= 0 && !(wish->node < MAX_NUMNODES && node_online(wish->node))))
		return -ENXIO;
	/* Units are counted in 32 bits, and their sum with room to spare. */
	if (wish->bytes < unit || div64_u64(wish->bytes, unit) > S32_MAX ||
	    wish->quota > wish->bytes || (wish->segment_bytes & (unit - 1)))
		return -EINVAL;
	return 0;
}

static int open_memory(struct computron_pool *pool, struct computron_pool_wish *wish)
{
	u64 unit = computron_memory_unit();
	int rc;

	if (wish->memfd >= 0) {
		rc = computron_memory_adopt(&pool->memory, wish->memfd, &wish->bytes);
		if (rc)
			return rc;
		rc = check_wish(wish, pool->memory.unit_bytes);
		/* It may be longer than it could ever be filled, and the table of its units too. */
		if (!rc && wish->bytes > (u64)totalram_pages() << PAGE_SHIFT)
			rc = -ENOSPC;
		if (!rc)
			rc = charge(0);
		if (rc)
			computron_memory_close(&pool->memory);
		return rc;
	}
	wish->bytes = round_down(wish->bytes, unit);
	rc = check_wish(wish, unit);
	if (!rc)
		rc = charge(wish->bytes);
	if (rc)
		return rc;
	rc = computron_memory_open(&pool->memory, wish->bytes, wish->node);
	if (rc)
		uncharge(wish->bytes);
	return rc;
}

/**
 * computron_pool_new() - a pool that nobody knows yet
 * @wish: how it should be
 *
 * Context: process, may sleep.
 * Return: the pool, with one reference, or an error pointer.
 */
struct computron_pool *computron_pool_new(const struct computron_pool_wish *wish)
{
	struct computron_pool_wish w = *wish;
	struct computron_pool *pool;
	u64 unit;
	int rc;

	pool = kzalloc(sizeof(*pool), GFP_KERNEL_ACCOUNT);
	if (!pool)
		return ERR_PTR(-ENOMEM);
	rc = open_memory(pool, &w);
	if (rc)
		goto err_free;
	unit = pool->memory.unit_bytes;
	rc = computron_frames_init(&pool->frames, unit, div64_u64(w.bytes, unit),
				   min_t(u64, div64_u64(w.segment_bytes, unit), S32_MAX));
	if (rc)
		goto err_memory;
	rc = -ENOMEM;
	pool->events = computron_events_new();
	if (!pool->events)
		goto err_frames;

	strscpy(pool->name, w.name, sizeof(pool->name));
	pool->uid = current_euid();
	pool->node = w.node;
	pool->bytes = w.bytes;
	pool->segment_bytes = w.segment_bytes;
	if (w.quota)
		pool->frames.quota = div64_u64(w.quota, unit);
	pool->frames.floor = DIV64_U64_ROUND_UP(min(w.floor, w.bytes), unit);
	kref_init(&pool->refs);
	INIT_LIST_HEAD(&pool->listed);
	init_waitqueue_head(&pool->changed);
	INIT_WORK(&pool->end, end_work);
	computron_tend_init(pool);
	return pool;

err_frames:
	computron_frames_fini(&pool->frames);
err_memory:
	computron_memory_close(&pool->memory);
	uncharge(pool->memory.adopted ? 0 : w.bytes);
err_free:
	kfree(pool);
	return ERR_PTR(rc);
}

static struct computron_pool *find(const char *name)
{
	struct computron_pool *pool;

	lockdep_assert_held(&computron_pools_lock);
	list_for_each_entry(pool, &computron_pools, listed) {
		if (!strcmp(pool->name, name))
			return pool;
	}
	return NULL;
}

/**
 * computron_pool_publish() - from now on the pool is found by its name
 * @pool: from computron_pool_new; the list takes a reference
 *
 * Return: 0, -EEXIST or -ENOMEM.
 */
int computron_pool_publish(struct computron_pool *pool)
{
	int rc;

	mutex_lock(&computron_pools_mutex);
	spin_lock(&computron_pools_lock);
	rc = find(pool->name) ? -EEXIST : 0;
	spin_unlock(&computron_pools_lock);
	if (!rc)
		rc = computron_sysfs_add(pool);
	if (!rc) {
		computron_pool_get(pool);
		spin_lock(&computron_pools_lock);
		pool->serial = ++last_serial;
		list_add_tail(&pool->listed, &computron_pools);
		spin_unlock(&computron_pools_lock);
	}
	mutex_unlock(&computron_pools_mutex);
	return rc;
}

/**
 * computron_pool_find() - a pool by its name
 * @name: ends with a 0
 *
 * Return: the pool, with a reference, or NULL.
 */
struct computron_pool *computron_pool_find(const char *name)
{
	struct computron_pool *pool;

	spin_lock(&computron_pools_lock);
	pool = find(name);
	if (pool)
		computron_pool_get(pool);
	spin_unlock(&computron_pools_lock);
	return pool;
}

/**
 * computron_pool_at() - a walk over the pools by their serials
 * @serial: the least one
 *
 * Return: the first pool from there on, with a reference, or NULL.
 */
struct computron_pool *computron_pool_at(u64 serial)
{
	struct computron_pool *found = NULL, *pool;

	spin_lock(&computron_pools_lock);
	list_for_each_entry(pool, &computron_pools, listed) {
		if (pool->serial >= serial) {
			found = pool;
			computron_pool_get(found);
			break;
		}
	}
	spin_unlock(&computron_pools_lock);
	return found;
}

/**
 * computron_pool_after() - a walk over the pools
 * @pool: where it is, of which the reference is dropped; NULL at first
 *
 * Return: the next one, with a reference, or NULL.
 */
struct computron_pool *computron_pool_after(struct computron_pool *pool)
{
	struct computron_pool *next = computron_pool_at(pool ? pool->serial + 1 : 0);

	if (pool)
		computron_pool_put(pool);
	return next;
}

/**
 * computron_pool_may_write() - the rule for writers
 * @pool: the pool
 *
 * Return: whether the current process may alloc, seal, evict and destroy.
 */
bool computron_pool_may_write(const struct computron_pool *pool)
{
	return uid_eq(current_euid(), pool->uid) || capable(CAP_SYS_ADMIN);
}

/* Called with the mutex held; drops the list's reference. */
static void unlist(struct computron_pool *pool)
{
	lockdep_assert_held(&computron_pools_mutex);
	spin_lock(&computron_pools_lock);
	list_del_init(&pool->listed);
	spin_unlock(&computron_pools_lock);
	computron_sysfs_remove(pool);
	computron_pool_put(pool);
}

static int mark_dead(struct computron_pool *pool, bool open)
{
	static const struct computron_ref none;
	struct computron_frames *t = &pool->frames;

	spin_lock(&t->lock);
	if (pool->files && !open) {
		spin_unlock(&t->lock);
		return -EBUSY;
	}
	pool->dead = true;
	computron_events_push(pool->events, COMPUTRON_EVENT_DESTROYED, &none, 0, 0);
	spin_unlock(&t->lock);
	return 0;
}

/**
 * computron_pool_destroy() - ends a pool
 * @name: ends with a 0
 * @open: also when it is open
 *
 * Context: process, may sleep.
 * Return: 0, -ENOENT, -EACCES, -EBUSY.
 */
int computron_pool_destroy(const char *name, bool open)
{
	struct computron_pool *pool;
	int rc;

	mutex_lock(&computron_pools_mutex);
	pool = computron_pool_find(name);
	if (!pool) {
		mutex_unlock(&computron_pools_mutex);
		return -ENOENT;
	}
	rc = computron_pool_may_write(pool) ? mark_dead(pool, open) : -EACCES;
	if (!rc)
		unlist(pool);
	mutex_unlock(&computron_pools_mutex);
	if (!rc)
		computron_evict_all(pool);
	computron_pool_put(pool);
	return rc;
}

/**
 * computron_pool_unlock() - gives up the lock of the frames
 * @pool: the pool
 */
void computron_pool_unlock(struct computron_pool *pool) __releases(&pool->frames.lock)
{
	spin_unlock(&pool->frames.lock);
}

/**
 * computron_pool_settle() - a frame is not GOING any more
 * @pool: the pool
 *
 * Context: the lock of the frames is held.
 */
void computron_pool_settle(struct computron_pool *pool)
{
	lockdep_assert_held(&pool->frames.lock);
	pool->settled++;
	wake_up_all(&pool->changed);
}

/**
 * computron_pool_wait() - until the next frame is not GOING any more
 * @pool: the pool
 * @settled: what pool->settled was when the lock was held
 *
 * Return: 0 or -EINTR when the process is being killed.
 */
int computron_pool_wait(struct computron_pool *pool, u64 settled)
{
	return wait_event_killable(pool->changed, READ_ONCE(pool->settled) != settled) ? -EINTR : 0;
}

/**
 * computron_pool_lock_frame() - takes the lock of the frames and finds one
 * @pool: the pool
 * @ref: its name
 * @f: set to it, in any state but GOING
 *
 * Waits for a GOING frame to become something else. The lock is held afterwards in any case.
 *
 * Return: 0, -ESTALE or -EINTR.
 */
int computron_pool_lock_frame(struct computron_pool *pool, const struct computron_ref *ref,
			      struct computron_frame **f) __acquires(&pool->frames.lock)
{
	u64 settled;
	int rc;

	spin_lock(&pool->frames.lock);
	while ((rc = computron_frames_find(&pool->frames, ref, f)) == -EAGAIN) {
		settled = pool->settled;
		spin_unlock(&pool->frames.lock);
		rc = computron_pool_wait(pool, settled);
		spin_lock(&pool->frames.lock);
		if (rc)
			break;
	}
	return rc;
}

/**
 * computron_pools_init() - before the first pool
 *
 * Return: 0 or -ENOMEM.
 */
int computron_pools_init(void)
{
	computron_wq = alloc_workqueue("computron", WQ_UNBOUND, 0);
	return computron_wq ? 0 : -ENOMEM;
}

/**
 * computron_pools_end() - ends all pools; no file is open any more
 *
 * Who reads totals in sysfs may have references still.
 */
void computron_pools_end(void)
{
	struct computron_pool *pool, *next;

	mutex_lock(&computron_pools_mutex);
	list_for_each_entry_safe(pool, next, &computron_pools, listed)
		unlist(pool);
	mutex_unlock(&computron_pools_mutex);
}

/**
 * computron_pools_exit() - after the last pool
 */
void computron_pools_exit(void)
{
	destroy_workqueue(computron_wq);
	end_lingering(true);
}
