// SPDX-License-Identifier: MIT
/* Routes, bodies, replies: the part of the server that knows no models. */
#include "server/http.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct ctn_route {
	const char *method;
	const char *path;
	const char *suffix; /* path is a prefix then, a name stands between the two; may be "" */
	bool control;       /* on the control socket alone */
	enum MHD_Result (*handle)(struct ctn_exchange *x);
};

static const struct ctn_route routes[] = {
	{"GET", "/health", NULL, false, ctn_handle_health},
	{"GET", "/metrics", NULL, false, ctn_handle_metrics},
	{"GET", "/v1/models", NULL, false, ctn_handle_models},
	{"GET", "/v1/models/", "", false, ctn_handle_model},
	{"POST", "/v1/completions", NULL, false, ctn_handle_completions},
	{"GET", "/status", NULL, true, ctn_handle_status},
	{"POST", "/models/", "/load", true, ctn_handle_control},
	{"POST", "/models/", "/evict", true, ctn_handle_control},
	{"POST", "/models/", "/pin", true, ctn_handle_control},
	{"POST", "/models/", "/unpin", true, ctn_handle_control},
};

static bool path_matches(const struct ctn_route *route, const char *path)
{
	size_t prefix = strlen(route->path), len = strlen(path), suffix;

	if (!route->suffix)
		return strcmp(path, route->path) == 0;
	suffix = strlen(route->suffix);
	return len > prefix + suffix && memcmp(path, route->path, prefix) == 0 &&
	       strcmp(path + len - suffix, route->suffix) == 0;
}

