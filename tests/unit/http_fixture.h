/* SPDX-License-Identifier: MIT */
/* A server over the fake engine, and a client of bare sockets that can misbehave. */
#ifndef CTN_HTTP_FIXTURE_H
#define CTN_HTTP_FIXTURE_H

#include "fake_engine.h"
#include "fake_tokenizer.h"
#include "server/server.h"

#include <jansson.h>

struct fixture {
	struct ctn_engine *engine;
	struct ctn_server *server;
	char socket_path[256];
	int port;
};

/* Fails the test for good when the server does not start. `cfg` may be NULL; its engine and
 * addresses are filled in. */
void fixture_start(struct fixture *f, struct fake_model *models, uint32_t count,
		   const struct ctn_server_config *cfg);
/* Checks that no request and no tokenizer is left. */
void fixture_stop(struct fixture *f);

/* A connection; < 0 with errno. Reads give up after 20 s. */
int http_connect(const struct fixture *f);
int http_connect_unix(const struct fixture *f);
void http_send(int sock, const char *data, size_t len);
void http_sendf(int sock, const char *fmt, ...) CTN_PRINTF(2, 3);
/* POST with the length of the body. */
void http_post(int sock, const char *path, const char *body);

struct reply {
	int status; /* 0: the connection ended without an answer */
	char *headers;
	char *body; /* chunks joined; NUL-terminated */
	size_t len;
	bool complete; /* by length, by last chunk */
	json_t *json;  /* of the body, when it is JSON */
};

/* Reads one answer; the connection may go on. Free with reply_free. */
struct reply http_read(int sock);
void reply_free(struct reply *r);
/* Whether the headers hold this line, without case. */
bool reply_has(const struct reply *r, const char *line);

/* One request on a connection of its own. */
struct reply http_get(const struct fixture *f, const char *path);
struct reply http_complete(const struct fixture *f, const char *body);
struct reply http_control(const struct fixture *f, const char *method, const char *path);

/* "error.param" -> that string of the JSON, "" when it is none. */
const char *json_path_string(const json_t *json, const char *path);
/* "usage.total_tokens", "choices.0.token_ids.2" -> NULL when there is none. */
json_t *json_path(const json_t *json, const char *path);

#endif
