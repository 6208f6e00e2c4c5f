// SPDX-License-Identifier: MIT
/*
 * The plan, carried out: runs fill frames from the files, rectangles fill pieces from frames,
 * and every slot is compared with the share of the tensors that is cut out of the file here,
 * element by element, from the names and the arithmetic of tensor parallelism alone.
 */
#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

#include <xxhash.h>

#define POISON 0xee

static const unsigned int ways[] = {1, 2, 4};

/* ---- shares, naively ------------------------------------------------------------------- */

struct expect {
	const struct ctn_checkpoint *ckpt;
	const struct ctn_rank_plan *rank;
	uint32_t tp;
	uint32_t layer; /* decoder layer, from 0 */
	uint8_t *out;
	uint64_t len;
	uint64_t rows, cols;
	bool missing;
};

static uint8_t *read_tensor(const struct ctn_checkpoint *ckpt, const struct ctn_tensor *t)
{
	uint8_t *data = malloc(t->bytes);
	int fd = open(ckpt->files[t->file].path, O_RDONLY | O_CLOEXEC);

	if (!data || fd < 0 || pread(fd, data, t->bytes, (off_t)t->offset) != (ssize_t)t->bytes)
		abort();
	close(fd);
	return data;
}

static const struct ctn_tensor *find(const struct expect *e, const char *const *names)
{
	for (; *names; names++) {
		const struct ctn_tensor *t;
		char name[200];

		snprintf(name, sizeof(name), *names, e->layer);
		t = ctn_checkpoint_tensor(e->ckpt, name);
		if (t)
			return t;
	}
	return NULL;
}

/* Appends rows [r0, r0 + rn) x columns [c0, c0 + cn) of a tensor; a vector has one row. */
static void cut(struct expect *e, const struct ctn_tensor *t, uint64_t r0, uint64_t rn, uint64_t c0,
		uint64_t cn)
{
	const uint64_t size = ctn_dtype_bits(t->encoding.dtype) / 8;
	const uint64_t cols = t->rank == 2 ? t->shape[1] : t->shape[0];
	uint8_t *data = read_tensor(e->ckpt, t);

	e->out = realloc(e->out, e->len + rn * cn * size + 1);
	for (uint64_t r = r0; r < r0 + rn; r++) {
		for (uint64_t c = c0; c < c0 + cn; c++, e->len += size)
			memcpy(e->out + e->len, data + (r * cols + c) * size, size);
	}
	free(data);
}

#define NAMES(...)                \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* Whole, or the rows of a vector or matrix. */
static void rows_of(struct expect *e, const char *const *names, uint64_t first, uint64_t count)
{
	const struct ctn_tensor *t = find(e, names);

	if (!t) {
		e->missing = true;
		return;
	}
	if (t->rank == 2) {
		cut(e, t, first, count, 0, t->shape[1]);
		e->rows += count;
		e->cols = t->shape[1];
	} else {
		cut(e, t, 0, 1, first, count);
		e->rows = 1;
		e->cols += count;
	}
}

static void cols_of(struct expect *e, const char *const *names, uint64_t first, uint64_t count)
{
	const struct ctn_tensor *t = find(e, names);

	if (!t) {
		e->missing = true;
		return;
	}
	cut(e, t, 0, t->shape[0], first, count);
	e->rows = t->shape[0];
	e->cols += count;
}

static void whole(struct expect *e, const char *const *names)
{
	const struct ctn_tensor *t = find(e, names);

	if (t)
		rows_of(e, names, 0, t->shape[0]);
	else
		e->missing = true;
}

/* The key-value heads that the rank's query heads use. */
static void kv_heads(const struct expect *e, uint64_t *first, uint64_t *count)
{
	const struct ctn_arch *a = &e->ckpt->arch;
	const uint32_t n = a->heads / e->tp, h0 = e->rank->tp_rank * n;

	*first = (uint64_t)h0 * a->kv_heads / a->heads;
	*count = (uint64_t)(h0 + n - 1) * a->kv_heads / a->heads + 1 - *first;
}

#define OPT_NAMES(n) NAMES("model.decoder." n, "decoder." n, n)

