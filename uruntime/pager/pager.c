// SPDX-License-Identifier: MIT
/* Making a pager and its models known. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

/* ---- the pager -------------------------------------------------------------------------- */

static int watch(struct ctn_pager *p, int fd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};

	return epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0 ? -errno : 0;
}

static int open_descriptors(struct ctn_pager *p)
{
	int lost = ctn_pool_event_fd(p->pool);
	int rc;

	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->epoll_fd < 0)
		return -errno;
	rc = watch(p, p->mail.fd);
	if (rc == 0 && lost >= 0)
		rc = watch(p, lost);
	return rc;
}

/* Hot segments are made known to every device, once. */
static void register_segments(struct ctn_pager *p, bool on)
{
	for (uint32_t i = 0; i < ctn_pool_segment_count(p->pool); i++) {
		struct ctn_segment seg;

		ctn_pool_segment(p->pool, i, &seg);
		for (uint32_t d = 0; seg.hot && d < p->device_count; d++) {
			struct ctn_device *dev = p->devices[d].dev;

			if (!on)
				ctn_device_unregister_host(dev, seg.addr, seg.bytes);
			else if (ctn_device_register_host(dev, seg.addr, seg.bytes))
				ctn_warn("%s: segment %u is not registered for DMA",
					 ctn_device_props(dev)->id, i);
		}
	}
}

int ctn_pager_new(const struct ctn_pager_config *cfg, struct ctn_pager **pager, struct ctn_err *err)
{
	struct ctn_pager *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = ctn_mailbox_init(&p->mail);
	if (rc) {
		free(p);
		return ctn_err_set(err, rc, "pager: %s", strerror(-rc));
	}
	pthread_mutex_init(&p->jobs_lock, NULL);
	p->epoll_fd = -1;
	p->pool = cfg->pool;
	p->stage = cfg->stage;
	p->poison = cfg->poison;
	p->event = cfg->event;
	p->event_arg = cfg->event_arg;
	p->max_models = cfg->max_models;
	rc = -ENOMEM;
	p->models = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*p->models));
	p->devices = calloc(CTN_MAX(cfg->device_count, 1u), sizeof(*p->devices));
	if (!p->models || !p->devices)
		goto fail;
	for (uint32_t d = 0; d < cfg->device_count; d++) {
		struct pager_device *dev = &p->devices[d];
		const struct ctn_device_props *props = ctn_device_props(cfg->devices[d]);

		dev->dev = cfg->devices[d];
		dev->granule = props->granule;
		dev->ledger.total = dev->ledger.free = props->mem_bytes;
		p->device_count++;
		if (p->poison) {
			rc = ctn_stream_new(dev->dev, &dev->verify);
			if (rc)
				goto fail;
		}
	}
	rc = open_descriptors(p);
	if (rc)
		goto fail;
	register_segments(p, true);
	*pager = p;
	return 0;
fail:
	ctn_pager_free(p);
	return ctn_err_set(err, rc, "pager: %s", strerror(-rc));
}

/* ---- models ----------------------------------------------------------------------------- */

static void free_rank(struct pager_rank *rank)
{
	struct ctn_pager *p = rank->model->pager;

	for (uint32_t i = 0; rank->pieces && i < rank->piece_count; i++) {
		struct pager_frame *f = &rank->pieces[i].own;

		if (f->named)
			HASH_DEL(p->devices[rank->device].named, f);
		ctn_event_free(f->event);
	}
	if (rank->va)
		ctn_device_unreserve(p->devices[rank->device].dev, rank->va, rank->va_bytes);
	free(rank->shards);
	free(rank->pieces);
	free(rank->addresses);
	free(rank->parts);
	free(rank->piece_table);
	pthread_mutex_destroy(&rank->lock);
	pthread_cond_destroy(&rank->changed);
}

static void free_model(struct pager_model *m)
{
	if (!m)
		return;
	for (uint32_t r = 0; m->ranks && r < m->plan->rank_count; r++) {
		if (m->ranks[r].model)
			free_rank(&m->ranks[r]);
	}
	free(m->ranks);
	free(m->order);
	free(m->parts);
	free(m);
}

