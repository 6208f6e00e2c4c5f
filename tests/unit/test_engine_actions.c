// SPDX-License-Identifier: MIT
/*
 * The engine under a scheduler that nobody would want: models are dropped between any two steps, in
 * part or whole, with the requests that run; these are sent back to the queue; loads are cancelled;
 * the pool loses models, and gets them back ahead of requests, or while they are loaded; KV budgets
 * shrink to what is in use. Every answer has to be right all the same.
 *
 * This program has its own ctn_sched_*, which take the place of the library's.
 */
#include "ckpt_files.h"
#include "engine_fixture.h"
#include "sched/sched.h"

#define MAX_SLOTS 64
#define MAX_RANKS 16

enum { FREE, QUEUED, ADMITTED };

struct fake_request {
	int state;
	uint32_t model, blocks;
	bool no_step, in_step;
};

struct fake_model {
	enum ctn_sched_state state;
	uint64_t host_bytes;
	uint32_t rank_count, layers[MAX_RANKS];
	bool stepping, cancelling;
	uint32_t budget;
};

struct ctn_sched {
	struct fake_model models[8];
	uint32_t model_count;
	bool staging;
	struct fake_request requests[MAX_SLOTS];
	uint64_t seed, wake_ns, ticket;
	struct ctn_sched_action *actions;
	uint32_t count, max;
};

static uint64_t fake_seed = 1;
static uint32_t drops, tails, preemptions, cancels, shrinks, stages; /* that happened */

int ctn_sched_new(const struct ctn_sched_config *cfg, struct ctn_sched **sched, struct ctn_err *err)
{
	CU_ASSERT(cfg->partial_drops && cfg->pauses && cfg->cancels);
	*sched = calloc(1, sizeof(**sched));
	(*sched)->seed = fake_seed;
	(*sched)->wake_ns = UINT64_MAX;
	return 0;
}

void ctn_sched_free(struct ctn_sched *s)
{
	free(s);
}

int ctn_sched_add_model(struct ctn_sched *s, const struct ctn_sched_model *model,
			struct ctn_err *err)
{
	struct fake_model *m = &s->models[s->model_count++];

	m->rank_count = model->rank_count;
	m->host_bytes = model->host_bytes;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint64_t sum = 0;

		m->layers[r] = model->ranks[r].layer_count;
		for (uint32_t i = 0; i < m->layers[r]; i++)
			sum += model->ranks[r].layer_bytes[i];
		CU_ASSERT_EQUAL(sum, model->ranks[r].weight_bytes);
	}
	return 0;
}

uint64_t ctn_sched_wake_ns(const struct ctn_sched *s)
{
	return s->wake_ns;
}

bool ctn_sched_more(const struct ctn_sched *s)
{
	return false;
}

void ctn_sched_model_state(const struct ctn_sched *s, uint32_t model,
			   struct ctn_sched_model_state *state)
{
	*state = (struct ctn_sched_model_state){.state = s->models[model].state};
}

int ctn_sched_share(struct ctn_sched *s, uint32_t model, uint32_t rank, uint32_t layer,
		    uint32_t frame, uint64_t bytes)
{
	CTN_ASSERT(layer < s->models[model].layers[rank]);
	return 0;
}

uint64_t ctn_sched_charged(const struct ctn_sched *s, uint32_t device)
{
	return 0;
}

static bool chance(struct ctn_sched *s, uint32_t percent)
{
	return gen_random(&s->seed) % 100 < percent;
}

static struct ctn_sched_action *emit(struct ctn_sched *s, enum ctn_sched_action_type type,
				     uint32_t model)
{
	struct ctn_sched_action *a = &s->actions[s->count++];

	CTN_ASSERT(s->count <= s->max);
	*a = (struct ctn_sched_action){.type = type, .model = model};
	return a;
}

struct sums {
	uint32_t queued, admitted, blocks, steps;
};

