// SPDX-License-Identifier: MIT
#include "checkpoint/json.h"

#include <errno.h>
#include <string.h>

static void skip_space(struct ctn_json_walk *w)
{
	while (w->at < w->len && w->data[w->at] && strchr(" \t\n\r", w->data[w->at]))
		w->at++;
}

/* Whether the next byte is `c`, which is then passed. */
static bool pass(struct ctn_json_walk *w, char c)
{
	skip_space(w);
	if (w->at == w->len || w->data[w->at] != c)
		return false;
	w->at++;
	return true;
}

static bool pass_string(struct ctn_json_walk *w)
{
	if (!pass(w, '"'))
		return false;
	while (w->at < w->len) {
		const char c = w->data[w->at++];

		if (c == '"')
			return true;
		if (c == '\\' && w->at < w->len)
			w->at++;
	}
	return false;
}

/* Up to the bracket that ends what the next one begins; the parser checks their kinds. */
static bool pass_brackets(struct ctn_json_walk *w)
{
	size_t depth = 0;

	while (w->at < w->len) {
		switch (w->data[w->at]) {
		case '"':
			if (!pass_string(w))
				return false;
			continue;
		case '{':
		case '[':
			depth++;
			break;
		case '}':
		case ']':
			depth--;
			break;
		}
		w->at++;
		if (depth == 0)
			return true;
	}
	return false;
}

static bool pass_value(struct ctn_json_walk *w)
{
	const size_t start = w->at;

	if (w->at == w->len)
		return false;
	if (w->data[w->at] == '"')
		return pass_string(w);
	if (w->data[w->at] == '{' || w->data[w->at] == '[')
		return pass_brackets(w);
	while (w->at < w->len && !strchr(",}] \t\n\r", w->data[w->at]))
		w->at++;
	return w->at > start;
}

static int broken(const struct ctn_json_walk *w, const char *expected, struct ctn_err *err)
{
	return ctn_err_set(err, -EINVAL, "%s: expected JSON: %s at byte %zu", w->what, expected,
			   w->at);
}

/* Nothing but white space may follow. */
static int end_walk(struct ctn_json_walk *w, struct ctn_err *err)
{
	skip_space(w);
	return w->at == w->len ? 0 : broken(w, "the end", err);
}

int ctn_json_next(struct ctn_json_walk *w, struct ctn_json_member *m, struct ctn_err *err)
{
	size_t name, name_end, value;
	int rc;

	if (!w->started) {
		w->started = true;
		if (!pass(w, '{'))
			return broken(w, "an object at the top", err);
		if (pass(w, '}'))
			return end_walk(w, err);
	} else if (pass(w, '}')) {
		return end_walk(w, err);
	} else if (!pass(w, ',')) {
		return broken(w, "a comma or the end of the object", err);
	}
	skip_space(w);
	name = w->at;
	if (!pass_string(w))
		return broken(w, "a name", err);
	name_end = w->at;
	if (!pass(w, ':'))
		return broken(w, "a colon", err);
	skip_space(w);
	value = w->at;
	if (!pass_value(w))
		return broken(w, "a value", err);
	m->value = w->data + value;
	m->len = w->at - value;
	rc = ctn_json_parse_any(w->data + name, name_end - name, name, w->what, &m->name, err);
	return rc ? rc : 1;
}

int ctn_json_value(const struct ctn_json_walk *w, const struct ctn_json_member *m, size_t max,
		   json_t **value, struct ctn_err *err)
{
	if (m->len > max)
		return ctn_err_set(err, -EINVAL,
				   "%s: \"%s\": expected a value of at most %zu bytes, found %zu",
				   w->what, ctn_quote(json_string_value(m->name)).s, max, m->len);
	return ctn_json_parse_any(m->value, m->len, (size_t)(m->value - w->data), w->what, value,
				  err);
}