/* The parts of a piece, once each; at most one a rectangle. Returns how many. */
static uint32_t parts_of(const struct ctn_piece *plan, uint32_t *parts)
{
	uint32_t n = 0;

	for (uint32_t k = 0; k < plan->rect_count; k++) {
		uint32_t i = 0;

		while (i < n && parts[i] != plan->rects[k].part)
			i++;
		if (i == n)
			parts[n++] = plan->rects[k].part;
	}
	return n;
}

static int add_piece(struct pager_piece *pc, struct pager_shard *s, uint32_t k, uint8_t *va)
{
	struct pager_rank *rank = s->rank;
	struct ctn_pager *p = rank->model->pager;
	struct pager_device *dev = &p->devices[rank->device];

	pc->shard = s;
	pc->plan = &s->plan->pieces[k];
	pc->frame = &pc->own;
	pc->own.pager = p;
	pc->own.device = rank->device;
	pc->own.id = NO_FRAME;
	pc->own.va = va;
	pc->own.bytes = ctn_align_up(pc->plan->bytes, dev->granule);
	s->addresses[k] = va;
	DL_APPEND(pc->own.pieces, pc);
	return ctn_event_new(dev->dev, &pc->own.event);
}

static int alloc_rank(struct pager_rank *rank, uint64_t granule)
{
	const struct ctn_rank_plan *plan = rank->plan;
	uint32_t rects = 0;

	for (uint32_t i = 0; i < plan->layer_count; i++) {
		rank->piece_count += plan->shards[i].piece_count;
		for (uint32_t k = 0; k < plan->shards[i].piece_count; k++) {
			rects += plan->shards[i].pieces[k].rect_count;
			rank->va_bytes += ctn_align_up(plan->shards[i].pieces[k].bytes, granule);
		}
	}
	rank->shards = calloc(plan->layer_count, sizeof(*rank->shards));
	rank->pieces = calloc(CTN_MAX(rank->piece_count, 1u), sizeof(*rank->pieces));
	rank->addresses = calloc(CTN_MAX(rank->piece_count, 1u), sizeof(*rank->addresses));
	rank->parts = calloc(CTN_MAX(rects, 1u), sizeof(*rank->parts));
	rank->piece_table = calloc(plan->layer_count, sizeof(*rank->piece_table));
	if (!rank->shards || !rank->pieces || !rank->addresses || !rank->parts ||
	    !rank->piece_table)
		return -ENOMEM;
	return 0;
}

/* Addresses of a rank's shards, one after the other, each piece at a granule of its own. */
static int add_rank(struct pager_model *m, uint32_t r, uint32_t device)
{
	struct pager_rank *rank = &m->ranks[r];
	struct pager_device *dev = &m->pager->devices[device];
	uint32_t pieces = 0, *parts;
	uint8_t *va;
	int rc;

	rank->model = m;
	rank->plan = &m->plan->ranks[r];
	rank->index = r;
	rank->device = device;
	pthread_mutex_init(&rank->lock, NULL);
	pthread_cond_init(&rank->changed, NULL);
	rc = alloc_rank(rank, dev->granule);
	if (rc == 0)
		rc = ctn_device_reserve(dev->dev, rank->va_bytes, &rank->va);
	va = rank->va;
	parts = rank->parts;
	for (uint32_t i = 0; i < rank->plan->layer_count && rc == 0; i++) {
		struct pager_shard *s = &rank->shards[i];

		s->rank = rank;
		s->plan = &rank->plan->shards[i];
		s->pieces = &rank->pieces[pieces];
		s->addresses = &rank->addresses[pieces];
		rank->piece_table[i] = s->addresses;
		pieces += s->plan->piece_count;
		for (uint32_t k = 0; k < s->plan->piece_count && rc == 0; k++) {
			struct pager_piece *pc = &s->pieces[k];

			rc = add_piece(pc, s, k, va);
			pc->parts = parts;
			pc->part_count = parts_of(pc->plan, parts);
			parts += pc->part_count;
			va += pc->own.bytes;
		}
	}
	return rc;
}

static int own_keys(struct pager_model *m)
{
	struct ctn_pager *p = m->pager;

	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		const struct ctn_frame_key *key = &m->plan->parts[i].key;
		struct key_owner *owner;

		HASH_FIND(hh, p->owners, key, sizeof(*key), owner);
		if (owner)
			continue; /* a model of the same files: the first one answers for both */
		owner = calloc(1, sizeof(*owner));
		if (!owner)
			return -ENOMEM;
		owner->key = *key;
		owner->model = m->index;
		HASH_ADD(hh, p->owners, key, sizeof(owner->key), owner);
		if (!owner->hh.tbl) {
			free(owner);
			return -ENOMEM;
		}
	}
	return 0;
}

