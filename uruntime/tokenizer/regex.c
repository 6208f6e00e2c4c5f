// SPDX-License-Identifier: MIT
/*
 * Which regular expressions mean the same to Oniguruma (Ruby syntax) and PCRE2 (UTF, UCP).
 * Everything that is let through was compared; everything else is refused: `\h` is a hex
 * digit to one and a space to the other, `[a[b]]` a set or not, `^` any line's start or the
 * text's, and so on. Wrong text is worse than no text.
 */
#include "tokenizer/pattern.h"
#include "tokenizer/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#define MAX_GROUPS 64

struct walk {
	const char *what;
	const char *regex;
	size_t len;
	size_t pos;
	struct ctn_buf *out;
	struct ctn_err *err;
	/* Open groups: whether each ignores case. */
	bool caseless[MAX_GROUPS];
	size_t depth;
	/* The letter just before, lower case, in a group that ignores case; else 0. */
	char prev;
	/* Whether what was just read can be repeated. */
	bool atom;
};

static int refuse(struct walk *w, size_t at, const char *why)
{
	size_t n = CTN_MIN(w->len - at, (size_t)12);

	while (n && at + n < w->len && ((uint8_t)w->regex[at + n] & 0xC0) == 0x80)
		n--;
	return ctn_err_set(w->err, -ENOTSUP, "%s: pattern \"%.160s\": %s at byte %zu, \"%.*s\"",
			   w->what, w->regex, why, at, (int)n, w->regex + at);
}

static bool ignores_case(const struct walk *w)
{
	return w->depth && w->caseless[w->depth - 1];
}

static int peek(const struct walk *w, size_t ahead)
{
	return w->pos + ahead < w->len ? (unsigned char)w->regex[w->pos + ahead] : -1;
}

static bool starts_with(const struct walk *w, const char *s)
{
	size_t n = strlen(s);

	return w->len - w->pos >= n && memcmp(w->regex + w->pos, s, n) == 0;
}

static void copy(struct walk *w, size_t n)
{
	ctn_buf_append(w->out, w->regex + w->pos, n);
	w->pos += n;
}

/* A literal character (or one end of a range): must mean itself in both engines. */
static int check_range(struct walk *w, size_t at, uint32_t first, uint32_t last)
{
	if (last >= 0x800 && ctn_tok_range_is_young(first, last))
		return refuse(w, at, "characters newer than Unicode 14");
	if (ignores_case(w) && last >= 0x80)
		return refuse(w, at, "characters outside ASCII without regard to case");
	return 0;
}

/*
 * Without regard to case, Oniguruma also takes one character for two letters (sharp s for
 * ss, ligatures for ff, fi, fl, st); PCRE2 does not.
 */
static int check_folding(struct walk *w, size_t at, uint32_t cp)
{
	static const char pairs[][3] = {"ss", "ff", "fi", "fl", "st"};
	char c = cp < 0x80 ? (char)tolower((int)cp) : 0;

	if (!ignores_case(w))
		return 0;
	for (size_t i = 0; i < CTN_ARRAY_LEN(pairs); i++) {
		if (w->prev == pairs[i][0] && c == pairs[i][1])
			return refuse(w, at, "a ligature without regard to case");
	}
	w->prev = c;
	return 0;
}

/* The name in \p{NAME}: a general category. */
static bool is_category(const char *s, size_t n)
{
	static const char *const subs[] = {"Lultmo", "Mnce", "Ndlo", "Pcdseifo",
					   "Smcko",  "Zslp", "Ccfo"};

	for (size_t i = 0; n && i < CTN_ARRAY_LEN(subs); i++) {
		if (s[0] == subs[i][0])
			return n == 1 || (n == 2 && strchr(subs[i] + 1, s[1]));
	}
	return false;
}

