/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Pools: made, found by name, listed, ended; and what every part of the module needs of one.
 *
 * Locks, outermost first:
 *   computron_pools_mutex   making and ending pools; sleeps
 *   file->lock              what one file holds (leases, hot ranges); sleeps
 *   lingering_mutex         pools that ended and are mapped still (pool.c); sleeps
 *   computron_pools_lock    the list of pools; spins
 *   pool->frames.lock       frames and events of one pool; spins
 * Memory is populated, surveyed and given back with none of the last two held. User memory is
 * touched with no lock held, so that all of them may be taken inside mmap_lock. Reclaim takes only
 * the last two, which nobody holds while he allocates.
 */
#ifndef COMPUTRON_POOL_H
#define COMPUTRON_POOL_H

#include <linux/cred.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/uidgid.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "events.h"
#include "frames.h"
#include "memory.h"

struct computron_sysfs_pool;

/**
 * struct computron_pool - a pool
 * @refs: of the list, of files, of dma-bufs, of QUARANTINED frames
 * @listed: on the list of pools; computron_pools_lock. Without references: lingering (pool.c)
 * @serial: orders the list, from 1; fixed once it is listed
 * @name: fixed
 * @uid: who made it; fixed
 * @node: NUMA node or -1; fixed
 * @bytes: size; fixed
 * @segment_bytes: as asked for; fixed
 * @memory: behind it
 * @frames: the table
 * @events: the ring; frames.lock
 * @dead: destroyed; frames.lock
 * @settled: how often a frame stopped to be GOING; frames.lock
 * @changed: woken then
 * @files: pool files and dma-bufs that are open; frames.lock
 * @tend: looks after frames that are pinned (tend.c)
 * @kept: frames are QUARANTINED, which keeps the pool and the module; frames.lock
 * @stray: where the search for memory without a frame goes on; for reclaim only
 * @end: frees the pool, after the last reference was dropped where that cannot be done
 * @sysfs: its directory
 */
struct computron_pool {
	struct kref refs;
	struct list_head listed;
	u64 serial;
	char name[COMPUTRON_NAME_BYTES];
	kuid_t uid;
	int node;
	u64 bytes;
	u64 segment_bytes;
	struct computron_memory memory;
	struct computron_frames frames;
	struct computron_events *events;
	bool dead;
	u64 settled;
	wait_queue_head_t changed;
	u32 files;
	struct delayed_work tend;
	bool kept;
	u32 stray;
	struct work_struct end;
	struct computron_sysfs_pool *sysfs;
};

/**
 * struct computron_pool_wish - how a pool should be
 * @name: its name
 * @bytes: size; of adopted ones that of the memfd
 * @quota: bytes for frames; 0: all
 * @floor: bytes that memory pressure leaves
 * @segment_bytes: extents do not cross multiples of it; 0: none
 * @node: NUMA node or -1
 * @memfd: descriptor of a memfd to adopt, or -1
 */
struct computron_pool_wish {
	char name[COMPUTRON_NAME_BYTES];
	u64 bytes;
	u64 quota;
	u64 floor;
	u64 segment_bytes;
	int node;
	int memfd;
};

extern struct mutex computron_pools_mutex;
extern spinlock_t computron_pools_lock;
extern struct list_head computron_pools;
extern struct workqueue_struct *computron_wq;

int computron_pools_init(void);
void computron_pools_end(void);
void computron_pools_exit(void);
u64 computron_pools_limit(void);
void computron_pools_count(u32 *pools, u64 *bytes);

struct computron_pool *computron_pool_new(const struct computron_pool_wish *wish);
int computron_pool_publish(struct computron_pool *pool);
struct computron_pool *computron_pool_find(const char *name);
struct computron_pool *computron_pool_at(u64 serial);
struct computron_pool *computron_pool_after(struct computron_pool *pool);
int computron_pool_destroy(const char *name, bool open);
bool computron_pool_may_write(const struct computron_pool *pool);
void computron_pool_get(struct computron_pool *pool);
void computron_pool_put(struct computron_pool *pool);
void computron_pool_put_later(struct computron_pool *pool);

/* Both take and leave the lock of the frames held. */
int computron_pool_lock_frame(struct computron_pool *pool, const struct computron_ref *ref,
			      struct computron_frame **f) __acquires(&pool->frames.lock);
void computron_pool_unlock(struct computron_pool *pool) __releases(&pool->frames.lock);
void computron_pool_settle(struct computron_pool *pool);
int computron_pool_wait(struct computron_pool *pool, u64 settled);

void computron_pool_stat(struct computron_pool *pool, bool survey,
			 struct computron_pool_stat *stat);

#endif
