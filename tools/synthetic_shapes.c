// SPDX-License-Identifier: MIT
/* The shapes, config.json and header of a synthetic checkpoint. */
#include "synthetic.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define HEAD_DIM   64
#define LAYERS_MIN 6 /* fewer are no pipeline: then the layers get narrower */
#define FFN_STEP   16
#define POSITIONS  1024

struct shape {
	uint32_t layers, hidden, heads, kv_heads, ffn, vocab;
};

/* A letter a dimension: h hidden, k all key-value heads, 3 joined q, k and v, f ffn, v vocabulary,
 * p positions (n: with OPT's two rows before the first). '#' is the number of the layer. */
struct tensor {
	const char *name, *dims;
};

struct family {
	const char *name;
	unsigned int ffn_ratio;  /* usual ffn / hidden, in quarters */
	unsigned int kv_divisor; /* query heads of one key-value head */
	const struct tensor *first, *layer, *last;
	void (*config)(const struct shape *shape, struct ctn_buf *out);
};

#define TENSORS(...) ((const struct tensor[]){__VA_ARGS__, {NULL, NULL}})

static void llama_config(const struct shape *s, struct ctn_buf *out)
{
	ctn_buf_printf(
		out,
		"\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\",\n"
		"\"hidden_size\": %u, \"intermediate_size\": %u, \"num_hidden_layers\": %u,\n"
		"\"num_attention_heads\": %u, \"num_key_value_heads\": %u,\n"
		"\"max_position_embeddings\": %d, \"rope_theta\": 10000.0,\n"
		"\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05,\n"
		"\"tie_word_embeddings\": false",
		s->hidden, s->ffn, s->layers, s->heads, s->kv_heads, POSITIONS);
}

static void opt_config(const struct shape *s, struct ctn_buf *out)
{
	ctn_buf_printf(out,
		       "\"architectures\": [\"OPTForCausalLM\"], \"model_type\": \"opt\",\n"
		       "\"hidden_size\": %u, \"word_embed_proj_dim\": %u, \"ffn_dim\": %u,\n"
		       "\"num_hidden_layers\": %u, \"num_attention_heads\": %u,\n"
		       "\"max_position_embeddings\": %d, \"activation_function\": \"relu\",\n"
		       "\"do_layer_norm_before\": true, \"tie_word_embeddings\": true",
		       s->hidden, s->hidden, s->ffn, s->layers, s->heads, POSITIONS);
}

static void gpt2_config(const struct shape *s, struct ctn_buf *out)
{
	ctn_buf_printf(out,
		       "\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\",\n"
		       "\"n_embd\": %u, \"n_inner\": %u, \"n_layer\": %u, \"n_head\": %u,\n"
		       "\"n_positions\": %d, \"activation_function\": \"gelu_new\",\n"
		       "\"layer_norm_epsilon\": 1e-05, \"tie_word_embeddings\": true",
		       s->hidden, s->ffn, s->layers, s->heads, POSITIONS);
}

#define LL "model.layers.#."
#define OL "model.decoder.layers.#."
#define GL "transformer.h.#."

