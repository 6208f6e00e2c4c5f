// SPDX-License-Identifier: MIT
/* The pretended module's frames: the calls on a pool. */
#include "fake_kmod_state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

/* ---- tables ------------------------------------------------------------------------------ */

static struct frame *frame_by_ref(struct pool *p, struct computron_ref ref)
{
	struct frame *fr;

	DL_FOREACH (p->frames, fr) {
		if (fr->info.ref.id == ref.id && fr->info.ref.generation == ref.generation)
			return fr;
	}
	return NULL;
}

uint32_t fake_leases_of(const struct frame *fr, const struct file *file)
{
	const struct lease *l;
	uint32_t n = 0;

	LL_FOREACH (fr->leases, l)
		n += !file || l->file == file;
	return n;
}

static bool all_hot(const struct pool *p, const struct frame *fr)
{
	for (uint32_t i = 0; i < fr->info.extents; i++) {
		for (uint64_t u = 0; u < fr->extents[i].bytes / UNIT; u++) {
			if (!p->hot[fr->extents[i].offset / UNIT + u])
				return false;
		}
	}
	return true;
}

static bool any_hot(const struct pool *p, const struct frame *fr)
{
	for (uint32_t i = 0; i < fr->info.extents; i++) {
		for (uint64_t u = 0; u < fr->extents[i].bytes / UNIT; u++) {
			if (p->hot[fr->extents[i].offset / UNIT + u])
				return true;
		}
	}
	return false;
}

/* ---- the end of frames ------------------------------------------------------------------- */

void fake_remove_frame(struct pool *p, struct frame *fr)
{
	struct lease *l, *tmp;

	for (uint32_t i = 0; i < fr->info.extents; i++) {
		for (uint64_t u = 0; u < fr->extents[i].bytes / UNIT; u++) {
			uint64_t unit = fr->extents[i].offset / UNIT + u;

			p->taken[unit] = false;
			/* Zero for who comes next; what is hot keeps its pages. */
			if (!p->hot[unit] &&
			    fallocate(p->memfd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				      (off_t)(unit * UNIT), (off_t)UNIT) != 0)
				abort();
		}
	}
	LL_FOREACH_SAFE(fr->leases, l, tmp)
	free(l);
	DL_DELETE(p->frames, fr);
	free(fr);
}

void fake_give_up(struct pool *p, struct frame *fr)
{
	if (fr->pinned && !all_hot(p, fr)) {
		fr->info.state = COMPUTRON_FRAME_QUARANTINED;
		fr->owner = NULL;
	} else {
		fake_remove_frame(p, fr);
	}
}

static void announce(struct fake_kmod *k, struct pool *p, const struct file *cause, uint32_t type,
		     const struct frame *fr)
{
	uint64_t one = 1;
	struct file *f;

	p->seq++;
	LL_FOREACH (k->files, f) {
		if (f->pool != p || f == cause)
			continue;
		if (f->event_count == COMPUTRON_EVENTS) {
			memmove(f->events, f->events + 1, sizeof(f->events) - sizeof(f->events[0]));
			f->event_count--;
			f->lost++;
		}
		f->events[f->event_count] = (struct computron_event){
			.size = sizeof(f->events[0]), .type = type, .seq = p->seq};
		if (fr) {
			f->events[f->event_count].ref = fr->info.ref;
			f->events[f->event_count].bytes = fr->info.charged;
		}
		f->event_count++;
		if (write(f->fd, &one, sizeof(one)) != sizeof(one))
			abort();
	}
}

static uint64_t clean_bytes(const struct pool *p)
{
	const struct frame *fr;
	uint64_t n = 0;

	DL_FOREACH (p->frames, fr)
		n += fr->info.state == COMPUTRON_FRAME_CLEAN ? fr->info.charged : 0;
	return n;
}

uint32_t fake_reclaim(struct fake_kmod *k, struct pool *p, uint32_t frames)
{
	struct frame *fr, *tmp;
	uint32_t n = 0;

	DL_FOREACH_SAFE (p->frames, fr, tmp) {
		if (n == frames)
			break;
		if (fr->info.state != COMPUTRON_FRAME_CLEAN || fr->leases || any_hot(p, fr))
			continue;
		if (clean_bytes(p) - fr->info.charged < p->made.floor)
			break;
		if (fr->pinned) {
			p->counts.refused++;
			continue;
		}
		p->counts.reclaims++;
		p->counts.reclaimed_bytes += fr->info.charged;
		announce(k, p, NULL, COMPUTRON_EVENT_RECLAIMED, fr);
		fake_remove_frame(p, fr);
		n++;
	}
	return n;
}

/* ---- calls on a pool --------------------------------------------------------------------- */

