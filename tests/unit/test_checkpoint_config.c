// SPDX-License-Identifier: MIT
/* config.json -> the architecture, or a refusal by name. The numbers in config.json are those
 * of published models; what they mean is their papers' and config classes' word. */
#include "ckpt_files.h"
#include "checkpoint/checkpoint.h"

#include <math.h>

static const struct gen_model tiny_llama = {
	.family = "llama",
	.layers = 1,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = 4,
	.ffn = 24,
	.vocab = 30,
	.positions = 64,
};

static const struct gen_model tiny_opt = {
	.family = "opt",
	.layers = 1,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 4,
	.head_dim = 4,
	.ffn = 24,
	.vocab = 30,
	.positions = 64,
	.tied = true,
};

static const struct gen_model tiny_gpt2 = {
	.family = "gpt2",
	.layers = 1,
	.hidden = 16,
	.heads = 4,
	.kv_heads = 4,
	.head_dim = 4,
	.ffn = 64,
	.vocab = 30,
	.positions = 64,
	.tied = true,
};

static struct gen_model with(struct gen_model m, const char *config)
{
	m.config = config;
	return m;
}

static struct ctn_checkpoint *open_model(const struct gen_model *m)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};

	if (ctn_checkpoint_open(gen_write(m), &ckpt, &err))
		printf("# %s: %s\n", m->config ? m->config : "", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(ckpt);
	return ckpt;
}

static struct ctn_arch arch_of(const struct gen_model *m)
{
	struct ctn_checkpoint *ckpt = open_model(m);
	struct ctn_arch arch = ckpt->arch;

	ctn_checkpoint_close(ckpt);
	return arch;
}

static void check_refused(const struct gen_model *m, int rc, const char *key)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};
	int got = ctn_checkpoint_open(gen_write(m), &ckpt, &err);
	bool good = got == rc && strstr(err.msg, "config.json") && strstr(err.msg, key) &&
		    !strchr(err.msg, '\n');

	if (!good)
		printf("# %s: %d %s\n", m->config, got, err.msg);
	CU_ASSERT_TRUE(good);
	ctn_checkpoint_close(ckpt);
}

/* ---- what is read ---------------------------------------------------------------------- */

static void test_llama(void)
{
	struct gen_model m = tiny_llama;
	struct ctn_checkpoint *ckpt = open_model(&m);
	const struct ctn_arch *a = &ckpt->arch;

	CU_ASSERT_STRING_EQUAL(ctn_family_name(ckpt->family), "llama");
	CU_ASSERT_EQUAL(a->layers, 1);
	CU_ASSERT_EQUAL(a->hidden, 16);
	CU_ASSERT_EQUAL(a->heads, 4);
	CU_ASSERT_EQUAL(a->kv_heads, 2);
	CU_ASSERT_EQUAL(a->head_dim, 4);
	CU_ASSERT_EQUAL(a->ffn, 24);
	CU_ASSERT_EQUAL(a->vocab, 30);
	CU_ASSERT_EQUAL(a->embed_dim, 16);
	CU_ASSERT_EQUAL(a->max_positions, 64);
	CU_ASSERT_EQUAL(a->norm, CTN_NORM_RMS);
	CU_ASSERT_EQUAL(a->norm_eps, 1e-6f);
	CU_ASSERT_TRUE(a->norm_first && a->final_norm && a->gated);
	CU_ASSERT_FALSE(a->tied);
	CU_ASSERT_EQUAL(a->positions, CTN_POSITIONS_ROPE);
	CU_ASSERT_EQUAL(a->position_offset, 0);
	CU_ASSERT_EQUAL(a->rope.scaling, CTN_ROPE_PLAIN);
	CU_ASSERT_EQUAL(a->rope.theta, 10000);
	CU_ASSERT_EQUAL(a->activation, CTN_ACT_SILU);
	CU_ASSERT_EQUAL(a->attn_scale, 0.5f);
	CU_ASSERT_EQUAL(a->bos, -1);
	CU_ASSERT_EQUAL(a->eos_count, 0);
	/* 2 * 30*16 + q 16*16 + k, v 8*16 each + o 16*16 + 3 * 24*16 + 3 norms of 16, F32 */
	CU_ASSERT_EQUAL(ckpt->bytes, 4 * (2 * 480 + 256 + 2 * 128 + 256 + 3 * 384 + 3 * 16));
	ctn_checkpoint_close(ckpt);
}