static const struct family families[] = {
	{
		.name = "llama",
		.ffn_ratio = 11,
		.kv_divisor = 4,
		.first = TENSORS({"model.embed_tokens.weight", "vh"}),
		.layer = TENSORS(
			{LL "input_layernorm.weight", "h"}, {LL "self_attn.q_proj.weight", "hh"},
			{LL "self_attn.k_proj.weight", "kh"}, {LL "self_attn.v_proj.weight", "kh"},
			{LL "self_attn.o_proj.weight", "hh"},
			{LL "post_attention_layernorm.weight", "h"},
			{LL "mlp.gate_proj.weight", "fh"}, {LL "mlp.up_proj.weight", "fh"},
			{LL "mlp.down_proj.weight", "hf"}),
		.last = TENSORS({"model.norm.weight", "h"}, {"lm_head.weight", "vh"}),
		.config = llama_config,
	},
	{
		.name = "opt",
		.ffn_ratio = 16,
		.kv_divisor = 1,
		.first = TENSORS({"model.decoder.embed_tokens.weight", "vh"},
				 {"model.decoder.embed_positions.weight", "nh"}),
		.layer = TENSORS(
			{OL "self_attn_layer_norm.weight", "h"},
			{OL "self_attn_layer_norm.bias", "h"}, {OL "self_attn.q_proj.weight", "hh"},
			{OL "self_attn.q_proj.bias", "h"}, {OL "self_attn.k_proj.weight", "hh"},
			{OL "self_attn.k_proj.bias", "h"}, {OL "self_attn.v_proj.weight", "hh"},
			{OL "self_attn.v_proj.bias", "h"}, {OL "self_attn.out_proj.weight", "hh"},
			{OL "self_attn.out_proj.bias", "h"}, {OL "final_layer_norm.weight", "h"},
			{OL "final_layer_norm.bias", "h"}, {OL "fc1.weight", "fh"},
			{OL "fc1.bias", "f"}, {OL "fc2.weight", "hf"}, {OL "fc2.bias", "h"}),
		.last = TENSORS({"model.decoder.final_layer_norm.weight", "h"},
				{"model.decoder.final_layer_norm.bias", "h"}),
		.config = opt_config,
	},
	{
		.name = "gpt2",
		.ffn_ratio = 16,
		.kv_divisor = 1,
		.first =
			TENSORS({"transformer.wte.weight", "vh"}, {"transformer.wpe.weight", "ph"}),
		.layer = TENSORS({GL "ln_1.weight", "h"}, {GL "ln_1.bias", "h"},
				 {GL "attn.c_attn.weight", "h3"}, {GL "attn.c_attn.bias", "3"},
				 {GL "attn.c_proj.weight", "hh"}, {GL "attn.c_proj.bias", "h"},
				 {GL "ln_2.weight", "h"}, {GL "ln_2.bias", "h"},
				 {GL "mlp.c_fc.weight", "hf"}, {GL "mlp.c_fc.bias", "f"},
				 {GL "mlp.c_proj.weight", "fh"}, {GL "mlp.c_proj.bias", "h"}),
		.last = TENSORS({"transformer.ln_f.weight", "h"}, {"transformer.ln_f.bias", "h"}),
		.config = gpt2_config,
	},
};

static const struct family *find_family(const char *name)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(families); i++) {
		if (strcmp(families[i].name, name) == 0)
			return &families[i];
	}
	return NULL;
}

int ctn_synthetic_family(const char *name, const char **family, struct ctn_err *err)
{
	const struct family *f = name ? find_family(name) : NULL;

	if (!f)
		return ctn_err_set(err, -EINVAL, "expected %s, %s or %s, found \"%s\"",
				   families[0].name, families[1].name, families[2].name,
				   name ? name : "");
	*family = f->name;
	return 0;
}

/* ---- shapes ----------------------------------------------------------------------------- */

static uint64_t dim(char letter, const struct shape *s)
{
	switch (letter) {
	case 'h':
		return s->hidden;
	case 'k':
		return (uint64_t)s->kv_heads * HEAD_DIM;
	case '3':
		return 3 * (uint64_t)s->hidden;
	case 'f':
		return s->ffn;
	case 'v':
		return s->vocab;
	case 'p':
		return POSITIONS;
	case 'n':
		return POSITIONS + 2;
	}
	CTN_ASSERT(!"letter of a dimension");
	return 0;
}

static uint64_t tensor_values(const struct tensor *t, const struct shape *s)
{
	uint64_t n = 1;

	for (const char *d = t->dims; *d; d++)
		n *= dim(*d, s);
	return n;
}

static uint64_t values(const struct tensor *t, const struct shape *s)
{
	uint64_t n = 0;

	for (; t->name; t++)
		n += tensor_values(t, s);
	return n;
}

static uint64_t layer_values(const struct family *f, struct shape s, uint32_t ffn)
{
	s.ffn = ffn;
	return values(f->layer, &s);
}

/* The widest layers of which there are enough, then their number, then the ffn that brings the
 * sum nearest to what was asked for. */
static int find_shape(const struct ctn_synthetic *want, const struct family *f, struct shape *s,
		      struct ctn_err *err)
{
	static const uint32_t widths[] = {4096, 2048, 1024, 512, 256, 128, 64};
	uint64_t target = want->bytes / 2, fixed = 0, layer = 0, total, bare, slope, rest;

