// SPDX-License-Identifier: MIT
#include "bench_ranks.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum gate { GATE_CLOSED, GATE_OPEN, GATE_OVER };

struct rank {
	struct ctn_bench_ranks *all;
	uint32_t index;
	struct ctn_stream *stream;
	struct ctn_claim *workspace, *kv;
	struct ctn_decoder *decoder;
	struct ctn_rank_times times;
	pthread_t thread;
	int rc;
	struct ctn_err err;
};

struct ctn_bench_ranks {
	struct ctn_bench_rig *rig;
	const struct ctn_bench_side *side;
	const struct ctn_plan *plan;
	struct ctn_limits limits;
	struct ctn_step *step;
	struct rank rank[CTN_MAX_DEVICES];
	/* tp groups by pipeline stage, then pp groups by tensor-parallel rank. */
	struct ctn_comm_group *groups[2 * CTN_MAX_DEVICES];
	uint32_t group_count;
	struct ctn_comm *tp[CTN_MAX_DEVICES], *pp[CTN_MAX_DEVICES]; /* by rank */
	float *logits;
	void *scratch;
	uint32_t token;
	uint64_t token_ns;
	struct ctn_bench_observer observer;
	enum ctn_ranks_work work;
	uint32_t threads;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum gate gate; /* lock */
};

/* ---- work ------------------------------------------------------------------------------- */

static int wait_layer(void *arg, uint32_t layer, struct ctn_stream *stream)
{
	struct rank *r = arg;
	uint32_t i = layer - r->all->plan->ranks[r->index].first_layer;
	int rc;

	r->times.asked[i] = ctn_now_ns();
	rc = ctn_pager_wait_layer(r->all->rig->pager, r->all->side->model, r->index, layer, stream);
	if (rc == 0)
		r->times.ready[i] = ctn_now_ns();
	return rc;
}

static int wait_for_all(struct rank *r)
{
	const struct ctn_rank_plan *plan = &r->all->plan->ranks[r->index];
	int rc = 0;

	for (uint32_t i = 0; i < plan->layer_count && rc == 0; i++)
		rc = wait_layer(r, plan->first_layer + i, r->stream);
	return rc;
}

/* Greedy, from the row of the prompt's last token. */
static int sample(struct ctn_bench_ranks *all)
{
	static const struct ctn_sampling greedy = {.top_p = 1};
	struct ctn_sample token;
	int rc = ctn_sample_token(all->logits, all->plan->ckpt->arch.vocab, &greedy,
				  all->limits.max_tokens - 1, all->scratch, &token);

	all->token = token.id;
	all->token_ns = ctn_now_ns();
	return rc;
}

static int compute(struct rank *r)
{
	struct ctn_bench_ranks *all = r->all;
	const struct ctn_rank_plan *plan = &all->plan->ranks[r->index];
	bool last = plan->pp_rank == all->plan->pp - 1 && plan->tp_rank == 0;
	int rc = ctn_decoder_forward(r->decoder, r->stream, all->step, wait_layer, r,
				     last ? all->logits : NULL, &r->err);

	if (rc == 0 && last)
		rc = sample(all);
	/* The others must not wait for this one. */
	for (uint32_t i = 0; i < all->group_count && rc; i++)
		ctn_comm_abort(all->groups[i], rc);
	return rc;
}

static bool wait_for_gate(struct ctn_bench_ranks *all)
{
	bool open;

	pthread_mutex_lock(&all->lock);
	while (all->gate == GATE_CLOSED)
		pthread_cond_wait(&all->changed, &all->lock);
	open = all->gate == GATE_OPEN;
	pthread_mutex_unlock(&all->lock);
	return open;
}

static void set_gate(struct ctn_bench_ranks *all, enum gate gate)
{
	pthread_mutex_lock(&all->lock);
	/* Once open, a gate is open for those who come late. */
	if (all->gate == GATE_CLOSED || gate == GATE_CLOSED)
		all->gate = gate;
	pthread_cond_broadcast(&all->changed);
	pthread_mutex_unlock(&all->lock);
}

static void *rank_main(void *arg)
{
	struct rank *r = arg;

	if (!wait_for_gate(r->all))
		return NULL;
	r->rc = r->all->work == CTN_RANKS_STEP ? compute(r) : wait_for_all(r);
	r->times.end = ctn_now_ns();
	return NULL;
}

static void join(struct ctn_bench_ranks *all)
{
	set_gate(all, GATE_OVER);
	while (all->threads > 0)
		pthread_join(all->rank[--all->threads].thread, NULL);
}

