// SPDX-License-Identifier: MIT
/* Reading "decoder" of tokenizer.json. */
#include "tokenizer/decode.h"
#include "tokenizer/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int set_text(char **to, size_t *to_len, const char *text, size_t len, struct ctn_err *err)
{
	*to = strndup(text, len);
	*to_len = len;
	return *to ? 0 : ctn_err_set(err, -ENOMEM, "decoder: out of memory");
}

static int parse_byte_level(const json_t *obj, struct ctn_tok_decode_step *step,
			    struct ctn_err *err)
{
	static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
					    NULL};

	step->kind = CTN_TOK_DECODE_BYTE_LEVEL;
	return ctn_tok_json_check(obj, "decoder ByteLevel", known, err);
}

static int parse_replace(const json_t *obj, struct ctn_tok_decode_step *step, struct ctn_err *err)
{
	static const char *const known[] = {"type", "pattern", "content", NULL};
	const char *what = "decoder Replace", *from, *to;
	size_t from_len, to_len;
	bool is_regex;
	int rc;

	step->kind = CTN_TOK_DECODE_REPLACE;
	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_pattern(obj, what, &is_regex, &from, &from_len, err);
	if (!rc && is_regex)
		rc = ctn_err_set(err, -ENOTSUP, "%s: a pattern of type Regex is not supported",
				 what);
	if (!rc)
		rc = ctn_tok_json_string(obj, what, "content", &to, &to_len, err);
	if (!rc)
		rc = set_text(&step->from, &step->from_len, from, from_len, err);
	return rc ? rc : set_text(&step->to, &step->to_len, to, to_len, err);
}

static int parse_strip(const json_t *obj, struct ctn_tok_decode_step *step, struct ctn_err *err)
{
	static const char *const known[] = {"type", "content", "start", "stop", NULL};
	const char *what = "decoder Strip", *content;
	uint32_t stop, cp;
	size_t len;
	int rc;

	step->kind = CTN_TOK_DECODE_STRIP;
	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_string(obj, what, "content", &content, &len, err);
	if (!rc)
		rc = ctn_tok_json_uint(obj, what, "start", UINT32_MAX, &step->count, err);
	if (!rc)
		rc = ctn_tok_json_uint(obj, what, "stop", UINT32_MAX, &stop, err);
	if (rc)
		return rc;
	if (stop)
		return ctn_err_set(err, -ENOTSUP, "%s: \"stop\" other than 0 is not supported",
				   what);
	if (len == 0 || ctn_tok_utf8_decode(content, &cp) != len)
		return ctn_err_set(err, -EINVAL, "%s: \"content\": expected one character", what);
	return set_text(&step->from, &step->from_len, content, len, err);
}

static int parse_metaspace(const json_t *obj, struct ctn_tok_decode_step *step, struct ctn_err *err)
{
	enum ctn_tok_prepend prepend;
	char meta[4];
	bool split;
	size_t len;
	int rc;

	step->kind = CTN_TOK_DECODE_METASPACE;
	rc = ctn_tok_metaspace_parse(obj, "decoder Metaspace", meta, &len, &prepend, &split, err);
	if (rc)
		return rc;
	step->drop_first = prepend != CTN_TOK_PREPEND_NEVER;
	return set_text(&step->from, &step->from_len, meta, len, err);
}

static int parse_plain(const json_t *obj, struct ctn_tok_decode_step *step, const char *what,
		       enum ctn_tok_decode_kind kind, struct ctn_err *err)
{
	static const char *const known[] = {"type", NULL};

	step->kind = kind;
	return ctn_tok_json_check(obj, what, known, err);
}

static int add_step(struct ctn_tok_decoder *d, struct ctn_tok_decode_step **step,
		    struct ctn_err *err)
{
	struct ctn_tok_decode_step *grown = reallocarray(d->steps, d->count + 1, sizeof(*grown));
	const struct ctn_tok_decode_step *prev;

	if (!grown)
		return ctn_err_set(err, -ENOMEM, "decoder: out of memory");
	d->steps = grown;
	*step = &grown[d->count];
	**step = (struct ctn_tok_decode_step){0};
	if (d->count) {
		prev = *step - 1;
		(*step)->one_token = prev->one_token || prev->kind == CTN_TOK_DECODE_FUSE ||
				     prev->kind == CTN_TOK_DECODE_BYTE_LEVEL;
	}
	d->count++;
	return 0;
}

static int parse_step(void *arg, const json_t *obj, const char *type, struct ctn_err *err)
{
	struct ctn_tok_decode_step *step;
	int rc;

	rc = add_step(arg, &step, err);
	if (rc)
		return rc;
	if (strcmp(type, "ByteLevel") == 0)
		return parse_byte_level(obj, step, err);
	if (strcmp(type, "Replace") == 0)
		return parse_replace(obj, step, err);
	if (strcmp(type, "ByteFallback") == 0)
		return parse_plain(obj, step, "decoder ByteFallback", CTN_TOK_DECODE_BYTE_FALLBACK,
				   err);
	if (strcmp(type, "Fuse") == 0)
		return parse_plain(obj, step, "decoder Fuse", CTN_TOK_DECODE_FUSE, err);
	if (strcmp(type, "Strip") == 0)
		return parse_strip(obj, step, err);
	if (strcmp(type, "Metaspace") == 0)
		return parse_metaspace(obj, step, err);
	return ctn_err_set(err, -ENOTSUP, "decoder \"%.64s\" is not supported", type);
}

int ctn_tok_decoder_parse(const json_t *obj, struct ctn_tok_decoder *decoder, struct ctn_err *err)
{
	struct ctn_tok_decode_step *step;
	int rc;

	if (obj && !json_is_null(obj))
		return ctn_tok_json_each(obj, "decoder", "decoders", 0, parse_step, decoder, err);
	rc = add_step(decoder, &step, err);
	if (!rc)
		step->kind = CTN_TOK_DECODE_JOIN;
	return rc;
}

void ctn_tok_decoder_free(struct ctn_tok_decoder *decoder)
{
	for (size_t i = 0; i < decoder->count; i++) {
		free(decoder->steps[i].from);
		free(decoder->steps[i].to);
	}
	free(decoder->steps);
}
