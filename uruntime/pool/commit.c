// SPDX-License-Identifier: MIT
/*
 * The memory behind the units: committed for a frame, or for a whole segment that is pinned.
 *
 * The pool's mutex is held for the books only, never while the kernel finds memory or pins it:
 * the calls that serve running models must not wait for that. Two threads may commit the same
 * unit at once (one its frame, one its segment), which populate allows.
 *
 * A segment that is being pinned has `pins`: as long as it has, nothing in it is made
 * read-only, for that would fail the pin. The end of the last one makes up for it.
 */
#include "pool/table.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static uint8_t *unit_addr(const struct frames *f, uint32_t unit)
{
	return f->segments[unit / f->space.segment_units].addr +
	       unit % f->space.segment_units * CTN_UNIT;
}

static int make_writable(const struct frames *f, uint8_t *addr, uint64_t bytes)
{
	return f->protect && mprotect(addr, bytes, PROT_READ | PROT_WRITE) != 0 ? -errno : 0;
}

/* The first units in [*first, end) without memory; false when there are none. Locked. */
static bool next_bare(const struct frames *f, uint32_t *first, uint32_t end, uint32_t *count)
{
	uint32_t stop;

	while (*first < end && f->committed[*first])
		(*first)++;
	for (stop = *first; stop < end && !f->committed[stop];)
		stop++;
	*count = stop - *first;
	return *count > 0;
}

/* Commits those of the units, all of one segment, that have no memory yet. They are writable
 * afterwards, and the caller sees to it that nobody makes them read-only meanwhile. */
static int commit_units(struct frames *f, uint32_t first, uint32_t count)
{
	uint32_t end = first + count, n;
	int rc = 0;

	pthread_mutex_lock(&f->lock);
	while (rc == 0 && next_bare(f, &first, end, &n)) {
		pthread_mutex_unlock(&f->lock);
		rc = make_writable(f, unit_addr(f, first), n * CTN_UNIT);
		if (rc == 0)
			rc = f->memory->populate(unit_addr(f, first), n * CTN_UNIT);
		pthread_mutex_lock(&f->lock);
		if (rc == 0)
			memset(f->committed + first, 1, n);
		first += n;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

int ctn_frame_commit(struct frames *f, const struct frame *fr)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < fr->extent_count; i++) {
		const struct ctn_extent *e = &fr->extents[i];

		rc = make_writable(f, e->addr, e->bytes);
		if (rc == 0)
			rc = commit_units(f, ctn_first_unit(f, e), (uint32_t)(e->bytes / CTN_UNIT));
	}
	return rc;
}

/* Makes read-only what is to be so in a segment: the CLEAN frames, and the free units. Locked. */
static void protect_segment(struct frames *f, uint32_t segment)
{
	uint32_t first = segment * f->space.segment_units, end;
	uint32_t last = first + (uint32_t)(f->segments[segment].bytes / CTN_UNIT);
	struct frame *fr, *next;

	memset(f->marks, 0, f->space.count);
	ctn_space_mark(&f->space, f->marks);
	HASH_ITER (by_id, f->ids, fr, next) {
		for (uint32_t i = 0; fr->info.state == CTN_FRAME_CLEAN && i < fr->extent_count; i++)
			memset(f->marks + ctn_first_unit(f, &fr->extents[i]), 1,
			       fr->extents[i].bytes / CTN_UNIT);
	}
	for (uint32_t u = first; u < last; u = end) {
		for (end = u; end < last && f->marks[end] == f->marks[u];)
			end++;
		if (f->marks[u] && mprotect(unit_addr(f, u), (end - u) * CTN_UNIT, PROT_READ) != 0)
			ctn_warn("pool: frames in segment %u stay writable: %s", segment,
				 strerror(errno));
	}
}

int ctn_segment_pin(struct frames *f, uint32_t i, ctn_pool_pin_fn *pin, void *arg)
{
	const struct ctn_memory *m = &f->segments[i];
	struct ctn_segment segment = {m->addr, m->bytes, m->node, false};
	int rc;

	pthread_mutex_lock(&f->lock);
	f->pins[i]++;
	segment.hot = f->hot[i];
	pthread_mutex_unlock(&f->lock);
	rc = commit_units(f, i * f->space.segment_units, (uint32_t)(m->bytes / CTN_UNIT));
	/* Only now, so that the CLEAN frames are writable for no longer than need be. */
	if (rc == 0)
		rc = make_writable(f, m->addr, m->bytes);
	if (rc == 0)
		rc = pin(arg, &segment);
	pthread_mutex_lock(&f->lock);
	if (--f->pins[i] == 0 && f->protect)
		protect_segment(f, i);
	pthread_mutex_unlock(&f->lock);
	return rc;
}
