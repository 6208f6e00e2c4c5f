// SPDX-License-Identifier: MIT
/*
 * Every policy against random traffic in a world that keeps accounts of its own: parts of models,
 * loads that are cancelled, steps in a pipeline, pauses, a pool that does not hold all. What sched
 * orders must be possible there, all work ends, and nothing waits while nothing happens.
 */
#include "test.h"
#include "sched/sched.h"

#include <stdlib.h>
#include <string.h>

#define MODELS   8
#define REQUESTS 96
#define DEVICES  2
#define LAYERS   10
#define GRANULE  16

enum phase { FREE, WAITING, ADMITTED, STEPPING, REFUSED };

struct mode {
	const char *policy;
	bool parts, cancels, pool_known, exclusive, pauses, stages, deadlines, grows;
	uint32_t max_steps;
};

struct world {
	const struct mode *mode;
	struct ctn_sched *s;
	uint64_t now, capacity[DEVICES];
	uint64_t layer[MODELS];
	uint32_t kept[MODELS][DEVICES], budget[MODELS], steps[MODELS];
	enum ctn_sched_state state[MODELS];
	bool cancelled[MODELS], pinned[MODELS];
	enum phase phase[REQUESTS];
	uint32_t model_of[REQUESTS], blocks[REQUESTS], most[REQUESTS], step_of[REQUESTS];
	uint32_t first_step[MODELS], newest_step[MODELS], advanced[MODELS];
	uint64_t due[MODELS];           /* of its load */
	uint64_t missing[MODELS], pool; /* in the pool; its capacity */
	uint32_t staging;               /* a model, or MODELS */
	uint64_t stage_bytes;
	uint64_t deadline[REQUESTS];
	uint32_t stages, host_drops, pauses, late, preemptions;
	uint32_t drops, tails, cancels, loads, loads_ahead;
};

