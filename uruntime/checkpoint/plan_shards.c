// SPDX-License-Identifier: MIT
/*
 * Shards: what a rank needs of a layer. First every role that the layer has gets a slot in a
 * piece, by the rank's share of each dimension; then every tensor becomes the rectangles that
 * bring that share from its host frame to its place in the slot.
 */
#include "checkpoint/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Bindings [first, end) are joined in the slot of one role. */
struct source {
	uint32_t first, end;
};

struct builder {
	const struct ctn_plan *plan;
	const struct ctn_checkpoint_priv *priv;
	const struct ctn_place *places;
	const struct ctn_rank_plan *rank;
	struct ctn_shard *shard;
	struct source sources[CTN_ROLE_COUNT];
	uint32_t tensor_count; /* of all sources */
};

/* A tensor's share as a matrix: a vector is one row. */
struct share {
	struct ctn_ranges rows, cols;
	uint64_t stored_cols;
};

static void share_of(const struct builder *b, const struct ctn_tensor_spec *spec,
		     struct share *share)
{
	const struct ctn_arch *arch = &b->plan->ckpt->arch;
	const bool vector = spec->dims[1] == CTN_DIM_NONE;
	const enum ctn_dim cols = vector ? spec->dims[0] : spec->dims[1];

	ctn_plan_ranges(arch, b->rank, vector ? CTN_DIM_NONE : spec->dims[0], &share->rows);
	ctn_plan_ranges(arch, b->rank, cols, &share->cols);
	share->stored_cols = ctn_dim_size(arch, cols);
}

/* Joined tensors follow each other along the dimension of outputs. */
static bool joined_by_rows(const struct ctn_tensor_spec *spec)
{
	return spec->dims[1] != CTN_DIM_NONE && !spec->transposed;
}

static uint64_t element_bytes(const struct ctn_slot *slot)
{
	return ctn_dtype_bits(slot->encoding.dtype) / 8;
}

/* ---- sources --------------------------------------------------------------------------- */

static void find_sources(struct builder *b, uint32_t layer, bool alias_head)
{
	const struct ctn_arch *arch = &b->plan->ckpt->arch;
	const uint32_t *start = b->priv->layer_bindings;

	for (uint32_t i = start[layer]; i < start[layer + 1]; i++) {
		struct source *s = &b->sources[b->priv->bindings[i].spec->role];

		if (s->first == s->end)
			s->first = i;
		s->end = i + 1;
	}
	b->tensor_count = start[layer + 1] - start[layer];
	/* A tied head that is not on the embed layer's rank has a copy of its own. */
	if (layer == ctn_layer_count(arch) - 1 && arch->tied && !alias_head) {
		CTN_ASSERT(b->priv->bindings[0].spec->role == CTN_ROLE_EMBED);
		b->sources[CTN_ROLE_HEAD] = (struct source){0, 1};
		b->tensor_count++;
	}
}

/* ---- slots and pieces ------------------------------------------------------------------ */

static void size_slot(const struct builder *b, const struct source *s, struct ctn_slot *slot)
{
	const struct ctn_binding *bindings = b->priv->bindings;
	const struct ctn_tensor_spec *spec = bindings[s->first].spec;

	slot->present = true;
	slot->transposed = spec->transposed;
	slot->encoding = b->plan->ckpt->tensors[bindings[s->first].tensor].encoding;
	for (uint32_t i = s->first; i < s->end; i++) {
		struct share share;

		share_of(b, bindings[i].spec, &share);
		if (i == s->first) {
			slot->rows = share.rows.size;
			slot->cols = share.cols.size;
		} else if (joined_by_rows(spec)) {
			slot->rows += share.rows.size;
		} else {
			slot->cols += share.cols.size;
		}
	}
}

