// SPDX-License-Identifier: MIT
/*
 * safetensors: u64 N (little-endian), N bytes of JSON, tensor data up to the end of the file.
 *
 * Checks, in this order and before anything is trusted: the file holds N; N is within the
 * format's limit and the file (before memory is taken for it); the header is strict JSON;
 * every tensor has a known dtype, a shape that does not overflow and exactly the bytes that
 * both imply; sorted by offset the tensors tile the data without hole or overlap; the file
 * ends where the last tensor does. Data start at exactly 8+N and need no alignment.
 */
#include "checkpoint/container.h"
#include "checkpoint/json.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAX_HEADER   100000000ull
#define METADATA_KEY "__metadata__"

/* Names and shapes of all tensors, one block: shapes first, for their alignment. */
struct arena {
	uint64_t *shape;
	char *name;
};

static int read_header(int fd, uint64_t bytes, const char *path, char **header, uint64_t *len,
		       struct ctn_err *err)
{
	uint64_t n;
	int rc;

	if (bytes < sizeof(n))
		return ctn_err_set(err, -EINVAL, "%s: expected at least 8 bytes, found %llu", path,
				   (unsigned long long)bytes);
	rc = ctn_pread_all(fd, &n, sizeof(n), 0);
	if (rc)
		return ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
	n = le64toh(n);
	if (n > MAX_HEADER)
		return ctn_err_set(err, -EINVAL,
				   "%s: header length: expected at most %llu, found %llu", path,
				   MAX_HEADER, (unsigned long long)n);
	if (n > bytes - sizeof(n))
		return ctn_err_set(err, -EINVAL,
				   "%s: header length: the file has %llu bytes after it, found "
				   "%llu (truncated?)",
				   path, (unsigned long long)(bytes - sizeof(n)),
				   (unsigned long long)n);
	if (n == 0)
		return ctn_err_set(err, -EINVAL, "%s: header length: expected JSON, found 0 bytes",
				   path);
	*header = malloc(n);
	if (!*header)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory for a header of %llu bytes",
				   path, (unsigned long long)n);
	rc = ctn_pread_all(fd, *header, n, sizeof(n));
	if (rc) {
		free(*header);
		return ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
	}
	*len = n;
	return 0;
}

static int check_metadata(const json_t *meta, const char *path, struct ctn_err *err)
{
	const char *key;
	json_t *value;

	if (json_is_null(meta))
		return 0;
	if (!json_is_object(meta))
		return ctn_err_set(err, -EINVAL, "%s: %s: expected an object, found %s", path,
				   METADATA_KEY, ctn_quote_json(meta).s);
	json_object_foreach((json_t *)meta, key, value)
	{
		if (!json_is_string(value))
			return ctn_err_set(err, -EINVAL,
					   "%s: %s: \"%s\": expected a string, found %s", path,
					   METADATA_KEY, ctn_quote(key).s, ctn_quote_json(value).s);
	}
	return 0;
}

/* Elements that are not integers from 0 up are refused; jansson refuses those above 2^63-1. */
static int get_index(const json_t *v, uint64_t *out)
{
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return -EINVAL;
	*out = (uint64_t)json_integer_value(v);
	return 0;
}

/* Bytes of a tensor by dtype and shape. Dimensions are multiplied from the left, so that a
 * product that overflows is refused even if a later dimension is 0. */
static int tensor_bytes(const struct ctn_tensor *t, uint64_t *bytes)
{
	uint64_t n = 1;

	for (uint32_t i = 0; i < t->rank; i++) {
		if (ctn_mul_overflows(n, t->shape[i], &n))
			return -EOVERFLOW;
	}
	if (ctn_mul_overflows(n, ctn_dtype_bits(t->encoding.dtype), &n))
		return -EOVERFLOW;
	if (n % 8)
		return -EINVAL;
	*bytes = n / 8;
	return 0;
}

static int parse_tensor(const char *name, const json_t *v, struct ctn_tensor *t,
			struct arena *arena, const char *path, struct ctn_err *err)
{
	const json_t *dtype = json_object_get(v, "dtype");
	const json_t *shape = json_object_get(v, "shape");
	const json_t *offsets = json_object_get(v, "data_offsets");
	uint64_t begin, end, bytes;
	int rc;

	if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets))
		return ctn_err_set(err, -EINVAL,
				   "%s: tensor \"%s\": expected dtype, shape and data_offsets, "
				   "found %s",
				   path, ctn_quote(name).s, ctn_quote_json(v).s);
	if (ctn_dtype_parse(json_string_value(dtype), &t->encoding.dtype))
		return ctn_err_set(err, -EINVAL, "%s: tensor \"%s\": unknown dtype \"%s\"", path,
				   ctn_quote(name).s, ctn_quote(json_string_value(dtype)).s);
	t->rank = (uint32_t)json_array_size(shape);
	t->shape = arena->shape;
	for (uint32_t i = 0; i < t->rank; i++) {
		if (get_index(json_array_get(shape, i), arena->shape++))
			return ctn_err_set(err, -EINVAL,
					   "%s: tensor \"%s\": shape: expected integers from 0, "
					   "found %s",
					   path, ctn_quote(name).s, ctn_quote_json(shape).s);
	}
	if (json_array_size(offsets) != 2 || get_index(json_array_get(offsets, 0), &begin) ||
	    get_index(json_array_get(offsets, 1), &end) || end < begin)
		return ctn_err_set(err, -EINVAL,
				   "%s: tensor \"%s\": data_offsets: expected [begin, end], found "
				   "%s",
				   path, ctn_quote(name).s, ctn_quote_json(offsets).s);
	rc = tensor_bytes(t, &bytes);
	if (rc)
		return ctn_err_set(
			err, -EINVAL, "%s: tensor \"%s\": %s %s %s", path, ctn_quote(name).s,
			ctn_dtype_name(t->encoding.dtype), ctn_quote_json(shape).s,
			rc == -EOVERFLOW ? "overflows 64 bits" : "is not a whole number of bytes");
	if (end - begin != bytes)
		return ctn_err_set(err, -EINVAL,
				   "%s: tensor \"%s\": %s %s: expected %llu bytes, found %llu",
				   path, ctn_quote(name).s, ctn_dtype_name(t->encoding.dtype),
				   ctn_quote_json(shape).s, (unsigned long long)bytes,
				   (unsigned long long)(end - begin));
	t->offset = begin;
	t->bytes = bytes;
	t->name = strcpy(arena->name, name);
	arena->name += strlen(name) + 1;
	return 0;
}