static void expect_qkv(struct expect *e, bool bias)
{
	const struct ctn_arch *a = &e->ckpt->arch;
	const uint64_t d = a->head_dim, n = a->heads / e->tp * d, h0 = e->rank->tp_rank * n;
	uint64_t kv0, kvn;

	kv_heads(e, &kv0, &kvn);
	kv0 *= d;
	kvn *= d;
	if (find(e, NAMES("transformer.h.%u.attn.c_attn.weight", "h.%u.attn.c_attn.weight"))) {
		const uint64_t h = a->hidden, starts[] = {h0, h + kv0, 2 * h + kv0};
		const uint64_t counts[] = {n, kvn, kvn};
		const char *const *w =
			NAMES("transformer.h.%u.attn.c_attn.weight", "h.%u.attn.c_attn.weight");
		const char *const *b =
			NAMES("transformer.h.%u.attn.c_attn.bias", "h.%u.attn.c_attn.bias");
		const struct ctn_tensor *t = find(e, bias ? b : w);

		for (uint64_t r = 0; r < (bias ? 1 : h); r++) {
			for (int i = 0; i < 3; i++)
				cut(e, t, r, 1, starts[i], counts[i]);
		}
		e->rows = bias ? 1 : h;
		e->cols = n + 2 * kvn;
		return;
	}
	rows_of(e,
		bias ? NAMES("model.layers.%u.self_attn.q_proj.bias",
			     "model.decoder.layers.%u.self_attn.q_proj.bias",
			     "decoder.layers.%u.self_attn.q_proj.bias",
			     "layers.%u.self_attn.q_proj.bias")
		     : NAMES("model.layers.%u.self_attn.q_proj.weight",
			     "model.decoder.layers.%u.self_attn.q_proj.weight",
			     "decoder.layers.%u.self_attn.q_proj.weight",
			     "layers.%u.self_attn.q_proj.weight"),
		h0, n);
	rows_of(e,
		bias ? NAMES("model.layers.%u.self_attn.k_proj.bias",
			     "model.decoder.layers.%u.self_attn.k_proj.bias",
			     "decoder.layers.%u.self_attn.k_proj.bias",
			     "layers.%u.self_attn.k_proj.bias")
		     : NAMES("model.layers.%u.self_attn.k_proj.weight",
			     "model.decoder.layers.%u.self_attn.k_proj.weight",
			     "decoder.layers.%u.self_attn.k_proj.weight",
			     "layers.%u.self_attn.k_proj.weight"),
		kv0, kvn);
	rows_of(e,
		bias ? NAMES("model.layers.%u.self_attn.v_proj.bias",
			     "model.decoder.layers.%u.self_attn.v_proj.bias",
			     "decoder.layers.%u.self_attn.v_proj.bias",
			     "layers.%u.self_attn.v_proj.bias")
		     : NAMES("model.layers.%u.self_attn.v_proj.weight",
			     "model.decoder.layers.%u.self_attn.v_proj.weight",
			     "decoder.layers.%u.self_attn.v_proj.weight",
			     "layers.%u.self_attn.v_proj.weight"),
		kv0, kvn);
}

/* Whether the files hold a tensor of this kind: gpt2 stores weights [in, out]. */
static bool is_gpt2(const struct expect *e)
{
	return strcmp(ctn_family_name(e->ckpt->family), "gpt2") == 0;
}

static bool is_opt(const struct expect *e)
{
	return strcmp(ctn_family_name(e->ckpt->family), "opt") == 0;
}

static void expect_mlp(struct expect *e, enum ctn_role role)
{
	const uint64_t n = e->ckpt->arch.ffn / e->tp, f0 = e->rank->tp_rank * n;

	switch (role) {
	case CTN_ROLE_UP_W:
		if (is_gpt2(e)) {
			cols_of(e,
				NAMES("transformer.h.%u.mlp.c_fc.weight", "h.%u.mlp.c_fc.weight"),
				f0, n);
		} else if (is_opt(e)) {
			rows_of(e, OPT_NAMES("layers.%u.fc1.weight"), f0, n);
		} else {
			rows_of(e, NAMES("model.layers.%u.mlp.gate_proj.weight"), f0, n);
			rows_of(e, NAMES("model.layers.%u.mlp.up_proj.weight"), f0, n);
		}
		break;
	case CTN_ROLE_UP_B:
		if (is_gpt2(e)) {
			rows_of(e, NAMES("transformer.h.%u.mlp.c_fc.bias", "h.%u.mlp.c_fc.bias"),
				f0, n);
		} else if (is_opt(e)) {
			rows_of(e, OPT_NAMES("layers.%u.fc1.bias"), f0, n);
		} else {
			rows_of(e, NAMES("model.layers.%u.mlp.gate_proj.bias"), f0, n);
			rows_of(e, NAMES("model.layers.%u.mlp.up_proj.bias"), f0, n);
		}
		break;
	case CTN_ROLE_DOWN_W:
		if (is_gpt2(e))
			rows_of(e,
				NAMES("transformer.h.%u.mlp.c_proj.weight",
				      "h.%u.mlp.c_proj.weight"),
				f0, n);
		else if (is_opt(e))
			cols_of(e, OPT_NAMES("layers.%u.fc2.weight"), f0, n);
		else
			cols_of(e, NAMES("model.layers.%u.mlp.down_proj.weight"), f0, n);
		break;
	default:
		whole(e, NAMES("model.layers.%u.mlp.down_proj.bias",
			       "model.decoder.layers.%u.fc2.bias", "decoder.layers.%u.fc2.bias",
			       "layers.%u.fc2.bias", "transformer.h.%u.mlp.c_proj.bias",
			       "h.%u.mlp.c_proj.bias"));
		break;
	}
}

