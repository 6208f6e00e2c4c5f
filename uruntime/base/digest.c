// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

char *ctn_digest_format(const struct ctn_digest *digest, char out[CTN_DIGEST_TEXT])
{
	for (size_t i = 0; i < sizeof(digest->bytes); i++)
		snprintf(out + 2 * i, 3, "%02x", digest->bytes[i]);
	return out;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int ctn_digest_parse(const char *text, struct ctn_digest *digest)
{
	if (strlen(text) != CTN_DIGEST_TEXT - 1)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(digest->bytes); i++) {
		const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		digest->bytes[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}
