// SPDX-License-Identifier: MIT
#include "fake_tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SPECIAL 256u

struct ctn_tokenizer {
	int unused;
};

struct ctn_detok {
	bool skip_special, at_start;
	unsigned char part[4]; /* of a character that is not complete */
	size_t len;
};

static const char *const words[] = {"<s>", "hello", " world"};
static int open_count;

int fake_tokenizer_open_count(void)
{
	return open_count;
}

int ctn_tokenizer_open(const char *dir, struct ctn_tokenizer **tok, struct ctn_err *err)
{
	if (strcmp(dir, "no-tokenizer") == 0)
		return ctn_err_set(err, -ENOENT, "%s/tokenizer.json: no such file", dir);
	*tok = calloc(1, sizeof(**tok));
	if (!*tok)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	open_count++;
	return 0;
}

void ctn_tokenizer_close(struct ctn_tokenizer *tok)
{
	open_count--;
	free(tok);
}

bool ctn_tokenizer_is_special(const struct ctn_tokenizer *tok, uint32_t id)
{
	return id == SPECIAL;
}

int ctn_tokenizer_encode(const struct ctn_tokenizer *tok, const char *text, size_t len,
			 bool add_special, uint32_t **ids, size_t *count, struct ctn_err *err)
{
	*ids = calloc(len + 1, sizeof(**ids));
	if (!*ids)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < len; i++)
		(*ids)[i] = (unsigned char)text[i];
	*count = len;
	return 0;
}

struct ctn_detok *ctn_detok_new(const struct ctn_tokenizer *tok, bool skip_special,
				bool continuation)
{
	struct ctn_detok *d = calloc(1, sizeof(*d));

	if (d) {
		d->skip_special = skip_special;
		d->at_start = !continuation;
	}
	return d;
}

static size_t char_len(unsigned char lead)
{
	return lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
}

void ctn_detok_flush(struct ctn_detok *d, struct ctn_buf *out)
{
	if (d->len)
		ctn_buf_puts(out, "\xef\xbf\xbd");
	d->len = 0;
}

static void push_byte(struct ctn_detok *d, unsigned char c, struct ctn_buf *out)
{
	if (d->len && (c & 0xc0) != 0x80)
		ctn_detok_flush(d, out);
	if (d->len == 0 && char_len(c) == 0) {
		ctn_buf_puts(out, "\xef\xbf\xbd");
		return;
	}
	d->part[d->len++] = c;
	if (d->len == char_len(d->part[0])) {
		ctn_buf_append(out, d->part, d->len);
		d->len = 0;
	}
}

int ctn_detok_push(struct ctn_detok *d, uint32_t id, struct ctn_buf *out, struct ctn_err *err)
{
	const char *word;

	if (id >= SPECIAL + CTN_ARRAY_LEN(words))
		return ctn_err_set(err, -EINVAL, "id %u is outside the vocabulary", id);
	if (id == SPECIAL && d->skip_special)
		return 0;
	if (id < SPECIAL) {
		/* As LLaMA's: the space at the start of a text is no part of it. */
		if (!(d->at_start && id == ' '))
			push_byte(d, (unsigned char)id, out);
		d->at_start = false;
		return 0;
	}
	word = words[id - SPECIAL];
	ctn_detok_flush(d, out);
	ctn_buf_puts(out, d->at_start && word[0] == ' ' ? word + 1 : word);
	d->at_start = false;
	return 0;
}

void ctn_detok_free(struct ctn_detok *d)
{
	free(d);
}

int ctn_tokenizer_decode(const struct ctn_tokenizer *tok, const uint32_t *ids, size_t count,
			 bool skip_special, struct ctn_buf *out, struct ctn_err *err)
{
	struct ctn_detok *d = ctn_detok_new(tok, skip_special, false);
	int rc = d ? 0 : -ENOMEM;

	for (size_t i = 0; i < count && !rc; i++)
		rc = ctn_detok_push(d, ids[i], out, err);
	if (d)
		ctn_detok_flush(d, out);
	free(d);
	return rc;
}
