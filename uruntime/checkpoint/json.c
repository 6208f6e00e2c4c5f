// SPDX-License-Identifier: MIT
#include "checkpoint/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ctn_quoted ctn_quote_n(const char *text, size_t len)
{
	static const char ellipsis[] = "...";
	struct ctn_quoted q;
	size_t out = 0;

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)text[i];

		/* Room for an escape and the ellipsis. */
		if (out + 4 + sizeof(ellipsis) > sizeof(q.s)) {
			memcpy(q.s + out, ellipsis, sizeof(ellipsis));
			return q;
		}
		if (c < 0x20 || c == 0x7f)
			out += (size_t)snprintf(q.s + out, 5, "\\x%02x", c);
		else
			q.s[out++] = (char)c;
	}
	q.s[out] = '\0';
	return q;
}

struct ctn_quoted ctn_quote(const char *text)
{
	return ctn_quote_n(text, strlen(text));
}

struct ctn_quoted ctn_quote_json(const json_t *value)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	struct ctn_quoted q = ctn_quote(text ? text : "?");

	free(text);
	return q;
}

/*
 * jansson reports a duplicate key by position alone when its name is long: the text between
 * the quotes that end there is the name, as written in the file.
 */
static struct ctn_quoted string_ending_at(const char *data, size_t end)
{
	size_t begin;

	if (end < 2 || data[end - 1] != '"')
		return ctn_quote("");
	for (begin = end - 1; begin > 0; begin--) {
		size_t slashes = 0;

		if (data[begin - 1] != '"')
			continue;
		while (slashes + 1 < begin && data[begin - 2 - slashes] == '\\')
			slashes++;
		if (slashes % 2 == 0)
			break;
	}
	return ctn_quote_n(data + begin, end - 1 - begin);
}

/* `base` is where `data` lies in the whole document. */
static int parse_error(const json_error_t *je, const char *data, size_t len, size_t base,
		       const char *what, struct ctn_err *err)
{
	const size_t at = je->position < 0 ? 0 : (size_t)je->position;

	if (json_error_code(je) == json_error_out_of_memory)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", what);
	if (json_error_code(je) == json_error_duplicate_key && at <= len)
		return ctn_err_set(err, -EINVAL, "%s: \"%s\" is given twice", what,
				   string_ending_at(data, at).s);
	return ctn_err_set(err, -EINVAL, "%s: expected JSON: %s at byte %zu", what,
			   ctn_quote(je->text).s, base + at);
}

int ctn_json_parse_any(const char *data, size_t len, size_t base, const char *what, json_t **value,
		       struct ctn_err *err)
{
	json_error_t je;

	*value = json_loadb(data, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
	return *value ? 0 : parse_error(&je, data, len, base, what, err);
}

int ctn_json_parse(const char *data, size_t len, const char *what, json_t **root,
		   struct ctn_err *err)
{
	json_error_t je;
	json_t *v;

	v = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
	if (!v)
		return parse_error(&je, data, len, 0, what, err);
	if (!json_is_object(v)) {
		json_decref(v);
		return ctn_err_set(err, -EINVAL, "%s: expected a JSON object at the top", what);
	}
	*root = v;
	return 0;
}

int ctn_json_read(const char *path, size_t max, json_t **root, struct ctn_err *err)
{
	char *data;
	size_t len;
	int rc;

	rc = ctn_read_file(path, max, &data, &len, err);
	if (rc)
		return rc;
	rc = ctn_json_parse(data, len, path, root, err);
	free(data);
	return rc;
}