static void test_opt(void)
{
	struct ctn_arch a = arch_of(&tiny_opt);

	CU_ASSERT_EQUAL(a.norm, CTN_NORM_LAYER);
	CU_ASSERT_EQUAL(a.norm_eps, 1e-5f);
	CU_ASSERT_TRUE(a.norm_first && a.final_norm && a.tied);
	CU_ASSERT_FALSE(a.gated);
	CU_ASSERT_EQUAL(a.kv_heads, 4);
	CU_ASSERT_EQUAL(a.positions, CTN_POSITIONS_LEARNED);
	CU_ASSERT_EQUAL(a.position_offset, 2);
	CU_ASSERT_EQUAL(a.max_positions, 64);
	CU_ASSERT_EQUAL(a.activation, CTN_ACT_RELU);
	CU_ASSERT_EQUAL(a.attn_scale, 0.5f);
}

static void test_opt_variants(void)
{
	struct gen_model m = tiny_opt;
	struct ctn_arch a;

	m.post_norm = true;
	m.embed_dim = 8;
	a = arch_of(&m);
	CU_ASSERT_FALSE(a.norm_first || a.final_norm);
	CU_ASSERT_EQUAL(a.embed_dim, 8);
	CU_ASSERT_EQUAL(a.hidden, 16);

	m = with(tiny_opt, "{\"_remove_final_layer_norm\":true}");
	a = arch_of(&m);
	CU_ASSERT_TRUE(a.norm_first);
	CU_ASSERT_FALSE(a.final_norm);

	m = tiny_opt;
	m.no_bias = true;
	m.no_affine = true;
	a = arch_of(&m);
	CU_ASSERT_TRUE(a.final_norm);
}

static void test_gpt2(void)
{
	struct gen_model m = with(tiny_gpt2, "{\"n_inner\":null}");
	struct ctn_arch a = arch_of(&m);

	CU_ASSERT_EQUAL(a.ffn, 64); /* 4 * 16 */
	CU_ASSERT_EQUAL(a.norm, CTN_NORM_LAYER);
	CU_ASSERT_EQUAL(a.norm_eps, 1e-5f);
	CU_ASSERT_TRUE(a.norm_first && a.final_norm && a.tied);
	CU_ASSERT_EQUAL(a.positions, CTN_POSITIONS_LEARNED);
	CU_ASSERT_EQUAL(a.position_offset, 0);
	CU_ASSERT_EQUAL(a.activation, CTN_ACT_GELU_TANH);
	CU_ASSERT_EQUAL(a.attn_scale, 0.5f);

	m = with(tiny_gpt2, "{\"scale_attn_weights\":false}");
	CU_ASSERT_EQUAL(arch_of(&m).attn_scale, 1.0f);
}

/* What absent keys mean differs by family. */
static void test_defaults(void)
{
	struct gen_model m = tiny_llama;
	struct ctn_arch a;

	/* null is absent */
	m.kv_heads = 4;
	m.config = "{\"num_key_value_heads\":null,\"head_dim\":null,\"tie_word_embeddings\":null,"
		   "\"max_position_embeddings\":null}";
	a = arch_of(&m);
	CU_ASSERT_EQUAL(a.kv_heads, 4);
	CU_ASSERT_EQUAL(a.head_dim, 4);
	CU_ASSERT_EQUAL(a.max_positions, 2048);
	CU_ASSERT_FALSE(a.tied);

	m = with(tiny_opt, "{\"tie_word_embeddings\":null,\"word_embed_proj_dim\":null}");
	CU_ASSERT_TRUE(arch_of(&m).tied);
	m = with(tiny_gpt2, "{\"tie_word_embeddings\":null}");
	CU_ASSERT_TRUE(arch_of(&m).tied);

	m = tiny_llama;
	m.family = "mistral";
	m.heads = 16;
	m.kv_heads = 8;
	m.head_dim = 2;
	m.config = "{\"num_key_value_heads\":null}";
	a = arch_of(&m);
	CU_ASSERT_EQUAL(a.kv_heads, 8);
	CU_ASSERT_FALSE(a.tied);
}

