// SPDX-License-Identifier: MIT
/*
 * The frame table in this process.
 *
 * Locking: one mutex per pool guards the table, the frames, the space and the flags of the
 * segments. Not held while memory is committed: a frame that is being filled with memory
 * stands in the table as LOADING, and nobody but the thread that allocates it knows its
 * reference as an owner. Its extents belong to that thread alone, with the `committed` marks
 * of their units, until it takes the lock again.
 *
 * Protection: a CLEAN frame's extents are read-only, and stay so after it is gone until they
 * are given to a new frame, so that a late write faults instead of spoiling another frame.
 *
 * Invariant, checked by an independent walk after each change in debug builds: every unit is
 * in exactly one free run or one frame; the running counts equal what the walks find.
 */
#include "pool/frames.h"

#include "pool/space.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <stdio.h>

/* A table that cannot grow is an error of the call, not of the process. The element that was
 * not added has no table. */
#define HASH_NONFATAL_OOM         1
#define uthash_nonfatal_oom(elem) ((void)(elem))
#include <uthash.h>

#define UNIT        CTN_EXTENT_ALIGN
#define POISON_BYTE 0xdb

struct frame {
	struct ctn_frame_info info;
	struct ctn_extent *extents;
	uint32_t extent_count;
	UT_hash_handle by_key;
	UT_hash_handle by_id;
};

struct frames {
	struct ctn_pool base;
	const struct ctn_memory_ops *memory;
	struct ctn_memory *segments; /* addresses never change */
	uint32_t segment_count;
	bool poison;
	bool protect; /* see kernel_keeps_pins */

	pthread_mutex_t lock;
	bool *hot;
	struct ctn_space space;
	uint8_t *committed; /* by unit: memory is behind it */
	uint8_t *marks;     /* by unit: scratch of the walk */
	struct frame *keys; /* uthash heads */
	struct frame *ids;
	uint64_t generation; /* of the youngest frame; never goes back */
	uint64_t evictions;
	uint64_t refused;
};

static struct frames *frames_of(struct ctn_pool *pool)
{
	return (struct frames *)pool;
}

/* ---- units and extents ----------------------------------------------------------------- */

static void describe_extent(const struct frames *f, uint32_t unit, uint32_t units,
			    struct ctn_extent *e)
{
	e->segment = unit / f->space.segment_units;
	e->segment_offset = unit % f->space.segment_units * UNIT;
	e->addr = f->segments[e->segment].addr + e->segment_offset;
	e->bytes = units * UNIT;
}

static uint32_t first_unit(const struct frames *f, const struct ctn_extent *e)
{
	return e->segment * f->space.segment_units + (uint32_t)(e->segment_offset / UNIT);
}

static int protect_extents(const struct frames *f, const struct frame *fr, int prot)
{
	if (!f->protect)
		return 0;
	for (uint32_t i = 0; i < fr->extent_count; i++) {
		if (mprotect(fr->extents[i].addr, fr->extents[i].bytes, prot) != 0)
			return -errno;
	}
	return 0;
}

static void give_extents(struct frames *f, struct frame *fr)
{
	for (uint32_t i = 0; i < fr->extent_count; i++)
		ctn_space_give(&f->space, first_unit(f, &fr->extents[i]),
			       (uint32_t)(fr->extents[i].bytes / UNIT));
	fr->extent_count = 0;
}

/* Takes the units of a frame, in as few extents as the space allows. */
static int take_extents(struct frames *f, struct frame *fr)
{
	uint32_t left = (uint32_t)(fr->info.charged / UNIT);

	while (left) {
		uint32_t unit, got;
		struct ctn_extent *grown =
			realloc(fr->extents, (fr->extent_count + 1) * sizeof(*fr->extents));

		if (!grown) {
			give_extents(f, fr);
			return -ENOMEM;
		}
		fr->extents = grown;
		if (!ctn_space_take(&f->space, left, &unit, &got)) {
			give_extents(f, fr);
			return -ENOSPC;
		}
		describe_extent(f, unit, got, &fr->extents[fr->extent_count++]);
		left -= got;
	}
	return 0;
}

