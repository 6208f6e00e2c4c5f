// SPDX-License-Identifier: MIT
/*
 * computron bench sched: what one decision of the scheduler costs.
 *
 * Models at tp=2 pp=2 on four devices with room for one in forty of them, and a closed loop of
 * requests: whoever is answered comes back at once for a model drawn at random, so that as many
 * wait as --requests says. Every event is one decision, timed by the processor time of this thread;
 * what the clock itself takes is measured and taken off. --pool-unknown: without events of what the
 * pool has, so that more than one load is under way on a link. The world costs nothing in that
 * account.
 */
#include "bench.h"
#include "sim.h"
#include "tools.h"
#include "sched/sched.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEVICES    4
#define LAYERS     20
#define LAYER      1000
#define WORKSPACE  500
#define BATCH      8
#define ROOM       40 /* one in so many models fits */
#define LAYER_NS   500000ull
#define STEP_NS    20000000ull
#define REST_NS    1000000ull
#define WARM_SHARE 5 /* one in so many decisions is not counted */

enum event { ARRIVES, LOADED, STEPPED, WAKE };

struct model {
	bool loading, cancelled, stepping;
	uint32_t kept[DEVICES];
	uint64_t due_ns;
	uint32_t batch[BATCH], batch_count;
};

struct bench {
	const char *policy;
	uint64_t model_count, request_count, decisions;
	bool json, pool_unknown;
	struct ctn_sched *sched;
	struct model *models;
	struct ctn_sim_heap heap;
	struct ctn_sim_random random;
	struct ctn_sched_action *actions;
	uint32_t action_max;
	uint64_t now, wake_ns;
	uint64_t queued, refused; /* now; in all */
	uint32_t *ends;           /* requests whose end is to be told */
	uint32_t end_count;
	uint64_t *took_ns;
	size_t took_count;
	uint64_t queued_sum;
};

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- the world -------------------------------------------------------------------------- */

static void act_load(struct bench *b, uint32_t id)
{
	struct model *m = &b->models[id];
	uint32_t most = 0;

	for (uint32_t r = 0; r < DEVICES; r++)
		most = CTN_MAX(most, LAYERS - m->kept[r]);
	m->loading = true;
	m->cancelled = false;
	m->due_ns = b->now + most * LAYER_NS;
	ctn_sim_heap_push(&b->heap, m->due_ns, LOADED, id);
}

static void carry_out(struct bench *b, const struct ctn_sched_action *a)
{
	struct model *m = &b->models[a->model];

	switch (a->type) {
	case CTN_ACT_LOAD:
		act_load(b, a->model);
		break;
	case CTN_ACT_CANCEL:
		m->cancelled = true;
		m->due_ns = b->now + LAYER_NS;
		ctn_sim_heap_push(&b->heap, m->due_ns, LOADED, a->model);
		break;
	case CTN_ACT_DROP:
		memset(m->kept, 0, sizeof(m->kept));
		break;
	case CTN_ACT_DROP_TAIL:
		m->kept[a->rank] = a->layers;
		break;
	case CTN_ACT_ADMIT:
		m->batch[m->batch_count++] = a->request;
		b->queued--;
		break;
	case CTN_ACT_STEP:
		m->stepping = true;
		ctn_sim_heap_push(&b->heap, CTN_MAX(b->now, m->loading ? m->due_ns : 0) + STEP_NS,
				  STEPPED, a->model);
		break;
	case CTN_ACT_REFUSE:
		b->queued--;
		b->refused++;
		b->ends[b->end_count++] = a->request;
		break;
	case CTN_ACT_KV_BUDGET:
	case CTN_ACT_PREEMPT: /* of those that were paused */
	case CTN_ACT_DROP_HOST:
	case CTN_ACT_STAGE:
		break;
	}
}

static void tell(struct bench *b, struct ctn_sched_event ev)
{
	bool more;

	do {
		uint64_t start = cpu_ns();
		uint32_t n = ctn_sched_event(b->sched, b->now, &ev, b->actions, b->action_max);

		if (b->took_count < b->decisions)
			b->took_ns[b->took_count++] = cpu_ns() - start;
		b->queued_sum += b->queued;
		more = ctn_sched_more(b->sched);
		for (uint32_t i = 0; i < n; i++)
			carry_out(b, &b->actions[i]);
		ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
	} while (more);
}

/* The end of a request; it comes again a little later. */
static void ended(struct bench *b, uint32_t request)
{
	tell(b, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = request});
	ctn_sim_heap_push(&b->heap, b->now + REST_NS, ARRIVES, request);
}