static void expect_attention(struct expect *e, enum ctn_role role)
{
	const struct ctn_arch *a = &e->ckpt->arch;
	const uint64_t n = (uint64_t)a->heads / e->tp * a->head_dim, h0 = e->rank->tp_rank * n;

	switch (role) {
	case CTN_ROLE_QKV_W:
	case CTN_ROLE_QKV_B:
		expect_qkv(e, role == CTN_ROLE_QKV_B);
		break;
	case CTN_ROLE_OUT_W:
		if (is_gpt2(e))
			rows_of(e,
				NAMES("transformer.h.%u.attn.c_proj.weight",
				      "h.%u.attn.c_proj.weight"),
				h0, n);
		else
			cols_of(e,
				NAMES("model.layers.%u.self_attn.o_proj.weight",
				      "model.decoder.layers.%u.self_attn.out_proj.weight",
				      "decoder.layers.%u.self_attn.out_proj.weight",
				      "layers.%u.self_attn.out_proj.weight"),
				h0, n);
		break;
	default:
		whole(e, NAMES("model.layers.%u.self_attn.o_proj.bias",
			       "model.decoder.layers.%u.self_attn.out_proj.bias",
			       "decoder.layers.%u.self_attn.out_proj.bias",
			       "layers.%u.self_attn.out_proj.bias",
			       "transformer.h.%u.attn.c_proj.bias", "h.%u.attn.c_proj.bias"));
		break;
	}
}

static const char *const *embed_names(void)
{
	static const char *const names[] = {"model.embed_tokens.weight",
					    "model.decoder.embed_tokens.weight",
					    "decoder.embed_tokens.weight",
					    "embed_tokens.weight",
					    "transformer.wte.weight",
					    "wte.weight",
					    NULL};

	return names;
}

/* Rows of the vocabulary that the rank has; memory has the same number on every rank. */
static void expect_vocab(struct expect *e, const char *const *names)
{
	const uint64_t vocab = e->ckpt->arch.vocab, padded = (vocab + e->tp - 1) / e->tp;
	const uint64_t first = CTN_MIN(padded * e->rank->tp_rank, vocab);

	rows_of(e, names, first, CTN_MIN(padded, vocab - first));
	CU_ASSERT_EQUAL(e->rank->vocab_first, first);
	CU_ASSERT_EQUAL(e->rank->vocab_count, e->rows);
	CU_ASSERT_EQUAL(e->rank->vocab_padded, padded);
	e->rows = padded;
}

static void expect_role(struct expect *e, enum ctn_role role)
{
	const struct ctn_arch *a = &e->ckpt->arch;

	switch (role) {
	case CTN_ROLE_EMBED:
		expect_vocab(e, embed_names());
		break;
	case CTN_ROLE_HEAD:
		expect_vocab(e, a->tied ? embed_names() : NAMES("lm_head.weight"));
		break;
	case CTN_ROLE_POSITIONS:
		whole(e, NAMES("model.decoder.embed_positions.weight",
			       "decoder.embed_positions.weight", "embed_positions.weight",
			       "transformer.wpe.weight", "wpe.weight"));
		break;
	case CTN_ROLE_PROJECT_IN:
		whole(e, OPT_NAMES("project_in.weight"));
		break;
	case CTN_ROLE_PROJECT_OUT:
		whole(e, OPT_NAMES("project_out.weight"));
		break;
	case CTN_ROLE_NORM1_W:
		whole(e, NAMES("model.layers.%u.input_layernorm.weight",
			       "model.decoder.layers.%u.self_attn_layer_norm.weight",
			       "decoder.layers.%u.self_attn_layer_norm.weight",
			       "layers.%u.self_attn_layer_norm.weight",
			       "transformer.h.%u.ln_1.weight", "h.%u.ln_1.weight"));
		break;
	case CTN_ROLE_NORM1_B:
		whole(e, NAMES("model.decoder.layers.%u.self_attn_layer_norm.bias",
			       "decoder.layers.%u.self_attn_layer_norm.bias",
			       "layers.%u.self_attn_layer_norm.bias", "transformer.h.%u.ln_1.bias",
			       "h.%u.ln_1.bias"));
		break;
	case CTN_ROLE_NORM2_W:
		whole(e, NAMES("model.layers.%u.post_attention_layernorm.weight",
			       "model.decoder.layers.%u.final_layer_norm.weight",
			       "decoder.layers.%u.final_layer_norm.weight",
			       "layers.%u.final_layer_norm.weight", "transformer.h.%u.ln_2.weight",
			       "h.%u.ln_2.weight"));
		break;
	case CTN_ROLE_NORM2_B:
		whole(e, NAMES("model.decoder.layers.%u.final_layer_norm.bias",
			       "decoder.layers.%u.final_layer_norm.bias",
			       "layers.%u.final_layer_norm.bias", "transformer.h.%u.ln_2.bias",
			       "h.%u.ln_2.bias"));
		break;
	case CTN_ROLE_NORM_F_W:
		whole(e, NAMES("model.norm.weight", "model.decoder.final_layer_norm.weight",
			       "decoder.final_layer_norm.weight", "final_layer_norm.weight",
			       "transformer.ln_f.weight", "ln_f.weight"));
		break;
	case CTN_ROLE_NORM_F_B:
		whole(e,
		      NAMES("model.decoder.final_layer_norm.bias", "decoder.final_layer_norm.bias",
			    "final_layer_norm.bias", "transformer.ln_f.bias", "ln_f.bias"));
		break;
	case CTN_ROLE_UP_W:
	case CTN_ROLE_UP_B:
	case CTN_ROLE_DOWN_W:
	case CTN_ROLE_DOWN_B:
		expect_mlp(e, role);
		break;
	default:
		expect_attention(e, role);
		break;
	}
}