static void begin(void *arg, const struct ctn_bench_side *side, uint64_t since)
{
	(void)side;
	(void)since;
	set_gate(arg, GATE_OPEN);
}

static void end(void *arg)
{
	join(arg);
}

static int start(struct ctn_bench_ranks *all, enum ctn_ranks_work work, struct ctn_err *err)
{
	int rc = 0;

	all->work = work;
	all->token_ns = 0;
	set_gate(all, GATE_CLOSED);
	for (uint32_t i = 0; i < all->group_count; i++)
		ctn_comm_reset(all->groups[i]);
	for (uint32_t i = 0; i < all->plan->rank_count && rc == 0; i++) {
		struct rank *r = &all->rank[i];

		for (uint32_t k = 0; k < all->plan->ranks[i].layer_count; k++)
			r->times.asked[k] = r->times.ready[k] = 0;
		r->times.end = 0;
		r->rc = -ECANCELED; /* unless it comes to work */
		r->err = (struct ctn_err){0};
		rc = -pthread_create(&r->thread, NULL, rank_main, r);
		all->threads += rc == 0;
	}
	if (rc == 0)
		return 0;
	join(all);
	return ctn_err_set(err, rc, "no thread for a rank: %s", strerror(-rc));
}

int ctn_bench_ranks_arm(struct ctn_bench_ranks *all, enum ctn_ranks_work work, struct ctn_err *err)
{
	int rc = start(all, work, err);

	if (rc == 0)
		all->rig->observer = &all->observer;
	return rc;
}

int ctn_bench_ranks_step(struct ctn_bench_ranks *all, struct ctn_err *err)
{
	int rc = start(all, CTN_RANKS_STEP, err);

	if (rc)
		return rc;
	ctn_pager_use(all->rig->pager, all->side->model);
	set_gate(all, GATE_OPEN);
	join(all);
	ctn_pager_unuse(all->rig->pager, all->side->model);
	return ctn_bench_ranks_result(all, err);
}

int ctn_bench_ranks_result(const struct ctn_bench_ranks *all, struct ctn_err *err)
{
	for (uint32_t i = 0; i < all->plan->rank_count; i++) {
		const struct rank *r = &all->rank[i];

		if (r->rc)
			return ctn_err_set(err, r->rc, "rank %u: %s", i,
					   r->err.code ? r->err.msg : strerror(-r->rc));
	}
	return 0;
}

const struct ctn_rank_times *ctn_bench_ranks_times(const struct ctn_bench_ranks *all, uint32_t rank)
{
	return &all->rank[rank].times;
}

uint32_t ctn_bench_ranks_token(const struct ctn_bench_ranks *all, uint64_t *ns)
{
	*ns = all->token_ns;
	return all->token;
}

/* ---- opening and closing ---------------------------------------------------------------- */

/* One sequence, all of its prompt, a row for its last token. */
static int make_step(struct ctn_bench_ranks *all, uint32_t tokens)
{
	uint32_t blocks = (tokens + CTN_KV_BLOCK - 1) / CTN_KV_BLOCK;
	uint32_t vocab = all->plan->ckpt->arch.vocab;

	all->limits = (struct ctn_limits){
		.max_tokens = tokens, .max_sequences = 1, .max_blocks = blocks, .max_rows = 1};
	all->step = ctn_step_new(tokens, 1, blocks, 1);
	all->logits = malloc(vocab * sizeof(float));
	all->scratch = malloc(ctn_sample_scratch(vocab));
	if (!all->step || !all->logits || !all->scratch)
		return -ENOMEM;
	for (uint32_t i = 0; i < tokens; i++) {
		all->step->ids[i] = i * 7 % vocab;
		all->step->positions[i] = i;
	}
	for (uint32_t i = 0; i < blocks; i++)
		all->step->block_table[i] = i;
	all->step->seq_start[0] = all->step->table_start[0] = 0;
	all->step->seq_start[1] = tokens;
	all->step->row_tokens[0] = tokens - 1;
	return 0;
}

