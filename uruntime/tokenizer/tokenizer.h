/* SPDX-License-Identifier: MIT */
/*
 * tokenizer: text <-> token ids by a Hugging Face tokenizer.json. Byte-level BPE (GPT-2,
 * OPT, Qwen2) and byte-fallback BPE (LLaMA). Ids equal those of the `tokenizers` package.
 */
#ifndef CTN_TOKENIZER_H
#define CTN_TOKENIZER_H

#include "base/base.h"

/* Immutable once opened: any number of threads may use one tokenizer at the same time. */
struct ctn_tokenizer;

/*
 * Reads DIR/tokenizer.json (and DIR/tokenizer_config.json when it is there, for
 * add_bos_token/add_eos_token where tokenizer.json has no post-processor). Whatever in it
 * would change the ids and is not handled is refused by name (-ENOTSUP); a malformed file
 * is -EINVAL. The caller closes *tok.
 */
int ctn_tokenizer_open(const char *dir, struct ctn_tokenizer **tok, struct ctn_err *err);
void ctn_tokenizer_close(struct ctn_tokenizer *tok);

/* One more than the largest id. */
uint32_t ctn_tokenizer_vocab_size(const struct ctn_tokenizer *tok);

/*
 * UTF-8 text of `len` bytes -> ids. With `add_special` the post-processor puts in BOS/EOS.
 * Bytes that are not UTF-8 are -EILSEQ, with the offset in `err`. *ids is malloc'ed and the
 * caller frees it.
 */
int ctn_tokenizer_encode(const struct ctn_tokenizer *tok, const char *text, size_t len,
			 bool add_special, uint32_t **ids, size_t *count, struct ctn_err *err);

/* The raw text of one token as it stands in the vocabulary (or the added token's content);
 * NULL for an id outside it. Lives as long as the tokenizer. */
const char *ctn_tokenizer_token(const struct ctn_tokenizer *tok, uint32_t id);

/* True for an added token that is marked special. */
bool ctn_tokenizer_is_special(const struct ctn_tokenizer *tok, uint32_t id);

/*
 * ids -> text, appended to `out`; skips special tokens when `skip_special`. Equals what
 * `tokenizers` decode() gives. -EINVAL for an id outside the vocabulary.
 */
int ctn_tokenizer_decode(const struct ctn_tokenizer *tok, const uint32_t *ids, size_t count,
			 bool skip_special, struct ctn_buf *out, struct ctn_err *err);

/*
 * Streaming decode: what is appended over all calls, plus the flush, equals the decode of
 * all ids at once. Bytes of an unfinished UTF-8 character are held back until they complete
 * or are known to be invalid (then U+FFFD). A flush that runs out of memory sets `failed` of
 * its buffer. One stream belongs to one thread.
 *
 * `continuation` is true when the ids continue earlier text (a completion after a prompt):
 * then the leading space that decode() strips from the start of a text is kept.
 */
struct ctn_detok;

struct ctn_detok *ctn_detok_new(const struct ctn_tokenizer *tok, bool skip_special,
				bool continuation);
int ctn_detok_push(struct ctn_detok *d, uint32_t id, struct ctn_buf *out, struct ctn_err *err);
void ctn_detok_flush(struct ctn_detok *d, struct ctn_buf *out);
void ctn_detok_free(struct ctn_detok *d);

#endif
