/* SPDX-License-Identifier: MIT */
/*
 * The pre-tokenizers of tokenizer.json: they cut a normalised piece into words. ByteLevel,
 * Split, Digits, Metaspace and Sequence, each taken apart into the few steps below; every
 * step works on one piece alone, so that a piece runs through all of them before the next.
 */
#ifndef CTN_TOKENIZER_PRETOKENIZE_H
#define CTN_TOKENIZER_PRETOKENIZE_H

#include "base/base.h"
#include "tokenizer/pattern.h"

#include <jansson.h>

enum ctn_tok_pre_kind {
	CTN_TOK_PRE_SPACE,    /* a space in front, if there is none */
	CTN_TOK_PRE_SPLIT,    /* cut at a pattern */
	CTN_TOK_PRE_ALPHABET, /* each byte becomes its character of the byte-level alphabet */
	CTN_TOK_PRE_META,     /* each space becomes `meta`, perhaps one more in front */
};

/* What becomes of the matches of a split. */
enum ctn_tok_behavior {
	CTN_TOK_REMOVED,
	CTN_TOK_ISOLATED,
	CTN_TOK_MERGED_WITH_PREVIOUS,
	CTN_TOK_MERGED_WITH_NEXT,
	CTN_TOK_CONTIGUOUS,
};

enum ctn_tok_prepend { CTN_TOK_PREPEND_NEVER, CTN_TOK_PREPEND_FIRST, CTN_TOK_PREPEND_ALWAYS };

struct ctn_tok_pre_step {
	enum ctn_tok_pre_kind kind;
	struct ctn_tok_pattern *pattern; /* SPLIT */
	enum ctn_tok_behavior behavior;
	bool invert;
	char meta[4]; /* META */
	size_t meta_len;
	enum ctn_tok_prepend prepend;
};

struct ctn_tok_pre {
	struct ctn_tok_pre_step *steps;
	size_t count;
	/* A step asks whether its piece is the start of the input. */
	bool wants_start;
};

/* From "pre_tokenizer" (may be NULL). Free it also when this fails. */
int ctn_tok_pre_parse(const json_t *obj, struct ctn_tok_pre *pre, struct ctn_err *err);
void ctn_tok_pre_free(struct ctn_tok_pre *pre);

/* Reads what the Metaspace pre-tokenizer and the Metaspace decoder have in common. */
int ctn_tok_metaspace_parse(const json_t *obj, const char *what, char meta[4], size_t *meta_len,
			    enum ctn_tok_prepend *prepend, bool *split, struct ctn_err *err);

/*
 * One run over pieces. `scratch` is an array of pre->count zeroed buffers that the caller
 * frees afterwards; `word` gets the words in order.
 */
struct ctn_tok_pre_run {
	const struct ctn_tok_pre *pre;
	struct ctn_buf *scratch;
	int (*word)(void *arg, const char *word, size_t len, struct ctn_err *err);
	void *arg;
};

/* `at_start`: the piece is the start of the input. */
int ctn_tok_pre_piece(const struct ctn_tok_pre_run *run, const char *text, size_t len,
		      bool at_start, struct ctn_err *err);

#endif
