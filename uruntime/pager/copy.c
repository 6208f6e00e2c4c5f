// SPDX-License-Identifier: MIT
/* Shards: the copies that bring them, and the memory they take. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Copies of one shard under construction. */
struct copy_list {
	struct ctn_copy *items;
	uint32_t count, cap;
};

static int add_copy(struct copy_list *list, const struct ctn_copy *copy)
{
	if (list->count == list->cap) {
		uint32_t cap = list->cap ? list->cap * 2 : 16;
		struct ctn_copy *items = realloc(list->items, cap * sizeof(*items));

		if (!items)
			return -ENOMEM;
		list->items = items;
		list->cap = cap;
	}
	list->items[list->count++] = *copy;
	return 0;
}

/* The longest stretch of a frame's linear bytes from `offset` that one extent holds. */
static const uint8_t *locate(const struct pager_part *part, uint64_t offset, uint64_t *bytes)
{
	for (uint32_t i = 0; i < part->extent_count; i++) {
		const struct ctn_extent *e = &part->extents[i];

		if (offset < e->bytes) {
			*bytes = e->bytes - offset;
			return e->addr + offset;
		}
		offset -= e->bytes;
	}
	CTN_ASSERT(!"offset outside the frame");
	*bytes = 0;
	return NULL;
}

/* A row that crosses extents becomes several 1-D copies. */
static int add_row(struct copy_list *list, const struct pager_part *part, uint64_t src,
		   uint8_t *dst, uint64_t width)
{
	while (width) {
		uint64_t run;
		const uint8_t *p = locate(part, src, &run);
		struct ctn_copy copy = {.src = p, .dst = dst, .height = 1};
		int rc;

		copy.width = copy.src_pitch = copy.dst_pitch = CTN_MIN(run, width);
		rc = add_copy(list, &copy);
		if (rc)
			return rc;
		src += copy.width;
		dst += copy.width;
		width -= copy.width;
	}
	return 0;
}

/* As few copies as the extents allow: rows that lie in one extent stay one 2-D copy. */
static int add_rect(struct copy_list *list, const struct pager_part *part,
		    const struct ctn_rect *rect, uint8_t *piece)
{
	uint64_t row = 0;

	while (row < rect->height) {
		uint64_t src = rect->src_offset + row * rect->src_pitch, run, rows;
		const uint8_t *p = locate(part, src, &run);
		uint8_t *dst = piece + rect->dst_offset + row * rect->dst_pitch;
		struct ctn_copy copy = {.src = p,
					.dst = dst,
					.width = rect->width,
					.src_pitch = rect->src_pitch,
					.dst_pitch = rect->dst_pitch};
		int rc;

		if (run < rect->width) {
			rc = add_row(list, part, src, dst, rect->width);
			rows = 1;
		} else {
			rows = rect->height - row;
			if (rect->height > 1 && rect->src_pitch)
				rows = CTN_MIN(rows, (run - rect->width) / rect->src_pitch + 1);
			copy.height = rows;
			rc = add_copy(list, &copy);
		}
		if (rc)
			return rc;
		row += rows;
	}
	return 0;
}

static void copy_taken(struct ctn_mail *c);

/* From a link thread. */
static void copy_done(void *arg, int rc)
{
	struct pager_shard *s = arg;

	s->rc = rc;
	s->completion.take = copy_taken;
	ctn_mailbox_post(&s->rank->model->pager->mail, &s->completion);
}

