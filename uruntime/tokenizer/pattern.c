// SPDX-License-Identifier: MIT
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct ctn_tok_pattern {
	pcre2_code *code; /* NULL: the literal */
	char *literal;
	size_t literal_len;
};

int ctn_tok_pattern_literal(const char *text, size_t len, struct ctn_tok_pattern **pattern,
			    struct ctn_err *err)
{
	struct ctn_tok_pattern *p = calloc(1, sizeof(*p));

	if (p)
		p->literal = malloc(len + 1);
	if (!p || !p->literal) {
		free(p);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	memcpy(p->literal, text, len);
	p->literal[len] = '\0';
	p->literal_len = len;
	*pattern = p;
	return 0;
}

static int compile(const char *what, const struct ctn_buf *regex, pcre2_code **code,
		   struct ctn_err *err)
{
	pcre2_compile_context *context = pcre2_compile_context_create(NULL);
	PCRE2_UCHAR why[128];
	PCRE2_SIZE offset;
	int number;

	if (!context)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", what);
	/* What `.` stops at, whatever the library was built with. */
	pcre2_set_newline(context, PCRE2_NEWLINE_LF);
	*code = pcre2_compile((PCRE2_SPTR)regex->data, regex->len, PCRE2_UTF | PCRE2_UCP, &number,
			      &offset, context);
	pcre2_compile_context_free(context);
	if (!*code) {
		pcre2_get_error_message(number, why, sizeof(why));
		return ctn_err_set(err, -ENOTSUP, "%s: pattern \"%.160s\": %s at byte %zu", what,
				   regex->data, (const char *)why, (size_t)offset);
	}
	/* Compiling to machine code may be forbidden: matching then takes longer. */
	pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE);
	return 0;
}

int ctn_tok_pattern_regex(const char *what, const char *regex, size_t len,
			  struct ctn_tok_pattern **pattern, struct ctn_err *err)
{
	struct ctn_buf translated = {0};
	struct ctn_tok_pattern *p;
	int rc;

	p = calloc(1, sizeof(*p));
	if (!p)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", what);
	rc = ctn_tok_regex_translate(what, regex, len, &translated, err);
	if (!rc)
		rc = compile(what, &translated, &p->code, err);
	ctn_buf_free(&translated);
	if (rc) {
		free(p);
		return rc;
	}
	*pattern = p;
	return 0;
}

void ctn_tok_pattern_free(struct ctn_tok_pattern *pattern)
{
	if (!pattern)
		return;
	pcre2_code_free(pattern->code);
	free(pattern->literal);
	free(pattern);
}

static int cut_literal(const struct ctn_tok_pattern *pattern, const char *text, size_t len,
		       ctn_tok_item_fn *item, void *arg, struct ctn_err *err)
{
	size_t done = 0;
	int rc = 0;

	while (!rc && done < len) {
		const char *hit = ctn_tok_find(text + done, len - done, pattern->literal,
					       pattern->literal_len);
		size_t start = hit ? (size_t)(hit - text) : len;

		if (start > done)
			rc = item(arg, done, start, false, err);
		if (!rc && hit)
			rc = item(arg, start, start + pattern->literal_len, true, err);
		done = hit ? start + pattern->literal_len : len;
	}
	return rc;
}

/*
 * The text with younger characters replaced by their stand-ins, in `copy`; NULL if there is
 * none, which is nearly always so.
 */
static const char *stand_ins(const char *text, size_t len, struct ctn_buf *copy)
{
	size_t done = 0;

	for (size_t i = 0; i < len;) {
		uint32_t cp, to;
		size_t n;
		char c[4];

		/* None has fewer than three bytes. */
		if ((uint8_t)text[i] < 0xE0) {
			i++;
			continue;
		}
		n = ctn_tok_utf8_decode(text + i, &cp);
		to = ctn_tok_stand_in_for(cp);
		if (to != cp) {
			ctn_tok_utf8_encode(to, c);
			ctn_buf_append(copy, text + done, i - done);
			ctn_buf_append(copy, c, n);
			done = i + n;
		}
		i += n;
	}
	if (!done)
		return NULL;
	ctn_buf_append(copy, text + done, len - done);
	return copy->data;
}

static int match(const struct ctn_tok_pattern *pattern, const char *text, size_t len, size_t from,
		 pcre2_match_data *data, struct ctn_err *err)
{
	PCRE2_UCHAR why[128];
	int rc;

	rc = pcre2_match(pattern->code, (PCRE2_SPTR)text, len, from, PCRE2_NO_UTF_CHECK, data,
			 NULL);
	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(pattern->code, (PCRE2_SPTR)text, len, from,
				 PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, NULL);
	if (rc >= 0)
		return 1;
	if (rc == PCRE2_ERROR_NOMATCH)
		return 0;
	pcre2_get_error_message(rc, why, sizeof(why));
	return ctn_err_set(err, rc == PCRE2_ERROR_NOMEMORY ? -ENOMEM : -EINVAL,
			   "the tokenizer's split pattern gave up at byte %zu: %s", from,
			   (const char *)why);
}

static int cut_regex(const struct ctn_tok_pattern *pattern, const char *text, size_t len,
		     ctn_tok_item_fn *item, void *arg, struct ctn_err *err)
{
	pcre2_match_data *data = pcre2_match_data_create(1, NULL);
	const PCRE2_SIZE *ovector;
	struct ctn_buf copy = {0};
	size_t from = 0, done = 0, last_end = SIZE_MAX;
	const char *seen;
	uint32_t cp;
	int rc = 0;

	if (!data)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	seen = stand_ins(text, len, &copy);
	if (copy.failed) {
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	if (!seen)
		seen = text;
	ovector = pcre2_get_ovector_pointer(data);
	while (from <= len) {
		size_t start, end;

		rc = match(pattern, seen, len, from, data, err);
		if (rc <= 0)
			break;
		rc = 0;
		start = ovector[0];
		end = ovector[1];
		/* An empty match right behind a match is none: look one character on. */
		if (start == end && end == last_end) {
			from += from < len ? ctn_tok_utf8_decode(text + from, &cp) : 1;
			continue;
		}
		if (start > done)
			rc = item(arg, done, start, false, err);
		if (!rc)
			rc = item(arg, start, end, true, err);
		if (rc)
			break;
		from = done = last_end = end;
	}
	if (!rc && done < len)
		rc = item(arg, done, len, false, err);
out:
	ctn_buf_free(&copy);
	pcre2_match_data_free(data);
	return rc;
}

int ctn_tok_pattern_cut(const struct ctn_tok_pattern *pattern, const char *text, size_t len,
			ctn_tok_item_fn *item, void *arg, struct ctn_err *err)
{
	return pattern->code ? cut_regex(pattern, text, len, item, arg, err)
			     : cut_literal(pattern, text, len, item, arg, err);
}
