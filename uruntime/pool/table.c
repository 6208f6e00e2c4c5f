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

uint32_t ctn_first_unit(const struct frames *f, const struct ctn_extent *e)
{
	return e->segment * f->space.segment_units + (uint32_t)(e->segment_offset / CTN_UNIT);
}

int ctn_frame_protect(const struct frames *f, const struct frame *fr, int prot)
{
	if (!f->protect)
		return 0;
	for (uint32_t i = 0; i < fr->extent_count; i++) {
		const struct ctn_extent *e = &fr->extents[i];

		if (!(prot & PROT_WRITE) && f->pins[e->segment])
			continue;
		if (mprotect(e->addr, e->bytes, prot) != 0)
			return -errno;
	}
	return 0;
}

static void give_extents(struct frames *f, struct frame *fr)
{
	for (uint32_t i = 0; i < fr->extent_count; i++)
		ctn_space_give(&f->space, ctn_first_unit(f, &fr->extents[i]),
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

/* ---- the table ------------------------------------------------------------------------- */

struct frame *ctn_table_by_key(struct frames *f, const struct ctn_frame_key *key)
{
	struct frame *fr;

	HASH_FIND(by_key, f->keys, key, sizeof(*key), fr);
	return fr;
}

/* Digest and owner data as they lie in the information of a frame: one key. */
#define CONTENT_BYTES (sizeof(struct ctn_digest) + CTN_OWNER_DATA)

_Static_assert(offsetof(struct ctn_frame_info, owner) ==
		       offsetof(struct ctn_frame_info, digest) + sizeof(struct ctn_digest),
	       "digest and owner data are one key");

struct frame *ctn_table_by_content(struct frames *f, const struct ctn_digest *digest,
				   const uint8_t owner[CTN_OWNER_DATA])
{
	uint8_t content[CONTENT_BYTES];
	struct frame *fr;

	memcpy(content, digest, sizeof(*digest));
	memcpy(content + sizeof(*digest), owner, CTN_OWNER_DATA);
	HASH_FIND(by_content, f->contents, content, CONTENT_BYTES, fr);
	return fr;
}

void ctn_table_name_content(struct frames *f, struct frame *fr)
{
	if (ctn_table_by_content(f, &fr->info.digest, fr->info.owner))
		return;
	HASH_ADD(by_content, f->contents, info.digest, CONTENT_BYTES, fr);
	fr->named = fr->by_content.tbl != NULL;
}

struct frame *ctn_table_by_first_unit(struct frames *f, uint32_t unit)
{
	uint64_t id = unit;
	struct frame *fr;

	HASH_FIND(by_id, f->ids, &id, sizeof(id), fr);
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
	fr->info.ref.id = ctn_first_unit(f, &fr->extents[0]);
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

static void remove_frame(struct frames *f, struct frame *fr)
{
	HASH_DELETE(by_key, f->keys, fr);
	HASH_DELETE(by_id, f->ids, fr);
	if (fr->named)
		HASH_DELETE(by_content, f->contents, fr);
	give_extents(f, fr);
	ctn_frame_free(fr);
}

/* Nobody has written to a frame that was not committed, and poison would commit it now.
 * That an extent could not be made read-only does not make the frame less gone. */
void ctn_table_retire(struct frames *f, struct frame *fr)
{
	if (f->poison && fr->committed && ctn_frame_protect(f, fr, PROT_READ | PROT_WRITE) == 0) {
		for (uint32_t i = 0; i < fr->extent_count; i++)
			memset(fr->extents[i].addr, POISON_BYTE, fr->extents[i].bytes);
	}
	ctn_frame_protect(f, fr, PROT_READ);
	remove_frame(f, fr);
}

#ifdef CTN_DEBUG
/* The independent count: every unit is marked by exactly one owner. */
void ctn_table_check(struct frames *f)
{
	uint32_t units = f->space.count, owned = 0, named = 0;
	struct frame *fr, *next;

	memset(f->marks, 0, units);
	CTN_ASSERT(ctn_space_mark(&f->space, f->marks) == f->space.free);
	HASH_ITER (by_id, f->ids, fr, next) {
		uint64_t bytes = 0;

		for (uint32_t i = 0; i < fr->extent_count; i++) {
			uint32_t u = ctn_first_unit(f, &fr->extents[i]);

			bytes += fr->extents[i].bytes;
			for (uint64_t n = fr->extents[i].bytes / CTN_UNIT; n; n--) {
				f->marks[u]++;
				CTN_ASSERT(fr->info.state != CTN_FRAME_CLEAN || f->committed[u]);
				u++;
			}
		}
		CTN_ASSERT(bytes == fr->info.charged);
		CTN_ASSERT(fr->info.leases == 0 || fr->info.state == CTN_FRAME_CLEAN);
		CTN_ASSERT(!fr->named || fr->info.state == CTN_FRAME_CLEAN);
		named += fr->named;
		owned += (uint32_t)(bytes / CTN_UNIT);
	}
	CTN_ASSERT(f->space.free + owned == units);
	for (uint32_t u = 0; u < units; u++)
		CTN_ASSERT(f->marks[u] == 1);
	CTN_ASSERT(HASH_CNT(by_key, f->keys) == HASH_CNT(by_id, f->ids));
	CTN_ASSERT(HASH_CNT(by_content, f->contents) == named);
}
#else
void ctn_table_check(struct frames *f)
{
	(void)f;
}
#endif
