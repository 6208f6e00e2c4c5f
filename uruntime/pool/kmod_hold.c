// SPDX-License-Identifier: MIT
/* The frames of a module's pool that this process holds: those that it fills, and its leases. */
#include "pool/kmod.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UNIT CTN_EXTENT_ALIGN

static int frame_op(struct kmod_pool *p, unsigned long request, struct ctn_frame_ref ref)
{
	struct computron_frame_op op = {.ref = ctn_kmod_ref(ref)};

	return CTN_KMOD_CALL(p->sys, p->fd, request, &op);
}

/* ---- the table: locked ---------------------------------------------------- */

static struct kmod_frame *held_by_id(struct kmod_pool *p, uint64_t id)
{
	struct kmod_frame *fr;

	HASH_FIND(hh, p->frames, &id, sizeof(id), fr);
	return fr;
}

static struct kmod_frame *held(struct kmod_pool *p, struct ctn_frame_ref ref)
{
	struct kmod_frame *fr = held_by_id(p, ref.id);

	return fr && fr->ref.generation == ref.generation ? fr : NULL;
}

static int fetch_extents(struct kmod_pool *p, struct kmod_frame *fr, uint32_t count)
{
	struct computron_extent *from = calloc(CTN_MAX(count, 1u), sizeof(*from));
	struct computron_frame_extents call = {
		.ref = ctn_kmod_ref(fr->ref), .extents = (uintptr_t)from, .count = count};
	int rc = -ENOMEM;

	fr->extents = calloc(CTN_MAX(count, 1u), sizeof(*fr->extents));
	if (!from || !fr->extents)
		goto out;
	rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_EXTENTS, &call);
	/* They are fixed as long as the frame is, and it is held. */
	if (rc == 0 && (call.total != count || call.count != count))
		rc = -EPROTO;
	for (uint32_t i = 0; rc == 0 && i < count; i++) {
		if (from[i].offset / UNIT + from[i].bytes / UNIT > p->units)
			rc = -EPROTO;
		else
			ctn_kmod_place(p, &from[i], &fr->extents[fr->extent_count++]);
	}
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		fr->charged += fr->extents[i].bytes;
out:
	free(from);
	return rc;
}

static void forget(struct kmod_pool *p, struct kmod_frame *fr)
{
	HASH_DELETE(hh, p->frames, fr);
	free(fr->extents);
	free(fr);
}

/* Enters a frame that the module says we hold. */
static int remember(struct kmod_pool *p, struct ctn_frame_ref ref, uint32_t extents,
		    struct kmod_frame **out)
{
	struct kmod_frame *fr = calloc(1, sizeof(*fr));
	int rc = -ENOMEM;

	if (!fr)
		return rc;
	fr->ref = ref;
	rc = fetch_extents(p, fr, extents);
	if (rc)
		goto free_frame;
	HASH_ADD(hh, p->frames, ref.id, sizeof(fr->ref.id), fr);
	rc = fr->hh.tbl ? 0 : -ENOMEM;
	if (rc)
		goto free_frame;
	*out = fr;
	return 0;

free_frame:
	free(fr->extents);
	free(fr);
	return rc;
}

/* Of a frame that is not held: CLEAN, or gone. */
static int why_not_held(struct kmod_pool *p, struct ctn_frame_ref ref)
{
	struct computron_frame_lookup l = {.flags = COMPUTRON_LOOKUP_REF,
					   .info.ref = ctn_kmod_ref(ref)};

	return CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_LOOKUP, &l) ? -ESTALE : -EINVAL;
}

/* ---- LOADING frames --------------------------------------------------------------------- */

/* A frame of that key is there. One that another process fills is of no use to us, nor shall we
 * hear when it is there. */
static int explain_taken(struct kmod_pool *p, struct computron_ref ref)
{
	struct computron_frame_lookup l = {.flags = COMPUTRON_LOOKUP_REF, .info.ref = ref};

	if (CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_LOOKUP, &l) == 0 &&
	    l.info.state == COMPUTRON_FRAME_LOADING && !(l.info.flags & COMPUTRON_FRAME_MINE))
		return -EBUSY;
	return -EEXIST;
}

int ctn_kmod_alloc(struct ctn_pool *pool, const struct ctn_frame_key *key, uint64_t bytes, int node,
		   struct ctn_frame_ref *ref)
{
	struct computron_frame_alloc a = {.flags = COMPUTRON_ALLOC_RESERVE, .bytes = bytes};
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr;
	int rc = -EINVAL;

	(void)node; /* a pool lies on one node */
	if (bytes == 0)
		goto out;
	memcpy(a.key, key->bytes, sizeof(a.key));
	rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_ALLOC, &a);
	*ref = ctn_kmod_our_ref(a.ref);
	if (rc == -EDQUOT)
		rc = -ENOSPC;
	if (rc == -EEXIST)
		rc = explain_taken(p, a.ref);
	if (rc)
		goto out;
	rc = remember(p, *ref, a.extents, &fr);
	if (rc)
		frame_op(p, COMPUTRON_IOC_FRAME_ABORT, *ref);
	else
		fr->loading = true;
out:
	ctn_kmod_unlock(p);
	return rc;
}

