// SPDX-License-Identifier: MIT
#include "tokenizer/decode.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/*
 * feed(s, i, ...) hands a fragment of the current token to stage i, end_token(s, i) ends
 * that token. Behind the last stage is the output. Fragments are whole characters.
 */
static void feed(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len);
static void end_token(struct ctn_tok_decode_stream *s, size_t i);

static void feed_token(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len)
{
	feed(s, i, text, len);
	end_token(s, i);
}

/* Keeps text in a stage. The stage forgets a failure with what it holds; the stream does not. */
static void hold(struct ctn_tok_decode_stream *s, struct ctn_buf *buf, const char *text, size_t len)
{
	ctn_buf_append(buf, text, len);
	s->failed |= buf->failed;
}

/* ---- ByteLevel ------------------------------------------------------------------------- */

/* One byte of the one text that ByteLevel makes. */
static void lossy_byte(struct ctn_tok_decode_stream *s, size_t i, uint8_t byte)
{
	struct ctn_tok_utf8 *u = &s->stages[i].utf8;
	enum ctn_tok_utf8_state state = ctn_tok_utf8_feed(u, byte);

	if (state == CTN_TOK_UTF8_BAD_AGAIN) {
		feed(s, i + 1, CTN_TOK_REPLACEMENT, 3);
		state = ctn_tok_utf8_feed(u, byte);
	}
	if (state == CTN_TOK_UTF8_DONE)
		feed(s, i + 1, u->bytes, u->len);
	else if (state == CTN_TOK_UTF8_BAD)
		feed(s, i + 1, CTN_TOK_REPLACEMENT, 3);
}

/* A token with one character from outside the alphabet stands for its own bytes. */
static void byte_level_end(struct ctn_tok_decode_stream *s, size_t i)
{
	const struct ctn_buf *token = &s->stages[i].held;
	bool in_alphabet = true;
	uint32_t cp;

	for (size_t at = 0; in_alphabet && at < token->len;) {
		at += ctn_tok_utf8_decode(token->data + at, &cp);
		in_alphabet = ctn_tok_char_to_byte(cp) >= 0;
	}
	for (size_t at = 0; at < token->len;) {
		if (in_alphabet) {
			at += ctn_tok_utf8_decode(token->data + at, &cp);
			lossy_byte(s, i, (uint8_t)ctn_tok_char_to_byte(cp));
		} else {
			lossy_byte(s, i, (uint8_t)token->data[at++]);
		}
	}
	ctn_buf_reset(&s->stages[i].held);
}

/* ---- ByteFallback ---------------------------------------------------------------------- */