/* Commits the units of an extent that have no memory yet. They are the caller's alone. */
static int commit_extent(struct frames *f, const struct ctn_extent *e)
{
	uint8_t *marks = f->committed + first_unit(f, e);
	uint64_t n = e->bytes / UNIT, end;

	for (uint64_t u = 0; u < n; u = end) {
		int rc;

		for (end = u; end < n && marks[end] == marks[u];)
			end++;
		if (marks[u])
			continue;
		rc = f->memory->populate(e->addr + u * UNIT, (end - u) * UNIT);
		if (rc)
			return rc;
		memset(marks + u, 1, end - u);
	}
	return 0;
}

/* ---- the table ------------------------------------------------------------------------- */

static struct frame *find_key(struct frames *f, const struct ctn_frame_key *key)
{
	struct frame *fr;

	HASH_FIND(by_key, f->keys, key, sizeof(*key), fr);
	return fr;
}

static struct frame *find_ref(struct frames *f, struct ctn_frame_ref ref)
{
	struct frame *fr;

	HASH_FIND(by_id, f->ids, &ref.id, sizeof(ref.id), fr);
	return fr && fr->info.ref.generation == ref.generation ? fr : NULL;
}

static int add_frame(struct frames *f, struct frame *fr)
{
	HASH_ADD(by_key, f->keys, info.key, sizeof(fr->info.key), fr);
	if (!fr->by_key.tbl)
		return -ENOMEM;
	HASH_ADD(by_id, f->ids, info.ref.id, sizeof(fr->info.ref.id), fr);
	if (!fr->by_id.tbl) {
		HASH_DELETE(by_key, f->keys, fr);
		return -ENOMEM;
	}
	return 0;
}

static void free_frame(struct frame *fr)
{
	free(fr->extents);
	free(fr);
}

/* Takes a frame out of the table and gives its extents back, read-only from here on. That it
 * could not be made so does not make it less gone. */
static void retire(struct frames *f, struct frame *fr)
{
	HASH_DELETE(by_key, f->keys, fr);
	HASH_DELETE(by_id, f->ids, fr);
	if (f->poison && protect_extents(f, fr, PROT_READ | PROT_WRITE) == 0) {
		for (uint32_t i = 0; i < fr->extent_count; i++)
			memset(fr->extents[i].addr, POISON_BYTE, fr->extents[i].bytes);
	}
	protect_extents(f, fr, PROT_READ);
	give_extents(f, fr);
	free_frame(fr);
}

#ifdef CTN_DEBUG
/* The independent count: every unit is marked by exactly one owner. */
static void check_books(struct frames *f)
{
	uint32_t units = f->space.count, owned = 0;
	struct frame *fr, *next;

	memset(f->marks, 0, units);
	CTN_ASSERT(ctn_space_mark(&f->space, f->marks) == f->space.free);
	HASH_ITER (by_id, f->ids, fr, next) {
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < fr->extent_count; i++) {
			uint32_t u = first_unit(f, &fr->extents[i]);

			bytes += fr->extents[i].bytes;
			for (uint64_t n = fr->extents[i].bytes / UNIT; n; n--)
				f->marks[u++]++;
		}
		CTN_ASSERT(bytes == fr->info.charged);
		CTN_ASSERT(fr->info.leases == 0 || fr->info.state == CTN_FRAME_CLEAN);
		owned += (uint32_t)(bytes / UNIT);
	}
	CTN_ASSERT(f->space.free + owned == units);
	for (uint32_t u = 0; u < units; u++)
		CTN_ASSERT(f->marks[u] == 1);
	CTN_ASSERT(HASH_CNT(by_key, f->keys) == HASH_CNT(by_id, f->ids));
}
#else
static void check_books(struct frames *f)
{
	(void)f;
}
#endif

static struct frames *lock(struct ctn_pool *pool)
{
	struct frames *f = frames_of(pool);

	pthread_mutex_lock(&f->lock);
	return f;
}

static void unlock(struct frames *f)
{
	check_books(f);
	pthread_mutex_unlock(&f->lock);
}

