// SPDX-License-Identifier: MIT
#include "checkpoint/config.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

int ctn_config_init(struct ctn_config *cfg, const char *path, const json_t *root,
		    struct ctn_err *err)
{
	*cfg = (struct ctn_config){.path = path, .root = root};
	cfg->rest = json_copy((json_t *)root);
	if (!cfg->rest)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", path);
	return 0;
}

void ctn_config_free(struct ctn_config *cfg)
{
	json_decref(cfg->rest);
	*cfg = (struct ctn_config){0};
}

/* The value of a key, NULL when it is absent or null; the key counts as handled from now. */
static const json_t *take(struct ctn_config *cfg, const char *key)
{
	const json_t *v = json_object_get(cfg->root, key);

	json_object_del(cfg->rest, key);
	return json_is_null(v) ? NULL : v;
}

static int wrong(const struct ctn_config *cfg, const char *key, const char *expected,
		 const json_t *found, struct ctn_err *err)
{
	return ctn_err_set(err, -EINVAL, "%s: \"%s\": expected %s, found %s", cfg->path, key,
			   expected, found ? ctn_quote_json(found).s : "nothing");
}

int ctn_config_u32(struct ctn_config *cfg, const char *key, uint32_t dflt, uint32_t *out,
		   struct ctn_err *err)
{
	const json_t *v = take(cfg, key);

	if (!v && dflt != CTN_CONFIG_REQUIRED) {
		*out = dflt;
		return 0;
	}
	if (!json_is_integer(v) || json_integer_value(v) < 1 ||
	    json_integer_value(v) > CTN_CONFIG_MAX)
		return wrong(cfg, key, "an integer from 1 to 268435456", v, err);
	*out = (uint32_t)json_integer_value(v);
	return 0;
}

int ctn_config_bool(struct ctn_config *cfg, const char *key, bool dflt, bool *out,
		    struct ctn_err *err)
{
	const json_t *v = take(cfg, key);

	if (v && !json_is_boolean(v))
		return wrong(cfg, key, "true or false", v, err);
	*out = v ? json_is_true(v) : dflt;
	return 0;
}

bool ctn_config_is_real(const json_t *v)
{
	const double d = json_number_value(v);

	return json_is_number(v) && d >= FLT_MIN && d <= FLT_MAX;
}

int ctn_config_real(struct ctn_config *cfg, const char *key, double dflt, double *out,
		    struct ctn_err *err)
{
	const json_t *v = take(cfg, key);

	if (v && !ctn_config_is_real(v))
		return wrong(cfg, key, "a number above 0", v, err);
	*out = v ? json_number_value(v) : dflt;
	return 0;
}

int ctn_config_activation(struct ctn_config *cfg, const char *key, enum ctn_activation dflt,
			  enum ctn_activation *out, struct ctn_err *err)
{
	/* Several names mean the same formula. */
	static const struct {
		const char *name;
		enum ctn_activation activation;
	} names[] = {
		{"silu", CTN_ACT_SILU},           {"swish", CTN_ACT_SILU},
		{"relu", CTN_ACT_RELU},           {"gelu", CTN_ACT_GELU},
		{"gelu_python", CTN_ACT_GELU},    {"gelu_new", CTN_ACT_GELU_TANH},
		{"gelu_fast", CTN_ACT_GELU_TANH}, {"gelu_pytorch_tanh", CTN_ACT_GELU_TANH},
	};
	const json_t *v = take(cfg, key);

	if (!v) {
		*out = dflt;
		return 0;
	}
	if (!json_is_string(v))
		return wrong(cfg, key, "the name of an activation", v, err);
	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		if (strcmp(names[i].name, json_string_value(v)) == 0) {
			*out = names[i].activation;
			return 0;
		}
	}
	return ctn_err_set(err, -ENOTSUP, "%s: \"%s\": activation %s is not supported", cfg->path,
			   key, ctn_quote_json(v).s);
}

int ctn_config_heads(const struct ctn_config *cfg, struct ctn_arch *arch, struct ctn_err *err)
{
	if (!arch->head_dim) {
		if (arch->hidden % arch->heads)
			return ctn_err_set(err, -EINVAL,
					   "%s: expected a hidden size that %u heads divide, "
					   "found %u",
					   cfg->path, arch->heads, arch->hidden);
		arch->head_dim = arch->hidden / arch->heads;
	}
	if (!arch->kv_heads)
		arch->kv_heads = arch->heads;
	if (arch->heads % arch->kv_heads)
		return ctn_err_set(err, -EINVAL,
				   "%s: expected key-value heads that divide %u heads, found %u",
				   cfg->path, arch->heads, arch->kv_heads);
	if (arch->positions == CTN_POSITIONS_ROPE && arch->head_dim % 2)
		return ctn_err_set(err, -EINVAL,
				   "%s: expected an even head dimension for rotary positions, "
				   "found %u",
				   cfg->path, arch->head_dim);
	if (arch->attn_scale == 0)
		arch->attn_scale = (float)(1.0 / sqrt((double)arch->head_dim));
	return 0;
}

int ctn_config_window(struct ctn_config *cfg, bool use_dflt, uint32_t window_dflt,
		      uint32_t max_positions, struct ctn_err *err)
{
	const json_t *v = json_object_get(cfg->root, "sliding_window");
	uint32_t window = window_dflt;
	bool use = false;
	int rc;

	rc = ctn_config_bool(cfg, "use_sliding_window", use_dflt, &use, err);
	if (rc)
		return rc;
	/* Absent is the default, null is no window. */
	if (v) {
		rc = ctn_config_u32(cfg, "sliding_window", 0, &window, err);
		if (rc)
			return rc;
	}
	if (use && window && window < max_positions)
		return ctn_err_set(err, -ENOTSUP,
				   "%s: \"sliding_window\": a window of %u%s is not supported "
				   "(sequences reach %u)",
				   cfg->path, window, v ? "" : ", the default,", max_positions);
	return 0;
}

/* Adds the ids of `key`: an integer or an array of them. */
static int read_eos(const struct ctn_config *cfg, const json_t *v, struct ctn_arch *arch,
		    struct ctn_err *err)
{
	size_t n = json_is_array(v) ? json_array_size(v) : 1;

	if (n > CTN_MAX_EOS)
		return ctn_err_set(err, -EINVAL,
				   "%s: \"eos_token_id\": expected at most %d ids, found %zu",
				   cfg->path, CTN_MAX_EOS, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) > UINT32_MAX)
			return wrong(cfg, "eos_token_id", "token ids", v, err);
		arch->eos[i] = (uint32_t)json_integer_value(id);
	}
	arch->eos_count = (uint32_t)n;
	return 0;
}

int ctn_config_tokens(struct ctn_config *cfg, const struct ctn_config *generation,
		      struct ctn_arch *arch, struct ctn_err *err)
{
	const json_t *bos = take(cfg, "bos_token_id");
	const json_t *eos = take(cfg, "eos_token_id");
	const json_t *v;

	arch->bos = -1;
	if (bos) {
		if (!json_is_integer(bos) || json_integer_value(bos) < 0 ||
		    json_integer_value(bos) > UINT32_MAX)
			return wrong(cfg, "bos_token_id", "a token id", bos, err);
		arch->bos = json_integer_value(bos);
	}
	v = generation ? json_object_get(generation->root, "eos_token_id") : NULL;
	if (v && !json_is_null(v))
		return read_eos(generation, v, arch, err);
	return eos ? read_eos(cfg, eos, arch, err) : 0;
}