static void test_activations(void)
{
	static const struct {
		const char *config;
		enum ctn_activation is;
	} cases[] = {
		{"{\"activation_function\":\"gelu\"}", CTN_ACT_GELU},
		{"{\"activation_function\":\"gelu_new\"}", CTN_ACT_GELU_TANH},
		{"{\"activation_function\":\"gelu_pytorch_tanh\"}", CTN_ACT_GELU_TANH},
		{"{\"activation_function\":\"relu\"}", CTN_ACT_RELU},
		{"{\"activation_function\":\"silu\"}", CTN_ACT_SILU},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct gen_model m = with(tiny_gpt2, cases[i].config);

		CU_ASSERT_EQUAL(arch_of(&m).activation, cases[i].is);
	}
}

static void test_rope(void)
{
	static const struct {
		const char *config;
		struct ctn_rope rope;
	} cases[] = {
		{"{\"rope_theta\":500000}", {.theta = 500000}},
		{"{\"rope_theta\":1e6,\"rope_scaling\":null}", {.theta = 1e6}},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}",
		 {.theta = 10000, .scaling = CTN_ROPE_LINEAR, .factor = 4}},
		{"{\"rope_scaling\":{\"rope_type\":\"default\"}}", {.theta = 10000}},
		{"{\"rope_theta\":500000.0,\"rope_scaling\":{\"factor\":8.0,\"low_freq_factor\":1."
		 "0,"
		 "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192,\"rope_type\":"
		 "\"llama3\"}}",
		 {.theta = 500000,
		  .scaling = CTN_ROPE_LLAMA3,
		  .factor = 8,
		  .low_freq_factor = 1,
		  .high_freq_factor = 4,
		  .original_positions = 8192}},
		{"{\"rope_parameters\":{\"rope_type\":\"linear\",\"rope_theta\":20000,\"factor\":2}"
		 "}",
		 {.theta = 20000, .scaling = CTN_ROPE_LINEAR, .factor = 2}},
		{"{\"rope_parameters\":{\"rope_theta\":20000,\"partial_rotary_factor\":1.0}}",
		 {.theta = 20000}},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":2},"
		 "\"rope_parameters\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":2}}",
		 {.theta = 10000, .scaling = CTN_ROPE_LINEAR, .factor = 2}},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct gen_model m = with(tiny_llama, cases[i].config);
		const struct ctn_rope r = arch_of(&m).rope, *w = &cases[i].rope;

		CU_ASSERT_EQUAL(r.scaling, w->scaling);
		CU_ASSERT_EQUAL(r.theta, w->theta);
		CU_ASSERT_EQUAL(r.factor, w->factor);
		CU_ASSERT_EQUAL(r.low_freq_factor, w->low_freq_factor);
		CU_ASSERT_EQUAL(r.high_freq_factor, w->high_freq_factor);
		CU_ASSERT_EQUAL(r.original_positions, w->original_positions);
	}
}

/* Keys that are there in published checkpoints and change nothing. */
static void test_harmless_keys(void)
{
	struct gen_model m = with(
		tiny_llama,
		"{\"attention_dropout\":0.1,\"pretraining_tp\":2,\"torch_dtype\":\"bfloat16\","
		"\"use_cache\":true,\"initializer_range\":0.02,\"a_new_key_of_a_new_writer\":[1],"
		"\"quantization_config\":null,\"pruned_heads\":{},\"final_logit_softcapping\":null,"
		"\"use_sliding_window\":false,\"sliding_window\":32,\"embedding_multiplier\":1.0,"
		"\"partial_rotary_factor\":1,\"layer_types\":[\"full_attention\"],"
		"\"is_encoder_decoder\":false,\"architectures\":[\"LlamaForCausalLM\"]}");

	CU_ASSERT_EQUAL(arch_of(&m).layers, 1);
	m = with(tiny_gpt2,
		 "{\"attn_pdrop\":0.1,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,"
		 "\"summary_type\":\"cls_index\",\"n_ctx\":1024,"
		 "\"reorder_and_upcast_attn\":true,\"task_specific_params\":{\"a\":{}}}");
	CU_ASSERT_EQUAL(arch_of(&m).layers, 1);
	m = with(tiny_opt, "{\"layerdrop\":0.1,\"dropout\":0.1,\"prefix\":\"</s>\"}");
	CU_ASSERT_EQUAL(arch_of(&m).layers, 1);
	/* A window that no sequence can outgrow. */
	m = with(tiny_llama, "{\"sliding_window\":64}");
	CU_ASSERT_EQUAL(arch_of(&m).max_positions, 64);
}

