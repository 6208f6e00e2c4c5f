// SPDX-License-Identifier: MIT
/* The YAML file: a mapping from the names of the options to their values. */
#include "daemon/options.h"

#include <errno.h>
#include <libfyaml.h>
#include <string.h>

struct config {
	const char *path;
	struct ctn_options *o;
	struct ctn_err *err;
};

/* 1-based; of a scalar. 0: unknown. */
static int line_of(struct fy_node *node)
{
	struct fy_token *token = node ? fy_node_get_scalar_token(node) : NULL;
	const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;

	return mark ? mark->line + 1 : 0;
}

/* Puts file and line in front of the message that is there. */
static int at(const struct config *c, struct fy_node *node)
{
	int line = line_of(node);

	if (!line)
		return ctn_err_prefix(c->err, "%s", c->path);
	return ctn_err_prefix(c->err, "%s:%d", c->path, line);
}

static int wrong_type(const struct config *c, struct fy_node *key, const char *name,
		      const char *expected)
{
	ctn_err_set(c->err, -EINVAL, "%s: expected %s", name, expected);
	return at(c, key);
}

/* ---- models ---------------------------------------------------------------------------- */

struct model_parts {
	const char *name, *dir, *tp, *pp, *priority;
	struct ctn_buf devices;
};

/* [0, 2] or "0,2" -> "0,2" */
static int read_devices(const struct config *c, struct fy_node *key, struct fy_node *value,
			struct ctn_buf *out)
{
	const char *s = ctn_yaml_scalar(value);
	struct fy_node *item;
	void *iter = NULL;

	if (s)
		ctn_buf_puts(out, s);
	else if (!value || !fy_node_is_sequence(value))
		return wrong_type(c, key, "devices", "a list of numbers");
	while (!s && (item = fy_node_sequence_iterate(value, &iter))) {
		if (!ctn_yaml_scalar(item))
			return wrong_type(c, key, "devices", "a list of numbers");
		ctn_buf_printf(out, "%s%s", out->len ? "," : "", ctn_yaml_scalar(item));
	}
	return out->failed ? ctn_err_set(c->err, -ENOMEM, "out of memory") : 0;
}

static int read_model_part(const struct config *c, struct fy_node_pair *pair,
			   struct model_parts *parts)
{
	struct fy_node *key = fy_node_pair_key(pair), *value = fy_node_pair_value(pair);
	const char *name = ctn_yaml_scalar(key), *s = ctn_yaml_scalar(value);
	const struct {
		const char *name, **where;
	} known[] = {{"name", &parts->name},
		     {"dir", &parts->dir},
		     {"tp", &parts->tp},
		     {"pp", &parts->pp},
		     {"priority", &parts->priority}};

	if (name && strcmp(name, "devices") == 0)
		return read_devices(c, key, value, &parts->devices);
	for (size_t i = 0; name && i < CTN_ARRAY_LEN(known); i++) {
		if (strcmp(name, known[i].name) != 0)
			continue;
		if (!s)
			return wrong_type(c, key, name, "a value");
		*known[i].where = s;
		return 0;
	}
	ctn_err_set(c->err, -EINVAL, "model: unknown key \"%s\"", name ? name : "?");
	return at(c, key);
}

static int read_model_mapping(const struct config *c, struct fy_node *key, struct fy_node *node)
{
	struct model_parts parts = {0};
	struct fy_node_pair *pair;
	void *iter = NULL;
	int rc = 0;

	while (!rc && (pair = fy_node_mapping_iterate(node, &iter))) {
		key = fy_node_pair_key(pair);
		rc = read_model_part(c, pair, &parts);
	}
	if (!rc) {
		rc = ctn_options_add_model_parts(c->o, parts.name, parts.dir, parts.tp, parts.pp,
						 parts.devices.data, parts.priority, c->err);
		if (rc)
			at(c, key);
	}
	ctn_buf_free(&parts.devices);
	return rc;
}

static int read_model(const struct config *c, struct fy_node *key, struct fy_node *node)
{
	const char *s = ctn_yaml_scalar(node);

	if (fy_node_is_mapping(node))
		return read_model_mapping(c, key, node);
	if (!s)
		return wrong_type(c, key, "model", "a list of strings or of mappings");
	if (ctn_options_add_model(c->o, s, c->err))
		return at(c, node);
	return 0;
}

static int read_models(const struct config *c, struct fy_node *key, struct fy_node *value)
{
	struct fy_node *item;
	void *iter = NULL;
	int rc = 0;

	if (c->o->models_given)
		return 0;
	if (!value || !fy_node_is_sequence(value))
		return wrong_type(c, key, "model", "a list of strings or of mappings");
	while (!rc && (item = fy_node_sequence_iterate(value, &iter)))
		rc = read_model(c, key, item);
	return rc;
}

/* ---- the file -------------------------------------------------------------------------- */

static const struct ctn_option_def *find_option(const char *name)
{
	for (const struct ctn_option_def *d = ctn_option_defs; d->name; d++) {
		/* A file does not name another, and asks for no help. */
		if (d->value && strcmp(d->name, name) == 0 && strcmp(name, "config") != 0)
			return d;
	}
	return NULL;
}

static int read_pair(const struct config *c, struct fy_node_pair *pair)
{
	struct fy_node *key = fy_node_pair_key(pair), *value = fy_node_pair_value(pair);
	const char *name = ctn_yaml_scalar(key);
	const struct ctn_option_def *def = name ? find_option(name) : NULL;

	if (!def) {
		ctn_err_set(c->err, -EINVAL, "unknown key \"%s\"", name ? name : "?");
		return at(c, key);
	}
	if (def->offset == SIZE_MAX)
		return read_models(c, key, value);
	if (!ctn_yaml_scalar(value))
		return wrong_type(c, key, name, "a value");
	return ctn_options_default(c->o, def, ctn_yaml_scalar(value), c->err);
}

static int read_root(void *arg, struct fy_node *root, struct ctn_err *err)
{
	const struct config *c = arg;
	struct fy_node_pair *pair;
	void *iter = NULL;
	int rc = 0;

	/* None at all is a file without options. */
	if (!root)
		return 0;
	if (!fy_node_is_mapping(root))
		return ctn_err_set(err, -EINVAL, "%s: expected a mapping of options", c->path);
	while (!rc && (pair = fy_node_mapping_iterate(root, &iter)))
		rc = read_pair(c, pair);
	return rc;
}

int ctn_config_read(const char *path, struct ctn_options *o, struct ctn_err *err)
{
	struct config c = {.path = path, .o = o, .err = err};

	return ctn_yaml_read(path, read_root, &c, err);
}
