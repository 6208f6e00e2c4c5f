/* SPDX-License-Identifier: MIT */
/*
 * What a rank needs of a tensor, cut out of the file element by element: from the published
 * names and the arithmetic of tensor parallelism (Megatron-LM) alone, for the tests of the
 * plan.
 */
#ifndef CTN_TEST_CKPT_SHARES_H
#define CTN_TEST_CKPT_SHARES_H

#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

/* The expected content of one slot. */
struct share {
	const struct ctn_checkpoint *ckpt;
	const struct ctn_rank_plan *rank;
	uint32_t tp;
	uint32_t layer; /* decoder layer, from 0 */
	uint8_t *out;   /* the caller frees it */
	uint64_t len;
	uint64_t rows, cols; /* in memory, with padding */
	bool missing;        /* the checkpoint has no such tensor */
};

static inline uint8_t *read_tensor(const struct ctn_checkpoint *ckpt, const struct ctn_tensor *t)
{
	uint8_t *data = malloc(t->bytes);
	int fd = open(ckpt->files[t->file].path, O_RDONLY | O_CLOEXEC);

	if (!data || fd < 0 || pread(fd, data, t->bytes, (off_t)t->offset) != (ssize_t)t->bytes)
		abort();
	close(fd);
	return data;
}

/* By the name below any prefix; '#' is the layer. */
static inline const struct ctn_tensor *share_find(const struct share *s, const char *name)
{
	static const char *const prefixes[] = {"model.decoder.", "decoder.", "model.",
					       "transformer.", ""};
	const char *hash = strchr(name, '#');

	for (size_t i = 0; i < CTN_ARRAY_LEN(prefixes); i++) {
		const struct ctn_tensor *t;
		char full[200];

		if (hash)
			snprintf(full, sizeof(full), "%s%.*s%u%s", prefixes[i], (int)(hash - name),
				 name, s->layer, hash + 1);
		else
			snprintf(full, sizeof(full), "%s%s", prefixes[i], name);
		t = ctn_checkpoint_tensor(s->ckpt, full);
		if (t)
			return t;
	}
	return NULL;
}

/* Appends rows [r0, r0 + rn) x columns [c0, c0 + cn) of a tensor; a vector has one row. */
static inline void share_cut(struct share *s, const struct ctn_tensor *t, uint64_t r0, uint64_t rn,
			     uint64_t c0, uint64_t cn)
{
	const uint64_t size = ctn_dtype_bits(t->encoding.dtype) / 8;
	const uint64_t cols = t->rank == 2 ? t->shape[1] : t->shape[0];
	uint8_t *data = read_tensor(s->ckpt, t);

	s->out = realloc(s->out, s->len + rn * cn * size + 1);
	for (uint64_t r = r0; r < r0 + rn; r++) {
		for (uint64_t c = c0; c < c0 + cn; c++, s->len += size)
			memcpy(s->out + s->len, data + (r * cols + c) * size, size);
	}
	free(data);
}

/* Rows of a matrix, elements of a vector. */
static inline void share_rows(struct share *s, const char *name, uint64_t first, uint64_t count)
{
	const struct ctn_tensor *t = share_find(s, name);

	if (!t) {
		s->missing = true;
	} else if (t->rank == 2) {
		share_cut(s, t, first, count, 0, t->shape[1]);
		s->rows += count;
		s->cols = t->shape[1];
	} else {
		share_cut(s, t, 0, 1, first, count);
		s->rows = 1;
		s->cols += count;
	}
}

static inline void share_cols(struct share *s, const char *name, uint64_t first, uint64_t count)
{
	const struct ctn_tensor *t = share_find(s, name);

	if (!t) {
		s->missing = true;
		return;
	}
	share_cut(s, t, 0, t->shape[0], first, count);
	s->rows = t->shape[0];
	s->cols = count;
}

static inline void share_whole(struct share *s, const char *name)
{
	const struct ctn_tensor *t = share_find(s, name);

	share_rows(s, name, 0, t ? t->shape[0] : 0);
}

