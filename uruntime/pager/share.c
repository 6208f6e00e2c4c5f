// SPDX-License-Identifier: MIT
/*
 * One frame for parts of equal bytes. Which are equal is known by a manifest that is not older than
 * its files, and then they are not read; or it is found out when a part was staged whose digest is
 * that of a CLEAN frame: the two are compared byte by byte, and the new one gives way to the old
 * one.
 */
#include "pager/state.h"

#include <errno.h>
#include <string.h>
#include <utlist.h>

/*
 * What a frame says of itself to whoever finds it, also after a restart. It tells how the bytes lie
 * in the frame, not whose they are: with the digest it is the name of the content, by which parts
 * of other checkpoints find it.
 */
struct owner_data {
	uint32_t plan_version;
	uint32_t zero;
	uint64_t frame_bytes;
	uint64_t tensor_bytes;
	struct ctn_digest layout;
};

void pager_describe_owner(const struct ctn_part *part, uint8_t out[CTN_OWNER_DATA])
{
	const struct owner_data owner = {.plan_version = CTN_PLAN_VERSION,
					 .frame_bytes = part->frame_bytes,
					 .tensor_bytes = part->tensor_bytes,
					 .layout = part->layout};

	_Static_assert(sizeof(owner) <= CTN_OWNER_DATA, "owner data");
	memset(out, 0, CTN_OWNER_DATA);
	memcpy(out, &owner, sizeof(owner));
}

/* ---- known before they are read ---------------------------------------------------------- */

static int find_by_manifest(const struct pager_part *part, struct ctn_frame_info *info)
{
	uint8_t owner[CTN_OWNER_DATA];

	if (!part->plan->current)
		return -ENOENT;
	pager_describe_owner(part->plan, owner);
	return ctn_pool_lookup_content(part->model->pager->pool, &part->plan->digest, owner, info);
}

/* The very frame that this part was compared with, not one that has its key now. */
static int find_twin(const struct pager_part *part, struct ctn_frame_info *info)
{
	if (!part->has_twin ||
	    ctn_pool_lookup(part->model->pager->pool, &part->twin_key, info) != 0 ||
	    info->ref.id != part->twin.id || info->ref.generation != part->twin.generation)
		return -ENOENT;
	return 0;
}

int pager_find_equal(const struct pager_part *part, struct ctn_frame_info *info)
{
	int rc = find_by_manifest(part, info);

	return rc == -ENOENT ? find_twin(part, info) : rc;
}

int pager_find(const struct pager_part *part, struct ctn_frame_info *info)
{
	int rc = ctn_pool_lookup(part->model->pager->pool, &part->plan->key, info);

	return rc == -ENOENT ? pager_find_equal(part, info) : rc;
}

static bool same_content(const struct ctn_part *a, const struct ctn_part *b)
{
	return a->has_digest && b->has_digest && a->frame_bytes == b->frame_bytes &&
	       a->tensor_bytes == b->tensor_bytes &&
	       memcmp(&a->digest, &b->digest, sizeof(a->digest)) == 0 &&
	       memcmp(&a->layout, &b->layout, sizeof(a->layout)) == 0;
}

static bool stages_equal(const struct pager_model *m, const struct pager_part *part)
{
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		if (m->parts[i].state == HOST_STAGING && same_content(m->parts[i].plan, part->plan))
			return true;
	}
	return false;
}

bool pager_equal_is_staged(const struct pager_part *part)
{
	const struct ctn_pager *p = part->model->pager;
	const struct pager_model *m;

	if (!part->plan->current)
		return false;
	DL_FOREACH (p->loads, m) {
		if (stages_equal(m, part))
			return true;
	}
	return p->ahead.model && stages_equal(p->ahead.model, part);
}

/* ---- found out by comparing -------------------------------------------------------------- */

/* The bytes are those of the other frame: that one is leased in the place of ours, which goes. */
static void give_way(struct pager_part *part)
{
	struct ctn_pool *pool = part->model->pager->pool;

	ctn_pool_abort(pool, part->ref);
	part->ref = part->twin;
	part->extents = part->twin_extents;
	part->extent_count = part->twin_extent_count;
	part->has_twin = true;
	pager_end_stage(part, 0, true);
}

/* In the owner's thread. */
static void compare_taken(struct ctn_mail *c)
{
	struct pager_part *part =
		(struct pager_part *)((char *)c - offsetof(struct pager_part, completion));

	if (part->state == HOST_STAGING && part->equal) {
		give_way(part);
		return;
	}
	/* Cancelled; or two contents of one digest. */
	ctn_pool_release(part->model->pager->pool, part->twin);
	pager_end_stage(part, part->state == HOST_DRAINING ? -ECANCELED : 0, false);
}

/* From a thread of the stage. */
static void compare_done(void *arg, const struct ctn_stage_result *result)
{
	struct pager_part *part = arg;
	struct ctn_pager *p = part->model->pager;

	/* The handle dies with this call. */
	pthread_mutex_lock(&p->jobs_lock);
	part->job = NULL;
	pthread_mutex_unlock(&p->jobs_lock);
	part->equal = result->rc == 0 && result->equal;
	part->completion.take = compare_taken;
	ctn_mailbox_post(&p->mail, &part->completion);
}

/* Leases a CLEAN frame that has the digest and the layout of what was staged. */
static bool lease_twin(struct pager_part *part)
{
	struct ctn_pool *pool = part->model->pager->pool;
	uint8_t owner[CTN_OWNER_DATA];
	struct ctn_frame_info info;

	part->has_twin = false;
	pager_describe_owner(part->plan, owner);
	if (ctn_pool_lookup_content(pool, &part->result.digest, owner, &info) != 0 ||
	    ctn_pool_lease(pool, info.ref) != 0)
		return false;
	part->twin = info.ref;
	part->twin_key = info.key;
	if (ctn_pool_extents(pool, info.ref, &part->twin_extents, &part->twin_extent_count) == 0)
		return true;
	ctn_pool_release(pool, info.ref);
	return false;
}

bool pager_compare(struct pager_part *part)
{
	struct ctn_pager *p = part->model->pager;
	struct ctn_err err = {0};
	int rc;

	if (!part->result.has_digest || part->plan->tensor_bytes == 0 || !lease_twin(part))
		return false;
	/* Locked, or its end could come before the handle is stored. */
	pthread_mutex_lock(&p->jobs_lock);
	rc = ctn_stage_compare(p->stage, part->model->plan->ckpt, part->plan, part->extents,
			       part->extent_count, part->twin_extents, part->twin_extent_count,
			       compare_done, part, &part->job, &err);
	pthread_mutex_unlock(&p->jobs_lock);
	if (rc == 0)
		return true;
	/* It is right as it is, only not shared. */
	ctn_warn("pager: part %u: not compared: %s", part->plan->id, err.msg);
	ctn_pool_release(p->pool, part->twin);
	return false;
}