/* The byte of a token <0xHH>, or -1. The package's parser also takes +H for HH. */
static int fallback_byte(const struct ctn_buf *token)
{
	const char *t = token->data;

	if (token->len != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>')
		return -1;
	if (!isxdigit((unsigned char)t[4]) || (t[3] != '+' && !isxdigit((unsigned char)t[3])))
		return -1;
	return (int)strtol(t[3] == '+' ? t + 4 : t + 3, NULL, 16);
}

/*
 * A run of bytes is a token of its own when all of it is UTF-8, and else one U+FFFD for each
 * of its bytes: so nothing of it can go on before the run ends or a byte is wrong.
 */
static void spoil_run(struct ctn_tok_decode_stream *s, size_t i)
{
	struct ctn_tok_decode_stage *stage = &s->stages[i];

	for (; stage->run; stage->run--)
		feed_token(s, i + 1, CTN_TOK_REPLACEMENT, 3);
}

static void end_run(struct ctn_tok_decode_stream *s, size_t i)
{
	struct ctn_tok_decode_stage *stage = &s->stages[i];

	if (stage->utf8.need)
		spoil_run(s, i);
	else if (stage->run)
		feed_token(s, i + 1, stage->run_bytes.data, stage->run_bytes.len);
	stage->utf8 = (struct ctn_tok_utf8){0};
	stage->run = 0;
	stage->run_bad = false;
	ctn_buf_reset(&stage->run_bytes);
}

static void byte_fallback_end(struct ctn_tok_decode_stream *s, size_t i)
{
	struct ctn_tok_decode_stage *stage = &s->stages[i];
	int byte = fallback_byte(&stage->held);
	enum ctn_tok_utf8_state state;
	char c = (char)byte;

	if (byte < 0) {
		end_run(s, i);
		feed_token(s, i + 1, stage->held.data, stage->held.len);
		ctn_buf_reset(&stage->held);
		return;
	}
	ctn_buf_reset(&stage->held);
	stage->run++;
	if (!stage->run_bad) {
		state = ctn_tok_utf8_feed(&stage->utf8, (uint8_t)byte);
		stage->run_bad = state == CTN_TOK_UTF8_BAD || state == CTN_TOK_UTF8_BAD_AGAIN;
		hold(s, &stage->run_bytes, &c, 1);
	}
	if (stage->run_bad)
		spoil_run(s, i);
}

/* ---- Replace, Strip, Metaspace --------------------------------------------------------- */

/* How many bytes at the end of what is held may be the start of a match. */
static size_t maybe_match(const struct ctn_buf *held, const struct ctn_tok_decode_step *step)
{
	size_t n = CTN_MIN(held->len, step->from_len - 1);

	while (n && memcmp(held->data + held->len - n, step->from, n) != 0)
		n--;
	return n;
}

static void replace_feed(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len)
{
	const struct ctn_tok_decode_step *step = &s->decoder->steps[i];
	struct ctn_buf *held = &s->stages[i].held;
	size_t done = 0, keep;
	const char *hit;

	hold(s, held, text, len);
	if (held->failed || !held->len)
		return;
	while ((hit = ctn_tok_find(held->data + done, held->len - done, step->from,
				   step->from_len))) {
		feed(s, i + 1, held->data + done, (size_t)(hit - held->data) - done);
		feed(s, i + 1, step->to, step->to_len);
		done = (size_t)(hit - held->data) + step->from_len;
	}
	memmove(held->data, held->data + done, held->len - done);
	held->len -= done;
	keep = maybe_match(held, step);
	feed(s, i + 1, held->data, held->len - keep);
	memmove(held->data, held->data + held->len - keep, keep);
	held->len = keep;
}

static void strip_feed(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len)
{
	const struct ctn_tok_decode_step *step = &s->decoder->steps[i];
	struct ctn_tok_decode_stage *stage = &s->stages[i];

	while (!stage->past_start && len) {
		if (stage->stripped < step->count && len >= step->from_len &&
		    memcmp(text, step->from, step->from_len) == 0) {
			stage->stripped++;
			text += step->from_len;
			len -= step->from_len;
		} else {
			stage->past_start = true;
		}
	}
	feed(s, i + 1, text, len);
}

static void metaspace_feed(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len)
{
	const struct ctn_tok_decode_step *step = &s->decoder->steps[i];
	bool drop = step->drop_first && !s->stages[i].past_start;
	const char *hit, *end = text + len;

	while ((hit = ctn_tok_find(text, (size_t)(end - text), step->from, step->from_len))) {
		feed(s, i + 1, text, (size_t)(hit - text));
		if (!drop)
			feed(s, i + 1, " ", 1);
		text = hit + step->from_len;
	}
	feed(s, i + 1, text, (size_t)(end - text));
}

/* ---- the stream ------------------------------------------------------------------------ */

static void feed(struct ctn_tok_decode_stream *s, size_t i, const char *text, size_t len)
{
	if (len == 0)
		return;
	if (i == s->decoder->count) {
		ctn_buf_append(s->out, text, len);
		return;
	}
	switch (s->decoder->steps[i].kind) {
	case CTN_TOK_DECODE_BYTE_LEVEL:
	case CTN_TOK_DECODE_BYTE_FALLBACK:
		/* What a token means shows when it is whole. */
		hold(s, &s->stages[i].held, text, len);
		return;
	case CTN_TOK_DECODE_REPLACE:
		replace_feed(s, i, text, len);
		return;
	case CTN_TOK_DECODE_STRIP:
		strip_feed(s, i, text, len);
		return;
	case CTN_TOK_DECODE_METASPACE:
		metaspace_feed(s, i, text, len);
		return;
	case CTN_TOK_DECODE_JOIN:
	case CTN_TOK_DECODE_FUSE:
		feed(s, i + 1, text, len);
	}
}

static void end_token(struct ctn_tok_decode_stream *s, size_t i)
{
	struct ctn_tok_decode_stage *stage = &s->stages[i];

	if (i == s->decoder->count)
		return;
	switch (s->decoder->steps[i].kind) {
	case CTN_TOK_DECODE_BYTE_LEVEL:
		byte_level_end(s, i);
		return; /* the one token ends with the stream */
	case CTN_TOK_DECODE_FUSE:
		return;
	case CTN_TOK_DECODE_BYTE_FALLBACK:
		byte_fallback_end(s, i);
		return;
	case CTN_TOK_DECODE_REPLACE:
		feed(s, i + 1, stage->held.data, stage->held.len);
		ctn_buf_reset(&stage->held);
		break;
	case CTN_TOK_DECODE_STRIP:
		stage->stripped = 0;
		stage->past_start = false;
		break;
	case CTN_TOK_DECODE_JOIN:
	case CTN_TOK_DECODE_METASPACE:
		stage->past_start = true;
	}
	end_token(s, i + 1);
}

int ctn_tok_decode_start(struct ctn_tok_decode_stream *s, const struct ctn_tok_decoder *decoder,
			 bool continuation)
{
	*s = (struct ctn_tok_decode_stream){.decoder = decoder};
	s->stages = calloc(decoder->count + 1, sizeof(*s->stages));
	if (!s->stages)
		return -ENOMEM;
	for (size_t i = 0; continuation && i < decoder->count; i++) {
		const struct ctn_tok_decode_step *step = &decoder->steps[i];

		/* A Strip of single tokens does to each what it does to the first. */
		s->stages[i].past_start = step->kind != CTN_TOK_DECODE_STRIP || step->one_token;
	}
	return 0;
}

/* Once a stage or the output could not allocate. A flush has no other way to tell its caller than
 * the output. */
static void note_failures(struct ctn_tok_decode_stream *s)
{
	s->failed |= s->out->failed;
	s->out->failed = s->failed;
}

void ctn_tok_decode_token(struct ctn_tok_decode_stream *s, const char *text, size_t len,
			  struct ctn_buf *out)
{
	s->out = out;
	if (s->decoder->count && s->decoder->steps[0].kind == CTN_TOK_DECODE_JOIN &&
	    s->stages[0].past_start)
		feed(s, 1, " ", 1);
	feed_token(s, 0, text, len);
	note_failures(s);
}

void ctn_tok_decode_flush(struct ctn_tok_decode_stream *s, struct ctn_buf *out)
{
	s->out = out;
	for (size_t i = 0; i < s->decoder->count; i++) {
		struct ctn_tok_decode_stage *stage = &s->stages[i];

		switch (s->decoder->steps[i].kind) {
		case CTN_TOK_DECODE_BYTE_LEVEL:
			if (stage->utf8.need)
				feed(s, i + 1, CTN_TOK_REPLACEMENT, 3);
			stage->utf8.need = 0;
			end_token(s, i + 1);
			break;
		case CTN_TOK_DECODE_FUSE:
			end_token(s, i + 1);
			break;
		case CTN_TOK_DECODE_BYTE_FALLBACK:
			end_run(s, i);
			break;
		default:
			break;
		}
	}
	note_failures(s);
}

void ctn_tok_decode_end(struct ctn_tok_decode_stream *s)
{
	for (size_t i = 0; s->stages && i < s->decoder->count; i++) {
		ctn_buf_free(&s->stages[i].held);
		ctn_buf_free(&s->stages[i].run_bytes);
	}
	free(s->stages);
}
