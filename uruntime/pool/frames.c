// SPDX-License-Identifier: MIT
/*
 * The provider-independent pool in this process: operations on the table of table.c.
 *
 * Locking: one mutex per pool guards the table, the frames, the space and the flags of the
 * segments. It is not held while memory is committed or pinned (commit.c): a frame that is
 * being committed stands in the table as LOADING, and its owner neither seals nor aborts it.
 *
 * Protection: a CLEAN frame's extents are read-only, and stay so after it is gone until they
 * are given to a new frame, so that a late write faults instead of spoiling another frame.
 */
#include "pool/frames.h"

#include "pool/table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#define UNIT CTN_UNIT

static struct frames *frames_of(struct ctn_pool *pool)
{
	return (struct frames *)pool;
}

static struct frames *lock(struct ctn_pool *pool)
{
	struct frames *f = frames_of(pool);

	pthread_mutex_lock(&f->lock);
	return f;
}

static void unlock(struct frames *f)
{
	ctn_table_check(f);
	pthread_mutex_unlock(&f->lock);
}

/* ---- operations ------------------------------------------------------------------------ */

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
	rc = ctn_table_enter(f, fr);
	*ref = fr->info.ref;
	unlock(f);
	if (rc)
		ctn_frame_free(fr);
	return rc;
}

static int frames_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count)
{
	struct frames *f = frames_of(pool);
	struct frame *fr;
	int rc = 0;

	if (count == 0 || extents[0].segment >= f->segment_count)
		return -EINVAL;
	lock(pool);
	fr = ctn_table_by_first_unit(f, ctn_first_unit(f, &extents[0]));
	if (!fr || fr->extent_count != count)
		rc = -ESTALE;
	else if (fr->info.state != CTN_FRAME_LOADING)
		rc = -EINVAL;
	unlock(f);
	if (rc)
		return rc;
	rc = ctn_frame_commit(f, fr);
	lock(pool);
	fr->committed = rc == 0;
	unlock(f);
	return rc;
}

static int frames_seal(struct ctn_pool *pool, struct ctn_frame_ref ref,
		       const struct ctn_digest *digest, const uint8_t owner[CTN_OWNER_DATA])
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_ref(f, ref);
	int rc = -ESTALE;

	if (!fr)
		goto out;
	rc = -EINVAL;
	if (fr->info.state != CTN_FRAME_LOADING || !fr->committed)
		goto out;
	rc = ctn_frame_protect(f, fr, PROT_READ);
	if (rc) {
		ctn_frame_protect(f, fr, PROT_READ | PROT_WRITE);
		goto out;
	}
	fr->info.state = CTN_FRAME_CLEAN;
	fr->info.leases = 1;
	if (owner)
		memcpy(fr->info.owner, owner, CTN_OWNER_DATA);
	if (digest) {
		fr->info.digest = *digest;
		fr->info.has_digest = true;
		ctn_table_name_content(f, fr);
	}
out:
	unlock(f);
	return rc;
}

static int frames_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_ref(f, ref);
	int rc = 0;

	if (!fr)
		rc = -ESTALE;
	else if (fr->info.state != CTN_FRAME_LOADING)
		rc = -EINVAL;
	else
		ctn_table_retire(f, fr);
	unlock(f);
	return rc;
}

static int frames_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
			 struct ctn_frame_info *info)
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_key(f, key);

	if (fr)
		*info = fr->info;
	unlock(f);
	return fr ? 0 : -ENOENT;
}

static int frames_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
				 const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info)
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_content(f, digest, owner);

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
	struct frame *fr = ctn_table_by_ref(f, ref);
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
	struct frame *fr = ctn_table_by_ref(f, ref);

	/* A lease keeps its frame: one that is not there was never leased by the caller. */
	CTN_ASSERT(fr && fr->info.leases > 0);
	if (fr && fr->info.leases > 0)
		fr->info.leases--;
	unlock(f);
}

static int frames_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_ref(f, ref);
	int rc = 0;

	if (!fr) {
		rc = -ESTALE;
	} else if (fr->info.state != CTN_FRAME_CLEAN || fr->info.leases) {
		rc = -EBUSY;
		f->refused++;
	} else {
		ctn_table_retire(f, fr);
		f->evictions++;
	}
	unlock(f);
	return rc;
}

static int frames_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
			  const struct ctn_extent **extents, uint32_t *count)
{
	struct frames *f = lock(pool);
	struct frame *fr = ctn_table_by_ref(f, ref);

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

static int frames_pin_segment(struct ctn_pool *pool, uint32_t i, ctn_pool_pin_fn *pin, void *arg)
{
	struct frames *f = frames_of(pool);

	CTN_ASSERT(i < f->segment_count);
	return ctn_segment_pin(f, i, pin, arg);
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
		ctn_table_retire(f, fr);
	}
	for (uint32_t i = 0; i < f->segment_count; i++)
		f->memory->unmap(&f->segments[i]);
	pthread_mutex_destroy(&f->lock);
	ctn_space_fini(&f->space);
	free(f->marks);
	free(f->committed);
	free(f->pins);
	free(f->hot);
	free(f->segments);
	free(f);
}

static const struct ctn_pool_ops frames_ops = {
	.close = frames_close,
	.alloc = frames_alloc,
	.commit = frames_commit,
	.seal = frames_seal,
	.abort = frames_abort,
	.lookup = frames_lookup,
	.lookup_content = frames_lookup_content,
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
	f->pins = calloc(segments, sizeof(*f->pins));
	f->committed = calloc(units, 1);
	f->marks = calloc(units, 1);
	rc = ctn_space_init(&f->space, (uint32_t)units, (uint32_t)(each / UNIT));
	if (rc || !f->segments || !f->hot || !f->pins || !f->committed || !f->marks)
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
