// SPDX-License-Identifier: MIT
/*
 * The bytes of a module's pool in this process: a mapping a segment, read-only but for the LOADING
 * frames of ours that have their memory. A late write faults instead of spoiling a frame.
 *
 * A segment that is being pinned for DMA must be writable as a whole: as long as it has `pins`,
 * nothing in it is made read-only, and the end of the last one makes up for it. The mappings
 * are shared, so a page that is pinned stays the same whatever is done to its protection.
 */
#include "pool/kmod.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNIT CTN_EXTENT_ALIGN
/* Five seconds. */
#define HOT_TRIES    250
#define HOT_PAUSE_US 20000

/* ---- mapping --------------------------------------------------------------------------- */

static int tell_hot(struct kmod_pool *p, uint32_t segment, bool hot)
{
	struct computron_pool_hot h = {
		.flags = hot ? COMPUTRON_HOT_ON : 0,
		.offset = (uint64_t)segment * p->segment_units * UNIT,
		.bytes = p->segments[segment].bytes,
	};

	return CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_HOT, &h);
}

/* A frame that a process was filling when it was killed stays in the way until its DMA has ended,
 * some moments after the process. */
static int make_hot(struct kmod_pool *p, uint32_t segment)
{
	int rc = tell_hot(p, segment, true);

	for (int i = 0; rc == -EBUSY && i < HOT_TRIES; i++) {
		usleep(HOT_PAUSE_US);
		rc = tell_hot(p, segment, true);
	}
	return rc;
}

static int map_segment(struct kmod_pool *p, uint64_t offset, uint64_t bytes, struct ctn_err *err)
{
	struct ctn_memory *m = &p->segments[p->segment_count];
	int rc = ctn_memory_reserve(bytes, m, err);

	if (rc)
		return rc;
	p->segment_count++;
	rc = p->sys->mmap(p->sys->ctx, m->addr, bytes, p->fd, offset);
	if (rc)
		return ctn_err_set(err, rc, "pool %s: map of %llu bytes: %s", p->name,
				   (unsigned long long)bytes, strerror(-rc));
	madvise(m->addr, bytes, MADV_DONTFORK);
	madvise(m->addr, bytes, MADV_DONTDUMP);
	return 0;
}

int ctn_kmod_map(struct kmod_pool *p, const struct kmod_opened *o,
		 const struct ctn_pool_config *cfg, struct ctn_err *err)
{
	uint64_t count = (o->bytes + o->segment_bytes - 1) / o->segment_bytes;
	int rc;

	p->segment_units = (uint32_t)(o->segment_bytes / UNIT);
	p->units = (uint32_t)(o->bytes / UNIT);
	p->segments = calloc(count, sizeof(*p->segments));
	p->hot = calloc(count, sizeof(*p->hot));
	p->pins = calloc(count, sizeof(*p->pins));
	p->writable = calloc(p->units, 1);
	if (!p->segments || !p->hot || !p->pins || !p->writable)
		return ctn_err_set(err, -ENOMEM, "pool %s: no memory for the table of %u units",
				   p->name, p->units);
	for (uint64_t at = 0; at < o->bytes; at += o->segment_bytes) {
		uint64_t bytes = CTN_MIN(o->segment_bytes, o->bytes - at);
		uint32_t i = p->segment_count;

		rc = map_segment(p, at, bytes, err);
		if (rc)
			return rc;
		p->segments[i].node = o->node;
		if (cfg->hot_bytes == UINT64_MAX || at + bytes > cfg->hot_bytes)
			continue;
		rc = make_hot(p, i);
		if (rc)
			return ctn_err_set(err, rc, "pool %s: segment %u cannot be hot: %s",
					   p->name, i, strerror(-rc));
		p->hot[i] = true;
	}
	return 0;
}

void ctn_kmod_unmap(struct kmod_pool *p)
{
	for (uint32_t i = 0; i < p->segment_count; i++)
		ctn_memory_unreserve(&p->segments[i]);
	free(p->writable);
	free(p->pins);
	free(p->hot);
	free(p->segments);
}

void ctn_kmod_place(const struct kmod_pool *p, const struct computron_extent *from,
		    struct ctn_extent *to)
{
	uint64_t segment_bytes = (uint64_t)p->segment_units * UNIT;

	to->segment = (uint32_t)(from->offset / segment_bytes);
	to->segment_offset = from->offset % segment_bytes;
	to->addr = p->segments[to->segment].addr + to->segment_offset;
	to->bytes = from->bytes;
}

void ctn_kmod_set_hot(struct kmod_pool *p, uint32_t segment, bool hot)
{
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	if (hot != p->hot[segment])
		rc = tell_hot(p, segment, hot);
	if (rc == 0)
		p->hot[segment] = hot;
	pthread_mutex_unlock(&p->lock);
	if (rc)
		ctn_warn("pool %s: segment %u stays %s: %s", p->name, segment, hot ? "warm" : "hot",
			 strerror(-rc));
}

/* ---- protection ------------------------------------------------------------------------ */

int ctn_kmod_make_writable(struct kmod_pool *p, const struct kmod_frame *fr, bool writable)
{
	for (uint32_t i = 0; i < fr->extent_count; i++) {
		const struct ctn_extent *e = &fr->extents[i];
		uint64_t first = (uint64_t)e->segment * p->segment_units + e->segment_offset / UNIT;

		memset(p->writable + first, writable, e->bytes / UNIT);
		if (!writable && p->pins[e->segment])
			continue;
		if (mprotect(e->addr, e->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0)
			return -errno;
	}
	return 0;
}

/* Locked. */
static void protect_segment(struct kmod_pool *p, uint32_t segment)
{
	const struct ctn_memory *m = &p->segments[segment];
	const uint8_t *writable = p->writable + (uint64_t)segment * p->segment_units;
	uint64_t units = m->bytes / UNIT, end;

	for (uint64_t u = 0; u < units; u = end) {
		for (end = u; end < units && writable[end] == writable[u];)
			end++;
		if (!writable[u] && mprotect(m->addr + u * UNIT, (end - u) * UNIT, PROT_READ) != 0)
			ctn_warn("pool %s: frames in segment %u stay writable: %s", p->name,
				 segment, strerror(errno));
	}
}

int ctn_kmod_pin(struct kmod_pool *p, uint32_t segment, ctn_pool_pin_fn *pin, void *arg)
{
	const struct ctn_memory *m = &p->segments[segment];
	struct ctn_segment s = {m->addr, m->bytes, m->node, false};
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	p->pins[segment]++;
	s.hot = p->hot[segment];
	if (mprotect(m->addr, m->bytes, PROT_READ | PROT_WRITE) != 0)
		rc = -errno;
	pthread_mutex_unlock(&p->lock);
	if (rc == 0)
		rc = ctn_populate(m->addr, m->bytes);
	if (rc == 0)
		rc = pin(arg, &s);
	pthread_mutex_lock(&p->lock);
	if (--p->pins[segment] == 0)
		protect_segment(p, segment);
	pthread_mutex_unlock(&p->lock);
	return rc;
}
