// SPDX-License-Identifier: MIT
/*
 * The 2023 system (arXiv 2306.13835), by its policy and its published costs.
 *
 * The oldest queue head is served first, skipping a model that is being loaded; the victim is the
 * whole model that was used least recently, whether or not somebody waits for it. A load waits for
 * the write-back of its victim; one load is under way at a time. Polls add a uniform 10 to 32.4 ms
 * to each request.
 *
 * "c", the best reading of its costs: a load takes 0.323 s, and before it the loop that hands
 * commands to the workers sleeps for 0.1 s: batches that run end, its victim's too, and none
 * begins. "s", the worst: everything drains, then nothing runs for 0.423 s. Both for the size of
 * OPT-13B at tp=2 pp=2; other sizes in proportion.
 */
#include "sim.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define NONE         UINT32_MAX
#define STALL_S      0.1
#define TRANSFER_S   0.323
#define POLL_LEAST_S 0.010
#define POLL_MOST_S  0.0324

enum event { BATCH_DONE, PIPE_FREE, STALL_OVER, LOADED };

struct model {
	bool resident;
	uint64_t used_ns;
	uint32_t head, tail; /* of its queue: arrivals */
};

struct system {
	const struct ctn_sim_setup *setup;
	struct ctn_sim_result *result;
	bool serial;
	uint64_t now, batch_ns, gap_ns;
	uint64_t free_bytes; /* of a rank's device: all models lie alike */
	struct ctn_sim_heap heap;
	struct ctn_sim_random random;
	struct model *models;
	uint32_t *next;   /* by arrival: the queue it is in */
	uint32_t loading; /* a model, or NONE */
	uint32_t running; /* batches */
	bool pipe_taken, stalled;
};

static uint64_t bytes_of(const struct system *s, uint32_t model)
{
	return s->setup->models[model].rank_bytes;
}

static void start_batch(struct system *s, uint32_t model)
{
	struct model *m = &s->models[model];
	uint64_t end = s->now + s->batch_ns;

	for (uint32_t n = 0; n < s->setup->max_batch && m->head != NONE; n++) {
		uint64_t since = s->setup->workload->arrivals[m->head].at_ns;
		double poll = POLL_LEAST_S +
			      (POLL_MOST_S - POLL_LEAST_S) * ctn_sim_random_uniform(&s->random);

		s->result->latency_s[m->head] = (double)(end - since) / 1e9 + poll;
		m->head = s->next[m->head];
	}
	m->used_ns = s->now;
	s->running++;
	s->pipe_taken = true;
	s->result->end_ns = end;
	ctn_sim_heap_push(&s->heap, end, BATCH_DONE, model);
	ctn_sim_heap_push(&s->heap, s->now + s->gap_ns, PIPE_FREE, 0);
}

static uint32_t victim(const struct system *s)
{
	uint32_t best = NONE;

	for (uint32_t i = 0; i < s->setup->workload->models; i++) {
		const struct model *m = &s->models[i];

		if (m->resident && (best == NONE || m->used_ns < s->models[best].used_ns))
			best = i;
	}
	return best;
}

static void start_load(struct system *s, uint32_t model)
{
	double part = (double)bytes_of(s, model) / (double)ctn_sim_opt13b_rank_bytes(2, 2);
	double took = STALL_S + TRANSFER_S * part;

	while (s->free_bytes < bytes_of(s, model)) {
		uint32_t v = victim(s);

		s->models[v].resident = false;
		s->free_bytes += bytes_of(s, v);
	}
	s->free_bytes -= bytes_of(s, model);
	s->loading = model;
	s->stalled = true;
	ctn_sim_heap_push(&s->heap, s->now + (uint64_t)llround(STALL_S * 1e9), STALL_OVER, 0);
	s->result->swaps++;
	s->result->load_s += took;
	s->result->bytes_loaded += bytes_of(s, model) * s->setup->tp * s->setup->pp;
	ctn_sim_heap_push(&s->heap, s->now + (uint64_t)llround(took * 1e9), LOADED, model);
}

