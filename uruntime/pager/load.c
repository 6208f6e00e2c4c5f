// SPDX-License-Identifier: MIT
/*
 * Loads, from the reservation to the event.
 *
 * Loads are served in ticket order. When the pool has no room for the next part of the oldest
 * load, younger loads stage nothing more and give up the leases that no copy of theirs uses;
 * then sched is asked for victims. Since the oldest load alone fits the pool (its host window,
 * checked at registration) and its own parts are released as their shards arrive, it always
 * gets on: two loads never wait for each other.
 */
#include "pager/state.h"

#include <errno.h>
#include <string.h>
#include <utlist.h>

/* Parts of one load that are staged ahead; the drive is kept busy, order is kept. */
#define STAGES_AHEAD 8

/* Shards whose copies a rank has under way. The link is kept busy; what is not submitted yet can
 * still be cancelled. */
#define COPIES_AHEAD 8

static int by_ticket(const struct pager_model *a, const struct pager_model *b)
{
	return a->load.ticket < b->load.ticket ? -1 : a->load.ticket > b->load.ticket;
}

/* ---- reservation ------------------------------------------------------------------------ */

static void unreserve(struct pager_model *m)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];

		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			if (rank->shards[i].state == DEVICE_LOADING)
				pager_unmap(&rank->shards[i]);
		}
	}
}

/* All that is ABSENT becomes LOADING, on all ranks, or nothing does. */
static int reserve(struct pager_model *m, struct ctn_err *err)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];
		struct ctn_device *dev = m->pager->devices[rank->device].dev;

		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			struct pager_shard *s = &rank->shards[i];
			int rc;

			if (s->state != DEVICE_ABSENT)
				continue;
			rc = ctn_device_map(dev, s->va, s->charged);
			if (rc) {
				unreserve(m);
				return ctn_err_set(err, rc,
						   "no room on %s for layer %u (%llu bytes)",
						   ctn_device_props(dev)->id, s->plan->layer,
						   (unsigned long long)s->charged);
			}
			pager_shard_state(s, DEVICE_LOADING);
		}
	}
	return 0;
}

static void begin(struct pager_model *m, uint64_t ticket)
{
	m->load = (struct pager_load){.active = true, .ticket = ticket, .started_ns = ctn_now_ns()};
	for (uint32_t i = 0; i < m->plan->part_count; i++)
		m->parts[i].need = 0;
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];

		rank->next = 0;
		pthread_mutex_lock(&rank->lock);
		rank->failed = false;
		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			struct pager_shard *s = &rank->shards[i];

			if (s->state != DEVICE_LOADING)
				continue;
			s->submitted = false;
			ctn_event_reset(s->event);
			m->load.shards_left++;
			for (uint32_t k = 0; k < s->plan->part_count; k++)
				m->parts[s->plan->parts[k]].need++;
		}
		pthread_mutex_unlock(&rank->lock);
	}
}

static bool all_resident(const struct pager_model *m)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		for (uint32_t i = 0; i < m->ranks[r].plan->layer_count; i++) {
			if (m->ranks[r].shards[i].state != DEVICE_RESIDENT)
				return false;
		}
	}
	return true;
}

int ctn_pager_load(struct ctn_pager *p, uint32_t model, uint64_t ticket, struct ctn_err *err)
{
	struct pager_model *m = p->models[model];
	int rc;

	if (m->load.active)
		return ctn_err_set(err, -EBUSY, "model %u is loading", model);
	if (all_resident(m))
		return -EALREADY;
	rc = reserve(m, err);
	if (rc)
		return rc;
	begin(m, ticket);
	DL_INSERT_INORDER(p->loads, m, by_ticket);
	pager_pump(p);
	if (p->ended)
		ctn_mailbox_wake(&p->mail); /* its event comes from dispatch, never from here */
	return 0;
}

/* ---- moving ----------------------------------------------------------------------------- */

