// SPDX-License-Identifier: MIT
/* The table of container formats. The name that was asked for decides the format, not what a
 * link resolves to: caches keep files under hashes. */
#include "checkpoint/container.h"

#include <errno.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct ctn_container_format *const formats[] = {
	&ctn_format_safetensors,
};

static const struct ctn_container_format *find_format(const char *path)
{
	size_t len = strlen(path);

	for (size_t i = 0; i < CTN_ARRAY_LEN(formats); i++) {
		size_t n = strlen(formats[i]->suffix);

		if (len > n && strcmp(path + len - n, formats[i]->suffix) == 0)
			return formats[i];
	}
	return NULL;
}

int ctn_container_open_stat(const char *path, struct ctn_container *c, struct stat *st,
			    struct ctn_err *err)
{
	const struct ctn_container_format *format = find_format(path);
	int fd, rc;

	*c = (struct ctn_container){0};
	if (!format)
		return ctn_err_set(err, -ENOTSUP, "%s: expected a name that ends in %s", path,
				   formats[0]->suffix);
	fd = ctn_open_regular(path, NULL, err);
	if (fd < 0)
		return fd;
	if (fstat(fd, st) < 0) {
		rc = -errno;
		ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
		goto out_close;
	}
	c->format = format;
	c->file_bytes = (uint64_t)st->st_size;
	rc = format->parse(fd, c->file_bytes, path, c, err);
	if (rc)
		ctn_container_close(c);
out_close:
	close(fd);
	return rc;
}

int ctn_container_open(const char *path, struct ctn_container *c, struct ctn_err *err)
{
	struct stat st;

	return ctn_container_open_stat(path, c, &st, err);
}

/* Blocks are filled from the front; the one at the head has room. */
struct arena_block {
	struct arena_block *next;
	size_t used, size;
	alignas(max_align_t) char data[];
};

#define ARENA_FIRST 4096u
#define ARENA_BLOCK (256 * 1024u)

void *ctn_container_alloc(struct ctn_container *c, size_t bytes)
{
	struct arena_block *b = c->arena;
	size_t need = ctn_align_up(bytes, alignof(max_align_t));
	void *p;

	if (need < bytes)
		return NULL;
	if (!b || need > b->size - b->used) {
		const size_t size = CTN_MAX(need, b ? ARENA_BLOCK : ARENA_FIRST);

		b = size > SIZE_MAX - sizeof(*b) ? NULL : malloc(sizeof(*b) + size);
		if (!b)
			return NULL;
		*b = (struct arena_block){.next = c->arena, .size = size};
		c->arena = b;
	}
	p = b->data + b->used;
	b->used += need;
	return p;
}

void ctn_container_close(struct ctn_container *c)
{
	struct arena_block *b = c->arena;

	while (b) {
		struct arena_block *next = b->next;

		free(b);
		b = next;
	}
	free(c->tensors);
	*c = (struct ctn_container){0};
}
