/* SPDX-License-Identifier: MIT */
/*
 * Private to pool/: the frames of a pool in this process, found by key and by reference, and
 * the extents that they occupy. frames.c has the operations on them.
 *
 * Every function is called with the pool's mutex held, but for those of commit.c.
 *
 * Invariant, checked by an independent walk after each operation in debug builds: every unit
 * is in exactly one free run or one frame, and the counts of both say so; those of a CLEAN
 * frame have memory.
 */
#ifndef CTN_POOL_TABLE_H
#define CTN_POOL_TABLE_H

#include "pool/memory.h"
#include "pool/pool_ops.h"
#include "pool/space.h"

#include <pthread.h>

/* A table that cannot grow is an error of the call, not of the process. The element that was
 * not added has no table. */
#define HASH_NONFATAL_OOM         1
#define uthash_nonfatal_oom(elem) ((void)(elem))
#include <uthash.h>

#define CTN_UNIT CTN_EXTENT_ALIGN

struct frame {
	struct ctn_frame_info info;
	struct ctn_extent *extents;
	uint32_t extent_count;
	bool committed; /* all of it has memory, and may have been written */
	UT_hash_handle by_key;
	UT_hash_handle by_id;
	UT_hash_handle by_content;
	bool named; /* is found by its content: the first of several frames of one content */
};

struct frames {
	struct ctn_pool base;
	const struct ctn_memory_ops *memory;
	struct ctn_memory *segments; /* addresses never change */
	uint32_t segment_count;
	bool poison;
	bool protect; /* false: frames stay writable, see kernel_keeps_pins in frames.c */

	pthread_mutex_t lock;
	bool *hot;
	struct ctn_space space;
	uint32_t *pins;     /* by segment: how many are being made, see commit.c */
	uint8_t *committed; /* by unit: memory is behind it */
	uint8_t *marks;     /* by unit: scratch of the walk */
	struct frame *keys; /* uthash heads */
	struct frame *ids;
	struct frame *contents;
	uint64_t generation; /* of the youngest frame; never goes back */
	uint64_t evictions;
	uint64_t refused;
};

/* NULL when there is none; by reference, also when the frame of that id is a younger one. */
struct frame *ctn_table_by_key(struct frames *f, const struct ctn_frame_key *key);
struct frame *ctn_table_by_content(struct frames *f, const struct ctn_digest *digest,
				   const uint8_t owner[CTN_OWNER_DATA]);
struct frame *ctn_table_by_first_unit(struct frames *f, uint32_t unit);
struct frame *ctn_table_by_ref(struct frames *f, struct ctn_frame_ref ref);

/* Takes the units for a frame, in as few extents as the space allows, gives it its reference
 * and enters it. -EEXIST (the reference is that of the frame of its key), -ENOSPC, -ENOMEM:
 * nothing has changed, and the caller frees it. */
int ctn_table_enter(struct frames *f, struct frame *fr);
/* A CLEAN frame is found by its digest and owner data from here on, unless another of the same
 * is, or there is no memory for that. */
void ctn_table_name_content(struct frames *f, struct frame *fr);
/* Takes a frame out, gives its extents back, poisoned where that is wanted and read-only from
 * here on, and frees it. */
void ctn_table_retire(struct frames *f, struct frame *fr);
void ctn_frame_free(struct frame *fr);

/* The number of an extent's first unit. Any thread. */
uint32_t ctn_first_unit(const struct frames *f, const struct ctn_extent *e);
/* Leaves out what is to be read-only in a segment that is being pinned: that comes later. */
int ctn_frame_protect(const struct frames *f, const struct frame *fr, int prot);

/* ---- commit.c: without the mutex -------------------------------------------------------- */

/* Makes a LOADING frame writable and commits the units that have no memory yet, for its owner.
 * -ENOMEM: some have memory now. */
int ctn_frame_commit(struct frames *f, const struct frame *fr);
/* As ctn_pool_pin_segment. */
int ctn_segment_pin(struct frames *f, uint32_t i, ctn_pool_pin_fn *pin, void *arg);

/* ---- the walk --------------------------------------------------------------------------- */

/* The independent count; nothing in release builds. */
void ctn_table_check(struct frames *f);

#endif
