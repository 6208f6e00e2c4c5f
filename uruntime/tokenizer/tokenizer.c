// SPDX-License-Identifier: MIT
#include "tokenizer/tokenizer.h"
#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decode.h"
#include "tokenizer/json.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/template.h"
#include "tokenizer/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Positions in a word are 32 bits wide; the byte-level alphabet doubles a text. */
#define TEXT_MAX ((size_t)1 << 29)

struct ctn_tokenizer {
	struct ctn_tok_bpe bpe;
	struct ctn_tok_normalizer normalizer;
	struct ctn_tok_added added;
	struct ctn_tok_pre pre;
	struct ctn_tok_template special;
	struct ctn_tok_decoder decoder;
	uint32_t vocab_size;
};

/* ---- opening --------------------------------------------------------------------------- */

static int check_top(const json_t *root, struct ctn_err *err)
{
	static const char *const known[] = {
		"version", "truncation", "padding",       "added_tokens",   "normalizer",
		"decoder", "model",      "pre_tokenizer", "post_processor", NULL};
	static const char *const unused[] = {"truncation", "padding"};
	const json_t *version = json_object_get(root, "version"), *v;
	int rc;

	rc = ctn_tok_json_check(root, "top level", known, err);
	if (rc)
		return rc;
	if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0))
		return ctn_err_set(err, -ENOTSUP, "\"version\": expected \"1.0\"");
	for (size_t i = 0; i < CTN_ARRAY_LEN(unused); i++) {
		v = json_object_get(root, unused[i]);
		if (v && !json_is_null(v))
			return ctn_err_set(err, -ENOTSUP, "\"%s\" is not supported", unused[i]);
	}
	return 0;
}

static int parse(struct ctn_tokenizer *tok, const json_t *root, struct ctn_err *err)
{
	const json_t *model;
	int rc;

	rc = check_top(root, err);
	if (rc)
		return rc;
	model = json_object_get(root, "model");
	if (!json_is_object(model))
		return ctn_err_set(err, -EINVAL, "\"model\": expected an object");
	rc = ctn_tok_bpe_parse(model, &tok->bpe, err);
	if (!rc)
		rc = ctn_tok_normalizer_parse(json_object_get(root, "normalizer"), &tok->normalizer,
					      err);
	if (!rc)
		rc = ctn_tok_added_parse(json_object_get(root, "added_tokens"), &tok->bpe,
					 &tok->normalizer, &tok->added, err);
	if (!rc)
		rc = ctn_tok_pre_parse(json_object_get(root, "pre_tokenizer"), &tok->pre, err);
	if (!rc && tok->pre.wants_start && tok->normalizer.count)
		rc = ctn_err_set(err, -ENOTSUP,
				 "pre_tokenizer Metaspace: prepend_scheme \"first\" with a "
				 "normalizer is not supported");
	if (!rc)
		rc = ctn_tok_template_parse(json_object_get(root, "post_processor"), &tok->special,
					    err);
	if (!rc)
		rc = ctn_tok_decoder_parse(json_object_get(root, "decoder"), &tok->decoder, err);
	return rc;
}

static uint32_t find_token(const struct ctn_tokenizer *tok, const char *text)
{
	for (size_t i = 0; i < tok->added.count; i++) {
		if (strcmp(tok->added.tokens[i].content, text) == 0)
			return tok->added.tokens[i].id;
	}
	return ctn_tok_vocab_find(&tok->bpe.vocab, text, strlen(text));
}

/* A token of tokenizer_config.json: its text, or an object with it as "content". */
static int config_token(const struct ctn_tokenizer *tok, const json_t *config, const char *key,
			uint32_t *id, struct ctn_err *err)
{
	const json_t *v = json_object_get(config, key);

	if (json_is_object(v))
		v = json_object_get(v, "content");
	*id = json_is_string(v) ? find_token(tok, json_string_value(v)) : CTN_TOK_NO_ID;
	if (*id == CTN_TOK_NO_ID)
		return ctn_err_set(err, -EINVAL, "\"%s\": expected a token of the vocabulary", key);
	return 0;
}

/* Without a post-processor, BOS and EOS are what tokenizer_config.json asks for. */
static int parse_config(struct ctn_tokenizer *tok, const json_t *config, struct ctn_err *err)
{
	bool bos = false, eos = false;
	uint32_t id;
	int rc;

	rc = ctn_tok_json_bool(config, "top level", "add_bos_token", &bos, err);
	if (!rc)
		rc = ctn_tok_json_bool(config, "top level", "add_eos_token", &eos, err);
	if (rc)
		return rc;
	/* Anew, around the text alone. */
	tok->special.count = 0;
	if (bos) {
		rc = config_token(tok, config, "bos_token", &id, err);
		if (!rc)
			rc = ctn_tok_template_add(&tok->special, false, id, err);
	}
	if (!rc)
		rc = ctn_tok_template_add(&tok->special, true, 0, err);
	if (!rc && eos) {
		rc = config_token(tok, config, "eos_token", &id, err);
		if (!rc)
			rc = ctn_tok_template_add(&tok->special, false, id, err);
	}
	return rc;
}

