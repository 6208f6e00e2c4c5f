// SPDX-License-Identifier: MIT
/*
 * Parts that are staged ahead of loads. A part is one of its model's, so there is one frame for it
 * and a load that comes meanwhile finds it STAGING, as if it had begun the reads itself; what is
 * different is who counts them, and that nothing ends when they fail: a load that needs the part
 * reads it again, and has the error. When the bytes are there and no load needs them the lease is
 * given up, so that they can be evicted.
 */
#include "pager/state.h"

#include <errno.h>

/* The pool lacks it, and nobody brings it. One that is CLEAN and not right is for its load to
 * replace. */
static bool is_wanted(const struct pager_part *part)
{
	struct ctn_frame_info info;

	return part->state == HOST_ABSENT && part->plan->tensor_bytes &&
	       pager_find(part, &info) == -ENOENT && !pager_equal_is_staged(part);
}

/* False when nothing more can be begun. */
static bool begin(struct pager_ahead *a, struct pager_part *part)
{
	enum host_result r;

	part->ahead = true;
	r = pager_start_stage(part, &a->err);
	/* Beside a load of the model that one asks, for what it needs. */
	if (r == HOST_NO_ROOM && !part->model->load.active) {
		pager_ask_for_room(part);
		r = pager_start_stage(part, &a->err);
	}
	if (r == HOST_OK) {
		a->left -= CTN_MIN(a->left, pager_part_charge(part));
		return true;
	}
	part->ahead = false;
	if (part->state == HOST_AWAITED) /* by nobody */
		pager_part_state(part, HOST_ABSENT);
	a->failed |= r == HOST_FAILED;
	return r == HOST_WAIT;
}

void pager_go_on_ahead(struct ctn_pager *p, bool wanted)
{
	struct pager_ahead *a = &p->ahead;
	struct pager_model *m = a->model;

	if (!m || a->left == 0)
		return;
	for (; !wanted && a->left && a->next < m->plan->part_count; a->next++) {
		struct pager_part *part = &m->parts[m->order[a->next]];

		if (a->stages_in_flight == STAGES_AT_ONCE)
			return;
		if (is_wanted(part) && !begin(a, part))
			break;
	}
	a->left = 0;
}

void pager_end_ahead(struct pager_part *part, int rc)
{
	struct pager_ahead *a = &part->model->pager->ahead;

	part->ahead = false;
	if (rc == 0) {
		a->bytes_staged += part->result.bytes;
		return;
	}
	a->left = 0;
	if (rc == -ECANCELED || a->failed)
		return;
	a->failed = true;
	a->err = part->result.err;
}

bool pager_ahead_has_ended(const struct ctn_pager *p)
{
	return p->ahead.model && p->ahead.left == 0 && p->ahead.stages_in_flight == 0;
}

int ctn_pager_stage_ahead(struct ctn_pager *p, uint32_t model, uint64_t bytes)
{
	if (p->ahead.model)
		return -EBUSY;
	p->ahead = (struct pager_ahead){.model = p->models[model], .left = bytes};
	pager_pump(p);
	if (pager_ahead_has_ended(p))
		ctn_mailbox_wake(&p->mail); /* its event comes from dispatch, never from here */
	return 0;
}

bool ctn_pager_stop_ahead(struct ctn_pager *p, uint32_t model)
{
	struct pager_model *m = p->models[model];

	if (p->ahead.model != m)
		return false;
	p->ahead.left = 0;
	for (uint32_t i = 0; i < m->plan->part_count; i++) {
		struct pager_part *part = &m->parts[i];

		if (!part->ahead || part->state != HOST_STAGING)
			continue;
		pager_part_state(part, HOST_DRAINING);
		pthread_mutex_lock(&p->jobs_lock);
		if (part->job)
			ctn_stage_cancel(p->stage, part->job);
		pthread_mutex_unlock(&p->jobs_lock);
	}
	/* Else the last completion brings it. */
	if (pager_ahead_has_ended(p))
		ctn_mailbox_wake(&p->mail);
	return true;
}