static int do_stat(struct fake_kmod *k, struct pool *p, struct computron_pool_stat *a)
{
	uint32_t size = a->size, flags = a->flags;
	const struct frame *fr;
	const struct file *f;

	*a = p->counts;
	a->size = size;
	a->flags = flags;
	a->unit_bytes = UNIT;
	a->bytes = p->made.bytes;
	a->quota = p->made.quota;
	a->floor = p->made.floor;
	a->node = p->made.node;
	DL_FOREACH (p->frames, fr) {
		a->frames++;
		a->used += fr->info.charged;
		if (fr->info.state == COMPUTRON_FRAME_LOADING)
			a->loading += fr->info.charged;
		else if (fr->info.state == COMPUTRON_FRAME_CLEAN)
			a->clean += fr->info.charged;
		else
			a->quarantined += fr->info.charged;
		if (fr->leases)
			a->leased += fr->info.charged;
		a->huge += fr->info.huge_bytes;
		if (fr->populated)
			a->populated += fr->info.charged;
	}
	for (uint32_t u = 0; u < p->units; u++)
		a->hot += p->hot[u] ? UNIT : 0;
	LL_FOREACH (k->files, f)
		a->files += f->pool == p;
	if (k->faults.reclaim_in_stat)
		fake_reclaim(k, p, 1);
	return 0;
}

static int do_set(struct pool *p, const struct computron_pool_set *a)
{
	if (a->flags & COMPUTRON_SET_QUOTA) {
		if (a->quota > p->made.bytes)
			return -EINVAL;
		p->made.quota = a->quota;
	}
	if (a->flags & COMPUTRON_SET_FLOOR)
		p->made.floor = a->floor;
	return 0;
}

static int do_hot(struct fake_kmod *k, struct pool *p, struct file *f,
		  const struct computron_pool_hot *a)
{
	bool on = a->flags & COMPUTRON_HOT_ON;
	uint64_t first = a->offset / UNIT, count = a->bytes / UNIT;

	if (a->offset % UNIT || a->bytes % UNIT || count == 0 || first + count > p->units)
		return -EINVAL;
	for (uint64_t u = first; u < first + count; u++) {
		if (on ? p->hot[u] == f : p->hot[u] != f)
			return -EINVAL;
	}
	if (on && k->faults.hot_busy) {
		k->faults.hot_busy--;
		return -EBUSY;
	}
	for (uint64_t u = first; u < first + count; u++)
		p->hot[u] = on ? f : NULL;
	return 0;
}

/* First fit, over as many runs as it takes, none across a segment's border. */
static int take_units(struct pool *p, struct frame *fr, uint64_t units)
{
	uint64_t segment = p->made.segment_bytes ? p->made.segment_bytes / UNIT : p->units;
	uint64_t free_units = 0;

	for (uint32_t u = 0; u < p->units; u++)
		free_units += !p->taken[u];
	if (free_units < units)
		return -ENOSPC;
	for (uint32_t u = 0; u < p->units && units; u++) {
		struct computron_extent *e = &fr->extents[fr->info.extents];

		if (p->taken[u])
			continue;
		p->taken[u] = true;
		units--;
		if (fr->info.extents && u % segment && e[-1].offset + e[-1].bytes == u * UNIT) {
			e[-1].bytes += UNIT;
			continue;
		}
		if (fr->info.extents == MAX_EXTENTS)
			abort();
		*e = (struct computron_extent){.offset = u * UNIT, .bytes = UNIT};
		fr->info.extents++;
	}
	return 0;
}

static int by_id(const struct frame *a, const struct frame *b)
{
	return a->info.ref.id < b->info.ref.id ? -1 : a->info.ref.id > b->info.ref.id;
}

static int do_alloc(struct pool *p, struct file *f, struct computron_frame_alloc *a)
{
	uint64_t charged = (a->bytes + UNIT - 1) / UNIT * UNIT, used = 0;
	struct frame *fr;
	int rc;

	if (a->bytes == 0)
		return -EINVAL;
	if (!(a->flags & COMPUTRON_ALLOC_RESERVE))
		return -EOPNOTSUPP;
	DL_FOREACH (p->frames, fr) {
		used += fr->info.charged;
		if (fr->info.state != COMPUTRON_FRAME_QUARANTINED &&
		    memcmp(fr->info.key, a->key, sizeof(a->key)) == 0) {
			a->ref = fr->info.ref;
			return -EEXIST;
		}
	}
	if (a->bytes > p->made.bytes)
		return -EFBIG;
	if (used + charged > p->made.quota)
		return -EDQUOT;
	fr = calloc(1, sizeof(*fr));
	if (!fr)
		abort();
	rc = take_units(p, fr, charged / UNIT);
	if (rc) {
		free(fr);
		return rc;
	}
	memcpy(fr->info.key, a->key, sizeof(a->key));
	fr->info.bytes = a->bytes;
	fr->info.charged = charged;
	fr->info.state = COMPUTRON_FRAME_LOADING;
	fr->info.ref.id = fr->extents[0].offset / UNIT;
	fr->info.ref.generation = ++p->generation;
	fr->owner = f;
	DL_INSERT_INORDER(p->frames, fr, by_id);
	p->counts.allocs++;
	a->ref = fr->info.ref;
	a->charged = charged;
	a->huge_bytes = 0;
	a->extents = fr->info.extents;
	return 0;
}

