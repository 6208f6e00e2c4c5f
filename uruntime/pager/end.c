// SPDX-License-Identifier: MIT
/* How loads end, well or not, and what is dropped. */
#include "pager/state.h"

#include <errno.h>
#include <utlist.h>

void pager_release_shard(struct pager_shard *s)
{
	for (uint32_t i = s->plan->piece_count; i-- > 0;)
		pager_let_go(&s->pieces[i]);
	s->state = DEVICE_ABSENT;
}

/* What no copy and no step can be using goes at once; the rest with the end of the load. */
static void fail_shard(struct pager_shard *s)
{
	bool used = s->submitted;

	for (uint32_t i = 0; i < s->plan->piece_count; i++)
		used |= s->pieces[i].frame->loader == &s->pieces[i] &&
			s->pieces[i].frame->in_flight;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		struct pager_piece *pc = &s->pieces[i];

		if (pc->frame->loader == pc && !pc->frame->submitted)
			pager_hand_on(pc);
	}
	if (!used) {
		pager_release_shard(s);
		return;
	}
	s->state = DEVICE_DRAINING;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		struct pager_frame *f = s->pieces[i].frame;

		if (f->state == DEVICE_LOADING && !pager_live_holder(f))
			pager_frame_state(f, DEVICE_DRAINING);
	}
}

void pager_fail(struct pager_model *m, int code, const struct ctn_err *err)
{
	if (m->load.failed)
		return;
	m->load.failed = true;
	m->load.err = *err;
	m->load.err.code = code;
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		struct pager_part *part = &m->parts[i];

		if (part->state == HOST_STAGING && !part->ahead) {
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
			if (rank->shards[i].state == DEVICE_LOADING)
				fail_shard(&rank->shards[i]);
		}
		pthread_mutex_lock(&rank->lock);
		rank->failed = true;
		pthread_cond_broadcast(&rank->changed);
		pthread_mutex_unlock(&rank->lock);
	}
}

/* Lets go of all shards of a rank but the first `keep`, last layers first, as it is counted. */
static void drop_rank(struct pager_rank *rank, uint32_t keep)
{
	struct ctn_pager_move_stats *stats = &rank->model->pager->moves[CTN_PAGER_DROP_DEVICE];
	uint64_t start = ctn_now_ns();

	for (uint32_t i = rank->plan->layer_count; i-- > keep;) {
		struct pager_shard *s = &rank->shards[i];

		for (uint32_t k = s->plan->piece_count; k-- > 0;) {
			uint64_t freed = pager_let_go(&s->pieces[k]);

			stats->ok += freed > 0;
			stats->bytes += freed;
		}
		s->state = DEVICE_ABSENT;
	}
	stats->nanoseconds += ctn_now_ns() - start;
}

/* The bytes of all its frames are there: they may be used. */
static bool arrived(struct pager_shard *s)
{
	if (s->state == DEVICE_ABSENT)
		return false;
	for (uint32_t i = 0; i < s->plan->piece_count; i++) {
		const struct pager_frame *f = s->pieces[i].frame;

		if (f->spoiled ||
		    !(f->state == DEVICE_RESIDENT || (f->state == DEVICE_DRAINING && f->arrived)))
			return false;
	}
	return true;
}

/* Of a cancelled load each rank keeps its first layers, as far as they have arrived. */
static void keep_arrived(struct pager_rank *rank)
{
	uint32_t keep = 0;

	while (keep < rank->plan->layer_count && arrived(&rank->shards[keep])) {
		struct pager_shard *s = &rank->shards[keep++];

		s->state = DEVICE_RESIDENT;
		for (uint32_t i = 0; i < s->plan->piece_count; i++) {
			struct pager_frame *f = s->pieces[i].frame;

			if (f->state != DEVICE_DRAINING)
				continue;
			pager_frame_state(f, DEVICE_RESIDENT);
			f->loader = NULL;
		}
	}
	drop_rank(rank, keep);
	/* If all is there no load follows that would say so. Nobody waits: it is in no use. */
	pthread_mutex_lock(&rank->lock);
	rank->failed = false;
	pthread_mutex_unlock(&rank->lock);
}

static void drop_all(struct pager_model *m)
{
	for (uint32_t r = 0; r < m->plan->rank_count; r++)
		drop_rank(&m->ranks[r], 0);
}

bool pager_has_ended(const struct pager_model *m)
{
	const struct pager_model *e;

	for (e = m->pager->ended; e && e != m; e = e->next)
		;
	return e;
}

/* Ends a load that has nothing left to do: all has arrived, or it failed and is drained. */
void pager_try_end(struct pager_model *m)
{
	struct ctn_pager *p = m->pager;

	if (!m->load.active || m->load.stages_in_flight || m->load.copies_in_flight)
		return;
	if (m->load.failed ? m->uses > 0 : m->load.shards_left > 0)
		return;
	if (pager_has_ended(m))
		return;
	if (m->load.failed) {
		for (uint32_t i = 0; i < m->plan->part_count; i++) {
			if (m->parts[i].state == HOST_CLEAN)
				pager_release_part(&m->parts[i]);
			m->parts[i].need = 0;
		}
		for (uint32_t r = 0; r < m->plan->rank_count && m->load.cancelled; r++)
			keep_arrived(&m->ranks[r]);
		if (!m->load.cancelled)
			drop_all(m);
	} else {
		p->moves[CTN_PAGER_LOAD].nanoseconds += ctn_now_ns() - m->load.started_ns;
	}
	DL_DELETE(p->loads, m);
	LL_APPEND(p->ended, m);
	p->pump_again = true;
}

void ctn_pager_cancel(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];
	struct ctn_err err = {0};

	if (!m->load.active || m->load.failed || m->load.shards_left == 0)
		return;
	ctn_err_set(&err, -ECANCELED, "the load was cancelled");
	m->load.cancelled = true;
	pager_fail(m, -ECANCELED, &err);
	pager_try_end(m);
	ctn_mailbox_wake(&p->mail);
}

uint32_t ctn_pager_kept_layers(const struct ctn_pager *p, uint32_t model, uint32_t rank)
{
	const struct pager_rank *r = &p->models[model]->ranks[rank];
	uint32_t n = 0;

	while (n < r->plan->layer_count && r->shards[n].state == DEVICE_RESIDENT)
		n++;
	return n;
}

int ctn_pager_drop(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];

	if (m->load.active || m->uses)
		return -EBUSY;
	drop_all(m);
	return 0;
}

int ctn_pager_drop_tail(struct ctn_pager *p, uint32_t model, uint32_t rank, uint32_t layers)
{
	struct pager_model *m = p->models[model];

	CTN_ASSERT(rank < m->plan->rank_count);
	if (m->load.active || m->uses)
		return -EBUSY;
	drop_rank(&m->ranks[rank], layers);
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
	return n + p->adopted_started + (p->ahead.model != NULL);
}
