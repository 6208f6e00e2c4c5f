// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The table of a pool's frames: found by reference, key and content, moved from state to state. See
 * frames.h.
 */
#include "frames.h"
#include "order.h"

/* As many buckets as there are units, within reason: 2^4 to 2^16. */
static u32 hash_bits_for(u32 units)
{
	u32 bits = 4;

	while (bits < 16 && (1U << bits) < units)
		bits++;
	return bits;
}

/* Keys and digests are hashes already, or their owner's own fault. */
static u32 hash_bytes(const struct computron_frames *t, const u8 *bytes, u32 len)
{
	u64 sum = 0, word;
	u32 i;

	for (i = 0; i < len; i += sizeof(word)) {
		memcpy(&word, bytes + i, sizeof(word));
		sum = (sum ^ word) * 0x9e3779b97f4a7c15ULL;
		sum ^= sum >> 32;
	}
	return (u32)sum & ((1U << t->hash_bits) - 1);
}

static struct hlist_head *key_bucket(struct computron_frames *t, const u8 *key)
{
	return &t->keys[hash_bytes(t, key, COMPUTRON_KEY_BYTES)];
}

static struct hlist_head *content_bucket(struct computron_frames *t, const u8 *digest)
{
	return &t->contents[hash_bytes(t, digest, COMPUTRON_DIGEST_BYTES)];
}

static void *zalloc_array(size_t count, size_t size)
{
	return kvcalloc(count, size, GFP_KERNEL_ACCOUNT);
}

/**
 * computron_frames_init() - an empty table
 * @t: to be filled
 * @unit_bytes: of each unit
 * @units: how many, not 0
 * @segment: units between borders that runs do not cross, or 0
 *
 * Return: 0 or -ENOMEM.
 */
int computron_frames_init(struct computron_frames *t, u64 unit_bytes, u32 units, u32 segment)
{
	memset(t, 0, sizeof(*t));
	spin_lock_init(&t->lock);
	INIT_LIST_HEAD(&t->idle);
	INIT_LIST_HEAD(&t->held);
	INIT_LIST_HEAD(&t->quarantined);
	t->unit_bytes = unit_bytes;
	t->quota = units;
	t->hash_bits = hash_bits_for(units);
	t->by_unit = zalloc_array(units, sizeof(*t->by_unit));
	t->heads = zalloc_array(BITS_TO_LONGS(units), sizeof(long));
	t->hot = zalloc_array(units, sizeof(*t->hot));
	t->keys = zalloc_array(1U << t->hash_bits, sizeof(*t->keys));
	t->contents = zalloc_array(1U << t->hash_bits, sizeof(*t->contents));
	if (!t->by_unit || !t->heads || !t->hot || !t->keys || !t->contents ||
	    computron_units_init(&t->units, units, segment)) {
		computron_frames_fini(t);
		return -ENOMEM;
	}
	return 0;
}

/**
 * computron_frames_fini() - frees the table and the frames that are in it
 * @t: filled by init, or all zero
 *
 * Nobody may use it any more.
 */
void computron_frames_fini(struct computron_frames *t)
{
	u32 unit;

	if (t->heads && t->units.used) {
		for (unit = find_next_bit(t->heads, t->units.count, 0); unit < t->units.count;
		     unit = find_next_bit(t->heads, t->units.count, unit + 1))
			computron_frame_free(t->by_unit[unit]);
	}
	computron_units_fini(&t->units);
	kvfree(t->contents);
	kvfree(t->keys);
	kvfree(t->hot);
	kvfree(t->heads);
	kvfree(t->by_unit);
}

/**
 * computron_frame_new() - a frame that is in no table
 * @key: its key
 * @bytes: asked for
 * @units: that is, in units
 * @room: for how many runs
 *
 * Return: the frame, NULL without memory.
 */
struct computron_frame *computron_frame_new(const u8 *key, u64 bytes, u32 units, u32 room)
{
	struct computron_frame *f;

	f = kvzalloc(struct_size(f, runs, room), GFP_KERNEL_ACCOUNT);
	if (!f)
		return NULL;
	memcpy(f->key, key, COMPUTRON_KEY_BYTES);
	f->bytes = bytes;
	f->units = units;
	f->room = room;
	INIT_HLIST_NODE(&f->by_key);
	INIT_HLIST_NODE(&f->by_content);
	INIT_LIST_HEAD(&f->order);
	INIT_LIST_HEAD(&f->own);
	return f;
}

/**
 * computron_frame_free() - frees a frame that is in no table any more
 * @f: the frame
 */