static int own_loading(struct pool *p, struct file *f, struct computron_ref ref, struct frame **fr)
{
	*fr = frame_by_ref(p, ref);
	if (!*fr)
		return -ESTALE;
	if ((*fr)->info.state != COMPUTRON_FRAME_LOADING)
		return -EINVAL;
	return (*fr)->owner == f ? 0 : -EPERM;
}

static int do_populate(struct fake_kmod *k, struct pool *p, struct file *f,
		       struct computron_frame_populate *a)
{
	struct frame *fr;
	int rc = own_loading(p, f, a->ref, &fr);

	if (rc == 0)
		rc = k->faults.populate;
	for (uint32_t i = 0; rc == 0 && i < fr->info.extents; i++) {
		if (fallocate(p->memfd, 0, (off_t)fr->extents[i].offset,
			      (off_t)fr->extents[i].bytes) != 0)
			rc = -errno;
	}
	if (rc == 0) {
		fr->populated = true;
		/* All of the first unit and half of the others are huge. */
		fr->info.huge_bytes = a->huge_bytes =
			UNIT + (fr->info.charged - UNIT) / UNIT / 2 * UNIT;
	}
	return rc;
}

static void add_lease(struct frame *fr, struct file *f)
{
	struct lease *l = calloc(1, sizeof(*l));

	if (!l)
		abort();
	l->file = f;
	LL_PREPEND(fr->leases, l);
}

void fake_drop_lease(struct frame *fr, struct file *f)
{
	struct lease *l;

	LL_FOREACH (fr->leases, l) {
		if (l->file == f)
			break;
	}
	LL_DELETE(fr->leases, l);
	free(l);
}

static int do_seal(struct fake_kmod *k, struct pool *p, struct file *f,
		   struct computron_frame_seal *a)
{
	static const uint8_t none[COMPUTRON_DIGEST_BYTES];
	struct frame *fr;
	int rc = own_loading(p, f, a->ref, &fr);

	if (rc)
		return rc;
	if (!(a->flags & COMPUTRON_SEAL_DIGEST) && memcmp(a->digest, none, sizeof(none)) != 0)
		return -EINVAL;
	if (!fr->populated)
		return -EINVAL;
	if (k->faults.seal)
		return k->faults.seal;
	fr->info.state = COMPUTRON_FRAME_CLEAN;
	fr->owner = NULL;
	if (a->flags & COMPUTRON_SEAL_DIGEST)
		fr->info.flags |= COMPUTRON_FRAME_HAS_DIGEST;
	memcpy(fr->info.digest, a->digest, sizeof(a->digest));
	memcpy(fr->info.owner, a->owner, sizeof(a->owner));
	if (a->flags & COMPUTRON_SEAL_LEASE)
		add_lease(fr, f);
	a->huge_bytes = fr->info.huge_bytes;
	p->counts.seals++;
	return 0;
}

static int do_abort(struct pool *p, struct file *f, const struct computron_frame_op *a)
{
	struct frame *fr;
	int rc = own_loading(p, f, a->ref, &fr);

	if (rc == 0)
		fake_give_up(p, fr);
	return rc;
}

static int do_lease(struct pool *p, struct file *f, const struct computron_frame_op *a)
{
	struct frame *fr = frame_by_ref(p, a->ref);

	if (!fr)
		return -ESTALE;
	if (fr->info.state != COMPUTRON_FRAME_CLEAN)
		return -EBUSY;
	add_lease(fr, f);
	return 0;
}

static int do_release(struct pool *p, struct file *f, const struct computron_frame_op *a)
{
	struct frame *fr = frame_by_ref(p, a->ref);

	if (!fr)
		return -ESTALE;
	if (fake_leases_of(fr, f) == 0)
		return -EINVAL;
	fake_drop_lease(fr, f);
	return 0;
}

static int do_evict(struct fake_kmod *k, struct pool *p, struct file *f,
		    const struct computron_frame_op *a)
{
	struct frame *fr = frame_by_ref(p, a->ref);

	if (!fr)
		return -ESTALE;
	if (fr->info.state != COMPUTRON_FRAME_CLEAN)
		return -EBUSY;
	if (fr->leases || (fr->pinned && !all_hot(p, fr))) {
		p->counts.refused++;
		return -EBUSY;
	}
	p->counts.evictions++;
	p->counts.evicted_bytes += fr->info.charged;
	announce(k, p, f, COMPUTRON_EVENT_EVICTED, fr);
	fake_remove_frame(p, fr);
	return 0;
}