static struct sums sums_of(const struct ctn_sched *s, uint32_t model)
{
	struct sums n = {0};

	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		const struct fake_request *q = &s->requests[i];

		if (q->model != model || q->state == FREE)
			continue;
		n.queued += q->state == QUEUED;
		if (q->state != ADMITTED)
			continue;
		n.admitted++;
		n.blocks += q->blocks;
		n.steps += !q->no_step;
	}
	return n;
}

static void set_budget(struct ctn_sched *s, uint32_t model, uint32_t blocks)
{
	shrinks += blocks < s->models[model].budget && blocks;
	s->models[model].budget = blocks;
	emit(s, CTN_ACT_KV_BUDGET, model)->blocks = blocks;
}

static void preempt_some(struct ctn_sched *s, uint32_t model)
{
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		struct fake_request *q = &s->requests[i];

		if (q->model != model || q->state != ADMITTED || q->in_step || !chance(s, 20))
			continue;
		q->state = QUEUED;
		emit(s, CTN_ACT_PREEMPT, model)->request = i;
		preemptions++;
	}
}

static void leave(struct ctn_sched *s, uint32_t model)
{
	s->models[model].state = CTN_SCHED_ABSENT;
	if (!sums_of(s, model).admitted)
		s->models[model].budget = 0;
}

static void drop_some(struct ctn_sched *s, uint32_t model)
{
	struct fake_model *m = &s->models[model];
	uint32_t with = sums_of(s, model).admitted > 0;

	if (chance(s, 40)) {
		emit(s, CTN_ACT_DROP, model);
		drops += with;
	} else {
		for (uint32_t r = 0; r < m->rank_count; r++) {
			struct ctn_sched_action *a;

			if (r && chance(s, 50))
				continue;
			a = emit(s, CTN_ACT_DROP_TAIL, model);
			a->rank = r;
			a->layers = (uint32_t)(gen_random(&s->seed) % m->layers[r]);
			tails += with;
		}
	}
	leave(s, model);
}

static void admit_some(struct ctn_sched *s, uint32_t model)
{
	for (uint32_t i = 0; i < MAX_SLOTS; i++) {
		struct fake_request *q = &s->requests[i];
		struct sums n = sums_of(s, model);

		if (q->model != model || q->state != QUEUED || n.admitted == 8)
			continue;
		if (n.blocks + q->blocks > s->models[model].budget)
			set_budget(s, model, n.blocks + q->blocks);
		q->state = ADMITTED;
		emit(s, CTN_ACT_ADMIT, model)->request = i;
	}
}

static void decide_model(struct ctn_sched *s, uint32_t model)
{
	struct fake_model *m = &s->models[model];
	struct sums n = sums_of(s, model);

	if (m->state == CTN_SCHED_LOADING && !m->cancelling && !n.queued && !n.admitted &&
	    chance(s, 50)) {
		m->cancelling = true;
		emit(s, CTN_ACT_CANCEL, model);
		cancels++;
	}
	if (m->state == CTN_SCHED_RESIDENT && !m->stepping) {
		if (chance(s, 10))
			preempt_some(s, model);
		if (chance(s, 10))
			drop_some(s, model);
	}
	if (m->state == CTN_SCHED_ABSENT && (n.queued || n.admitted) && chance(s, 70)) {
		m->state = CTN_SCHED_LOADING;
		emit(s, CTN_ACT_LOAD, model)->ticket = ++s->ticket;
		set_budget(s, model, sums_of(s, model).blocks);
	}
	if (m->state == CTN_SCHED_ABSENT)
		return;
	admit_some(s, model);
	if (m->stepping || !sums_of(s, model).steps || !chance(s, 90))
		return;
	m->stepping = true;
	for (uint32_t i = 0; i < MAX_SLOTS; i++)
		s->requests[i].in_step |=
			s->requests[i].model == model && s->requests[i].state == ADMITTED;
	emit(s, CTN_ACT_STEP, model);
}