int ctn_kmod_commit(struct ctn_pool *pool, const struct ctn_extent *extents, uint32_t count)
{
	struct computron_frame_populate populate = {0};
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = NULL;
	int rc = -EINVAL;

	if (count == 0 || extents[0].segment >= p->segment_count)
		goto out;
	fr = held_by_id(p, (uint64_t)extents[0].segment * p->segment_units +
				   extents[0].segment_offset / UNIT);
	rc = -ESTALE;
	if (!fr || fr->extent_count != count)
		goto out;
	rc = -EINVAL;
	if (!fr->loading)
		goto out;
	populate.ref = ctn_kmod_ref(fr->ref);
	/* Its owner, who called, neither seals nor aborts it meanwhile. */
	ctn_kmod_unlock(p);
	rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_POPULATE, &populate);
	ctn_kmod_lock(pool);
	if (rc == 0)
		rc = ctn_kmod_make_writable(p, fr, true);
	fr->committed = rc == 0;
out:
	ctn_kmod_unlock(p);
	/* Mapped at once, in huge pieces. What fails here is tried again by a fault. */
	for (uint32_t i = 0; rc == 0 && i < count; i++)
		ctn_populate(extents[i].addr, extents[i].bytes);
	return rc;
}

int ctn_kmod_seal(struct ctn_pool *pool, struct ctn_frame_ref ref, const struct ctn_digest *digest,
		  const uint8_t owner[CTN_OWNER_DATA])
{
	struct computron_frame_seal s = {.flags = COMPUTRON_SEAL_LEASE, .ref = ctn_kmod_ref(ref)};
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = held(p, ref);
	int rc = fr ? -EINVAL : why_not_held(p, ref);

	if (!fr || !fr->loading || !fr->committed)
		goto out;
	if (digest) {
		s.flags |= COMPUTRON_SEAL_DIGEST;
		memcpy(s.digest, digest->bytes, sizeof(s.digest));
	}
	if (owner)
		memcpy(s.owner, owner, sizeof(s.owner));
	rc = ctn_kmod_make_writable(p, fr, false);
	if (rc == 0)
		rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_SEAL, &s);
	if (rc) {
		ctn_kmod_make_writable(p, fr, true);
		goto out;
	}
	fr->loading = false;
	fr->leases = 1;
out:
	ctn_kmod_unlock(p);
	return rc;
}

int ctn_kmod_abort(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = held(p, ref);
	int rc = fr ? -EINVAL : why_not_held(p, ref);

	if (!fr || !fr->loading)
		goto out;
	ctn_kmod_make_writable(p, fr, false);
	rc = frame_op(p, COMPUTRON_IOC_FRAME_ABORT, ref);
	if (rc == 0)
		forget(p, fr);
out:
	ctn_kmod_unlock(p);
	return rc;
}

/* ---- CLEAN frames ----------------------------------------------------------------------- */

static int count_extents(struct kmod_pool *p, struct ctn_frame_ref ref, uint32_t *count)
{
	struct computron_frame_lookup l = {.flags = COMPUTRON_LOOKUP_REF,
					   .info.ref = ctn_kmod_ref(ref)};
	int rc = CTN_KMOD_CALL(p->sys, p->fd, COMPUTRON_IOC_FRAME_LOOKUP, &l);

	*count = l.info.extents;
	return rc;
}

int ctn_kmod_lease(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = held(p, ref);
	uint32_t extents = 0;
	int rc = frame_op(p, COMPUTRON_IOC_FRAME_LEASE, ref);

	if (rc)
		goto out;
	if (!fr) {
		rc = count_extents(p, ref, &extents);
		if (rc == 0)
			rc = remember(p, ref, extents, &fr);
		if (rc) {
			frame_op(p, COMPUTRON_IOC_FRAME_RELEASE, ref);
			goto out;
		}
	}
	fr->leases++;
out:
	ctn_kmod_unlock(p);
	return rc;
}

void ctn_kmod_release(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = held(p, ref);
	int rc;

	/* A lease keeps its frame: one that is not there was never leased by the caller. */
	CTN_ASSERT(fr && fr->leases > 0);
	if (fr && fr->leases > 0) {
		rc = frame_op(p, COMPUTRON_IOC_FRAME_RELEASE, ref);
		if (rc)
			ctn_warn("pool %s: release: %s", p->name, strerror(-rc));
		if (--fr->leases == 0)
			forget(p, fr);
	}
	ctn_kmod_unlock(p);
}

/* Giving pages back takes its time: not locked. */
int ctn_kmod_evict(struct ctn_pool *pool, struct ctn_frame_ref ref)
{
	return frame_op(ctn_kmod_of(pool), COMPUTRON_IOC_FRAME_EVICT, ref);
}

int ctn_kmod_extents(struct ctn_pool *pool, struct ctn_frame_ref ref,
		     const struct ctn_extent **extents, uint32_t *count)
{
	struct kmod_pool *p = ctn_kmod_lock(pool);
	struct kmod_frame *fr = held(p, ref);

	if (fr) {
		*extents = fr->extents;
		*count = fr->extent_count;
	}
	ctn_kmod_unlock(p);
	return fr ? 0 : -ESTALE;
}