static uint32_t rnd(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

static uint64_t kv(uint32_t blocks)
{
	return (8ull * blocks + GRANULE - 1) / GRANULE * GRANULE;
}

/* By a walk over everything, each time. */
static uint64_t used(const struct world *w, uint32_t d)
{
	uint64_t sum = 0;

	for (uint32_t m = 0; m < MODELS; m++) {
		sum += w->layer[m] * w->kept[m][d] + kv(w->budget[m]);
		if (w->state[m] != CTN_SCHED_ABSENT)
			sum += (LAYERS - w->kept[m][d]) * w->layer[m] + 32;
	}
	return sum;
}

static uint32_t count(const struct world *w, uint32_t m, enum phase phase)
{
	uint32_t n = 0;

	for (uint32_t q = 0; q < REQUESTS; q++)
		n += w->phase[q] == phase && (m == MODELS || w->model_of[q] == m);
	return n;
}

static uint32_t blocks_held(const struct world *w, uint32_t m)
{
	uint32_t n = 0;

	for (uint32_t q = 0; q < REQUESTS; q++) {
		if ((w->phase[q] == ADMITTED || w->phase[q] == STEPPING) && w->model_of[q] == m)
			n += w->blocks[q];
	}
	return n;
}

static void obey_drop(struct world *w, uint32_t m)
{
	CU_ASSERT_NOT_EQUAL(w->state[m], CTN_SCHED_LOADING);
	CU_ASSERT_EQUAL(w->steps[m], 0);
	CU_ASSERT_FALSE(w->pinned[m] && w->state[m] != CTN_SCHED_ABSENT);
	CU_ASSERT(w->mode->pauses || count(w, m, ADMITTED) == 0);
	w->pauses += w->state[m] == CTN_SCHED_RESIDENT && count(w, m, ADMITTED);
	w->state[m] = CTN_SCHED_ABSENT;
	if (count(w, m, ADMITTED) == 0)
		w->budget[m] = 0;
}

static void obey(struct world *w, const struct ctn_sched_action *a)
{
	uint32_t m = a->model;

	switch (a->type) {
	case CTN_ACT_REFUSE:
		CU_ASSERT_EQUAL(w->phase[a->request], WAITING);
		w->phase[a->request] = REFUSED;
		if (a->why == CTN_REFUSED_DEADLINE) {
			CU_ASSERT(w->deadline[a->request] != 0 && a->seconds >= 1);
			w->late++;
		}
		break;
	case CTN_ACT_DROP:
		obey_drop(w, m);
		memset(w->kept[m], 0, sizeof(w->kept[m]));
		w->drops++;
		break;
	case CTN_ACT_DROP_TAIL:
		CU_ASSERT(w->mode->parts && a->layers < w->kept[m][a->rank]);
		obey_drop(w, m);
		w->kept[m][a->rank] = a->layers;
		w->tails++;
		break;
	case CTN_ACT_LOAD:
		CU_ASSERT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		w->state[m] = CTN_SCHED_LOADING;
		w->cancelled[m] = false;
		w->due[m] = w->now + (2 * LAYERS - w->kept[m][0] - w->kept[m][1]) * 10000000ull;
		w->loads++;
		w->loads_ahead += count(w, m, WAITING) + count(w, m, ADMITTED) == 0;
		break;
	case CTN_ACT_CANCEL:
		CU_ASSERT(w->mode->cancels && w->state[m] == CTN_SCHED_LOADING && !w->cancelled[m]);
		CU_ASSERT_EQUAL(count(w, m, WAITING) + count(w, m, ADMITTED), 0);
		w->cancelled[m] = true;
		w->cancels++;
		break;
	case CTN_ACT_KV_BUDGET:
		CU_ASSERT(a->blocks >= blocks_held(w, m));
		w->budget[m] = a->blocks;
		break;
	case CTN_ACT_ADMIT:
		CU_ASSERT_EQUAL(w->phase[a->request], WAITING);
		CU_ASSERT_NOT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		w->phase[a->request] = ADMITTED;
		CU_ASSERT(blocks_held(w, m) <= w->budget[m]);
		break;
	case CTN_ACT_STEP:
		CU_ASSERT(w->steps[m] < w->mode->max_steps && count(w, m, ADMITTED) > 0);
		CU_ASSERT_NOT_EQUAL(w->state[m], CTN_SCHED_ABSENT);
		CU_ASSERT(blocks_held(w, m) <= w->budget[m]);
		w->steps[m]++;
		w->newest_step[m]++;
		for (uint32_t q = 0; q < REQUESTS; q++) {
			if (w->phase[q] == ADMITTED && w->model_of[q] == m) {
				w->phase[q] = STEPPING;
				w->step_of[q] = w->newest_step[m];
			}
		}
		break;
	case CTN_ACT_STAGE:
		CU_ASSERT(w->mode->stages && w->staging == MODELS);
		CU_ASSERT(a->bytes > 0 && a->bytes <= w->missing[m]);
		w->staging = m;
		w->stage_bytes = a->bytes;
		w->stages++;
		break;
	case CTN_ACT_PREEMPT:
		CU_ASSERT_EQUAL_FATAL(w->phase[a->request], ADMITTED);
		CU_ASSERT_EQUAL(w->steps[m], 0);
		/* KV runs out; or it is paused, and shut out by what was pinned. */
		CU_ASSERT(w->mode->grows || (w->mode->pauses && w->state[m] == CTN_SCHED_ABSENT));
		w->phase[a->request] = WAITING;
		w->preemptions++;
		break;
	case CTN_ACT_DROP_HOST:
		CU_FAIL("nobody said that this is possible");
		break;
	}
}

static void tell(struct world *w, struct ctn_sched_event ev)
{
	struct ctn_sched_action actions[DEVICES * MODELS + 8];
	bool more;

	do {
		uint32_t n = ctn_sched_event(w->s, w->now, &ev, actions, CTN_ARRAY_LEN(actions));

		more = ctn_sched_more(w->s);
		for (uint32_t i = 0; i < n; i++) {
			obey(w, &actions[i]);
			for (uint32_t d = 0; d < DEVICES; d++)
				CU_ASSERT_FATAL(used(w, d) <= w->capacity[d]);
		}
		for (uint32_t d = 0; d < DEVICES && !more; d++)
			CU_ASSERT_EQUAL(used(w, d), ctn_sched_charged(w->s, d));
		ev = (struct ctn_sched_event){.type = CTN_EV_TIMER};
	} while (more);
}

static uint64_t whole(const struct world *w, uint32_t m)
{
	return DEVICES * LAYERS * w->layer[m];
}

/* The pool gets `bytes` of the model, asks for room first, and tells what everybody has then. */
static void into_pool(struct world *w, uint32_t m, uint64_t bytes, enum ctn_sched_event_type type)
{
	struct ctn_sched_action a[MODELS];
	uint64_t evictable[MODELS], used_bytes = bytes;
	uint32_t n = 0;

	for (uint32_t i = 0; i < MODELS; i++) {
		evictable[i] = i == m || w->state[i] == CTN_SCHED_LOADING
				       ? 0
				       : whole(w, i) - w->missing[i];
		used_bytes += whole(w, i) - w->missing[i];
	}
	if (used_bytes > w->pool)
		n = ctn_sched_event(w->s, w->now,
				    &(struct ctn_sched_event){.type = CTN_EV_HOST_NEED,
							      .model = m,
							      .bytes = used_bytes - w->pool,
							      .host_evictable = evictable},
				    a, MODELS);
	for (uint32_t i = 0; i < n; i++) {
		CU_ASSERT_EQUAL(a[i].type, CTN_ACT_DROP_HOST);
		CU_ASSERT(a[i].bytes <= evictable[a[i].model]);
		evictable[a[i].model] -= a[i].bytes;
		w->missing[a[i].model] += a[i].bytes;
		used_bytes -= a[i].bytes;
		w->host_drops++;
	}
	if (used_bytes <= w->pool)
		w->missing[m] -= bytes;
	tell(w, (struct ctn_sched_event){.type = type, .model = m, .bytes = w->missing[m]});
	for (uint32_t i = 0; i < n; i++)
		tell(w, (struct ctn_sched_event){.type = CTN_EV_HOST,
						 .model = a[i].model,
						 .bytes = w->missing[a[i].model]});
}

static void done(struct world *w, uint32_t q)
{
	w->phase[q] = FREE;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_REQUEST_DONE, .request = q});
}