int pager_submit(struct pager_shard *s, struct ctn_err *err)
{
	struct pager_rank *rank = s->rank;
	struct pager_model *m = rank->model;
	struct ctn_device *dev = m->pager->devices[rank->device].dev;
	struct copy_list list = {0};
	int rc = 0;

	CTN_ASSERT(s->state == DEVICE_LOADING);
	for (uint32_t i = 0; i < s->plan->piece_count && rc == 0; i++) {
		const struct ctn_piece *piece = &s->plan->pieces[i];

		for (uint32_t k = 0; k < piece->rect_count && rc == 0; k++) {
			const struct ctn_rect *rect = &piece->rects[k];

			rc = add_rect(&list, &m->parts[rect->part], rect, s->pieces[i]);
		}
	}
	/* The completion may be queued before the call returns; it is taken later. */
	if (rc == 0)
		rc = ctn_device_load(dev, list.items, list.count, s->event, copy_done, s);
	free(list.items);
	if (rc)
		return ctn_err_set(err, rc, "load of layer %u to %s: %s", s->plan->layer,
				   ctn_device_props(dev)->id, strerror(-rc));
	m->load.copies_in_flight++;
	rank->copies_in_flight++;
	for (uint32_t i = 0; i < s->plan->part_count; i++)
		m->parts[s->plan->parts[i]].busy++;
	pthread_mutex_lock(&rank->lock);
	s->submitted = true;
	pthread_cond_broadcast(&rank->changed);
	pthread_mutex_unlock(&rank->lock);
	return 0;
}

void pager_unmap(struct pager_shard *s)
{
	struct ctn_pager *p = s->rank->model->pager;

	ctn_device_unmap(p->devices[s->rank->device].dev, s->va, s->charged, p->poison);
	pager_shard_state(s, DEVICE_ABSENT);
}

static uint64_t payload(const struct ctn_shard *plan)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < plan->piece_count; i++)
		sum += plan->pieces[i].payload;
	return sum;
}

/* In the owner's thread: the copies of a shard are over. */
static void copy_taken(struct ctn_mail *c)
{
	struct pager_shard *s =
		(struct pager_shard *)((char *)c - offsetof(struct pager_shard, completion));
	struct pager_model *m = s->rank->model;
	struct ctn_pager *p = m->pager;
	struct ctn_pager_move_stats *stats = &p->moves[CTN_PAGER_LOAD];
	struct ctn_err err = {0};
	int rc = s->rc;

	m->load.copies_in_flight--;
	s->rank->copies_in_flight--;
	for (uint32_t i = 0; i < s->plan->part_count; i++)
		m->parts[s->plan->parts[i]].busy--;
	/* The memory of a failed load stays until its end: a step that passed this layer's event
	 * may still be reading it. */
	if (s->state == DEVICE_DRAINING) {
		stats->cancelled++;
		pager_try_end(m);
		return;
	}
	if (rc)
		ctn_err_set(&err, rc, "load of layer %u to %s: %s", s->plan->layer,
			    ctn_device_props(p->devices[s->rank->device].dev)->id, strerror(-rc));
	else if (p->poison)
		rc = pager_verify(s, &err);
	if (rc) {
		stats->failed++;
		pager_shard_state(s, DEVICE_DRAINING);
		pager_fail(m, rc, &err);
		pager_try_end(m);
		return;
	}
	stats->ok++;
	stats->bytes += payload(s->plan);
	m->bytes_loaded += payload(s->plan);
	m->load.bytes_loaded += payload(s->plan);
	pager_shard_state(s, DEVICE_RESIDENT);
	m->load.shards_left--;
	for (uint32_t i = 0; i < s->plan->part_count; i++) {
		struct pager_part *part = &m->parts[s->plan->parts[i]];

		if (--part->need == 0)
			pager_release_part(part);
	}
	pager_try_end(m);
}

/* ---- waiting ---------------------------------------------------------------------------- */

int ctn_pager_wait_layer(struct ctn_pager *p, uint32_t model, uint32_t rank_index, uint32_t layer,
			 struct ctn_stream *stream)
{
	struct pager_rank *rank = &p->models[model]->ranks[rank_index];
	struct pager_shard *s = &rank->shards[layer - rank->plan->first_layer];
	bool failed;

	/* First until the copies were submitted: the event says nothing of them before. */
	pthread_mutex_lock(&rank->lock);
	while (!s->submitted && !rank->failed)
		pthread_cond_wait(&rank->changed, &rank->lock);
	failed = rank->failed;
	pthread_mutex_unlock(&rank->lock);
	return failed ? -EIO : ctn_stream_wait(stream, s->event);
}