static void loaded(struct bench *b, uint32_t id)
{
	struct model *m = &b->models[id];

	if (!m->loading || m->due_ns != b->now)
		return; /* it was cancelled */
	m->loading = false;
	if (!m->cancelled) {
		for (uint32_t r = 0; r < DEVICES; r++)
			m->kept[r] = LAYERS;
		tell(b, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = id});
		return;
	}
	tell(b, (struct ctn_sched_event){
			.type = CTN_EV_LOAD_CANCELLED, .model = id, .kept_layers = m->kept});
}

static void stepped(struct bench *b, uint32_t id)
{
	struct model *m = &b->models[id];
	uint32_t batch[BATCH], count = m->batch_count;

	memcpy(batch, m->batch, sizeof(batch));
	m->batch_count = 0;
	m->stepping = false;
	for (uint32_t i = 0; i < count; i++)
		ended(b, batch[i]);
	tell(b, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = id});
}

static void happen(struct bench *b, const struct ctn_sim_event *ev)
{
	switch (ev->type) {
	case ARRIVES:
		b->queued++;
		tell(b,
		     (struct ctn_sched_event){
			     .type = CTN_EV_ARRIVAL,
			     .request = ev->what,
			     .model = (uint32_t)(ctn_sim_random_u64(&b->random) % b->model_count),
			     .kv_blocks = 1});
		break;
	case LOADED:
		loaded(b, ev->what);
		break;
	case STEPPED:
		stepped(b, ev->what);
		break;
	case WAKE:
		if (b->wake_ns != ev->at_ns)
			break;
		b->wake_ns = UINT64_MAX;
		tell(b, (struct ctn_sched_event){.type = CTN_EV_TIMER});
		break;
	}
	while (b->end_count)
		ended(b, b->ends[--b->end_count]);
}

static int run(struct bench *b, struct ctn_err *err)
{
	for (uint32_t i = 0; i < b->request_count; i++)
		ctn_sim_heap_push(&b->heap, 1 + i * 1000, ARRIVES, i);
	while (b->took_count < b->decisions) {
		struct ctn_sim_event ev;
		uint64_t wake;

		if (b->heap.failed || b->heap.count == 0)
			return ctn_err_set(err, b->heap.failed ? -ENOMEM : -EDEADLK,
					   "nothing happens any more");
		ev = ctn_sim_heap_pop(&b->heap);
		b->now = CTN_MAX(b->now, ev.at_ns);
		happen(b, &ev);
		wake = ctn_sched_wake_ns(b->sched);
		if (wake < b->wake_ns) {
			b->wake_ns = CTN_MAX(wake, b->now + 1);
			ctn_sim_heap_push(&b->heap, b->wake_ns, WAKE, 0);
		}
	}
	return 0;
}

/* ---- making it, and figures ------------------------------------------------------------- */

static int make_sched(struct bench *b, struct ctn_err *err)
{
	uint64_t bytes[DEVICES], granules[DEVICES], layers[LAYERS];
	struct ctn_sched_rank ranks[DEVICES];
	struct ctn_sched_config cfg = {.policy = b->policy,
				       .device_count = DEVICES,
				       .device_bytes = bytes,
				       .granules = granules,
				       .max_models = (uint32_t)b->model_count,
				       .max_requests = (uint32_t)b->request_count,
				       .partial_drops = true,
				       .pauses = true,
				       .cancels = true,
				       .host_known = !b->pool_unknown};
	struct ctn_sched_model model = {
		.rank_count = DEVICES, .ranks = ranks, .max_sequences = BATCH};
	int rc;

	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = LAYER;
	for (uint32_t d = 0; d < DEVICES; d++) {
		bytes[d] = CTN_MAX(b->model_count / ROOM, 2ull) * (LAYERS * LAYER + 2 * WORKSPACE);
		granules[d] = 1;
		ranks[d] = (struct ctn_sched_rank){.device = d,
						   .stage = d / 2,
						   .weight_bytes = LAYERS * LAYER,
						   .workspace_bytes = WORKSPACE,
						   .kv_block_bytes = 10,
						   .layer_bytes = layers,
						   .layer_count = LAYERS};
	}
	rc = ctn_sched_new(&cfg, &b->sched, err);
	for (uint64_t m = 0; m < b->model_count && rc == 0; m++)
		rc = ctn_sched_add_model(b->sched, &model, err);
	return rc;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* What two readings of the clock take that nothing lies between. */
static uint64_t clock_ns(void)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < 1000; i++) {
		uint64_t start = cpu_ns();

		least = CTN_MIN(least, cpu_ns() - start);
	}
	return least;
}

