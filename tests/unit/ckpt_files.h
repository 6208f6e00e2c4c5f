/* SPDX-License-Identifier: MIT */
/*
 * Makes safetensors files and checkpoint folders for tests, from nothing but the format's
 * description: names and shapes stand here again, so that a mistake in the families' tables is
 * not repeated by what they are tested with.
 */
#ifndef CTN_TEST_CKPT_FILES_H
#define CTN_TEST_CKPT_FILES_H

#include "test.h"
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define GEN_MAX_TENSORS 4096

struct gen_tensor {
	char name[120];
	const char *dtype;
	unsigned int bits;
	unsigned int rank;
	uint64_t shape[2];
	unsigned int file;
};

struct gen_model {
	const char *family; /* llama, mistral, qwen2, opt, gpt2 */
	unsigned int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, embed_dim, positions;
	bool tied;
	bool bias;                      /* llama: attention_bias and mlp_bias */
	bool post_norm;                 /* opt: do_layer_norm_before is false */
	bool no_bias;                   /* opt: enable_bias is false */
	bool no_affine;                 /* opt: layer_norm_elementwise_affine is false */
	bool head_stored;               /* lm_head.weight although tied */
	const char *dtype, *norm_dtype; /* F32 when NULL */
	const char *prefix;             /* the usual one when NULL */
	unsigned int files;             /* 0: one model.safetensors; else an index */
	unsigned int odd;               /* spaces after the header: where data start */
	unsigned int shuffle;           /* seed of the order in the file; 0: as listed */
	unsigned int seed;              /* of the bytes */
	bool sparse;                    /* holes instead of bytes */
	const char *config;             /* JSON object that is laid over config.json */
};

/* A llama whose attention and MLP parts are frames of their own, with tensors of several chunks. */
#define GEN_BIG(layers_, vocab_)                                                          \
	.family = "llama", .layers = (layers_), .hidden = 512, .heads = 8, .kv_heads = 8, \
	.head_dim = 64, .ffn = 1024, .vocab = (vocab_), .embed_dim = 512, .positions = 64

struct gen_list {
	struct gen_tensor t[GEN_MAX_TENSORS];
	unsigned int count;
};

static inline uint64_t gen_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = *state;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline char *gen_path(char out[PATH_MAX], const char *dir, const char *name)
{
	if (snprintf(out, PATH_MAX, "%s/%s", dir, name) >= PATH_MAX)
		abort();
	return out;
}

/* A fresh folder below the test's own. */
static inline const char *gen_dir(void)
{
	static char path[PATH_MAX];
	static unsigned int n;

	snprintf(path, sizeof(path), "%s/d%u", ctn_test_tmpdir(), n++);
	if (mkdir(path, 0700)) {
		perror(path);
		exit(2);
	}
	return path;
}

static inline void gen_write_file(const char *dir, const char *name, const void *data, size_t len)
{
	char path[PATH_MAX];
	FILE *f = fopen(gen_path(path, dir, name), "we");

	if (!f || fwrite(data, 1, len, f) != len || fclose(f)) {
		perror(path);
		exit(2);
	}
}

static inline void gen_write_text(const char *dir, const char *name, const char *text)
{
	gen_write_file(dir, name, text, strlen(text));
}

/* ---- lists of tensors ------------------------------------------------------------------ */

static inline unsigned int gen_bits(const char *dtype)
{
	return strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 32 : 16;
}

static inline struct gen_tensor *gen_add(struct gen_list *l, const char *dtype, uint64_t rows,
					 uint64_t cols, const char *fmt, ...)
{
	struct gen_tensor *t = &l->t[l->count++];
	va_list ap;

	if (l->count > GEN_MAX_TENSORS)
		abort();
	*t = (struct gen_tensor){.dtype = dtype ? dtype : "F32"};
	t->bits = gen_bits(t->dtype);
	t->rank = rows ? 2 : 1;
	t->shape[0] = rows ? rows : cols;
	t->shape[1] = rows ? cols : 0;
	va_start(ap, fmt);
	vsnprintf(t->name, sizeof(t->name), fmt, ap);
	va_end(ap);
	return t;
}

static inline struct gen_tensor *gen_find(struct gen_list *l, const char *name)
{
	for (unsigned int i = 0; i < l->count; i++) {
		if (strcmp(l->t[i].name, name) == 0)
			return &l->t[i];
	}
	return NULL;
}

static inline void gen_drop(struct gen_list *l, const char *name)
{
	struct gen_tensor *t = gen_find(l, name);

	if (!t)
		abort();
	*t = l->t[--l->count];
}

