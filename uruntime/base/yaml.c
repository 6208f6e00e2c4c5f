// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

#define MAX_FILE (1 << 20)

const char *ctn_yaml_scalar(struct fy_node *node)
{
	const char *s;
	size_t len;

	if (!node || !fy_node_is_scalar(node) || fy_node_is_alias(node))
		return NULL;
	s = fy_node_get_scalar0(node);
	return s && fy_node_get_scalar(node, &len) && len && strlen(s) == len ? s : NULL;
}

/* A line of the file, 1-based, to show what the parser means. */
static const char *line_at(const char *text, int line, int *len)
{
	while (--line > 0 && strchr(text, '\n'))
		text = strchr(text, '\n') + 1;
	*len = (int)strcspn(text, "\n");
	return text;
}

static int not_yaml(const char *path, struct fy_diag *diag, const char *text, struct ctn_err *err)
{
	void *iter = NULL;
	struct fy_diag_error *e = fy_diag_errors_iterate(diag, &iter);
	const char *line;
	int len;

	if (!e || !e->msg)
		return ctn_err_set(err, -EINVAL, "%s: expected YAML", path);
	line = line_at(text, e->line, &len);
	return ctn_err_set(err, -EINVAL, "%s:%d: %s: %.*s", path, e->line, e->msg, len, line);
}

static int read_text(const char *path, const char *text, size_t len, ctn_yaml_fn *read, void *arg,
		     struct ctn_err *err)
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
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	/* Bytes that are not UTF-8 can make the parser go round and round. */
	bad = u8_check((const uint8_t *)text, len);
	if (bad) {
		rc = ctn_err_set(err, -EINVAL, "%s: byte %zu is not UTF-8", path,
				 (size_t)(bad - (const uint8_t *)text));
		goto out;
	}
	doc = fy_parse_load_document(parser);
	if (doc)
		second = fy_parse_load_document(parser);
	if (fy_parser_get_stream_error(parser))
		rc = not_yaml(path, cfg.diag, text, err);
	else if (second)
		rc = ctn_err_set(err, -EINVAL, "%s: expected one YAML document, found more", path);
	else
		rc = read(arg, doc ? fy_document_root(doc) : NULL, err);
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

int ctn_yaml_read(const char *path, ctn_yaml_fn *read, void *arg, struct ctn_err *err)
{
	char *text;
	size_t len;
	int rc = ctn_read_file(path, MAX_FILE, &text, &len, err);

	if (rc)
		return rc;
	rc = read_text(path, text, len, read, arg, err);
	free(text);
	return rc;
}