/* ---- what is refused ------------------------------------------------------------------- */

static void test_wrong_types(void)
{
	static const struct {
		const char *config, *key;
	} cases[] = {
		{"{\"hidden_size\":\"16\"}", "\"hidden_size\": expected an integer"},
		{"{\"hidden_size\":16.0}", "\"hidden_size\": expected an integer"},
		{"{\"hidden_size\":0}", "\"hidden_size\": expected an integer"},
		{"{\"hidden_size\":-16}", "\"hidden_size\": expected an integer"},
		{"{\"hidden_size\":4294967312}", "\"hidden_size\": expected an integer"},
		{"{\"hidden_size\":null}", "\"hidden_size\": expected an integer"},
		{"{\"num_hidden_layers\":[1]}", "\"num_hidden_layers\": expected an integer"},
		{"{\"head_dim\":\"4\"}", "\"head_dim\": expected an integer"},
		{"{\"tie_word_embeddings\":0}", "\"tie_word_embeddings\": expected true or false"},
		{"{\"tie_word_embeddings\":\"true\"}", "expected true or false, found \"true\""},
		{"{\"rms_norm_eps\":\"1e-5\"}", "\"rms_norm_eps\": expected a number"},
		{"{\"rms_norm_eps\":-1}", "\"rms_norm_eps\": expected a number"},
		/* the decoder computes with floats */
		{"{\"rms_norm_eps\":1e300}", "\"rms_norm_eps\": expected a number"},
		{"{\"rms_norm_eps\":1e-300}", "\"rms_norm_eps\": expected a number"},
		{"{\"rope_theta\":1e39}", "\"rope_theta\": expected a number"},
		{"{\"rope_theta\":false}", "\"rope_theta\": expected a number"},
		{"{\"rope_scaling\":\"linear\"}", "\"rope_scaling\": expected an object"},
		{"{\"hidden_act\":1}", "\"hidden_act\": expected the name"},
		{"{\"eos_token_id\":\"2\"}", "\"eos_token_id\": expected token ids"},
		{"{\"eos_token_id\":[2,-1]}", "\"eos_token_id\": expected token ids"},
		{"{\"bos_token_id\":1.5}", "\"bos_token_id\": expected a token id"},
		{"{\"num_key_value_heads\":3}", "key-value heads that divide 4 heads, found 3"},
		{"{\"num_attention_heads\":5,\"num_key_value_heads\":1,\"head_dim\":null}",
		 "5 heads divide, found 16"},
		{"{\"head_dim\":3}", "even head dimension for rotary positions, found 3"},
		{"{\"architectures\":[]}", "architectures"},
		{"{\"architectures\":\"LlamaForCausalLM\"}", "architectures"},
		{"{\"rope_scaling\":{\"type\":\"linear\"}}", "\"factor\": expected a number"},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", "\"factor\""},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}}",
		 "\"type\" differ"},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
		 "\"high_freq_factor\":4}}",
		 "original_max_position_embeddings"},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
		 "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
		 "high_freq_factor above low_freq_factor"},
		{"{\"rope_theta\":10000,\"rope_parameters\":{\"rope_theta\":20000}}", "rope_theta"},
		{"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2},\"rope_parameters\":{"
		 "\"rope_theta\":1}}",
		 "\"rope_parameters\" differ"},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		const struct gen_model m = with(tiny_llama, cases[i].config);

		check_refused(&m, -EINVAL, cases[i].key);
	}
}

