/* SPDX-License-Identifier: MIT */
/* What the handlers share: the server's state, an exchange, replies. Private to server/. */
#ifndef CTN_SERVER_HTTP_H
#define CTN_SERVER_HTTP_H

#include "base/base.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

#include <jansson.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* One of the two sockets. */
struct ctn_listener {
	struct ctn_server *server;
	struct MHD_Daemon *mhd;
	bool control;
};

struct ctn_text_model {
	struct ctn_tokenizer *tok; /* NULL: ids alone, `why` says why */
	struct ctn_err why;
};

/* Everything but the flag is fixed once the listeners run. */
struct ctn_server {
	struct ctn_engine *engine;
	struct ctn_text_model *models; /* by the engine's number */
	uint32_t model_count;
	uint64_t max_body;
	unsigned int idle_timeout_s;
	atomic_bool refusing;
	int stop_fd; /* eventfd: readable for ever once waits must end */
	struct ctn_listener http;
	struct ctn_listener control;
	char url[128];
	char *socket_path;
	struct stat socket_stat; /* of our socket file, so that no other one is removed */
};

/* An answer that is an error, in OpenAI's form. */
struct ctn_api_error {
	unsigned int status; /* 0: none */
	const char *code;    /* static; may be NULL */
	const char *param;   /* static; may be NULL */
	uint32_t retry_after_s;
	char msg[640];
};

/* 503: the moment has no memory, descriptor or thread for the request; returns -1. */
int ctn_api_fail_no_room(struct ctn_api_error *e, const char *why);

/* Fills *e and returns -1, so that `return ctn_api_fail(...)` reads well. */
int ctn_api_fail(struct ctn_api_error *e, unsigned int status, const char *code, const char *param,
		 const char *fmt, ...) CTN_PRINTF(5, 6);
/* {"error": ...}; NULL when out of memory. */
json_t *ctn_api_error_json(const struct ctn_api_error *e);

struct ctn_route;

/* One request and its answer; belongs to the thread of its connection. */
struct ctn_exchange {
	struct ctn_server *server;
	struct MHD_Connection *conn;
	int sock;
	bool http11;
	const struct ctn_route *route;
	struct ctn_api_error error; /* found before the body was read */
	char *path;
	struct ctn_buf body;
	uint64_t received; /* of the body */
	bool refused_early;
};

enum MHD_Result ctn_reply_json(struct ctn_exchange *x, unsigned int status, json_t *json);
enum MHD_Result ctn_reply_text(struct ctn_exchange *x, unsigned int status, const char *type,
			       struct ctn_buf *text);
enum MHD_Result ctn_reply_error(struct ctn_exchange *x, const struct ctn_api_error *e);

/* While a handler waits for the engine the client owes us nothing: its idle time is off. */
void ctn_exchange_idle_timeout(struct ctn_server *server, struct MHD_Connection *conn, bool on);

/* The callbacks of both daemons; http.c. `cls` is the listener. */
enum MHD_Result ctn_http_handle(void *cls, struct MHD_Connection *conn, const char *url,
				const char *method, const char *version, const char *upload,
				size_t *upload_size, void **con_cls);
void ctn_http_completed(void *cls, struct MHD_Connection *conn, void **con_cls,
			enum MHD_RequestTerminationCode why);

/* Handlers; each is called once the whole body is there. */
enum MHD_Result ctn_handle_completions(struct ctn_exchange *x);
enum MHD_Result ctn_handle_health(struct ctn_exchange *x);
enum MHD_Result ctn_handle_metrics(struct ctn_exchange *x);
enum MHD_Result ctn_handle_models(struct ctn_exchange *x);
enum MHD_Result ctn_handle_model(struct ctn_exchange *x);
enum MHD_Result ctn_handle_status(struct ctn_exchange *x);
enum MHD_Result ctn_handle_control(struct ctn_exchange *x);

/* Listening sockets; listen.c. Return a descriptor or a negative errno. */
int ctn_listen_tcp(const char *spec, char *url, size_t url_size, struct ctn_err *err);
int ctn_listen_unix(const char *path, struct stat *st, struct ctn_err *err);
/* Removes the socket file if it is still the one that we made. */
void ctn_unlink_unix(const char *path, const struct stat *st);

#endif