static inline void gen_llama(const struct gen_model *m, struct gen_list *l)
{
	const char *p = m->prefix ? m->prefix : "model.", *d = m->dtype, *n = m->norm_dtype;
	const uint64_t q = (uint64_t)m->heads * m->head_dim,
		       kv = (uint64_t)m->kv_heads * m->head_dim;
	const bool qwen = strcmp(m->family, "qwen2") == 0;

	gen_add(l, d, m->vocab, m->hidden, "%sembed_tokens.weight", p);
	for (unsigned int i = 0; i < m->layers; i++) {
		gen_add(l, n, 0, m->hidden, "%slayers.%u.input_layernorm.weight", p, i);
		gen_add(l, n, 0, m->hidden, "%slayers.%u.post_attention_layernorm.weight", p, i);
		gen_add(l, d, q, m->hidden, "%slayers.%u.self_attn.q_proj.weight", p, i);
		gen_add(l, d, kv, m->hidden, "%slayers.%u.self_attn.k_proj.weight", p, i);
		gen_add(l, d, kv, m->hidden, "%slayers.%u.self_attn.v_proj.weight", p, i);
		gen_add(l, d, m->hidden, q, "%slayers.%u.self_attn.o_proj.weight", p, i);
		gen_add(l, d, m->ffn, m->hidden, "%slayers.%u.mlp.gate_proj.weight", p, i);
		gen_add(l, d, m->ffn, m->hidden, "%slayers.%u.mlp.up_proj.weight", p, i);
		gen_add(l, d, m->hidden, m->ffn, "%slayers.%u.mlp.down_proj.weight", p, i);
		if (m->bias || qwen) {
			gen_add(l, d, 0, q, "%slayers.%u.self_attn.q_proj.bias", p, i);
			gen_add(l, d, 0, kv, "%slayers.%u.self_attn.k_proj.bias", p, i);
			gen_add(l, d, 0, kv, "%slayers.%u.self_attn.v_proj.bias", p, i);
		}
		if (m->bias) {
			gen_add(l, d, 0, m->hidden, "%slayers.%u.self_attn.o_proj.bias", p, i);
			gen_add(l, d, 0, m->ffn, "%slayers.%u.mlp.gate_proj.bias", p, i);
			gen_add(l, d, 0, m->ffn, "%slayers.%u.mlp.up_proj.bias", p, i);
			gen_add(l, d, 0, m->hidden, "%slayers.%u.mlp.down_proj.bias", p, i);
		}
	}
	gen_add(l, n, 0, m->hidden, "%snorm.weight", p);
	if (!m->tied || m->head_stored)
		gen_add(l, d, m->vocab, m->hidden, "lm_head.weight");
}

/* A weight with its bias; or a norm's pair when rows is 0. */
static inline void gen_pair(const struct gen_model *m, struct gen_list *l, uint64_t rows,
			    uint64_t cols, const char *name)
{
	const bool opt_norm = rows == 0;

	if (opt_norm && m->no_affine)
		return;
	gen_add(l, opt_norm ? m->norm_dtype : m->dtype, rows, cols, "%s.weight", name);
	if (opt_norm)
		gen_add(l, m->norm_dtype, 0, cols, "%s.bias", name);
	else if (!m->no_bias)
		gen_add(l, m->dtype, 0, rows, "%s.bias", name);
}

static inline void gen_opt(const struct gen_model *m, struct gen_list *l)
{
	static const char *const square[] = {"self_attn.q_proj", "self_attn.k_proj",
					     "self_attn.v_proj", "self_attn.out_proj"};
	const char *p = m->prefix ? m->prefix : "model.decoder.";
	const unsigned int embed = m->embed_dim ? m->embed_dim : m->hidden;
	char name[200];

	gen_add(l, m->dtype, m->vocab, embed, "%sembed_tokens.weight", p);
	gen_add(l, m->dtype, m->positions + 2, m->hidden, "%sembed_positions.weight", p);
	if (embed != m->hidden) {
		gen_add(l, m->dtype, m->hidden, embed, "%sproject_in.weight", p);
		gen_add(l, m->dtype, embed, m->hidden, "%sproject_out.weight", p);
	}
	for (unsigned int i = 0; i < m->layers; i++) {
		for (unsigned int k = 0; k < 4; k++) {
			snprintf(name, sizeof(name), "%slayers.%u.%s", p, i, square[k]);
			gen_pair(m, l, m->hidden, m->hidden, name);
		}
		snprintf(name, sizeof(name), "%slayers.%u.self_attn_layer_norm", p, i);
		gen_pair(m, l, 0, m->hidden, name);
		snprintf(name, sizeof(name), "%slayers.%u.final_layer_norm", p, i);
		gen_pair(m, l, 0, m->hidden, name);
		snprintf(name, sizeof(name), "%slayers.%u.fc1", p, i);
		gen_pair(m, l, m->ffn, m->hidden, name);
		snprintf(name, sizeof(name), "%slayers.%u.fc2", p, i);
		gen_pair(m, l, m->hidden, m->ffn, name);
	}
	snprintf(name, sizeof(name), "%sfinal_layer_norm", p);
	if (!m->post_norm)
		gen_pair(m, l, 0, m->hidden, name);
	if (!m->tied || m->head_stored)
		gen_add(l, m->dtype, m->vocab, embed, "lm_head.weight");
}

