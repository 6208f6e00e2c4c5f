// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool buf_reserve(struct ctn_buf *buf, size_t extra)
{
	size_t need, cap;
	char *data;

	if (buf->failed)
		return false;
	if (__builtin_add_overflow(buf->len, extra, &need) ||
	    __builtin_add_overflow(need, (size_t)1, &need))
		goto fail;
	if (need <= buf->cap)
		return true;
	cap = buf->cap ? buf->cap : 64;
	while (cap < need)
		cap = cap > SIZE_MAX / 2 ? need : cap * 2;
	data = realloc(buf->data, cap);
	if (!data)
		goto fail;
	buf->data = data;
	buf->cap = cap;
	return true;
fail:
	buf->failed = true;
	return false;
}

void ctn_buf_append(struct ctn_buf *buf, const void *data, size_t len)
{
	if (!buf_reserve(buf, len))
		return;
	if (len)
		memcpy(buf->data + buf->len, data, len);
	buf->len += len;
	buf->data[buf->len] = '\0';
}

void ctn_buf_puts(struct ctn_buf *buf, const char *s)
{
	ctn_buf_append(buf, s, strlen(s));
}

void ctn_buf_printf(struct ctn_buf *buf, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0) {
		buf->failed = true;
		return;
	}
	if (!buf_reserve(buf, (size_t)n))
		return;
	va_start(ap, fmt);
	vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	buf->len += (size_t)n;
}

void ctn_buf_reset(struct ctn_buf *buf)
{
	buf->len = 0;
	buf->failed = false;
	if (buf->data)
		buf->data[0] = '\0';
}

void ctn_buf_free(struct ctn_buf *buf)
{
	free(buf->data);
	*buf = (struct ctn_buf){0};
}