	for (size_t i = 0; i < CTN_ARRAY_LEN(widths); i++) {
		*s = (struct shape){.hidden = widths[i], .vocab = 8 * widths[i]};
		s->heads = s->hidden / HEAD_DIM;
		s->kv_heads = CTN_MAX(s->heads / f->kv_divisor, 1u);
		s->ffn = s->hidden / 4 * f->ffn_ratio;
		fixed = values(f->first, s) + values(f->last, s);
		layer = values(f->layer, s);
		if (fixed + LAYERS_MIN * layer <= target)
			break;
	}
	if (fixed + LAYERS_MIN * layer > target)
		return ctn_err_set(err, -ERANGE,
				   "bytes: expected at least %" PRIu64 " for %s, found %" PRIu64,
				   2 * (fixed + LAYERS_MIN * layer), f->name, want->bytes);
	s->layers = (uint32_t)CTN_MIN((target - fixed + layer / 2) / layer, (uint64_t)1 << 20);
	bare = layer_values(f, *s, 0);
	slope = layer_values(f, *s, FFN_STEP) - bare;
	rest = (target - fixed) / s->layers;
	if (rest > bare)
		s->ffn = FFN_STEP *
			 (uint32_t)CTN_MIN((rest - bare + slope / 2) / slope, (uint64_t)1 << 24);
	total = fixed + s->layers * values(f->layer, s);
	if ((total > target ? total - target : target - total) > target / 50)
		return ctn_err_set(err, -ERANGE,
				   "bytes: no shapes of %s are within 2 %% of %" PRIu64, f->name,
				   want->bytes);
	return 0;
}

/* ---- text ------------------------------------------------------------------------------- */

static void add_tensor(struct ctn_synthetic_text *text, const struct tensor *t,
		       const struct shape *s, uint32_t layer)
{
	const char *hash = strchr(t->name, '#');
	uint64_t bytes = 2 * tensor_values(t, s);

	ctn_buf_puts(&text->head, ",\"");
	if (hash)
		ctn_buf_printf(&text->head, "%.*s%u%s", (int)(hash - t->name), t->name, layer,
			       hash + 1);
	else
		ctn_buf_puts(&text->head, t->name);
	ctn_buf_puts(&text->head, "\":{\"dtype\":\"F16\",\"shape\":[");
	for (const char *d = t->dims; *d; d++)
		ctn_buf_printf(&text->head, "%s%" PRIu64, d == t->dims ? "" : ",", dim(*d, s));
	ctn_buf_printf(&text->head, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
		       text->data_bytes, text->data_bytes + bytes);
	text->data_bytes += bytes;
}

static void add_tensors(struct ctn_synthetic_text *text, const struct tensor *t,
			const struct shape *s, uint32_t layer)
{
	for (; t->name; t++)
		add_tensor(text, t, s, layer);
}

/* The length in front, which is known at the end: little-endian, whatever the machine. */
static void set_length(struct ctn_buf *head)
{
	uint64_t n;

	while (head->len % 8)
		ctn_buf_puts(head, " ");
	if (head->failed)
		return;
	n = head->len - sizeof(n);
	for (size_t i = 0; i < sizeof(n); i++)
		head->data[i] = (char)(n >> (8 * i));
}

int ctn_synthetic_describe(const struct ctn_synthetic *want, struct ctn_synthetic_text *text,
			   struct ctn_err *err)
{
	const struct family *f = find_family(want->family);
	struct shape s;
	int rc;

	*text = (struct ctn_synthetic_text){0};
	rc = find_shape(want, f, &s, err);
	if (rc)
		return rc;
	ctn_buf_puts(&text->config, "{\n");
	f->config(&s, &text->config);
	ctn_buf_printf(&text->config,
		       ",\n\"vocab_size\": %u, \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
		       "\"torch_dtype\": \"float16\"\n}\n",
		       s.vocab);
	ctn_buf_append(&text->head, "\0\0\0\0\0\0\0\0", 8);
	ctn_buf_puts(&text->head, "{\"__metadata__\":{\"format\":\"pt\"}");
	add_tensors(text, f->first, &s, 0);
	for (uint32_t i = 0; i < s.layers; i++)
		add_tensors(text, f->layer, &s, i);
	add_tensors(text, f->last, &s, 0);
	ctn_buf_puts(&text->head, "}");
	set_length(&text->head);
	if (!text->config.failed && !text->head.failed)
		return 0;
	ctn_synthetic_text_free(text);
	return ctn_err_set(err, -ENOMEM, "out of memory");
}

void ctn_synthetic_text_free(struct ctn_synthetic_text *text)
{
	ctn_buf_free(&text->config);
	ctn_buf_free(&text->head);
}
