/* SPDX-License-Identifier: MIT */
/*
 * Added tokens: texts that are cut out of the input before the model sees it. Those that are
 * not "normalized" are looked for in the raw text, the others in the normalised pieces that
 * remain, leftmost first, the longest of those that start at the same place.
 */
#ifndef CTN_TOKENIZER_ADDED_H
#define CTN_TOKENIZER_ADDED_H

#include "base/base.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalize.h"

#include <jansson.h>

struct ctn_tok_added_token {
	uint32_t id;
	char *content;
	size_t content_len;
	/* What is looked for, and what decodes: the content, normalised if the token says so. */
	char *text;
	size_t text_len;
	bool single_word;
	bool lstrip;
	bool rstrip;
	bool normalized;
	bool special;
	bool skipped; /* with skip_special: its text is the content of a special token */
};

/* A byte trie; children are linked through `next`. Node 0 is the root. */
struct ctn_tok_trie_node {
	uint32_t child; /* 0: none */
	uint32_t next;  /* 0: none */
	uint32_t token; /* index + 1 of the token that ends here, or 0 */
	uint8_t byte;
};

struct ctn_tok_trie {
	struct ctn_tok_trie_node *nodes;
	uint32_t count;
	uint32_t cap;
	uint32_t first[256]; /* the root's child for a byte, or 0 */
};

struct ctn_tok_added {
	struct ctn_tok_added_token *tokens; /* by ascending id */
	size_t count;
	struct ctn_tok_trie raw;
	struct ctn_tok_trie normalized;
};

/* From "added_tokens" (may be NULL). Free it also when this fails. */
int ctn_tok_added_parse(const json_t *list, const struct ctn_tok_bpe *bpe,
			const struct ctn_tok_normalizer *normalizer, struct ctn_tok_added *added,
			struct ctn_err *err);
void ctn_tok_added_free(struct ctn_tok_added *added);

/* The token with this id, or NULL. */
const struct ctn_tok_added_token *ctn_tok_added_find(const struct ctn_tok_added *added,
						     uint32_t id);

/* Bytes [start, end) of the text: an added token, or with `token` NULL text between. */
typedef int ctn_tok_added_fn(void *arg, size_t start, size_t end,
			     const struct ctn_tok_added_token *token, struct ctn_err *err);

/* Cuts valid UTF-8 at the tokens of one of the two tries; empty pieces are left out. */
int ctn_tok_added_cut(const struct ctn_tok_added *added, const struct ctn_tok_trie *trie,
		      const char *text, size_t len, ctn_tok_added_fn *piece, void *arg,
		      struct ctn_err *err);

#endif
