/* SPDX-License-Identifier: MIT */
/*
 * UTF-8, and the few facts about Unicode that the libraries do not give in the version that
 * the `tokenizers` package has.
 */
#ifndef CTN_TOKENIZER_UNICODE_H
#define CTN_TOKENIZER_UNICODE_H

#include "base/base.h"

/* What the package puts in place of bytes that are not UTF-8: U+FFFD. */
#define CTN_TOK_REPLACEMENT "\xEF\xBF\xBD"

struct ctn_tok_range {
	uint32_t first;
	uint32_t last;
};

/* The characters first..last count as `to`, which has as many bytes in UTF-8. */
struct ctn_tok_stand_in {
	uint32_t first;
	uint32_t last;
	uint32_t to;
};

/*
 * Characters whose general category the package knows and PCRE2 may not (assigned after
 * Unicode 14), ascending, each with one of the same category that both know. All have three
 * or four bytes.
 */
extern const struct ctn_tok_stand_in ctn_tok_younger[];
extern const size_t ctn_tok_younger_count;

/*
 * Characters that today's NFC reorders, composes or decomposes and the package's NFC, of an
 * earlier Unicode, takes for starters that stay alone. Ascending.
 */
extern const struct ctn_tok_range ctn_tok_inert[];
extern const size_t ctn_tok_inert_count;

/* A UTF-8 decoder that is fed byte by byte. Zero-initialise. */
struct ctn_tok_utf8 {
	char bytes[4];
	uint8_t len;
	uint8_t need;
	uint8_t lo;
	uint8_t hi;
};

enum ctn_tok_utf8_state {
	CTN_TOK_UTF8_MORE, /* the character wants more bytes */
	CTN_TOK_UTF8_DONE, /* bytes[0..len) is a character */
	/* What came before this byte, or the byte itself, is not UTF-8 (one U+FFFD). */
	CTN_TOK_UTF8_BAD,
	/* As BAD, but the byte itself has not been looked at: feed it again. */
	CTN_TOK_UTF8_BAD_AGAIN,
};

enum ctn_tok_utf8_state ctn_tok_utf8_feed(struct ctn_tok_utf8 *u, uint8_t byte);

/* The offset of the first byte that is not part of valid UTF-8; `len` when all is. */
size_t ctn_tok_utf8_check(const char *text, size_t len);

/* Decodes the character at `s`, which is valid UTF-8; returns its length in bytes. */
size_t ctn_tok_utf8_decode(const char *s, uint32_t *cp);

/* Writes the character to out; returns its length in bytes. */
size_t ctn_tok_utf8_encode(uint32_t cp, char out[4]);

/*
 * Where `what`, which is not empty, begins in the text, or NULL. As memmem, but it touches
 * no more of the text than it must: a caller goes from hit to hit, and sanitizers take each
 * memmem for a read of all that follows.
 */
const char *ctn_tok_find(const char *text, size_t len, const char *what, size_t what_len);

/* Unicode's White_Space. */
bool ctn_tok_is_space(uint32_t cp);

/* What \w is to the package: letters, marks, decimal digits, connectors, joiners. */
bool ctn_tok_is_word(uint32_t cp);

/* The length of the white space at the start (at the end) of valid UTF-8 text. */
size_t ctn_tok_spaces_at_start(const char *text, size_t len);
size_t ctn_tok_spaces_at_end(const char *text, size_t len);

bool ctn_tok_is_inert(uint32_t cp);

/* What stands in for `cp` when PCRE2 looks at it: itself for nearly all. */
uint32_t ctn_tok_stand_in_for(uint32_t cp);

/* True when some character of first..last is younger, or stands in for one that is. */
bool ctn_tok_range_is_young(uint32_t first, uint32_t last);

/*
 * The byte-level alphabet of GPT-2: each byte has a printable character, below
 * CTN_TOK_ALPHABET_END. The reverse gives -1 for a character outside it.
 */
#define CTN_TOK_ALPHABET_END 0x144
uint32_t ctn_tok_byte_to_char(uint8_t byte);
int ctn_tok_char_to_byte(uint32_t cp);

#endif