static int load_config(struct ctn_tokenizer *tok, const char *dir, struct ctn_err *err)
{
	char *path = ctn_path_join(dir, "tokenizer_config.json");
	json_t *config;
	int rc;

	if (!path)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
	rc = ctn_tok_json_load(path, &config, err);
	if (rc == -ENOENT) {
		rc = 0;
	} else if (!rc) {
		rc = parse_config(tok, config, err);
		json_decref(config);
		if (rc)
			ctn_err_prefix(err, "%s", path);
	}
	free(path);
	return rc;
}

static void measure(struct ctn_tokenizer *tok)
{
	tok->vocab_size = tok->bpe.vocab.size;
	if (tok->added.count)
		tok->vocab_size =
			CTN_MAX(tok->vocab_size, tok->added.tokens[tok->added.count - 1].id + 1);
}

/* What is put around a text goes to the model like all other ids: it must be a token. */
static int check_special(const struct ctn_tokenizer *tok, struct ctn_err *err)
{
	for (size_t i = 0; i < tok->special.count; i++) {
		const struct ctn_tok_template_part *part = &tok->special.parts[i];

		if (!part->is_text && !ctn_tokenizer_token(tok, part->id))
			return ctn_err_set(err, -EINVAL,
					   "post_processor: expected ids of the vocabulary, found "
					   "%u",
					   part->id);
	}
	return 0;
}

int ctn_tokenizer_open(const char *dir, struct ctn_tokenizer **out, struct ctn_err *err)
{
	struct ctn_tokenizer *tok = calloc(1, sizeof(*tok));
	char *path = ctn_path_join(dir, "tokenizer.json");
	json_t *root = NULL, *post;
	int rc;

	if (!tok || !path) {
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
		goto fail;
	}
	rc = ctn_tok_json_load(path, &root, err);
	if (rc)
		goto fail;
	rc = parse(tok, root, err);
	if (!rc)
		rc = check_special(tok, err);
	if (rc) {
		ctn_err_prefix(err, "%s", path);
		goto fail;
	}
	post = json_object_get(root, "post_processor");
	if (!post || json_is_null(post))
		rc = load_config(tok, dir, err);
	if (rc)
		goto fail;
	measure(tok);
	json_decref(root);
	free(path);
	*out = tok;
	return 0;
fail:
	json_decref(root);
	free(path);
	ctn_tokenizer_close(tok);
	return rc;
}

void ctn_tokenizer_close(struct ctn_tokenizer *tok)
{
	if (!tok)
		return;
	ctn_tok_decoder_free(&tok->decoder);
	ctn_tok_template_free(&tok->special);
	ctn_tok_pre_free(&tok->pre);
	ctn_tok_added_free(&tok->added);
	ctn_tok_normalizer_free(&tok->normalizer);
	ctn_tok_bpe_free(&tok->bpe);
	free(tok);
}

/* ---- tokens ---------------------------------------------------------------------------- */

uint32_t ctn_tokenizer_vocab_size(const struct ctn_tokenizer *tok)
{
	return tok->vocab_size;
}

const char *ctn_tokenizer_token(const struct ctn_tokenizer *tok, uint32_t id)
{
	const struct ctn_tok_added_token *added = ctn_tok_added_find(&tok->added, id);

	if (added)
		return added->content;
	return id < tok->bpe.vocab.size ? tok->bpe.vocab.tokens[id].text : NULL;
}

bool ctn_tokenizer_is_special(const struct ctn_tokenizer *tok, uint32_t id)
{
	const struct ctn_tok_added_token *added = ctn_tok_added_find(&tok->added, id);

	return added && added->special;
}

/* ---- encoding -------------------------------------------------------------------------- */

/* One call of encode: text -> pieces between added tokens -> words -> ids. */
struct encoding {
	const struct ctn_tokenizer *tok;
	const char *text;          /* the input */
	struct ctn_buf normalised; /* the piece of it under way */
	bool at_start;             /* that piece is the start of the input */
	struct ctn_tok_pre_run pre;
	struct ctn_tok_bpe_work work;
	struct ctn_tok_ids ids;
};

static int encode_word(void *arg, const char *word, size_t len, struct ctn_err *err)
{
	struct encoding *e = arg;

	if (ctn_tok_bpe_word(&e->tok->bpe, &e->work, word, len, &e->ids))
		return ctn_err_set(err, -ENOMEM, "out of memory");
	return 0;
}

static int encode_normalised(void *arg, size_t start, size_t end,
			     const struct ctn_tok_added_token *token, struct ctn_err *err)
{
	struct encoding *e = arg;

	if (token) {
		ctn_tok_ids_append(&e->ids, &token->id, 1);
		return 0;
	}
	return ctn_tok_pre_piece(&e->pre, e->normalised.data + start, end - start,
				 e->at_start && start == 0, err);
}

static int encode_raw(void *arg, size_t start, size_t end, const struct ctn_tok_added_token *token,
		      struct ctn_err *err)
{
	struct encoding *e = arg;
	int rc;