/* The vocabulary's rows that the rank really has; memory has the same number on each. */
static inline void share_vocab(struct share *s, const char *name)
{
	const uint64_t vocab = s->ckpt->arch.vocab, padded = (vocab + s->tp - 1) / s->tp;
	const uint64_t first = CTN_MIN(padded * s->rank->tp_rank, vocab);

	share_rows(s, name, first, CTN_MIN(padded, vocab - first));
	CU_ASSERT_EQUAL(s->rank->vocab_first, first);
	CU_ASSERT_EQUAL(s->rank->vocab_count, s->rows);
	CU_ASSERT_EQUAL(s->rank->vocab_padded, padded);
	s->rows = padded;
}

static inline bool is_gpt2(const struct ctn_checkpoint *ckpt)
{
	return strcmp(ctn_family_name(ckpt->family), "gpt2") == 0;
}

static inline bool is_opt(const struct ctn_checkpoint *ckpt)
{
	return strcmp(ctn_family_name(ckpt->family), "opt") == 0;
}

/* Query heads are dealt out evenly; a rank has the key-value heads that its own use. */
static inline void share_qkv(struct share *s, bool bias)
{
	const struct ctn_arch *a = &s->ckpt->arch;
	const uint64_t d = a->head_dim, heads = a->heads / s->tp, h0 = s->rank->tp_rank * heads;
	const uint64_t kv0 = h0 * a->kv_heads / a->heads;
	const uint64_t kvn = (h0 + heads - 1) * a->kv_heads / a->heads + 1 - kv0;

	CU_ASSERT_EQUAL(s->rank->head_first, h0);
	CU_ASSERT_EQUAL(s->rank->head_count, heads);
	CU_ASSERT_EQUAL(s->rank->kv_head_first, kv0);
	CU_ASSERT_EQUAL(s->rank->kv_head_count, kvn);
	if (is_gpt2(s->ckpt)) {
		/* Columns of one tensor: q of all heads, then k, then v. */
		const struct ctn_tensor *t =
			share_find(s, bias ? "h.#.attn.c_attn.bias" : "h.#.attn.c_attn.weight");

		s->rows = bias ? 1 : a->hidden;
		s->cols = (heads + 2 * kvn) * d;
		for (uint64_t r = 0; r < s->rows; r++) {
			share_cut(s, t, r, 1, h0 * d, heads * d);
			share_cut(s, t, r, 1, a->hidden + kv0 * d, kvn * d);
			share_cut(s, t, r, 1, 2 * a->hidden + kv0 * d, kvn * d);
		}
	} else if (bias) {
		share_rows(s, "layers.#.self_attn.q_proj.bias", h0 * d, heads * d);
		share_rows(s, "layers.#.self_attn.k_proj.bias", kv0 * d, kvn * d);
		share_rows(s, "layers.#.self_attn.v_proj.bias", kv0 * d, kvn * d);
	} else {
		share_rows(s, "layers.#.self_attn.q_proj.weight", h0 * d, heads * d);
		share_rows(s, "layers.#.self_attn.k_proj.weight", kv0 * d, kvn * d);
		share_rows(s, "layers.#.self_attn.v_proj.weight", kv0 * d, kvn * d);
	}
}

static inline void share_up(struct share *s, bool bias)
{
	const uint64_t n = s->ckpt->arch.ffn / s->tp, f0 = s->rank->tp_rank * n;

	CU_ASSERT_EQUAL(s->rank->ffn_first, f0);
	CU_ASSERT_EQUAL(s->rank->ffn_count, n);
	if (is_gpt2(s->ckpt)) {
		if (bias)
			share_rows(s, "h.#.mlp.c_fc.bias", f0, n);
		else
			share_cols(s, "h.#.mlp.c_fc.weight", f0, n);
	} else if (is_opt(s->ckpt)) {
		share_rows(s, bias ? "layers.#.fc1.bias" : "layers.#.fc1.weight", f0, n);
	} else if (bias) {
		share_rows(s, "layers.#.mlp.gate_proj.bias", f0, n);
		share_rows(s, "layers.#.mlp.up_proj.bias", f0, n);
	} else {
		share_rows(s, "layers.#.mlp.gate_proj.weight", f0, n);
		share_rows(s, "layers.#.mlp.up_proj.weight", f0, n);
	}
}