/* Of any model, whatever becomes of it meanwhile. */
static void stage_some(struct ctn_sched *s)
{
	uint32_t model = (uint32_t)(gen_random(&s->seed) % s->model_count);

	if (s->staging || !chance(s, 10))
		return;
	emit(s, CTN_ACT_DROP_HOST, model)->bytes = chance(s, 50) ? UINT64_MAX : 1;
	emit(s, CTN_ACT_STAGE, model)->bytes = chance(s, 50) ? s->models[model].host_bytes : 1;
	s->staging = true;
	stages++;
}

static void take_in(struct ctn_sched *s, const struct ctn_sched_event *ev)
{
	struct fake_model *m = &s->models[ev->model];
	struct fake_request *q = &s->requests[ev->request];

	switch (ev->type) {
	case CTN_EV_ARRIVAL:
		CTN_ASSERT(ev->request < MAX_SLOTS && q->state == FREE);
		*q = (struct fake_request){.state = QUEUED,
					   .model = ev->model,
					   .blocks = ev->kv_blocks,
					   .no_step = ev->no_step};
		break;
	case CTN_EV_REQUEST_DONE: {
		uint32_t model = q->model;

		*q = (struct fake_request){0};
		m = &s->models[model];
		if (m->state == CTN_SCHED_ABSENT && m->budget && !sums_of(s, model).admitted)
			set_budget(s, model, 0);
		break;
	}
	case CTN_EV_LOAD_DONE:
		m->state = CTN_SCHED_RESIDENT;
		m->cancelling = false;
		break;
	case CTN_EV_LOAD_CANCELLED:
		CTN_ASSERT(m->cancelling);
		CU_ASSERT_PTR_NOT_NULL(ev->kept_layers);
		for (uint32_t r = 0; r < m->rank_count; r++)
			CU_ASSERT(ev->kept_layers[r] <= m->layers[r]);
		m->cancelling = false;
		leave(s, ev->model);
		break;
	case CTN_EV_LOAD_FAILED:
		CU_FAIL("a load has failed");
		leave(s, ev->model);
		break;
	case CTN_EV_STAGE_DONE:
		CTN_ASSERT(s->staging);
		CU_ASSERT(ev->bytes <= m->host_bytes);
		s->staging = false;
		break;
	case CTN_EV_STEP_DONE:
		CTN_ASSERT(m->stepping);
		m->stepping = false;
		for (uint32_t i = 0; i < MAX_SLOTS; i++)
			s->requests[i].in_step &= s->requests[i].model != ev->model;
		break;
	case CTN_EV_EVICT:
		if (m->state == CTN_SCHED_RESIDENT) {
			emit(s, CTN_ACT_DROP, ev->model);
			leave(s, ev->model);
		}
		break;
	default:
		break;
	}
}

uint32_t ctn_sched_event(struct ctn_sched *s, uint64_t now_ns, const struct ctn_sched_event *ev,
			 struct ctn_sched_action *actions, uint32_t max)
{
	bool waits = false;

	s->actions = actions;
	s->count = 0;
	s->max = max;
	if (ev->type == CTN_EV_HOST_NEED) {
		for (uint32_t i = 0; i < s->model_count && s->count < max; i++)
			emit(s, CTN_ACT_DROP_HOST, i)->bytes = ev->host_evictable[i];
		return s->count;
	}
	take_in(s, ev);
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct sums n;

		decide_model(s, i);
		n = sums_of(s, i);
		waits |= n.queued || n.admitted;
	}
	stage_some(s);
	/* What chance has put off is looked at again. */
	s->wake_ns = waits ? now_ns + 500000 : UINT64_MAX;
	return s->count;
}

/* ---- tests ------------------------------------------------------------------------------- */

#define CLIENTS 6

struct client {
	struct rig *rig;
	uint64_t seed;
	uint32_t wrong, right;
};

