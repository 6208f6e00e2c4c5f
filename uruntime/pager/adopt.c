// SPDX-License-Identifier: MIT
/*
 * Frames that the pool had when we came: a kmod pool outlives the process that filled it. They are
 * found by key or by content like all others; what is here is the doubt whether their bytes are
 * still those that they were sealed with.
 */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

static struct pager_adopted *find(struct ctn_pager *p, struct ctn_frame_ref ref)
{
	struct pager_adopted *a;

	HASH_FIND(hh, p->adopted, &ref, sizeof(ref), a);
	return a;
}

static void forget(struct ctn_pager *p, struct pager_adopted *a)
{
	CTN_ASSERT(!a->started);
	if (!a->spoiled)
		p->adoption.waiting--;
	HASH_DEL(p->adopted, a);
	free(a);
}

/* ---- digests ----------------------------------------------------------------------------- */

static void check_taken(struct ctn_mail *mail);

/* From the hashing thread. */
static void check_done(void *arg, const struct ctn_stage_result *result)
{
	struct pager_adopted *a = arg;
	struct ctn_pager *p = a->part->model->pager;

	/* The handle dies with this call. */
	pthread_mutex_lock(&p->jobs_lock);
	a->job = NULL;
	pthread_mutex_unlock(&p->jobs_lock);
	a->result = *result;
	a->completion.take = check_taken;
	ctn_mailbox_post(&p->mail, &a->completion);
}

/* Begins to make a digest. False: the frame is gone, or cannot be hashed, and forgotten. */
static bool start(struct ctn_pager *p, struct pager_adopted *a)
{
	struct ctn_err err = {0};
	int rc = ctn_pool_lease(p->pool, a->info.ref);

	if (rc) {
		p->adoption.lost++;
		forget(p, a);
		return false;
	}
	rc = ctn_pool_extents(p->pool, a->info.ref, &a->extents, &a->extent_count);
	if (rc == 0) {
		a->started = true;
		/* Locked, or its end could come before the handle is stored. */
		pthread_mutex_lock(&p->jobs_lock);
		rc = ctn_stage_check(p->stage, a->part->model->plan->ckpt, a->part->plan,
				     a->extents, a->extent_count, check_done, a, &a->job, &err);
		pthread_mutex_unlock(&p->jobs_lock);
	}
	if (rc == 0) {
		p->adopted_started++;
		return true;
	}
	/* What nobody could look at is not used. */
	a->started = false;
	ctn_pool_release(p->pool, a->info.ref);
	ctn_error("pool: a frame of %llu bytes that was found cannot be checked: %s",
		  (unsigned long long)a->info.bytes, err.code ? err.msg : strerror(-rc));
	pager_evict(p, &a->info);
	p->adoption.lost++;
	forget(p, a);
	return false;
}

/* One at a time: a load that wants its own digests made waits for one of these at most. */
static void start_next(struct ctn_pager *p)
{
	struct pager_adopted *a, *tmp;

	HASH_ITER (hh, p->adopted, a, tmp) {
		if (p->adopted_started)
			return;
		if (!a->spoiled)
			start(p, a);
	}
}

/* ---- wrong bytes ------------------------------------------------------------------------- */

static void explain(const struct pager_adopted *a, struct ctn_err *err)
{
	const struct ctn_checkpoint *ckpt = a->part->model->plan->ckpt;
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];

	if (a->result.rc) {
		*err = a->result.err; /* by the manifest, tensor and all */
		return;
	}
	ctn_err_set(err, -EBADMSG,
		    "%.200s: part %u: the bytes that the pool had are not those that were sealed: "
		    "expected digest %s, found %s",
		    ckpt->files[a->part->plan->runs[0].file].path, a->part->plan->id,
		    ctn_digest_format(&a->info.digest, expected),
		    ctn_digest_format(&a->result.digest, found));
}

