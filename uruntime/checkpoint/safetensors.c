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
/* Text of one tensor's entry. A real one has some hundred bytes; the bound keeps the tree of a
 * hostile one small. */
#define MAX_ENTRY CTN_MIB

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

static int check_metadata(const struct ctn_json_walk *header, const struct ctn_json_member *m,
			  struct ctn_err *err)
{
	struct ctn_json_walk walk = {.what = header->what, .data = m->value, .len = m->len};
	struct ctn_json_member member;
	int rc;

	if (m->len == 4 && memcmp(m->value, "null", 4) == 0)
		return 0;
	if (m->value[0] != '{')
		return ctn_err_set(err, -EINVAL, "%s: %s: expected an object, found %s",
				   header->what, METADATA_KEY, ctn_quote_n(m->value, m->len).s);
	while ((rc = ctn_json_next(&walk, &member, err)) > 0) {
		json_t *value = NULL;

		rc = ctn_json_value(&walk, &member, member.len, &value, err);
		if (!rc && !json_is_string(value))
			rc = ctn_err_set(err, -EINVAL,
					 "%s: %s: \"%s\": expected a string, found %s",
					 header->what, METADATA_KEY,
					 ctn_quote(json_string_value(member.name)).s,
					 ctn_quote_n(member.value, member.len).s);
		json_decref(value);
		json_decref(member.name);
		if (rc)
			return rc;
	}
	return rc;
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

static int parse_tensor(struct ctn_container *c, const char *name, const json_t *v,
			struct ctn_tensor *t, const char *path, struct ctn_err *err)
{
	const json_t *dtype = json_object_get(v, "dtype");
	const json_t *shape = json_object_get(v, "shape");
	const json_t *offsets = json_object_get(v, "data_offsets");
	uint64_t begin, end, bytes, *dims;
	char *copy;
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
	dims = ctn_container_alloc(c, t->rank * sizeof(*dims));
	copy = ctn_container_alloc(c, strlen(name) + 1);
	if (!dims || !copy)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", path);
	t->shape = dims;
	t->name = strcpy(copy, name);
	for (uint32_t i = 0; i < t->rank; i++) {
		if (get_index(json_array_get(shape, i), &dims[i]))
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

static int by_name(const void *pa, const void *pb, void *arg)
{
	const struct ctn_tensor *tensors = arg;

	return strcmp(tensors[*(const uint32_t *)pa].name, tensors[*(const uint32_t *)pb].name);
}

static int check_names(const struct ctn_container *c, const char *path, struct ctn_err *err)
{
	uint32_t *order = calloc((size_t)c->count + 1, sizeof(*order));
	int rc = 0;

	if (!order)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", path);
	for (uint32_t i = 0; i < c->count; i++)
		order[i] = i;
	qsort_r(order, c->count, sizeof(*order), by_name, c->tensors);
	for (uint32_t i = 1; !rc && i < c->count; i++) {
		const char *name = c->tensors[order[i]].name;

		if (strcmp(c->tensors[order[i - 1]].name, name) == 0)
			rc = ctn_err_set(err, -EINVAL, "%s: tensor \"%s\" is given twice", path,
					 ctn_quote(name).s);
	}
	free(order);
	return rc;
}

static int add_tensor(struct ctn_container *c, uint32_t *capacity, const struct ctn_json_walk *walk,
		      const struct ctn_json_member *m, struct ctn_err *err)
{
	const char *name = json_string_value(m->name);
	json_t *entry;
	int rc;

	if (c->count == *capacity) {
		const uint32_t n = *capacity ? 2 * *capacity : 64;
		void *p = reallocarray(c->tensors, n, sizeof(*c->tensors));

		if (!p)
			return ctn_err_set(err, -ENOMEM, "%s: out of memory", walk->what);
		c->tensors = p;
		*capacity = n;
	}
	rc = ctn_json_value(walk, m, MAX_ENTRY, &entry, err);
	if (rc)
		return rc;
	if (!json_is_object(entry))
		rc = ctn_err_set(err, -EINVAL, "%s: tensor \"%s\": expected an object, found %s",
				 walk->what, ctn_quote(name).s, ctn_quote_json(entry).s);
	else
		rc = parse_tensor(c, name, entry, &c->tensors[c->count], walk->what, err);
	json_decref(entry);
	if (!rc)
		c->count++;
	return rc;
}

/* The header has less than 2^27 bytes: counts and capacities fit in 32 bits. */
static int parse_header(struct ctn_container *c, const char *header, uint64_t len, const char *path,
			struct ctn_err *err)
{
	struct ctn_json_walk walk = {.what = path, .data = header, .len = len};
	struct ctn_json_member m;
	uint32_t capacity = 0;
	bool metadata = false;
	int rc;

	while ((rc = ctn_json_next(&walk, &m, err)) > 0) {
		if (strcmp(json_string_value(m.name), METADATA_KEY) != 0)
			rc = add_tensor(c, &capacity, &walk, &m, err);
		else if (metadata)
			rc = ctn_err_set(err, -EINVAL, "%s: \"%s\" is given twice", path,
					 METADATA_KEY);
		else
			rc = check_metadata(&walk, &m, err);
		metadata |= strcmp(json_string_value(m.name), METADATA_KEY) == 0;
		json_decref(m.name);
		if (rc)
			return rc;
	}
	return rc;
}

static int safetensors_parse(int fd, uint64_t bytes, const char *path, struct ctn_container *c,
			     struct ctn_err *err)
{
	XXH128_canonical_t digest;
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
	rc = parse_header(c, header, len, path, err);
	free(header);
	if (!rc)
		rc = check_names(c, path, err);
	if (rc)
		return rc;
	if (c->count)
		qsort(c->tensors, c->count, sizeof(*c->tensors), by_offset);
	return check_tiling(c, path, err);
}

const struct ctn_container_format ctn_format_safetensors = {
	.name = "safetensors",
	.suffix = ".safetensors",
	.parse = safetensors_parse,
};