/* Greedy answers, scored prompts, and requests that go away. */
static void one_request(struct client *c)
{
	uint32_t model = (uint32_t)(gen_random(&c->seed) % MODELS);
	const struct golden *g = &c->rig->golden[model];
	uint32_t from = 1 + (uint32_t)(gen_random(&c->seed) % 40);
	uint32_t to = from + (uint32_t)(gen_random(&c->seed) % (g->count - from));
	bool score = gen_random(&c->seed) % 4 == 0, leaves = gen_random(&c->seed) % 5 == 0;
	struct ctn_request_params params = {.model = model,
					    .prompt = g->ids,
					    .prompt_len = from,
					    .max_tokens = to - from,
					    .prompt_logprobs = score,
					    .sampling = {.top_p = 1}};
	struct ctn_sample tokens[512];
	struct ctn_request_result result;
	struct ctn_request *req;
	uint64_t sum = 0;
	uint32_t n;

	if (ctn_engine_submit(c->rig->engine, &params, &req, NULL, NULL)) {
		c->wrong++;
		return;
	}
	if (leaves) {
		usleep((useconds_t)(gen_random(&c->seed) % 20000));
		ctn_request_release(req);
		return;
	}
	n = collect(req, tokens, 512, &result);
	for (uint32_t i = 0; i < n && i < to - from; i++)
		c->wrong += tokens[i].id != g->ids[from + i];
	c->wrong += n != to - from || result.finish != CTN_FINISH_LENGTH;
	if (c->wrong)
		printf("# model %u, tokens %u to %u: finish %d after %u: %s\n", model, from, to,
		       result.finish, n, result.err.msg);
	for (uint32_t i = 1; score && i < from; i++) {
		const struct ctn_sample *s = ctn_request_prompt_score(req, i);

		c->wrong += !s || s->id != g->ids[i] || !(s->logprob <= 0);
	}
	for (int i = 0; i < CTN_PHASES; i++)
		sum += result.phase_ns[i];
	c->wrong += sum != result.total_ns;
	c->right++;
	ctn_request_release(req);
}

static void *client_main(void *arg)
{
	struct client *c = arg;
	uint64_t end = ctn_now_ns() + 2 * CTN_NSEC_PER_SEC;

	while (ctn_now_ns() < end)
		one_request(c);
	return NULL;
}

static void storm(const char *device, uint32_t tp, uint32_t pp, uint64_t seed)
{
	struct client clients[CLIENTS];
	pthread_t threads[CLIENTS];
	struct rig rig;

	fake_seed = seed;
	rig_open(&rig, device, "thp", tp, pp, 0);
	rig_start(&rig);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		clients[i] = (struct client){.rig = &rig, .seed = seed * 100 + i};
		pthread_create(&threads[i], NULL, client_main, &clients[i]);
	}
	for (uint32_t i = 0; i < CLIENTS; i++) {
		pthread_join(threads[i], NULL);
		CU_ASSERT_EQUAL(clients[i].wrong, 0);
		CU_ASSERT(clients[i].right > 0);
	}
	expect_clean_books(&rig);
	rig_close(&rig);
}

static void test_pauses_and_tails_change_no_answer(void)
{
	drops = tails = preemptions = cancels = shrinks = stages = 0;
	storm("host,mem=64M,link=100M", 1, 1, 1);
	storm("host:4,mem=64M,link=100M", 2, 2, 2);
	storm("host:2,mem=64M", 1, 2, 3);
	/* All of it has happened. */
	CU_ASSERT(drops > 0 && tails > 0 && preemptions > 0 && shrinks > 0 && stages > 0);
	printf("# %u drops and %u tails under way, %u pre-emptions, %u cancels, %u shrinks, "
	       "%u stages ahead\n",
	       drops, tails, preemptions, cancels, shrinks, stages);
}

CTN_TESTS("engine_actions", CTN_TEST(test_pauses_and_tails_change_no_answer))
