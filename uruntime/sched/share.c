// SPDX-License-Identifier: MIT
/*
 * Frames that layers of several models share. Each model is charged as if it shared nothing, and
 * the device is credited with what is counted more than once. So what a victim would bring is at
 * most what it is charged; who makes room looks again after its drops.
 */
#include "sched/state.h"

#include <errno.h>
#include <stdlib.h>

static void hold(struct ctn_sched *s, struct sched_frame *f, bool on)
{
	if (!on)
		f->holders--;
	if (f->holders)
		s->common[f->device] += on ? f->bytes : -f->bytes;
	if (on)
		f->holders++;
}

void sched_set_kept(struct ctn_sched *s, struct sched_model *m, uint32_t r, struct sched_kept kept)
{
	uint32_t before = m->kept[r].layers;

	m->kept[r] = kept;
	for (uint32_t i = m->shares; i != NO_SHARE; i = s->shares[i].next) {
		const struct sched_share *share = &s->shares[i];

		if (share->rank == r && (share->layer < before) != (share->layer < kept.layers))
			hold(s, &s->frames[share->frame], share->layer < kept.layers);
	}
}

/* The frame with that number, with others before it if need be; NULL: no memory. */
static struct sched_frame *frame_of(struct ctn_sched *s, uint32_t frame)
{
	if (frame >= s->frame_count) {
		uint32_t count = CTN_MAX(frame + 1, 2 * s->frame_count);
		struct sched_frame *frames = realloc(s->frames, count * sizeof(*frames));

		if (!frames)
			return NULL;
		for (uint32_t i = s->frame_count; i < count; i++)
			frames[i] = (struct sched_frame){0};
		s->frames = frames;
		s->frame_count = count;
	}
	return &s->frames[frame];
}

int ctn_sched_share(struct ctn_sched *s, uint32_t model, uint32_t rank, uint32_t layer,
		    uint32_t frame, uint64_t bytes)
{
	struct sched_model *m = &s->models[model];
	struct sched_frame *f = frame_of(s, frame);

	CTN_ASSERT(rank < m->rank_count && layer < m->ranks[rank].layer_count);
	if (f && s->share_count == s->share_cap) {
		uint32_t cap = s->share_cap ? 2 * s->share_cap : 256;
		struct sched_share *shares = realloc(s->shares, cap * sizeof(*shares));

		if (!shares)
			return -ENOMEM;
		s->shares = shares;
		s->share_cap = cap;
	}
	if (!f)
		return -ENOMEM;
	f->bytes = bytes;
	f->device = m->ranks[rank].device;
	s->shares[s->share_count] = (struct sched_share){
		.rank = rank, .layer = layer, .frame = frame, .next = m->shares};
	m->shares = s->share_count++;
	if (layer < m->kept[rank].layers)
		hold(s, f, true);
	return 0;
}

void sched_there_already(const struct ctn_sched *s, const struct sched_model *m,
			 uint64_t bytes[CTN_SCHED_MAX_DEVICES])
{
	uint64_t stamp = ++((struct ctn_sched *)s)->stamp;

	for (uint32_t d = 0; d < s->device_count; d++)
		bytes[d] = 0;
	for (uint32_t i = m->shares; i != NO_SHARE; i = s->shares[i].next) {
		const struct sched_share *share = &s->shares[i];
		struct sched_frame *f = &s->frames[share->frame];

		if (share->layer < m->kept[share->rank].layers)
			continue;
		/* It brings a frame itself once, however many of its layers have it. */
		if (f->holders || f->stamp == stamp)
			bytes[f->device] += f->bytes;
		f->stamp = stamp;
	}
}

static void count_again(const struct ctn_sched *s, const struct sched_model *m, uint64_t stamp,
			uint64_t bytes[CTN_SCHED_MAX_DEVICES])
{
	for (uint32_t i = m->shares; i != NO_SHARE; i = s->shares[i].next) {
		struct sched_frame *f = &s->frames[s->shares[i].frame];

		if (f->stamp == stamp)
			bytes[f->device] += f->bytes;
		f->stamp = stamp;
	}
}

void sched_in_common(const struct ctn_sched *s, const struct sched_model *m,
		     bool (*beside)(const struct sched_model *),
		     uint64_t bytes[CTN_SCHED_MAX_DEVICES])
{
	uint64_t stamp = ++((struct ctn_sched *)s)->stamp;

	for (uint32_t d = 0; d < s->device_count; d++)
		bytes[d] = 0;
	count_again(s, m, stamp, bytes);
	for (uint32_t i = 0; beside && i < s->holder_count; i++) {
		const struct sched_model *o = &s->models[s->holders[i]];

		if (o != m && o->state != CTN_SCHED_ABSENT && beside(o))
			count_again(s, o, stamp, bytes);
	}
}
