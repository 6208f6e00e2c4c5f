// SPDX-License-Identifier: MIT
/*
 * Device frames: who holds them, whose load brings their bytes, and which pieces share one.
 *
 * A piece is bound to a frame of its own until its content is known: by the manifest, or when its
 * parts are in the pool for the first time. A frame on the same device that holds, or once held,
 * the same content is then its frame too, for the life of the pager. So fine-tunes of one base
 * have the layers that they share once.
 *
 * A frame that several loads wait for is brought by the oldest of them, which needs no younger one
 * to get on: they wait for it and it never waits for them.
 */
#include "pager/state.h"

#include <errno.h>
#include <utlist.h>
#include <xxhash.h>

static struct pager_model *model_of(const struct pager_piece *pc)
{
	return pc->shard->rank->model;
}

/* ---- holding ---------------------------------------------------------------------------- */

int pager_hold(struct pager_piece *pc)
{
	struct pager_frame *f = pc->frame;
	struct ctn_device *dev = f->pager->devices[f->device].dev;
	int rc;

	if (f->spoiled)
		return -EBADMSG;
	switch (f->state) {
	case DEVICE_ABSENT:
		rc = ctn_device_map(dev, f->va, f->bytes);
		if (rc)
			return rc;
		f->loader = NULL;
		f->submitted = f->arrived = false;
		ctn_event_reset(f->event);
		pager_frame_state(f, DEVICE_LOADING);
		break;
	case DEVICE_DRAINING:
		/* What is under way, or was there when the others failed, serves this one. */
		pager_frame_state(f, f->arrived ? DEVICE_RESIDENT : DEVICE_LOADING);
		if (!f->in_flight)
			f->loader = NULL;
		if (!f->in_flight && !f->arrived) {
			f->submitted = false;
			ctn_event_reset(f->event);
		}
		break;
	case DEVICE_LOADING:
	case DEVICE_RESIDENT:
		break;
	}
	f->holders++;
	pc->held = true;
	return 0;
}

uint64_t pager_let_go(struct pager_piece *pc)
{
	struct pager_frame *f = pc->frame;
	struct ctn_pager *p = f->pager;

	if (!pc->held)
		return 0;
	CTN_ASSERT(f->holders > 0 && f->state != DEVICE_ABSENT);
	pc->held = false;
	if (--f->holders)
		return 0;
	CTN_ASSERT(!f->in_flight);
	ctn_device_unmap(p->devices[f->device].dev, f->va, f->bytes, p->poison);
	pager_frame_state(f, DEVICE_ABSENT);
	f->loader = NULL;
	f->spoiled = false;
	return f->bytes;
}

/* ---- whose load brings it --------------------------------------------------------------- */

void pager_need_parts(struct pager_piece *pc, bool on)
{
	for (uint32_t i = 0; i < pc->part_count; i++) {
		struct pager_part *part = &model_of(pc)->parts[pc->parts[i]];

		part->need += on ? 1 : -1;
		if (part->need == 0 && part->state == HOST_CLEAN)
			pager_release_part(part);
	}
}

bool pager_should_bring(const struct pager_piece *pc)
{
	const struct pager_frame *f = pc->frame;

	return f->state == DEVICE_LOADING && !f->submitted &&
	       (!f->loader || model_of(f->loader)->load.ticket > model_of(pc)->load.ticket);
}

void pager_take_over(struct pager_piece *pc)
{
	struct pager_frame *f = pc->frame;

	CTN_ASSERT(f->state == DEVICE_LOADING && !f->submitted);
	if (f->loader)
		pager_need_parts(f->loader, false);
	f->loader = pc;
	pager_need_parts(pc, true);
}

struct pager_piece *pager_live_holder(const struct pager_frame *f)
{
	struct pager_piece *pc, *oldest = NULL;

	DL_FOREACH (f->pieces, pc) {
		const struct pager_load *load = &model_of(pc)->load;

		if (pc->shard->state != DEVICE_LOADING || !load->active || load->failed)
			continue;
		if (!oldest || load->ticket < model_of(oldest)->load.ticket)
			oldest = pc;
	}
	return oldest;
}

void pager_hand_on(struct pager_piece *pc)
{
	struct pager_frame *f = pc->frame;
	struct pager_piece *next = pager_live_holder(f);

	CTN_ASSERT(f->loader == pc && !f->submitted);
	pager_need_parts(pc, false);
	f->loader = NULL;
	if (next)
		pager_take_over(next);
}

/* ---- content ---------------------------------------------------------------------------- */

