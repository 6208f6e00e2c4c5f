/* SPDX-License-Identifier: MIT */
/* The BPE model of tokenizer.json: the vocabulary, the merges, and one word -> ids. */
#ifndef CTN_TOKENIZER_BPE_H
#define CTN_TOKENIZER_BPE_H

#include "base/base.h"
#include "tokenizer/unicode.h"

#include <jansson.h>

/* Ids stay below this: a larger one is a mistake in the file, not a vocabulary. */
#define CTN_TOK_MAX_ID ((uint32_t)1 << 24)
#define CTN_TOK_NO_ID  UINT32_MAX

struct ctn_tok_ids {
	uint32_t *v;
	size_t count;
	size_t cap;
	bool failed; /* an append could not allocate: as in struct ctn_buf */
};

void ctn_tok_ids_append(struct ctn_tok_ids *ids, const uint32_t *v, size_t count);
void ctn_tok_ids_free(struct ctn_tok_ids *ids);

/* text == NULL: no token has this id. */
struct ctn_tok_token {
	const char *text;
	uint32_t len;
};

/* Tokens by id, ids by text. */
struct ctn_tok_vocab {
	struct ctn_tok_token *tokens;
	uint32_t size;   /* one more than the largest id */
	uint32_t count;  /* tokens; fewer than size when there are holes */
	char *texts;     /* where the texts are */
	uint32_t *slots; /* open addressing by the text's hash: id + 1, or 0 */
	size_t mask;
};

/* The id of a text, or CTN_TOK_NO_ID. */
uint32_t ctn_tok_vocab_find(const struct ctn_tok_vocab *vocab, const char *text, size_t len);

struct ctn_tok_merge {
	uint64_t pair; /* left id << 32 | right id; UINT64_MAX: a free slot */
	uint32_t rank;
	uint32_t id;
};

struct ctn_tok_bpe {
	struct ctn_tok_vocab vocab;
	struct ctn_tok_merge *merges; /* open addressing by the pair */
	size_t merge_mask;
	uint32_t unk; /* or CTN_TOK_NO_ID */
	bool fuse_unk;
	bool byte_fallback;
	bool ignore_merges;
	uint32_t byte_ids[256];                  /* of <0x00> to <0xFF> */
	uint32_t char_ids[CTN_TOK_ALPHABET_END]; /* of the first characters: no hashing */
};

/* From the "model" of tokenizer.json. Free it also when this fails. */
int ctn_tok_bpe_parse(const json_t *model, struct ctn_tok_bpe *bpe, struct ctn_err *err);
void ctn_tok_bpe_free(struct ctn_tok_bpe *bpe);

/* Memory that is used again from word to word. Zero-initialise; one thread. */
struct ctn_tok_bpe_work {
	struct ctn_tok_symbol *symbols;
	size_t count;
	size_t symbol_cap;
	uint64_t *heap;
	size_t heap_count;
	size_t heap_cap;
};

void ctn_tok_bpe_work_free(struct ctn_tok_bpe_work *work);

/* Appends the ids of one word, valid UTF-8 of less than 2 GiB. O(n log n). -ENOMEM. */
int ctn_tok_bpe_word(const struct ctn_tok_bpe *bpe, struct ctn_tok_bpe_work *work, const char *word,
		     size_t len, struct ctn_tok_ids *ids);

/* The merge of two neighbours, or NULL. */
const struct ctn_tok_merge *ctn_tok_bpe_merge(const struct ctn_tok_bpe *bpe, uint32_t left,
					      uint32_t right);

#endif
