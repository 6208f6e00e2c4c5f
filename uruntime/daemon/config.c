// SPDX-License-Identifier: MIT
/* The YAML file: a mapping from the names of the options to their values. */
#include "daemon/options.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

#define MAX_FILE (1 << 20)

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

/* NULL for what is no plain value: a list, a mapping, an alias, null, a NUL inside. */
static const char *scalar_of(struct fy_node *node)
{
	const char *s;
	size_t len;

	if (!node || !fy_node_is_scalar(node) || fy_node_is_alias(node))
		return NULL;
	s = fy_node_get_scalar0(node);
	return s && fy_node_get_scalar(node, &len) && len && strlen(s) == len ? s : NULL;
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
	const char *s = scalar_of(value);
	struct fy_node *item;
	void *iter = NULL;

	if (s)
		ctn_buf_puts(out, s);
	else if (!value || !fy_node_is_sequence(value))
		return wrong_type(c, key, "devices", "a list of numbers");
	while (!s && (item = fy_node_sequence_iterate(value, &iter))) {
		if (!scalar_of(item))
			return wrong_type(c, key, "devices", "a list of numbers");
		ctn_buf_printf(out, "%s%s", out->len ? "," : "", scalar_of(item));
	}
	return out->failed ? ctn_err_set(c->err, -ENOMEM, "out of memory") : 0;
}

static int read_model_part(const struct config *c, struct fy_node_pair *pair,
			   struct model_parts *parts)
{
	struct fy_node *key = fy_node_pair_key(pair), *value = fy_node_pair_value(pair);
	const char *name = scalar_of(key), *s = scalar_of(value);
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
	const char *s = scalar_of(node);

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
	const char *name = scalar_of(key);
	const struct ctn_option_def *def = name ? find_option(name) : NULL;

	if (!def) {
		ctn_err_set(c->err, -EINVAL, "unknown key \"%s\"", name ? name : "?");
		return at(c, key);
	}
	if (def->offset == SIZE_MAX)
		return read_models(c, key, value);
	if (!scalar_of(value))
		return wrong_type(c, key, name, "a value");
	return ctn_options_default(c->o, def, scalar_of(value), c->err);
}

/* A line of the file, 1-based, to show what the parser means. */
static const char *line_at(const char *text, int line, int *len)
{
	while (--line > 0 && strchr(text, '\n'))
		text = strchr(text, '\n') + 1;
	*len = (int)strcspn(text, "\n");
	return text;
}

static int not_yaml(const struct config *c, struct fy_diag *diag, const char *text)
{
	void *iter = NULL;
	struct fy_diag_error *e = fy_diag_errors_iterate(diag, &iter);
	const char *line;
	int len;

	if (!e || !e->msg)
		return ctn_err_set(c->err, -EINVAL, "%s: expected YAML", c->path);
	line = line_at(text, e->line, &len);
	return ctn_err_set(c->err, -EINVAL, "%s:%d: %s: %.*s", c->path, e->line, e->msg, len, line);
}

static int read_root(const struct config *c, struct fy_document *doc)
{
	struct fy_node *root = fy_document_root(doc);
	struct fy_node_pair *pair;
	void *iter = NULL;
	int rc = 0;

	if (!root || !fy_node_is_mapping(root))
		return ctn_err_set(c->err, -EINVAL, "%s: expected a mapping of options", c->path);
	while (!rc && (pair = fy_node_mapping_iterate(root, &iter)))
		rc = read_pair(c, pair);
	return rc;
}

static int read_text(const struct config *c, const char *text, size_t len)
{
	struct fy_parse_cfg cfg = {.flags = FYPCF_COLLECT_DIAG};
	struct fy_parser *parser = NULL;
	struct fy_document *doc = NULL, *second = NULL;
	const uint8_t *bad;
	int rc = 0;

	cfg.diag = fy_diag_create(NULL);
	if (cfg.diag) {
		fy_diag_set_collect_errors(cfg.diag, true);
		parser = fy_parser_create(&cfg);
	}
	if (!parser || fy_parser_set_string(parser, text, len)) {
		rc = ctn_err_set(c->err, -ENOMEM, "out of memory");
		goto out;
	}
	/* Bytes that are not UTF-8 can make the parser go round and round. */
	bad = u8_check((const uint8_t *)text, len);
	if (bad) {
		rc = ctn_err_set(c->err, -EINVAL, "%s: byte %zu is not UTF-8", c->path,
				 (size_t)(bad - (const uint8_t *)text));
		goto out;
	}
	/* None at all is a file without options. */
	doc = fy_parse_load_document(parser);
	if (doc)
		second = fy_parse_load_document(parser);
	if (fy_parser_get_stream_error(parser))
		rc = not_yaml(c, cfg.diag, text);
	else if (second)
		rc = ctn_err_set(c->err, -EINVAL, "%s: expected one YAML document, found more",
				 c->path);
	else if (doc)
		rc = read_root(c, doc);
out:
	if (second)
		fy_parse_document_destroy(parser, second);
	if (doc)
		fy_parse_document_destroy(parser, doc);
	if (parser)
		fy_parser_destroy(parser);
	if (cfg.diag)
		fy_diag_destroy(cfg.diag);
	return rc;
}

int ctn_config_read(const char *path, struct ctn_options *o, struct ctn_err *err)
{
	struct config c = {.path = path, .o = o, .err = err};
	char *text;
	size_t len;
	int rc = ctn_read_file(path, MAX_FILE, &text, &len, err);

	if (rc)
		return rc;
	rc = read_text(&c, text, len);
	free(text);
	return rc;
}
