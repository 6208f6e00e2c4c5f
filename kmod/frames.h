/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The frames of a pool and their states. No memory is touched here.
 *
 *             enter           seal              lease (counted)
 *   (absent) -------> LOADING -----> CLEAN  <------------------> CLEAN, leased
 *                        |             |           release
 *                        | depart      | depart (no lease)
 *                        v             v
 *                      +------- GOING -------+
 *       quarantine     |          |          |   stay (its memory is pinned)
 *    QUARANTINED <-----+          v retire   +-----> CLEAN
 *         |                    (absent)
 *         +--depart--> GOING
 *
 * While a frame is GOING its memory is being given back, which takes time and happens without the
 * lock: the one who called depart is the only one who may touch it until he calls retire,
 * quarantine or stay.
 *
 * Invariants: a unit is free, or belongs to one frame, or was taken by take_at; the units of a
 * frame are charged to exactly one of loading, clean and quarantined; a frame is on the list `idle`
 * if and only if it is CLEAN, has no lease, is not held and has units outside of hot ranges.
 *
 * Locking: every function is called with the lock held, but for new, free, init and fini.
 */
#ifndef COMPUTRON_FRAMES_H
#define COMPUTRON_FRAMES_H

#include "pure.h"
#include "units.h"

/* Beside the states of enum computron_frame_state; never shown to users. */
#define COMPUTRON_FRAME_GOING 0x100

/**
 * struct computron_frame - a frame
 * @ref: its name
 * @bytes: asked for
 * @units: charged
 * @warm_units: of them, outside of hot ranges
 * @state: enum computron_frame_state, or COMPUTRON_FRAME_GOING
 * @was: the state before GOING
 * @busy: LOADING, and a call of its owner works on it without the lock: neither seal nor depart
 * @populated: a populate has ended well
 * @has_digest: @digest was given
 * @held: CLEAN, and pinned when its eviction was last tried
 * @leases: how many
 * @huge_bytes: in huge pages, when that was last counted
 * @key: names it
 * @digest: of its content
 * @data: opaque, of its owner
 * @owner: LOADING: the file that it belongs to
 * @by_key: in the table, unless QUARANTINED
 * @by_content: in the table while CLEAN with a digest
 * @order: on idle, held or quarantined
 * @own: LOADING: on its owner's list
 * @nr_runs: how many
 * @room: in @runs
 * @runs: its units, in linear order
 */
struct computron_frame {
	struct computron_ref ref;
	u64 bytes;
	u32 units;
	u32 warm_units;
	u32 state;
	u32 was;
	bool busy;
	bool populated;
	bool has_digest;
	bool held;
	u32 leases;
	u64 huge_bytes;
	u8 key[COMPUTRON_KEY_BYTES];
	u8 digest[COMPUTRON_DIGEST_BYTES];
	u8 data[COMPUTRON_OWNER_BYTES];
	const void *owner;
	struct hlist_node by_key;
	struct hlist_node by_content;
	struct list_head order;
	struct list_head own;
	u32 nr_runs;
	u32 room;
	struct computron_run runs[];
};

/**
 * struct computron_counts - of a table, in units and in events
 * @loading: units of LOADING frames
 * @clean: of CLEAN frames
 * @quarantined: of QUARANTINED frames
 * @leased: of CLEAN frames with a lease
 * @idle: of frames on the idle list, outside of hot ranges
 * @held: of frames on the held list
 * @hot: in hot ranges
 * @hot_free: in hot ranges and without a frame
 * @frames: how many
 * @huge_bytes: sum over the frames
 * @allocs: ever
 * @seals: ever
 * @evictions: by request, ever
 * @evicted: units of these
 * @reclaims: because memory was short, ever
 * @reclaimed: units of these
 * @refused: ever
 */
struct computron_counts {
	u32 loading;
	u32 clean;
	u32 quarantined;
	u32 leased;
	u32 idle;
	u32 held;
	u32 hot;
	u32 hot_free;
	u32 frames;
	u64 huge_bytes;
	u64 allocs;
	u64 seals;
	u64 evictions;
	u64 evicted;
	u64 reclaims;
	u64 reclaimed;
	u64 refused;
};

/**
 * struct computron_frames - the table
 * @lock: guards all of it; a leaf but for the locks of wait queues
 * @units: which are free
 * @unit_bytes: of each
 * @quota: units that frames may take
 * @floor: CLEAN units that memory pressure leaves
 * @by_unit: the frame of each unit, or NULL
 * @heads: a bit for each unit that is the first of a frame
 * @hot: how many hot ranges each unit lies in
 * @hash_bits: of @keys and @contents
 * @keys: hash table by key
 * @contents: hash table by digest and data
 * @generation: of the youngest frame
 * @idle: what may be evicted, the least recently used first
 * @held: what could be evicted were it not pinned
 * @quarantined: QUARANTINED frames
 * @n: counts
 */
struct computron_frames {
	spinlock_t lock;
	struct computron_units units;
	u64 unit_bytes;
	u32 quota;
	u32 floor;
	struct computron_frame **by_unit;
	unsigned long *heads;
	u16 *hot;
	u32 hash_bits;
	struct hlist_head *keys;
	struct hlist_head *contents;
	u64 generation;
	struct list_head idle;
	struct list_head held;
	struct list_head quarantined;
	struct computron_counts n;
};

int computron_frames_init(struct computron_frames *t, u64 unit_bytes, u32 units, u32 segment);
void computron_frames_fini(struct computron_frames *t);

struct computron_frame *computron_frame_new(const u8 *key, u64 bytes, u32 units, u32 room);
void computron_frame_free(struct computron_frame *f);

int computron_frames_enter(struct computron_frames *t, struct computron_frame *f, const void *owner,
			   struct list_head *own, struct computron_ref *ref);
int computron_frames_find(struct computron_frames *t, const struct computron_ref *ref,
			  struct computron_frame **f);
struct computron_frame *computron_frames_by_key(struct computron_frames *t, const u8 *key);
struct computron_frame *computron_frames_by_content(struct computron_frames *t, const u8 *digest,
						    const u8 *data);
struct computron_frame *computron_frames_next(struct computron_frames *t, u32 unit);
void computron_frame_describe(struct computron_frames *t, const struct computron_frame *f,
			      const void *file, struct computron_frame_info *info);
bool computron_frames_readable(struct computron_frames *t, u32 unit, u64 generation);
struct computron_frame *computron_frames_spanning(struct computron_frames *t, u32 first, u32 last);

void computron_frame_counted(struct computron_frames *t, struct computron_frame *f, u64 huge);
void computron_frame_seal(struct computron_frames *t, struct computron_frame *f, const u8 *digest,
			  const u8 *data);
int computron_frame_lease(struct computron_frames *t, struct computron_frame *f);
void computron_frame_release(struct computron_frames *t, struct computron_frame *f, u32 count);
void computron_frame_depart(struct computron_frames *t, struct computron_frame *f);
void computron_frame_stay(struct computron_frames *t, struct computron_frame *f);
void computron_frame_quarantine(struct computron_frames *t, struct computron_frame *f);
void computron_frame_retire(struct computron_frames *t, struct computron_frame *f);

#endif
