/* SPDX-License-Identifier: MIT */
/* Strict JSON for headers, configs and indexes. Private to checkpoint. */
#ifndef CTN_CHECKPOINT_JSON_H
#define CTN_CHECKPOINT_JSON_H

#include <jansson.h>

#include "base/base.h"

/*
 * Parses a document whose top is an object: UTF-8, no duplicate keys, bounded nesting, nothing
 * after it. -EINVAL with `what` (a path) and the reason; the caller owns *root.
 */
int ctn_json_parse(const char *data, size_t len, const char *what, json_t **root,
		   struct ctn_err *err);

/* The same for a file of at most `max` bytes. */
int ctn_json_read(const char *path, size_t max, json_t **root, struct ctn_err *err);

/* Text of foreign origin made fit for one line of a message: control characters escaped, long
 * text cut. Used as ctn_quote(name).s within one expression. */
struct ctn_quoted {
	char s[132];
};

struct ctn_quoted ctn_quote(const char *text);
struct ctn_quoted ctn_quote_n(const char *text, size_t len);
/* A value as JSON text. */
struct ctn_quoted ctn_quote_json(const json_t *value);

#endif