/* When the next request comes; it need not be right. */
static uint64_t says_the_oracle(void *arg, uint32_t model)
{
	return model == 0 ? UINT64_MAX : (1 + model) * 100000000ull;
}

static void make(struct world *w, const struct mode *mode, uint64_t *seed)
{
	static const uint64_t granules[DEVICES] = {GRANULE, GRANULE};
	struct ctn_sched_config cfg = {
		.policy = mode->policy,
		.device_count = DEVICES,
		.device_bytes = w->capacity,
		.granules = granules,
		.max_models = MODELS,
		.max_requests = REQUESTS,
		.partial_drops = mode->parts,
		.cancels = mode->cancels,
		.host_known = mode->pool_known,
		.pauses = mode->pauses,
		.stages = mode->stages,
		.exclusive_steps = mode->exclusive,
		.next_arrival = strcmp(mode->policy, "clairvoyant") == 0 ? says_the_oracle : NULL};

	uint64_t all = 0;

	*w = (struct world){.mode = mode, .now = 1, .capacity = {2048, 2560}, .staging = MODELS};
	for (uint32_t m = 0; m < MODELS; m++) {
		w->layer[m] = GRANULE * (1 + rnd(seed) % 8);
		all += whole(w, m);
	}
	w->pool = cfg.host_bytes = CTN_MAX(all / 2, DEVICES * LAYERS * GRANULE * 9ull);
	CU_ASSERT_EQUAL_FATAL(ctn_sched_new(&cfg, &w->s, NULL), 0);
	for (uint32_t m = 0; m < MODELS; m++) {
		uint64_t layers[LAYERS];
		struct ctn_sched_rank ranks[DEVICES];
		struct ctn_sched_model model = {.rank_count = DEVICES,
						.ranks = ranks,
						.max_sequences = 1 + m % 5,
						.max_steps = mode->max_steps,
						.priority = mode->deadlines ? (int)m % 3 - 1 : 0,
						.host_bytes = whole(w, m)};

		for (uint32_t i = 0; i < LAYERS; i++)
			layers[i] = w->layer[m];
		for (uint32_t r = 0; r < DEVICES; r++)
			ranks[r] = (struct ctn_sched_rank){.device = r,
							   .stage = r,
							   .weight_bytes = LAYERS * w->layer[m],
							   .workspace_bytes = 32,
							   .kv_block_bytes = 8,
							   .layer_bytes = layers,
							   .layer_count = LAYERS};
		CU_ASSERT_EQUAL_FATAL(ctn_sched_add_model(w->s, &model, NULL), 0);
	}
	for (uint32_t m = 0; mode->stages && m < MODELS; m++) {
		w->missing[m] = whole(w, m);
		tell(w, (struct ctn_sched_event){
				.type = CTN_EV_HOST, .model = m, .bytes = w->missing[m]});
	}
}