static bool holds_all(const struct pager_model *m, const struct pager_shard *s)
{
	for (uint32_t i = 0; i < s->plan->part_count; i++) {
		if (m->parts[s->plan->parts[i]].state != HOST_CLEAN)
			return false;
	}
	return true;
}

/* The next shard of a rank that its frames and its link allow; NULL: none now. */
static struct pager_shard *next_ready(struct pager_rank *rank)
{
	for (; rank->next < rank->plan->layer_count; rank->next++) {
		struct pager_shard *s = &rank->shards[rank->next];

		if (s->state == DEVICE_RESIDENT)
			continue;
		if (!holds_all(rank->model, s) || rank->copies_in_flight == COPIES_AHEAD)
			break;
		return s;
	}
	return NULL;
}

/* Copies in execution order, as far as the frames are there. One a rank at a time, so that all
 * links start at once. */
static void submit_ready(struct pager_model *m)
{
	struct ctn_err err = {0};
	bool more = true;

	while (more) {
		more = false;
		for (uint32_t r = 0; r < m->plan->rank_count; r++) {
			struct pager_shard *s = next_ready(&m->ranks[r]);

			if (!s)
				continue;
			if (pager_submit(s, &err)) {
				pager_fail(m, err.code, &err);
				return;
			}
			m->ranks[r].next++;
			more = true;
		}
	}
}

/* Gives up what the loads after `oldest` hold without using it. */
static void shed_younger(struct pager_model *oldest)
{
	for (struct pager_model *m = oldest->next; m; m = m->next) {
		for (uint32_t i = 0; i < m->plan->part_count; i++) {
			struct pager_part *part = &m->parts[i];

			if (part->state == HOST_CLEAN && part->busy == 0)
				pager_release_part(part);
		}
	}
}

/* Asks sched for victims in the pool. */
static void ask_for_room(struct pager_model *m, const struct pager_part *part)
{
	struct ctn_pager *p = m->pager;
	struct ctn_pool_stats stats;
	uint64_t need = pager_part_charge(part);
	struct ctn_pager_event ev = {.type = CTN_PAGER_HOST_NEED, .model = m->index};

	ctn_pool_get_stats(p->pool, false, &stats);
	ev.bytes = need > stats.free_bytes ? need - stats.free_bytes : need;
	p->event(p->event_arg, &ev);
}

/*
 * Acquires parts in their order. Returns false when the pool has no room for the next: then
 * younger loads must not take what there is.
 */
static bool acquire_parts(struct pager_model *m, bool may_alloc, bool oldest)
{
	struct ctn_err err = {0};

	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		struct pager_part *part = &m->parts[m->order[i]];
		enum host_result r;

		if (part->need == 0 || part->state != HOST_ABSENT)
			continue;
		if (m->load.stages_in_flight >= STAGES_AHEAD)
			return true;
		r = pager_acquire(part, may_alloc, &err);
		if (r == HOST_NO_ROOM && may_alloc && oldest) {
			shed_younger(m);
			ask_for_room(m, part);
			r = pager_acquire(part, may_alloc, &err);
		}
		if (r == HOST_FAILED) {
			pager_fail(m, err.code, &err);
			return true;
		}
		if (r == HOST_NO_ROOM)
			return false;
	}
	return true;
}

void pager_pump(struct ctn_pager *p)
{
	struct pager_model *m, *tmp;
	bool may_alloc = true, oldest = true;

	DL_FOREACH_SAFE (p->loads, m, tmp) {
		if (!m->load.failed) {
			if (!acquire_parts(m, may_alloc, oldest))
				may_alloc = false;
			oldest = false;
		}
		if (!m->load.failed)
			submit_ready(m);
		pager_try_end(m);
	}
}

/* ---- the end ---------------------------------------------------------------------------- */