/* The oldest queue head whose model can do something now: run, or be loaded. */
static uint32_t next_model(const struct system *s)
{
	uint32_t best = NONE;

	for (uint32_t i = 0; i < s->setup->workload->models; i++) {
		const struct model *m = &s->models[i];

		if (m->head == NONE || i == s->loading)
			continue;
		if (!m->resident && s->loading != NONE)
			continue;
		if (best == NONE || m->head < s->models[best].head)
			best = i;
	}
	return best;
}

static void dispatch(struct system *s)
{
	for (;;) {
		uint32_t model = next_model(s);

		if (model == NONE || s->loading != NONE)
			return;
		if (!s->models[model].resident) {
			if (s->serial && s->running)
				return; /* the load is next, behind what runs */
			start_load(s, model);
		} else if (!s->pipe_taken && !s->stalled) {
			start_batch(s, model);
		} else {
			return;
		}
	}
}

static void happen(struct system *s, const struct ctn_sim_event *ev)
{
	switch (ev->type) {
	case BATCH_DONE:
		s->running--;
		break;
	case PIPE_FREE:
		s->pipe_taken = false;
		break;
	case STALL_OVER:
		s->stalled = false;
		break;
	case LOADED:
		s->models[ev->what].resident = true;
		s->models[ev->what].used_ns = s->now;
		s->loading = NONE;
		break;
	}
}

static void arrive(struct system *s, uint32_t arrival)
{
	struct model *m = &s->models[s->setup->workload->arrivals[arrival].model];

	s->next[arrival] = NONE;
	if (m->head == NONE)
		m->head = arrival;
	else
		s->next[m->tail] = arrival;
	m->tail = arrival;
}

static void run(struct system *s)
{
	const struct ctn_sim_workload *load = s->setup->workload;
	uint32_t next = 0;

	while ((next < load->count || s->heap.count) && !s->heap.failed) {
		if (next < load->count &&
		    (s->heap.count == 0 || load->arrivals[next].at_ns <= s->heap.events[0].at_ns)) {
			s->now = load->arrivals[next].at_ns;
			arrive(s, next++);
		} else {
			struct ctn_sim_event ev = ctn_sim_heap_pop(&s->heap);

			s->now = ev.at_ns;
			happen(s, &ev);
		}
		dispatch(s);
	}
}

int ctn_sim_run_2023(const struct ctn_sim_setup *setup, bool serial, struct ctn_sim_result *r,
		     struct ctn_err *err)
{
	const struct ctn_sim_workload *load = setup->workload;
	struct system s = {.setup = setup,
			   .result = r,
			   .serial = serial,
			   .batch_ns = (uint64_t)llround(setup->cluster.batch_s * 1e9),
			   .gap_ns = (uint64_t)llround(setup->cluster.batch_s * 1e9 / setup->pp),
			   .free_bytes = setup->device_bytes,
			   .loading = NONE};
	int rc = 0;

	if (setup->host_bytes || setup->tokens != 1)
		return ctn_err_set(err, -EINVAL,
				   "computron2023: expected one token a request and a pool that "
				   "holds every model");
	if (setup->cluster.devices != setup->tp * setup->pp)
		return ctn_err_set(err, -EINVAL,
				   "computron2023: expected every model on all devices (tp x pp = "
				   "%u)",
				   setup->cluster.devices);
	ctn_sim_random_init(&s.random, setup->seed, UINT64_MAX);
	s.models = calloc(load->models, sizeof(*s.models));
	s.next = calloc(load->count, sizeof(*s.next));
	if (!s.models || !s.next)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < load->models && !rc; i++) {
		s.models[i].head = NONE;
		if (setup->models[i].rank_bytes > setup->device_bytes)
			rc = ctn_err_set(err, -EFBIG, "model %u: larger than a device", i);
	}
	if (!rc)
		run(&s);
	if (s.heap.failed)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	free(s.models);
	free(s.next);
	ctn_sim_heap_free(&s.heap);
	return rc;
}
