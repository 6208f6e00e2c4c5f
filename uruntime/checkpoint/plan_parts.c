// SPDX-License-Identifier: MIT
/*
 * Host frames: which tensors share one, and the runs of the files that fill it.
 *
 * A group is what one layer stores of one kind (attention, MLP, the rest). A group of
 * CTN_SMALL_PART bytes and more is a part of its own; the others are packed in file order.
 * Inside a frame the blocks of CTN_IO_ALIGN bytes that hold the tensors follow each other in
 * file order, so that a tensor keeps its place within a block and O_DIRECT can read it there.
 */
#include "checkpoint/plan.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Bindings [first, end): tensors of one layer and kind. */
struct group {
	uint32_t first, end;
	uint32_t part; /* which it became */
	uint32_t file;
	uint64_t offset; /* of its first tensor in file order */
	uint64_t tensor_bytes;
	uint64_t frame_bytes; /* of a frame of its own: an upper bound of what it adds */
};

struct parts {
	struct ctn_plan *plan;
	const struct ctn_checkpoint_priv *priv;
	struct ctn_place *places;
	struct group *groups;
	uint32_t group_count;
	uint32_t *scratch; /* bindings of the part at hand, in file order */
};

static const struct ctn_tensor *tensor_of(const struct parts *p, uint32_t binding)
{
	return &p->plan->ckpt->tensors[p->priv->bindings[binding].tensor];
}

static enum ctn_part_kind kind_of(const struct parts *p, uint32_t binding)
{
	return ctn_role_info(p->priv->bindings[binding].spec->role)->kind;
}

/* ---- runs ------------------------------------------------------------------------------ */

static int by_file_offset(const void *pa, const void *pb, void *arg)
{
	const struct parts *p = arg;
	const struct ctn_tensor *a = tensor_of(p, *(const uint32_t *)pa);
	const struct ctn_tensor *b = tensor_of(p, *(const uint32_t *)pb);

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/*
 * Lays out `count` bindings (in file order) and returns the frame's bytes. Tensors in the same
 * or touching blocks share a run. `runs` (room for `count`) and
 * `frame_offsets` (of each tensor) are filled unless they are NULL.
 */
static uint64_t lay_out(const struct parts *p, const uint32_t *order, uint32_t count,
			struct ctn_run *runs, uint32_t *run_count, uint64_t *frame_offsets)
{
	struct ctn_run run = {0};
	uint32_t n = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_tensor *t = tensor_of(p, order[i]);
		const uint64_t begin = ctn_align_down(t->offset, CTN_IO_ALIGN);
		const uint64_t end = ctn_align_up(t->offset + t->bytes, CTN_IO_ALIGN);

		if (n == 0 || t->file != run.file || begin > run.file_offset + run.bytes) {
			run = (struct ctn_run){
				.file = t->file,
				.file_offset = begin,
				.frame_offset = run.frame_offset + run.bytes,
			};
			n++;
		}
		run.bytes = CTN_MAX(run.bytes, end - run.file_offset);
		if (runs)
			runs[n - 1] = run;
		if (frame_offsets)
			frame_offsets[i] = run.frame_offset + (t->offset - run.file_offset);
	}
	if (run_count)
		*run_count = n;
	return run.frame_offset + run.bytes;
}

/* ---- groups and packs ------------------------------------------------------------------ */

static void measure_group(struct parts *p, struct group *g)
{
	const uint32_t count = g->end - g->first;
	const struct ctn_tensor *t;

	for (uint32_t i = 0; i < count; i++) {
		p->scratch[i] = g->first + i;
		g->tensor_bytes += tensor_of(p, g->first + i)->bytes;
	}
	qsort_r(p->scratch, count, sizeof(*p->scratch), by_file_offset, p);
	t = tensor_of(p, p->scratch[0]);
	g->file = t->file;
	g->offset = t->offset;
	g->frame_bytes = lay_out(p, p->scratch, count, NULL, NULL, NULL);
}

