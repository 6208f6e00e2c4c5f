// SPDX-License-Identifier: MIT
#include "fake_kmod_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utlist.h>

/* ---- tables ------------------------------------------------------------------------------ */

static struct pool *pool_by_name(struct fake_kmod *k, const char *name)
{
	struct pool *p;

	LL_FOREACH (k->pools, p) {
		if (strncmp(p->made.name, name, sizeof(p->made.name)) == 0)
			return p;
	}
	return NULL;
}

static struct file *file_of(struct fake_kmod *k, int fd)
{
	struct file *f;

	LL_FOREACH (k->files, f) {
		if (f->fd == fd)
			return f;
	}
	return NULL;
}

static int new_file(struct fake_kmod *k, struct pool *pool)
{
	struct file *f = calloc(1, sizeof(*f));

	if (!f)
		abort();
	f->fd = eventfd(0, EFD_CLOEXEC);
	f->pool = pool;
	LL_PREPEND(k->files, f);
	return f->fd;
}

/* ---- calls on the device ----------------------------------------------------------------- */

static int do_info(struct fake_kmod *k, struct computron_info *a)
{
	const struct pool *p;

	if (k->faults.info)
		return k->faults.info;
	a->abi = k->faults.abi ? k->faults.abi : COMPUTRON_ABI;
	a->unit_bytes = k->faults.unit ? k->faults.unit : UNIT;
	a->features = COMPUTRON_FEATURE_HUGE | COMPUTRON_FEATURE_SHRINK;
	a->max_bytes = k->faults.max_bytes;
	a->pools = 0;
	a->total_bytes = 0;
	LL_FOREACH (k->pools, p) {
		a->pools++;
		a->total_bytes += p->made.bytes;
	}
	memcpy(a->version, "fake", 5);
	return 0;
}

