// SPDX-License-Identifier: MIT
#include "sim_replay.h"

#include <errno.h>
#include <string.h>

/* A model of 64 ranks of 1024 layers has one of 2 MiB. */
#define MAX_LINE (64 * CTN_MIB)

int ctn_replay_line(struct ctn_replay_lines *l, FILE *f, struct ctn_buf *line)
{
	const char *end = NULL;

	ctn_buf_reset(line);
	while (!end) {
		const char *from = l->bytes + l->at;
		size_t n;

		if (l->at == l->len) {
			l->len = fread(l->bytes, 1, sizeof(l->bytes), f);
			l->at = 0;
			from = l->bytes;
		}
		if (l->len == 0)
			break;
		end = memchr(from, '\n', l->len - l->at);
		n = end ? (size_t)(end - from) + 1 : l->len - l->at;
		ctn_buf_append(line, from, n);
		l->at += n;
		if (line->failed || line->len > MAX_LINE)
			return -EFBIG;
	}
	return line->len > 0;
}
