/* SPDX-License-Identifier: MIT */
/*
 * Private to pool/: the provider "kmod", a pool that the kernel module computron.ko keeps. The
 * module has the frame table, and the frames stay when this process ends. Here is only what this
 * process holds (its LOADING frames and its leases: kmod_hold.c) and where the pool's bytes are
 * mapped (kmod_map.c).
 *
 * Locking: one mutex guards the frames held, `writable`, `pins`, `hot` and the events. It is held
 * over calls that are short in the kernel, never over populate, evict or a pin.
 */
#ifndef CTN_POOL_KMOD_H
#define CTN_POOL_KMOD_H

#include "pool/memory.h"
#include "pool/pool_ops.h"

#include <linux/computron.h>

#include <pthread.h>

/* A table that cannot grow is an error of the call, not of the process. */
#define HASH_NONFATAL_OOM         1
#define uthash_nonfatal_oom(elem) ((void)(elem))
#include <uthash.h>

/* A frame that this process holds: LOADING and its own, or leased. */
struct kmod_frame {
	struct ctn_frame_ref ref;
	struct ctn_extent *extents;
	uint32_t extent_count;
	uint64_t charged;
	uint32_t leases;
	bool loading;
	bool committed; /* LOADING: has its memory, and may have been written */
	UT_hash_handle hh;
};

struct kmod_pool {
	struct ctn_pool base;
	const struct ctn_kmod_sys *sys;
	int fd; /* a writer's pool file, not blocking */
	char name[COMPUTRON_NAME_BYTES];
	bool temporary;
	struct ctn_memory *segments; /* addresses never change */
	uint32_t segment_count;
	uint32_t segment_units; /* the last segment may be shorter */
	uint32_t units;

	pthread_mutex_t lock;
	struct kmod_frame *frames; /* by id: uthash head */
	bool *hot;
	uint32_t *pins;    /* by segment: how many are being made */
	uint8_t *writable; /* by unit: in a LOADING frame of ours that has its memory */

	struct computron_event events[16]; /* that were read and not handed out */
	uint32_t event_count, event_next;
	uint64_t evictions, refused, reclaims; /* the pool's when it was opened */
};

static inline struct kmod_pool *ctn_kmod_of(struct ctn_pool *pool)
{
	return (struct kmod_pool *)pool;
}

static inline struct kmod_pool *ctn_kmod_lock(struct ctn_pool *pool)
{
	struct kmod_pool *p = ctn_kmod_of(pool);

	pthread_mutex_lock(&p->lock);
	return p;
}

static inline void ctn_kmod_unlock(struct kmod_pool *p)
{
	pthread_mutex_unlock(&p->lock);
}

static inline struct computron_ref ctn_kmod_ref(struct ctn_frame_ref ref)
{
	return (struct computron_ref){.id = ref.id, .generation = ref.generation};
}

static inline struct ctn_frame_ref ctn_kmod_our_ref(struct computron_ref ref)
{
	return (struct ctn_frame_ref){.id = ref.id, .generation = ref.generation};
}

/* ---- kmod_sys.c ------------------------------------------------------------------------- */

/* The real calls. */
extern const struct ctn_kmod_sys ctn_kmod_real_sys;
/* A call on a file of the module; `arg` is a structure of computron.h, whose size is set. */
int ctn_kmod_call(const struct ctn_kmod_sys *sys, int fd, unsigned long request, void *arg,
		  uint32_t size);
#define CTN_KMOD_CALL(sys, fd, request, arg) \
	ctn_kmod_call((sys), (fd), (request), (arg), sizeof(*(arg)))

/* ---- kmod_open.c ------------------------------------------------------------------------ */

/* What was opened. */
struct kmod_opened {
	int fd;
	char name[COMPUTRON_NAME_BYTES];
	uint64_t bytes, segment_bytes;
	int node;
};

/*
 * Opens the pool of the configuration, which it makes if there is none, and makes anew if there
 * is one of other sizes that nobody has open. -ENOTSUP with the reason when there is no such
 * module, or it is not for us; -EBUSY, -ENOSPC ...
 */
int ctn_kmod_open_pool(const struct ctn_kmod_sys *sys, const struct ctn_pool_config *cfg,
		       struct kmod_opened *opened, struct ctn_err *err);

/* Ends a pool that nobody has open. */
void ctn_kmod_destroy(const struct ctn_kmod_sys *sys, const char *name);

/* ---- kmod_map.c ------------------------------------------------------------------------- */

/* Maps the segments, read-only, and tells the module which are hot. Undone by unmap, also after
 * a failure. */
int ctn_kmod_map(struct kmod_pool *p, const struct kmod_opened *opened,
		 const struct ctn_pool_config *cfg, struct ctn_err *err);
void ctn_kmod_unmap(struct kmod_pool *p);
/* The place of bytes of the pool. */
void ctn_kmod_place(const struct kmod_pool *p, const struct computron_extent *from,
		    struct ctn_extent *to);
/* Locked. What is to be read-only in a segment that is being pinned becomes so later. */
int ctn_kmod_make_writable(struct kmod_pool *p, const struct kmod_frame *fr, bool writable);
/* Not locked. As ctn_pool_set_hot and ctn_pool_pin_segment. */
void ctn_kmod_set_hot(struct kmod_pool *p, uint32_t segment, bool hot);
int ctn_kmod_pin(struct kmod_pool *p, uint32_t segment, ctn_pool_pin_fn *pin, void *arg);

/* ---- kmod_hold.c, kmod_find.c: as the functions of pool.h --------------------------------- */

int ctn_kmod_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes, int node,
		   struct ctn_frame_ref *ref);
int ctn_kmod_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count);
int ctn_kmod_seal(struct ctn_pool *pool, struct ctn_frame_ref ref, const struct ctn_digest *digest,
		  const uint8_t owner[CTN_OWNER_DATA]);
int ctn_kmod_abort(struct ctn_pool *pool, struct ctn_frame_ref ref);
int ctn_kmod_lease(struct ctn_pool *pool, struct ctn_frame_ref ref);
void ctn_kmod_release(struct ctn_pool *pool, struct ctn_frame_ref ref);
int ctn_kmod_evict(struct ctn_pool *pool, struct ctn_frame_ref ref);
int ctn_kmod_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
		     const struct ctn_extent **extents, uint32_t *count);
int ctn_kmod_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
		    struct ctn_frame_info *info);
int ctn_kmod_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
			    const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info);
size_t ctn_kmod_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max);
void ctn_kmod_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *stats);

#endif