void computron_frame_free(struct computron_frame *f)
{
	kvfree(f);
}

/* The count that the units of a frame are charged to. */
static u32 *account_of(struct computron_frames *t, const struct computron_frame *f)
{
	switch (f->state == COMPUTRON_FRAME_GOING ? f->was : f->state) {
	case COMPUTRON_FRAME_LOADING:
		return &t->n.loading;
	case COMPUTRON_FRAME_CLEAN:
		return &t->n.clean;
	default:
		return &t->n.quarantined;
	}
}

static u64 charged(const struct computron_frames *t)
{
	return (u64)t->n.loading + t->n.clean + t->n.quarantined;
}

/* Enters or removes a frame at each of its units. */
static void mark_units(struct computron_frames *t, struct computron_frame *f, bool enter)
{
	u32 i, unit;

	for (i = 0; i < f->nr_runs; i++) {
		for (unit = f->runs[i].first; unit < f->runs[i].first + f->runs[i].count; unit++) {
			t->by_unit[unit] = enter ? f : NULL;
			if (!t->hot[unit]) {
				if (enter)
					f->warm_units++;
			} else if (enter) {
				t->n.hot_free--;
			} else {
				t->n.hot_free++;
			}
		}
	}
	if (enter)
		__set_bit(f->ref.id, t->heads);
	else
		__clear_bit(f->ref.id, t->heads);
}

/**
 * computron_frames_enter() - (absent) -> LOADING
 * @t: the table
 * @f: from computron_frame_new; gets its units and its name
 * @owner: the file that it will belong to
 * @own: its list of such frames
 * @ref: set to the name; with -EEXIST to that of the frame of this key
 *
 * Return: 0; -EEXIST; -EAGAIN: the frame of this key is GOING; -EDQUOT; -ENOSPC; -ENOBUFS: the
 * frame has too little room for its runs.
 */
int computron_frames_enter(struct computron_frames *t, struct computron_frame *f, const void *owner,
			   struct list_head *own, struct computron_ref *ref)
{
	struct computron_frame *other;
	u32 runs;

	lockdep_assert_held(&t->lock);
	other = computron_frames_by_key(t, f->key);
	if (other && other->state == COMPUTRON_FRAME_GOING)
		return -EAGAIN;
	if (other) {
		*ref = other->ref;
		return -EEXIST;
	}
	if (charged(t) + f->units > t->quota)
		return -EDQUOT;
	/* Reclaim may have units that belong to no frame, for a moment. */
	runs = computron_units_take(&t->units, f->units, f->runs, f->room);
	if (!runs)
		return -EAGAIN;
	if (runs > f->room)
		return -ENOBUFS;

	f->nr_runs = runs;
	f->ref.id = f->runs[0].first;
	f->ref.generation = ++t->generation;
	f->state = COMPUTRON_FRAME_LOADING;
	f->owner = owner;
	list_add_tail(&f->own, own);
	mark_units(t, f, true);
	hlist_add_head(&f->by_key, key_bucket(t, f->key));
	*account_of(t, f) += f->units;
	t->n.frames++;
	t->n.allocs++;
	*ref = f->ref;
	return 0;
}

/**
 * computron_frames_find() - a frame by its name
 * @t: the table
 * @ref: the name
 * @f: set to the frame, in any state but GOING
 *
 * Return: 0; -ESTALE; -EAGAIN: it is GOING.
 */
int computron_frames_find(struct computron_frames *t, const struct computron_ref *ref,
			  struct computron_frame **f)
{
	struct computron_frame *found;

	lockdep_assert_held(&t->lock);
	if (ref->id >= t->units.count)
		return -ESTALE;
	found = t->by_unit[ref->id];
	if (!found || found->ref.id != ref->id || found->ref.generation != ref->generation)
		return -ESTALE;
	if (found->state == COMPUTRON_FRAME_GOING)
		return -EAGAIN;
	*f = found;
	return 0;
}

/**
 * computron_frames_by_key() - a frame by its key
 * @t: the table
 * @key: the key
 *
 * Return: the frame, which is LOADING, CLEAN or GOING, or NULL.
 */
struct computron_frame *computron_frames_by_key(struct computron_frames *t, const u8 *key)
{
	struct computron_frame *f;

	lockdep_assert_held(&t->lock);
	hlist_for_each_entry(f, key_bucket(t, key), by_key) {
		if (!memcmp(f->key, key, COMPUTRON_KEY_BYTES))
			return f;
	}
	return NULL;
}