/* Moves what was put into the last piece to the end of the one before. */
static void join_last_piece(struct ctn_shard *shard)
{
	const uint32_t last = shard->piece_count - 1;
	const uint64_t at = shard->pieces[last - 1].bytes;

	for (int role = 0; role < CTN_ROLE_COUNT; role++) {
		struct ctn_slot *slot = &shard->slots[role];

		if (!slot->present || slot->piece != last)
			continue;
		slot->piece--;
		slot->offset += at;
	}
	shard->pieces[last - 1].bytes += shard->pieces[last].bytes;
	shard->piece_count--;
}

/* Called when the last piece is complete: a small one joins the one before, which may itself
 * be small and first. */
static void end_piece(struct ctn_shard *shard)
{
	const uint32_t n = shard->piece_count;

	if (n >= 2 && (shard->pieces[n - 1].bytes < CTN_SMALL_PART ||
		       shard->pieces[n - 2].bytes < CTN_SMALL_PART))
		join_last_piece(shard);
}

static int lay_out_pieces(struct builder *b)
{
	struct ctn_shard *shard = b->shard;
	int kind = -1;

	shard->pieces = calloc(CTN_PART_KINDS, sizeof(*shard->pieces));
	if (!shard->pieces)
		return -ENOMEM;
	for (int role = 0; role < CTN_ROLE_COUNT; role++) {
		struct ctn_slot *slot = &shard->slots[role];
		const enum ctn_part_kind role_kind = ctn_role_info((enum ctn_role)role)->kind;
		struct ctn_piece *piece;

		if (b->sources[role].first == b->sources[role].end)
			continue;
		size_slot(b, &b->sources[role], slot);
		if ((int)role_kind != kind) {
			end_piece(shard);
			kind = (int)role_kind;
			shard->pieces[shard->piece_count++] = (struct ctn_piece){.kind = role_kind};
		}
		piece = &shard->pieces[shard->piece_count - 1];
		slot->piece = shard->piece_count - 1;
		slot->offset = piece->bytes;
		piece->bytes =
			ctn_align_up(piece->bytes + slot->rows * slot->cols * element_bytes(slot),
				     CTN_TENSOR_ALIGN);
	}
	end_piece(shard);
	for (uint32_t i = 0; i < shard->piece_count; i++)
		shard->bytes += shard->pieces[i].bytes;
	return 0;
}

/* ---- rectangles ------------------------------------------------------------------------ */

/* Rows that follow each other on both sides are one row. */
static void flatten(struct ctn_rect *r)
{
	if (r->height > 1 && (r->width != r->src_pitch || r->width != r->dst_pitch))
		return;
	r->width *= r->height;
	r->height = 1;
	r->src_pitch = r->dst_pitch = r->width;
}

/* Adds a rectangle to the piece, or lengthens the one before when it continues it. */
static void add_rect(struct ctn_piece *piece, struct ctn_rect r)
{
	struct ctn_rect *last = piece->rect_count ? &piece->rects[piece->rect_count - 1] : NULL;

	if (!r.width || !r.height)
		return;
	piece->payload += r.width * r.height;
	flatten(&r);
	if (last && last->part == r.part && last->height == 1 && r.height == 1 &&
	    last->src_offset + last->width == r.src_offset &&
	    last->dst_offset + last->width == r.dst_offset) {
		last->width += r.width;
		last->src_pitch = last->dst_pitch = last->width;
		return;
	}
	piece->rects[piece->rect_count++] = r;
}

/* Brings the share of one tensor to (row, col) of its slot. */
static void add_tensor(const struct builder *b, uint32_t binding, const struct share *share,
		       const struct ctn_slot *slot, uint64_t row, uint64_t col)
{
	const struct ctn_place *place = &b->places[binding];
	const uint64_t e = element_bytes(slot);
	const uint64_t first_col = col;

	for (uint32_t i = 0; i < share->rows.n; i++) {
		col = first_col;
		for (uint32_t k = 0; k < share->cols.n; k++) {
			add_rect(&b->shard->pieces[slot->piece],
				 (struct ctn_rect){
					 .part = place->part,
					 .src_offset = place->frame_offset +
						       (share->rows.start[i] * share->stored_cols +
							share->cols.start[k]) *
							       e,
					 .src_pitch = share->stored_cols * e,
					 .dst_offset = slot->offset + (row * slot->cols + col) * e,
					 .dst_pitch = slot->cols * e,
					 .width = share->cols.count[k] * e,
					 .height = share->rows.count[i],
				 });
			col += share->cols.count[k];
		}
		row += share->rows.count[i];
	}
}

