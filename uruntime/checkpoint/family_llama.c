// SPDX-License-Identifier: MIT
/* LLaMA, and what differs from it by its config alone: Mistral and Qwen2. */
#include "checkpoint/family.h"

/* What the families take for a key that is absent. */
struct defaults {
	uint32_t kv_heads; /* 0: as many as heads */
	uint32_t max_positions;
	uint32_t window;
	bool use_window;
	bool config_biases; /* attention_bias and mlp_bias are read */
	unsigned int features;
};

static int read_config(struct ctn_config *cfg, const struct defaults *d, struct ctn_arch *arch,
		       unsigned int *features, struct ctn_err *err)
{
	bool attention_bias = false, mlp_bias = false;
	double eps;
	int rc;

	if ((rc = ctn_config_u32(cfg, "hidden_size", CTN_CONFIG_REQUIRED, &arch->hidden, err)) ||
	    (rc = ctn_config_u32(cfg, "intermediate_size", CTN_CONFIG_REQUIRED, &arch->ffn, err)) ||
	    (rc = ctn_config_u32(cfg, "num_hidden_layers", CTN_CONFIG_REQUIRED, &arch->layers,
				 err)) ||
	    (rc = ctn_config_u32(cfg, "num_attention_heads", CTN_CONFIG_REQUIRED, &arch->heads,
				 err)) ||
	    (rc = ctn_config_u32(cfg, "vocab_size", CTN_CONFIG_REQUIRED, &arch->vocab, err)) ||
	    (rc = ctn_config_u32(cfg, "num_key_value_heads", d->kv_heads, &arch->kv_heads, err)) ||
	    (rc = ctn_config_u32(cfg, "head_dim", 0, &arch->head_dim, err)) ||
	    (rc = ctn_config_u32(cfg, "max_position_embeddings", d->max_positions,
				 &arch->max_positions, err)) ||
	    (rc = ctn_config_real(cfg, "rms_norm_eps", 1e-6, &eps, err)) ||
	    (rc = ctn_config_activation(cfg, "hidden_act", CTN_ACT_SILU, &arch->activation, err)) ||
	    (rc = ctn_config_bool(cfg, "tie_word_embeddings", false, &arch->tied, err)) ||
	    (rc = ctn_config_rope(cfg, 10000, &arch->rope, err)))
		return rc;
	if (d->config_biases &&
	    ((rc = ctn_config_bool(cfg, "attention_bias", false, &attention_bias, err)) ||
	     (rc = ctn_config_bool(cfg, "mlp_bias", false, &mlp_bias, err))))
		return rc;
	rc = ctn_config_window(cfg, d->use_window, d->window, arch->max_positions, err);
	if (rc)
		return rc;
	arch->embed_dim = arch->hidden;
	arch->norm = CTN_NORM_RMS;
	arch->norm_eps = (float)eps;
	arch->norm_first = true;
	arch->final_norm = true;
	arch->positions = CTN_POSITIONS_ROPE;
	arch->gated = true;
	*features = d->features;
	if (attention_bias)
		*features |= CTN_HAS_QKV_BIAS | CTN_HAS_OUT_BIAS;
	if (mlp_bias)
		*features |= CTN_HAS_MLP_BIAS;
	return 0;
}

static int read_llama(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
		      struct ctn_err *err)
{
	static const struct defaults d = {
		.max_positions = 2048,
		.use_window = true,
		.config_biases = true,
		.features = CTN_HAS_NORM_W,
	};

	return read_config(cfg, &d, arch, features, err);
}

static int read_mistral(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
			struct ctn_err *err)
{
	static const struct defaults d = {
		.kv_heads = 8,
		.max_positions = 131072,
		.window = 4096,
		.use_window = true,
		.features = CTN_HAS_NORM_W,
	};

	return read_config(cfg, &d, arch, features, err);
}

static int read_qwen2(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
		      struct ctn_err *err)
{
	static const struct defaults d = {
		.kv_heads = 32,
		.max_positions = 32768,
		.window = 4096,
		.features = CTN_HAS_NORM_W | CTN_HAS_QKV_BIAS,
	};
	bool ignored;
	int rc;