static int do_create(struct fake_kmod *k, struct computron_pool_create *a)
{
	static const char chars[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t len = strnlen(a->name, sizeof(a->name));
	struct pool *p;

	a->bytes = a->bytes / UNIT * UNIT;
	if (len == 0 || len == sizeof(a->name) || a->name[0] == '.' ||
	    strspn(a->name, chars) != len || a->bytes == 0 || a->quota > a->bytes ||
	    a->segment_bytes % UNIT || a->segment_bytes > a->bytes)
		return -EINVAL;
	if (a->node > 0)
		return -ENXIO;
	if (pool_by_name(k, a->name))
		return -EEXIST;
	if ((k->faults.max_bytes && a->bytes > k->faults.max_bytes) || a->bytes / UNIT > MAX_UNITS)
		return -ENOSPC;
	p = calloc(1, sizeof(*p));
	if (!p)
		abort();
	p->made = *a;
	p->made.quota = a->quota ? a->quota : a->bytes;
	p->units = (uint32_t)(a->bytes / UNIT);
	p->memfd = memfd_create("fake", MFD_CLOEXEC);
	if (p->memfd < 0 || ftruncate(p->memfd, (off_t)a->bytes) != 0)
		abort();
	LL_APPEND(k->pools, p);
	a->fd = new_file(k, p);
	return 0;
}

static int do_open(struct fake_kmod *k, struct computron_pool_open *a)
{
	struct pool *p = pool_by_name(k, a->name);

	if (!p)
		return -ENOENT;
	if (k->faults.pool_open)
		return k->faults.pool_open;
	if (!(a->flags & COMPUTRON_OPEN_WRITE))
		return -EOPNOTSUPP;
	a->bytes = p->made.bytes;
	a->segment_bytes = p->made.segment_bytes;
	a->node = p->made.node;
	a->fd = new_file(k, p);
	return 0;
}

static void free_pool(struct fake_kmod *k, struct pool *p)
{
	while (p->frames)
		fake_remove_frame(p, p->frames);
	close(p->memfd);
	LL_DELETE(k->pools, p);
	free(p);
}

static int do_destroy(struct fake_kmod *k, const struct computron_pool_destroy *a)
{
	struct pool *p = pool_by_name(k, a->name);
	const struct file *f;

	if (!p)
		return -ENOENT;
	LL_FOREACH (k->files, f) {
		if (f->pool == p)
			return a->flags ? -EOPNOTSUPP : -EBUSY;
	}
	free_pool(k, p);
	return 0;
}

/* ---- the seam ---------------------------------------------------------------------------- */

/* Sizes of the structures, and the flags that are known. */
static const struct {
	unsigned long request;
	uint32_t size, flags;
	bool of_pool;
} calls[] = {
	{COMPUTRON_IOC_INFO, sizeof(struct computron_info), 0, false},
	{COMPUTRON_IOC_POOL_CREATE, sizeof(struct computron_pool_create), 0, false},
	{COMPUTRON_IOC_POOL_OPEN, sizeof(struct computron_pool_open), COMPUTRON_OPEN_WRITE, false},
	{COMPUTRON_IOC_POOL_DESTROY, sizeof(struct computron_pool_destroy), COMPUTRON_DESTROY_OPEN,
	 false},
	{COMPUTRON_IOC_POOL_STAT, sizeof(struct computron_pool_stat), COMPUTRON_STAT_SURVEY, true},
	{COMPUTRON_IOC_POOL_SET, sizeof(struct computron_pool_set),
	 COMPUTRON_SET_QUOTA | COMPUTRON_SET_FLOOR, true},
	{COMPUTRON_IOC_POOL_HOT, sizeof(struct computron_pool_hot), COMPUTRON_HOT_ON, true},
	{COMPUTRON_IOC_FRAME_ALLOC, sizeof(struct computron_frame_alloc), COMPUTRON_ALLOC_RESERVE,
	 true},
	{COMPUTRON_IOC_FRAME_POPULATE, sizeof(struct computron_frame_populate), 0, true},
	{COMPUTRON_IOC_FRAME_SEAL, sizeof(struct computron_frame_seal),
	 COMPUTRON_SEAL_DIGEST | COMPUTRON_SEAL_LEASE, true},
	{COMPUTRON_IOC_FRAME_ABORT, sizeof(struct computron_frame_op), 0, true},
	{COMPUTRON_IOC_FRAME_LEASE, sizeof(struct computron_frame_op), 0, true},
	{COMPUTRON_IOC_FRAME_RELEASE, sizeof(struct computron_frame_op), 0, true},
	{COMPUTRON_IOC_FRAME_EVICT, sizeof(struct computron_frame_op), 0, true},
	{COMPUTRON_IOC_FRAME_LOOKUP, sizeof(struct computron_frame_lookup),
	 COMPUTRON_LOOKUP_CONTENT | COMPUTRON_LOOKUP_REF, true},
	{COMPUTRON_IOC_FRAME_LIST, sizeof(struct computron_frame_list), 0, true},
	{COMPUTRON_IOC_FRAME_EXTENTS, sizeof(struct computron_frame_extents), 0, true},
};

static int check_call(const struct file *f, unsigned long request, const void *arg)
{
	uint32_t head[2];

	memcpy(head, arg, sizeof(head));
	for (size_t i = 0; i < CTN_ARRAY_LEN(calls); i++) {
		if (calls[i].request != request)
			continue;
		if (calls[i].of_pool != (f->pool != NULL) && request != COMPUTRON_IOC_INFO)
			return -ENOTTY;
		if (head[0] != calls[i].size || (head[1] & ~calls[i].flags))
			return -EINVAL;
		return 0;
	}
	return -ENOTTY;
}

static int dispatch(struct fake_kmod *k, struct file *f, unsigned long request, void *arg)
{
	switch (request) {
	case COMPUTRON_IOC_INFO:
		return do_info(k, arg);
	case COMPUTRON_IOC_POOL_CREATE:
		return do_create(k, arg);
	case COMPUTRON_IOC_POOL_OPEN:
		return do_open(k, arg);
	case COMPUTRON_IOC_POOL_DESTROY:
		return do_destroy(k, arg);
	}
	return fake_pool_call(k, f, request, arg);
}

static int sys_open(void *ctx, const char *path)
{
	struct fake_kmod *k = ctx;
	int rc = k->faults.open;

	if (rc == 0 && strcmp(path, COMPUTRON_DEVICE) != 0)
		rc = -ENOENT;
	pthread_mutex_lock(&k->lock);
	if (rc == 0)
		rc = new_file(k, NULL);
	pthread_mutex_unlock(&k->lock);
	return rc;
}

static int sys_ioctl(void *ctx, int fd, unsigned long request, void *arg)
{
	struct fake_kmod *k = ctx;
	struct file *f;
	int rc = -EBADF;

	pthread_mutex_lock(&k->lock);
	f = file_of(k, fd);
	if (f)
		rc = check_call(f, request, arg);
	if (rc == 0) {
		k->calls[_IOC_NR(request)]++;
		rc = dispatch(k, f, request, arg);
	}
	pthread_mutex_unlock(&k->lock);
	return rc;
}

/* What a file holds ends with it. */
static void release_file(struct fake_kmod *k, struct file *f)
{
	struct pool *p = f->pool;
	struct frame *fr, *tmp;

	for (uint32_t u = 0; p && u < p->units; u++) {
		if (p->hot[u] == f)
			p->hot[u] = NULL;
	}
	if (p) {
		DL_FOREACH_SAFE (p->frames, fr, tmp) {
			while (fake_leases_of(fr, f))
				fake_drop_lease(fr, f);
			if (fr->owner == f)
				fake_give_up(p, fr);
		}
	}
	LL_DELETE(k->files, f);
	close(f->fd);
	free(f);
}

static int sys_close(void *ctx, int fd)
{
	struct fake_kmod *k = ctx;
	struct file *f;

	pthread_mutex_lock(&k->lock);
	f = file_of(k, fd);
	if (f)
		release_file(k, f);
	pthread_mutex_unlock(&k->lock);
	return f ? 0 : -EBADF;
}

static int sys_mmap(void *ctx, void *addr, uint64_t bytes, int fd, uint64_t offset)
{
	struct fake_kmod *k = ctx;
	struct file *f;
	int rc = 0;

	pthread_mutex_lock(&k->lock);
	f = file_of(k, fd);
	if (!f || !f->pool)
		rc = -ENODEV;
	else if (offset % 4096 || offset > f->pool->made.bytes ||
		 bytes > f->pool->made.bytes - offset)
		rc = -EINVAL;
	else if (mmap(addr, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, f->pool->memfd,
		      (off_t)offset) == MAP_FAILED)
		rc = -errno;
	pthread_mutex_unlock(&k->lock);
	return rc;
}

/* Of descriptors that do not block. */
static ssize_t sys_read(void *ctx, int fd, void *buf, size_t len)
{
	struct computron_event *out = buf,
			       lost = {.size = sizeof(*out), .type = COMPUTRON_EVENT_OVERFLOW};
	struct fake_kmod *k = ctx;
	uint64_t drained;
	struct file *f;
	size_t n = 0;

	pthread_mutex_lock(&k->lock);
	f = file_of(k, fd);
	if (!f || !f->pool || len < sizeof(*out)) {
		pthread_mutex_unlock(&k->lock);
		return -EINVAL;
	}
	if (f->lost) {
		lost.seq = f->lost;
		out[n++] = lost;
		f->lost = 0;
	}
	while (n < len / sizeof(*out) && f->event_count) {
		out[n++] = f->events[0];
		memmove(f->events, f->events + 1, sizeof(f->events) - sizeof(f->events[0]));
		f->event_count--;
	}
	if (f->event_count == 0 && n && read(f->fd, &drained, sizeof(drained)) < 0)
		abort();
	pthread_mutex_unlock(&k->lock);
	return n ? (ssize_t)(n * sizeof(*out)) : -EAGAIN;
}

/* ---- for tests --------------------------------------------------------------------------- */

struct fake_kmod *fake_kmod_new(void)
{
	struct fake_kmod *k = calloc(1, sizeof(*k));

	if (!k)
		abort();
	pthread_mutex_init(&k->lock, NULL);
	k->sys = (struct ctn_kmod_sys){.open = sys_open,
				       .close = sys_close,
				       .ioctl = sys_ioctl,
				       .mmap = sys_mmap,
				       .read = sys_read,
				       .ctx = k};
	return k;
}

void fake_kmod_free(struct fake_kmod *k)
{
	while (k->files)
		release_file(k, k->files);
	while (k->pools)
		free_pool(k, k->pools);
	pthread_mutex_destroy(&k->lock);
	free(k);
}

const struct ctn_kmod_sys *fake_kmod_sys(struct fake_kmod *k)
{
	return &k->sys;
}

struct fake_kmod_faults *fake_kmod_faults(struct fake_kmod *k)
{
	return &k->faults;
}

uint32_t fake_kmod_reclaim(struct fake_kmod *k, const char *pool, uint32_t frames)
{
	struct pool *p;
	uint32_t n;

	pthread_mutex_lock(&k->lock);
	p = pool_by_name(k, pool);
	n = p ? fake_reclaim(k, p, frames) : 0;
	pthread_mutex_unlock(&k->lock);
	return n;
}

void fake_kmod_pin(struct fake_kmod *k, const char *pool, uint64_t unit, bool pinned)
{
	struct frame *fr, *tmp;
	struct pool *p;

	pthread_mutex_lock(&k->lock);
	p = pool_by_name(k, pool);
	DL_FOREACH_SAFE (p->frames, fr, tmp) {
		if (fr->info.ref.id != unit)
			continue;
		fr->pinned = pinned;
		if (!pinned && fr->info.state == COMPUTRON_FRAME_QUARANTINED)
			fake_remove_frame(p, fr);
	}
	pthread_mutex_unlock(&k->lock);
}

uint32_t fake_kmod_files(struct fake_kmod *k)
{
	const struct file *f;
	uint32_t n = 0;

	pthread_mutex_lock(&k->lock);
	LL_FOREACH (k->files, f)
		n += f->pool != NULL;
	pthread_mutex_unlock(&k->lock);
	return n;
}

uint32_t fake_kmod_calls(struct fake_kmod *k, unsigned long request)
{
	uint32_t n;

	pthread_mutex_lock(&k->lock);
	n = k->calls[_IOC_NR(request)];
	pthread_mutex_unlock(&k->lock);
	return n;
}