static bool role_in_layer(const struct ctn_arch *a, enum ctn_role role, uint32_t layer)
{
	if (layer == 0)
		return role <= CTN_ROLE_PROJECT_IN;
	if (layer == a->layers + 1)
		return role >= CTN_ROLE_NORM_F_W;
	return role > CTN_ROLE_PROJECT_IN && role < CTN_ROLE_NORM_F_W;
}

/* ---- the plan, carried out ------------------------------------------------------------- */

static uint8_t *fill_frame(const struct ctn_checkpoint *ckpt, const struct ctn_part *part)
{
	uint8_t *frame = malloc(part->frame_bytes);
	uint64_t end = 0;

	memset(frame, POISON, part->frame_bytes);
	CU_ASSERT_EQUAL(part->frame_bytes % CTN_IO_ALIGN, 0);
	for (uint32_t i = 0; i < part->run_count; i++) {
		const struct ctn_run *r = &part->runs[i];
		int fd = open(ckpt->files[r->file].path, O_RDONLY | O_CLOEXEC);

		CU_ASSERT_EQUAL(r->file_offset % CTN_IO_ALIGN, 0);
		CU_ASSERT_EQUAL(r->bytes % CTN_IO_ALIGN, 0);
		CU_ASSERT_EQUAL(r->frame_offset % CTN_IO_ALIGN, 0);
		CU_ASSERT_TRUE(r->bytes > 0);
		CU_ASSERT_TRUE(r->frame_offset >= end);
		/* Touching runs of one file are one run. */
		CU_ASSERT_TRUE(i == 0 || r->file != r[-1].file ||
			       r->file_offset > r[-1].file_offset + r[-1].bytes);
		end = r->frame_offset + r->bytes;
		CU_ASSERT_TRUE_FATAL(end <= part->frame_bytes);
		/* Only the file's end may cut it short. */
		CU_ASSERT_EQUAL(
			pread(fd, frame + r->frame_offset, r->bytes, (off_t)r->file_offset),
			(ssize_t)CTN_MIN(r->bytes, ckpt->files[r->file].bytes - r->file_offset));
		close(fd);
	}
	for (uint32_t i = 0; i < part->tensor_count; i++) {
		const struct ctn_tensor *t = &ckpt->tensors[part->tensors[i].tensor];
		uint8_t *data = read_tensor(ckpt, t);

		CU_ASSERT_TRUE_FATAL(part->tensors[i].frame_offset + t->bytes <= part->frame_bytes);
		CU_ASSERT_EQUAL(memcmp(data, frame + part->tensors[i].frame_offset, t->bytes), 0);
		free(data);
	}
	return frame;
}

static uint8_t *fill_piece(const struct ctn_plan *plan, uint8_t *const *frames,
			   const struct ctn_shard *shard, const struct ctn_piece *piece)
{
	uint8_t *mem = malloc(piece->bytes);
	uint64_t payload = 0;

	memset(mem, POISON, piece->bytes);
	for (uint32_t i = 0; i < piece->rect_count; i++) {
		const struct ctn_rect *r = &piece->rects[i];
		bool listed = false;

		CU_ASSERT_TRUE_FATAL(r->width > 0 && r->height > 0);
		CU_ASSERT_TRUE(r->src_pitch >= r->width && r->dst_pitch >= r->width);
		CU_ASSERT_TRUE_FATAL(r->src_offset + (r->height - 1) * r->src_pitch + r->width <=
				     plan->parts[r->part].frame_bytes);
		CU_ASSERT_TRUE_FATAL(r->dst_offset + (r->height - 1) * r->dst_pitch + r->width <=
				     piece->bytes);
		for (uint64_t k = 0; k < r->height; k++)
			memcpy(mem + r->dst_offset + k * r->dst_pitch,
			       frames[r->part] + r->src_offset + k * r->src_pitch, r->width);
		payload += r->width * r->height;
		for (uint32_t k = 0; k < shard->part_count; k++)
			listed |= shard->parts[k] == r->part;
		CU_ASSERT_TRUE(listed);
	}
	CU_ASSERT_EQUAL(payload, piece->payload);
	return mem;
}

