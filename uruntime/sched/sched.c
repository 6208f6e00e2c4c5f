// SPDX-License-Identifier: MIT
/* The mirror: events change it here, actions in actions.c; policies only choose. */
#include "sched/state.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct sched_policy *const policies[] = {&sched_policy_lru, &sched_policy_default,
						      &sched_policy_clairvoyant};

const char *const *ctn_sched_policies(void)
{
	static const char *const names[] = {"lru", "default", NULL};

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
		if (strcmp(policies[i]->name, name) == 0 &&
		    (cfg->next_arrival || policies[i] != &sched_policy_clairvoyant))
			s->policy = policies[i];
	}
	if (!s->policy) {
		ctn_sched_free(s);
		return ctn_err_set(err, -ENOENT, "policy \"%s\": expected lru or default", name);
	}
	s->device_count = cfg->device_count;
	for (uint32_t d = 0; d < cfg->device_count; d++) {
		s->device_bytes[d] = cfg->device_bytes[d];
		s->granule[d] = cfg->granules[d];
	}
	s->partial_drops = cfg->partial_drops;
	s->pauses = cfg->pauses;
	s->cancels = cfg->cancels;
	s->host_known = cfg->host_known;
	s->stages = cfg->stages;
	s->host_bytes = cfg->host_bytes;
	s->exclusive_steps = cfg->exclusive_steps;
	if (s->policy == &sched_policy_clairvoyant)
		s->next_arrival = cfg->next_arrival;
	s->next_arrival_arg = cfg->next_arrival_arg;
	s->wake_ns = UINT64_MAX;
	s->max_models = cfg->max_models;
	s->max_requests = cfg->max_requests;
	s->models = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->models));
	s->order = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->order));
	s->holders = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->holders));
	s->waiters = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->waiters));
	s->check_ns = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*s->check_ns));
	s->requests = calloc(CTN_MAX(cfg->max_requests, 1u), sizeof(*s->requests));
	if (!s->models || !s->order || !s->requests || !s->holders || !s->waiters || !s->check_ns) {
		ctn_sched_free(s);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	*sched = s;
	return 0;
}

static void free_model(struct sched_model *m)
{
	free(m->ranks);
	free(m->kept);
	free(m->layer_bytes);
}

void ctn_sched_free(struct ctn_sched *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < s->model_count; i++)
		free_model(&s->models[i]);
	free(s->models);
	free(s->order);
	free(s->holders);
	free(s->waiters);
	free(s->check_ns);
	free(s->requests);
	free(s->frames);
	free(s->shares);
	free(s);
}

static void too_large(const struct ctn_sched *s, const struct sched_model *m, struct ctn_err *err)
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		uint64_t need = sched_device_charge(s, m, d, 1);
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

static int copy_ranks(struct sched_model *m, const struct ctn_sched_model *model,
		      struct ctn_err *err)
{
	size_t layers = 0;
	uint64_t *next;

	for (uint32_t r = 0; r < model->rank_count; r++)
		layers += model->ranks[r].layer_count;
	m->rank_count = model->rank_count;
	m->ranks = calloc(m->rank_count, sizeof(*m->ranks));
	m->kept = calloc(m->rank_count, sizeof(*m->kept));
	m->layer_bytes = calloc(CTN_MAX(layers, 1u), sizeof(*m->layer_bytes));
	if (!m->ranks || !m->kept || !m->layer_bytes)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	next = m->layer_bytes;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		struct ctn_sched_rank *rank = &m->ranks[r];
		uint64_t sum = 0;

		*rank = model->ranks[r];
		for (uint32_t i = 0; i < rank->layer_count; i++)
			next[i] = sum += rank->layer_bytes[i];
		CTN_ASSERT(rank->layer_count == 0 || sum == rank->weight_bytes);
		rank->layer_bytes = next;
		next += rank->layer_count;
	}
	return 0;
}

int ctn_sched_add_model(struct ctn_sched *s, const struct ctn_sched_model *model,
			struct ctn_err *err)
{
	struct sched_model *m = &s->models[s->model_count];
	int rc;