/* ---- operations ------------------------------------------------------------------------ */

/* Enters a frame of the right size without memory behind it. The lock is held. */
static int enter_frame(struct frames *f, struct frame *fr)
{
	struct frame *old = find_key(f, &fr->info.key);
	int rc;

	if (old) {
		fr->info.ref = old->info.ref;
		return -EEXIST;
	}
	if (fr->info.charged > f->space.free * UNIT)
		return -ENOSPC;
	rc = take_extents(f, fr);
	if (rc)
		return rc;
	/* Unique among the frames that live; what comes after it has another generation. */
	fr->info.ref.id = first_unit(f, &fr->extents[0]);
	fr->info.ref.generation = ++f->generation;
	rc = add_frame(f, fr);
	if (rc)
		give_extents(f, fr);
	return rc;
}

static int frames_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes,
			int node, struct ctn_frame_ref *ref)
{
	struct frames *f = frames_of(pool);
	struct frame *fr;
	int rc;

	(void)node; /* all segments of a pool lie on one node */
	if (bytes == 0)
		return -EINVAL;
	if (bytes > f->space.count * UNIT)
		return -EFBIG;
	fr = calloc(1, sizeof(*fr));
	if (!fr)
		return -ENOMEM;
	fr->info.key = *key;
	fr->info.bytes = bytes;
	fr->info.charged = ctn_align_up(bytes, UNIT);
	fr->info.state = CTN_FRAME_LOADING;

	lock(pool);
	rc = enter_frame(f, fr);
	*ref = fr->info.ref;
	unlock(f);
	if (rc) {
		free_frame(fr);
		return rc;
	}

	rc = protect_extents(f, fr, PROT_READ | PROT_WRITE);
	for (uint32_t i = 0; rc == 0 && i < fr->extent_count; i++)
		rc = commit_extent(f, &fr->extents[i]);
	if (rc == 0)
		return 0;
	lock(pool);
	/* Not retire: there is nothing in it to poison, and perhaps no memory to write to. */
	HASH_DELETE(by_key, f->keys, fr);
	HASH_DELETE(by_id, f->ids, fr);
	give_extents(f, fr);
	unlock(f);
	free_frame(fr);
	return rc;
}

static int frames_seal(struct ctn_pool *pool, struct ctn_frame_ref ref,
		       const struct ctn_digest *digest, const uint8_t owner[CTN_OWNER_DATA])
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);
	int rc = -ESTALE;

	if (!fr)
		goto out;
	rc = -EINVAL;
	if (fr->info.state != CTN_FRAME_LOADING)
		goto out;
	rc = protect_extents(f, fr, PROT_READ);
	if (rc) {
		protect_extents(f, fr, PROT_READ | PROT_WRITE);
		goto out;
	}
	fr->info.state = CTN_FRAME_CLEAN;
	fr->info.leases = 1;
	if (digest)
		fr->info.digest = *digest;
	if (owner)
		memcpy(fr->info.owner, owner, CTN_OWNER_DATA);
out:
	unlock(f);
	return rc;
}

static int frames_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);
	int rc = 0;

	if (!fr)
		rc = -ESTALE;
	else if (fr->info.state != CTN_FRAME_LOADING)
		rc = -EINVAL;
	else
		retire(f, fr);
	unlock(f);
	return rc;
}

static int frames_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
			 struct ctn_frame_info *info)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_key(f, key);

	if (fr)
		*info = fr->info;
	unlock(f);
	return fr ? 0 : -ENOENT;
}

static size_t frames_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max)
{
	struct frames *f = lock(pool);
	struct frame *fr, *next;
	size_t n = 0;

	HASH_ITER (by_id, f->ids, fr, next) {
		if (n < max)
			infos[n] = fr->info;
		n++;
	}
	unlock(f);
	return n;
}

static int frames_lease(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);
	int rc = 0;

	if (!fr)
		rc = -ESTALE;
	else if (fr->info.state != CTN_FRAME_CLEAN)
		rc = -EBUSY;
	else
		fr->info.leases++;
	unlock(f);
	return rc;
}