static void find_groups(struct parts *p)
{
	const struct ctn_binding *b = p->priv->bindings;
	uint32_t i = 0;

	while (i < p->priv->binding_count) {
		struct group *g = &p->groups[p->group_count++];

		*g = (struct group){.first = i};
		while (i < p->priv->binding_count && b[i].layer == b[g->first].layer &&
		       kind_of(p, i) == kind_of(p, g->first))
			i++;
		g->end = i;
		measure_group(p, g);
	}
}

static int group_by_file_offset(const void *pa, const void *pb)
{
	const struct group *a = *(const struct group *const *)pa;
	const struct group *b = *(const struct group *const *)pb;

	if (a->file != b->file)
		return a->file < b->file ? -1 : 1;
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Numbers the parts as they come: large groups, then packs. */
static uint32_t assign_parts(struct parts *p, struct group **small)
{
	uint32_t small_count = 0, parts = 0;
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < p->group_count; i++) {
		if (p->groups[i].tensor_bytes < CTN_SMALL_PART)
			small[small_count++] = &p->groups[i];
		else
			p->groups[i].part = parts++;
	}
	qsort(small, small_count, sizeof(struct group *), group_by_file_offset);
	for (uint32_t i = 0; i < small_count; i++) {
		if (i == 0 || bytes + small[i]->frame_bytes > CTN_PACK_MAX) {
			parts++;
			bytes = 0;
		}
		bytes += small[i]->frame_bytes;
		small[i]->part = parts - 1;
	}
	return parts;
}

/* Numbers the parts anew, in the order in which execution first needs them, which is that of
 * their first group. */
static int order_parts(struct parts *p, uint32_t count)
{
	uint32_t *number = malloc((size_t)count * sizeof(*number));
	uint32_t next = 0;

	if (!number)
		return -ENOMEM;
	memset(number, 0xff, (size_t)count * sizeof(*number));
	for (uint32_t i = 0; i < p->group_count; i++) {
		struct group *g = &p->groups[i];

		if (number[g->part] == UINT32_MAX)
			number[g->part] = next++;
		g->part = number[g->part];
	}
	CTN_ASSERT(next == count);
	free(number);
	return 0;
}

/* ---- parts ----------------------------------------------------------------------------- */

/*
 * The key of a frame: a hash of what identifies the files that it is read from, the part, and
 * the version of the layout. All little-endian.
 */
static int make_key(const struct ctn_checkpoint *ckpt, struct ctn_part *part)
{
	struct {
		uint64_t part;
		uint32_t version;
		uint32_t zero;
	} tail = {htole64(part->id), htole32(CTN_PLAN_VERSION), 0};
	struct ctn_buf identities = {0};
	XXH128_canonical_t digest;

	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_file *f = &ckpt->files[part->runs[i].file];
		const uint64_t identity[] = {htole64(f->bytes), htole64(f->device),
					     htole64(f->inode), htole64((uint64_t)f->mtime_ns)};

		/* Runs are in file order: each file once. */
		if (i && part->runs[i].file == part->runs[i - 1].file)
			continue;
		ctn_buf_append(&identities, f->header.bytes, sizeof(f->header.bytes));
		ctn_buf_append(&identities, identity, sizeof(identity));
	}
	if (identities.failed) {
		ctn_buf_free(&identities);
		return -ENOMEM;
	}
	XXH128_canonicalFromHash(&digest, XXH3_128bits(identities.data, identities.len));
	ctn_buf_free(&identities);
	memcpy(part->key.bytes, digest.digest, 16);
	memcpy(part->key.bytes + 16, &tail, sizeof(tail));
	return 0;
}

/* Where the tensors lie in the frame, and how large they are, in role order. */
static int make_layout(const struct ctn_checkpoint *ckpt, struct ctn_part *part)
{
	struct ctn_buf places = {0};
	XXH128_canonical_t digest;
	int rc = 0;

	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_part_tensor *t = &part->tensors[i];
		const uint64_t place[] = {htole64(t->frame_offset),
					  htole64(ckpt->tensors[t->tensor].bytes)};

		ctn_buf_append(&places, place, sizeof(place));
	}
	if (places.failed) {
		rc = -ENOMEM;
	} else {
		XXH128_canonicalFromHash(&digest, XXH3_128bits(places.data, places.len));
		memcpy(part->layout.bytes, digest.digest, sizeof(part->layout.bytes));
	}
	ctn_buf_free(&places);
	return rc;
}

