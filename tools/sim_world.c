// SPDX-License-Identifier: MIT
/* The world around sched: it carries out the actions on devices and links of its own, and tells
 * what came of them. What sched orders must be possible here by accounts that sched never sees. */
#include "sim_world.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS (1u << 18)
/* What comes next has its time, too. */
#define LAST_NS (UINT64_MAX / 4)

static void tell(struct sim_world *w, struct ctn_sched_event ev);

/* ---- steps ------------------------------------------------------------------------------ */

static uint32_t take_step(struct sim_world *w)
{
	uint32_t i = w->free_step;

	if (i != CTN_SIM_NONE) {
		w->free_step = w->steps[i].next_free;
		return i;
	}
	i = w->step_count;
	w->steps[i].requests = calloc(w->setup->max_batch, sizeof(uint32_t));
	if (!w->steps[i].requests) {
		w->rc = ctn_err_set(w->err, -ENOMEM, "out of memory");
		return CTN_SIM_NONE;
	}
	w->step_count++;
	return i;
}

static void await_stage(struct sim_world *w, uint32_t step)
{
	const struct sim_step *s = &w->steps[step];

	ctn_sim_heap_push(&w->heap, sim_stage_ready(w, s->model, s->stage), CTN_SIM_STAGE_READY,
			  step);
}

static void start_stages(struct sim_world *w)
{
	uint32_t step;

	while (ctn_sim_stages_start(&w->stages, &step))
		ctn_sim_heap_push(&w->heap, w->now + w->stage_ns, CTN_SIM_STAGE_DONE, step);
}

static uint64_t stage_devices(const struct sim_world *w, const struct sim_step *s)
{
	uint64_t mask = (1ull << w->setup->tp) - 1;

	return mask << (w->models[s->model].device + s->stage * w->setup->tp);
}

static void act_step(struct sim_world *w, uint32_t model)
{
	struct sim_model *m = &w->models[model];
	uint32_t i = take_step(w);

	if (i == CTN_SIM_NONE)
		return;
	w->steps[i].model = model;
	w->steps[i].stage = 0;
	w->steps[i].count = m->ready_count;
	memcpy(w->steps[i].requests, m->ready, m->ready_count * sizeof(uint32_t));
	m->ready_count = 0;
	await_stage(w, i);
}

static void step_ended(struct sim_world *w, uint32_t step)
{
	struct sim_step *s = &w->steps[step];

	for (uint32_t i = 0; i < s->count; i++) {
		uint32_t slot = s->requests[i], arrival = w->slot_arrival[slot];
		const struct ctn_sim_arrival *a = &w->setup->workload->arrivals[arrival];
		double latency_s = (double)(w->now - a->at_ns) / 1e9;
		struct sim_model *m = &w->models[s->model];

		if (w->slot_left[slot] == w->setup->tokens)
			w->result->ttft_s += latency_s;
		if (--w->slot_left[slot]) {
			m->ready[m->ready_count++] = slot;
			continue;
		}
		w->result->latency_s[arrival] = latency_s;
		w->result->late += a->deadline_s > 0 && latency_s > a->deadline_s;
		w->free_slots[w->free_slot_count++] = slot;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = slot});
	}
	tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = s->model});
	s->next_free = w->free_step;
	w->free_step = step;
	w->result->end_ns = w->now;
}

static void stage_ended(struct sim_world *w, uint32_t step)
{
	struct sim_step *s = &w->steps[step];

	if (!w->setup->cluster.parallel_steps)
		ctn_sim_stages_end(&w->stages, stage_devices(w, s));
	if (++s->stage < w->setup->pp) {
		await_stage(w, step);
		if (s->stage == 1)
			tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_ADVANCED,
							 .model = s->model});
	} else {
		step_ended(w, step);
	}
	start_stages(w);
}

/* ---- sched ------------------------------------------------------------------------------ */

/* It waits in the queue again. */
static void unready(struct sim_model *m, uint32_t slot)
{
	uint32_t i = 0;

	while (m->ready[i] != slot)
		i++;
	m->ready[i] = m->ready[--m->ready_count];
}