static void frames_release(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);

	/* A lease keeps its frame: one that is not there was never leased by the caller. */
	CTN_ASSERT(fr && fr->info.leases > 0);
	if (fr && fr->info.leases > 0)
		fr->info.leases--;
	unlock(f);
}

static int frames_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);
	int rc = 0;

	if (!fr) {
		rc = -ESTALE;
	} else if (fr->info.state != CTN_FRAME_CLEAN || fr->info.leases) {
		rc = -EBUSY;
		f->refused++;
	} else {
		retire(f, fr);
		f->evictions++;
	}
	unlock(f);
	return rc;
}

static int frames_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
			  const struct ctn_extent **extents, uint32_t *count)
{
	struct frames *f = lock(pool);
	struct frame *fr = find_ref(f, ref);

	if (fr) {
		*extents = fr->extents;
		*count = fr->extent_count;
	}
	unlock(f);
	return fr ? 0 : -ESTALE;
}

/* ---- segments -------------------------------------------------------------------------- */

static uint32_t frames_segment_count(struct ctn_pool *pool)
{
	return frames_of(pool)->segment_count;
}

static void frames_segment(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment)
{
	struct frames *f = lock(pool);

	CTN_ASSERT(i < f->segment_count);
	segment->addr = f->segments[i].addr;
	segment->bytes = f->segments[i].bytes;
	segment->node = f->segments[i].node;
	segment->hot = f->hot[i];
	unlock(f);
}

static void frames_set_hot(struct ctn_pool *pool, uint32_t i, bool hot)
{
	struct frames *f = lock(pool);

	CTN_ASSERT(i < f->segment_count);
	f->hot[i] = hot;
	unlock(f);
}

/* Makes the CLEAN frames' extents in a segment read-only again. The lock is held. */
static void protect_clean(struct frames *f, uint32_t segment)
{
	struct frame *fr, *next;

	HASH_ITER (by_id, f->ids, fr, next) {
		if (fr->info.state != CTN_FRAME_CLEAN)
			continue;
		for (uint32_t i = 0; i < fr->extent_count; i++) {
			const struct ctn_extent *e = &fr->extents[i];

			if (e->segment == segment && mprotect(e->addr, e->bytes, PROT_READ) != 0)
				ctn_warn("pool: a frame stays writable: %s", strerror(errno));
		}
	}
}

/* Pinning demands writable pages and commits what has no memory yet; the lock is held all the
 * while, so that no frame is sealed or given up under it. */
static int frames_pin_segment(struct ctn_pool *pool, uint32_t i, ctn_pool_pin_fn *pin, void *arg)
{
	struct frames *f = lock(pool);
	const struct ctn_memory *m = &f->segments[i];
	struct ctn_segment segment = {m->addr, m->bytes, m->node, f->hot[i]};
	int rc;

	rc = f->protect && mprotect(m->addr, m->bytes, PROT_READ | PROT_WRITE) ? -errno : 0;
	if (rc == 0)
		rc = f->memory->populate(m->addr, m->bytes);
	if (rc == 0)
		rc = pin(arg, &segment);
	if (f->protect)
		protect_clean(f, i);
	unlock(f);
	return rc;
}

static void frames_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *s)
{
	struct frames *f = lock(pool);
	struct frame *fr, *next;

	s->total_bytes = f->space.count * UNIT;
	s->free_bytes = f->space.free * UNIT;
	HASH_ITER (by_id, f->ids, fr, next) {
		s->frames++;
		if (fr->info.state == CTN_FRAME_LOADING)
			s->loading_bytes += fr->info.charged;
		else
			s->clean_bytes += fr->info.charged;
		if (fr->info.leases)
			s->leased_bytes += fr->info.charged;
	}
	s->evictions = f->evictions;
	s->refused_evictions = f->refused;
	unlock(f);
	if (with_proc && ctn_memory_usage(f->segments, f->segment_count, &s->resident_bytes,
					  &s->huge_bytes) != 0)
		ctn_warn("pool: cannot read /proc/self/smaps");
}

