// SPDX-License-Identifier: MIT
/* Finding the frames of a module's pool, and counting them. */
#include "pool/kmod.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LIST_ROWS 64 /* of one call */

_Static_assert(sizeof(struct ctn_frame_key) == COMPUTRON_KEY_BYTES, "key");
_Static_assert(sizeof(struct ctn_digest) == COMPUTRON_DIGEST_BYTES, "digest");
_Static_assert(CTN_OWNER_DATA == COMPUTRON_OWNER_BYTES, "owner data");

/* ---- finding ---------------------------------------------------------------------------- */

static void describe(const struct computron_frame_info *from, struct ctn_frame_info *to)
{
	*to = (struct ctn_frame_info){
		.ref = ctn_kmod_our_ref(from->ref),
		.state = from->state == COMPUTRON_FRAME_CLEAN ? CTN_FRAME_CLEAN : CTN_FRAME_LOADING,
		.bytes = from->bytes,
		.charged = from->charged,
		.leases = from->leases,
		.has_digest = from->flags & COMPUTRON_FRAME_HAS_DIGEST,
	};
	memcpy(to->key.bytes, from->key, sizeof(to->key.bytes));
	memcpy(to->digest.bytes, from->digest, sizeof(to->digest.bytes));
	memcpy(to->owner, from->owner, sizeof(to->owner));
}

/* CLEAN, or LOADING by us: what others are filling does not exist for us. */
static bool visible(const struct computron_frame_info *info)
{
	return info->state == COMPUTRON_FRAME_CLEAN ||
	       (info->state == COMPUTRON_FRAME_LOADING && (info->flags & COMPUTRON_FRAME_MINE));
}

static int find(struct kmod_pool *p, struct computron_frame_lookup *l, struct ctn_frame_info *info)
{
	int rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_LOOKUP, l);

	if (rc || !visible(&l->info))
		return -ENOENT;
	describe(&l->info, info);
	return 0;
}

int ctn_kmod_lookup(struct ctn_pool *pool, const struct ctn_frame_key *key,
		    struct ctn_frame_info *info)
{
	struct computron_frame_lookup l = {0};

	memcpy(l.info.key, key->bytes, sizeof(l.info.key));
	return find(ctn_kmod_of(pool), &l, info);
}

int ctn_kmod_lookup_content(struct ctn_pool *pool, const struct ctn_digest *digest,
			    const uint8_t owner[CTN_OWNER_DATA], struct ctn_frame_info *info)
{
	struct computron_frame_lookup l = {.flags = COMPUTRON_LOOKUP_CONTENT};

	memcpy(l.info.digest, digest->bytes, sizeof(l.info.digest));
	memcpy(l.info.owner, owner, sizeof(l.info.owner));
	return find(ctn_kmod_of(pool), &l, info);
}

/* Calls `fn` with every frame of the pool, whoever's. */
static int walk(struct kmod_pool *p, void (*fn)(void *, const struct computron_frame_info *),
		void *arg)
{
	struct computron_frame_info *rows = calloc(LIST_ROWS, sizeof(*rows));
	struct computron_frame_list l = {.row_bytes = sizeof(*rows), .frames = (uintptr_t)rows};
	int rc = rows ? 0 : -ENOMEM;

	while (rc == 0 && l.next != UINT64_MAX) {
		l.count = LIST_ROWS;
		rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_LIST, &l);
		for (uint32_t i = 0; rc == 0 && i < l.count; i++)
			fn(arg, &rows[i]);
	}
	free(rows);
	return rc;
}

struct listing {
	struct ctn_frame_info *infos;
	size_t n, max;
};

static void list_one(void *arg, const struct computron_frame_info *info)
{
	struct listing *l = arg;

	if (!visible(info))
		return;
	if (l->n < l->max)
		describe(info, &l->infos[l->n]);
	l->n++;
}

size_t ctn_kmod_list(struct ctn_pool *pool, struct ctn_frame_info *infos, size_t max)
{
	struct listing l = {infos, 0, max};
	int rc = walk(ctn_kmod_of(pool), list_one, &l);

	if (rc)
		ctn_warn("pool %s: list: %s", ctn_kmod_of(pool)->name, strerror(-rc));
	return l.n;
}

/* ---- counts ----------------------------------------------------------------------------- */

static void count_one(void *arg, const struct computron_frame_info *info)
{
	struct ctn_pool_stats *s = arg;

	if (!visible(info)) {
		s->held_bytes += info->charged;
		return;
	}
	s->frames++;
	if (info->state == COMPUTRON_FRAME_LOADING)
		s->loading_bytes += info->charged;
	else
		s->clean_bytes += info->charged;
	if (info->leases)
		s->leased_bytes += info->charged;
}

static bool same_counts(const struct computron_pool_stat *a, const struct computron_pool_stat *b)
{
	return a->allocs == b->allocs && a->seals == b->seals && a->evictions == b->evictions &&
	       a->reclaims == b->reclaims && a->used == b->used && a->leased == b->leased &&
	       a->loading == b->loading && a->quarantined == b->quarantined;
}

/*
 * Free bytes by the module's own count, all others by a walk over its frames. The kernel may take
 * frames between the two: then they are counted once more.
 */
static int count(struct kmod_pool *p, struct ctn_pool_stats *s)
{
	struct computron_pool_stat before = {0}, after = {0};
	int rc, tries = 16;

	do {
		s->frames = 0;
		s->loading_bytes = s->clean_bytes = s->leased_bytes = s->held_bytes = 0;
		rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_STAT, &before);
		if (rc == 0)
			rc = walk(p, count_one, s);
		if (rc == 0)
			rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_STAT, &after);
	} while (rc == 0 && !same_counts(&before, &after) && --tries);
	s->total_bytes = after.quota;
	s->free_bytes = after.quota > after.used ? after.quota - after.used : 0;
	s->evictions = after.evictions - p->evictions;
	s->refused_evictions = after.refused - p->refused;
	s->losses = after.reclaims - p->reclaims;
	return rc;
}

void ctn_kmod_get_stats(struct ctn_pool *pool, bool with_proc, struct ctn_pool_stats *s)
{
	struct computron_pool_stat survey = {.flags = COMPUTRON_STAT_SURVEY};
	struct kmod_pool *p = ctn_kmod_of(pool);
	int rc = count(p, s);

	s->name = p->name;
	if (rc == 0 && with_proc)
		rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_POOL_STAT, &survey);
	if (rc)
		ctn_warn("pool %s: stat: %s", p->name, strerror(-rc));
	s->module_bytes = survey.populated;
	s->module_huge_bytes = survey.huge;
	s->module_pinned_bytes = survey.pinned;
	if (with_proc && ctn_memory_usage(p->segments, p->segment_count, &s->resident_bytes,
					  &s->huge_bytes) != 0)
		ctn_warn("pool: cannot read /proc/self/smaps");
}
