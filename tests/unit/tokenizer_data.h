/* SPDX-License-Identifier: MIT */
/* Reads tests/data/tokenizer: the formats stand in the README.md there. */
#ifndef CTN_TOKENIZER_DATA_H
#define CTN_TOKENIZER_DATA_H

#include "test.h"
#include "tokenizer/tokenizer.h"

struct bytes {
	const char *data;
	size_t len;
};

/* A file and the place in it that comes next. */
struct reader {
	char *data;
	size_t len;
	size_t at;
};

static inline void reader_open(struct reader *r, const char *name)
{
	struct ctn_err err = {0};
	char path[4096];

	snprintf(path, sizeof(path), "%s/data/tokenizer/%s", ctn_tests_dir(), name);
	*r = (struct reader){0};
	if (ctn_read_file(path, CTN_GIB, &r->data, &r->len, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
}

static inline uint32_t read_varint(struct reader *r)
{
	uint32_t v = 0;
	uint8_t byte;

	for (int shift = 0;; shift += 7) {
		if (r->at >= r->len || shift > 28) {
			fprintf(stderr, "a data file ends early\n");
			exit(2);
		}
		byte = (uint8_t)r->data[r->at++];
		v |= (uint32_t)(byte & 0x7F) << shift;
		if (byte < 0x80)
			return v;
	}
}

static inline struct bytes read_blob(struct reader *r)
{
	struct bytes b = {.len = read_varint(r)};

	if (b.len > r->len - r->at) {
		fprintf(stderr, "a data file ends early\n");
		exit(2);
	}
	b.data = r->data + r->at;
	r->at += b.len;
	return b;
}

static inline struct bytes read_text_or_same(struct reader *r, struct bytes other)
{
	return read_varint(r) ? read_blob(r) : other;
}

/* The caller frees the ids. */
static inline uint32_t *read_ids(struct reader *r, size_t *count)
{
	uint32_t *ids;

	*count = read_varint(r);
	ids = malloc((*count + 1) * sizeof(*ids));
	for (size_t i = 0; i < *count; i++)
		ids[i] = read_varint(r);
	return ids;
}

/* All strings of strings.bin. The caller frees the array and r->data. */
static inline struct bytes *read_strings(struct reader *r, size_t *count)
{
	struct bytes *strings;

	reader_open(r, "strings.bin");
	*count = read_varint(r);
	strings = malloc(*count * sizeof(*strings));
	for (size_t i = 0; i < *count; i++)
		strings[i] = read_blob(r);
	return strings;
}

/* Opens DIR/tokenizer.json, DIR below tests/. */
static inline struct ctn_tokenizer *open_tokenizer(const char *dir)
{
	struct ctn_tokenizer *tok = NULL;
	struct ctn_err err = {0};
	char path[4096];

	snprintf(path, sizeof(path), "%s/%s", ctn_tests_dir(), dir);
	if (ctn_tokenizer_open(path, &tok, &err))
		fprintf(stderr, "# %s\n", err.msg);
	CU_ASSERT_PTR_NOT_NULL_FATAL(tok);
	return tok;
}

#endif
