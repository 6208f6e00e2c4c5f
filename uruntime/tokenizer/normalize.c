// SPDX-License-Identifier: MIT
#include "tokenizer/normalize.h"
#include "tokenizer/json.h"
#include "tokenizer/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <uninorm.h>

/* ---- reading --------------------------------------------------------------------------- */

static int set_text(struct ctn_tok_normal_step *step, const json_t *obj, const char *what,
		    const char *key, struct ctn_err *err)
{
	const char *text;
	int rc;

	rc = ctn_tok_json_string(obj, what, key, &text, &step->len, err);
	if (rc)
		return rc;
	step->text = strdup(text);
	return step->text ? 0 : ctn_err_set(err, -ENOMEM, "%s: out of memory", what);
}

static int parse_prepend(const json_t *obj, struct ctn_tok_normal_step *step, struct ctn_err *err)
{
	static const char *const known[] = {"type", "prepend", NULL};
	const char *what = "normalizer Prepend";
	int rc;

	step->kind = CTN_TOK_PREPEND;
	rc = ctn_tok_json_check(obj, what, known, err);
	return rc ? rc : set_text(step, obj, what, "prepend", err);
}

static int parse_replace(const json_t *obj, struct ctn_tok_normal_step *step, struct ctn_err *err)
{
	static const char *const known[] = {"type", "pattern", "content", NULL};
	const char *what = "normalizer Replace", *pattern;
	bool is_regex;
	size_t len;
	int rc;

	step->kind = CTN_TOK_REPLACE;
	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = set_text(step, obj, what, "content", err);
	if (!rc)
		rc = ctn_tok_json_pattern(obj, what, &is_regex, &pattern, &len, err);
	if (rc)
		return rc;
	return is_regex ? ctn_tok_pattern_regex(what, pattern, len, &step->pattern, err)
			: ctn_tok_pattern_literal(pattern, len, &step->pattern, err);
}

static int parse_nfc(const json_t *obj, struct ctn_tok_normal_step *step, struct ctn_err *err)
{
	static const char *const known[] = {"type", NULL};

	step->kind = CTN_TOK_NFC;
	return ctn_tok_json_check(obj, "normalizer NFC", known, err);
}

static int parse_step(void *arg, const json_t *obj, const char *type, struct ctn_err *err)
{
	struct ctn_tok_normalizer *n = arg;
	struct ctn_tok_normal_step *step;

	step = reallocarray(n->steps, n->count + 1, sizeof(*step));
	if (!step)
		return ctn_err_set(err, -ENOMEM, "normalizer: out of memory");
	n->steps = step;
	step += n->count++;
	*step = (struct ctn_tok_normal_step){0};
	if (strcmp(type, "Prepend") == 0)
		return parse_prepend(obj, step, err);
	if (strcmp(type, "Replace") == 0)
		return parse_replace(obj, step, err);
	if (strcmp(type, "NFC") == 0)
		return parse_nfc(obj, step, err);
	return ctn_err_set(err, -ENOTSUP, "normalizer \"%.64s\" is not supported", type);
}

int ctn_tok_normalizer_parse(const json_t *obj, struct ctn_tok_normalizer *normalizer,
			     struct ctn_err *err)
{
	return ctn_tok_json_each(obj, "normalizer", "normalizers", 0, parse_step, normalizer, err);
}

void ctn_tok_normalizer_free(struct ctn_tok_normalizer *normalizer)
{
	for (size_t i = 0; i < normalizer->count; i++) {
		ctn_tok_pattern_free(normalizer->steps[i].pattern);
		free(normalizer->steps[i].text);
	}
	free(normalizer->steps);
}

/* ---- NFC ------------------------------------------------------------------------------- */

static int nfc_append(const char *text, size_t len, struct ctn_buf *out, struct ctn_err *err)
{
	uint8_t on_stack[1024], *normal;
	size_t normal_len = sizeof(on_stack);

	if (!len)
		return 0;
	normal = u8_normalize(UNINORM_NFC, (const uint8_t *)text, len, on_stack, &normal_len);
	if (!normal)
		return ctn_err_set(err, -errno, "normalizer NFC: %s", strerror(errno));
	ctn_buf_append(out, normal, normal_len);
	if (normal != on_stack)
		free(normal);
	return 0;
}

/*
 * The library knows characters that were no combining ones yet when the package's tables
 * were made. To the package they are starters that combine with nothing, so that what lies
 * on their two sides does not meet: normalise the sides apart.
 */
static int nfc(const struct ctn_buf *text, struct ctn_buf *out, struct ctn_err *err)
{
	size_t done = 0, i = 0;
	int rc = 0;

	while (!rc && i < text->len) {
		uint32_t cp;
		size_t n = ctn_tok_utf8_decode(text->data + i, &cp);

		if (cp >= ctn_tok_inert[0].first && ctn_tok_is_inert(cp)) {
			rc = nfc_append(text->data + done, i - done, out, err);
			ctn_buf_append(out, text->data + i, n);
			done = i + n;
		}
		i += n;
	}
	return rc ? rc : nfc_append(text->data + done, i - done, out, err);
}

/* Nothing below U+0300 changes in NFC, unless something from there on follows. */
static bool is_plainly_nfc(const struct ctn_buf *text)
{
	for (size_t i = 0; i < text->len; i++) {
		if ((uint8_t)text->data[i] >= 0xCC)
			return false;
	}
	return true;
}

/* ---- steps ----------------------------------------------------------------------------- */

struct replacing {
	const struct ctn_tok_normal_step *step;
	const char *text;
	struct ctn_buf *out;
};

static int replace_item(void *arg, size_t start, size_t end, bool match, struct ctn_err *err)
{
	struct replacing *r = arg;

	if (match)
		ctn_buf_append(r->out, r->step->text, r->step->len);
	else
		ctn_buf_append(r->out, r->text + start, end - start);
	return 0;
}

/* Only with text that is not empty. */
static int apply(const struct ctn_tok_normal_step *step, const struct ctn_buf *text,
		 struct ctn_buf *out, struct ctn_err *err)
{
	struct replacing r = {step, text->data, out};

	switch (step->kind) {
	case CTN_TOK_PREPEND:
		ctn_buf_append(out, step->text, step->len);
		ctn_buf_append(out, text->data, text->len);
		return 0;
	case CTN_TOK_REPLACE:
		return ctn_tok_pattern_cut(step->pattern, text->data, text->len, replace_item, &r,
					   err);
	case CTN_TOK_NFC:
		if (!is_plainly_nfc(text))
			return nfc(text, out, err);
		ctn_buf_append(out, text->data, text->len);
	}
	return 0;
}

int ctn_tok_normalize(const struct ctn_tok_normalizer *normalizer, struct ctn_buf *text,
		      struct ctn_err *err)
{
	struct ctn_buf out = {0}, swap;
	int rc = 0;

	for (size_t i = 0; !rc && i < normalizer->count && text->len; i++) {
		ctn_buf_reset(&out);
		rc = apply(&normalizer->steps[i], text, &out, err);
		swap = *text;
		*text = out;
		out = swap;
		if (!rc && text->failed)
			rc = ctn_err_set(err, -ENOMEM, "normalizer: out of memory");
	}
	ctn_buf_free(&out);
	return rc;
}