static void carry_out(struct sim_world *w, const struct ctn_sched_action *a)
{
	struct sim_model *m = &w->models[a->model];

	switch (a->type) {
	case CTN_ACT_DROP:
		m->state = CTN_SCHED_ABSENT;
		memset(m->kept, 0, sizeof(m->kept));
		break;
	case CTN_ACT_DROP_TAIL:
		m->state = CTN_SCHED_ABSENT;
		m->kept[a->rank] = a->layers;
		break;
	case CTN_ACT_LOAD:
		sim_load(w, a->model, a->seconds);
		break;
	case CTN_ACT_ADMIT:
		m->ready[m->ready_count++] = a->request;
		break;
	case CTN_ACT_STEP:
		act_step(w, a->model);
		break;
	case CTN_ACT_REFUSE:
		/* Its end is told when the actions of this decision are carried out. */
		w->ended[w->ended_count++] = a->request;
		break;
	case CTN_ACT_PREEMPT:
		unready(m, a->request);
		break;
	case CTN_ACT_CANCEL:
		sim_cancel(w, a->model);
		break;
	case CTN_ACT_DROP_HOST:
		sim_drop_host(w, a->model, a->bytes);
		break;
	case CTN_ACT_STAGE:
		sim_stage(w, a->model, a->bytes);
		break;
	case CTN_ACT_KV_BUDGET: /* KV blocks have no bytes here */
		break;
	}
}

static void tell_one(struct sim_world *w, struct ctn_sched_event ev)
{
	bool more;

	do {
		uint32_t n = ctn_sched_event(w->sched, w->now, &ev, w->actions, w->action_max);

		more = ctn_sched_more(w->sched);
		w->result->decisions++;
		for (uint32_t i = 0; i < n; i++)
			carry_out(w, &w->actions[i]);
		ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
	} while (more);
}

static void tell_pool(struct sim_world *w, uint32_t model)
{
	struct sim_model *m = &w->models[model];

	m->pool_changed = false;
	tell_one(w, (struct ctn_sched_event){.type = CTN_EV_HOST,
					     .model = model,
					     .bytes = sim_whole(w, model) - m->in_pool});
}

static void tell(struct sim_world *w, struct ctn_sched_event ev)
{
	tell_one(w, ev);
	while (w->ended_count) {
		uint32_t slot = w->ended[--w->ended_count];

		w->result->latency_s[w->slot_arrival[slot]] = -1;
		w->free_slots[w->free_slot_count++] = slot;
		tell_one(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = slot});
	}
	while (w->any_pool_changed) {
		w->any_pool_changed = false;
		for (uint32_t i = 0; i < w->model_count; i++) {
			/* What a load brings is told when it is there. */
			if (w->models[i].pool_changed && w->models[i].state != CTN_SCHED_LOADING)
				tell_pool(w, i);
		}
	}
}

static void arrive(struct sim_world *w, uint32_t arrival)
{
	const struct ctn_sim_arrival *a = &w->setup->workload->arrivals[arrival];
	uint32_t model = a->model, slot;

	w->models[model].next_arrival = w->next_of_model[arrival];
	if (w->free_slot_count == 0) {
		w->result->latency_s[arrival] = -1; /* the queue is full */
		return;
	}
	slot = w->free_slots[--w->free_slot_count];
	w->slot_arrival[slot] = arrival;
	w->slot_left[slot] = w->setup->tokens;
	sim_wait(w, model);
	tell(w, (struct ctn_sched_event){
			.type = CTN_EV_ARRIVAL,
			.model = model,
			.request = slot,
			.deadline_ns = a->deadline_s > 0 ? a->at_ns + sim_ns(a->deadline_s) : 0,
			.kv_blocks = 1});
}

/* What the policy with foresight asks. */
static uint64_t next_arrival(void *arg, uint32_t model)
{
	const struct sim_world *w = arg;
	uint32_t next = w->models[model].next_arrival;

	return next == CTN_SIM_NONE ? UINT64_MAX
				    : w->setup->workload->arrivals[next].at_ns - w->now;
}

static void loaded(struct sim_world *w, uint32_t model)
{
	struct sim_model *m = &w->models[model];

	if (m->state != CTN_SCHED_LOADING || m->load.done_ns != w->now)
		return; /* it was cancelled */
	w->result->predicted_loads += !m->load.cancelled && m->load.taken_ns;
	if (!m->load.cancelled && m->load.taken_ns)
		w->result->predicted_off_s +=
			fabs((double)(w->now - m->load.begun_ns) / 1e9 - m->load.predicted_s);
	if (m->load.cancelled) {
		m->state = CTN_SCHED_ABSENT;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_CANCELLED,
						 .model = model,
						 .kept_layers = m->kept});
		return;
	}
	if (m->pool_changed)
		tell_pool(w, model);
	m->state = CTN_SCHED_RESIDENT;
	for (uint32_t r = 0; r < w->ranks; r++)
		m->kept[r] = w->setup->models[model].rank_layers;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = model});
}

/* ---- a run ------------------------------------------------------------------------------ */

