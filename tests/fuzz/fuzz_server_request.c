// SPDX-License-Identifier: MIT
/* The input is the body of POST /v1/completions. */
#include "fuzz.h"
#include "server/openai_request.h"

#include <errno.h>
#include <string.h>

static void check(const struct ctn_completion_request *r)
{
	FUZZ_CHECK(r->model && r->prompt_count >= 1 && r->n >= 1);
	FUZZ_CHECK(r->prompt_count * r->n <= CTN_MAX_CHOICES && r->stop_count <= CTN_MAX_STOPS);
	for (size_t i = 0; i < r->prompt_count; i++)
		FUZZ_CHECK(r->prompts[i].text || (r->prompts[i].ids && r->prompts[i].count));
	for (size_t i = 0; i < r->stop_count; i++)
		FUZZ_CHECK(r->stops[i].len && r->stops[i].len <= 1024);
	FUZZ_CHECK(r->sampling.temperature >= 0 && r->sampling.temperature <= 2);
	FUZZ_CHECK(r->sampling.top_p > 0 && r->sampling.top_p <= 1);
	FUZZ_CHECK(r->timeout_s >= 0 && r->timeout_s <= 7 * 24 * 3600);
}

/* A refusal can be put into an answer. */
static int check_refusal(const struct ctn_api_error *e)
{
	json_t *json;

	FUZZ_CHECK(e->status == MHD_HTTP_BAD_REQUEST || e->status == MHD_HTTP_SERVICE_UNAVAILABLE);
	FUZZ_CHECK(memchr(e->msg, '\0', sizeof(e->msg)) && e->msg[0]);
	if (e->status == MHD_HTTP_SERVICE_UNAVAILABLE)
		return -ENOMEM;
	json = ctn_api_error_json(e);
	FUZZ_CHECK(json);
	json_decref(json);
	return -EINVAL;
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_completion_request r;
	struct ctn_api_error e = {0};
	int rc = ctn_completion_request_parse((const char *)data, size, &r, &e);

	FUZZ_CHECK(rc == 0 || rc == -1);
	if (rc)
		rc = check_refusal(&e);
	else
		check(&r);
	ctn_completion_request_free(&r);
	return rc;
}
