// SPDX-License-Identifier: MIT
/* Parts: finding or staging their frames, holding and releasing them. */
#include "pager/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t pager_part_charge(const struct pager_part *part)
{
	return ctn_align_up(part->plan->frame_bytes, CTN_EXTENT_ALIGN);
}

static void stage_taken(struct ctn_mail *c);

/* From an I/O thread. */
static void stage_done(void *arg, const struct ctn_stage_result *result)
{
	struct pager_part *part = arg;
	struct ctn_pager *p = part->model->pager;

	/* The handle dies with this call. */
	pthread_mutex_lock(&p->jobs_lock);
	part->job = NULL;
	pthread_mutex_unlock(&p->jobs_lock);
	part->result = *result;
	part->completion.take = stage_taken;
	ctn_mailbox_post(&p->mail, &part->completion);
}

/* Who counts the reads of a part. */
static uint32_t *in_flight(struct pager_part *part)
{
	struct pager_model *m = part->model;

	return part->ahead ? &m->pager->ahead.stages_in_flight : &m->load.stages_in_flight;
}

enum host_result pager_start_stage(struct pager_part *part, struct ctn_err *err)
{
	struct pager_model *m = part->model;
	struct ctn_pager *p = m->pager;
	int rc;

	rc = ctn_pool_alloc(p->pool, &part->plan->key, part->plan->frame_bytes, -1, &part->ref);
	if (rc == -EEXIST) {
		pager_part_state(part, HOST_AWAITED);
		return HOST_WAIT;
	}
	if (rc == -ENOSPC)
		return HOST_NO_ROOM;
	if (rc) {
		ctn_err_set(err, rc, "no frame of %llu bytes from the pool: %s",
			    (unsigned long long)part->plan->frame_bytes, strerror(-rc));
		return HOST_FAILED;
	}
	rc = ctn_pool_extents(p->pool, part->ref, &part->extents, &part->extent_count);
	if (rc == 0) {
		/* The completion may be queued before submit returns; it is taken later. */
		pager_part_state(part, HOST_STAGING);
		++*in_flight(part);
		/* Locked, or its end could come before the handle is stored. */
		pthread_mutex_lock(&p->jobs_lock);
		rc = ctn_stage_submit(p->stage, m->plan->ckpt, part->plan, part->extents,
				      part->extent_count, stage_done, part, &part->job, err);
		pthread_mutex_unlock(&p->jobs_lock);
		if (rc == 0)
			return HOST_OK;
		--*in_flight(part);
		pager_part_state(part, HOST_ABSENT);
	} else {
		ctn_err_set(err, rc, "frame of part %u: %s", part->plan->id, strerror(-rc));
	}
	ctn_pool_abort(p->pool, part->ref);
	return HOST_FAILED;
}

int pager_evict(struct ctn_pager *p, const struct ctn_frame_info *info)
{
	struct ctn_pager_move_stats *stats = &p->moves[CTN_PAGER_DROP_HOST];
	int rc = ctn_pool_evict(p->pool, info->ref);

	if (rc == 0) {
		p->host_changes++;
		stats->ok++;
		stats->bytes += info->charged;
	} else if (rc != -ESTALE) {
		stats->failed++;
	}
	return rc;
}

/*
 * A frame of the part's key may have been staged before there was a manifest, or under another
 * one: it is not what this one says. It goes, and is staged anew, and held against it; as long as
 * somebody uses it, that cannot be.
 */
static int drop_spoiled(const struct pager_part *part, const struct ctn_frame_info *info,
			struct ctn_err *err)
{
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];
	const struct ctn_checkpoint *ckpt = part->model->plan->ckpt;

	if (pager_evict(part->model->pager, info) != -EBUSY)
		return 0;
	return ctn_err_set(err, -EBADMSG,
			   "%.200s: part %u: the bytes in host memory are not those of the "
			   "manifest: expected digest %s, found %s",
			   ckpt->files[part->plan->runs[0].file].path, part->plan->id,
			   ctn_digest_format(&part->plan->digest, expected),
			   ctn_digest_format(&info->digest, found));
}

bool pager_is_spoiled(const struct pager_part *part, const struct ctn_frame_info *info)
{
	return part->plan->has_digest && info->has_digest && info->state == CTN_FRAME_CLEAN &&
	       memcmp(&info->digest, &part->plan->digest, sizeof(info->digest)) != 0;
}

/*
 * Remembers what the bytes of a part are: device frames are found by it. Other bytes than before,
 * where no manifest says which are right, are those of a file that was changed under us.
 */