static void happen(struct sim_world *w, const struct ctn_sim_event *ev)
{
	struct ctn_sched_event timer = {.type = CTN_EV_TIMER};

	switch (ev->type) {
	case CTN_SIM_LOADED:
		loaded(w, ev->what);
		break;
	case CTN_SIM_STAGED:
		w->staging = CTN_SIM_NONE;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_STAGE_DONE,
						 .model = ev->what,
						 .bytes = sim_whole(w, ev->what) -
							  w->models[ev->what].in_pool});
		break;
	case CTN_SIM_STAGE_READY:
		if (w->setup->cluster.parallel_steps) {
			ctn_sim_heap_push(&w->heap, w->now + w->stage_ns, CTN_SIM_STAGE_DONE,
					  ev->what);
			break;
		}
		ctn_sim_stages_add(&w->stages, ev->what, stage_devices(w, &w->steps[ev->what]));
		start_stages(w);
		break;
	case CTN_SIM_STAGE_DONE:
		stage_ended(w, ev->what);
		break;
	case CTN_SIM_WAKE:
		if (w->wake_ns != ev->at_ns)
			break;
		w->wake_ns = UINT64_MAX;
		tell(w, timer);
		break;
	}
}

static void run(struct sim_world *w)
{
	const struct ctn_sim_workload *load = w->setup->workload;
	uint32_t next = 0;

	/* Until nobody waits: what is loaded ahead of requests has no end. */
	while ((next < load->count || w->free_slot_count < w->slot_count) && w->rc == 0) {
		uint64_t wake;

		if (next < load->count &&
		    (w->heap.count == 0 || load->arrivals[next].at_ns <= w->heap.events[0].at_ns)) {
			w->now = load->arrivals[next].at_ns;
			arrive(w, next++);
		} else if (w->heap.count) {
			struct ctn_sim_event ev = ctn_sim_heap_pop(&w->heap);

			w->now = CTN_MAX(w->now, ev.at_ns);
			happen(w, &ev);
		} else {
			w->rc = ctn_err_set(
				w->err, -EDEADLK, "%u requests wait for nothing after %.3f s",
				w->slot_count - w->free_slot_count, (double)w->now / 1e9);
		}
		wake = ctn_sched_wake_ns(w->sched);
		if (wake != UINT64_MAX && wake < w->wake_ns) {
			w->wake_ns = CTN_MAX(wake, w->now + 1);
			ctn_sim_heap_push(&w->heap, w->wake_ns, CTN_SIM_WAKE, 0);
		}
		if (w->heap.failed)
			w->rc = ctn_err_set(w->err, -ENOMEM, "out of memory");
		else if (w->now > LAST_NS && w->rc == 0)
			w->rc = ctn_err_set(w->err, -ERANGE,
					    "%u requests still wait after %.0f s, when the virtual "
					    "clock ends",
					    w->slot_count - w->free_slot_count,
					    (double)LAST_NS / 1e9);
	}
}

static bool pool_is_small(const struct sim_world *w)
{
	return w->setup->host_bytes && !w->free_loads;
}

static int add_model(struct sim_world *w, uint32_t model)
{
	const struct ctn_sim_model *kind = &w->setup->models[model];
	uint32_t groups = w->setup->cluster.devices / w->ranks;
	uint64_t layer = kind->rank_bytes / kind->rank_layers, layers[CTN_SIM_MAX_LAYERS];
	struct ctn_sched_rank ranks[CTN_SIM_MAX_DEVICES];
	struct ctn_sched_model m = {.rank_count = w->ranks,
				    .priority = w->setup->models[model].priority,
				    .host_bytes = sim_whole(w, model),
				    .ranks = ranks,
				    .max_sequences = w->setup->max_batch,
				    .max_steps = CTN_MIN(w->setup->pp, CTN_SCHED_MAX_STEPS)};
	int rc;

	CTN_ASSERT(kind->rank_layers <= CTN_ARRAY_LEN(layers));
	w->models[model].device = model % groups * w->ranks;
	w->models[model].next_arrival = CTN_SIM_NONE;
	w->models[model].ready = calloc(w->setup->max_batch, sizeof(uint32_t));
	if (!w->models[model].ready)
		return ctn_err_set(w->err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < kind->rank_layers; i++)
		layers[i] = layer;
	for (uint32_t r = 0; r < w->ranks; r++)
		ranks[r] = (struct ctn_sched_rank){.device = w->models[model].device + r,
						   .stage = r / w->setup->tp,
						   .weight_bytes = layer * kind->rank_layers,
						   .workspace_bytes =
							   w->setup->cluster.workspace_bytes,
						   .kv_block_bytes = w->setup->cluster.kv_bytes,
						   .layer_bytes = layers,
						   .layer_count = kind->rank_layers};
	w->models[model].in_pool = pool_is_small(w) ? 0 : sim_whole(w, model);
	rc = ctn_sched_add_model(w->sched, &m, w->err);
	if (rc == 0 && w->setup->models[model].pinned)
		tell(w, (struct ctn_sched_event){.type = CTN_EV_PIN, .model = model});
	if (rc == 0 && pool_is_small(w))
		tell_pool(w, model);
	return rc ? ctn_err_prefix(w->err, "model %u", model) : 0;
}

