// SPDX-License-Identifier: MIT
/* Models: from a folder to workers, claims and decoders; and what they hold on the devices. */
#include "engine/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* ---- registration ----------------------------------------------------------------------- */

/* Devices by rank: as given, or 0, 1, ... */
static int place(struct engine_model *m, const struct ctn_model_spec *spec, struct ctn_err *err)
{
	uint32_t ranks = m->tp * m->pp, have = m->engine->cfg.device_count;

	if (spec->devices && spec->device_count != ranks)
		return ctn_err_set(err, -EINVAL, "devices: expected %u (tp %u x pp %u), found %u",
				   ranks, m->tp, m->pp, spec->device_count);
	if (!spec->devices && ranks > have)
		return ctn_err_set(err, -EINVAL, "tp %u x pp %u needs %u devices, there are %u",
				   m->tp, m->pp, ranks, have);
	m->devices = calloc(ranks, sizeof(*m->devices));
	m->kept_layers = calloc(ranks, sizeof(*m->kept_layers));
	if (!m->devices || !m->kept_layers)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t r = 0; r < ranks; r++) {
		m->devices[r] = spec->devices ? spec->devices[r] : r;
		if (m->devices[r] >= have)
			return ctn_err_set(err, -EINVAL, "devices: expected 0 to %u, found %u",
					   have - 1, m->devices[r]);
	}
	return 0;
}

static void set_limits(struct engine_model *m)
{
	const struct ctn_engine_config *cfg = &m->engine->cfg;
	uint32_t longest = m->ckpt->arch.max_positions;

	m->limits.max_sequences = cfg->max_sequences;
	m->limits.max_tokens = CTN_MAX(cfg->step_tokens, cfg->max_sequences);
	m->limits.max_rows = cfg->max_sequences;
	m->limits.max_blocks = cfg->max_sequences * ((longest + CTN_KV_BLOCK - 1) / CTN_KV_BLOCK);
}

static int add_group(struct engine_model *m, uint32_t size)
{
	struct rank_group *g = &m->groups[m->group_count];

	g->ends = calloc(size, sizeof(*g->ends));
	if (!g->ends)
		return -ENOMEM;
	m->group_count++;
	return ctn_comm_local_new(size, ctn_decoder_comm_floats(m->plan, &m->limits), g->ends,
				  &g->group);
}

/* Ranks of one stage reduce with each other; ranks of one tp position hand activations on. */
static int make_groups(struct engine_model *m, struct ctn_err *err)
{
	uint32_t tp_groups = m->tp > 1 ? m->pp : 0, pp_groups = m->pp > 1 ? m->tp : 0;
	int rc = 0;

	m->groups = calloc(CTN_MAX(tp_groups + pp_groups, 1u), sizeof(*m->groups));
	if (!m->groups)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < tp_groups && rc == 0; i++)
		rc = add_group(m, m->tp);
	for (uint32_t i = 0; i < pp_groups && rc == 0; i++)
		rc = add_group(m, m->pp);
	return rc ? ctn_err_set(err, rc, "communication: %s", strerror(-rc)) : 0;
}

/* Most blocks that a rank's device could hold if it held nothing else: addresses for more are
 * of no use. */
static uint32_t most_blocks(const struct engine_model *m, uint32_t rank, uint64_t block_bytes)
{
	const struct ctn_engine *e = m->engine;
	uint64_t mem = ctn_device_props(e->devices[m->devices[rank]])->mem_bytes;

	return (uint32_t)CTN_MIN((uint64_t)m->limits.max_blocks, mem / CTN_MAX(block_bytes, 1ull));
}

