// SPDX-License-Identifier: MIT
/* What moves in the world around sched: loads over the links, and the pool with one disk before
 * it, which serves first come, first served. */
#include "sim_world.h"

static double layer_bytes(const struct sim_world *w, uint32_t model)
{
	const struct ctn_sim_model *kind = &w->setup->models[model];

	return (double)kind->rank_bytes / kind->rank_layers;
}

/* ---- the pool --------------------------------------------------------------------------- */

uint64_t sim_whole(const struct sim_world *w, uint32_t model)
{
	return w->setup->models[model].rank_bytes * w->ranks;
}

static void pool_changed(struct sim_world *w, uint32_t model)
{
	w->models[model].pool_changed = true;
	w->any_pool_changed = true;
}

void sim_drop_host(struct sim_world *w, uint32_t model, uint64_t bytes)
{
	struct sim_model *m = &w->models[model];

	CTN_ASSERT(bytes <= w->evictable[model] && bytes <= m->in_pool);
	w->evictable[model] -= bytes;
	m->in_pool -= bytes;
	w->pool_free += bytes;
	pool_changed(w, model);
}

/* Room for so many bytes, as sched chooses; false: there is none. */
static bool pool_room(struct sim_world *w, uint32_t model, uint64_t bytes)
{
	struct ctn_sched_action drops[64];
	uint32_t n;

	while (w->pool_free < bytes) {
		struct ctn_sched_event ev = {.type = CTN_EV_HOST_NEED,
					     .model = model,
					     .bytes = bytes - w->pool_free,
					     .host_evictable = w->evictable};

		for (uint32_t i = 0; i < w->model_count; i++) {
			const struct sim_model *m = &w->models[i];

			w->evictable[i] =
				i == model || i == w->staging || m->state == CTN_SCHED_LOADING
					? 0
					: m->in_pool;
		}
		n = ctn_sched_event(w->sched, w->now, &ev, drops, CTN_ARRAY_LEN(drops));
		if (n == 0)
			return false;
		for (uint32_t i = 0; i < n; i++)
			sim_drop_host(w, drops[i].model, drops[i].bytes);
	}
	return true;
}

/* The disk brings so many bytes; when the last is there. */
static uint64_t read_disk(struct sim_world *w, uint32_t model, uint64_t bytes)
{
	double seconds = (double)bytes / w->setup->cluster.disk_bytes_per_s;

	w->disk_free = CTN_MAX(w->disk_free, w->now) + sim_ns(seconds);
	w->models[model].in_pool += bytes;
	w->pool_free -= bytes;
	w->result->bytes_staged += bytes;
	return w->disk_free;
}

void sim_stage(struct sim_world *w, uint32_t model, uint64_t bytes)
{
	uint64_t missing = sim_whole(w, model) - w->models[model].in_pool, done = w->now;

	bytes = CTN_MIN(bytes, missing);
	if (bytes && pool_room(w, model, bytes)) {
		done = read_disk(w, model, bytes);
		w->result->bytes_ahead += bytes;
	}
	w->staging = model;
	ctn_sim_heap_push(&w->heap, done, CTN_SIM_STAGED, model);
}

/* ---- loads ------------------------------------------------------------------------------ */

/* Of the time that link d carries or has carried something, what lies before now. */
static uint64_t carried(const struct sim_world *w, uint32_t d)
{
	uint64_t to_come = w->link_free[d] > w->now ? w->link_free[d] - w->now : 0;

	return w->link_ns[d] - to_come;
}

void sim_wait(struct sim_world *w, uint32_t model)
{
	struct sim_model *m = &w->models[model];

	if (m->state != CTN_SCHED_ABSENT || m->waits)
		return;
	m->waits = true;
	m->waits_since_ns = w->now;
	m->carried_ns = carried(w, m->device);
	m->loads_before = w->loads_begun;
}

