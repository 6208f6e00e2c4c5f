// SPDX-License-Identifier: MIT
/*
 * The keys of config.json that no family has taken. Two tables: keys that change the
 * arithmetic of some decoder and are refused by name unless their value is neutral, and keys
 * that are known to change nothing when a model is served. A key in neither is only logged:
 * writers add bookkeeping all the time.
 */
#include "checkpoint/config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* null, false, an empty array or object, and the neutral number are harmless. */
static const struct {
	const char *key;
	double neutral; /* NAN: no number is */
} refused[] = {
	/* attention: which positions are seen, how scores are made */
	{"sliding_window", NAN},
	{"use_sliding_window", NAN},
	{"sliding_window_pattern", NAN},
	{"attention_window_size", NAN},
	{"attention_chunk_size", NAN},
	{"attn_logit_softcapping", NAN},
	{"attn_logit_softcap", NAN},
	{"attention_multiplier", NAN},
	{"attn_scale", NAN},
	{"attn_temperature_tuning", 0},
	{"query_pre_attn_scalar", NAN},
	{"scale_attn_by_inverse_layer_idx", NAN},
	{"mup_attn", NAN},
	{"clip_qkv", NAN},
	{"qk_norm", NAN},
	{"use_qk_norm", NAN},
	{"qk_layernorm", NAN},
	{"use_attention_sinks", NAN},
	{"attention_sinks", NAN},
	{"attention_bias", NAN},
	{"qkv_bias", NAN},
	{"use_qkv_bias", NAN},
	{"attention_out_bias", NAN},
	{"add_cross_attention", NAN},
	{"multi_query", NAN},
	{"parallel_attn", NAN},
	{"use_parallel_residual", NAN},
	{"kv_lora_rank", NAN},
	{"q_lora_rank", NAN},
	{"pruned_heads", NAN},
	/* positions */
	{"alibi", NAN},
	{"use_alibi", NAN},
	{"no_rope_layers", NAN},
	{"no_rope_layer_interval", 0},
	{"partial_rotary_factor", 1},
	{"rotary_pct", 1},
	{"rotary_dim", NAN},
	{"rope_interleave", NAN},
	{"rope_interleaved", NAN},
	{"rope_local_base_freq", NAN},
	{"rope_scaling", NAN},
	{"rope_parameters", NAN},
	{"use_mrope", NAN},
	{"use_dynamic_ntk", NAN},
	{"use_logn_attn", NAN},
	/* layers */
	{"mlp_bias", NAN},
	{"use_bias", NAN},
	{"num_experts", 0},
	{"num_local_experts", 0},
	{"n_routed_experts", 0},
	{"moe_intermediate_size", 0},
	{"cross_attention_layers", NAN},
	{"add_bias_linear", NAN},
	{"apply_residual_connection_post_layernorm", NAN},
	/* scales */
	{"embedding_multiplier", 1},
	{"residual_multiplier", 1},
	{"logits_scaling", 1},
	{"logit_scale", 1},
	{"output_multiplier_scale", 1},
	{"embedding_multiplier_scale", 1},
	{"scale_embedding", NAN},
	{"scale_emb", 1},
	{"scale_depth", NAN},
	{"mup_width_scale", 1},
	{"final_logit_softcapping", NAN},
	{"final_logit_softcap", NAN},
	/* storage */
	{"quantization_config", NAN},
	{"compression_config", NAN},
	{"quantization", NAN},
	/* not a decoder */
	{"is_encoder_decoder", NAN},
};

