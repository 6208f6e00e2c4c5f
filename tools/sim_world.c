// SPDX-License-Identifier: MIT
/* The world around sched: it carries out the actions on devices and links of its own, and tells
 * what came of them. What sched orders must be possible here by accounts that sched never sees. */
#include "sim.h"
#include "sim_stages.h"
#include "sched/sched.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS (1u << 18)
#define NONE      UINT32_MAX

enum event { LOADED, STAGE_READY, STAGE_DONE, WAKE };

struct load {
	uint64_t done_ns;
	uint64_t taken_ns; /* of the link that carries most */
	bool cancelled;
	uint64_t start_ns[CTN_SIM_MAX_DEVICES]; /* by rank: when its link has come to it */
	/* By rank: when its first missing layer is there, and its last; 0: nothing is missing. */
	uint64_t first_ns[CTN_SIM_MAX_DEVICES], last_ns[CTN_SIM_MAX_DEVICES];
};

struct model {
	uint32_t device; /* of rank 0; the others follow */
	enum ctn_sched_state state;
	uint32_t kept[CTN_SIM_MAX_DEVICES]; /* layers, by rank */
	struct load load;
	uint32_t *ready; /* admitted requests that are in no step */
	uint32_t ready_count;
	uint32_t next_arrival; /* of the model, an index into the workload */
};

/* A step on its way through the stages. */
struct step {
	uint32_t model, stage;
	uint32_t *requests;
	uint32_t count;
	uint32_t next_free;
};

struct world {
	const struct ctn_sim_setup *setup;
	struct ctn_sim_result *result;
	struct ctn_sched *sched;
	bool free_loads;
	uint64_t now, stage_ns;
	uint32_t ranks;
	struct ctn_sim_heap heap;
	struct ctn_sim_stages stages;
	struct model *models;
	uint32_t model_count;
	uint64_t link_free[CTN_SIM_MAX_DEVICES];
	struct step *steps;
	uint32_t step_count, free_step;
	uint32_t *slot_arrival, *free_slots;
	uint32_t slot_count, free_slot_count;
	uint32_t *ended; /* slots that sched has refused and not heard the end of */
	uint32_t ended_count;
	uint32_t *next_of_model; /* by arrival: the next of the same model */
	struct ctn_sched_action *actions;
	uint32_t action_max;
	uint64_t wake_ns;
	struct ctn_err *err;
	int rc;
};

static void tell(struct world *w, struct ctn_sched_event ev);

static uint64_t to_ns(double seconds)
{
	return (uint64_t)llround(seconds * 1e9);
}

/* ---- loads ------------------------------------------------------------------------------ */

static double layer_bytes(const struct world *w, uint32_t model)
{
	const struct ctn_sim_model *kind = &w->setup->models[model];

	return (double)kind->rank_bytes / kind->rank_layers;
}

static void act_load(struct world *w, uint32_t model)
{
	const struct ctn_sim_cluster *c = &w->setup->cluster;
	double layer_s = layer_bytes(w, model) / c->link_bytes_per_s;
	struct model *m = &w->models[model];
	struct load *load = &m->load;

	m->state = CTN_SCHED_LOADING;
	*load = (struct load){.done_ns = w->now};
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t *link = &w->link_free[m->device + r];
		uint32_t missing = w->setup->models[model].rank_layers - m->kept[r];

		if (missing == 0 || w->free_loads)
			continue;
		load->start_ns[r] = CTN_MAX(*link, w->now);
		load->first_ns[r] = load->start_ns[r] + to_ns(c->load_overhead_s + layer_s);
		load->last_ns[r] = load->first_ns[r] + to_ns((missing - 1) * layer_s);
		*link = load->last_ns[r];
		load->done_ns = CTN_MAX(load->done_ns, *link);
		load->taken_ns = CTN_MAX(load->taken_ns, *link - load->start_ns[r]);
		w->result->bytes_loaded += (uint64_t)(missing * layer_bytes(w, model));
	}
	w->result->swaps += load->taken_ns != 0;
	w->result->load_s += (double)load->taken_ns / 1e9;
	ctn_sim_heap_push(&w->heap, load->done_ns, LOADED, model);
}

