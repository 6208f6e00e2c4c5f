// SPDX-License-Identifier: MIT
/* The mirror: events change it here, actions change it below; policies only choose. */
#include "sched/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct sched_policy *const policies[] = {&sched_policy_lru};

const char *const *ctn_sched_policies(void)
{
	static const char *const names[] = {"lru", NULL};

	return names;
}

/* ---- making one ------------------------------------------------------------------------- */

int ctn_sched_new(const struct ctn_sched_config *cfg, struct ctn_sched **sched, struct ctn_err *err)
{
	const char *name = cfg->policy ? cfg->policy : policies[0]->name;
	struct ctn_sched *s;

	if (cfg->device_count == 0 || cfg->device_count > CTN_SCHED_MAX_DEVICES)
		return ctn_err_set(err, -EINVAL, "devices: expected 1 to %d, found %u",
				   CTN_SCHED_MAX_DEVICES, cfg->device_count);
	s = calloc(1, sizeof(*s));
	if (!s)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < CTN_ARRAY_LEN(policies); i++) {
		if (strcmp(policies[i]->name, name) == 0)
			s->policy = policies[i];
	}
	if (!s->policy) {
		ctn_sched_free(s);
		return ctn_err_set(err, -ENOENT, "policy \"%s\": expected lru", name);
	}
	s->device_count = cfg->device_count;
	for (uint32_t d = 0; d < cfg->device_count; d++) {
		s->device_bytes[d] = cfg->device_bytes[d];
		s->granule[d] = cfg->granules[d];
	}
	s->max_models = cfg->max_models;
	s->max_requests = cfg->max_requests;
	s->models = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->models));
	s->order = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->order));
	s->requests = calloc(CTN_MAX(cfg->max_requests, 1u), sizeof(*s->requests));
	if (!s->models || !s->order || !s->requests) {
		ctn_sched_free(s);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	*sched = s;
	return 0;
}

void ctn_sched_free(struct ctn_sched *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->model_count; i++)
		free(s->models[i].ranks);
	free(s->models);
	free(s->order);
	free(s->requests);
	free(s);
}

/* The bytes that the ranks of a model on one device charge together. */
static uint64_t device_charge(const struct ctn_sched *s, const struct sched_model *m,
			      uint32_t device, uint32_t blocks)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < m->rank_count; r++) {
		if (m->ranks[r].device == device)
			sum += sched_rank_charge(s, m, r, blocks);
	}
	return sum;
}

bool sched_fits(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		bool (*beside)(const struct sched_model *))
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		uint64_t sum = device_charge(s, m, d, blocks);

		for (uint32_t i = 0; beside && sum && i < s->model_count; i++) {
			const struct sched_model *o = &s->models[i];

			if (o != m && o->state != CTN_SCHED_ABSENT && beside(o))
				sum += device_charge(s, o, d, o->kv_budget);
		}
		if (sum > s->device_bytes[d])
			return false;
	}
	return true;
}

static void too_large(const struct ctn_sched *s, const struct sched_model *m, struct ctn_err *err)
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		uint64_t need = device_charge(s, m, d, 1);
		char a[32], b[32];

		if (need <= s->device_bytes[d])
			continue;
		ctn_err_set(err, -EFBIG,
			    "larger than device %u: needs %s (%llu bytes with workspace and one KV "
			    "block), the device has %s (%llu bytes)",
			    d, ctn_format_size(need, a), (unsigned long long)need,
			    ctn_format_size(s->device_bytes[d], b),
			    (unsigned long long)s->device_bytes[d]);
		return;
	}
}

int ctn_sched_add_model(struct ctn_sched *s, const struct ctn_sched_model *model,
			struct ctn_err *err)
{
	struct sched_model *m = &s->models[s->model_count];

	if (s->model_count == s->max_models)
		return ctn_err_set(err, -ENOSPC, "expected at most %u models", s->max_models);
	*m = (struct sched_model){.rank_count = model->rank_count,
				  .max_sequences = model->max_sequences,
				  .queue_head = NO_REQUEST,
				  .queue_tail = NO_REQUEST};
	m->ranks = calloc(model->rank_count, sizeof(*m->ranks));
	if (!m->ranks)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	memcpy(m->ranks, model->ranks, model->rank_count * sizeof(*m->ranks));
	for (uint32_t r = 0; r < m->rank_count; r++) {
		CTN_ASSERT(m->ranks[r].device < s->device_count);
		m->devices |= 1ull << m->ranks[r].device;
	}
	if (!sched_fits(s, m, 1, NULL)) {
		too_large(s, m, err);
		free(m->ranks);
		m->ranks = NULL;
		return -EFBIG;
	}
	s->model_count++;
	return 0;
}