static inline void gen_gpt2(const struct gen_model *m, struct gen_list *l)
{
	const char *p = m->prefix ? m->prefix : "transformer.", *d = m->dtype, *n = m->norm_dtype;
	const uint64_t h = m->hidden;

	gen_add(l, d, m->vocab, h, "%swte.weight", p);
	gen_add(l, d, m->positions, h, "%swpe.weight", p);
	for (unsigned int i = 0; i < m->layers; i++) {
		gen_add(l, n, 0, h, "%sh.%u.ln_1.weight", p, i);
		gen_add(l, n, 0, h, "%sh.%u.ln_1.bias", p, i);
		gen_add(l, n, 0, h, "%sh.%u.ln_2.weight", p, i);
		gen_add(l, n, 0, h, "%sh.%u.ln_2.bias", p, i);
		gen_add(l, d, h, 3 * h, "%sh.%u.attn.c_attn.weight", p, i);
		gen_add(l, d, 0, 3 * h, "%sh.%u.attn.c_attn.bias", p, i);
		gen_add(l, d, h, h, "%sh.%u.attn.c_proj.weight", p, i);
		gen_add(l, d, 0, h, "%sh.%u.attn.c_proj.bias", p, i);
		gen_add(l, d, h, m->ffn, "%sh.%u.mlp.c_fc.weight", p, i);
		gen_add(l, d, 0, m->ffn, "%sh.%u.mlp.c_fc.bias", p, i);
		gen_add(l, d, m->ffn, h, "%sh.%u.mlp.c_proj.weight", p, i);
		gen_add(l, d, 0, h, "%sh.%u.mlp.c_proj.bias", p, i);
	}
	gen_add(l, n, 0, h, "%sln_f.weight", p);
	gen_add(l, n, 0, h, "%sln_f.bias", p);
	if (!m->tied || m->head_stored)
		gen_add(l, d, m->vocab, h, "lm_head.weight");
}

/* The tensors of a model, spread over its files in turn. */
static inline struct gen_list *gen_tensors(const struct gen_model *m)
{
	struct gen_list *l = calloc(1, sizeof(*l));
	uint64_t seed = m->shuffle;

	if (!l)
		abort();
	if (strcmp(m->family, "opt") == 0)
		gen_opt(m, l);
	else if (strcmp(m->family, "gpt2") == 0)
		gen_gpt2(m, l);
	else
		gen_llama(m, l);
	for (unsigned int i = l->count - 1; m->shuffle && i > 0; i--) {
		unsigned int k = (unsigned int)(gen_random(&seed) % (i + 1));
		struct gen_tensor t = l->t[i];

		l->t[i] = l->t[k];
		l->t[k] = t;
	}
	for (unsigned int i = 0; m->files && i < l->count; i++)
		l->t[i].file = i % m->files;
	return l;
}

/* ---- files ----------------------------------------------------------------------------- */

static inline void gen_file_name(const struct gen_model *m, unsigned int file, char out[64])
{
	if (m->files)
		snprintf(out, 64, "model-%05u-of-%05u.safetensors", file + 1, m->files);
	else
		snprintf(out, 64, "model.safetensors");
}

