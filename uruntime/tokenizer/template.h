/* SPDX-License-Identifier: MIT */
/* The post-processors of tokenizer.json, which put special tokens around the ids. */
#ifndef CTN_TOKENIZER_TEMPLATE_H
#define CTN_TOKENIZER_TEMPLATE_H

#include "base/base.h"
#include "tokenizer/bpe.h"

#include <jansson.h>

/* One part of the output: the text's ids (all of them), or one special token. */
struct ctn_tok_template_part {
	bool is_text;
	uint32_t id;
};

struct ctn_tok_template {
	struct ctn_tok_template_part *parts;
	size_t count;
};

/*
 * From "post_processor": TemplateProcessing, ByteLevel (which moves offsets only) or a
 * Sequence of them. The template is the text alone when there is none. Free it also when
 * this fails.
 */
int ctn_tok_template_parse(const json_t *obj, struct ctn_tok_template *t, struct ctn_err *err);
void ctn_tok_template_free(struct ctn_tok_template *t);

int ctn_tok_template_add(struct ctn_tok_template *t, bool is_text, uint32_t id,
			 struct ctn_err *err);

/* The ids of the text with the special tokens around them, appended to `out`. */
void ctn_tok_template_apply(const struct ctn_tok_template *t, const struct ctn_tok_ids *text,
			    bool add_special, struct ctn_tok_ids *out);

#endif
