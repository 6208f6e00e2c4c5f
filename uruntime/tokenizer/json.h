/* SPDX-License-Identifier: MIT */
/*
 * Reading objects of tokenizer.json: every key known, every type checked, errors that name
 * the place. `what` is that place, "normalizer Replace" for one.
 */
#ifndef CTN_TOKENIZER_JSON_H
#define CTN_TOKENIZER_JSON_H

#include "base/base.h"

#include <jansson.h>

/* Sequences in sequences: no file in the wild goes beyond two. */
#define CTN_TOK_MAX_NESTING 8

/* Reads a whole JSON file; duplicate keys are errors. The caller decrefs *root. */
int ctn_tok_json_load(const char *path, json_t **root, struct ctn_err *err);

/* -EINVAL unless `obj` is an object, -ENOTSUP for a key that is not in the NULL-terminated
 * list `known`: it might change the ids. */
int ctn_tok_json_check(const json_t *obj, const char *what, const char *const *known,
		       struct ctn_err *err);

/* The "type" of a component: *type points into it. */
int ctn_tok_json_type(const json_t *obj, const char *what, const char **type, struct ctn_err *err);

/* A key that must be there with that type. The string belongs to the object. */
int ctn_tok_json_string(const json_t *obj, const char *what, const char *key, const char **v,
			size_t *len, struct ctn_err *err);
int ctn_tok_json_array(const json_t *obj, const char *what, const char *key, const json_t **v,
		       struct ctn_err *err);
int ctn_tok_json_uint(const json_t *obj, const char *what, const char *key, uint32_t max,
		      uint32_t *v, struct ctn_err *err);

/* A key that may be missing or null: then *v stays as it is. */
int ctn_tok_json_bool(const json_t *obj, const char *what, const char *key, bool *v,
		      struct ctn_err *err);

/* "pattern": {"String": S} or {"Regex": S}. */
int ctn_tok_json_pattern(const json_t *obj, const char *what, bool *is_regex, const char **v,
			 size_t *len, struct ctn_err *err);

/*
 * Calls fn for `obj`, or, when its type is "Sequence", for each element of its array `key`,
 * in order and to any depth. Null is no component at all.
 */
int ctn_tok_json_each(const json_t *obj, const char *what, const char *key, unsigned int depth,
		      int (*fn)(void *arg, const json_t *obj, const char *type,
				struct ctn_err *err),
		      void *arg, struct ctn_err *err);

#endif