static void fill_slot(const struct builder *b, const struct source *s, const struct ctn_slot *slot)
{
	uint64_t row = 0, col = 0;

	for (uint32_t i = s->first; i < s->end; i++) {
		const struct ctn_tensor_spec *spec = b->priv->bindings[i].spec;
		struct share share;

		share_of(b, spec, &share);
		add_tensor(b, i, &share, slot, row, col);
		if (joined_by_rows(spec))
			row += share.rows.size;
		else
			col += share.cols.size;
	}
}

static int make_rects(struct builder *b)
{
	struct ctn_shard *shard = b->shard;

	for (uint32_t i = 0; i < shard->piece_count; i++) {
		/* A tensor is split in one dimension: at most CTN_MAX_RANGES rectangles. */
		shard->pieces[i].rects =
			calloc((size_t)b->tensor_count * CTN_MAX_RANGES, sizeof(struct ctn_rect));
		if (!shard->pieces[i].rects)
			return -ENOMEM;
	}
	for (int role = 0; role < CTN_ROLE_COUNT; role++) {
		if (b->sources[role].first != b->sources[role].end)
			fill_slot(b, &b->sources[role], &shard->slots[role]);
	}
	return 0;
}

/* ---------------------------------------------------------------------------------------- */

static int by_number(const void *pa, const void *pb)
{
	const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return a < b ? -1 : a > b;
}

static int list_parts(struct builder *b)
{
	struct ctn_shard *shard = b->shard;
	uint32_t n = 0;

	shard->parts = calloc((size_t)b->tensor_count + 1, sizeof(*shard->parts));
	if (!shard->parts)
		return -ENOMEM;
	for (int role = 0; role < CTN_ROLE_COUNT; role++) {
		for (uint32_t i = b->sources[role].first; i < b->sources[role].end; i++)
			shard->parts[n++] = b->places[i].part;
	}
	qsort(shard->parts, n, sizeof(*shard->parts), by_number);
	for (uint32_t i = 0; i < n; i++) {
		if (i == 0 || shard->parts[i] != shard->parts[i - 1])
			shard->parts[shard->part_count++] = shard->parts[i];
	}
	return 0;
}

int ctn_plan_shard(const struct ctn_plan *plan, const struct ctn_place *places,
		   const struct ctn_rank_plan *rank, uint32_t layer, const struct ctn_shard *embed,
		   struct ctn_shard *shard, struct ctn_err *err)
{
	const struct ctn_arch *arch = &plan->ckpt->arch;
	struct builder b = {
		.plan = plan,
		.priv = ctn_priv(plan->ckpt),
		.places = places,
		.rank = rank,
		.shard = shard,
	};
	int rc;

	*shard = (struct ctn_shard){.layer = layer};
	find_sources(&b, layer, embed != NULL);
	rc = lay_out_pieces(&b);
	if (!rc)
		rc = make_rects(&b);
	if (!rc)
		rc = list_parts(&b);
	if (rc)
		return ctn_err_set(err, rc, "%s: %s", plan->ckpt->dir, strerror(-rc));
	if (layer == ctn_layer_count(arch) - 1 && arch->tied && embed) {
		shard->slots[CTN_ROLE_HEAD] = embed->slots[CTN_ROLE_EMBED];
		shard->slots[CTN_ROLE_HEAD].alias = true;
	}
	return 0;
}

void ctn_plan_free_shard(struct ctn_shard *shard)
{
	for (uint32_t i = 0; i < shard->piece_count; i++)
		free(shard->pieces[i].rects);
	free(shard->pieces);
	free(shard->parts);
}
