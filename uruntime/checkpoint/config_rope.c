// SPDX-License-Identifier: MIT
/*
 * Rotary positions in config.json: `rope_theta` with `rope_scaling` (its kind spelled `type` or
 * `rope_type`), or `rope_parameters` of newer writers, which holds the base as well. Inside the
 * object every key has an effect, so that an unknown one is refused.
 */
#include "checkpoint/config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const kinds[] = {
	[CTN_ROPE_PLAIN] = "default",
	[CTN_ROPE_LINEAR] = "linear",
	[CTN_ROPE_LLAMA3] = "llama3",
};

/* rope_scaling or rope_parameters, whichever is there; both only if they are equal. */
static int find_object(struct ctn_config *cfg, const char **key, const json_t **obj,
		       struct ctn_err *err)
{
	static const char *const keys[] = {"rope_scaling", "rope_parameters"};

	*obj = NULL;
	for (size_t i = 0; i < CTN_ARRAY_LEN(keys); i++) {
		const json_t *v = json_object_get(cfg->root, keys[i]);

		json_object_del(cfg->rest, keys[i]);
		if (!v || json_is_null(v))
			continue;
		if (!json_is_object(v))
			return ctn_err_set(err, -EINVAL, "%s: \"%s\": expected an object, found %s",
					   cfg->path, keys[i], ctn_quote_json(v).s);
		if (*obj && !json_equal(*obj, v))
			return ctn_err_set(err, -EINVAL, "%s: \"%s\" and \"%s\" differ", cfg->path,
					   keys[0], keys[1]);
		*obj = v;
		*key = keys[i];
	}
	return 0;
}

static int find_kind(const struct ctn_config *cfg, const char *key, const json_t *obj,
		     enum ctn_rope_scaling *kind, struct ctn_err *err)
{
	const json_t *a = json_object_get(obj, "rope_type");
	const json_t *b = json_object_get(obj, "type");
	const json_t *v = a ? a : b;

	if (a && b && !json_equal(a, b))
		return ctn_err_set(err, -EINVAL, "%s: \"%s\": \"rope_type\" and \"type\" differ",
				   cfg->path, key);
	if (!v) {
		/* rope_parameters may hold the base alone. */
		*kind = CTN_ROPE_PLAIN;
		return 0;
	}
	for (size_t i = 0; json_is_string(v) && i < CTN_ARRAY_LEN(kinds); i++) {
		if (strcmp(kinds[i], json_string_value(v)) == 0) {
			*kind = (enum ctn_rope_scaling)i;
			return 0;
		}
	}
	return ctn_err_set(err, -ENOTSUP, "%s: \"%s\": type %s is not supported", cfg->path, key,
			   ctn_quote_json(v).s);
}

/* The members of the object, by name; which are obligatory depends on the kind. */
struct member {
	const char *name;
	double *out;
	unsigned int required_by; /* bits 1 << enum ctn_rope_scaling */
};

static int read_members(const struct ctn_config *cfg, const char *key, const json_t *obj,
			const struct member *members, size_t count, enum ctn_rope_scaling kind,
			struct ctn_err *err)
{
	const char *name;
	json_t *v;
	size_t i;

	for (i = 0; i < count; i++) {
		const json_t *m = json_object_get(obj, members[i].name);

		if (json_is_null(m))
			m = NULL;
		if (!m && !(members[i].required_by & 1u << kind))
			continue;
		if (!ctn_config_is_real(m))
			return ctn_err_set(err, -EINVAL,
					   "%s: \"%s\": \"%s\": expected a number above 0, found "
					   "%s",
					   cfg->path, key, members[i].name,
					   m ? ctn_quote_json(m).s : "nothing");
		*members[i].out = json_number_value(m);
	}
	json_object_foreach((json_t *)obj, name, v)
	{
		for (i = 0; i < count && strcmp(members[i].name, name) != 0; i++)
			;
		if (i < count || json_is_null(v) || strcmp(name, "type") == 0 ||
		    strcmp(name, "rope_type") == 0)
			continue;
		return ctn_err_set(err, -ENOTSUP, "%s: \"%s\": \"%s\": %s is not supported",
				   cfg->path, key, ctn_quote(name).s, ctn_quote_json(v).s);
	}
	return 0;
}

int ctn_config_rope(struct ctn_config *cfg, double theta, struct ctn_rope *rope,
		    struct ctn_err *err)
{
	const unsigned int llama3 = 1u << CTN_ROPE_LLAMA3;
	double inner_theta = 0, partial = 1;
	const struct member members[] = {
		{"rope_theta", &inner_theta, 0},
		{"partial_rotary_factor", &partial, 0},
		{"factor", &rope->factor, 1u << CTN_ROPE_LINEAR | llama3},
		{"low_freq_factor", &rope->low_freq_factor, llama3},
		{"high_freq_factor", &rope->high_freq_factor, llama3},
		{"original_max_position_embeddings", &rope->original_positions, llama3},
	};
	const bool outer = json_is_number(json_object_get(cfg->root, "rope_theta"));
	const json_t *obj;
	const char *key = NULL;
	int rc;

	*rope = (struct ctn_rope){0};
	rc = ctn_config_real(cfg, "rope_theta", theta, &rope->theta, err);
	if (rc)
		return rc;
	rc = find_object(cfg, &key, &obj, err);
	if (rc || !obj)
		return rc;
	rc = find_kind(cfg, key, obj, &rope->scaling, err);
	if (rc)
		return rc;
	rc = read_members(cfg, key, obj, members, CTN_ARRAY_LEN(members), rope->scaling, err);
	if (rc)
		return rc;
	if (partial != 1)
		return ctn_err_set(err, -ENOTSUP,
				   "%s: \"%s\": \"partial_rotary_factor\": %g is not supported",
				   cfg->path, key, partial);
	if (outer && inner_theta != 0 && inner_theta != rope->theta)
		return ctn_err_set(err, -EINVAL, "%s: \"rope_theta\": found %g, and %g in \"%s\"",
				   cfg->path, rope->theta, inner_theta, key);
	if (inner_theta != 0)
		rope->theta = inner_theta;
	if (rope->scaling == CTN_ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
		return ctn_err_set(err, -EINVAL,
				   "%s: \"%s\": expected high_freq_factor above low_freq_factor, "
				   "found %g and %g",
				   cfg->path, key, rope->high_freq_factor, rope->low_freq_factor);
	return 0;
}
