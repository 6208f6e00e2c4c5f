// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

void ctn_one_line(char *text)
{
	uint8_t *at = (uint8_t *)text;
	size_t left = strlen(text);

	while (left) {
		ucs4_t c;
		int n = u8_mbtoucr(&c, at, left);

		if (n <= 0 || c < 0x20 || (c >= 0x7f && c < 0xa0)) {
			n = n > 0 ? n : 1;
			memset(at, '?', (size_t)n);
		}
		at += n;
		left -= (size_t)n;
	}
}

int ctn_err_set(struct ctn_err *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	ctn_one_line(err->msg);
	return code;
}

int ctn_err_prefix(struct ctn_err *err, const char *fmt, ...)
{
	char old[sizeof(err->msg)];
	va_list ap;
	int n;

	if (!err)
		return -EINVAL;
	memcpy(old, err->msg, sizeof(old));
	va_start(ap, fmt);
	n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
	va_end(ap);
	/* A message that no longer fits is cut. */
	if (n >= 0 && (size_t)n + 3 < sizeof(err->msg))
		snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %.*s",
			 (int)(sizeof(err->msg) - (size_t)n - 3), old);
	ctn_one_line(err->msg);
	return err->code;
}

#ifdef CTN_DEBUG
_Noreturn void ctn_assert_failed(const char *expr, const char *file, int line)
{
	ctn_error("invariant violated: %s (%s:%d)", expr, file, line);
	abort();
}
#endif