static void load_ends(struct world *w, uint32_t m, uint64_t *seed)
{
	if (w->cancelled[m]) {
		for (uint32_t r = 0; r < DEVICES; r++)
			w->kept[m][r] += rnd(seed) % (LAYERS + 1 - w->kept[m][r]);
		w->state[m] = CTN_SCHED_ABSENT;
		if (blocks_held(w, m) == 0)
			w->budget[m] = 0;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_CANCELLED,
						 .model = m,
						 .kept_layers = w->kept[m]});
		return;
	}
	w->state[m] = CTN_SCHED_RESIDENT;
	for (uint32_t r = 0; r < DEVICES; r++)
		w->kept[m][r] = LAYERS;
	if (w->mode->stages && w->missing[m])
		into_pool(w, m, w->missing[m], CTN_EV_HOST);
	tell(w, (struct ctn_sched_event){.type = CTN_EV_LOAD_DONE, .model = m});
}

static void step_ends(struct world *w, uint32_t m, uint64_t *seed)
{
	uint32_t step = w->newest_step[m] - w->steps[m] + 1;

	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] == STEPPING && w->model_of[q] == m && w->step_of[q] == step &&
		    rnd(seed) % 3)
			done(w, q);
	}
	/* What is left may need more before its next step. */
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] == STEPPING && w->model_of[q] == m && w->step_of[q] == step &&
		    w->blocks[q] < w->most[q])
			tell(w, (struct ctn_sched_event){.type = CTN_EV_KV,
							 .request = q,
							 .kv_blocks = ++w->blocks[q]});
	}
	/* The others go on. */
	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] == STEPPING && w->model_of[q] == m && w->step_of[q] == step)
			w->phase[q] = ADMITTED;
	}
	w->steps[m]--;
	tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_DONE, .model = m});
}