/* Layers of rank r that are there once the one that its link carries now has come; when that is. */
static uint32_t layers_to_come(const struct world *w, uint32_t model, uint32_t r, uint64_t *end_ns)
{
	const struct model *m = &w->models[model];
	double layer_ns = 1e9 * layer_bytes(w, model) / w->setup->cluster.link_bytes_per_s;
	uint32_t layers;

	*end_ns = w->now;
	if (m->load.last_ns[r] <= w->now || m->load.start_ns[r] >= w->now)
		return m->load.last_ns[r] <= w->now ? w->setup->models[model].rank_layers
						    : m->kept[r];
	layers = 1;
	if (m->load.first_ns[r] < w->now)
		layers += (uint32_t)ceil((double)(w->now - m->load.first_ns[r]) / layer_ns);
	*end_ns = CTN_MIN(m->load.first_ns[r] + (uint64_t)((layers - 1) * layer_ns),
			  m->load.last_ns[r]);
	return CTN_MIN(m->kept[r] + layers, w->setup->models[model].rank_layers);
}

/* Of loads that wait for a link behind this one there are none: sched starts them one by one. */
static void act_cancel(struct world *w, uint32_t model)
{
	struct model *m = &w->models[model];
	uint64_t done_ns = w->now, taken = 0;
	uint32_t layers = w->setup->models[model].rank_layers;

	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t end;
		uint32_t kept = layers_to_come(w, model, r, &end);

		if (m->load.last_ns[r] > w->now) {
			w->link_free[m->device + r] = end;
			taken = CTN_MAX(taken, end - CTN_MIN(end, m->load.start_ns[r]));
		} else if (m->load.last_ns[r]) {
			taken = CTN_MAX(taken, m->load.last_ns[r] - m->load.start_ns[r]);
		}
		w->result->bytes_loaded -= (uint64_t)((layers - kept) * layer_bytes(w, model));
		m->kept[r] = kept;
		done_ns = CTN_MAX(done_ns, end);
	}
	w->result->load_s -= (double)(m->load.taken_ns - taken) / 1e9;
	m->load.done_ns = done_ns;
	m->load.cancelled = true;
	ctn_sim_heap_push(&w->heap, done_ns, LOADED, model);
}

/* The earliest time at which the ranks of a stage can run through it without waiting for a
 * layer: layers arrive evenly, so the first and the last missing one decide. */
static uint64_t stage_ready(const struct world *w, const struct model *m, uint32_t model,
			    uint32_t stage)
{
	uint32_t layers = w->setup->models[model].rank_layers;
	uint64_t ready = w->now;

	if (m->state != CTN_SCHED_LOADING)
		return ready;
	for (uint32_t t = 0; t < w->setup->tp; t++) {
		uint32_t r = stage * w->setup->tp + t;
		uint64_t before_first = w->stage_ns * m->kept[r] / layers;
		uint64_t before_last = w->stage_ns * (layers - 1) / layers;

		if (m->load.first_ns[r] > before_first)
			ready = CTN_MAX(ready, m->load.first_ns[r] - before_first);
		if (m->load.last_ns[r] > before_last)
			ready = CTN_MAX(ready, m->load.last_ns[r] - before_last);
	}
	return ready;
}

static void loaded(struct world *w, uint32_t model)
{
	struct model *m = &w->models[model];

	if (m->state != CTN_SCHED_LOADING || m->load.done_ns != w->now)
		return; /* it was cancelled */
	if (m->load.cancelled) {
		m->state = CTN_SCHED_ABSENT;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_CANCELLED,
						 .model = model,
						 .kept_layers = m->kept});
		return;
	}
	m->state = CTN_SCHED_RESIDENT;
	for (uint32_t r = 0; r < w->ranks; r++)
		m->kept[r] = w->setup->models[model].rank_layers;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = model});
}

/* ---- steps ------------------------------------------------------------------------------ */

static uint32_t take_step(struct world *w)
{
	uint32_t i = w->free_step;

	if (i != NONE) {
		w->free_step = w->steps[i].next_free;
		return i;
	}
	i = w->step_count;
	w->steps[i].requests = calloc(w->setup->max_batch, sizeof(uint32_t));
	if (!w->steps[i].requests) {
		w->rc = ctn_err_set(w->err, -ENOMEM, "out of memory");
		return NONE;
	}
	w->step_count++;
	return i;
}

static void await_stage(struct world *w, uint32_t step)
{
	const struct step *s = &w->steps[step];

	ctn_sim_heap_push(&w->heap, stage_ready(w, &w->models[s->model], s->model, s->stage),
			  STAGE_READY, step);
}

