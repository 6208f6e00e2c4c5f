// SPDX-License-Identifier: MIT
/* The copies that bring pieces, and their ends. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Copies of one piece under construction. */
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
	struct pager_frame *f = arg;

	f->rc = rc;
	f->completion.take = copy_taken;
	ctn_mailbox_post(&f->pager->mail, &f->completion);
}

static void set_busy(struct pager_piece *pc, bool busy)
{
	struct pager_rank *rank = pc->shard->rank;
	struct pager_model *m = rank->model;

	m->load.copies_in_flight += busy ? 1 : -1;
	rank->copies_in_flight += busy ? 1 : -1;
	pc->frame->in_flight = busy;
	for (uint32_t i = 0; i < pc->part_count; i++)
		m->parts[pc->parts[i]].busy += busy ? 1 : -1;
}

static int copy_error(const struct pager_piece *pc, int rc, struct ctn_err *err)
{
	const struct pager_frame *f = pc->frame;

	return ctn_err_set(err, rc, "load of layer %u to %s: %s", pc->shard->plan->layer,
			   ctn_device_props(f->pager->devices[f->device].dev)->id, strerror(-rc));
}

int pager_submit(struct pager_piece *pc, struct ctn_err *err)
{
	struct pager_frame *f = pc->frame;
	struct pager_model *m = pc->shard->rank->model;
	struct copy_list list = {0};
	int rc = 0;

	CTN_ASSERT(f->state == DEVICE_LOADING && f->loader == pc && !f->submitted);
	for (uint32_t k = 0; k < pc->plan->rect_count && rc == 0; k++) {
		const struct ctn_rect *rect = &pc->plan->rects[k];

		rc = add_rect(&list, &m->parts[rect->part], rect, f->va);
	}
	/* The completion may be queued before the call returns; it is taken later. */
	if (rc == 0)
		rc = ctn_device_load(f->pager->devices[f->device].dev, list.items, list.count,
				     f->event, copy_done, f);
	free(list.items);
	if (rc)
		return copy_error(pc, rc, err);
	f->submitted = true;
	set_busy(pc, true);
	return 0;
}

/* Every load that waits for the frame has failed with it. */
static void fail_holders(struct pager_frame *f, int rc, const struct ctn_err *err)
{
	struct pager_piece *pc;

	f->submitted = false;
	f->loader = NULL;
	while ((pc = pager_live_holder(f))) {
		struct pager_model *m = pc->shard->rank->model;

		pager_fail(m, rc, err);
		pager_try_end(m);
	}
}

static void count_copy(const struct pager_piece *pc, int rc, bool stays)
{
	struct pager_model *m = pc->shard->rank->model;
	struct ctn_pager_move_stats *stats = &m->pager->moves[CTN_PAGER_LOAD];

	if (rc == 0 && stays) {
		stats->ok++;
		stats->bytes += pc->plan->payload;
		m->bytes_loaded += pc->plan->payload;
		m->load.bytes_loaded += pc->plan->payload;
	} else if (pc->frame->state == DEVICE_DRAINING) {
		stats->cancelled++;
	} else {
		stats->failed++;
	}
}

/* In the owner's thread: the copies of a frame are over. */
static void copy_taken(struct ctn_mail *c)
{
	struct pager_frame *f =
		(struct pager_frame *)((char *)c - offsetof(struct pager_frame, completion));
	struct pager_piece *pc = f->loader, *other;
	struct pager_model *m = pc->shard->rank->model;
	bool stays = f->state != DEVICE_DRAINING || m->load.cancelled;
	struct ctn_err err = {0};
	int rc = f->rc;

	set_busy(pc, false);
	if (rc)
		copy_error(pc, rc, &err);
	else if (f->pager->poison && stays)
		rc = pager_verify(pc, &err);
	count_copy(pc, rc, stays);
	/* The memory of a failed load stays until its end: a step that passed this layer's event
	 * may still be reading it. */
	if (f->state == DEVICE_DRAINING) {
		f->arrived = rc == 0;
		pager_try_end(m);
		return;
	}
	if (rc) {
		fail_holders(f, rc, &err);
		pager_try_end(m);
		return;
	}
	pager_frame_state(f, DEVICE_RESIDENT);
	f->loader = NULL;
	pager_need_parts(pc, false);
	DL_FOREACH (f->pieces, other)
		pager_settle(other->shard);
	pager_try_end(m);
}

/* ---- waiting ---------------------------------------------------------------------------- */

int ctn_pager_wait_layer(struct ctn_pager *p, uint32_t model, uint32_t rank_index, uint32_t layer,
			 struct ctn_stream *stream)
{
	struct pager_rank *rank = &p->models[model]->ranks[rank_index];
	struct pager_shard *s = &rank->shards[layer - rank->plan->first_layer];
	bool failed;
	int rc = 0;

	/* First until the copies were submitted: the events say nothing of them before. */
	pthread_mutex_lock(&rank->lock);
	while (!s->submitted && !rank->failed)
		pthread_cond_wait(&rank->changed, &rank->lock);
	failed = rank->failed;
	pthread_mutex_unlock(&rank->lock);
	for (uint32_t i = 0; i < s->plan->piece_count && !failed && rc == 0; i++)
		rc = ctn_stream_wait(stream, s->pieces[i].frame->event);
	return failed ? -EIO : rc;
}