static int make_worker(struct engine_model *m, uint32_t r, struct ctn_err *err)
{
	struct rank_worker *w = &m->workers[r];
	const struct ctn_rank_plan *rank = &m->plan->ranks[r];
	struct ctn_engine *e = m->engine;
	struct ctn_device *dev = e->devices[m->devices[r]];
	struct ctn_decoder_config cfg = {
		.plan = m->plan, .rank = r, .dev = dev, .limits = m->limits};
	uint32_t vocab = m->ckpt->arch.vocab, blocks;
	int rc;

	w->model = m;
	w->rank = r;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	w->workspace_bytes = ctn_decoder_workspace(m->plan, r, &m->limits);
	w->kv_block_bytes = ctn_kv_block_floats(m->plan, r) * sizeof(float);
	blocks = most_blocks(m, r, w->kv_block_bytes);
	if (r == 0 || blocks < m->free_block_cap)
		m->free_block_cap = blocks;
	rc = ctn_stream_new(dev, &w->stream);
	if (rc == 0)
		rc = ctn_claim_new(e->pager, m->devices[r], CTN_CLAIM_WORKSPACE, w->workspace_bytes,
				   &w->workspace);
	if (rc == 0)
		rc = ctn_claim_new(e->pager, m->devices[r], CTN_CLAIM_KV,
				   w->kv_block_bytes * CTN_MAX(blocks, 1u), &w->kv);
	if (rc)
		return ctn_err_set(err, rc, "no addresses for workspace and KV: %s", strerror(-rc));
	if (rank->pp_rank == m->pp - 1 && rank->tp_rank == 0) {
		w->logits = malloc((size_t)m->limits.max_rows * vocab * sizeof(float));
		w->scratch = malloc(ctn_sample_scratch(vocab));
		if (!w->logits || !w->scratch)
			return ctn_err_set(err, -ENOMEM, "out of memory for logits");
	}
	if (m->tp > 1)
		cfg.tp = m->groups[rank->pp_rank].ends[rank->tp_rank];
	if (m->pp > 1)
		cfg.pp = m->groups[(m->tp > 1 ? m->pp : 0) + rank->tp_rank].ends[rank->pp_rank];
	cfg.pieces = ctn_pager_pieces(e->pager, m->pager_id, r);
	cfg.workspace = ctn_claim_addr(w->workspace);
	cfg.kv = ctn_claim_addr(w->kv);
	return ctn_decoder_new(&cfg, &w->decoder, err);
}

/* Of all ranks, one after the other. To be freed. */
static uint64_t *layer_bytes(const struct engine_model *m)
{
	uint32_t count = 0, n = 0;
	uint64_t *bytes;

	for (uint32_t r = 0; r < m->plan->rank_count; r++)
		count += m->plan->ranks[r].layer_count;
	bytes = calloc(count, sizeof(*bytes));
	for (uint32_t r = 0; bytes && r < m->plan->rank_count; r++) {
		for (uint32_t i = 0; i < m->plan->ranks[r].layer_count; i++)
			bytes[n++] = ctn_pager_layer_bytes(m->engine->pager, m->pager_id, r, i);
	}
	return bytes;
}

/* Tells sched what the model charges; refused there when it fits no empty device. */
static int tell_sched(struct engine_model *m, struct ctn_err *err)
{
	struct ctn_engine *e = m->engine;
	struct ctn_sched_rank *ranks = calloc(m->plan->rank_count, sizeof(*ranks));
	uint64_t *layers = layer_bytes(m), *next = layers;
	struct ctn_sched_model model = {.rank_count = m->plan->rank_count,
					.ranks = ranks,
					.priority = m->priority,
					.host_bytes = ctn_pager_host_bytes(e->pager, m->pager_id),
					.max_sequences = m->limits.max_sequences};
	int rc;

	if (!ranks || !layers) {
		free(ranks);
		free(layers);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		uint64_t granule = ctn_device_props(e->devices[m->devices[r]])->granule;

		ranks[r].device = m->devices[r];
		ranks[r].weight_bytes = ctn_pager_rank_bytes(e->pager, m->pager_id, r);
		ranks[r].workspace_bytes = ctn_align_up(m->workers[r].workspace_bytes, granule);
		ranks[r].kv_block_bytes = m->workers[r].kv_block_bytes;
		ranks[r].stage = m->plan->ranks[r].pp_rank;
		ranks[r].layer_bytes = next;
		ranks[r].layer_count = m->plan->ranks[r].layer_count;
		next += ranks[r].layer_count;
	}
	rc = ctn_sched_add_model(e->sched, &model, err);
	if (rc == 0)
		decisions_model(e->decisions, m->name, &model);
	free(layers);
	free(ranks);
	return rc;
}