static int take_digest(struct pager_part *part, const struct ctn_digest *digest,
		       struct ctn_err *err)
{
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];
	const struct ctn_checkpoint *ckpt = part->model->plan->ckpt;

	if (part->has_digest && memcmp(&part->digest, digest, sizeof(*digest)) != 0)
		return ctn_err_set(err, -EBADMSG,
				   "%.200s: part %u: its bytes have changed since they were first "
				   "read: expected digest %s, found %s",
				   ckpt->files[part->plan->runs[0].file].path, part->plan->id,
				   ctn_digest_format(&part->digest, expected),
				   ctn_digest_format(digest, found));
	part->has_digest = true;
	part->digest = *digest;
	return 0;
}

/*
 * Makes an ABSENT part CLEAN (leased) if the pool has it, or begins to stage it. HOST_WAIT:
 * another part's bytes on their way are the same; HOST_NO_ROOM: the pool has none now.
 */
enum host_result pager_acquire(struct pager_part *part, bool may_alloc, struct ctn_err *err)
{
	struct ctn_pager *p = part->model->pager;
	struct ctn_frame_info info;
	int rc;

	rc = pager_find(part, &info);
	if (rc == 0 && pager_is_spoiled(part, &info)) {
		if (drop_spoiled(part, &info, err))
			return HOST_FAILED;
		rc = pager_find_equal(part, &info);
	}
	if (rc == 0 && info.state == CTN_FRAME_CLEAN) {
		switch (pager_adopted(part, &info, err)) {
		case ADOPTED_FAILED:
			return HOST_FAILED;
		case ADOPTED_WAIT:
			pager_part_state(part, HOST_AWAITED);
			return HOST_WAIT;
		case ADOPTED_GONE:
			rc = -ENOENT;
			break;
		case ADOPTED_USABLE:
			break;
		}
	}
	if (rc == 0 ? info.state == CTN_FRAME_LOADING : pager_equal_is_staged(part)) {
		pager_part_state(part, HOST_AWAITED);
		return HOST_WAIT;
	}
	if (rc == 0 && ctn_pool_lease(p->pool, info.ref) == 0) {
		part->ref = info.ref;
		rc = ctn_pool_extents(p->pool, part->ref, &part->extents, &part->extent_count);
		if (rc) {
			ctn_pool_release(p->pool, part->ref);
			ctn_err_set(err, rc, "frame of part %u: %s", part->plan->id, strerror(-rc));
			return HOST_FAILED;
		}
		if (info.has_digest && take_digest(part, &info.digest, err)) {
			ctn_pool_release(p->pool, part->ref);
			return HOST_FAILED;
		}
		pager_part_state(part, HOST_CLEAN);
		return HOST_OK;
	}
	/* Not there, or lost between the two calls. */
	return may_alloc ? pager_start_stage(part, err) : HOST_NO_ROOM;
}

void pager_release_part(struct pager_part *part)
{
	ctn_pool_release(part->model->pager->pool, part->ref);
	pager_part_state(part, HOST_ABSENT);
}

static void count_stage(struct ctn_pager *p, const struct ctn_stage_result *result, int rc)
{
	struct ctn_pager_move_stats *stats = &p->moves[CTN_PAGER_STAGE];

	if (rc == -ECANCELED) {
		stats->cancelled++;
		return;
	}
	if (rc) {
		stats->failed++;
		return;
	}
	stats->ok++;
	stats->bytes += result->bytes;
	stats->nanoseconds += result->nanoseconds;
}

/* The bytes of a part are there: the frame is CLEAN, and ours is the first lease. */
static int seal(struct pager_part *part)
{
	uint8_t owner[CTN_OWNER_DATA];
	int rc;

	pager_describe_owner(part->plan, owner);
	rc = ctn_pool_seal(part->model->pager->pool, part->ref,
			   part->result.has_digest ? &part->result.digest : NULL, owner);
	if (rc)
		ctn_err_set(&part->result.err, rc, "seal of part %u: %s", part->plan->id,
			    strerror(-rc));
	return rc;
}

/* Whoever waited for a frame looks again. */
void pager_wake_awaiting(struct ctn_pager *p)
{
	for (struct pager_model *o = p->loads; o; o = o->next) {
		for (uint32_t i = 0; i < o->plan->part_count; i++) {
			if (o->parts[i].state == HOST_AWAITED)
				pager_part_state(&o->parts[i], HOST_ABSENT);
		}
	}
}