	if (s->model_count == s->max_models)
		return ctn_err_set(err, -ENOSPC, "expected at most %u models", s->max_models);
	*m = (struct sched_model){.max_sequences = model->max_sequences,
				  .max_steps = CTN_MAX(model->max_steps, 1u),
				  .shares = NO_SHARE,
				  .priority = model->priority,
				  .weight = exp2(model->priority),
				  .host_bytes = model->host_bytes,
				  .key_ns = INT64_MAX,
				  .barrier = UINT64_MAX,
				  .holder = NO_PLACE,
				  .waiter = NO_PLACE,
				  .queue = {NO_REQUEST, NO_REQUEST},
				  .batch = {NO_REQUEST, NO_REQUEST}};
	CTN_ASSERT(m->max_steps <= CTN_SCHED_MAX_STEPS);
	CTN_ASSERT(abs(m->priority) <= CTN_SCHED_MAX_PRIORITY);
	s->check_ns[s->model_count] = UINT64_MAX;
	rc = copy_ranks(m, model, err);
	if (rc)
		goto fail;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		CTN_ASSERT(m->ranks[r].device < s->device_count);
		m->devices |= 1ull << m->ranks[r].device;
		if (m->ranks[r].stage == 0)
			m->first_stage |= 1ull << m->ranks[r].device;
	}
	sched_count_missing(m);
	m->whole_bytes = m->missing_bytes;
	if (!sched_fits(s, m, 1, NULL)) {
		too_large(s, m, err);
		rc = -EFBIG;
		goto fail;
	}
	s->model_count++;
	return 0;
fail:
	free_model(m);
	return rc;
}

/* ---- events ----------------------------------------------------------------------------- */

static void on_arrival(struct ctn_sched *s, uint64_t now_ns, const struct ctn_sched_event *ev)
{
	struct sched_request *q = &s->requests[ev->request];
	struct sched_model *m = &s->models[ev->model];

	CTN_ASSERT(ev->request < s->max_requests && q->state == REQUEST_FREE);
	q->model = ev->model;
	q->kv_most = ev->kv_blocks;
	q->kv_blocks = ev->kv_first ? ev->kv_first : ev->kv_blocks;
	q->preempted = false;
	CTN_ASSERT(q->kv_blocks <= q->kv_most);
	q->no_step = ev->no_step;
	q->arrival = s->arrivals++;
	q->arrival_ns = now_ns;
	q->deadline_ns = ev->deadline_ns;
	q->key_ns = sched_request_key(m, ev->deadline_ns, now_ns);
	q->steps = 0;
	m->evicted = false;
	sched_learn_arrival(m, now_ns);
	sched_enqueue(s, m, ev->request);
	if (m->lost)
		sched_refuse(s, ev->request, CTN_REFUSED_DEVICE);
	else if (!sched_fits(s, m, ev->kv_blocks, NULL))
		sched_refuse(s, ev->request, CTN_REFUSED_TOO_LARGE);
	else if (ev->deadline_ns && s->policy->foresees)
		sched_refuse_hopeless(s, ev->request, now_ns);
}

static void on_request_done(struct ctn_sched *s, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];

	if (q->state == REQUEST_QUEUED) {
		sched_dequeue(s, m, slot);
	} else if (q->state == REQUEST_ADMITTED) {
		sched_list_remove(s, &m->batch, slot);
		m->admitted--;
		if (q->step > m->steps_done)
			m->in_step[q->step % CTN_SCHED_MAX_STEPS]--;
		else
			m->ready -= !q->no_step;
		m->kv_admitted -= q->kv_blocks;
		sched_learn_request(m, q);
		sched_settle_kv(s, q->model);
	}
	if (q->state != REQUEST_REFUSED)
		m->deadlines -= q->deadline_ns != 0;
	q->state = REQUEST_FREE;
	sched_note(s, m);
}

static void on_step_advanced(struct ctn_sched *s, struct sched_model *m)
{
	if (m->steps_advanced == m->steps_started)
		return;
	m->steps_advanced = m->steps_started;
	s->entering &= ~m->first_stage;
}

static void on_step_done(struct ctn_sched *s, struct sched_model *m, uint64_t now_ns)
{
	CTN_ASSERT(sched_steps(m) > 0);
	m->ready += m->in_step[++m->steps_done % CTN_SCHED_MAX_STEPS];
	if (m->steps_done == m->steps_started)
		on_step_advanced(s, m);
	m->last_used_ns = now_ns;
	sched_learn_step(m, now_ns);
}