int model_open(struct engine_model *m, const struct ctn_model_spec *spec, struct ctn_err *err)
{
	struct ctn_engine *e = m->engine;
	int rc;

	m->tp = spec->tp ? spec->tp : 1;
	m->pp = spec->pp ? spec->pp : 1;
	m->priority = spec->priority;
	rc = ctn_checkpoint_open(spec->dir, &m->ckpt, err);
	if (rc)
		return rc;
	rc = ctn_plan_build(m->ckpt, m->tp, m->pp, &m->plan, err);
	if (rc)
		return rc;
	rc = place(m, spec, err);
	if (rc)
		return rc;
	rc = ctn_pager_add_model(e->pager, m->plan, m->devices, err);
	if (rc < 0)
		return rc;
	m->pager_id = (uint32_t)rc;
	set_limits(m);
	rc = make_groups(m, err);
	if (rc)
		return rc;
	m->workers = calloc(m->plan->rank_count, sizeof(*m->workers));
	if (!m->workers)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		rc = make_worker(m, r, err);
		if (rc)
			return rc;
	}
	m->host_changes = UINT64_MAX; /* nobody has looked */
	m->free_blocks = calloc(CTN_MAX(m->free_block_cap, 1u), sizeof(*m->free_blocks));
	if (!m->free_blocks)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	return tell_sched(m, err);
}

static void close_worker(struct rank_worker *w)
{
	worker_stop(w);
	ctn_decoder_free(w->decoder);
	ctn_claim_free(w->workspace);
	ctn_claim_free(w->kv);
	if (w->stream)
		ctn_stream_free(w->stream);
	free(w->logits);
	free(w->scratch);
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->changed);
}

/* Closes what runs; checkpoint and plan stay until the pager, which reads them, is gone. */
void model_close(struct engine_model *m)
{
	for (uint32_t r = 0; m->workers && r < m->plan->rank_count; r++) {
		if (m->workers[r].model)
			close_worker(&m->workers[r]);
	}
	free(m->workers);
	m->workers = NULL;
	for (uint32_t i = 0; i < m->group_count; i++) {
		if (m->groups[i].group)
			ctn_comm_group_free(m->groups[i].group);
		free(m->groups[i].ends);
	}
	free(m->groups);
	m->groups = NULL;
	m->group_count = 0;
	free(m->free_blocks);
	m->free_blocks = NULL;
}

/* ---- on the devices --------------------------------------------------------------------- */

/* All the memory that a step of the model needs but KV, and the weights on their way. */
int model_reserve(struct engine_model *m, uint64_t ticket, struct ctn_err *err)
{
	int rc;

	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		struct rank_worker *w = &m->workers[r];

		rc = worker_start(w);
		if (rc)
			return ctn_err_set(err, rc, "no thread for rank %u: %s", r, strerror(-rc));
		rc = ctn_claim_resize(w->workspace, w->workspace_bytes);
		if (rc)
			return ctn_err_set(err, rc, "no workspace for rank %u: %s", r,
					   strerror(-rc));
	}
	m->reserved = true;
	m->loading = true;
	rc = ctn_pager_load(m->engine->pager, m->pager_id, ticket, err);
	if (rc)
		m->loading = false;
	return rc;
}

/* The blocks of all sequences lie below `blocks` then; those that did not are given up. */
static void shrink_kv(struct engine_model *m, uint32_t blocks)
{
	struct ctn_request *req;
	uint32_t kept = 0;

	DL_FOREACH2(m->batch, req, batch_next)
	{
		for (uint32_t i = 0; i < req->block_count; i++) {
			if (req->blocks[i] >= blocks) {
				batch_forget(req);
				break;
			}
		}
	}
	for (uint32_t i = 0; i < m->free_block_count; i++) {
		if (m->free_blocks[i] < blocks)
			m->free_blocks[kept++] = m->free_blocks[i];
	}
	m->free_block_count = kept;
	m->kv_budget = blocks;
}

int model_set_kv(struct engine_model *m, uint32_t blocks)
{
	if (blocks > m->free_block_cap)
		return -ENOSPC;
	if (blocks < m->kv_budget)
		shrink_kv(m, blocks);
	for (uint32_t r = 0; r < m->plan->rank_count; r++) {
		int rc = ctn_claim_resize(m->workers[r].kv, m->workers[r].kv_block_bytes * blocks);

		if (rc)
			return rc;
	}
	for (; m->kv_budget < blocks; m->kv_budget++)
		m->free_blocks[m->free_block_count++] = m->kv_budget;
	return 0;
}

void model_leave(struct engine_model *m)
{
	CTN_ASSERT(!m->job);
	for (uint32_t r = 0; r < m->plan->rank_count; r++)
		ctn_claim_resize(m->workers[r].workspace, 0);
	m->reserved = false;
	if (m->batch)
		return;
	CTN_ASSERT(m->free_block_count == m->kv_budget);
	model_set_kv(m, 0); /* to give memory back cannot fail */
}