static bool method_matches(const struct ctn_route *route, const char *method)
{
	/* The library leaves out the body of an answer to HEAD. */
	return strcmp(route->method, method) == 0 ||
	       (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

static void find_route(struct ctn_exchange *x, bool control, const char *method)
{
	const struct ctn_route *other = NULL;

	for (size_t i = 0; i < CTN_ARRAY_LEN(routes); i++) {
		if ((routes[i].control && !control) || !path_matches(&routes[i], x->path))
			continue;
		if (method_matches(&routes[i], method)) {
			x->route = &routes[i];
			return;
		}
		other = &routes[i];
	}
	if (other) {
		x->route = other;
		ctn_api_fail(&x->error, MHD_HTTP_METHOD_NOT_ALLOWED, "method_not_allowed", NULL,
			     "%s: expected method %s, found %s", x->path, other->method, method);
	} else {
		ctn_api_fail(&x->error, MHD_HTTP_NOT_FOUND, "unknown_url", NULL,
			     "%s %s: there is nothing at this path", method, x->path);
	}
}

int ctn_api_fail(struct ctn_api_error *e, unsigned int status, const char *code, const char *param,
		 const char *fmt, ...)
{
	va_list ap;

	e->status = status;
	e->code = code;
	e->param = param;
	va_start(ap, fmt);
	vsnprintf(e->msg, sizeof(e->msg), fmt, ap);
	va_end(ap);
	/* It may quote the request, and goes into JSON. */
	ctn_one_line(e->msg);
	return -1;
}

int ctn_api_fail_no_room(struct ctn_api_error *e, const char *why)
{
	e->retry_after_s = 1;
	return ctn_api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, "no_room", NULL, "%s", why);
}

static const char *error_type(unsigned int status)
{
	switch (status) {
	case MHD_HTTP_TOO_MANY_REQUESTS:
		return "rate_limit_error";
	case MHD_HTTP_GATEWAY_TIMEOUT:
		return "timeout_error";
	default:
		return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

json_t *ctn_api_error_json(const struct ctn_api_error *e)
{
	/* A message can quote a file name or a cut string, which need not be UTF-8. */
	json_t *msg = json_string(e->msg);

	if (!msg)
		msg = json_string("the error message is not UTF-8");
	return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", msg, "type",
			 error_type(e->status), "param", e->param, "code", e->code);
}

static enum MHD_Result reply(struct ctn_exchange *x, unsigned int status, const char *type,
			     void *data, size_t len, const struct ctn_api_error *e)
{
	struct MHD_Response *response;
	enum MHD_Result rc;
	char number[16];

	response = MHD_create_response_from_buffer(len, data, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(data);
		return MHD_NO;
	}
	rc = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (rc == MHD_YES && status == MHD_HTTP_METHOD_NOT_ALLOWED)
		rc = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, x->route->method);
	if (rc == MHD_YES && e && e->retry_after_s) {
		snprintf(number, sizeof(number), "%u", e->retry_after_s);
		rc = MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, number);
	}
	if (rc == MHD_YES)
		rc = MHD_queue_response(x->conn, status, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result reply_dump(struct ctn_exchange *x, unsigned int status, json_t *json,
				  const struct ctn_api_error *e)
{
	char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;

	json_decref(json);
	/* Out of memory: closing the connection is all that is left. */
	if (!text)
		return MHD_NO;
	return reply(x, status, "application/json", text, strlen(text), e);
}

enum MHD_Result ctn_reply_json(struct ctn_exchange *x, unsigned int status, json_t *json)
{
	return reply_dump(x, status, json, NULL);
}

enum MHD_Result ctn_reply_text(struct ctn_exchange *x, unsigned int status, const char *type,
			       struct ctn_buf *text)
{
	char *data = text->data;
	size_t len = text->len;

	if (text->failed || !data) {
		ctn_buf_free(text);
		return MHD_NO;
	}
	*text = (struct ctn_buf){0};
	return reply(x, status, type, data, len, NULL);
}

enum MHD_Result ctn_reply_error(struct ctn_exchange *x, const struct ctn_api_error *e)
{
	return reply_dump(x, e->status, ctn_api_error_json(e), e);
}

void ctn_exchange_idle_timeout(struct ctn_server *server, struct MHD_Connection *conn, bool on)
{
	/* Switching it on again also restarts it: else the library would count the time of our
	 * wait as the client's and close the connection before it sends the answer. */
	MHD_set_connection_option(conn, MHD_CONNECTION_OPTION_TIMEOUT,
				  on ? server->idle_timeout_s : 0u);
}

static void body_too_large(struct ctn_exchange *x)
{
	ctn_api_fail(&x->error, MHD_HTTP_CONTENT_TOO_LARGE, "body_too_large", NULL,
		     "request body: expected at most %llu bytes",
		     (unsigned long long)x->server->max_body);
}

/* True when the headers already say that the body is over the limit. */
static bool announces_too_much(struct ctn_exchange *x)
{
	const char *s = MHD_lookup_connection_value(x->conn, MHD_HEADER_KIND,
						    MHD_HTTP_HEADER_CONTENT_LENGTH);
	uint64_t len;
	int rc;

	if (!s)
		return false;
	rc = ctn_parse_u64("Content-Length", s, 0, x->server->max_body, &len, NULL);
	return rc == -ERANGE;
}

static struct ctn_exchange *exchange_new(struct ctn_listener *l, struct MHD_Connection *conn,
					 const char *url)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
	struct ctn_exchange *x = calloc(1, sizeof(*x));

	if (!x || !info)
		goto fail;
	x->path = strdup(url);
	if (!x->path)
		goto fail;
	x->server = l->server;
	x->conn = conn;
	x->sock = info->connect_fd;
	return x;
fail:
	free(x);
	return NULL;
}

/* The first call, with headers alone. An answer now means that the body is not read. */
static enum MHD_Result begin(struct ctn_listener *l, struct MHD_Connection *conn, const char *url,
			     const char *method, const char *version, void **con_cls)
{
	struct ctn_exchange *x = exchange_new(l, conn, url);

	if (!x)
		return MHD_NO;
	x->http11 = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
	*con_cls = x;
	find_route(x, l->control, method);
	if (announces_too_much(x)) {
		body_too_large(x);
		x->refused_early = true;
		return ctn_reply_error(x, &x->error);
	}
	return MHD_YES;
}

/* The library takes no answer in the middle of a body, so that one of unknown length is read
 * and thrown away past the limit; a client that does not come to an end is cut off. */
static enum MHD_Result collect(struct ctn_exchange *x, const char *upload, size_t *upload_size)
{
	size_t len = *upload_size;

	*upload_size = 0;
	x->received += len;
	if (x->received > x->server->max_body) {
		if (!x->error.status)
			body_too_large(x);
		ctn_buf_free(&x->body);
		return x->received / 4 > x->server->max_body ? MHD_NO : MHD_YES;
	}
	if (!x->error.status)
		ctn_buf_append(&x->body, upload, len);
	return MHD_YES;
}

enum MHD_Result ctn_http_handle(void *cls, struct MHD_Connection *conn, const char *url,
				const char *method, const char *version, const char *upload,
				size_t *upload_size, void **con_cls)
{
	struct ctn_exchange *x = *con_cls;

	if (!x)
		return begin(cls, conn, url, method, version, con_cls);
	if (*upload_size)
		return collect(x, upload, upload_size);
	if (x->body.failed)
		return MHD_NO;
	if (x->error.status)
		return ctn_reply_error(x, &x->error);
	return x->route->handle(x);
}

/*
 * Closing a socket with unread bytes resets the connection, and the reset can overtake the
 * answer that refused them. So what the client still sends is thrown away, for a while.
 */
static void linger(struct ctn_exchange *x)
{
	uint64_t end = ctn_now_ns() + 2 * CTN_NSEC_PER_SEC;
	struct pollfd fds[2] = {{.fd = x->sock, .events = POLLIN},
				{.fd = x->server->stop_fd, .events = POLLIN}};
	char scratch[16384];

	for (uint64_t now = ctn_now_ns(); now < end; now = ctn_now_ns()) {
		if (poll(fds, 2, (int)((end - now) / 1000000) + 1) <= 0 || fds[1].revents)
			return;
		if (recv(x->sock, scratch, sizeof(scratch), MSG_DONTWAIT) <= 0)
			return;
	}
}

void ctn_http_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
			enum MHD_RequestTerminationCode why)
{
	struct ctn_exchange *x = *con_cls;

	if (!x)
		return;
	if (x->refused_early && why == MHD_REQUEST_TERMINATED_COMPLETED_OK)
		linger(x);
	ctn_buf_free(&x->body);
	free(x->path);
	free(x);
	*con_cls = NULL;
}
