// SPDX-License-Identifier: MIT
/*
 * OPT: learned positions after two rows of padding, biases, LayerNorm. The 350m variant
 * normalises after each block, has no final norm and a narrower token embedding with a
 * projection in and out.
 */
#include "checkpoint/family.h"

/* Rows of the position table before position 0. */
#define POSITION_OFFSET 2

static int read_opt(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
		    struct ctn_err *err)
{
	bool norm_removed, bias, affine;
	int rc;

	if ((rc = ctn_config_u32(cfg, "hidden_size", CTN_CONFIG_REQUIRED, &arch->hidden, err)) ||
	    (rc = ctn_config_u32(cfg, "ffn_dim", CTN_CONFIG_REQUIRED, &arch->ffn, err)) ||
	    (rc = ctn_config_u32(cfg, "num_hidden_layers", CTN_CONFIG_REQUIRED, &arch->layers,
				 err)) ||
	    (rc = ctn_config_u32(cfg, "num_attention_heads", CTN_CONFIG_REQUIRED, &arch->heads,
				 err)) ||
	    (rc = ctn_config_u32(cfg, "vocab_size", CTN_CONFIG_REQUIRED, &arch->vocab, err)) ||
	    (rc = ctn_config_u32(cfg, "max_position_embeddings", 2048, &arch->max_positions,
				 err)) ||
	    (rc = ctn_config_u32(cfg, "word_embed_proj_dim", arch->hidden, &arch->embed_dim,
				 err)) ||
	    (rc = ctn_config_activation(cfg, "activation_function", CTN_ACT_RELU, &arch->activation,
					err)) ||
	    (rc = ctn_config_bool(cfg, "do_layer_norm_before", true, &arch->norm_first, err)) ||
	    (rc = ctn_config_bool(cfg, "_remove_final_layer_norm", false, &norm_removed, err)) ||
	    (rc = ctn_config_bool(cfg, "enable_bias", true, &bias, err)) ||
	    (rc = ctn_config_bool(cfg, "layer_norm_elementwise_affine", true, &affine, err)) ||
	    (rc = ctn_config_bool(cfg, "tie_word_embeddings", true, &arch->tied, err)))
		return rc;
	arch->kv_heads = arch->heads;
	arch->norm = CTN_NORM_LAYER;
	arch->norm_eps = 1e-5f;
	arch->final_norm = arch->norm_first && !norm_removed;
	arch->positions = CTN_POSITIONS_LEARNED;
	arch->position_offset = POSITION_OFFSET;
	*features = 0;
	if (bias)
		*features |= CTN_HAS_QKV_BIAS | CTN_HAS_OUT_BIAS | CTN_HAS_MLP_BIAS;
	if (affine)
		*features |= CTN_HAS_NORM_W;
	return 0;
}

#define H  CTN_DIM_HIDDEN
#define L  "layers.#."
#define QB CTN_HAS_QKV_BIAS
#define NW CTN_HAS_NORM_W

static const struct ctn_tensor_spec specs[] = {
	{CTN_ROLE_EMBED, "embed_tokens.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}},
	{CTN_ROLE_POSITIONS, "embed_positions.weight", .dims = {CTN_DIM_POSITIONS, H}},
	{CTN_ROLE_PROJECT_IN, "project_in.weight", .dims = {H, CTN_DIM_EMBED},
	 .needs = CTN_HAS_PROJECTION},
	{CTN_ROLE_NORM1_W, L "self_attn_layer_norm.weight", .dims = {H}, .needs = NW},
	{CTN_ROLE_NORM1_B, L "self_attn_layer_norm.bias", .dims = {H}, .needs = NW},
	{CTN_ROLE_QKV_W, L "self_attn.q_proj.weight", .dims = {CTN_DIM_Q, H}},
	{CTN_ROLE_QKV_W, L "self_attn.k_proj.weight", .dims = {CTN_DIM_KV, H}},
	{CTN_ROLE_QKV_W, L "self_attn.v_proj.weight", .dims = {CTN_DIM_KV, H}},
	{CTN_ROLE_QKV_B, L "self_attn.q_proj.bias", .dims = {CTN_DIM_Q}, .needs = QB},
	{CTN_ROLE_QKV_B, L "self_attn.k_proj.bias", .dims = {CTN_DIM_KV}, .needs = QB},
	{CTN_ROLE_QKV_B, L "self_attn.v_proj.bias", .dims = {CTN_DIM_KV}, .needs = QB},
	{CTN_ROLE_OUT_W, L "self_attn.out_proj.weight", .dims = {H, CTN_DIM_Q}},
	{CTN_ROLE_OUT_B, L "self_attn.out_proj.bias", .dims = {H}, .needs = CTN_HAS_OUT_BIAS},
	{CTN_ROLE_NORM2_W, L "final_layer_norm.weight", .dims = {H}, .needs = NW},
	{CTN_ROLE_NORM2_B, L "final_layer_norm.bias", .dims = {H}, .needs = NW},
	{CTN_ROLE_UP_W, L "fc1.weight", .dims = {CTN_DIM_FFN, H}},
	{CTN_ROLE_UP_B, L "fc1.bias", .dims = {CTN_DIM_FFN}, .needs = CTN_HAS_MLP_BIAS},
	{CTN_ROLE_DOWN_W, L "fc2.weight", .dims = {H, CTN_DIM_FFN}},
	{CTN_ROLE_DOWN_B, L "fc2.bias", .dims = {H}, .needs = CTN_HAS_MLP_BIAS},
	{CTN_ROLE_NORM_F_W, "final_layer_norm.weight", .dims = {H},
	 .needs = NW | CTN_HAS_FINAL_NORM},
	{CTN_ROLE_NORM_F_B, "final_layer_norm.bias", .dims = {H}, .needs = NW | CTN_HAS_FINAL_NORM},
	{CTN_ROLE_PROJECT_OUT, "project_out.weight", .dims = {CTN_DIM_EMBED, H},
	 .needs = CTN_HAS_PROJECTION},
	{CTN_ROLE_HEAD, "lm_head.weight", .dims = {CTN_DIM_VOCAB, CTN_DIM_EMBED}, .bare = true,
	 .needs = CTN_HAS_HEAD},
};

const struct ctn_family ctn_family_opt = {
	.name = "opt",
	.architectures = (const char *const[]){"OPTForCausalLM", "OPTModel", NULL},
	/* The sizes were published with different prefixes. */
	.prefixes = (const char *const[]){"model.decoder.", "decoder.", "", NULL},
	.specs = specs,
	.spec_count = CTN_ARRAY_LEN(specs),
	.ignored = (const char *const[]){"version", NULL},
	.read = read_opt,
};