static int hex(struct walk *w, size_t at, size_t digits_at, size_t min, size_t max, uint32_t *cp,
	       size_t *digits)
{
	uint32_t v = 0;
	size_t n = 0;

	while (n < max && digits_at + n < w->len &&
	       isxdigit((unsigned char)w->regex[digits_at + n])) {
		char c = (char)tolower((unsigned char)w->regex[digits_at + n]);

		v = v * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
		n++;
	}
	if (n < min || v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF))
		return refuse(w, at, "an escape that is not supported");
	*cp = v;
	*digits = n;
	return 0;
}

/* \xHH, \x{H...}, \uHHHH: the character, consumed. */
static int numeric_escape(struct walk *w, uint32_t *cp)
{
	size_t at = w->pos, n;
	int rc;

	if (starts_with(w, "\\x{")) {
		rc = hex(w, at, at + 3, 1, 6, cp, &n);
		if (rc)
			return rc;
		if (at + 3 + n >= w->len || w->regex[at + 3 + n] != '}')
			return refuse(w, at, "an escape that is not supported");
		w->pos = at + 3 + n + 1;
		return 0;
	}
	if (w->regex[at + 1] == 'x') {
		/* Above 0x7F it is a byte to Oniguruma and a character to PCRE2. */
		rc = hex(w, at, at + 2, 2, 2, cp, &n);
		if (!rc && *cp > 0x7F)
			rc = refuse(w, at, "an escape that is not supported");
	} else {
		rc = hex(w, at, at + 2, 4, 4, cp, &n);
	}
	if (!rc)
		w->pos = at + 2 + n;
	return rc;
}

/*
 * One escape, copied out. *literal says whether it is one character, then in *cp; else it
 * is a class such as \s.
 */
static int escape(struct walk *w, bool *literal, uint32_t *cp)
{
	size_t at = w->pos;
	const char *end;
	int c = peek(w, 1), rc;

	*literal = true;
	if (c == 'x' || c == 'u') {
		rc = numeric_escape(w, cp);
		if (!rc)
			ctn_buf_printf(w->out, "\\x{%X}", *cp);
		return rc;
	}
	if (c > 0 && c < 0x80 && (ispunct(c) || c == ' ')) {
		*cp = (uint32_t)c;
		copy(w, 2);
		return 0;
	}
	if (c == 'n' || c == 'r' || c == 't' || c == 'f') {
		*cp = c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : '\f';
		copy(w, 2);
		return 0;
	}
	*literal = false;
	if (ignores_case(w))
		return refuse(w, at, "a class without regard to case");
	if (c == 's' || c == 'S' || c == 'd' || c == 'D') {
		copy(w, 2);
		return 0;
	}
	if ((c == 'p' || c == 'P') && peek(w, 2) == '{') {
		end = memchr(w->regex + at + 3, '}', w->len - at - 3);
		if (end && is_category(w->regex + at + 3, (size_t)(end - (w->regex + at + 3)))) {
			copy(w, (size_t)(end + 1 - (w->regex + at)));
			return 0;
		}
		return refuse(w, at, "a property that is not supported");
	}
	return refuse(w, at, "an escape that is not supported");
}

/* One member of [...], copied out. */
static int class_member(struct walk *w, bool *literal, uint32_t *cp)
{
	int c = peek(w, 0);

	if (c == '\\')
		return escape(w, literal, cp);
	if (c == '[' || starts_with(w, "&&"))
		return refuse(w, w->pos, "a set within a set");
	*literal = true;
	copy(w, ctn_tok_utf8_decode(w->regex + w->pos, cp));
	return 0;
}

static int class(struct walk *w)
{
	size_t start = w->pos;
	int rc;

	w->prev = 0;
	copy(w, 1);
	if (peek(w, 0) == '^')
		copy(w, 1);
	if (peek(w, 0) == ']')
		return refuse(w, start, "an empty set");
	while (peek(w, 0) != ']') {
		size_t at = w->pos;
		uint32_t first = 0, last;
		bool literal;

		if (at >= w->len)
			return refuse(w, start, "a set without end");
		rc = class_member(w, &literal, &first);
		if (rc)
			return rc;
		last = first;
		if (peek(w, 0) == '-' && peek(w, 1) != ']') {
			bool upper = false;

			if (!literal || first == '-')
				return refuse(w, at, "a range of this kind");
			copy(w, 1);
			if (w->pos >= w->len)
				return refuse(w, start, "a set without end");
			rc = class_member(w, &upper, &last);
			if (rc)
				return rc;
			if (!upper || last < first)
				return refuse(w, at, "a range of this kind");
		}
		if (literal) {
			rc = check_range(w, at, first, last);
			if (rc)
				return rc;
		}
	}
	copy(w, 1);
	return 0;
}

