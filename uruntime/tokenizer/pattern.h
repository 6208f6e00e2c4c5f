/* SPDX-License-Identifier: MIT */
/*
 * The patterns of Split and Replace: literal strings, and regular expressions that are
 * written for Oniguruma (which the `tokenizers` package has) and run by PCRE2.
 */
#ifndef CTN_TOKENIZER_PATTERN_H
#define CTN_TOKENIZER_PATTERN_H

#include "base/base.h"

/* Immutable: any number of threads may search with it. */
struct ctn_tok_pattern;

/* `what` names the component in errors. Constructs that the two engines read differently
 * are refused by name (-ENOTSUP). */
int ctn_tok_pattern_regex(const char *what, const char *regex, size_t len,
			  struct ctn_tok_pattern **pattern, struct ctn_err *err);
int ctn_tok_pattern_literal(const char *text, size_t len, struct ctn_tok_pattern **pattern,
			    struct ctn_err *err);
void ctn_tok_pattern_free(struct ctn_tok_pattern *pattern);

/* The bytes [start, end) of the text are a match, or lie between two. */
typedef int ctn_tok_item_fn(void *arg, size_t start, size_t end, bool match, struct ctn_err *err);

/*
 * Cuts valid UTF-8 into matches and what lies between them and calls `item` for each in
 * order; together they cover the text. Stops at the first error of `item` and returns it.
 */
int ctn_tok_pattern_cut(const struct ctn_tok_pattern *pattern, const char *text, size_t len,
			ctn_tok_item_fn *item, void *arg, struct ctn_err *err);

/*
 * regex -> the same in PCRE2's syntax, in `out`; -ENOTSUP, naming the construct, for what
 * does not mean the same to both engines.
 */
int ctn_tok_regex_translate(const char *what, const char *regex, size_t len, struct ctn_buf *out,
			    struct ctn_err *err);

#endif