static void test_refused_arithmetic(void)
{
	static const struct {
		const struct gen_model *model;
		const char *config, *key;
	} cases[] = {
		{&tiny_llama, "{\"sliding_window\":63}", "\"sliding_window\": a window of 63"},
		{&tiny_llama, "{\"sliding_window\":63,\"use_sliding_window\":true}",
		 "sliding_window"},
		{&tiny_llama, "{\"quantization_config\":{\"bits\":4}}", "quantization_config"},
		{&tiny_llama, "{\"final_logit_softcapping\":30.0}", "final_logit_softcapping"},
		{&tiny_llama, "{\"attn_logit_softcapping\":50.0}", "attn_logit_softcapping"},
		{&tiny_llama, "{\"attention_multiplier\":0.1}", "attention_multiplier"},
		{&tiny_llama, "{\"embedding_multiplier\":12.0}", "embedding_multiplier"},
		{&tiny_llama, "{\"logits_scaling\":8}", "logits_scaling"},
		{&tiny_llama, "{\"residual_multiplier\":0.2}", "residual_multiplier"},
		{&tiny_llama, "{\"partial_rotary_factor\":0.5}", "partial_rotary_factor"},
		{&tiny_llama, "{\"query_pre_attn_scalar\":256}", "query_pre_attn_scalar"},
		{&tiny_llama, "{\"num_local_experts\":8}", "num_local_experts"},
		{&tiny_llama, "{\"model_type\":\"mixtral\"}", "model type \"mixtral\""},
		{&tiny_llama, "{\"pruned_heads\":{\"0\":[1]}}", "pruned_heads"},
		{&tiny_llama, "{\"layer_types\":[\"sliding_attention\"]}", "layer_types"},
		{&tiny_llama, "{\"hidden_act\":\"quick_gelu\"}", "\"quick_gelu\" is not supported"},
		{&tiny_llama, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
		 "\"dynamic\""},
		{&tiny_llama, "{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}",
		 "\"yarn\""},
		{&tiny_llama, "{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "\"longrope\""},
		{&tiny_llama, "{\"rope_scaling\":{\"type\":7}}", "type 7"},
		{&tiny_llama,
		 "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"attention_factor\":1.2}}",
		 "attention_factor"},
		{&tiny_llama, "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1}}}",
		 "full_attention"},
		{&tiny_llama,
		 "{\"rope_parameters\":{\"rope_theta\":1,\"partial_rotary_factor\":0.5}}",
		 "partial_rotary_factor"},
		{&tiny_llama, "{\"is_encoder_decoder\":true}", "is_encoder_decoder"},
		{&tiny_llama, "{\"model_type\":\"gemma2\"}", "model type \"gemma2\""},
		{&tiny_llama, "{\"architectures\":[\"LlamaForSequenceClassification\"]}",
		 "LlamaForSequenceClassification"},
		{&tiny_llama, "{\"architectures\":[\"OPTForCausalLM\"]}", "OPTForCausalLM"},
		{&tiny_gpt2, "{\"scale_attn_by_inverse_layer_idx\":true}",
		 "scale_attn_by_inverse_layer_idx"},
		{&tiny_gpt2, "{\"add_cross_attention\":true}", "add_cross_attention"},
		{&tiny_gpt2, "{\"activation_function\":\"mish\"}", "\"mish\""},
		{&tiny_opt, "{\"activation_function\":\"leaky\"}", "\"leaky\""},
	};

	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		const struct gen_model m = with(*cases[i].model, cases[i].config);

		check_refused(&m, -ENOTSUP, cases[i].key);
	}
}

static void test_windows_by_family(void)
{
	struct gen_model m = tiny_llama;

	/* Mistral has a window unless it is null; an absent one is 4096. */
	m.family = "mistral";
	m.config = "{\"sliding_window\":32}";
	check_refused(&m, -ENOTSUP, "sliding_window");
	m.config = "{\"max_position_embeddings\":32768,\"sliding_window\":4096}";
	check_refused(&m, -ENOTSUP, "sliding_window");
	m.config = "{\"max_position_embeddings\":4096,\"sliding_window\":4096}";
	CU_ASSERT_EQUAL(arch_of(&m).max_positions, 4096);
	m.config = "{\"attention_bias\":true}";
	check_refused(&m, -ENOTSUP, "attention_bias");
	/* The type decides, whatever the architecture is called. */
	m.config = "{\"architectures\":[\"LlamaForCausalLM\"],\"sliding_window\":32}";
	check_refused(&m, -ENOTSUP, "sliding_window");
	/* Qwen2 has one only when it says so. */
	m.family = "qwen2";
	m.config = "{\"sliding_window\":32}";
	CU_ASSERT_EQUAL(arch_of(&m).max_positions, 64);
	m.config = "{\"sliding_window\":32,\"use_sliding_window\":true}";
	check_refused(&m, -ENOTSUP, "sliding_window");
}