static void tell(const struct frame *fr, const struct file *f, struct computron_frame_info *info)
{
	*info = fr->info;
	info->leases = fake_leases_of(fr, NULL);
	if (fr->info.state == COMPUTRON_FRAME_LOADING && fr->owner == f)
		info->flags |= COMPUTRON_FRAME_MINE;
	if (fr->populated || fr->info.state == COMPUTRON_FRAME_CLEAN)
		info->flags |= COMPUTRON_FRAME_POPULATED;
}

static bool is_sought(const struct frame *fr, const struct computron_frame_lookup *a)
{
	switch (a->flags) {
	case COMPUTRON_LOOKUP_REF:
		return fr->info.ref.id == a->info.ref.id &&
		       fr->info.ref.generation == a->info.ref.generation;
	case COMPUTRON_LOOKUP_CONTENT:
		return fr->info.state == COMPUTRON_FRAME_CLEAN &&
		       (fr->info.flags & COMPUTRON_FRAME_HAS_DIGEST) &&
		       memcmp(fr->info.digest, a->info.digest, sizeof(a->info.digest)) == 0 &&
		       memcmp(fr->info.owner, a->info.owner, sizeof(a->info.owner)) == 0;
	}
	return fr->info.state != COMPUTRON_FRAME_QUARANTINED &&
	       memcmp(fr->info.key, a->info.key, sizeof(a->info.key)) == 0;
}

static int do_lookup(struct pool *p, struct file *f, struct computron_frame_lookup *a)
{
	const struct frame *fr;

	if (a->flags > COMPUTRON_LOOKUP_REF || a->flags == (COMPUTRON_LOOKUP_REF | 1))
		return -EINVAL;
	DL_FOREACH (p->frames, fr) {
		if (is_sought(fr, a)) {
			tell(fr, f, &a->info);
			return 0;
		}
	}
	return a->flags == COMPUTRON_LOOKUP_REF ? -ESTALE : -ENOENT;
}

static int do_list(struct pool *p, struct file *f, struct computron_frame_list *a)
{
	struct computron_frame_info *rows = (void *)(uintptr_t)a->frames;
	const struct frame *fr;
	uint32_t room = a->count;

	if (a->row_bytes != sizeof(*rows))
		return -EINVAL;
	a->count = 0;
	a->total = 0;
	DL_FOREACH (p->frames, fr)
		a->total++;
	DL_FOREACH (p->frames, fr) {
		if (fr->info.ref.id < a->next)
			continue;
		if (a->count == room) {
			a->next = fr->info.ref.id;
			return 0;
		}
		tell(fr, f, &rows[a->count++]);
	}
	a->next = UINT64_MAX;
	return 0;
}

static int do_extents(struct fake_kmod *k, struct pool *p, struct computron_frame_extents *a)
{
	struct computron_extent *out = (void *)(uintptr_t)a->extents;
	const struct frame *fr = frame_by_ref(p, a->ref);

	if (!fr)
		return -ESTALE;
	if (k->faults.extents)
		return k->faults.extents;
	a->total = fr->info.extents;
	a->count = CTN_MIN(a->count, a->total);
	memcpy(out, fr->extents, a->count * sizeof(*out));
	return 0;
}

int fake_pool_call(struct fake_kmod *k, struct file *f, unsigned long request, void *arg)
{
	struct pool *p = f->pool;

	switch (request) {
	case COMPUTRON_IOC_POOL_STAT:
		return do_stat(k, p, arg);
	case COMPUTRON_IOC_POOL_SET:
		return do_set(p, arg);
	case COMPUTRON_IOC_POOL_HOT:
		return do_hot(k, p, f, arg);
	case COMPUTRON_IOC_FRAME_ALLOC:
		return do_alloc(p, f, arg);
	case COMPUTRON_IOC_FRAME_POPULATE:
		return do_populate(k, p, f, arg);
	case COMPUTRON_IOC_FRAME_SEAL:
		return do_seal(k, p, f, arg);
	case COMPUTRON_IOC_FRAME_ABORT:
		return do_abort(p, f, arg);
	case COMPUTRON_IOC_FRAME_LEASE:
		return do_lease(p, f, arg);
	case COMPUTRON_IOC_FRAME_RELEASE:
		return do_release(p, f, arg);
	case COMPUTRON_IOC_FRAME_EVICT:
		return do_evict(k, p, f, arg);
	case COMPUTRON_IOC_FRAME_LOOKUP:
		return do_lookup(p, f, arg);
	case COMPUTRON_IOC_FRAME_LIST:
		return do_list(p, f, arg);
	case COMPUTRON_IOC_FRAME_EXTENTS:
		return do_extents(k, p, arg);
	}
	return -ENOTTY;
}