static void refuse_queue(struct ctn_sched *s, const struct sched_model *m)
{
	while (m->queue.head != NO_REQUEST && sched_room(s, 1))
		sched_refuse(s, m->queue.head, CTN_REFUSED_DEVICE);
}

static void on_device_lost(struct ctn_sched *s, uint32_t device)
{
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sched_model *m = &s->models[i];

		if (!(m->devices & 1ull << device))
			continue;
		m->lost = true;
		sched_note(s, m);
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
	s->reason = "as told";
	switch (ev->type) {
	case CTN_EV_ARRIVAL:
		on_arrival(s, now_ns, ev);
		break;
	case CTN_EV_KV:
		sched_kv_grow(s, ev->request, ev->kv_blocks);
		break;
	case CTN_EV_REQUEST_DONE:
		on_request_done(s, ev->request);
		break;
	case CTN_EV_LOAD_DONE:
		m->state = CTN_SCHED_RESIDENT;
		m->cancelling = false;
		m->last_used_ns = m->since_ns = now_ns;
		sched_learn_load(s, m, now_ns);
		break;
	case CTN_EV_LOAD_FAILED:
		CTN_ASSERT(m->admitted == 0);
		sched_forget(s, m);
		break;
	case CTN_EV_LOAD_CANCELLED:
		CTN_ASSERT(m->cancelling);
		sched_keep(s, m, ev->kept_layers);
		break;
	case CTN_EV_HOST:
		m->host_missing = ev->bytes;
		sched_note(s, m);
		break;
	case CTN_EV_STAGE_DONE:
		sched_learn_stage(s, m, ev->bytes, now_ns);
		m->host_missing = ev->bytes;
		s->staging = false;
		sched_note(s, m);
		break;
	case CTN_EV_STEP_DONE:
		on_step_done(s, m, now_ns);
		break;
	case CTN_EV_STEP_ADVANCED:
		on_step_advanced(s, m);
		break;
	case CTN_EV_HOST_NEED:
		s->policy->host_need(s, ev->model, ev->bytes, ev->host_evictable, now_ns);
		return s->action_count;
	case CTN_EV_EVICT:
		if (sched_may_drop(s, m) && m->admitted == 0 && sched_holds(m))
			sched_drop(s, ev->model);
		m->evicted = true;
		sched_note(s, m);
		break;
	case CTN_EV_PIN:
		s->pinned_count += !m->pinned;
		m->pinned = true;
		break;
	case CTN_EV_UNPIN:
		s->pinned_count -= m->pinned;
		m->pinned = false;
		break;
	case CTN_EV_DEVICE_LOST:
		on_device_lost(s, ev->device);
		break;
	case CTN_EV_FRAME_LOST:
		sched_put_off_stage(m, now_ns);
		break;
	case CTN_EV_TIMER:
		/* What DEVICE_LOST had no room for. */
		for (uint32_t i = 0; i < s->model_count; i++) {
			if (s->models[i].lost)
				refuse_queue(s, &s->models[i]);
		}
		break;
	}
	s->wake_ns = UINT64_MAX;
	s->policy->decide(s, now_ns);
	return s->action_count;
}

uint64_t ctn_sched_wake_ns(const struct ctn_sched *s)
{
	return s->wake_ns;
}

bool ctn_sched_more(const struct ctn_sched *s)
{
	return s->more;
}

/* ---- the mirror from outside ------------------------------------------------------------ */

void ctn_sched_model_state(const struct ctn_sched *s, uint32_t model,
			   struct ctn_sched_model_state *state)
{
	const struct sched_model *m = &s->models[model];
	uint64_t bytes = 0;

	for (uint32_t r = 0; r < m->rank_count; r++)
		bytes += m->kept[r].bytes;
	*state = (struct ctn_sched_model_state){.state = m->state,
						.pinned = m->pinned,
						.stepping = sched_steps(m) > 0,
						.queued = m->queued,
						.admitted = m->admitted,
						.kv_budget = m->kv_budget,
						.weight_bytes = bytes};
}

uint64_t ctn_sched_charged(const struct ctn_sched *s, uint32_t device)
{
	return s->charged[device] - s->common[device];
}