static void waited(struct sim_world *w, struct sim_model *m)
{
	uint64_t all = w->now - m->waits_since_ns, loads = carried(w, m->device) - m->carried_ns;
	uint64_t turns = 1 + w->loads_begun++ - m->loads_before;

	if (m->waits && !w->free_loads)
		w->result->turn_wait_s = CTN_MAX(w->result->turn_wait_s,
						 (double)(all - loads) / 1e9 / (double)turns);
	m->waits = false;
}

/* What the pool lacks comes first, the last layers last; when that is, 0: nothing is missing. */
static uint64_t stage_for_load(struct sim_world *w, uint32_t model, uint64_t *first_ns)
{
	struct sim_model *m = &w->models[model];
	uint64_t missing = sim_whole(w, model) - m->in_pool, whole = m->in_pool == 0;

	if (missing == 0 || w->free_loads)
		return 0;
	if (!pool_room(w, model, missing)) {
		w->rc = ctn_err_set(w->err, -ENOSPC, "model %u: the pool has no room for it",
				    model);
		return 0;
	}
	pool_changed(w, model);
	*first_ns = CTN_MAX(w->disk_free, w->now);
	if (whole)
		*first_ns += sim_ns((double)missing / w->setup->models[model].rank_layers /
				    w->setup->cluster.disk_bytes_per_s);
	return read_disk(w, model, missing);
}

void sim_load(struct sim_world *w, uint32_t model, double predicted_s)
{
	const struct ctn_sim_cluster *c = &w->setup->cluster;
	double layer_s = layer_bytes(w, model) / c->link_bytes_per_s;
	struct sim_model *m = &w->models[model];
	struct sim_load *load = &m->load;
	uint64_t first_staged = 0, staged;

	waited(w, m);
	m->state = CTN_SCHED_LOADING;
	staged = stage_for_load(w, model, &first_staged);
	*load = (struct sim_load){
		.done_ns = w->now, .begun_ns = w->now, .predicted_s = predicted_s};
	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t *link = &w->link_free[m->device + r];
		uint32_t missing = w->setup->models[model].rank_layers - m->kept[r];

		if (missing == 0 || w->free_loads)
			continue;
		load->start_ns[r] = CTN_MAX(*link, w->now);
		load->first_ns[r] = CTN_MAX(load->start_ns[r], first_staged) +
				    sim_ns(c->load_overhead_s + layer_s);
		load->last_ns[r] = CTN_MAX(load->first_ns[r] + sim_ns((missing - 1) * layer_s),
					   staged ? staged + sim_ns(layer_s) : 0);
		w->link_ns[m->device + r] += load->last_ns[r] - load->start_ns[r];
		*link = load->last_ns[r];
		load->done_ns = CTN_MAX(load->done_ns, *link);
		load->taken_ns = CTN_MAX(load->taken_ns, *link - load->start_ns[r]);
		w->result->bytes_loaded += (uint64_t)(missing * layer_bytes(w, model));
	}
	w->result->swaps += load->taken_ns != 0;
	w->result->load_s += (double)load->taken_ns / 1e9;
	ctn_sim_heap_push(&w->heap, load->done_ns, CTN_SIM_LOADED, model);
}

/* Layers of rank r that are there once the one that its link carries now has come; when that is. */
static uint32_t layers_to_come(const struct sim_world *w, uint32_t model, uint32_t r,
			       uint64_t *end_ns)
{
	const struct sim_model *m = &w->models[model];
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
void sim_cancel(struct sim_world *w, uint32_t model)
{
	struct sim_model *m = &w->models[model];
	uint64_t done_ns = w->now, taken = 0;
	uint32_t layers = w->setup->models[model].rank_layers;

	for (uint32_t r = 0; r < w->ranks; r++) {
		uint64_t end;
		uint32_t kept = layers_to_come(w, model, r, &end);

		if (m->load.last_ns[r] > w->now) {
			w->link_ns[m->device + r] -= m->load.last_ns[r] - end;
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
	ctn_sim_heap_push(&w->heap, done_ns, CTN_SIM_LOADED, model);
}

uint64_t sim_stage_ready(const struct sim_world *w, uint32_t model, uint32_t stage)
{
	const struct sim_model *m = &w->models[model];
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