/* True when the part's bytes come from the frame, or its device frames may be those of a part whose
 * bytes do: they share what has equal digests. */
static bool came_from(const struct pager_part *part, const struct ctn_frame_info *info)
{
	if (part->ref.id == info->ref.id && part->ref.generation == info->ref.generation)
		return true;
	return part->has_digest && memcmp(&part->digest, &info->digest, sizeof(part->digest)) == 0;
}

/* Nobody else may take a device frame with these bytes while a model that fails still uses it. */
static void shut_piece(const struct pager_piece *pc, const struct ctn_frame_info *info)
{
	const struct pager_model *m = pc->shard->rank->model;

	for (uint32_t i = 0; pc->held && i < pc->part_count; i++)
		pc->frame->spoiled |= came_from(&m->parts[pc->parts[i]], info);
}

static void shut_frames(const struct pager_model *m, const struct ctn_frame_info *info)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		for (uint32_t i = 0; i < m->ranks[r].plan->layer_count; i++) {
			const struct pager_shard *s = &m->ranks[r].shards[i];

			for (uint32_t k = 0; k < s->plan->piece_count; k++)
				shut_piece(&s->pieces[k], info);
		}
	}
}

static bool uses_frame(const struct pager_model *m, const struct ctn_frame_info *info)
{
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		if (came_from(&m->parts[i], info))
			return true;
	}
	return false;
}

static bool has_shards(const struct pager_model *m)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		for (uint32_t i = 0; i < m->ranks[r].plan->layer_count; i++) {
			if (m->ranks[r].shards[i].state != DEVICE_ABSENT)
				return true;
		}
	}
	return false;
}

static void spoiled(struct ctn_pager *p, struct pager_adopted *a)
{
	struct ctn_err err = {0};

	explain(a, &err);
	ctn_error("%s", err.msg);
	p->adoption.waiting--;
	p->adoption.spoiled++;
	a->spoiled = true;
	for (uint32_t i = 0; i < p->model_count; i++) {
		struct pager_model *m = p->models[i];

		if (!uses_frame(m, &a->info) || (!m->load.active && !has_shards(m)))
			continue;
		shut_frames(m, &a->info);
		pager_revoke(m, err.code, &err);
	}
	/* A load that fails may hold it still: then it goes when it is next looked for. */
	if (pager_evict(p, &a->info) != -EBUSY)
		forget(p, a);
}

/* In the owner's thread: a digest was made, or not. */
static void check_taken(struct ctn_mail *mail)
{
	struct pager_adopted *a =
		(struct pager_adopted *)((char *)mail - offsetof(struct pager_adopted, completion));
	struct ctn_pager *p = a->part->model->pager;
	int rc = a->result.rc;

	a->started = false;
	p->adopted_started--;
	ctn_pool_release(p->pool, a->info.ref);
	if (rc == -ECANCELED) {
		forget(p, a);
		return; /* it ends */
	}
	if (rc == 0 && memcmp(&a->result.digest, &a->info.digest, sizeof(a->info.digest)) == 0) {
		p->adoption.verified++;
		forget(p, a);
	} else {
		spoiled(p, a);
	}
	start_next(p);
	if (p->adoption.waiting == 0)
		ctn_info("pool: %llu frames that were found are verified, %llu were spoiled",
			 (unsigned long long)p->adoption.verified,
			 (unsigned long long)p->adoption.spoiled);
	pager_wake_awaiting(p);
}

enum adopted pager_adopted(const struct pager_part *part, const struct ctn_frame_info *info,
			   struct ctn_err *err)
{
	struct ctn_pager *p = part->model->pager;
	struct pager_adopted *a = find(p, info->ref);

	if (!a)
		return ADOPTED_USABLE;
	if (a->spoiled) {
		if (pager_evict(p, info) == -EBUSY) {
			explain(a, err);
			return ADOPTED_FAILED;
		}
		forget(p, a);
		return ADOPTED_GONE;
	}
	if (p->adopt_verify != CTN_PAGER_VERIFY_BEFORE)
		return ADOPTED_USABLE;
	return a->started || start(p, a) ? ADOPTED_WAIT : ADOPTED_GONE;
}