static void report(struct bench *b)
{
	size_t skip = b->took_count / WARM_SHARE, n = b->took_count - skip;
	uint64_t *took = b->took_ns + skip, clock = clock_ns();
	double sum = 0, mean, p50, p99, most;

	for (size_t i = 0; i < n; i++) {
		took[i] -= CTN_MIN(took[i], clock);
		sum += (double)took[i];
	}
	qsort(took, n, sizeof(*took), by_value);
	mean = sum / (double)n / 1e3;
	p50 = (double)took[n / 2] / 1e3;
	p99 = (double)took[n * 99 / 100] / 1e3;
	most = (double)took[n - 1] / 1e3;
	if (b->json)
		printf("{\"policy\": \"%s\", \"models\": %llu, \"requests\": %llu, \"decisions\": "
		       "%zu, \"queued_mean\": %.0f, \"mean_us\": %.2f, \"p50_us\": %.2f, "
		       "\"p99_us\": %.2f, \"max_us\": %.2f}\n",
		       b->policy, (unsigned long long)b->model_count,
		       (unsigned long long)b->request_count, n,
		       (double)b->queued_sum / (double)b->took_count, mean, p50, p99, most);
	else
		printf("%s: %zu decisions with %llu models, %.0f requests queued (mean): mean "
		       "%.2f us, p50 %.2f, p99 %.2f, longest %.2f\n",
		       b->policy, n, (unsigned long long)b->model_count,
		       (double)b->queued_sum / (double)b->took_count, mean, p50, p99, most);
}

static int parse(int argc, char **argv, struct bench *b, struct ctn_err *err)
{
	static const struct option longs[] = {{"models", required_argument, NULL, 'm'},
					      {"requests", required_argument, NULL, 'r'},
					      {"decisions", required_argument, NULL, 'd'},
					      {"policy", required_argument, NULL, 'p'},
					      {"pool-unknown", no_argument, NULL, 'u'},
					      {"json", no_argument, NULL, 'j'},
					      {NULL, 0, NULL, 0}};
	int c, rc = 0;

	optind = 1;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1 && rc == 0) {
		if (c == 'm')
			rc = ctn_parse_u64("--models", optarg, 2, 100000, &b->model_count, err);
		else if (c == 'r')
			rc = ctn_parse_u64("--requests", optarg, 1, 1000000, &b->request_count,
					   err);
		else if (c == 'd')
			rc = ctn_parse_u64("--decisions", optarg, 10, 100000000, &b->decisions,
					   err);
		else if (c == 'p')
			b->policy = optarg;
		else if (c == 'u')
			b->pool_unknown = true;
		else if (c == 'j')
			b->json = true;
		else
			return -EINVAL; /* getopt has said why */
	}
	if (rc == 0 && optind < argc)
		rc = ctn_err_set(err, -EINVAL, "unexpected argument \"%s\"", argv[optind]);
	return rc;
}

int ctn_bench_sched(int argc, char **argv)
{
	struct bench b = {.policy = "default",
			  .model_count = 1000,
			  .request_count = 10000,
			  .decisions = 200000,
			  .wake_ns = UINT64_MAX};
	struct ctn_err err = {0};
	int rc = parse(argc, argv, &b, &err);

	if (rc) {
		if (err.msg[0])
			fprintf(stderr, "computron bench sched: %s\n", err.msg);
		return CTN_EXIT_USAGE;
	}
	ctn_sim_random_init(&b.random, 1, 0);
	b.action_max = (uint32_t)(DEVICES * (b.model_count + 8));
	b.models = calloc(b.model_count, sizeof(*b.models));
	b.actions = calloc(b.action_max, sizeof(*b.actions));
	b.took_ns = calloc(b.decisions, sizeof(*b.took_ns));
	b.ends = calloc(b.request_count, sizeof(*b.ends));
	if (!b.models || !b.actions || !b.took_ns || !b.ends)
		rc = ctn_err_set(&err, -ENOMEM, "out of memory");
	if (!rc)
		rc = make_sched(&b, &err);
	if (!rc)
		rc = run(&b, &err);
	if (rc)
		fprintf(stderr, "computron bench sched: %s\n", err.msg);
	else
		report(&b);
	ctn_sched_free(b.sched);
	ctn_sim_heap_free(&b.heap);
	free(b.models);
	free(b.actions);
	free(b.took_ns);
	free(b.ends);
	return rc ? CTN_EXIT_FAILED : 0;
}