/* Where a rectangle begins, in words that do not depend on how the file was laid out. */
struct rect_name {
	struct ctn_digest part;
	uint64_t tensor, offset;
	uint64_t src_pitch, dst_offset, dst_pitch, width, height;
};

static void name_rect(const struct pager_model *m, const struct ctn_rect *rect,
		      struct rect_name *name)
{
	const struct pager_part *part = &m->parts[rect->part];
	uint64_t start = 0;

	*name = (struct rect_name){.part = part->digest,
				   .src_pitch = rect->height > 1 ? rect->src_pitch : 0,
				   .dst_offset = rect->dst_offset,
				   .dst_pitch = rect->height > 1 ? rect->dst_pitch : 0,
				   .width = rect->width,
				   .height = rect->height};
	for (uint32_t i = 0; i < part->plan->tensor_count; i++) {
		uint64_t at = part->plan->tensors[i].frame_offset;

		if (at > rect->src_offset || at < start)
			continue;
		start = at;
		name->tensor = i;
	}
	name->offset = rect->src_offset - start;
}

/* False while the content of some part is not known. */
static bool name_piece(const struct pager_piece *pc, struct ctn_digest *name)
{
	const struct pager_model *m = model_of(pc);
	XXH3_state_t *state;
	XXH128_canonical_t out;

	for (uint32_t i = 0; i < pc->part_count; i++) {
		if (!m->parts[pc->parts[i]].has_digest)
			return false;
	}
	state = XXH3_createState();
	if (!state)
		return false; /* it has a frame of its own then, as before */
	XXH3_128bits_reset(state);
	XXH3_128bits_update(state, &pc->own.bytes, sizeof(pc->own.bytes));
	for (uint32_t i = 0; i < pc->plan->rect_count; i++) {
		struct rect_name rect;

		name_rect(m, &pc->plan->rects[i], &rect);
		XXH3_128bits_update(state, &rect, sizeof(rect));
	}
	XXH128_canonicalFromHash(&out, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	_Static_assert(sizeof(*name) == sizeof(out.digest), "digest");
	memcpy(name, out.digest, sizeof(out.digest));
	return true;
}

static void tell_shared(const struct pager_piece *pc)
{
	struct ctn_pager *p = pc->frame->pager;
	struct ctn_pager_event ev = {.type = CTN_PAGER_SHARED,
				     .model = model_of(pc)->index,
				     .rank = pc->shard->rank->index,
				     .layer = pc->shard->plan->layer,
				     .frame = pc->frame->id,
				     .bytes = pc->frame->bytes};

	p->event(p->event_arg, &ev);
}

/* From its own frame, which nobody else is bound to, to another. */
static int rebind(struct pager_piece *pc, struct pager_frame *f)
{
	struct pager_shard *s = pc->shard;
	bool held = pc->held, was_loader = held && pc->own.loader == pc;
	int rc = 0;

	if (held)
		pager_let_go(pc);
	DL_DELETE(pc->own.pieces, pc);
	DL_APPEND(f->pieces, pc);
	pc->frame = f;
	s->addresses[pc - s->pieces] = f->va;
	if (f->id == NO_FRAME) {
		f->id = f->pager->shared_frames++;
		tell_shared(f->pieces);
	}
	tell_shared(pc);
	if (!held)
		return 0;
	/* The room was just given back: only the machine itself can refuse. */
	rc = pager_hold(pc);
	if (rc == 0 && pager_should_bring(pc))
		pager_take_over(pc);
	if (was_loader) {
		pager_need_parts(pc, false);
		f->pager->pump_again = true;
	}
	return rc;
}

int pager_bind(struct pager_piece *pc)
{
	struct pager_frame *f;
	struct ctn_digest name;

	if (pc->frame->named || !name_piece(pc, &name))
		return 0;
	HASH_FIND(hh, pc->own.pager->devices[pc->own.device].named, &name, sizeof(name), f);
	if (f)
		return rebind(pc, f);
	pc->own.name = name;
	HASH_ADD(hh, pc->own.pager->devices[pc->own.device].named, name, sizeof(name), &pc->own);
	pc->own.named = pc->own.hh.tbl != NULL; /* else it is not shared */
	return 0;
}

void ctn_pager_find_shared(struct ctn_pager *p)
{
	for (uint32_t i = 0; i < p->model_count; i++) {
		struct pager_model *m = p->models[i];

		for (uint32_t r = 0; r < m->plan->rank_count; r++) {
			struct pager_rank *rank = &m->ranks[r];

			for (uint32_t k = 0; k < rank->piece_count; k++) {
				if (rank->pieces[k].shard->state == DEVICE_ABSENT)
					pager_bind(&rank->pieces[k]);
			}
		}
	}
}