static void check_slot(const struct ctn_plan *plan, const struct ctn_rank_plan *rank,
		       const struct ctn_shard *shard, uint8_t *const *pieces, enum ctn_role role)
{
	const struct ctn_slot *slot = &shard->slots[role];
	struct expect e = {
		.ckpt = plan->ckpt,
		.rank = rank,
		.tp = plan->tp,
		.layer = shard->layer - 1,
	};

	if (!role_in_layer(&plan->ckpt->arch, role, shard->layer)) {
		CU_ASSERT_FALSE(slot->present);
		return;
	}
	expect_role(&e, role);
	CU_ASSERT_EQUAL(slot->present, !e.missing);
	if (slot->present && !e.missing) {
		const uint64_t size = ctn_dtype_bits(slot->encoding.dtype) / 8;

		CU_ASSERT_EQUAL(slot->alias,
				role == CTN_ROLE_HEAD && plan->ckpt->arch.tied && plan->pp == 1);
		CU_ASSERT_EQUAL(slot->transposed,
				is_gpt2(&e) && (role == CTN_ROLE_QKV_W || role == CTN_ROLE_OUT_W ||
						role == CTN_ROLE_UP_W || role == CTN_ROLE_DOWN_W));
		CU_ASSERT_EQUAL(slot->rows, e.rows);
		CU_ASSERT_EQUAL(slot->cols, e.cols);
		CU_ASSERT_EQUAL(slot->offset % CTN_TENSOR_ALIGN, 0);
		if (memcmp(pieces[slot->piece] + slot->offset, e.out, e.len) != 0) {
			printf("# tp %u pp %u rank %u.%u layer %u %s differs\n", plan->tp, plan->pp,
			       rank->tp_rank, rank->pp_rank, shard->layer, ctn_role_name(role));
			CU_FAIL("bytes of a slot");
		}
		/* Rows of padding are not written. */
		for (uint64_t i = e.len; i < slot->rows * slot->cols * size; i++)
			CU_ASSERT_EQUAL(pieces[slot->piece][slot->offset + i], POISON);
	}
	free(e.out);
}

static void check_rank(const struct ctn_plan *plan, const struct ctn_rank_plan *rank,
		       uint8_t *const *frames)
{
	uint8_t *embed[CTN_PART_KINDS] = {0};
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < rank->layer_count; i++) {
		const struct ctn_shard *shard = &rank->shards[i];
		uint8_t *pieces[CTN_PART_KINDS] = {0};
		uint64_t shard_bytes = 0;

		CU_ASSERT_EQUAL(shard->layer, rank->first_layer + i);
		CU_ASSERT_TRUE_FATAL(shard->piece_count <= CTN_PART_KINDS);
		for (uint32_t k = 0; k < shard->piece_count; k++) {
			pieces[k] = fill_piece(plan, frames, shard, &shard->pieces[k]);
			shard_bytes += shard->pieces[k].bytes;
		}
		CU_ASSERT_EQUAL(shard->bytes, shard_bytes);
		bytes += shard_bytes;
		if (shard->layer == 0)
			memcpy(embed, pieces, sizeof(embed));
		for (int role = 0; role < CTN_ROLE_COUNT; role++) {
			const bool alias = shard->slots[role].alias;

			check_slot(plan, rank, shard, alias ? embed : pieces, (enum ctn_role)role);
		}
		for (uint32_t k = 0; k < shard->piece_count && shard->layer != 0; k++)
			free(pieces[k]);
	}
	CU_ASSERT_EQUAL(rank->bytes, bytes);
	for (int k = 0; k < CTN_PART_KINDS; k++)
		free(embed[k]);
}

/* ---- what holds of every plan ---------------------------------------------------------- */

/* Every tensor in use is in one part, once. */
static void check_coverage(const struct ctn_plan *plan)
{
	uint32_t *seen = calloc(plan->ckpt->tensor_count, sizeof(*seen));
	uint64_t bytes = 0, host = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		uint64_t part_bytes = 0;

		CU_ASSERT_EQUAL(p->id, i);
		for (uint32_t k = 0; k < p->tensor_count; k++) {
			CU_ASSERT_EQUAL(seen[p->tensors[k].tensor]++, 0);
			part_bytes += plan->ckpt->tensors[p->tensors[k].tensor].bytes;
		}
		CU_ASSERT_EQUAL(p->tensor_bytes, part_bytes);
		CU_ASSERT_TRUE(!p->pack || p->frame_bytes <= CTN_PACK_MAX);
		CU_ASSERT_TRUE(p->pack || p->tensor_bytes >= CTN_SMALL_PART ||
			       p->first_layer == p->last_layer || plan->ckpt->arch.tied);
		CU_ASSERT_TRUE(i == 0 || p->first_layer >= p[-1].first_layer);
		CU_ASSERT_TRUE(p->first_layer <= p->last_layer);
		bytes += part_bytes;
		host += p->frame_bytes;
	}
	CU_ASSERT_EQUAL(plan->ckpt->bytes, bytes);
	CU_ASSERT_EQUAL(plan->host_bytes, host);
	free(seen);
}

static void check_window(const struct ctn_plan *plan)
{
	uint64_t window = 0;

	for (uint32_t layer = 0; layer < plan->ckpt->arch.layers + 2; layer++) {
		uint64_t alive = 0;

		for (uint32_t i = 0; i < plan->part_count; i++) {
			const struct ctn_part *p = &plan->parts[i];

			if (p->first_layer <= layer && layer <= p->last_layer)
				alive += (p->frame_bytes + 2097151) / 2097152 * 2097152;
		}
		window = CTN_MAX(window, alive);
	}
	CU_ASSERT_EQUAL(plan->host_window, window);
}

