// SPDX-License-Identifier: MIT
#include "pool/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POISON_BYTE 0xdb

/* ---- units and extents ----------------------------------------------------------------- */

static void describe_extent(const struct frames *f, uint32_t unit, uint32_t units,
			    struct ctn_extent *e)
{
	e->segment = unit / f->space.segment_units;
	e->segment_offset = unit % f->space.segment_units * CTN_UNIT;
	e->addr = f->segments[e->segment].addr + e->segment_offset;
	e->bytes = units * CTN_UNIT;
}

static uint32_t first_unit(const struct frames *f, const struct ctn_extent *e)
{
	return e->segment * f->space.segment_units + (uint32_t)(e->segment_offset / CTN_UNIT);
}

int ctn_frame_protect(const struct frames *f, const struct frame *fr, int prot)
{
	if (!f->protect)
		return 0;
	for (uint32_t i = 0; i < fr->extent_count; i++) {
		if (mprotect(fr->extents[i].addr, fr->extents[i].bytes, prot) != 0)
			return -errno;
	}
	return 0;
}

static void give_extents(struct frames *f, struct frame *fr)
{
	for (uint32_t i = 0; i < fr->extent_count; i++)
		ctn_space_give(&f->space, first_unit(f, &fr->extents[i]),
			       (uint32_t)(fr->extents[i].bytes / CTN_UNIT));
	fr->extent_count = 0;
}

/* Takes the units of a frame, in as few extents as the space allows. */
static int take_extents(struct frames *f, struct frame *fr)
{
	uint32_t left = (uint32_t)(fr->info.charged / CTN_UNIT);

	while (left) {
		uint32_t unit, got;
		struct ctn_extent *grown =
			realloc(fr->extents, (fr->extent_count + 1) * sizeof(*fr->extents));

		if (!grown) {
			give_extents(f, fr);
			return -ENOMEM;
		}
		fr->extents = grown;
		if (!ctn_space_take(&f->space, left, &unit, &got)) {
			give_extents(f, fr);
			return -ENOSPC;
		}
		describe_extent(f, unit, got, &fr->extents[fr->extent_count++]);
		left -= got;
	}
	return 0;
}

/* Commits the units of an extent that have no memory yet, run by run. */
static int commit_extent(struct frames *f, const struct ctn_extent *e)
{
	uint8_t *marks = f->committed + first_unit(f, e);
	uint64_t n = e->bytes / CTN_UNIT, end;

	for (uint64_t u = 0; u < n; u = end) {
		int rc;

		for (end = u; end < n && marks[end] == marks[u];)
			end++;
		if (marks[u])
			continue;
		rc = f->memory->populate(e->addr + u * CTN_UNIT, (end - u) * CTN_UNIT);
		if (rc)
			return rc;
		memset(marks + u, 1, end - u);
	}
	return 0;
}

int ctn_frame_commit(struct frames *f, struct frame *fr)
{
	int rc = ctn_frame_protect(f, fr, PROT_READ | PROT_WRITE);

	for (uint32_t i = 0; rc == 0 && i < fr->extent_count; i++)
		rc = commit_extent(f, &fr->extents[i]);
	return rc;
}

/* ---- the table ------------------------------------------------------------------------- */

struct frame *ctn_table_by_key(struct frames *f, const struct ctn_frame_key *key)
{
	struct frame *fr;

	HASH_FIND(by_key, f->keys, key, sizeof(*key), fr);
	return fr;
}

struct frame *ctn_table_by_ref(struct frames *f, struct ctn_frame_ref ref)
{
	struct frame *fr;

	HASH_FIND(by_id, f->ids, &ref.id, sizeof(ref.id), fr);
	return fr && fr->info.ref.generation == ref.generation ? fr : NULL;
}

static int add_frame(struct frames *f, struct frame *fr)
{
	HASH_ADD(by_key, f->keys, info.key, sizeof(fr->info.key), fr);
	if (!fr->by_key.tbl)
		return -ENOMEM;
	HASH_ADD(by_id, f->ids, info.ref.id, sizeof(fr->info.ref.id), fr);
	if (!fr->by_id.tbl) {
		HASH_DELETE(by_key, f->keys, fr);
		return -ENOMEM;
	}
	return 0;
}

int ctn_table_enter(struct frames *f, struct frame *fr)
{
	struct frame *old = ctn_table_by_key(f, &fr->info.key);
	int rc;

	if (old) {
		fr->info.ref = old->info.ref;
		return -EEXIST;
	}
	if (fr->info.charged > f->space.free * CTN_UNIT)
		return -ENOSPC;
	rc = take_extents(f, fr);
	if (rc)
		return rc;
	/* Unique among the frames that live; what comes after it has another generation. */
	fr->info.ref.id = first_unit(f, &fr->extents[0]);
	fr->info.ref.generation = ++f->generation;
	rc = add_frame(f, fr);
	if (rc)
		give_extents(f, fr);
	return rc;
}

void ctn_frame_free(struct frame *fr)
{
	free(fr->extents);
	free(fr);
}

void ctn_table_remove(struct frames *f, struct frame *fr)
{
	HASH_DELETE(by_key, f->keys, fr);
	HASH_DELETE(by_id, f->ids, fr);
	give_extents(f, fr);
	ctn_frame_free(fr);
}

/* That an extent could not be made read-only does not make the frame less gone. */
void ctn_table_retire(struct frames *f, struct frame *fr)
{
	if (f->poison && ctn_frame_protect(f, fr, PROT_READ | PROT_WRITE) == 0) {
		for (uint32_t i = 0; i < fr->extent_count; i++)
			memset(fr->extents[i].addr, POISON_BYTE, fr->extents[i].bytes);
	}
	ctn_frame_protect(f, fr, PROT_READ);
	ctn_table_remove(f, fr);
}

#ifdef CTN_DEBUG
/* The independent count: every unit is marked by exactly one owner. */
void ctn_table_check(struct frames *f)
{
	uint32_t units = f->space.count, owned = 0;
	struct frame *fr, *next;

	memset(f->marks, 0, units);
	CTN_ASSERT(ctn_space_mark(&f->space, f->marks) == f->space.free);
	HASH_ITER (by_id, f->ids, fr, next) {
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < fr->extent_count; i++) {
			uint32_t u = first_unit(f, &fr->extents[i]);

			bytes += fr->extents[i].bytes;
			for (uint64_t n = fr->extents[i].bytes / CTN_UNIT; n; n--)
				f->marks[u++]++;
		}
		CTN_ASSERT(bytes == fr->info.charged);
		CTN_ASSERT(fr->info.leases == 0 || fr->info.state == CTN_FRAME_CLEAN);
		owned += (uint32_t)(bytes / CTN_UNIT);
	}
	CTN_ASSERT(f->space.free + owned == units);
	for (uint32_t u = 0; u < units; u++)
		CTN_ASSERT(f->marks[u] == 1);
	CTN_ASSERT(HASH_CNT(by_key, f->keys) == HASH_CNT(by_id, f->ids));
}
#else
void ctn_table_check(struct frames *f)
{
	(void)f;
}
#endif