uint64_t sched_rank_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			   uint32_t blocks)
{
	const struct ctn_sched_rank *rank = &m->ranks[r];

	return rank->weight_bytes + rank->workspace_bytes +
	       ctn_align_up(rank->kv_block_bytes * blocks, s->granule[rank->device]);
}

/* ---- queues ----------------------------------------------------------------------------- */

static void queue_append(struct ctn_sched *s, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];

	q->state = REQUEST_QUEUED;
	q->next = NO_REQUEST;
	q->prev = m->queue_tail;
	if (m->queue_tail == NO_REQUEST)
		m->queue_head = slot;
	else
		s->requests[m->queue_tail].next = slot;
	m->queue_tail = slot;
	m->queued++;
}

static void queue_remove(struct ctn_sched *s, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];

	if (q->prev == NO_REQUEST)
		m->queue_head = q->next;
	else
		s->requests[q->prev].next = q->next;
	if (q->next == NO_REQUEST)
		m->queue_tail = q->prev;
	else
		s->requests[q->next].prev = q->prev;
	m->queued--;
}

/* ---- actions ---------------------------------------------------------------------------- */

bool sched_room(struct ctn_sched *s, uint32_t count)
{
	if (s->action_max - s->action_count >= count)
		return true;
	s->more = true;
	return false;
}

bool ctn_sched_more(const struct ctn_sched *s)
{
	return s->more;
}

static struct ctn_sched_action *emit(struct ctn_sched *s, enum ctn_sched_action_type type)
{
	struct ctn_sched_action *a = &s->actions[s->action_count++];

	CTN_ASSERT(s->action_count <= s->action_max);
	*a = (struct ctn_sched_action){.type = type, .request = NO_REQUEST};
	return a;
}

static void charge(struct ctn_sched *s, const struct sched_model *m, uint32_t blocks)
{
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint32_t d = m->ranks[r].device;

		s->charged[d] += sched_rank_charge(s, m, r, blocks);
		CTN_ASSERT(s->charged[d] <= s->device_bytes[d]);
	}
}

static void uncharge(struct ctn_sched *s, const struct sched_model *m, uint32_t blocks)
{
	for (uint32_t r = 0; r < m->rank_count; r++)
		s->charged[m->ranks[r].device] -= sched_rank_charge(s, m, r, blocks);
}

static void forget_residency(struct ctn_sched *s, struct sched_model *m)
{
	uncharge(s, m, m->kv_budget);
	m->kv_budget = 0;
	m->state = CTN_SCHED_ABSENT;
}

void sched_drop(struct ctn_sched *s, uint32_t model)
{
	struct sched_model *m = &s->models[model];

	CTN_ASSERT(m->state == CTN_SCHED_RESIDENT && !m->stepping && m->admitted == 0);
	forget_residency(s, m);
	emit(s, CTN_ACT_DROP)->model = model;
}

void sched_load(struct ctn_sched *s, uint32_t model, uint32_t kv_blocks, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];
	struct ctn_sched_action *a;

	CTN_ASSERT(m->state == CTN_SCHED_ABSENT);
	m->state = CTN_SCHED_LOADING;
	m->ticket = ++s->tickets;
	m->last_used_ns = now_ns;
	m->kv_budget = kv_blocks;
	charge(s, m, kv_blocks);
	a = emit(s, CTN_ACT_LOAD);
	a->model = model;
	a->ticket = m->ticket;
	a = emit(s, CTN_ACT_KV_BUDGET);
	a->model = model;
	a->blocks = kv_blocks;
}

void sched_kv_budget(struct ctn_sched *s, uint32_t model, uint32_t blocks)
{
	struct sched_model *m = &s->models[model];
	struct ctn_sched_action *a;

	uncharge(s, m, m->kv_budget);
	m->kv_budget = blocks;
	charge(s, m, blocks);
	a = emit(s, CTN_ACT_KV_BUDGET);
	a->model = model;
	a->blocks = blocks;
}

void sched_admit(struct ctn_sched *s, uint32_t slot, uint64_t now_ns)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];
	struct ctn_sched_action *a;

	CTN_ASSERT(q->state == REQUEST_QUEUED);
	queue_remove(s, slot);
	q->state = REQUEST_ADMITTED;
	m->admitted++;
	m->admitted_steps += !q->no_step;
	m->kv_admitted += q->kv_blocks;
	m->last_used_ns = now_ns;
	CTN_ASSERT(m->kv_admitted <= m->kv_budget);
	a = emit(s, CTN_ACT_ADMIT);
	a->request = slot;
	a->model = q->model;
}

void sched_step(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];

	CTN_ASSERT(!m->stepping && m->admitted_steps > 0);
	m->stepping = true;
	m->last_used_ns = now_ns;
	emit(s, CTN_ACT_STEP)->model = model;
}