static int make_sched(struct sim_world *w, const char *policy)
{
	uint64_t bytes[CTN_SIM_MAX_DEVICES], granules[CTN_SIM_MAX_DEVICES];
	struct ctn_sched_config cfg = {.policy = policy,
				       .device_count = w->setup->cluster.devices,
				       .device_bytes = bytes,
				       .granules = granules,
				       .max_models = w->model_count,
				       .max_requests = w->slot_count,
				       .partial_drops = true,
				       .pauses = !w->setup->without_pauses,
				       .cancels = !w->setup->without_load_ahead,
				       .host_known = true,
				       .stages = pool_is_small(w) && !w->setup->without_stage_ahead,
				       .host_bytes = w->setup->host_bytes,
				       .exclusive_steps = !w->setup->cluster.parallel_steps,
				       .next_arrival = next_arrival,
				       .next_arrival_arg = w};
	int rc;

	for (uint32_t d = 0; d < cfg.device_count; d++) {
		bytes[d] = w->free_loads ? UINT64_MAX / 2 : w->setup->device_bytes;
		granules[d] = 1;
	}
	rc = ctn_sched_new(&cfg, &w->sched, w->err);
	for (uint32_t m = 0; m < w->model_count && rc == 0; m++)
		rc = add_model(w, m);
	return rc;
}

static int make_world(struct sim_world *w)
{
	const struct ctn_sim_workload *load = w->setup->workload;
	uint32_t max_steps = load->models * CTN_SCHED_MAX_STEPS;

	w->model_count = load->models;
	w->slot_count = (uint32_t)CTN_MIN(load->count, (size_t)MAX_SLOTS);
	w->action_max = 4 * CTN_SIM_MAX_DEVICES * (w->model_count + 8);
	w->free_step = CTN_SIM_NONE;
	w->staging = CTN_SIM_NONE;
	w->pool_free = w->setup->host_bytes;
	w->wake_ns = UINT64_MAX;
	w->stage_ns = sim_ns(w->setup->cluster.batch_s / w->setup->pp);
	w->ranks = w->setup->tp * w->setup->pp;
	w->models = calloc(w->model_count, sizeof(*w->models));
	w->steps = calloc(max_steps, sizeof(*w->steps));
	w->slot_arrival = calloc(w->slot_count, sizeof(uint32_t));
	w->slot_left = calloc(w->slot_count, sizeof(uint32_t));
	w->evictable = calloc(w->model_count, sizeof(uint64_t));
	w->free_slots = calloc(w->slot_count, sizeof(uint32_t));
	w->ended = calloc(w->slot_count, sizeof(uint32_t));
	w->next_of_model = calloc(load->count, sizeof(uint32_t));
	w->actions = calloc(w->action_max, sizeof(*w->actions));
	if (!w->models || !w->steps || !w->slot_arrival || !w->slot_left || !w->evictable ||
	    !w->free_slots || !w->ended || !w->next_of_model || !w->actions ||
	    ctn_sim_stages_init(&w->stages, max_steps))
		return ctn_err_set(w->err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < w->slot_count; i++)
		w->free_slots[w->free_slot_count++] = w->slot_count - 1 - i;
	return 0;
}

static void link_arrivals(struct sim_world *w)
{
	const struct ctn_sim_workload *load = w->setup->workload;

	for (size_t i = load->count; i-- > 0;) {
		struct sim_model *m = &w->models[load->arrivals[i].model];

		w->next_of_model[i] = m->next_arrival;
		m->next_arrival = (uint32_t)i;
	}
}

static void free_world(struct sim_world *w)
{
	for (uint32_t m = 0; w->models && m < w->model_count; m++)
		free(w->models[m].ready);
	for (uint32_t i = 0; i < w->step_count; i++)
		free(w->steps[i].requests);
	ctn_sched_free(w->sched);
	ctn_sim_heap_free(&w->heap);
	ctn_sim_stages_free(&w->stages);
	free(w->models);
	free(w->steps);
	free(w->slot_arrival);
	free(w->slot_left);
	free(w->evictable);
	free(w->free_slots);
	free(w->ended);
	free(w->next_of_model);
	free(w->actions);
}

int ctn_sim_run_sched(const struct ctn_sim_setup *setup, const char *policy, bool free_loads,
		      struct ctn_sim_result *r, struct ctn_err *err)
{
	struct sim_world w = {.setup = setup, .result = r, .free_loads = free_loads, .err = err};
	int rc = make_world(&w);

	if (rc == 0)
		rc = make_sched(&w, policy);
	if (rc == 0) {
		link_arrivals(&w);
		run(&w);
		rc = w.rc;
	}
	free_world(&w);
	return rc;
}