static int build_part(struct parts *p, struct ctn_part *part, uint32_t first_binding,
		      uint32_t count)
{
	const struct ctn_binding *b = p->priv->bindings;
	uint64_t *offsets;
	void *shrunk;
	int rc;

	part->kind = kind_of(p, first_binding);
	part->tensors = calloc(count, sizeof(*part->tensors));
	part->runs = calloc(count, sizeof(*part->runs));
	offsets = calloc(count, sizeof(*offsets));
	if (!part->tensors || !part->runs || !offsets) {
		free(offsets);
		return -ENOMEM;
	}
	qsort_r(p->scratch, count, sizeof(*p->scratch), by_file_offset, p);
	part->frame_bytes = lay_out(p, p->scratch, count, part->runs, &part->run_count, offsets);
	for (uint32_t i = 0; i < count; i++) {
		const uint32_t binding = p->scratch[i];

		p->places[binding] = (struct ctn_place){part->id, offsets[i]};
		part->tensor_bytes += tensor_of(p, binding)->bytes;
	}
	free(offsets);
	shrunk = realloc(part->runs, part->run_count * sizeof(*part->runs));
	if (shrunk)
		part->runs = shrunk;
	/* Bindings are in role order: so are the tensors, which the digest wants. */
	for (uint32_t i = first_binding; part->tensor_count < count; i++) {
		if (p->places[i].part != part->id)
			continue;
		part->tensors[part->tensor_count++] = (struct ctn_part_tensor){
			.tensor = b[i].tensor,
			.frame_offset = p->places[i].frame_offset,
		};
	}
	rc = make_key(p->plan->ckpt, part);
	return rc ? rc : make_layout(p->plan->ckpt, part);
}

/* The groups of a part, wherever they are, become its bindings. */
static int build_parts(struct parts *p, uint32_t count)
{
	struct ctn_plan *plan = p->plan;

	plan->parts = calloc(count, sizeof(*plan->parts));
	if (!plan->parts)
		return -ENOMEM;
	plan->part_count = count;
	for (uint32_t i = 0; i < p->priv->binding_count; i++)
		p->places[i].part = UINT32_MAX;
	for (uint32_t id = 0; id < count; id++) {
		uint32_t first = UINT32_MAX, bindings = 0, groups = 0;
		int rc;

		for (uint32_t i = 0; i < p->group_count; i++) {
			const struct group *g = &p->groups[i];

			if (g->part != id)
				continue;
			first = CTN_MIN(first, g->first);
			groups++;
			for (uint32_t k = g->first; k < g->end; k++)
				p->scratch[bindings++] = k;
		}
		plan->parts[id].id = id;
		plan->parts[id].pack = groups > 1;
		rc = build_part(p, &plan->parts[id], first, bindings);
		if (rc)
			return rc;
		plan->host_bytes += plan->parts[id].frame_bytes;
	}
	return 0;
}

int ctn_plan_parts(struct ctn_plan *plan, struct ctn_place *places, struct ctn_err *err)
{
	struct parts p = {.plan = plan, .priv = ctn_priv(plan->ckpt), .places = places};
	const size_t n = p.priv->binding_count;
	struct group **small;
	int rc = -ENOMEM;

	p.groups = calloc(n, sizeof(*p.groups));
	p.scratch = calloc(n, sizeof(*p.scratch));
	small = calloc(n, sizeof(struct group *));
	if (p.groups && p.scratch && small) {
		uint32_t count;

		find_groups(&p);
		count = assign_parts(&p, small);
		rc = order_parts(&p, count);
		if (!rc)
			rc = build_parts(&p, count);
	}
	free(small);
	free(p.scratch);
	free(p.groups);
	return rc ? ctn_err_set(err, rc, "%s: %s", plan->ckpt->dir, strerror(-rc)) : 0;
}