void sched_refuse(struct ctn_sched *s, uint32_t slot, enum ctn_sched_refusal why)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_REFUSE);

	CTN_ASSERT(s->requests[slot].state == REQUEST_QUEUED);
	queue_remove(s, slot);
	s->requests[slot].state = REQUEST_REFUSED;
	a->request = slot;
	a->model = s->requests[slot].model;
	a->why = why;
}

void sched_drop_host(struct ctn_sched *s, uint32_t model, uint64_t bytes)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_DROP_HOST);

	a->model = model;
	a->bytes = bytes;
}

/* ---- events ----------------------------------------------------------------------------- */

static void on_arrival(struct ctn_sched *s, const struct ctn_sched_event *ev)
{
	struct sched_request *q = &s->requests[ev->request];
	const struct sched_model *m = &s->models[ev->model];

	CTN_ASSERT(ev->request < s->max_requests && q->state == REQUEST_FREE);
	q->model = ev->model;
	q->kv_blocks = ev->kv_blocks;
	q->no_step = ev->no_step;
	q->arrival = s->arrivals++;
	queue_append(s, ev->request);
	if (m->lost)
		sched_refuse(s, ev->request, CTN_REFUSED_DEVICE);
	else if (!sched_fits(s, m, ev->kv_blocks, NULL))
		sched_refuse(s, ev->request, CTN_REFUSED_TOO_LARGE);
}

static void on_request_done(struct ctn_sched *s, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];

	if (q->state == REQUEST_QUEUED) {
		queue_remove(s, slot);
	} else if (q->state == REQUEST_ADMITTED) {
		m->admitted--;
		m->admitted_steps -= !q->no_step;
		m->kv_admitted -= q->kv_blocks;
	}
	q->state = REQUEST_FREE;
}

static void refuse_queue(struct ctn_sched *s, const struct sched_model *m)
{
	while (m->queue_head != NO_REQUEST && sched_room(s, 1))
		sched_refuse(s, m->queue_head, CTN_REFUSED_DEVICE);
}

static void on_device_lost(struct ctn_sched *s, uint32_t device)
{
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		if (!(m->devices & 1ull << device))
			continue;
		m->lost = true;
		refuse_queue(s, m);
	}
}

uint32_t ctn_sched_event(struct ctn_sched *s, uint64_t now_ns, const struct ctn_sched_event *ev,
			 struct ctn_sched_action *actions, uint32_t max)
{
	struct sched_model *m = ev->model < s->model_count ? &s->models[ev->model] : NULL;

	s->actions = actions;
	s->action_count = 0;
	s->action_max = max;
	s->more = false;
	switch (ev->type) {
	case CTN_EV_ARRIVAL:
		on_arrival(s, ev);
		break;
	case CTN_EV_REQUEST_DONE:
		on_request_done(s, ev->request);
		break;
	case CTN_EV_LOAD_DONE:
		m->state = CTN_SCHED_RESIDENT;
		m->last_used_ns = now_ns;
		break;
	case CTN_EV_LOAD_FAILED:
		CTN_ASSERT(m->admitted == 0);
		forget_residency(s, m);
		break;
	case CTN_EV_STEP_DONE:
		m->stepping = false;
		m->last_used_ns = now_ns;
		break;
	case CTN_EV_HOST_NEED:
		s->policy->host_need(s, ev->model, ev->bytes, ev->host_evictable);
		return s->action_count;
	case CTN_EV_EVICT:
		if (m->state == CTN_SCHED_RESIDENT && !m->stepping && m->admitted == 0)
			sched_drop(s, ev->model);
		break;
	case CTN_EV_PIN:
		m->pinned = true;
		break;
	case CTN_EV_UNPIN:
		m->pinned = false;
		break;
	case CTN_EV_DEVICE_LOST:
		on_device_lost(s, ev->device);
		break;
	case CTN_EV_FRAME_LOST:
		break;
	case CTN_EV_TIMER:
		/* What DEVICE_LOST had no room for. */
		for (uint32_t i = 0; i < s->model_count; i++) {
			if (s->models[i].lost)
				refuse_queue(s, &s->models[i]);
		}
		break;
	}
	s->policy->decide(s, now_ns);
	return s->action_count;
}

/* ---- the mirror from outside ------------------------------------------------------------ */

void ctn_sched_model_state(const struct ctn_sched *s, uint32_t model,
			   struct ctn_sched_model_state *state)
{
	const struct sched_model *m = &s->models[model];

	*state = (struct ctn_sched_model_state){.state = m->state,
						.pinned = m->pinned,
						.stepping = m->stepping,
						.queued = m->queued,
						.admitted = m->admitted,
						.kv_budget = m->kv_budget};
}

uint64_t ctn_sched_charged(const struct ctn_sched *s, uint32_t device)
{
	return s->charged[device];
}