/* Something that the world owes happens; false: it owes nothing. */
static bool progress(struct world *w, uint64_t *seed)
{
	uint32_t can[3 * MODELS + 1], n = 0, pick;

	for (uint32_t q = 0; q < REQUESTS; q++) {
		if (w->phase[q] == REFUSED) {
			done(w, q);
			return true;
		}
	}
	for (uint32_t m = 0; m < MODELS; m++) {
		if (w->state[m] == CTN_SCHED_LOADING)
			can[n++] = m;
		/* A step waits for the layers. */
		else if (w->steps[m])
			can[n++] = MODELS + m;
		if (w->mode->exclusive && w->steps[m] && w->advanced[m] < w->newest_step[m])
			can[n++] = 2 * MODELS + m;
	}
	if (w->staging < MODELS)
		can[n++] = 3 * MODELS;
	if (n == 0)
		return false;
	pick = can[rnd(seed) % n];
	if (pick == 3 * MODELS) {
		uint32_t m = w->staging;
		bool fails = w->state[m] == CTN_SCHED_LOADING || rnd(seed) % 8 == 0;

		w->staging = MODELS;
		into_pool(w, m, fails ? 0 : CTN_MIN(w->stage_bytes, w->missing[m]),
			  CTN_EV_STAGE_DONE);
	} else if (pick < MODELS) {
		w->now = CTN_MAX(w->now, w->due[pick]);
		load_ends(w, pick, seed);
	} else if (pick < 2 * MODELS) {
		w->advanced[pick - MODELS] = w->steps[pick - MODELS] == 1
						     ? w->newest_step[pick - MODELS]
						     : w->advanced[pick - MODELS];
		step_ends(w, pick - MODELS, seed);
	} else {
		w->advanced[pick - 2 * MODELS] = w->newest_step[pick - 2 * MODELS];
		tell(w, (struct ctn_sched_event){.type = CTN_EV_STEP_ADVANCED,
						 .model = pick - 2 * MODELS});
	}
	return true;
}

/* With requests that wait and nothing under way, sched must at least want to be woken. */
static void check_not_stuck(struct world *w)
{
	bool under_way = count(w, MODELS, REFUSED) > 0;

	for (uint32_t m = 0; m < MODELS; m++)
		under_way |= w->state[m] == CTN_SCHED_LOADING || w->steps[m];
	/* No longer than a load of the largest. */
	if (!under_way && count(w, MODELS, WAITING) + count(w, MODELS, ADMITTED) > 0)
		CU_ASSERT(ctn_sched_wake_ns(w->s) <= w->now + 2 * LAYERS * 10000000ull);
}

static void random_run(const struct mode *mode, uint64_t seed, struct world *w)
{
	make(w, mode, &seed);
	for (uint32_t i = 0; i < 4000; i++) {
		uint32_t r = rnd(&seed) % 100, q = rnd(&seed) % REQUESTS;
		uint32_t m = rnd(&seed) % MODELS;

		w->now += rnd(&seed) % 50000000;
		if (r < 40 && w->phase[q] == FREE) {
			w->phase[q] = WAITING;
			w->model_of[q] = m;
			w->most[q] = w->blocks[q] = 1 + rnd(&seed) % 6;
			if (mode->grows)
				w->most[q] += rnd(&seed) % 12;
			w->deadline[q] = mode->deadlines && rnd(&seed) % 2
						 ? w->now + rnd(&seed) % (1u << 30) * 8ull
						 : 0;
			tell(w, (struct ctn_sched_event){.type = CTN_EV_ARRIVAL,
							 .model = m,
							 .request = q,
							 .deadline_ns = w->deadline[q],
							 .kv_blocks = w->most[q],
							 .kv_first = w->blocks[q]});
		} else if (r < 45 && (w->phase[q] == WAITING || w->phase[q] == ADMITTED)) {
			done(w, q);
		} else if (r < 46) {
			w->pinned[m] = !w->pinned[m];
			tell(w,
			     (struct ctn_sched_event){
				     .type = w->pinned[m] ? CTN_EV_PIN : CTN_EV_UNPIN, .model = m});
		} else if (r < 48) {
			tell(w, (struct ctn_sched_event){.type = CTN_EV_TIMER});
		} else {
			progress(w, &seed);
		}
		check_not_stuck(w);
	}
	for (uint32_t m = 0; m < MODELS; m++) {
		w->pinned[m] = false;
		tell(w, (struct ctn_sched_event){.type = CTN_EV_UNPIN, .model = m});
	}
	/* What is there ends, in a bounded number of things that happen. */
	for (uint32_t i = 0; i < 5000 && count(w, MODELS, FREE) < REQUESTS; i++) {
		w->now += 10000000;
		if (!progress(w, &seed))
			tell(w, (struct ctn_sched_event){.type = CTN_EV_TIMER});
		check_not_stuck(w);
	}
	CU_ASSERT_EQUAL(count(w, MODELS, FREE), REQUESTS);
	ctn_sched_free(w->s);
}