/**
 * computron_frames_by_content() - a frame by what it was sealed with
 * @t: the table
 * @digest: its digest
 * @data: its owner's data
 *
 * Return: the frame, which is CLEAN, or NULL.
 */
struct computron_frame *computron_frames_by_content(struct computron_frames *t, const u8 *digest,
						    const u8 *data)
{
	struct computron_frame *f;

	lockdep_assert_held(&t->lock);
	hlist_for_each_entry(f, content_bucket(t, digest), by_content) {
		if (f->state == COMPUTRON_FRAME_CLEAN &&
		    !memcmp(f->digest, digest, COMPUTRON_DIGEST_BYTES) &&
		    !memcmp(f->data, data, COMPUTRON_OWNER_BYTES))
			return f;
	}
	return NULL;
}

/**
 * computron_frames_next() - a walk in the order of ids
 * @t: the table
 * @unit: the least id
 *
 * Return: the first frame from there on that is not GOING, or NULL.
 */
struct computron_frame *computron_frames_next(struct computron_frames *t, u32 unit)
{
	lockdep_assert_held(&t->lock);
	while (unit < t->units.count) {
		unit = find_next_bit(t->heads, t->units.count, unit);
		if (unit >= t->units.count)
			break;
		if (t->by_unit[unit]->state != COMPUTRON_FRAME_GOING)
			return t->by_unit[unit];
		unit++;
	}
	return NULL;
}

/**
 * computron_frame_describe() - what users are told of a frame
 * @t: the table
 * @f: the frame
 * @file: who asks, or NULL
 * @info: to be filled
 */
void computron_frame_describe(struct computron_frames *t, const struct computron_frame *f,
			      const void *file, struct computron_frame_info *info)
{
	lockdep_assert_held(&t->lock);
	memset(info, 0, sizeof(*info));
	info->ref = f->ref;
	info->bytes = f->bytes;
	info->charged = f->units * t->unit_bytes;
	info->huge_bytes = f->huge_bytes;
	info->state = f->state;
	if (f->has_digest)
		info->flags |= COMPUTRON_FRAME_HAS_DIGEST;
	if (f->state == COMPUTRON_FRAME_LOADING && f->owner == file)
		info->flags |= COMPUTRON_FRAME_MINE;
	if (f->populated)
		info->flags |= COMPUTRON_FRAME_POPULATED;
	info->leases = f->leases;
	info->extents = f->nr_runs;
	memcpy(info->key, f->key, sizeof(info->key));
	memcpy(info->digest, f->digest, sizeof(info->digest));
	memcpy(info->owner, f->data, sizeof(info->owner));
}

/**
 * computron_frames_readable() - whether everybody may read a unit
 * @t: the table
 * @unit: its number
 * @generation: of the frame that it must belong to; 0: any
 *
 * Return: true when it belongs to such a frame and that is CLEAN.
 */
bool computron_frames_readable(struct computron_frames *t, u32 unit, u64 generation)
{
	const struct computron_frame *f;

	lockdep_assert_held(&t->lock);
	if (unit >= t->units.count)
		return false;
	f = t->by_unit[unit];
	return f && f->state == COMPUTRON_FRAME_CLEAN &&
	       (!generation || f->ref.generation == generation);
}

/**
 * computron_frames_spanning() - the one frame that a range of units belongs to
 * @t: the table
 * @first: number of the first unit
 * @last: of the last one
 *
 * Return: the frame, when it is CLEAN and all of them are of it, else NULL.
 */
struct computron_frame *computron_frames_spanning(struct computron_frames *t, u32 first, u32 last)
{
	struct computron_frame *f;
	u32 unit;

	lockdep_assert_held(&t->lock);
	if (first >= t->units.count)
		return NULL;
	f = t->by_unit[first];
	for (unit = first; f && unit <= last; unit++) {
		if (!computron_frames_readable(t, unit, f->ref.generation))
			return NULL;
	}
	return f;
}

/**
 * computron_frame_counted() - its huge pages were counted
 * @t: the table
 * @f: a frame
 * @huge: its bytes that are in huge pages
 */
void computron_frame_counted(struct computron_frames *t, struct computron_frame *f, u64 huge)
{
	lockdep_assert_held(&t->lock);
	t->n.huge_bytes += huge - f->huge_bytes;
	f->huge_bytes = huge;
}

/**
 * computron_frame_seal() - LOADING -> CLEAN, without a lease
 * @t: the table
 * @f: a LOADING frame that has all its memory
 * @digest: of its content, or NULL
 * @data: opaque, COMPUTRON_OWNER_BYTES
 */