	if (token) {
		ctn_tok_ids_append(&e->ids, &token->id, 1);
		return 0;
	}
	ctn_buf_reset(&e->normalised);
	ctn_buf_append(&e->normalised, e->text + start, end - start);
	if (e->normalised.failed)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = ctn_tok_normalize(&e->tok->normalizer, &e->normalised, err);
	if (rc)
		return rc;
	e->at_start = start == 0;
	return ctn_tok_added_cut(&e->tok->added, &e->tok->added.normalized, e->normalised.data,
				 e->normalised.len, encode_normalised, e, err);
}

static int encode_text(struct encoding *e, size_t len, bool add_special, struct ctn_tok_ids *out,
		       struct ctn_err *err)
{
	int rc;

	e->pre.pre = &e->tok->pre;
	e->pre.word = encode_word;
	e->pre.arg = e;
	e->pre.scratch = calloc(e->tok->pre.count + 1, sizeof(*e->pre.scratch));
	if (!e->pre.scratch)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = ctn_tok_added_cut(&e->tok->added, &e->tok->added.raw, e->text, len, encode_raw, e,
			       err);
	if (!rc)
		ctn_tok_template_apply(&e->tok->special, &e->ids, add_special, out);
	if (!rc && (e->ids.failed || out->failed))
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < e->tok->pre.count; i++)
		ctn_buf_free(&e->pre.scratch[i]);
	free(e->pre.scratch);
	ctn_buf_free(&e->normalised);
	ctn_tok_bpe_work_free(&e->work);
	ctn_tok_ids_free(&e->ids);
	return rc;
}

int ctn_tokenizer_encode(const struct ctn_tokenizer *tok, const char *text, size_t len,
			 bool add_special, uint32_t **ids, size_t *count, struct ctn_err *err)
{
	struct encoding e = {.tok = tok, .text = text};
	struct ctn_tok_ids out = {0};
	size_t valid;
	int rc;

	if (len > TEXT_MAX)
		return ctn_err_set(err, -EFBIG, "text: expected at most %zu bytes, found %zu",
				   TEXT_MAX, len);
	valid = ctn_tok_utf8_check(text, len);
	if (valid != len)
		return ctn_err_set(err, -EILSEQ, "text: byte %zu is not valid UTF-8", valid);
	rc = encode_text(&e, len, add_special, &out, err);
	if (!rc && !out.v) {
		/* No ids at all: the caller still gets something to free. */
		out.v = malloc(sizeof(*out.v));
		rc = out.v ? 0 : ctn_err_set(err, -ENOMEM, "out of memory");
	}
	if (rc) {
		ctn_tok_ids_free(&out);
		return rc;
	}
	*ids = out.v;
	*count = out.count;
	return 0;
}

/* ---- decoding -------------------------------------------------------------------------- */

struct ctn_detok {
	const struct ctn_tokenizer *tok;
	bool skip_special;
	struct ctn_tok_decode_stream stream;
};

struct ctn_detok *ctn_detok_new(const struct ctn_tokenizer *tok, bool skip_special,
				bool continuation)
{
	struct ctn_detok *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->tok = tok;
	d->skip_special = skip_special;
	if (ctn_tok_decode_start(&d->stream, &tok->decoder, continuation)) {
		free(d);
		return NULL;
	}
	return d;
}

int ctn_detok_push(struct ctn_detok *d, uint32_t id, struct ctn_buf *out, struct ctn_err *err)
{
	const struct ctn_tok_added_token *added = ctn_tok_added_find(&d->tok->added, id);
	const struct ctn_tok_vocab *vocab = &d->tok->bpe.vocab;

	if (added) {
		if (d->skip_special && added->skipped)
			return 0;
		ctn_tok_decode_token(&d->stream, added->text, added->text_len, out);
	} else if (id < vocab->size && vocab->tokens[id].text) {
		ctn_tok_decode_token(&d->stream, vocab->tokens[id].text, vocab->tokens[id].len,
				     out);
	} else {
		return ctn_err_set(err, -EINVAL, "token id %u is not in the vocabulary", id);
	}
	return d->stream.failed ? ctn_err_set(err, -ENOMEM, "out of memory") : 0;
}

void ctn_detok_flush(struct ctn_detok *d, struct ctn_buf *out)
{
	ctn_tok_decode_flush(&d->stream, out);
}

void ctn_detok_free(struct ctn_detok *d)
{
	if (!d)
		return;
	ctn_tok_decode_end(&d->stream);
	free(d);
}

int ctn_tokenizer_decode(const struct ctn_tokenizer *tok, const uint32_t *ids, size_t count,
			 bool skip_special, struct ctn_buf *out, struct ctn_err *err)
{
	struct ctn_detok *d = ctn_detok_new(tok, skip_special, false);
	int rc = 0;

	if (!d)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; !rc && i < count; i++)
		rc = ctn_detok_push(d, ids[i], out, err);
	if (!rc) {
		ctn_detok_flush(d, out);
		if (d->stream.failed)
			rc = ctn_err_set(err, -ENOMEM, "out of memory");
	}
	ctn_detok_free(d);
	return rc;
}