/* The smallest possible largest stage, by trying every partition. */
static uint64_t best_partition(const uint64_t *bytes, uint32_t count, uint32_t stages)
{
	uint64_t best = UINT64_MAX, sum = 0;

	if (stages == 1) {
		for (uint32_t i = 0; i < count; i++)
			sum += bytes[i];
		return sum;
	}
	for (uint32_t n = 1; n + stages - 1 <= count; n++) {
		uint64_t rest;

		sum += bytes[n - 1];
		rest = best_partition(bytes + n, count - n, stages - 1);
		best = CTN_MIN(best, CTN_MAX(sum, rest));
	}
	return best;
}

static void check_stages(const struct ctn_plan *plan)
{
	const uint32_t layers = plan->ckpt->arch.layers + 2;
	uint64_t bytes[64] = {0}, largest = 0;
	uint32_t next = 0;

	CU_ASSERT_EQUAL_FATAL(plan->rank_count, plan->tp * plan->pp);
	CU_ASSERT_TRUE_FATAL(layers <= 64);
	for (uint32_t pp = 0; pp < plan->pp; pp++) {
		for (uint32_t tp = 0; tp < plan->tp; tp++) {
			const struct ctn_rank_plan *r = &plan->ranks[pp * plan->tp + tp];

			CU_ASSERT_EQUAL(r->tp_rank, tp);
			CU_ASSERT_EQUAL(r->pp_rank, pp);
			CU_ASSERT_EQUAL(r->first_layer, next);
			CU_ASSERT_TRUE(r->layer_count > 0);
			CU_ASSERT_EQUAL(r->bytes, plan->ranks[pp * plan->tp].bytes);
			for (uint32_t i = 0; i < r->layer_count; i++)
				bytes[r->first_layer + i] = r->shards[i].bytes;
			largest = CTN_MAX(largest, r->bytes);
		}
		next += plan->ranks[pp * plan->tp].layer_count;
	}
	CU_ASSERT_EQUAL(next, layers);
	CU_ASSERT_EQUAL(largest, best_partition(bytes, layers, plan->pp));
}

static void check_same_parts(const struct ctn_plan *a, const struct ctn_plan *b)
{
	CU_ASSERT_EQUAL_FATAL(a->part_count, b->part_count);
	for (uint32_t i = 0; i < a->part_count; i++) {
		const struct ctn_part *p = &a->parts[i], *q = &b->parts[i];

		CU_ASSERT_EQUAL(memcmp(&p->key, &q->key, sizeof(p->key)), 0);
		CU_ASSERT_EQUAL(p->frame_bytes, q->frame_bytes);
		CU_ASSERT_EQUAL(p->first_layer, q->first_layer);
		CU_ASSERT_EQUAL_FATAL(p->run_count, q->run_count);
		CU_ASSERT_EQUAL(memcmp(p->runs, q->runs, p->run_count * sizeof(*p->runs)), 0);
		CU_ASSERT_EQUAL_FATAL(p->tensor_count, q->tensor_count);
		CU_ASSERT_EQUAL(
			memcmp(p->tensors, q->tensors, p->tensor_count * sizeof(*p->tensors)), 0);
	}
}

static struct ctn_checkpoint *open_checkpoint(const char *dir)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};

	if (ctn_checkpoint_open(dir, &ckpt, &err))
		printf("# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(ckpt);
	return ckpt;
}

static struct ctn_plan *build(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp)
{
	struct ctn_plan *plan = NULL;
	struct ctn_err err = {0};