void computron_frame_seal(struct computron_frames *t, struct computron_frame *f, const u8 *digest,
			  const u8 *data)
{
	lockdep_assert_held(&t->lock);
	WARN_ON_ONCE(f->state != COMPUTRON_FRAME_LOADING || f->busy);
	memcpy(f->data, data, COMPUTRON_OWNER_BYTES);
	if (digest) {
		memcpy(f->digest, digest, COMPUTRON_DIGEST_BYTES);
		f->has_digest = true;
		hlist_add_head(&f->by_content, content_bucket(t, digest));
	}
	*account_of(t, f) -= f->units;
	f->state = COMPUTRON_FRAME_CLEAN;
	*account_of(t, f) += f->units;
	f->populated = true;
	f->owner = NULL;
	list_del_init(&f->own);
	t->n.seals++;
	computron_order_place(t, f);
}

/**
 * computron_frame_lease() - one more lease
 * @t: the table
 * @f: a frame that is not GOING
 *
 * Return: 0; -EBUSY: it is not CLEAN; -EOVERFLOW.
 */
int computron_frame_lease(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	if (f->state != COMPUTRON_FRAME_CLEAN)
		return -EBUSY;
	if (f->leases == S32_MAX)
		return -EOVERFLOW;
	if (!f->leases++) {
		t->n.leased += f->units;
		computron_order_remove(t, f);
		/* Whether it is pinned is found out anew when its turn comes: nobody looks now. */
		f->held = false;
	}
	return 0;
}

/**
 * computron_frame_release() - fewer leases
 * @t: the table
 * @f: a frame that has as many
 * @count: how many
 */
void computron_frame_release(struct computron_frames *t, struct computron_frame *f, u32 count)
{
	lockdep_assert_held(&t->lock);
	if (WARN_ON_ONCE(f->leases < count || !count))
		return;
	f->leases -= count;
	if (!f->leases) {
		t->n.leased -= f->units;
		computron_order_place(t, f);
	}
}

/**
 * computron_frame_depart() - any state -> GOING
 * @t: the table
 * @f: a frame without leases that is not busy
 */
void computron_frame_depart(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	WARN_ON_ONCE(f->state == COMPUTRON_FRAME_GOING || f->leases || f->busy);
	computron_order_remove(t, f);
	list_del_init(&f->own);
	f->owner = NULL;
	f->was = f->state;
	f->state = COMPUTRON_FRAME_GOING;
}

/**
 * computron_frame_stay() - GOING -> CLEAN again: it is pinned
 * @t: the table
 * @f: a GOING frame that was CLEAN
 */
void computron_frame_stay(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	WARN_ON_ONCE(f->state != COMPUTRON_FRAME_GOING || f->was != COMPUTRON_FRAME_CLEAN);
	f->state = COMPUTRON_FRAME_CLEAN;
	f->held = true;
	computron_order_place(t, f);
}

/**
 * computron_frame_quarantine() - GOING -> QUARANTINED
 * @t: the table
 * @f: a GOING frame that was LOADING or QUARANTINED
 */
void computron_frame_quarantine(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	WARN_ON_ONCE(f->state != COMPUTRON_FRAME_GOING || f->was == COMPUTRON_FRAME_CLEAN);
	*account_of(t, f) -= f->units;
	f->state = COMPUTRON_FRAME_QUARANTINED;
	*account_of(t, f) += f->units;
	if (!hlist_unhashed(&f->by_key))
		hlist_del_init(&f->by_key);
	list_add_tail(&f->order, &t->quarantined);
}

/**
 * computron_frame_retire() - GOING -> (absent)
 * @t: the table
 * @f: a GOING frame whose memory was given back; the caller frees it
 */
void computron_frame_retire(struct computron_frames *t, struct computron_frame *f)
{
	u32 i;

	lockdep_assert_held(&t->lock);
	WARN_ON_ONCE(f->state != COMPUTRON_FRAME_GOING);
	*account_of(t, f) -= f->units;
	computron_frame_counted(t, f, 0);
	if (!hlist_unhashed(&f->by_key))
		hlist_del_init(&f->by_key);
	if (!hlist_unhashed(&f->by_content))
		hlist_del_init(&f->by_content);
	mark_units(t, f, false);
	for (i = 0; i < f->nr_runs; i++)
		computron_units_give(&t->units, &f->runs[i]);
	t->n.frames--;
}