/* Checks that every entry is what it should be and adds up the memory that they need. */
static int measure(const json_t *root, const char *path, uint64_t *count, uint64_t *dims,
		   uint64_t *name_bytes, struct ctn_err *err)
{
	const char *name;
	json_t *v;

	*count = *dims = *name_bytes = 0;
	json_object_foreach((json_t *)root, name, v)
	{
		if (strcmp(name, METADATA_KEY) == 0) {
			int rc = check_metadata(v, path, err);

			if (rc)
				return rc;
			continue;
		}
		if (!json_is_object(v))
			return ctn_err_set(err, -EINVAL,
					   "%s: tensor \"%s\": expected an object, found %s", path,
					   ctn_quote(name).s, ctn_quote_json(v).s);
		*count += 1;
		*dims += json_array_size(json_object_get(v, "shape"));
		*name_bytes += strlen(name) + 1;
	}
	return 0;
}

/* By offset; tensors without bytes before the one that starts at the same place. */
static int by_offset(const void *pa, const void *pb)
{
	const struct ctn_tensor *a = pa, *b = pb;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	if (a->bytes != b->bytes)
		return a->bytes < b->bytes ? -1 : 1;
	return strcmp(a->name, b->name);
}

/* The tensors must tile the data: from its start, each where the one before ends, to the end
 * of the file. Makes their offsets absolute. */
static int check_tiling(struct ctn_container *c, const char *path, struct ctn_err *err)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < c->count; i++) {
		struct ctn_tensor *t = &c->tensors[i];

		if (t->offset != at)
			return ctn_err_set(err, -EINVAL,
					   "%s: tensor \"%s\": data_offsets: expected to begin at "
					   "%llu, found %llu (%s)",
					   path, ctn_quote(t->name).s, (unsigned long long)at,
					   (unsigned long long)t->offset,
					   t->offset < at ? "overlap" : "hole");
		at += t->bytes;
		t->offset += c->data_offset;
	}
	if (at != c->file_bytes - c->data_offset)
		return ctn_err_set(err, -EINVAL,
				   "%s: expected %llu bytes by the header, found %llu%s", path,
				   (unsigned long long)(c->data_offset + at),
				   (unsigned long long)c->file_bytes,
				   c->data_offset + at > c->file_bytes ? " (truncated?)" : "");
	return 0;
}

static int fill(const json_t *root, struct ctn_container *c, const char *path, struct ctn_err *err)
{
	uint64_t count, dims, name_bytes;
	struct arena arena;
	const char *name;
	json_t *v;
	int rc;

	rc = measure(root, path, &count, &dims, &name_bytes, err);
	if (rc)
		return rc;
	/* All three are bounded by the header's 100 MB: no overflow here. */
	c->tensors = calloc(count ? count : 1, sizeof(*c->tensors));
	c->arena = malloc(dims * sizeof(uint64_t) + name_bytes + 1);
	if (!c->tensors || !c->arena)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory for %llu tensors", path,
				   (unsigned long long)count);
	arena.shape = c->arena;
	arena.name = (char *)(arena.shape + dims);
	json_object_foreach((json_t *)root, name, v)
	{
		if (strcmp(name, METADATA_KEY) == 0)
			continue;
		rc = parse_tensor(name, v, &c->tensors[c->count], &arena, path, err);
		if (rc)
			return rc;
		c->count++;
	}
	qsort(c->tensors, c->count, sizeof(*c->tensors), by_offset);
	return check_tiling(c, path, err);
}

static int safetensors_parse(int fd, uint64_t bytes, const char *path, struct ctn_container *c,
			     struct ctn_err *err)
{
	XXH128_canonical_t digest;
	json_t *root;
	char *header = NULL;
	uint64_t len = 0;
	int rc;

	rc = read_header(fd, bytes, path, &header, &len, err);
	if (rc)
		return rc;
	c->data_offset = sizeof(uint64_t) + len;
	XXH128_canonicalFromHash(&digest, XXH3_128bits(header, len));
	memcpy(c->header.bytes, digest.digest, sizeof(c->header.bytes));
	if (header[0] != '{')
		ctn_debug("%s: white space before the header's JSON", path);
	rc = ctn_json_parse(header, len, path, &root, err);
	free(header);
	if (rc)
		return rc;
	rc = fill(root, c, path, err);
	json_decref(root);
	return rc;
}

const struct ctn_container_format ctn_format_safetensors = {
	.name = "safetensors",
	.suffix = ".safetensors",
	.parse = safetensors_parse,
};