/* As the daemon and the simulator run it, but for pauses. */
#define WHOLE .parts = true, .cancels = true, .pool_known = true

static void test_random_events_under_every_policy(void)
{
	static const struct mode modes[] = {
		{.policy = "lru", .max_steps = 1},
		{.policy = "lru", .grows = true, .max_steps = 1},
		{.policy = "lru", .grows = true, .max_steps = 2},
		{.policy = "lru", .pool_known = true, .exclusive = true, .max_steps = 2},
		{.policy = "default", .max_steps = 1},
		{.policy = "default", .parts = true, .cancels = true, .max_steps = 1},
		{.policy = "default", .parts = true, .pool_known = true, .max_steps = 2},
		{.policy = "default", WHOLE, .max_steps = 1},
		{.policy = "default", WHOLE, .exclusive = true, .max_steps = 2},
		{.policy = "default", .grows = true, .max_steps = 2},
		{.policy = "default", .parts = true, .pauses = true, .max_steps = 1},
		{.policy = "clairvoyant", WHOLE, .pauses = true, .grows = true, .max_steps = 1},
		{.policy = "default",
		 WHOLE,
		 .pauses = true,
		 .deadlines = true,
		 .stages = true,
		 .grows = true,
		 .max_steps = 1},
		{.policy = "default",
		 WHOLE,
		 .exclusive = true,
		 .pauses = true,
		 .grows = true,
		 .max_steps = 2},
		{.policy = "default", .pauses = true, .deadlines = true, .max_steps = 1},
		{.policy = "default",
		 WHOLE,
		 .pauses = true,
		 .deadlines = true,
		 .stages = true,
		 .max_steps = 2},
		{.policy = "default",
		 WHOLE,
		 .exclusive = true,
		 .pauses = true,
		 .deadlines = true,
		 .stages = true,
		 .max_steps = 2},
	};

	/* What two paused models do to each other shows in one run of thousands. */
	uint64_t seeds = getenv("CTN_LONG") ? 1000 : 40;

	for (size_t i = 0; i < CTN_ARRAY_LEN(modes); i++) {
		uint32_t drops = 0, tails = 0, cancels = 0, ahead = 0;
		uint32_t pauses = 0, late = 0, stages = 0, host_drops = 0, preemptions = 0;

		for (uint64_t seed = 1; seed <= seeds; seed++) {
			struct world w;

			random_run(&modes[i], seed, &w);
			drops += w.drops;
			tails += w.tails;
			cancels += w.cancels;
			ahead += w.loads_ahead;
			pauses += w.pauses;
			late += w.late;
			stages += w.stages;
			host_drops += w.host_drops;
			preemptions += w.preemptions;
		}
		/* The run has seen what it is about. */
		CU_ASSERT(drops + tails > 100);
		CU_ASSERT_EQUAL(tails > 0, modes[i].parts);
		CU_ASSERT_EQUAL(pauses > 0, modes[i].pauses);
		CU_ASSERT_EQUAL(late > 0, modes[i].deadlines);
		CU_ASSERT_EQUAL(stages > 0, modes[i].stages);
		CU_ASSERT_EQUAL(host_drops > 0, modes[i].stages);
		CU_ASSERT(!modes[i].grows || preemptions > 0);
		CU_ASSERT_EQUAL(ahead > 0, modes[i].cancels && modes[i].pool_known);
		CU_ASSERT_EQUAL(cancels > 0, modes[i].cancels && modes[i].pool_known);
	}
}

CTN_TESTS("sched_policies", CTN_TEST(test_random_events_under_every_policy))