	if (ctn_plan_build(ckpt, tp, pp, &plan, &err))
		printf("# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(plan);
	return plan;
}

static void check_plan(const struct ctn_plan *plan, const struct ctn_plan *base)
{
	uint8_t **frames = calloc(plan->part_count, sizeof(*frames));

	check_same_parts(plan, base);
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	for (uint32_t i = 0; i < plan->part_count; i++)
		frames[i] = fill_frame(plan->ckpt, &plan->parts[i]);
	for (uint32_t i = 0; i < plan->rank_count; i++)
		check_rank(plan, &plan->ranks[i], frames);
	for (uint32_t i = 0; i < plan->part_count; i++)
		free(frames[i]);
	free(frames);
}

static void check_checkpoint(const char *dir)
{
	struct ctn_checkpoint *ckpt = open_checkpoint(dir);
	struct ctn_plan *base = build(ckpt, 1, 1);

	for (size_t i = 0; i < CTN_ARRAY_LEN(ways); i++) {
		for (size_t k = 0; k < CTN_ARRAY_LEN(ways); k++) {
			struct ctn_plan *plan = build(ckpt, ways[i], ways[k]);

			check_plan(plan, base);
			ctn_plan_free(plan);
		}
	}
	ctn_plan_free(base);
	ctn_checkpoint_close(ckpt);
}

/* ---- tests ----------------------------------------------------------------------------- */

static void check_sample(const char *name)
{
	char dir[PATH_MAX];

	snprintf(dir, sizeof(dir), "%s/models/%s", ctn_tests_dir(), name);
	check_checkpoint(dir);
}

static void test_llama_sample(void)
{
	check_sample("llama-stories260k");
}

static void test_opt_sample(void)
{
	check_sample("opt-tinystories");
}

static void test_gpt2_sample(void)
{
	check_sample("gpt2-tinystories");
}

/* One key-value head of four, two of eight: replicated where tp is larger. An odd vocabulary,
 * three files, data at an odd byte, tensors in any order, two dtypes. */
static void test_few_kv_heads(void)
{
	struct gen_model m = {
		.family = "llama",
		.layers = 4,
		.hidden = 24,
		.heads = 4,
		.kv_heads = 1,
		.head_dim = 10,
		.ffn = 20,
		.vocab = 509,
		.positions = 64,
		.bias = true,
		.dtype = "BF16",
		.files = 3,
		.odd = 3,
		.shuffle = 11,
	};

	check_checkpoint(gen_write(&m));
	m.heads = 8;
	m.kv_heads = 2;
	m.tied = true;
	m.bias = false;
	m.files = 0;
	m.odd = 6;
	m.shuffle = 12;
	m.dtype = "F16";
	m.norm_dtype = "F16";
	check_checkpoint(gen_write(&m));
}

static void test_qwen2_biases(void)
{
	const struct gen_model m = {
		.family = "qwen2",
		.layers = 5,
		.hidden = 16,
		.heads = 4,
		.kv_heads = 2,
		.head_dim = 4,
		.ffn = 32,
		.vocab = 5, /* at tp 4 the last rank has a row of padding only */
		.positions = 64,
		.tied = true,
		.shuffle = 13,
		.odd = 1,
	};

	check_checkpoint(gen_write(&m));
}

static void test_opt_projections(void)
{
	const struct gen_model m = {
		.family = "opt",
		.layers = 4,
		.hidden = 32,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 8,
		.ffn = 64,
		.vocab = 101,
		.embed_dim = 12,
		.positions = 30,
		.tied = true,
		.post_norm = true,
		.prefix = "decoder.",
		.dtype = "F16",
		.norm_dtype = "F16",
		.files = 2,
		.odd = 7,
		.shuffle = 14,
	};

	check_checkpoint(gen_write(&m));
}

static void test_gpt2_untied(void)
{
	const struct gen_model m = {
		.family = "gpt2",
		.layers = 4,
		.hidden = 24,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 6,
		.ffn = 36,
		.vocab = 67,
		.positions = 20,
		.dtype = "BF16",
		.files = 2,
		.odd = 5,
		.shuffle = 15,
	};

	check_checkpoint(gen_write(&m));
}

/* Written from the words of the design, with the hash library alone. */
static void expected_key(const struct ctn_checkpoint *ckpt, const struct ctn_part *part,
			 uint8_t key[32])
{
	uint8_t buf[48 * 8] = {0};
	XXH128_canonical_t canonical;
	bool used[8] = {0};
	size_t len = 0;
	uint64_t id = part->id;
	uint32_t tail[2] = {CTN_PLAN_VERSION, 0};

	for (uint32_t i = 0; i < part->run_count; i++)
		used[part->runs[i].file] = true;
	for (uint32_t f = 0; f < ckpt->file_count; f++) {
		uint64_t n, v[4];
		struct stat st;
		char *data;
		size_t size;

		if (!used[f])
			continue;
		if (ctn_read_file(ckpt->files[f].path, 1 << 24, &data, &size, NULL) ||
		    stat(ckpt->files[f].path, &st))
			abort();
		memcpy(&n, data, 8);
		XXH128_canonicalFromHash(&canonical, XXH3_128bits(data + 8, n));
		free(data);
		memcpy(buf + len, &canonical, 16);
		v[0] = (uint64_t)st.st_size;
		v[1] = st.st_dev;
		v[2] = st.st_ino;
		v[3] = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
		memcpy(buf + len + 16, v, 32);
		len += 48;
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(buf, len));
	memcpy(key, &canonical, 16);
	memcpy(key + 16, &id, 8);
	memcpy(key + 24, tail, 8);
}

static void test_frame_keys(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 3,
		.hidden = 16,
		.heads = 2,
		.kv_heads = 2,
		.head_dim = 8,
		.ffn = 32,
		.vocab = 40000, /* an embedding and a head of more than 2 MiB */
		.positions = 64,
		.files = 3,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 2, 1);

	CU_ASSERT_TRUE(plan->part_count >= 3);
	for (uint32_t i = 0; i < plan->part_count; i++) {
		uint8_t key[32];

		expected_key(ckpt, &plan->parts[i], key);
		CU_ASSERT_EQUAL(memcmp(key, plan->parts[i].key.bytes, 32), 0);
	}
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* Parts of the size of a real model, in a file with holes: shuffled, at an odd byte. */
static void test_large_parts(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 2,
		.hidden = 8192,
		.heads = 64,
		.kv_heads = 8,
		.head_dim = 128,
		.ffn = 28672,
		.vocab = 32003,
		.positions = 4096,
		.dtype = "BF16",
		.norm_dtype = "BF16",
		.odd = 1,
		.shuffle = 16,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 4, 2);
	unsigned int large = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		uint64_t read = 0;