static void test_absent_window_of_mistral(void)
{
	const struct gen_model m = {.family = "mistral",
				    .layers = 1,
				    .hidden = 16,
				    .heads = 4,
				    .kv_heads = 2,
				    .head_dim = 4,
				    .ffn = 24,
				    .vocab = 30,
				    .positions = 64};
	const char *dir = gen_write(&m);
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};

	gen_write_text(
		dir, "config.json",
		"{\"model_type\":\"mistral\",\"hidden_size\":16,\"num_hidden_layers\":1,"
		"\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":4,"
		"\"intermediate_size\":24,\"vocab_size\":30,\"max_position_embeddings\":32768}");
	CU_ASSERT_EQUAL(ctn_checkpoint_open(dir, &ckpt, &err), -ENOTSUP);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "a window of 4096, the default,"));
}

/* ---- the end of a sequence ------------------------------------------------------------- */

static void test_eos(void)
{
	struct gen_model m = with(tiny_llama, "{\"bos_token_id\":1,\"eos_token_id\":[7,8,9]}");
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};
	const char *dir;
	struct ctn_arch a = arch_of(&m);

	CU_ASSERT_EQUAL(a.bos, 1);
	CU_ASSERT_EQUAL(a.eos_count, 3);
	CU_ASSERT_TRUE(a.eos[0] == 7 && a.eos[1] == 8 && a.eos[2] == 9);

	/* generation_config.json decides, unless it has none. */
	dir = gen_write(&m);
	gen_write_text(dir, "generation_config.json", "{\"eos_token_id\":5}");
	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
	CU_ASSERT_EQUAL(ckpt->arch.eos_count, 1);
	CU_ASSERT_EQUAL(ckpt->arch.eos[0], 5);
	ctn_checkpoint_close(ckpt);
	gen_write_text(dir, "generation_config.json", "{\"eos_token_id\":null,\"top_k\":5}");
	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open(dir, &ckpt, &err), 0);
	CU_ASSERT_EQUAL(ckpt->arch.eos_count, 3);
	ctn_checkpoint_close(ckpt);
	gen_write_text(dir, "generation_config.json", "{\"eos_token_id\":");
	CU_ASSERT_EQUAL(ctn_checkpoint_open(dir, &ckpt, &err), -EINVAL);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "generation_config.json"));

	m.config = "{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}";
	check_refused(&m, -EINVAL, "at most 16 ids, found 17");
}

static void test_config_file(void)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"", "config.json"},
		{"[]", "config.json"},
		{"{\"model_type\":\"llama\",\"model_type\":\"llama\"}",
		 "\"model_type\" is given twice"},
		{"{\"hidden_size\":1}", "expected \"model_type\""},
		{"{\"model_type\":\"llama\"}", "\"hidden_size\": expected"},
	};
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_err err = {0};
	const char *dir = gen_dir();

	CU_ASSERT_EQUAL(ctn_checkpoint_open(dir, &ckpt, &err), -ENOENT);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, "config.json"));
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		gen_write_text(dir, "config.json", cases[i].text);
		CU_ASSERT_EQUAL(ctn_checkpoint_open(dir, &ckpt, &err), -EINVAL);
		if (!strstr(err.msg, cases[i].says))
			printf("# %s\n", err.msg);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, cases[i].says));
	}
}

CTN_TESTS("checkpoint_config", CTN_TEST(test_llama), CTN_TEST(test_opt),
	  CTN_TEST(test_opt_variants), CTN_TEST(test_gpt2), CTN_TEST(test_defaults),
	  CTN_TEST(test_activations), CTN_TEST(test_rope), CTN_TEST(test_harmless_keys),
	  CTN_TEST(test_wrong_types), CTN_TEST(test_refused_arithmetic),
	  CTN_TEST(test_windows_by_family), CTN_TEST(test_absent_window_of_mistral),
	  CTN_TEST(test_eos), CTN_TEST(test_config_file))