static inline void gen_write_safetensors(const struct gen_model *m, const struct gen_list *l,
					 unsigned int file, const char *path)
{
	struct ctn_buf header = {0};
	uint64_t at = 0, seed = 77 + file + 1000ull * m->seed;
	FILE *f = fopen(path, "we");

	ctn_buf_puts(&header, "{");
	for (unsigned int i = 0; i < l->count; i++) {
		const struct gen_tensor *t = &l->t[i];
		uint64_t bytes = t->shape[0] * (t->rank == 2 ? t->shape[1] : 1) * t->bits / 8;

		if (t->file != file)
			continue;
		ctn_buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu",
			       header.len > 1 ? "," : "", t->name, t->dtype,
			       (unsigned long long)t->shape[0]);
		if (t->rank == 2)
			ctn_buf_printf(&header, ",%llu", (unsigned long long)t->shape[1]);
		ctn_buf_printf(&header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			       (unsigned long long)(at + bytes));
		at += bytes;
	}
	ctn_buf_printf(&header, "}%*s", (int)m->odd, "");
	const uint64_t n = header.len;

	if (!f || header.failed || fwrite(&n, 8, 1, f) != 1 ||
	    fwrite(header.data, 1, header.len, f) != header.len) {
		perror(path);
		exit(2);
	}
	ctn_buf_free(&header);
	for (uint64_t i = 0; !m->sparse && i < at; i++)
		putc_unlocked((int)(gen_random(&seed) & 0xff), f);
	if (fclose(f) || (m->sparse && truncate(path, (off_t)(8 + n + at)))) {
		perror(path);
		exit(2);
	}
}

static inline void gen_write_config(const struct gen_model *m, const char *dir)
{
	json_t *c, *over;
	char path[PATH_MAX];

	if (strcmp(m->family, "gpt2") == 0)
		c = json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "architectures",
			      "GPT2LMHeadModel", "model_type", "gpt2", "n_embd", m->hidden,
			      "n_layer", m->layers, "n_head", m->heads, "n_positions", m->positions,
			      "n_inner", m->ffn, "vocab_size", m->vocab, "tie_word_embeddings",
			      m->tied);
	else if (strcmp(m->family, "opt") == 0)
		c = json_pack("{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:b, s:b, s:b}",
			      "architectures", "OPTForCausalLM", "model_type", "opt", "hidden_size",
			      m->hidden, "num_hidden_layers", m->layers, "num_attention_heads",
			      m->heads, "ffn_dim", m->ffn, "vocab_size", m->vocab,
			      "max_position_embeddings", m->positions, "word_embed_proj_dim",
			      m->embed_dim ? m->embed_dim : m->hidden, "do_layer_norm_before",
			      !m->post_norm, "enable_bias", !m->no_bias,
			      "layer_norm_elementwise_affine", !m->no_affine, "tie_word_embeddings",
			      m->tied);
	else
		c = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:n, s:b}",
			      "model_type", m->family, "hidden_size", m->hidden,
			      "num_hidden_layers", m->layers, "num_attention_heads", m->heads,
			      "num_key_value_heads", m->kv_heads, "head_dim", m->head_dim,
			      "intermediate_size", m->ffn, "vocab_size", m->vocab,
			      "max_position_embeddings", m->positions, "sliding_window",
			      "tie_word_embeddings", m->tied);
	if (m->bias) {
		json_object_set_new(c, "attention_bias", json_true());
		json_object_set_new(c, "mlp_bias", json_true());
	}
	over = m->config ? json_loads(m->config, 0, NULL) : NULL;
	if (!c || (m->config && !over) || (over && json_object_update(c, over)) ||
	    json_dump_file(c, gen_path(path, dir, "config.json"), JSON_INDENT(1))) {
		fprintf(stderr, "cannot write %s: %s\n", path, m->config ? m->config : "");
		exit(2);
	}
	json_decref(over);
	json_decref(c);
}

static inline void gen_write_index(const struct gen_model *m, const struct gen_list *l,
				   const char *dir)
{
	struct ctn_buf b = {0};

	ctn_buf_puts(&b, "{\"metadata\":{},\"weight_map\":{");
	for (unsigned int i = 0; i < l->count; i++) {
		char name[64];

		gen_file_name(m, l->t[i].file, name);
		ctn_buf_printf(&b, "%s\"%s\":\"%s\"", i ? "," : "", l->t[i].name, name);
	}
	ctn_buf_puts(&b, "}}");
	gen_write_text(dir, "model.safetensors.index.json", b.data);
	ctn_buf_free(&b);
}

/* Writes a folder with these tensors; returns its path (good until the next one). */
static inline const char *gen_write_list(const struct gen_model *m, const struct gen_list *l)
{
	const char *dir = gen_dir();
	const unsigned int files = m->files ? m->files : 1;

	for (unsigned int i = 0; i < files; i++) {
		char name[64], path[PATH_MAX];

		gen_file_name(m, i, name);
		gen_write_safetensors(m, l, i, gen_path(path, dir, name));
	}
	if (m->files)
		gen_write_index(m, l, dir);
	gen_write_config(m, dir);
	return dir;
}

static inline const char *gen_write(const struct gen_model *m)
{
	struct gen_list *l = gen_tensors(m);
	const char *dir = gen_write_list(m, l);

	free(l);
	return dir;
}

#endif