void pager_fail(struct pager_model *m, int code, const struct ctn_err *err)
{
	if (m->load.failed)
		return;
	m->load.failed = true;
	m->load.err = *err;
	m->load.err.code = code;
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		struct pager_part *part = &m->parts[i];

		if (part->state == HOST_STAGING) {
			pager_part_state(part, HOST_DRAINING);
			pthread_mutex_lock(&m->pager->jobs_lock);
			if (part->job)
				ctn_stage_cancel(m->pager->stage, part->job);
			pthread_mutex_unlock(&m->pager->jobs_lock);
		} else if (part->state == HOST_AWAITED) {
			pager_part_state(part, HOST_ABSENT);
		}
	}
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];

		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			struct pager_shard *s = &rank->shards[i];

			if (s->state != DEVICE_LOADING)
				continue;
			if (s->submitted)
				pager_shard_state(s, DEVICE_DRAINING);
			else
				pager_unmap(s);
		}
		pthread_mutex_lock(&rank->lock);
		rank->failed = true;
		pthread_cond_broadcast(&rank->changed);
		pthread_mutex_unlock(&rank->lock);
	}
}

static void drop_all(struct pager_model *m)
{
	struct ctn_pager_move_stats *stats = &m->pager->moves[CTN_PAGER_DROP_DEVICE];
	uint64_t start = ctn_now_ns();

	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];

		/* Last layers first, as a partial drop would. */
		for (uint32_t i = rank->plan->layer_count; i-- > 0;) {
			struct pager_shard *s = &rank->shards[i];

			if (s->state == DEVICE_ABSENT)
				continue;
			stats->ok++;
			stats->bytes += s->charged;
			pager_unmap(s);
		}
	}
	stats->nanoseconds += ctn_now_ns() - start;
}

/* Ends a load that has nothing left to do: all has arrived, or it failed and is drained. */
void pager_try_end(struct pager_model *m)
{
	struct ctn_pager *p = m->pager;

	if (!m->load.active || m->load.stages_in_flight || m->load.copies_in_flight)
		return;
	if (m->load.failed ? m->uses > 0 : m->load.shards_left > 0)
		return;
	for (struct pager_model *e = p->ended; e; e = e->next) {
		if (e == m)
			return;
	}
	if (m->load.failed) {
		for (uint32_t i = 0; i < m->plan->part_count; i++) {
			if (m->parts[i].state == HOST_CLEAN)
				pager_release_part(&m->parts[i]);
			m->parts[i].need = 0;
		}
		drop_all(m);
	} else {
		p->moves[CTN_PAGER_LOAD].nanoseconds += ctn_now_ns() - m->load.started_ns;
	}
	DL_DELETE(p->loads, m);
	LL_APPEND(p->ended, m);
}

void ctn_pager_cancel(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];
	struct ctn_err err = {0};

	if (!m->load.active || m->load.failed || m->load.shards_left == 0)
		return;
	ctn_err_set(&err, -ECANCELED, "the load was cancelled");
	pager_fail(m, -ECANCELED, &err);
	pager_try_end(m);
	ctn_mailbox_wake(&p->mail);
}

int ctn_pager_drop(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];

	if (m->load.active || m->uses)
		return -EBUSY;
	drop_all(m);
	return 0;
}

void ctn_pager_use(struct ctn_pager *p, uint32_t model)
{
	p->models[model]->uses++;
}

void ctn_pager_unuse(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];

	CTN_ASSERT(m->uses > 0);
	if (--m->uses == 0 && m->load.active && m->load.failed) {
		pager_try_end(m);
		ctn_mailbox_wake(&p->mail);
	}
}

bool ctn_pager_failing(const struct ctn_pager *p, uint32_t model)
{
	const struct pager_load *load = &p->models[model]->load;

	return load->active && load->failed;
}

uint32_t ctn_pager_active(const struct ctn_pager *p)
{
	uint32_t n = 0;
	const struct pager_model *m;

	DL_FOREACH (p->loads, m)
		n++;
	for (m = p->ended; m; m = m->next)
		n++;
	return n;
}
