// SPDX-License-Identifier: MIT
/* The decoder of one rank: its life, and the way of a step through the rank's layers. */
#include "model/decoder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* This rank's layers without embed and head. */
static uint32_t own_layers(const struct ctn_plan *plan, uint32_t rank)
{
	const struct ctn_rank_plan *r = &plan->ranks[rank];
	uint32_t first = CTN_MAX(r->first_layer, 1u);
	uint32_t end = CTN_MIN(r->first_layer + r->layer_count, plan->ckpt->arch.layers + 1);

	return end > first ? end - first : 0;
}

static uint64_t kv_layer_floats(const struct ctn_plan *plan, uint32_t rank)
{
	return 2ull * plan->ranks[rank].kv_head_count * CTN_KV_BLOCK * plan->ckpt->arch.head_dim;
}

uint64_t ctn_kv_block_floats(const struct ctn_plan *plan, uint32_t rank)
{
	return own_layers(plan, rank) * kv_layer_floats(plan, rank);
}

static int check_comm(const char *what, const struct ctn_comm *comm, uint32_t size, uint32_t rank,
		      struct ctn_err *err)
{
	if (comm ? ctn_comm_size(comm) == size && ctn_comm_rank(comm) == rank : size == 1)
		return 0;
	return ctn_err_set(err, -EINVAL, "%s group has rank %u of %u, expected %u of %u", what,
			   comm ? ctn_comm_rank(comm) : 0, comm ? ctn_comm_size(comm) : 1, rank,
			   size);
}

int ctn_decoder_new(const struct ctn_decoder_config *cfg, struct ctn_decoder **dec,
		    struct ctn_err *err)
{
	const struct ctn_arch *arch = &cfg->plan->ckpt->arch;
	const struct ctn_rank_plan *rank = &cfg->plan->ranks[cfg->rank];
	struct ctn_decoder *d;
	int rc;

	rc = check_comm("tensor-parallel", cfg->tp, cfg->plan->tp, rank->tp_rank, err);
	rc = rc ? rc : check_comm("pipeline", cfg->pp, cfg->plan->pp, rank->pp_rank, err);
	if (rc)
		return rc;
	d = calloc(1, sizeof(*d));
	if (!d)
		goto no_memory;
	d->cfg = *cfg;
	d->cfg.tp = cfg->plan->tp > 1 ? cfg->tp : NULL;
	d->cfg.pp = cfg->plan->pp > 1 ? cfg->pp : NULL;
	d->token_seq = malloc(((size_t)cfg->limits.max_tokens + 1) * sizeof(*d->token_seq));
	if (!d->token_seq)
		goto no_memory;
	if (arch->positions == CTN_POSITIONS_ROPE) {
		d->inv_freq = malloc((arch->head_dim / 2 + 1) * sizeof(float));
		if (!d->inv_freq)
			goto no_memory;
		ctn_rope_frequencies(&arch->rope, arch->head_dim, d->inv_freq);
	}
	d->arch = arch;
	d->rank = rank;
	d->kernels = ctn_device_kernels(cfg->dev);
	d->shape = (struct ctn_attention_shape){
		.heads = rank->head_count,
		.kv_heads = rank->kv_head_count,
		.head_dim = arch->head_dim,
		.qkv_stride = (rank->head_count + 2 * rank->kv_head_count) * arch->head_dim,
		.scale = arch->attn_scale,
	};
	d->kv = (struct ctn_kv_cache){
		.base = cfg->kv,
		.block_stride = ctn_kv_block_floats(cfg->plan, cfg->rank),
		.layer_stride = kv_layer_floats(cfg->plan, cfg->rank),
	};
	ctn_buffers_lay_out(cfg->plan, cfg->rank, &cfg->limits, cfg->workspace, &d->buf);
	*dec = d;
	return 0;

no_memory:
	ctn_decoder_free(d);
	return ctn_err_set(err, -ENOMEM, "no memory for the decoder of rank %u", cfg->rank);
}

void ctn_decoder_free(struct ctn_decoder *dec)
{
	if (!dec)
		return;
	free(dec->token_seq);
	free(dec->inv_freq);
	free(dec);
}

static int upload_words(struct ctn_stream *stream, void *dst, const void *src, uint64_t words)
{
	return words > 0 ? ctn_stream_upload(stream, dst, src, words * sizeof(uint32_t)) : 0;
}