static void start_stages(struct world *w)
{
	uint32_t step;

	while (ctn_sim_stages_start(&w->stages, &step))
		ctn_sim_heap_push(&w->heap, w->now + w->stage_ns, STAGE_DONE, step);
}

static uint64_t stage_devices(const struct world *w, const struct step *s)
{
	uint64_t mask = (1ull << w->setup->tp) - 1;

	return mask << (w->models[s->model].device + s->stage * w->setup->tp);
}

static void act_step(struct world *w, uint32_t model)
{
	struct model *m = &w->models[model];
	uint32_t i = take_step(w);

	if (i == NONE)
		return;
	w->steps[i].model = model;
	w->steps[i].stage = 0;
	w->steps[i].count = m->ready_count;
	memcpy(w->steps[i].requests, m->ready, m->ready_count * sizeof(uint32_t));
	m->ready_count = 0;
	await_stage(w, i);
}

static void step_ended(struct world *w, uint32_t step)
{
	struct step *s = &w->steps[step];

	for (uint32_t i = 0; i < s->count; i++) {
		uint32_t slot = s->requests[i], arrival = w->slot_arrival[slot];
		uint64_t since = w->setup->workload->arrivals[arrival].at_ns;

		w->result->latency_s[arrival] = (double)(w->now - since) / 1e9;
		w->free_slots[w->free_slot_count++] = slot;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = slot});
	}
	tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = s->model});
	s->next_free = w->free_step;
	w->free_step = step;
	w->result->end_ns = w->now;
}

static void stage_ended(struct world *w, uint32_t step)
{
	struct step *s = &w->steps[step];

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

static void carry_out(struct world *w, const struct ctn_sched_action *a)
{
	struct model *m = &w->models[a->model];

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
		act_load(w, a->model);
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
		CTN_ASSERT(false); /* sched was made without it */
		break;
	case CTN_ACT_CANCEL:
		act_cancel(w, a->model);
		break;
	case CTN_ACT_KV_BUDGET: /* KV blocks have no bytes here */
	case CTN_ACT_DROP_HOST: /* the pool holds every model */
	case CTN_ACT_STAGE:
		break;
	}
}

static void tell_one(struct world *w, struct ctn_sched_event ev)
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

static void tell(struct world *w, struct ctn_sched_event ev)
{
	tell_one(w, ev);
	while (w->ended_count) {
		uint32_t slot = w->ended[--w->ended_count];

		w->result->latency_s[w->slot_arrival[slot]] = -1;
		w->free_slots[w->free_slot_count++] = slot;
		tell_one(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = slot});
	}
}

static void arrive(struct world *w, uint32_t arrival)
{
	uint32_t model = w->setup->workload->arrivals[arrival].model, slot;

	w->models[model].next_arrival = w->next_of_model[arrival];
	if (w->free_slot_count == 0) {
		w->result->latency_s[arrival] = -1; /* the queue is full */
		return;
	}
	slot = w->free_slots[--w->free_slot_count];
	w->slot_arrival[slot] = arrival;
	tell(w, (struct ctn_sched_event){
			.type = CTN_EV_ARRIVAL, .model = model, .request = slot, .kv_blocks = 1});
}

/* What the policy with foresight asks. */
static uint64_t next_arrival(void *arg, uint32_t model)
{
	const struct world *w = arg;
	uint32_t next = w->models[model].next_arrival;

	return next == NONE ? UINT64_MAX : w->setup->workload->arrivals[next].at_ns - w->now;
}

/* ---- a run ------------------------------------------------------------------------------ */

static void happen(struct world *w, const struct ctn_sim_event *ev)
{
	struct ctn_sched_event timer = {.type = CTN_EV_TIMER};

	switch (ev->type) {
	case LOADED:
		loaded(w, ev->what);
		break;
	case STAGE_READY:
		ctn_sim_stages_add(&w->stages, ev->what, stage_devices(w, &w->steps[ev->what]));
		start_stages(w);
		break;
	case STAGE_DONE:
		stage_ended(w, ev->what);
		break;
	case WAKE:
		if (w->wake_ns != ev->at_ns)
			break;
		w->wake_ns = UINT64_MAX;
		tell(w, timer);
		break;
	}
}

static void run(struct world *w)
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
			ctn_sim_heap_push(&w->heap, w->wake_ns, WAKE, 0);
		}
		if (w->heap.failed)
			w->rc = ctn_err_set(w->err, -ENOMEM, "out of memory");
	}
}

