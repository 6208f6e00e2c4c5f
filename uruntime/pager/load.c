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
				pager_release_shard(&rank->shards[i]);
		}
	}
}

static int reserve_shard(struct pager_shard *s, struct ctn_err *err)
{
	struct pager_rank *rank = s->rank;
	struct ctn_device *dev = rank->model->pager->devices[rank->device].dev;

	s->state = DEVICE_LOADING;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		int rc = pager_bind(&s->pieces[i]);

		if (rc == 0)
			rc = pager_hold(&s->pieces[i]);
		if (rc == -EBADMSG)
			return ctn_err_set(err, rc,
					   "layer %u shares bytes that turned out to be wrong, and "
					   "that a model still uses",
					   s->plan->layer);
		if (rc)
			return ctn_err_set(err, rc, "no room on %s for layer %u (%llu bytes)",
					   ctn_device_props(dev)->id, s->plan->layer,
					   (unsigned long long)s->pieces[i].frame->bytes);
	}
	return 0;
}

/* All that is ABSENT becomes LOADING, on all ranks, or nothing does. */
static int reserve(struct pager_model *m, struct ctn_err *err)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct pager_rank *rank = &m->ranks[r];

		for (uint32_t i = 0; i < rank->plan->layer_count; i++) {
			int rc;

			if (rank->shards[i].state != DEVICE_ABSENT)
				continue;
			rc = reserve_shard(&rank->shards[i], err);
			if (rc) {
				unreserve(m);
				return rc;
			}
		}
	}
	return 0;
}

static void begin_shard(struct pager_shard *s)
{
	struct pager_model *m = s->rank->model;

	s->submitted = false;
	m->load.shards_left++;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		if (pager_should_bring(&s->pieces[i]))
			pager_take_over(&s->pieces[i]);
	}
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
			if (rank->shards[i].state == DEVICE_LOADING)
				begin_shard(&rank->shards[i]);
		}
		pthread_mutex_unlock(&rank->lock);
	}
}

void pager_revoke(struct pager_model *m, int code, const struct ctn_err *err)
{
	if (pager_has_ended(m)) {
		if (m->load.failed && !m->load.cancelled)
			return;
		LL_DELETE(m->pager->ended, m);
		m->load.active = false;
	}
	if (!m->load.active) {
		begin(m, 0);
		DL_INSERT_INORDER(m->pager->loads, m, by_ticket);
	}
	pager_fail(m, code, err);
	pager_try_end(m);
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

static bool holds_parts(const struct pager_piece *pc)
{
	const struct pager_model *m = pc->shard->rank->model;

	for (uint32_t i = 0; i < pc->part_count; i++) {
		if (m->parts[pc->parts[i]].state != HOST_CLEAN)
			return false;
	}
	return true;
}

enum progress { WAITS, SUBMITTED_NOW, UNDER_WAY, FAILS };

/* Submits a piece if that is its load's to do, and can be done. UNDER_WAY: its bytes are with the
 * link already, or there. */
static enum progress submit_piece(struct pager_piece *pc, struct ctn_err *err)
{
	struct pager_rank *rank = pc->shard->rank;

	if (pc->frame->loader == pc && !pc->frame->submitted && holds_parts(pc)) {
		int rc = pager_bind(pc);

		if (rc) {
			ctn_err_set(err, rc, "no room for layer %u: %s", pc->shard->plan->layer,
				    strerror(-rc));
			return FAILS;
		}
	}
	if (pc->frame->state == DEVICE_RESIDENT || pc->frame->submitted)
		return UNDER_WAY;
	if (pc->frame->loader != pc || !holds_parts(pc) || rank->copies_in_flight == COPIES_AHEAD)
		return WAITS;
	return pager_submit(pc, err) ? FAILS : SUBMITTED_NOW;
}

void pager_settle(struct pager_shard *s)
{
	if (s->state != DEVICE_LOADING || !s->submitted || s->rank->model->load.failed)
		return;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		if (s->pieces[i].frame->state != DEVICE_RESIDENT)
			return;
	}
	s->state = DEVICE_RESIDENT;
	s->rank->model->load.shards_left--;
	pager_try_end(s->rank->model);
}

static void shard_submitted(struct pager_shard *s)
{
	pthread_mutex_lock(&s->rank->lock);
	s->submitted = true;
	pthread_cond_broadcast(&s->rank->changed);
	pthread_mutex_unlock(&s->rank->lock);
	pager_settle(s);
}

/* Submits the next piece of a rank, if the frames and the link allow. */
static enum progress submit_next(struct pager_rank *rank, struct ctn_err *err)
{
	for (; rank->next < rank->plan->layer_count; rank->next++) {
		struct pager_shard *s = &rank->shards[rank->next];

		if (s->state == DEVICE_RESIDENT)
			continue;
		for (uint32_t i = 0; i < s->plan->piece_count; i++) {
			enum progress p = submit_piece(&s->pieces[i], err);

			if (p != UNDER_WAY)
				return p;
		}
		shard_submitted(s);
	}
	return WAITS;
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
			enum progress p = submit_next(&m->ranks[r], &err);

			if (p == FAILS) {
				pager_fail(m, err.code, &err);
				return;
			}
			more |= p == SUBMITTED_NOW;
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

void pager_ask_for_room(const struct pager_part *part)
{
	struct pager_model *m = part->model;
	struct ctn_pager *p = m->pager;
	struct ctn_pool_stats stats;
	uint64_t need = pager_part_charge(part), freed;
	struct ctn_pager_event ev = {.type = CTN_PAGER_HOST_NEED, .model = m->index};

	ctn_pool_get_stats(p->pool, false, &stats);
	ev.bytes = need > stats.free_bytes ? need - stats.free_bytes : need;
	/* What is nobody's is no victim. */
	freed = pager_drop_strangers(p, ev.bytes);
	if (freed >= ev.bytes)
		return;
	ev.bytes -= freed;
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
		if (m->load.stages_in_flight >= STAGES_AT_ONCE)
			return true;
		r = pager_acquire(part, may_alloc, &err);
		if (r == HOST_NO_ROOM && may_alloc && oldest) {
			shed_younger(m);
			pager_ask_for_room(part);
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

	/* Again when one needs less host memory than it had: no completion tells the others. */
	do {
		bool may_alloc = true, oldest = true, reads = false;

		p->pump_again = false;
		DL_FOREACH_SAFE (p->loads, m, tmp) {
			if (!m->load.failed) {
				if (!acquire_parts(m, may_alloc, oldest))
					may_alloc = false;
				oldest = false;
			}
			if (!m->load.failed)
				submit_ready(m);
			reads |= m->load.stages_in_flight > 0;
			pager_try_end(m);
		}
		pager_go_on_ahead(p, reads || !may_alloc);
	} while (p->pump_again);
}