static void disown_keys(struct ctn_pager *p, uint32_t model)
{
	struct key_owner *owner, *tmp;

	HASH_ITER (hh, p->owners, owner, tmp) {
		if (owner->model != model)
			continue;
		HASH_DEL(p->owners, owner);
		free(owner);
	}
}

int ctn_pager_add_model(struct ctn_pager *p, const struct ctn_plan *plan, const uint32_t *devices,
			struct ctn_err *err)
{
	struct ctn_pool_stats stats;
	struct pager_model *m;
	int rc = -ENOMEM;

	if (p->model_count == p->max_models)
		return ctn_err_set(err, -ENOSPC, "expected at most %u models", p->max_models);
	ctn_pool_get_stats(p->pool, false, &stats);
	if (plan->host_window > stats.total_bytes) {
		char a[32], b[32];

		return ctn_err_set(err, -ENOSPC,
				   "the pool is too small: its largest parts need %s (%llu bytes) "
				   "at a time, the pool has %s (%llu bytes)",
				   ctn_format_size(plan->host_window, a),
				   (unsigned long long)plan->host_window,
				   ctn_format_size(stats.total_bytes, b),
				   (unsigned long long)stats.total_bytes);
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		goto fail;
	m->pager = p;
	m->index = p->model_count;
	m->plan = plan;
	m->ranks = calloc(plan->rank_count, sizeof(*m->ranks));
	m->parts = calloc(CTN_MAX(plan->part_count, 1u), sizeof(*m->parts));
	if (!m->ranks || !m->parts)
		goto fail;
	for (uint32_t i = 0; i < plan->part_count; i++) {
		m->parts[i].model = m;
		m->parts[i].plan = &plan->parts[i];
		m->parts[i].has_digest = plan->parts[i].current;
		m->parts[i].digest = plan->parts[i].digest;
	}
	rc = pager_order(plan, stats.total_bytes, &m->order);
	if (rc)
		goto fail;
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		CTN_ASSERT(devices[r] < p->device_count);
		rc = add_rank(m, r, devices[r]);
		if (rc)
			goto fail;
	}
	rc = own_keys(m);
	if (rc) {
		disown_keys(p, m->index);
		goto fail;
	}
	p->models[p->model_count++] = m;
	return (int)m->index;
fail:
	free_model(m);
	return ctn_err_set(err, rc, "no addresses for the model: %s", strerror(-rc));
}

void *const *const *ctn_pager_pieces(const struct ctn_pager *p, uint32_t model, uint32_t rank)
{
	return p->models[model]->ranks[rank].piece_table;
}

uint64_t ctn_pager_rank_bytes(const struct ctn_pager *p, uint32_t model, uint32_t rank)
{
	return p->models[model]->ranks[rank].va_bytes;
}

uint64_t ctn_pager_layer_bytes(const struct ctn_pager *p, uint32_t model, uint32_t rank,
			       uint32_t layer)
{
	const struct pager_shard *s = &p->models[model]->ranks[rank].shards[layer];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->plan->piece_count; i++)
		bytes += s->pieces[i].own.bytes;
	return bytes;
}

void ctn_pager_free(struct ctn_pager *p)
{
	if (!p)
		return;
	CTN_ASSERT(!p->loads && !p->ended && !p->ahead.model);
	for (uint32_t i = 0; i < p->model_count; i++)
		ctn_pager_drop(p, i);
	for (uint32_t i = 0; i < p->model_count; i++) {
		disown_keys(p, i);
		free_model(p->models[i]);
	}
	pager_adoption_free(p);
	CTN_ASSERT(!p->claims);
	if (p->epoll_fd >= 0)
		register_segments(p, false);
	for (uint32_t d = 0; d < p->device_count; d++) {
		if (p->devices[d].verify)
			ctn_stream_free(p->devices[d].verify);
	}
	if (p->epoll_fd >= 0)
		close(p->epoll_fd);
	ctn_mailbox_destroy(&p->mail);
	pthread_mutex_destroy(&p->jobs_lock);
	free(p->models);
	free(p->devices);
	free(p);
}
