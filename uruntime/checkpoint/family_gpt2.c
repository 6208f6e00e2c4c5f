// SPDX-License-Identifier: MIT
/* GPT-2: learned positions, LayerNorm, weights stored [in, out], q, k and v in one tensor. */
#include "checkpoint/family.h"

static int read_gpt2(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
		     struct ctn_err *err)
{
	bool scaled;
	double eps;
	int rc;

	if ((rc = ctn_config_u32(cfg, "n_embd", CTN_CONFIG_REQUIRED, &arch->hidden, err)) ||
	    (rc = ctn_config_u32(cfg, "n_layer", CTN_CONFIG_REQUIRED, &arch->layers, err)) ||
	    (rc = ctn_config_u32(cfg, "n_head", CTN_CONFIG_REQUIRED, &arch->heads, err)) ||
	    (rc = ctn_config_u32(cfg, "vocab_size", CTN_CONFIG_REQUIRED, &arch->vocab, err)) ||
	    (rc = ctn_config_u32(cfg, "n_inner", 4 * arch->hidden, &arch->ffn, err)) ||
	    (rc = ctn_config_u32(cfg, "n_positions", 1024, &arch->max_positions, err)) ||
	    (rc = ctn_config_real(cfg, "layer_norm_epsilon", 1e-5, &eps, err)) ||
	    (rc = ctn_config_activation(cfg, "activation_function", CTN_ACT_GELU_TANH,
					&arch->activation, err)) ||
	    (rc = ctn_config_bool(cfg, "scale_attn_weights", true, &scaled, err)) ||
	    (rc = ctn_config_bool(cfg, "tie_word_embeddings", true, &arch->tied, err)))
		return rc;
	arch->kv_heads = arch->heads;
	arch->embed_dim = arch->hidden;
	arch->norm = CTN_NORM_LAYER;
	arch->norm_eps = (float)eps;
	arch->norm_first = true;
	arch->final_norm = true;
	arch->positions = CTN_POSITIONS_LEARNED;
	arch->attn_scale = scaled ? 0 : 1;
	*features = CTN_HAS_QKV_BIAS | CTN_HAS_OUT_BIAS | CTN_HAS_MLP_BIAS | CTN_HAS_NORM_W;
	return 0;
}

#define H CTN_DIM_HIDDEN
#define L "h.#."

static const struct ctn_tensor_spec specs[] = {
	{CTN_ROLE_EMBED, "wte.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}},
	{CTN_ROLE_POSITIONS, "wpe.weight", .dims = {CTN_DIM_POSITIONS, H}},
	{CTN_ROLE_NORM1_W, L "ln_1.weight", .dims = {H}},
	{CTN_ROLE_NORM1_B, L "ln_1.bias", .dims = {H}},
	{CTN_ROLE_QKV_W, L "attn.c_attn.weight", .dims = {H, CTN_DIM_QKV}, .transposed = true},
	{CTN_ROLE_QKV_B, L "attn.c_attn.bias", .dims = {CTN_DIM_QKV}},
	{CTN_ROLE_OUT_W, L "attn.c_proj.weight", .dims = {CTN_DIM_Q, H}, .transposed = true},
	{CTN_ROLE_OUT_B, L "attn.c_proj.bias", .dims = {H}},
	{CTN_ROLE_NORM2_W, L "ln_2.weight", .dims = {H}},
	{CTN_ROLE_NORM2_B, L "ln_2.bias", .dims = {H}},
	{CTN_ROLE_UP_W, L "mlp.c_fc.weight", .dims = {H, CTN_DIM_FFN}, .transposed = true},
	{CTN_ROLE_UP_B, L "mlp.c_fc.bias", .dims = {CTN_DIM_FFN}},
	{CTN_ROLE_DOWN_W, L "mlp.c_proj.weight", .dims = {CTN_DIM_FFN, H}, .transposed = true},
	{CTN_ROLE_DOWN_B, L "mlp.c_proj.bias", .dims = {H}},
	{CTN_ROLE_NORM_F_W, "ln_f.weight", .dims = {H}},
	{CTN_ROLE_NORM_F_B, "ln_f.bias", .dims = {H}},
	{CTN_ROLE_HEAD, "lm_head.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}, .bare = true,
	 .needs = CTN_HAS_HEAD},
};

const struct ctn_family ctn_family_gpt2 = {
	.name = "gpt2",
	.architectures = (const char *const[]){"GPT2LMHeadModel", "GPT2Model", NULL},
	.prefixes = (const char *const[]){"transformer.", "", NULL},
	.specs = specs,
	.spec_count = CTN_ARRAY_LEN(specs),
	/* The causal mask, stored as if it were a parameter. */
	.ignored = (const char *const[]){"h.#.attn.bias", "h.#.attn.masked_bias", NULL},
	.read = read_gpt2,
};
