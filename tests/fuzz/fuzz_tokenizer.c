// SPDX-License-Identifier: MIT
/*
 * The input is tokenizer.json, then, behind NUL bytes, tokenizer_config.json and a text to
 * encode besides the one that stands here.
 */
#include "fuzz.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TEXT                                                                                 \
	"  Once upon a time, 12345 \xe2\x82\xac!\n\n\tIt's <s>LO\xc3\x96ng</s> aab abab\r\n" \
	"\xf0\x9f\xa6\x8a \xe4\xb8\xad\xe6\x96\x87 e\xcc\x81 <|endoftext|>x  ss "            \
	"\xc3\xa9\xef\xbf\xbd "

/* The stream gives what the whole does. */
static int check_decode(const struct ctn_tokenizer *tok, const uint32_t *ids, size_t count,
			bool skip)
{
	struct ctn_buf whole = {0}, stream = {0};
	struct ctn_detok *d = ctn_detok_new(tok, skip, false);
	int rc = d ? 0 : -ENOMEM;

	if (!rc)
		rc = ctn_tokenizer_decode(tok, ids, count, skip, &whole, NULL);
	for (size_t i = 0; !rc && i < count; i++)
		rc = ctn_detok_push(d, ids[i], &stream, NULL);
	if (!rc)
		ctn_detok_flush(d, &stream);
	FUZZ_CHECK(rc == 0 || rc == -ENOMEM);
	if (!rc && !whole.failed && !stream.failed) {
		FUZZ_CHECK(whole.len == stream.len);
		FUZZ_CHECK(!whole.len || memcmp(whole.data, stream.data, whole.len) == 0);
	}
	ctn_detok_free(d);
	ctn_buf_free(&whole);
	ctn_buf_free(&stream);
	return rc;
}

static int check_text(const struct ctn_tokenizer *tok, const char *text, size_t len, bool special)
{
	struct ctn_err err = {0};
	uint32_t *ids;
	size_t count;
	int rc = ctn_tokenizer_encode(tok, text, len, special, &ids, &count, &err);

	/* -EINVAL: a pattern that gave up. */
	FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -EILSEQ || rc == -ENOMEM);
	if (rc)
		return rc == -ENOMEM ? rc : 0;
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(ids[i] < ctn_tokenizer_vocab_size(tok));
		FUZZ_CHECK(ctn_tokenizer_token(tok, ids[i]));
	}
	rc = check_decode(tok, ids, count, special);
	free(ids);
	return rc;
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_tokenizer *tok;
	struct ctn_err err = {0};
	const char *text = "";
	size_t len = 0;
	int rc;

	fuzz_clear();
	fuzz_field(&data, &size, &text, &len);
	fuzz_put("tokenizer.json", text, len);
	if (fuzz_field(&data, &size, &text, &len))
		fuzz_put("tokenizer_config.json", text, len);
	rc = ctn_tokenizer_open(fuzz_dir(), &tok, &err);
	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	rc = check_text(tok, TEXT, strlen(TEXT), true);
	if (!rc)
		rc = check_text(tok, TEXT, strlen(TEXT), false);
	if (!rc && fuzz_field(&data, &size, &text, &len))
		rc = check_text(tok, text, len, true);
	ctn_tokenizer_close(tok);
	return rc;
}
