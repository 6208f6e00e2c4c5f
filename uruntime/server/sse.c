// SPDX-License-Identifier: MIT
/* Server-sent events as OpenAI's clients read them. */
#include "server/completion.h"

#include <stdlib.h>

void ctn_sse_event(struct ctn_buf *out, json_t *json)
{
	/* One line: JSON escapes every line break inside of it. */
	char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;

	json_decref(json);
	if (!text) {
		out->failed = true;
		return;
	}
	ctn_buf_puts(out, "data: ");
	ctn_buf_puts(out, text);
	ctn_buf_puts(out, "\n\n");
	free(text);
}

void ctn_sse_comment(struct ctn_buf *out)
{
	ctn_buf_puts(out, ":\n\n");
}

void ctn_sse_done(struct ctn_buf *out)
{
	ctn_buf_puts(out, "data: [DONE]\n\n");
}
