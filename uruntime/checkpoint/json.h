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

/* A value of any kind, at byte `base` of the whole document. */
int ctn_json_parse_any(const char *data, size_t len, size_t base, const char *what, json_t **value,
		       struct ctn_err *err);

/* ctn_json_parse for a file of at most `max` bytes. */
int ctn_json_read(const char *path, size_t max, json_t **root, struct ctn_err *err);

/*
 * Walks the members of an object that may be too large to hold as a tree: a header of 100 MB
 * would take gigabytes. Only the bounds of members are found here; names and values then go
 * through the strict parser one by one, so that the whole is as strict. Duplicate names are
 * the caller's to find.
 */
struct ctn_json_walk {
	const char *what; /* a path, for messages */
	const char *data;
	size_t len;
	size_t at;
	bool started;
};

struct ctn_json_member {
	json_t *name; /* a string; the caller's */
	const char *value;
	size_t len;
};

/* 1 with the next member, 0 at the object's end, -EINVAL, -ENOMEM. */
int ctn_json_next(struct ctn_json_walk *walk, struct ctn_json_member *member, struct ctn_err *err);
/* Parses a member's value of at most `max` bytes of text; the caller owns *value. */
int ctn_json_value(const struct ctn_json_walk *walk, const struct ctn_json_member *member,
		   size_t max, json_t **value, struct ctn_err *err);

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