	/* Some writers note it; the biases are there whatever it says. */
	rc = ctn_config_bool(cfg, "attention_bias", true, &ignored, err);
	return rc ? rc : read_config(cfg, &d, arch, features, err);
}

#define H  CTN_DIM_HIDDEN
#define L  "layers.#."
#define QB CTN_HAS_QKV_BIAS

static const struct ctn_tensor_spec specs[] = {
	{CTN_ROLE_EMBED, "embed_tokens.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}},
	{CTN_ROLE_NORM1_W, L "input_layernorm.weight", .dims = {H}, .needs = CTN_HAS_NORM_W},
	{CTN_ROLE_QKV_W, L "self_attn.q_proj.weight", .dims = {CTN_DIM_Q, H}},
	{CTN_ROLE_QKV_W, L "self_attn.k_proj.weight", .dims = {CTN_DIM_KV, H}},
	{CTN_ROLE_QKV_W, L "self_attn.v_proj.weight", .dims = {CTN_DIM_KV, H}},
	{CTN_ROLE_QKV_B, L "self_attn.q_proj.bias", .dims = {CTN_DIM_Q}, .needs = QB},
	{CTN_ROLE_QKV_B, L "self_attn.k_proj.bias", .dims = {CTN_DIM_KV}, .needs = QB},
	{CTN_ROLE_QKV_B, L "self_attn.v_proj.bias", .dims = {CTN_DIM_KV}, .needs = QB},
	{CTN_ROLE_OUT_W, L "self_attn.o_proj.weight", .dims = {H, CTN_DIM_Q}},
	{CTN_ROLE_OUT_B, L "self_attn.o_proj.bias", .dims = {H}, .needs = CTN_HAS_OUT_BIAS},
	{CTN_ROLE_NORM2_W, L "post_attention_layernorm.weight", .dims = {H},
	 .needs = CTN_HAS_NORM_W},
	{CTN_ROLE_UP_W, L "mlp.gate_proj.weight", .dims = {CTN_DIM_FFN, H}},
	{CTN_ROLE_UP_W, L "mlp.up_proj.weight", .dims = {CTN_DIM_FFN, H}},
	{CTN_ROLE_UP_B, L "mlp.gate_proj.bias", .dims = {CTN_DIM_FFN}, .needs = CTN_HAS_MLP_BIAS},
	{CTN_ROLE_UP_B, L "mlp.up_proj.bias", .dims = {CTN_DIM_FFN}, .needs = CTN_HAS_MLP_BIAS},
	{CTN_ROLE_DOWN_W, L "mlp.down_proj.weight", .dims = {H, CTN_DIM_FFN}},
	{CTN_ROLE_DOWN_B, L "mlp.down_proj.bias", .dims = {H}, .needs = CTN_HAS_MLP_BIAS},
	{CTN_ROLE_NORM_F_W, "norm.weight", .dims = {H}, .needs = CTN_HAS_FINAL_NORM},
	{CTN_ROLE_HEAD, "lm_head.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}, .bare = true,
	 .needs = CTN_HAS_HEAD},
};

static const char *const prefixes[] = {"model.", "", NULL};
/* Older writers stored the frequencies of the rotary positions. */
static const char *const ignored[] = {"layers.#.self_attn.rotary_emb.inv_freq",
				      "rotary_emb.inv_freq", NULL};

#define LLAMA_LIKE(family)                                                                         \
	.name = #family, .prefixes = prefixes, .specs = specs, .spec_count = CTN_ARRAY_LEN(specs), \
	.ignored = ignored, .read = read_##family

const struct ctn_family ctn_family_llama = {
	LLAMA_LIKE(llama),
	.architectures = (const char *const[]){"LlamaForCausalLM", "LlamaModel", NULL},
};

const struct ctn_family ctn_family_mistral = {
	LLAMA_LIKE(mistral),
	.architectures = (const char *const[]){"MistralForCausalLM", "MistralModel", NULL},
};

const struct ctn_family ctn_family_qwen2 = {
	LLAMA_LIKE(qwen2),
	.architectures = (const char *const[]){"Qwen2ForCausalLM", "Qwen2Model", NULL},
};