static int upload_step(struct ctn_decoder *dec, struct ctn_stream *stream,
		       const struct ctn_step *step)
{
	const struct ctn_buffers *buf = &dec->buf;
	int rc;

	for (uint32_t s = 0; s < step->sequences; s++) {
		for (uint32_t t = step->seq_start[s]; t < step->seq_start[s + 1]; t++)
			dec->token_seq[t] = s;
	}
	rc = upload_words(stream, buf->ids, step->ids, step->tokens);
	rc = rc ? rc : upload_words(stream, buf->positions, step->positions, step->tokens);
	rc = rc ? rc : upload_words(stream, buf->token_seq, dec->token_seq, step->tokens);
	rc = rc ? rc
		: upload_words(stream, buf->seq_start, step->seq_start,
			       (uint64_t)step->sequences + 1);
	rc = rc ? rc : upload_words(stream, buf->table_start, step->table_start, step->sequences);
	rc = rc ? rc : upload_words(stream, buf->block_table, step->block_table, step->blocks);
	rc = rc ? rc : upload_words(stream, buf->row_tokens, step->row_tokens, step->rows);
	if (rc == 0 && dec->inv_freq)
		rc = upload_words(stream, buf->inv_freq, dec->inv_freq, dec->arch->head_dim / 2);
	return rc;
}

static int run_layer(struct ctn_pass *pass, uint32_t layer)
{
	if (layer == 0)
		return ctn_pass_embed(pass);
	if (layer <= pass->dec->arch->layers)
		return ctn_pass_layer(pass, layer);
	return ctn_pass_head(pass, layer);
}

/* The rank's layers in order, with the activations from and to its neighbours. */
static int run(struct ctn_pass *pass, ctn_layer_wait_fn *wait, void *wait_arg, struct ctn_err *err)
{
	const struct ctn_decoder *dec = pass->dec;
	const struct ctn_rank_plan *rank = dec->rank;
	uint32_t end = rank->first_layer + rank->layer_count;
	uint64_t floats = (uint64_t)pass->step->tokens * dec->arch->hidden;
	int rc = 0;

	if (rank->pp_rank > 0)
		rc = ctn_comm_recv(dec->cfg.pp, pass->stream, dec->buf.x, floats,
				   rank->pp_rank - 1);
	if (rc)
		return ctn_err_set(err, rc, "activations of step %llu did not come: %s",
				   (unsigned long long)pass->step->id, strerror(-rc));
	for (uint32_t layer = rank->first_layer; layer < end; layer++) {
		if (layer > dec->arch->layers && pass->step->rows == 0)
			continue; /* nobody wants logits */
		rc = wait(wait_arg, layer, pass->stream);
		if (rc)
			return ctn_err_set(err, rc, "weights of layer %u did not come: %s", layer,
					   strerror(-rc));
		rc = ctn_stream_layer_begin(pass->stream);
		rc = rc ? rc : run_layer(pass, layer);
		rc = rc ? rc : ctn_stream_layer_end(pass->stream);
		if (rc)
			return ctn_err_set(err, rc, "layer %u failed: %s", layer, strerror(-rc));
	}
	if (rank->pp_rank + 1 < dec->cfg.plan->pp)
		rc = ctn_comm_send(dec->cfg.pp, pass->stream, dec->buf.x, floats,
				   rank->pp_rank + 1);
	if (rc)
		return ctn_err_set(err, rc, "activations of step %llu could not be sent: %s",
				   (unsigned long long)pass->step->id, strerror(-rc));
	return 0;
}

int ctn_decoder_forward(struct ctn_decoder *dec, struct ctn_stream *stream,
			const struct ctn_step *step, ctn_layer_wait_fn *wait, void *wait_arg,
			float *logits, struct ctn_err *err)
{
	const struct ctn_buffers *buf = &dec->buf;
	bool gives_logits = dec->rank->pp_rank + 1 == dec->cfg.plan->pp && dec->rank->tp_rank == 0;
	struct ctn_pass pass = {
		.dec = dec,
		.stream = stream,
		.step = step,
		.batch = {step->tokens, step->sequences, buf->positions, buf->seq_start,
			  buf->token_seq, buf->block_table, buf->table_start},
		.logits = logits,
	};
	int rc, sync_rc;

	rc = ctn_step_check(step, &dec->cfg.limits, dec->arch, err);
	if (rc)
		return rc;
	if (gives_logits && step->rows > 0 && !logits)
		return ctn_err_set(err, -EINVAL,
				   "step %llu wants %u rows of logits and gives no "
				   "memory for them",
				   (unsigned long long)step->id, step->rows);
	rc = upload_step(dec, stream, step);
	if (rc)
		ctn_err_set(err, rc, "step %llu could not be uploaded: %s",
			    (unsigned long long)step->id, strerror(-rc));
	else
		rc = run(&pass, wait, wait_arg, err);
	/* Also after a failure: the caller takes the memory back. */
	sync_rc = ctn_stream_sync(stream);
	if (rc == 0 && sync_rc)
		rc = ctn_err_set(err, sync_rc, "step %llu failed on the device: %s",
				 (unsigned long long)step->id, strerror(-sync_rc));
	return rc;
}
