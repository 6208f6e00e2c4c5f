// SPDX-License-Identifier: MIT
/* POST /models/NAME/load|evict|pin|unpin, on the control socket. */
#include "server/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned int status_of(int rc)
{
	switch (rc) {
	case -ENOENT:
		return MHD_HTTP_NOT_FOUND;
	case -EBUSY:
		return MHD_HTTP_CONFLICT;
	case -ENOSPC:
		return MHD_HTTP_INSUFFICIENT_STORAGE;
	case -EAGAIN:
	case -ENODEV:
	case -ESHUTDOWN:
		return MHD_HTTP_SERVICE_UNAVAILABLE;
	default:
		return MHD_HTTP_INTERNAL_SERVER_ERROR;
	}
}

static const char *code_of(int rc)
{
	switch (rc) {
	case -ENOENT:
		return "model_not_found";
	case -EBUSY:
		return "model_busy";
	case -ENOSPC:
		return "no_room";
	case -ENODEV:
		return "model_not_servable";
	case -ESHUTDOWN:
		return "stopping";
	default:
		return NULL;
	}
}

static const struct {
	const char *verb;
	enum ctn_control what;
} verbs[] = {
	{"load", CTN_CONTROL_LOAD},
	{"evict", CTN_CONTROL_EVICT},
	{"pin", CTN_CONTROL_PIN},
	{"unpin", CTN_CONTROL_UNPIN},
};

static enum ctn_control control_of(const char *verb)
{
	size_t i = 0;

	/* The route has let none but these through. */
	while (i + 1 < CTN_ARRAY_LEN(verbs) && strcmp(verbs[i].verb, verb) != 0)
		i++;
	return verbs[i].what;
}

static int run(struct ctn_exchange *x, const char *name, enum ctn_control what, struct ctn_err *err)
{
	int model = ctn_engine_find_model(x->server->engine, name);
	int rc;

	if (model < 0)
		return ctn_err_set(err, -ENOENT, "there is no model \"%.200s\"", name);
	ctn_exchange_idle_timeout(x->server, x->conn, false);
	rc = ctn_engine_control(x->server->engine, what, (uint32_t)model, err);
	ctn_exchange_idle_timeout(x->server, x->conn, true);
	return rc;
}

enum MHD_Result ctn_handle_control(struct ctn_exchange *x)
{
	char *name = x->path + strlen("/models/");
	char *slash = strrchr(name, '/');
	uint64_t begin = ctn_now_ns();
	struct ctn_api_error e = {0};
	struct ctn_err err = {0};
	int rc;

	*slash = '\0';
	rc = run(x, name, control_of(slash + 1), &err);
	if (rc) {
		ctn_api_fail(&e, status_of(rc), code_of(rc), NULL, "%s",
			     err.msg[0] ? err.msg : strerror(-rc));
		return ctn_reply_error(x, &e);
	}
	return ctn_reply_json(x, MHD_HTTP_OK,
			      json_pack("{s:s, s:s, s:f}", "model", name, "done", slash + 1,
					"seconds", (double)(ctn_now_ns() - begin) / 1e9));
}