		for (uint32_t k = 0; k < p->run_count; k++)
			read += p->runs[k].bytes;
		CU_ASSERT_EQUAL(read, p->frame_bytes);
		CU_ASSERT_FALSE(p->pack);
		CU_ASSERT_EQUAL(p->first_layer, p->last_layer);
		if (p->tensor_bytes < 128 * CTN_MIB)
			continue;
		large++;
		CU_ASSERT_TRUE((double)read <= 1.02 * (double)p->tensor_bytes);
	}
	/* embed, two times attention and MLP, head with the final norm */
	CU_ASSERT_EQUAL(plan->part_count, 6);
	CU_ASSERT_EQUAL(large, 6);
	for (uint32_t r = 0; r < plan->rank_count; r++) {
		for (uint32_t i = 0; i < plan->ranks[r].layer_count; i++) {
			const struct ctn_shard *s = &plan->ranks[r].shards[i];

			CU_ASSERT_EQUAL(s->piece_count,
					s->layer == 0 || s->layer == m.layers + 1 ? 1 : 2);
		}
	}
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* Attention of 1 MiB a layer is packed over layers; an MLP of 3 MiB stands alone. */
static void test_packs(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 50,
		.hidden = 256,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 64,
		.ffn = 1024,
		.vocab = 4096,
		.positions = 4096,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 1, 1);
	unsigned int packs = 0, mlps = 0;
	uint64_t end = 0;

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];
		const struct ctn_run *last = &p->runs[p->run_count - 1];

		mlps += p->kind == CTN_PART_MLP;
		if (!p->pack)
			continue;
		packs++;
		CU_ASSERT_TRUE(p->last_layer > p->first_layer);
		/* In file order: the next pack starts where this one ended, or later. */
		CU_ASSERT_TRUE(p->runs[0].file_offset + CTN_IO_ALIGN >= end);
		end = last->file_offset + last->bytes;
	}
	/* 50 times 1 MiB and a norm, and the final norm, in packs of up to 32 MiB */
	CU_ASSERT_EQUAL(packs, 2);
	CU_ASSERT_EQUAL(mlps, 50);
	check_coverage(plan);
	check_window(plan);
	check_stages(plan);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

/* A shard of less than 2 MiB is one piece; a small first part joins the next. */
static void test_small_pieces_are_joined(void)
{
	const struct gen_model m = {
		.family = "llama",
		.layers = 2,
		.hidden = 256,
		.heads = 4,
		.kv_heads = 4,
		.head_dim = 64,
		.ffn = 4096,
		.vocab = 100,
		.positions = 4096,
		.sparse = true,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));
	struct ctn_plan *plan = build(ckpt, 1, 1);

	for (uint32_t i = 0; i < plan->ranks[0].layer_count; i++) {
		const struct ctn_shard *s = &plan->ranks[0].shards[i];

		CU_ASSERT_EQUAL(s->piece_count, 1);
		CU_ASSERT_EQUAL(s->pieces[0].kind, s->layer == 0 || s->layer == 3
							   ? CTN_PART_REST
							   : CTN_PART_ATTENTION);
	}
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
}

static void test_refused_splits(void)
{
	static const struct {
		uint32_t tp, pp;
		const char *says;
	} cases[] = {
		{3, 1, "expected one of 1, 2, 4 "},  /* heads */
		{6, 1, "expected one of 1, 2, 4 "},  /* key-value heads: 4 and 6 */
		{12, 1, "expected one of 1, 2, 4 "}, /* ffn */
		{0, 1, "expected one of"},           {24, 1, "expected one of"},
		{1, 4, "pp: expected 1 to 3"},       {1, 0, "pp: expected 1 to 3"},
	};
	const struct gen_model m = {
		.family = "llama",
		.layers = 3,
		.hidden = 24,
		.heads = 12,
		.kv_heads = 4,
		.head_dim = 2,
		.ffn = 20,
		.vocab = 50,
		.positions = 64,
	};
	struct ctn_checkpoint *ckpt = open_checkpoint(gen_write(&m));

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct ctn_plan *plan = NULL;
		struct ctn_err err = {0};

		CU_ASSERT_EQUAL(ctn_plan_build(ckpt, cases[i].tp, cases[i].pp, &plan, &err),
				-EINVAL);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
	ctn_checkpoint_close(ckpt);
}

CTN_TESTS("checkpoint_plan", CTN_TEST(test_llama_sample), CTN_TEST(test_opt_sample),
	  CTN_TEST(test_gpt2_sample), CTN_TEST(test_few_kv_heads), CTN_TEST(test_qwen2_biases),
	  CTN_TEST(test_opt_projections), CTN_TEST(test_gpt2_untied), CTN_TEST(test_frame_keys),
	  CTN_TEST(test_large_parts), CTN_TEST(test_packs), CTN_TEST(test_small_pieces_are_joined),
	  CTN_TEST(test_refused_splits))
