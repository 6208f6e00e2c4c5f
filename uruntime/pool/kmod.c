// SPDX-License-Identifier: MIT
/* The provider "kmod": its losses, its segments, open and close. See kmod.h. */
#include "pool/kmod.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* ---- losses ----------------------------------------------------------------------------- */

static int kmod_event_fd(struct ctn_pool *pool)
{
	return ctn_kmod_of(pool)->fd;
}

/* The next event that was not handed out; false when there is none. Locked. */
static bool next_event(struct kmod_pool *p, struct computron_event *event)
{
	if (p->event_next == p->event_count) {
		ssize_t n = p->sys->read(p->sys->ctx, p->fd, p->events, sizeof(p->events));

		p->event_next = 0;
		p->event_count = n > 0 ? (uint32_t)((size_t)n / sizeof(p->events[0])) : 0;
		if (p->event_count == 0)
			return false;
	}
	*event = p->events[p->event_next++];
	return true;
}

static bool kmod_next_loss(struct ctn_pool *pool, struct ctn_frame_ref *ref)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct computron_event event;
	bool lost = false;

	while (!lost && next_event(p, &event)) {
		switch (event.type) {
		case COMPUTRON_EVENT_RECLAIMED:
		case COMPUTRON_EVENT_EVICTED:
			*ref = ctn_kmod_our_ref(event.ref);
			lost = true;
			break;
		case COMPUTRON_EVENT_OVERFLOW:
			/* What is gone is gone without the news, too. */
			ctn_warn("pool %s: %llu losses came too fast to be told one by one",
				 p->name, (unsigned long long)event.seq);
			break;
		case COMPUTRON_EVENT_DESTROYED:
			ctn_error("pool %s was destroyed: nothing can be staged until a restart",
				  p->name);
			break;
		}
	}
	ctn_kmod_unlock(p);
	return lost;
}

/* ---- segments --------------------------------------------------------------------------- */

static uint32_t kmod_segment_count(struct ctn_pool *pool)
{
	return ctn_kmod_of(pool)->segment_count;
}

static void kmod_segment(struct ctn_pool *pool, uint32_t i, struct ctn_segment *segment)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);

	CTN_ASSERT(i < p->segment_count);
	segment->addr = p->segments[i].addr;
	segment->bytes = p->segments[i].bytes;
	segment->node = p->segments[i].node;
	segment->hot = p->hot[i];
	ctn_kmod_unlock(p);
}

static void kmod_set_hot(struct ctn_pool *pool, uint32_t i, bool hot)
{
	CTN_ASSERT(i < ctn_kmod_of(pool)->segment_count);
	ctn_kmod_set_hot(ctn_kmod_of(pool), i, hot);
}

static int kmod_pin_segment(struct ctn_pool *pool, uint32_t i, ctn_pool_pin_fn *pin, void *arg)
{
	CTN_ASSERT(i < ctn_kmod_of(pool)->segment_count);
	return ctn_kmod_pin(ctn_kmod_of(pool), i, pin, arg);
}

/* ---- open and close --------------------------------------------------------------------- */

/* The frames stay, for whoever opens the pool next. */
static void kmod_close(struct ctn_pool *pool)
{
	struct kmod_pool *p = ctn_kmod_of(pool);
	struct kmod_frame *fr, *next;

	CTN_ASSERT(!p->frames);
	HASH_ITER (hh, p->frames, fr, next) {
		HASH_DELETE(hh, p->frames, fr);
		free(fr->extents);
		free(fr);
	}
	ctn_kmod_unmap(p);
	p->sys->close(p->sys->ctx, p->fd);
	if (p->temporary)
		ctn_kmod_destroy(p->sys, p->name);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static const struct ctn_pool_ops kmod_ops = {
	.close = kmod_close,
	.alloc = ctn_kmod_alloc,
	.commit = ctn_kmod_commit,
	.seal = ctn_kmod_seal,
	.abort = ctn_kmod_abort,
	.lookup = ctn_kmod_lookup,
	.lookup_content = ctn_kmod_lookup_content,
	.list = ctn_kmod_list,
	.lease = ctn_kmod_lease,
	.release = ctn_kmod_release,
	.evict = ctn_kmod_evict,
	.extents = ctn_kmod_extents,
	.event_fd = kmod_event_fd,
	.next_loss = kmod_next_loss,
	.segment_count = kmod_segment_count,
	.segment = kmod_segment,
	.set_hot = kmod_set_hot,
	.pin_segment = kmod_pin_segment,
	.get_stats = ctn_kmod_get_stats,
};

/* The floor, and what was counted before us. */
static int begin(struct kmod_pool *p, const struct ctn_pool_config *cfg, struct ctn_err *err)
{
	struct computron_pool_set set = {.flags = COMPUTRON_SET_FLOOR, .floor = cfg->floor_bytes};
	struct computron_pool_stat stat = {0};
	int rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_SET, &set);

	if (rc)
		return ctn_err_set(err, rc, "pool %s: floor of %llu bytes: %s", p->name,
				   (unsigned long long)cfg->floor_bytes, strerror(-rc));
	rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_STAT, &stat);
	if (rc)
		return ctn_err_set(err, rc, "pool %s: stat: %s", p->name, strerror(-rc));
	/* Its events are taken until there are no more. */
	if (fcntl(p->fd, F_SETFL, O_NONBLOCK) != 0)
		return ctn_err_set(err, -errno, "pool %s: fcntl: %s", p->name, strerror(errno));
	p->evictions = stat.evictions;
	p->refused = stat.refused;
	p->reclaims = stat.reclaims;
	return 0;
}

static int kmod_open(const struct ctn_pool_config *cfg, struct ctn_pool **pool, struct ctn_err *err)
{
	struct kmod_pool *p = calloc(1, sizeof(*p));
	struct kmod_opened opened;
	int rc;

	if (!p)
		return ctn_err_set(err, -ENOMEM, "pool: out of memory");
	p->base.ops = &kmod_ops;
	p->sys = cfg->kmod_sys ? cfg->kmod_sys : &ctn_kmod_real_sys;
	rc = ctn_kmod_open_pool(p->sys, cfg, &opened, err);
	if (rc) {
		free(p);
		return rc;
	}
	p->fd = opened.fd;
	p->temporary = cfg->temporary;
	memcpy(p->name, opened.name, sizeof(p->name));
	pthread_mutex_init(&p->lock, NULL);
	rc = begin(p, cfg, err);
	if (rc == 0)
		rc = ctn_kmod_map(p, &opened, cfg, err);
	if (rc) {
		kmod_close(&p->base);
		return rc;
	}
	*pool = &p->base;
	return 0;
}

/* What is lacking is found, and told, by open. */
static int kmod_available(char *why, size_t len)
{
	(void)why;
	(void)len;
	return 0;
}

const struct ctn_pool_provider ctn_pool_provider_kmod = {"kmod", true, kmod_available, kmod_open};