/* The matrices whose inputs are divided. */
static inline void share_inner(struct share *s, enum ctn_role role)
{
	const struct ctn_arch *a = &s->ckpt->arch;
	const bool out = role == CTN_ROLE_OUT_W;
	const uint64_t n = (out ? a->heads * a->head_dim : a->ffn) / s->tp;
	const uint64_t first = s->rank->tp_rank * n;

	if (is_gpt2(s->ckpt))
		share_rows(s, out ? "h.#.attn.c_proj.weight" : "h.#.mlp.c_proj.weight", first, n);
	else if (is_opt(s->ckpt))
		share_cols(s, out ? "layers.#.self_attn.out_proj.weight" : "layers.#.fc2.weight",
			   first, n);
	else
		share_cols(s,
			   out ? "layers.#.self_attn.o_proj.weight"
			       : "layers.#.mlp.down_proj.weight",
			   first, n);
}

/* The name of what every rank has whole: llama's, OPT's or GPT-2's. */
static inline const char *whole_name(const struct share *s, enum ctn_role role)
{
	static const char *const names[CTN_ROLE_COUNT][3] = {
		[CTN_ROLE_POSITIONS] = {"-", "embed_positions.weight", "wpe.weight"},
		[CTN_ROLE_PROJECT_IN] = {"-", "project_in.weight", "-"},
		[CTN_ROLE_PROJECT_OUT] = {"-", "project_out.weight", "-"},
		[CTN_ROLE_NORM1_W] = {"layers.#.input_layernorm.weight",
				      "layers.#.self_attn_layer_norm.weight", "h.#.ln_1.weight"},
		[CTN_ROLE_NORM1_B] = {"-", "layers.#.self_attn_layer_norm.bias", "h.#.ln_1.bias"},
		[CTN_ROLE_NORM2_W] = {"layers.#.post_attention_layernorm.weight",
				      "layers.#.final_layer_norm.weight", "h.#.ln_2.weight"},
		[CTN_ROLE_NORM2_B] = {"-", "layers.#.final_layer_norm.bias", "h.#.ln_2.bias"},
		[CTN_ROLE_NORM_F_W] = {"norm.weight", "final_layer_norm.weight", "ln_f.weight"},
		[CTN_ROLE_NORM_F_B] = {"-", "final_layer_norm.bias", "ln_f.bias"},
		[CTN_ROLE_OUT_B] = {"layers.#.self_attn.o_proj.bias",
				    "layers.#.self_attn.out_proj.bias", "h.#.attn.c_proj.bias"},
		[CTN_ROLE_DOWN_B] = {"layers.#.mlp.down_proj.bias", "layers.#.fc2.bias",
				     "h.#.mlp.c_proj.bias"},
	};

	return names[role][is_gpt2(s->ckpt) ? 2 : is_opt(s->ckpt) ? 1 : 0];
}

static inline void share_role(struct share *s, enum ctn_role role)
{
	const char *embed = is_gpt2(s->ckpt) ? "wte.weight" : "embed_tokens.weight";

	switch (role) {
	case CTN_ROLE_EMBED:
		share_vocab(s, embed);
		break;
	case CTN_ROLE_HEAD:
		share_vocab(s, s->ckpt->arch.tied ? embed : "lm_head.weight");
		break;
	case CTN_ROLE_QKV_W:
	case CTN_ROLE_QKV_B:
		share_qkv(s, role == CTN_ROLE_QKV_B);
		break;
	case CTN_ROLE_UP_W:
	case CTN_ROLE_UP_B:
		share_up(s, role == CTN_ROLE_UP_B);
		break;
	case CTN_ROLE_OUT_W:
	case CTN_ROLE_DOWN_W:
		share_inner(s, role);
		break;
	default:
		share_whole(s, whole_name(s, role));
		break;
	}
}

#endif