/* ---- open and close -------------------------------------------------------------------- */

/*
 * Before Linux 5.19 a page that is pinned, made read-only and writable again is replaced by a
 * copy at the next write, and DMA goes on with the old one: there frames stay writable.
 */
static bool kernel_keeps_pins(void)
{
	struct utsname u;
	int major = 0, minor = 0;

	if (uname(&u) != 0 || sscanf(u.release, "%d.%d", &major, &minor) != 2)
		return false;
	return major > 5 || (major == 5 && minor >= 19);
}

static void frames_close(struct ctn_pool *pool)
{
	struct frames *f = frames_of(pool);
	struct frame *fr, *next;

	HASH_ITER (by_id, f->ids, fr, next) {
		CTN_ASSERT(fr->info.state == CTN_FRAME_CLEAN && fr->info.leases == 0);
		retire(f, fr);
	}
	for (uint32_t i = 0; i < f->segment_count; i++)
		f->memory->unmap(&f->segments[i]);
	pthread_mutex_destroy(&f->lock);
	ctn_space_fini(&f->space);
	free(f->marks);
	free(f->committed);
	free(f->hot);
	free(f->segments);
	free(f);
}

static const struct ctn_pool_ops frames_ops = {
	.close = frames_close,
	.alloc = frames_alloc,
	.seal = frames_seal,
	.abort = frames_abort,
	.lookup = frames_lookup,
	.list = frames_list,
	.lease = frames_lease,
	.release = frames_release,
	.evict = frames_evict,
	.extents = frames_extents,
	.segment_count = frames_segment_count,
	.segment = frames_segment,
	.set_hot = frames_set_hot,
	.pin_segment = frames_pin_segment,
	.get_stats = frames_get_stats,
};

/* Maps the segments: all of equal size but the last. */
static int map_segments(struct frames *f, const struct ctn_pool_config *cfg, uint64_t total,
			uint64_t each, struct ctn_err *err)
{
	for (uint64_t at = 0; at < total; at += each) {
		uint64_t bytes = CTN_MIN(each, total - at);
		int rc = f->memory->map(bytes, cfg->node, &f->segments[f->segment_count], err);

		if (rc)
			return rc;
		f->hot[f->segment_count++] = at + bytes <= cfg->hot_bytes;
	}
	return 0;
}

int ctn_frames_open(const struct ctn_pool_config *cfg, const struct ctn_memory_ops *memory,
		    struct ctn_pool **pool, struct ctn_err *err)
{
	uint64_t total = ctn_align_down(cfg->bytes, UNIT);
	uint64_t each = CTN_MIN(cfg->segment_bytes ? cfg->segment_bytes : CTN_GIB, total);
	uint64_t units = total / UNIT, segments = (total + each - 1) / each;
	struct frames *f;
	int rc;

	if (units >= UINT32_MAX)
		return ctn_err_set(err, -EINVAL, "pool: size %llu is too large",
				   (unsigned long long)cfg->bytes);
	f = calloc(1, sizeof(*f));
	if (!f)
		return ctn_err_set(err, -ENOMEM, "pool: out of memory");
	f->base.ops = &frames_ops;
	f->memory = memory;
	f->poison = cfg->poison;
	f->protect = kernel_keeps_pins();
	pthread_mutex_init(&f->lock, NULL);
	f->segments = calloc(segments, sizeof(*f->segments));
	f->hot = calloc(segments, sizeof(*f->hot));
	f->committed = calloc(units, 1);
	f->marks = calloc(units, 1);
	rc = ctn_space_init(&f->space, (uint32_t)units, (uint32_t)(each / UNIT));
	if (rc || !f->segments || !f->hot || !f->committed || !f->marks)
		rc = ctn_err_set(err, -ENOMEM, "pool: no memory for the table of %llu units",
				 (unsigned long long)units);
	if (rc == 0)
		rc = map_segments(f, cfg, total, each, err);
	if (rc) {
		frames_close(&f->base);
		return rc;
	}
	*pool = &f->base;
	return 0;
}
