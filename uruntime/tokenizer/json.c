// SPDX-License-Identifier: MIT
#include "tokenizer/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The largest vocabularies in use make files of some 35 MB. */
#define TOKENIZER_FILE_MAX (256 * CTN_MIB)

static const char *type_name(const json_t *v)
{
	switch (json_typeof(v)) {
	case JSON_OBJECT:
		return "an object";
	case JSON_ARRAY:
		return "an array";
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	default:
		return "null";
	}
}

static int wrong_type(const char *what, const char *key, const char *expected, const json_t *v,
		      struct ctn_err *err)
{
	return ctn_err_set(err, -EINVAL, "%s: \"%s\": expected %s, found %s", what, key, expected,
			   v ? type_name(v) : "nothing");
}

int ctn_tok_json_load(const char *path, json_t **root, struct ctn_err *err)
{
	json_error_t why;
	char *data;
	size_t len;
	int rc;

	rc = ctn_read_file(path, TOKENIZER_FILE_MAX, &data, &len, err);
	if (rc)
		return rc;
	*root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &why);
	free(data);
	if (*root)
		return 0;
	if (json_error_code(&why) == json_error_out_of_memory)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", path);
	return ctn_err_set(err, -EINVAL, "%s:%d:%d: %s", path, why.line, why.column, why.text);
}

int ctn_tok_json_check(const json_t *obj, const char *what, const char *const *known,
		       struct ctn_err *err)
{
	const char *key;
	json_t *v;

	if (!json_is_object(obj))
		return ctn_err_set(err, -EINVAL, "%s: expected an object, found %s", what,
				   obj ? type_name(obj) : "nothing");
	json_object_foreach((json_t *)obj, key, v)
	{
		size_t i = 0;

		while (known[i] && strcmp(known[i], key) != 0)
			i++;
		if (!known[i])
			return ctn_err_set(err, -ENOTSUP, "%s: \"%.64s\" is not supported", what,
					   key);
	}
	return 0;
}

int ctn_tok_json_type(const json_t *obj, const char *what, const char **type, struct ctn_err *err)
{
	if (!json_is_object(obj))
		return ctn_err_set(err, -EINVAL, "%s: expected an object, found %s", what,
				   obj ? type_name(obj) : "nothing");
	return ctn_tok_json_string(obj, what, "type", type, NULL, err);
}

int ctn_tok_json_string(const json_t *obj, const char *what, const char *key, const char **v,
			size_t *len, struct ctn_err *err)
{
	const json_t *s = json_object_get(obj, key);

	if (!json_is_string(s))
		return wrong_type(what, key, "a string", s, err);
	*v = json_string_value(s);
	if (len)
		*len = json_string_length(s);
	return 0;
}

int ctn_tok_json_array(const json_t *obj, const char *what, const char *key, const json_t **v,
		       struct ctn_err *err)
{
	*v = json_object_get(obj, key);
	if (!json_is_array(*v))
		return wrong_type(what, key, "an array", *v, err);
	return 0;
}

int ctn_tok_json_uint(const json_t *obj, const char *what, const char *key, uint32_t max,
		      uint32_t *v, struct ctn_err *err)
{
	const json_t *n = json_object_get(obj, key);
	json_int_t i;

	if (!json_is_integer(n))
		return wrong_type(what, key, "an integer", n, err);
	i = json_integer_value(n);
	if (i < 0 || i > max)
		return ctn_err_set(err, -EINVAL, "%s: \"%s\": expected 0 to %u, found %lld", what,
				   key, max, (long long)i);
	*v = (uint32_t)i;
	return 0;
}

int ctn_tok_json_bool(const json_t *obj, const char *what, const char *key, bool *v,
		      struct ctn_err *err)
{
	const json_t *b = json_object_get(obj, key);

	if (!b || json_is_null(b))
		return 0;
	if (!json_is_boolean(b))
		return wrong_type(what, key, "a boolean", b, err);
	*v = json_is_true(b);
	return 0;
}

int ctn_tok_json_pattern(const json_t *obj, const char *what, bool *is_regex, const char **v,
			 size_t *len, struct ctn_err *err)
{
	const json_t *pattern = json_object_get(obj, "pattern"), *s;

	s = json_object_get(pattern, "String");
	*is_regex = !s;
	if (!s)
		s = json_object_get(pattern, "Regex");
	if (!json_is_string(s) || json_object_size(pattern) != 1)
		return wrong_type(what, "pattern", "{\"String\": ...} or {\"Regex\": ...}", pattern,
				  err);
	*v = json_string_value(s);
	*len = json_string_length(s);
	if (*len == 0)
		return ctn_err_set(err, -ENOTSUP, "%s: an empty pattern is not supported", what);
	return 0;
}

int ctn_tok_json_each(const json_t *obj, const char *what, const char *key, unsigned int depth,
		      int (*fn)(void *arg, const json_t *obj, const char *type,
				struct ctn_err *err),
		      void *arg, struct ctn_err *err)
{
	const char *const known[] = {"type", key, NULL};
	const json_t *list;
	const char *type;
	int rc;

	if (!obj || (json_is_null(obj) && depth == 0))
		return 0;
	if (depth > CTN_TOK_MAX_NESTING)
		return ctn_err_set(err, -ENOTSUP, "%s: more than %d nested sequences", what,
				   CTN_TOK_MAX_NESTING);
	rc = ctn_tok_json_type(obj, what, &type, err);
	if (rc)
		return rc;
	if (strcmp(type, "Sequence") != 0)
		return fn(arg, obj, type, err);
	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_array(obj, what, key, &list, err);
	for (size_t i = 0; !rc && i < json_array_size(list); i++)
		rc = ctn_tok_json_each(json_array_get(list, i), what, key, depth + 1, fn, arg, err);
	return rc;
}