/* Names, training, generation defaults and speed switches of other software. */
static const char *const harmless[] = {
	"_attn_implementation",
	"_attn_implementation_autoset",
	"_commit_hash",
	"_name_or_path",
	"architectures",
	"attention_dropout",
	"attn_implementation",
	"attn_pdrop",
	"auto_map",
	"bad_words_ids",
	"begin_suppress_tokens",
	"chunk_size_feed_forward",
	"cross_attention_hidden_size",
	"decoder_start_token_id",
	"diversity_penalty",
	"do_sample",
	"dropout",
	"dtype",
	"early_stopping",
	"embd_pdrop",
	"encoder_no_repeat_ngram_size",
	"exponential_decay_length_penalty",
	"finetuning_task",
	"forced_bos_token_id",
	"forced_eos_token_id",
	"gradient_checkpointing",
	"hidden_dropout",
	"id2label",
	"init_std",
	"initializer_range",
	"is_decoder",
	"label2id",
	"layerdrop",
	"length_penalty",
	"max_length",
	"max_window_layers",
	"min_length",
	"model_type",
	"n_ctx",
	"no_repeat_ngram_size",
	"num_beam_groups",
	"num_beams",
	"num_return_sequences",
	"output_attentions",
	"output_hidden_states",
	"output_scores",
	"pad_token_id",
	"prefix",
	"pretraining_tp",
	"problem_type",
	"remove_invalid_values",
	"reorder_and_upcast_attn",
	"repetition_penalty",
	"resid_pdrop",
	"residual_dropout",
	"return_dict",
	"return_dict_in_generate",
	"sep_token_id",
	"summary_activation",
	"summary_first_dropout",
	"summary_proj_to_labels",
	"summary_type",
	"summary_use_proj",
	"suppress_tokens",
	"task_specific_params",
	"temperature",
	"tf_legacy_loss",
	"tie_encoder_decoder",
	"tokenizer_class",
	"top_k",
	"top_p",
	"torch_dtype",
	"torchscript",
	"transformers_version",
	"typical_p",
	"unsloth_fixed",
	"unsloth_version",
	"use_bfloat16",
	"use_cache",
	NULL,
};

static bool is_neutral(const json_t *v, double neutral)
{
	if (json_is_null(v) || json_is_false(v))
		return true;
	if (json_is_array(v))
		return json_array_size(v) == 0;
	if (json_is_object(v))
		return json_object_size(v) == 0;
	if (json_is_true(v))
		return neutral == 1;
	return json_is_number(v) && json_number_value(v) == neutral;
}

static bool is_harmless(const char *key)
{
	for (size_t i = 0; harmless[i]; i++) {
		if (strcmp(harmless[i], key) == 0)
			return true;
	}
	return false;
}

/* Newer writers list the kind of attention of each layer. */
static int check_layer_types(const struct ctn_config *cfg, const json_t *types, struct ctn_err *err)
{
	const json_t *v;
	size_t i;

	if (!json_is_array(types))
		return ctn_err_set(err, -EINVAL, "%s: \"layer_types\": expected an array, found %s",
				   cfg->path, ctn_quote_json(types).s);
	json_array_foreach(types, i, v)
	{
		if (!json_is_string(v) || strcmp(json_string_value(v), "full_attention") != 0)
			return ctn_err_set(err, -ENOTSUP,
					   "%s: \"layer_types\": %s of layer %zu is not supported",
					   cfg->path, ctn_quote_json(v).s, i);
	}
	return 0;
}

static int check_key(const struct ctn_config *cfg, const char *key, const json_t *v,
		     struct ctn_err *err)
{
	if (strcmp(key, "layer_types") == 0)
		return json_is_null(v) ? 0 : check_layer_types(cfg, v, err);
	for (size_t i = 0; i < CTN_ARRAY_LEN(refused); i++) {
		if (strcmp(refused[i].key, key) != 0)
			continue;
		if (is_neutral(v, refused[i].neutral))
			return 0;
		return ctn_err_set(err, -ENOTSUP,
				   "%s: \"%s\": %s changes the arithmetic and is not supported",
				   cfg->path, key, ctn_quote_json(v).s);
	}
	if (!is_harmless(key))
		ctn_debug("%s: \"%s\" is not known, and ignored", cfg->path, ctn_quote(key).s);
	return 0;
}

int ctn_config_check_rest(const struct ctn_config *cfg, struct ctn_err *err)
{
	const char *key;
	json_t *v;

	json_object_foreach(cfg->rest, key, v)
	{
		int rc = check_key(cfg, key, v, err);

		if (rc)
			return rc;
	}
	return 0;
}
