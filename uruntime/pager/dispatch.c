// SPDX-License-Identifier: MIT
/* What the owner takes in and hands out: completions, losses, events. */
#include "pager/state.h"

int ctn_pager_fd(const struct ctn_pager *p)
{
	return p->epoll_fd;
}

/* The pool gave frames up. The parts that had them are named by a walk: losses are rare. */
static void take_losses(struct ctn_pager *p)
{
	struct ctn_frame_ref ref;

	while (ctn_pool_next_loss(p->pool, &ref)) {
		p->host_changes++;
		for (uint32_t i = 0; i < p->model_count; i++) {
			struct pager_model *m = p->models[i];

			for (uint32_t k = 0; k < m->plan->part_count; k++) {
				struct pager_part *part = &m->parts[k];
				struct ctn_pager_event ev = {.type = CTN_PAGER_FRAME_LOST,
							     .model = i,
							     .bytes = pager_part_charge(part)};

				if (part->ref.id == ref.id &&
				    part->ref.generation == ref.generation)
					p->event(p->event_arg, &ev);
			}
		}
	}
}

/* Events of loads that have ended; a callback may start the next load. */
static void deliver_ended(struct ctn_pager *p)
{
	while (p->ended) {
		struct pager_model *m = p->ended;
		const struct ctn_err err = m->load.err;
		struct ctn_pager_event ev = {.model = m->index,
					     .bytes_staged = m->load.bytes_staged,
					     .bytes_loaded = m->load.bytes_loaded,
					     .nanoseconds = ctn_now_ns() - m->load.started_ns};

		if (m->load.failed) {
			ev.type = CTN_PAGER_FAILED;
			ev.err = &err;
		} else {
			ev.type = CTN_PAGER_LOADED;
		}
		p->ended = m->next;
		m->next = NULL;
		m->load.active = false;
		p->event(p->event_arg, &ev);
	}
}

static void deliver_ahead(struct ctn_pager *p)
{
	const struct pager_ahead a = p->ahead;
	struct ctn_pager_event ev = {.type = CTN_PAGER_STAGED, .bytes_staged = a.bytes_staged};

	if (!pager_ahead_has_ended(p))
		return;
	ev.model = a.model->index;
	ev.err = a.failed ? &a.err : NULL;
	p->ahead = (struct pager_ahead){0};
	p->event(p->event_arg, &ev);
}

void ctn_pager_dispatch(struct ctn_pager *p)
{
	ctn_mailbox_take(&p->mail);
	take_losses(p);
	pager_pump(p);
	deliver_ended(p);
	deliver_ahead(p);
#ifdef CTN_DEBUG
	{
		struct ctn_err err = {0};

		if (ctn_pager_check(p, &err))
			ctn_error("ledger: %s", err.msg);
		CTN_ASSERT(err.code == 0);
	}
#endif
}