static int add_model(struct world *w, uint32_t model)
{
	const struct ctn_sim_model *kind = &w->setup->models[model];
	uint32_t groups = w->setup->cluster.devices / w->ranks;
	uint64_t layer = kind->rank_bytes / kind->rank_layers, layers[64];
	struct ctn_sched_rank ranks[CTN_SIM_MAX_DEVICES];
	struct ctn_sched_model m = {.rank_count = w->ranks,
				    .ranks = ranks,
				    .max_sequences = w->setup->max_batch,
				    .max_steps = CTN_MIN(w->setup->pp, CTN_SCHED_MAX_STEPS)};
	int rc;

	CTN_ASSERT(kind->rank_layers <= CTN_ARRAY_LEN(layers));
	w->models[model].device = model % groups * w->ranks;
	w->models[model].next_arrival = NONE;
	w->models[model].ready = calloc(w->setup->max_batch, sizeof(uint32_t));
	if (!w->models[model].ready)
		return ctn_err_set(w->err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < kind->rank_layers; i++)
		layers[i] = layer;
	for (uint32_t r = 0; r < w->ranks; r++)
		ranks[r] = (struct ctn_sched_rank){.device = w->models[model].device + r,
						   .stage = r / w->setup->tp,
						   .weight_bytes = layer * kind->rank_layers,
						   .layer_bytes = layers,
						   .layer_count = kind->rank_layers};
	rc = ctn_sched_add_model(w->sched, &m, w->err);
	return rc ? ctn_err_prefix(w->err, "model %u", model) : 0;
}

static int make_sched(struct world *w, const char *policy)
{
	uint64_t bytes[CTN_SIM_MAX_DEVICES], granules[CTN_SIM_MAX_DEVICES];
	struct ctn_sched_config cfg = {.policy = policy,
				       .device_count = w->setup->cluster.devices,
				       .device_bytes = bytes,
				       .granules = granules,
				       .max_models = w->model_count,
				       .max_requests = w->slot_count,
				       .partial_drops = true,
				       .cancels = true,
				       .host_known = true,
				       .exclusive_steps = true,
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

static int make_world(struct world *w)
{
	const struct ctn_sim_workload *load = w->setup->workload;
	uint32_t max_steps = load->models * CTN_SCHED_MAX_STEPS;

	w->model_count = load->models;
	w->slot_count = (uint32_t)CTN_MIN(load->count, (size_t)MAX_SLOTS);
	w->action_max = 4 * CTN_SIM_MAX_DEVICES * (w->model_count + 8);
	w->free_step = NONE;
	w->wake_ns = UINT64_MAX;
	w->stage_ns = to_ns(w->setup->cluster.batch_s / w->setup->pp);
	w->ranks = w->setup->tp * w->setup->pp;
	w->models = calloc(w->model_count, sizeof(*w->models));
	w->steps = calloc(max_steps, sizeof(*w->steps));
	w->slot_arrival = calloc(w->slot_count, sizeof(uint32_t));
	w->free_slots = calloc(w->slot_count, sizeof(uint32_t));
	w->ended = calloc(w->slot_count, sizeof(uint32_t));
	w->next_of_model = calloc(load->count, sizeof(uint32_t));
	w->actions = calloc(w->action_max, sizeof(*w->actions));
	if (!w->models || !w->steps || !w->slot_arrival || !w->free_slots || !w->ended ||
	    !w->next_of_model || !w->actions || ctn_sim_stages_init(&w->stages, max_steps))
		return ctn_err_set(w->err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < w->slot_count; i++)
		w->free_slots[w->free_slot_count++] = w->slot_count - 1 - i;
	return 0;
}

static void link_arrivals(struct world *w)
{
	const struct ctn_sim_workload *load = w->setup->workload;

	for (size_t i = load->count; i-- > 0;) {
		struct model *m = &w->models[load->arrivals[i].model];

		w->next_of_model[i] = m->next_arrival;
		m->next_arrival = (uint32_t)i;
	}
}

static void free_world(struct world *w)
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
	free(w->free_slots);
	free(w->ended);
	free(w->next_of_model);
	free(w->actions);
}

int ctn_sim_run_sched(const struct ctn_sim_setup *setup, const char *policy, bool free_loads,
		      struct ctn_sim_result *r, struct ctn_err *err)
{
	struct world w = {.setup = setup, .result = r, .free_loads = free_loads, .err = err};
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
