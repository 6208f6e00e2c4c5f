/* SPDX-License-Identifier: MIT */
/*
 * The decoders of tokenizer.json as stages of a stream. A token passes from stage to stage
 * in fragments, ended by an end; a stage may hold bytes back, change them, and join tokens.
 * Decoding all ids at once is the same stream, so that the two cannot differ.
 */
#ifndef CTN_TOKENIZER_DECODE_H
#define CTN_TOKENIZER_DECODE_H

#include "base/base.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/unicode.h"

#include <jansson.h>

enum ctn_tok_decode_kind {
	CTN_TOK_DECODE_JOIN,          /* no decoder: a space between tokens */
	CTN_TOK_DECODE_BYTE_LEVEL,    /* characters of the byte-level alphabet -> bytes */
	CTN_TOK_DECODE_REPLACE,       /* one text by another */
	CTN_TOK_DECODE_BYTE_FALLBACK, /* tokens <0xHH> -> bytes */
	CTN_TOK_DECODE_FUSE,          /* all tokens -> one */
	CTN_TOK_DECODE_STRIP,         /* at most `count` of `from` at the start of a token */
	CTN_TOK_DECODE_METASPACE,     /* `from` -> space, none in the first token */
};

struct ctn_tok_decode_step {
	enum ctn_tok_decode_kind kind;
	char *from; /* REPLACE, STRIP, METASPACE */
	size_t from_len;
	char *to; /* REPLACE */
	size_t to_len;
	uint32_t count;  /* STRIP */
	bool drop_first; /* METASPACE: the first token loses its `from` */
	bool one_token;  /* the steps before make one token of all */
};

struct ctn_tok_decoder {
	struct ctn_tok_decode_step *steps;
	size_t count;
};

/* From "decoder" (may be NULL). Free it also when this fails. */
int ctn_tok_decoder_parse(const json_t *obj, struct ctn_tok_decoder *decoder, struct ctn_err *err);
void ctn_tok_decoder_free(struct ctn_tok_decoder *decoder);

struct ctn_tok_decode_stage {
	struct ctn_buf held; /* bytes of the token that wait for more */
	struct ctn_tok_utf8 utf8;
	struct ctn_buf run_bytes; /* BYTE_FALLBACK: the run of bytes */
	size_t run;               /* ... its tokens that have not gone on */
	bool run_bad;             /* ... which is not UTF-8 */
	uint32_t stripped;        /* STRIP: in this token */
	bool past_start;          /* STRIP: this token's start; JOIN, METASPACE: the first token */
};

/* A stream of tokens. One thread. */
struct ctn_tok_decode_stream {
	const struct ctn_tok_decoder *decoder;
	struct ctn_tok_decode_stage *stages;
	struct ctn_buf *out; /* of the call under way */
	bool failed;         /* a stage could not allocate */
};

/* `continuation`: as in ctn_detok_new. -ENOMEM. */
int ctn_tok_decode_start(struct ctn_tok_decode_stream *s, const struct ctn_tok_decoder *decoder,
			 bool continuation);
void ctn_tok_decode_token(struct ctn_tok_decode_stream *s, const char *text, size_t len,
			  struct ctn_buf *out);
void ctn_tok_decode_flush(struct ctn_tok_decode_stream *s, struct ctn_buf *out);
void ctn_tok_decode_end(struct ctn_tok_decode_stream *s);

#endif