static int open_group(struct walk *w)
{
	static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
	bool caseless = ignores_case(w);
	size_t n = 1;

	if (peek(w, 1) == '?') {
		size_t i = 0;

		while (i < CTN_ARRAY_LEN(kinds) && !starts_with(w, kinds[i]))
			i++;
		if (i == CTN_ARRAY_LEN(kinds))
			return refuse(w, w->pos, "a group of this kind");
		caseless |= kinds[i][2] == 'i';
		n = strlen(kinds[i]);
	}
	if (w->depth == MAX_GROUPS)
		return refuse(w, w->pos, "too many nested groups");
	w->caseless[w->depth++] = caseless;
	copy(w, n);
	return 0;
}

/* {N}, {N,} or {N,M}: its length, 0 if it is none. */
static size_t interval(const struct walk *w, bool *comma)
{
	size_t n = 1;

	while (isdigit(peek(w, n)))
		n++;
	if (n == 1)
		return 0;
	*comma = peek(w, n) == ',';
	if (*comma) {
		n++;
		while (isdigit(peek(w, n)))
			n++;
	}
	return peek(w, n) == '}' ? n + 1 : 0;
}

static int quantifier(struct walk *w)
{
	size_t at = w->pos, n = 1;
	bool plain = true, comma = true;
	int next;

	if (!w->atom)
		return refuse(w, at, "a quantifier of nothing");
	if (peek(w, 0) == '{') {
		n = interval(w, &comma);
		if (!n)
			return refuse(w, at, "an interval of this kind");
		plain = false;
	}
	copy(w, n);
	next = peek(w, 0);
	/* {N}? and {N,M}+ mean other things in Ruby. */
	if ((next == '?' && comma) || (next == '+' && plain))
		copy(w, 1);
	return 0;
}

static int step(struct walk *w)
{
	size_t at = w->pos;
	bool literal = true;
	uint32_t cp;
	int rc;

	switch (peek(w, 0)) {
	case '\0':
		return refuse(w, at, "a NUL byte");
	case '^':
	case '$':
		return refuse(w, at, "an anchor");
	case '[':
		w->atom = true;
		return class(w);
	case '(':
		w->prev = 0;
		w->atom = false;
		return open_group(w);
	case ')':
		if (!w->depth)
			return refuse(w, at, "a group's end without start");
		w->depth--;
		/* fall through */
	case '.':
	case '|':
		w->prev = 0;
		w->atom = w->regex[at] != '|';
		copy(w, 1);
		return 0;
	case '*':
	case '+':
	case '?':
	case '{':
		w->prev = 0;
		rc = quantifier(w);
		w->atom = false;
		return rc;
	case '\\':
		rc = escape(w, &literal, &cp);
		if (rc)
			return rc;
		break;
	default:
		copy(w, ctn_tok_utf8_decode(w->regex + w->pos, &cp));
	}
	w->atom = true;
	if (!literal) {
		w->prev = 0;
		return 0;
	}
	rc = check_range(w, at, cp, cp);
	return rc ? rc : check_folding(w, at, cp);
}

int ctn_tok_regex_translate(const char *what, const char *regex, size_t len, struct ctn_buf *out,
			    struct ctn_err *err)
{
	struct walk w = {.what = what, .regex = regex, .len = len, .out = out, .err = err};
	int rc = 0;

	while (!rc && w.pos < len)
		rc = step(&w);
	if (!rc && out->failed)
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", what);
	return rc;
}
