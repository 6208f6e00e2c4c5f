/* SPDX-License-Identifier: MIT */
/* The normalizers of tokenizer.json: Sequence, Prepend, Replace, NFC. */
#ifndef CTN_TOKENIZER_NORMALIZE_H
#define CTN_TOKENIZER_NORMALIZE_H

#include "base/base.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

enum ctn_tok_normal_kind { CTN_TOK_PREPEND, CTN_TOK_REPLACE, CTN_TOK_NFC };

struct ctn_tok_normal_step {
	enum ctn_tok_normal_kind kind;
	struct ctn_tok_pattern *pattern; /* Replace */
	char *text;                      /* Prepend, Replace: what is put in */
	size_t len;
};

struct ctn_tok_normalizer {
	struct ctn_tok_normal_step *steps;
	size_t count;
};

/* From "normalizer" (may be NULL). Free it also when this fails. */
int ctn_tok_normalizer_parse(const json_t *obj, struct ctn_tok_normalizer *normalizer,
			     struct ctn_err *err);
void ctn_tok_normalizer_free(struct ctn_tok_normalizer *normalizer);

/* Replaces valid UTF-8 in `text` by its normal form. */
int ctn_tok_normalize(const struct ctn_tok_normalizer *normalizer, struct ctn_buf *text,
		      struct ctn_err *err);

#endif