static int make_groups(struct ctn_bench_ranks *all)
{
	const struct ctn_plan *plan = all->plan;
	uint64_t floats = ctn_decoder_comm_floats(plan, &all->limits);
	int rc = 0;

	for (uint32_t s = 0; plan->tp > 1 && s < plan->pp && rc == 0; s++) {
		rc = ctn_comm_local_new(plan->tp, floats, &all->tp[s * plan->tp],
					&all->groups[all->group_count]);
		all->group_count += rc == 0;
	}
	for (uint32_t t = 0; plan->pp > 1 && t < plan->tp && rc == 0; t++) {
		struct ctn_comm *ends[CTN_MAX_DEVICES];

		rc = ctn_comm_local_new(plan->pp, floats, ends, &all->groups[all->group_count]);
		all->group_count += rc == 0;
		for (uint32_t s = 0; s < plan->pp && rc == 0; s++)
			all->pp[s * plan->tp + t] = ends[s];
	}
	return rc;
}

static int claim(struct ctn_bench_ranks *all, uint32_t device, enum ctn_claim_kind kind,
		 uint64_t bytes, struct ctn_claim **claim)
{
	int rc = ctn_claim_new(all->rig->pager, device, kind, bytes, claim);

	return rc ? rc : ctn_claim_resize(*claim, bytes);
}

static int make_rank(struct ctn_bench_ranks *all, uint32_t index, struct ctn_err *err)
{
	struct ctn_decoder_config cfg = {.plan = all->plan,
					 .rank = index,
					 .dev = all->rig->devices[index],
					 .tp = all->tp[index],
					 .pp = all->pp[index],
					 .limits = all->limits};
	uint32_t layers = all->plan->ranks[index].layer_count;
	struct rank *r = &all->rank[index];
	int rc;

	r->all = all;
	r->index = index;
	r->times.asked = calloc(layers, sizeof(*r->times.asked));
	r->times.ready = calloc(layers, sizeof(*r->times.ready));
	rc = r->times.asked && r->times.ready ? 0 : -ENOMEM;
	if (rc == 0)
		rc = ctn_stream_new(cfg.dev, &r->stream);
	if (rc == 0)
		rc = claim(all, index, CTN_CLAIM_WORKSPACE,
			   ctn_decoder_workspace(all->plan, index, &all->limits), &r->workspace);
	if (rc == 0)
		rc = claim(all, index, CTN_CLAIM_KV,
			   CTN_MAX(all->limits.max_blocks * ctn_kv_block_floats(all->plan, index) *
					   sizeof(float),
				   (uint64_t)1),
			   &r->kv);
	if (rc)
		return ctn_err_set(err, rc, "no memory for a step on %s: %s",
				   ctn_device_props(cfg.dev)->id, strerror(-rc));
	cfg.workspace = ctn_claim_addr(r->workspace);
	cfg.kv = ctn_claim_addr(r->kv);
	cfg.pieces = ctn_pager_pieces(all->rig->pager, all->side->model, index);
	return ctn_decoder_new(&cfg, &r->decoder, err);
}

int ctn_bench_ranks_open(struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
			 uint32_t tokens, struct ctn_bench_ranks **ranks, struct ctn_err *err)
{
	struct ctn_bench_ranks *all = calloc(1, sizeof(*all));
	int rc;

	if (!all)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	all->rig = rig;
	all->side = side;
	all->plan = side->plan;
	all->observer = (struct ctn_bench_observer){begin, end, all};
	pthread_mutex_init(&all->lock, NULL);
	pthread_cond_init(&all->changed, NULL);
	rc = make_step(all, tokens);
	if (rc == 0)
		rc = make_groups(all);
	if (rc)
		ctn_err_set(err, rc, "no memory for a step: %s", strerror(-rc));
	for (uint32_t i = 0; i < all->plan->rank_count && rc == 0; i++)
		rc = make_rank(all, i, err);
	if (rc)
		ctn_bench_ranks_close(all);
	else
		*ranks = all;
	return rc;
}

void ctn_bench_ranks_close(struct ctn_bench_ranks *all)
{
	if (!all)
		return;
	for (uint32_t i = 0; i < all->plan->rank_count; i++) {
		struct rank *r = &all->rank[i];

		ctn_decoder_free(r->decoder);
		ctn_claim_free(r->workspace);
		ctn_claim_free(r->kv);
		if (r->stream)
			ctn_stream_free(r->stream);
		free(r->times.asked);
		free(r->times.ready);
	}
	for (uint32_t i = 0; i < all->group_count; i++)
		ctn_comm_group_free(all->groups[i]);
	ctn_step_free(all->step);
	pthread_mutex_destroy(&all->lock);
	pthread_cond_destroy(&all->changed);
	free(all->logits);
	free(all->scratch);
	free(all);
}