void pager_end_stage(struct pager_part *part, int rc, bool shared)
{
	struct pager_model *m = part->model;
	struct ctn_pager *p = m->pager;

	--*in_flight(part);
	if (rc == 0 && !shared)
		rc = seal(part);
	count_stage(p, &part->result, rc);
	if (rc == 0) {
		p->host_changes++;
		m->bytes_staged += part->result.bytes;
		if (!part->ahead)
			m->load.bytes_staged += part->result.bytes;
		pager_part_state(part, HOST_CLEAN);
		if (part->need == 0)
			pager_release_part(part);
	} else {
		ctn_pool_abort(p->pool, part->ref);
		pager_part_state(part, HOST_ABSENT);
		if (!part->ahead && !m->load.failed)
			pager_fail(m, rc, &part->result.err);
	}
	if (part->ahead)
		pager_end_ahead(part, rc);
	pager_wake_awaiting(p);
	pager_try_end(m);
}

/* In the owner's thread: the reads of a part are over. */
static void stage_taken(struct ctn_mail *c)
{
	struct pager_part *part =
		(struct pager_part *)((char *)c - offsetof(struct pager_part, completion));
	int rc = part->result.rc;

	if (rc == 0 && part->state == HOST_DRAINING)
		rc = -ECANCELED;
	if (rc == 0 && part->result.has_digest)
		rc = take_digest(part, &part->result.digest, &part->result.err);
	if (rc == 0 && pager_compare(part))
		return;
	pager_end_stage(part, rc, false);
}

/* ---- dropping from the pool ------------------------------------------------------------- */

uint64_t ctn_pager_drop_host(struct ctn_pager *p, uint32_t model, uint64_t bytes)
{
	struct pager_model *m = p->models[model];
	struct ctn_pager_move_stats *stats = &p->moves[CTN_PAGER_DROP_HOST];
	uint64_t freed = 0, start = ctn_now_ns();

	for (uint32_t i = m->plan->part_count; i-- > 0 && freed < bytes;) {
		struct ctn_frame_info info;

		if (m->parts[i].state != HOST_ABSENT ||
		    ctn_pool_lookup(p->pool, &m->parts[i].plan->key, &info) ||
		    info.state != CTN_FRAME_CLEAN || info.leases)
			continue;
		if (pager_evict(p, &info) == 0)
			freed += info.charged;
	}
	stats->nanoseconds += ctn_now_ns() - start;
	return freed;
}

uint64_t ctn_pager_host_missing(const struct ctn_pager *p, uint32_t model)
{
	const struct pager_model *m = p->models[model];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		struct ctn_frame_info info;

		if (m->parts[i].state != HOST_CLEAN &&
		    (pager_find(&m->parts[i], &info) || info.state != CTN_FRAME_CLEAN))
			bytes += pager_part_charge(&m->parts[i]);
	}
	return bytes;
}

uint64_t ctn_pager_host_bytes(const struct ctn_pager *p, uint32_t model)
{
	const struct pager_model *m = p->models[model];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < m->plan->part_count; i++)
		bytes += pager_part_charge(&m->parts[i]);
	return bytes;
}

uint64_t ctn_pager_host_changes(const struct ctn_pager *p)
{
	return p->host_changes;
}

struct ctn_frame_info *pager_list(struct ctn_pager *p, size_t *count)
{
	size_t n = ctn_pool_list(p->pool, NULL, 0);
	struct ctn_frame_info *infos = calloc(CTN_MAX(n, (size_t)1), sizeof(*infos));

	*count = infos ? CTN_MIN(n, ctn_pool_list(p->pool, infos, n)) : 0;
	return infos;
}

struct key_owner *pager_owner(struct ctn_pager *p, const struct ctn_frame_key *key)
{
	struct key_owner *owner;

	HASH_FIND(hh, p->owners, key, sizeof(*key), owner);
	return owner;
}

void ctn_pager_host_evictable(struct ctn_pager *p, uint64_t *bytes)
{
	struct ctn_frame_info *infos;
	size_t n;

	memset(bytes, 0, p->max_models * sizeof(*bytes));
	/* Without memory nothing can be named as evictable now; the caller asks again. */
	infos = pager_list(p, &n);
	for (size_t i = 0; i < n; i++) {
		const struct key_owner *owner = pager_owner(p, &infos[i].key);

		if (owner && infos[i].state == CTN_FRAME_CLEAN && infos[i].leases == 0)
			bytes[owner->model] += infos[i].charged;
	}
	free(infos);
}