/* ---- adoption ---------------------------------------------------------------------------- */

/* What its digest would be made of is where the part has it. */
static bool fits(const struct pager_part *part, const struct ctn_frame_info *info,
		 enum ctn_pager_verify verify)
{
	uint8_t owner[CTN_OWNER_DATA];

	pager_describe_owner(part->plan, owner);
	return info->bytes == part->plan->frame_bytes &&
	       memcmp(info->owner, owner, sizeof(owner)) == 0 && !pager_is_spoiled(part, info) &&
	       (info->has_digest || verify == CTN_PAGER_VERIFY_OFF);
}

static void adopt(struct pager_part *part, const struct ctn_frame_info *info)
{
	struct ctn_pager *p = part->model->pager;
	struct pager_adopted *a;

	if (part->plan->tensor_bytes == 0)
		return; /* nothing that could be wrong */
	if (!fits(part, info, p->adopt_verify)) {
		p->adoption.unfit += pager_evict(p, info) == 0;
		return;
	}
	a = find(p, info->ref);
	if (a)
		return; /* two models share it */
	a = calloc(1, sizeof(*a));
	if (a) {
		a->info = *info;
		a->part = part;
		HASH_ADD(hh, p->adopted, info.ref, sizeof(a->info.ref), a);
		p->adoption.waiting++;
		p->adoption.frames++;
		p->adoption.bytes += info->charged;
	} else {
		p->adoption.unfit += pager_evict(p, info) == 0;
	}
}

void ctn_pager_adopt(struct ctn_pager *p, enum ctn_pager_verify verify)
{
	struct pager_adopted *a, *tmp;
	struct ctn_frame_info info;

	p->adopt_verify = verify;
	for (uint32_t i = 0; i < p->model_count; i++) {
		for (uint32_t k = 0; k < p->models[i]->plan->part_count; k++) {
			struct pager_part *part = &p->models[i]->parts[k];

			if (pager_find(part, &info) == 0 && info.state == CTN_FRAME_CLEAN)
				adopt(part, &info);
		}
	}
	if (verify != CTN_PAGER_VERIFY_OFF) {
		start_next(p);
		return;
	}
	HASH_ITER (hh, p->adopted, a, tmp)
		forget(p, a);
}

void ctn_pager_stop_adoption(struct ctn_pager *p)
{
	struct pager_adopted *a, *tmp;

	HASH_ITER (hh, p->adopted, a, tmp) {
		if (!a->started) {
			forget(p, a);
			continue;
		}
		pthread_mutex_lock(&p->jobs_lock);
		if (a->job)
			ctn_stage_cancel(p->stage, a->job);
		pthread_mutex_unlock(&p->jobs_lock);
	}
}

void ctn_pager_adoption(const struct ctn_pager *p, struct ctn_pager_adoption *adoption)
{
	*adoption = p->adoption;
}

void pager_adoption_free(struct ctn_pager *p)
{
	struct pager_adopted *a, *tmp;

	HASH_ITER (hh, p->adopted, a, tmp)
		forget(p, a);
}

/* ---- nobody's frames --------------------------------------------------------------------- */

uint64_t pager_drop_strangers(struct ctn_pager *p, uint64_t bytes)
{
	struct ctn_frame_info *infos;
	uint64_t freed = 0;
	size_t n;

	infos = pager_list(p, &n);
	for (size_t i = 0; i < n && freed < bytes; i++) {
		if (infos[i].state == CTN_FRAME_CLEAN && infos[i].leases == 0 &&
		    !pager_owner(p, &infos[i].key) && pager_evict(p, &infos[i]) == 0)
			freed += infos[i].charged;
	}
	free(infos);
	return freed;
}
