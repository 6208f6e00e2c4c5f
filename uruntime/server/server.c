// SPDX-License-Identifier: MIT
/* Start and stop of the two listeners. */
#include "server/server.h"
#include "server/http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define DEFAULT_MAX_BODY        (4 * CTN_MIB)
#define DEFAULT_MAX_CONNECTIONS 512
#define DEFAULT_IDLE_TIMEOUT_S  30
/* Room for the headers of a request, and for what is read or sent at once. */
#define CONNECTION_MEMORY ((size_t)64 * 1024)
/* A handler parses JSON by recursion, to a depth that the parser bounds. */
#define THREAD_STACK ((size_t)2 * 1024 * 1024)

static void log_mhd(void *cls, const char *fmt, va_list ap)
{
	char line[512];
	int n = vsnprintf(line, sizeof(line), fmt, ap);

	if (n > 0 && (size_t)n < sizeof(line) && line[n - 1] == '\n')
		line[n - 1] = '\0';
	ctn_debug("libmicrohttpd: %s", line);
}

static int listener_start(struct ctn_listener *l, struct ctn_server *server, int fd, bool control,
			  uint32_t max_connections, struct ctn_err *err)
{
	unsigned int flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
			     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;

	l->server = server;
	l->control = control;
	l->mhd = MHD_start_daemon(
		flags, 0, NULL, NULL, ctn_http_handle, l, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL,
		MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned int)max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
		server->idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY,
		MHD_OPTION_THREAD_STACK_SIZE, THREAD_STACK, MHD_OPTION_NOTIFY_COMPLETED,
		ctn_http_completed, NULL, MHD_OPTION_END);
	if (l->mhd)
		return 0;
	/* The descriptor is the library's from the call on, also when it fails. */
	return ctn_err_set(err, -EIO, "libmicrohttpd could not start");
}

static int open_tokenizers(struct ctn_server *s, struct ctn_err *err)
{
	s->model_count = ctn_engine_model_count(s->engine);
	s->models = calloc(s->model_count ? s->model_count : 1, sizeof(*s->models));
	if (!s->models)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (uint32_t i = 0; i < s->model_count; i++) {
		struct ctn_text_model *m = &s->models[i];
		struct ctn_model_info info;

		ctn_engine_model(s->engine, i, &info);
		if (info.reason)
			continue;
		if (ctn_tokenizer_open(info.dir, &m->tok, &m->why)) {
			m->tok = NULL;
			ctn_warn("model %s takes and gives token ids alone: %s", info.name,
				 m->why.msg);
		}
	}
	return 0;
}

static void server_free(struct ctn_server *s)
{
	for (uint32_t i = 0; s->models && i < s->model_count; i++) {
		if (s->models[i].tok)
			ctn_tokenizer_close(s->models[i].tok);
	}
	free(s->models);
	free(s->socket_path);
	if (s->stop_fd >= 0)
		close(s->stop_fd);
	free(s);
}

static int bind_control(struct ctn_server *s, const char *path, struct ctn_err *err)
{
	s->socket_path = strdup(path);
	if (!s->socket_path)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	return ctn_listen_unix(path, &s->socket_stat, err);
}

/* Both sockets are bound before the first request can come: a handler reads what is set here. */
static int start_listeners(struct ctn_server *s, const struct ctn_server_config *cfg,
			   struct ctn_err *err)
{
	uint32_t max_connections =
		cfg->max_connections ? cfg->max_connections : DEFAULT_MAX_CONNECTIONS;
	int control = -1, http = -1, rc = 0;

	if (cfg->socket_path) {
		control = bind_control(s, cfg->socket_path, err);
		if (control < 0)
			return control;
	}
	if (cfg->listen) {
		http = ctn_listen_tcp(cfg->listen, s->url, sizeof(s->url), err);
		if (http < 0) {
			if (control >= 0)
				close(control);
			return http;
		}
	}
	if (control >= 0)
		rc = listener_start(&s->control, s, control, true, max_connections, err);
	if (http >= 0 && rc)
		close(http);
	else if (http >= 0)
		rc = listener_start(&s->http, s, http, false, max_connections, err);
	return rc;
}

int ctn_server_start(const struct ctn_server_config *cfg, struct ctn_server **server,
		     struct ctn_err *err)
{
	struct ctn_server *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	s->engine = cfg->engine;
	s->max_body = cfg->max_body ? cfg->max_body : DEFAULT_MAX_BODY;
	s->idle_timeout_s = cfg->idle_timeout_s ? cfg->idle_timeout_s : DEFAULT_IDLE_TIMEOUT_S;
	s->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->stop_fd < 0) {
		rc = ctn_err_set(err, -errno, "eventfd: %s", strerror(errno));
		goto fail;
	}
	rc = open_tokenizers(s, err);
	if (!rc)
		rc = start_listeners(s, cfg, err);
	if (rc)
		goto fail;
	*server = s;
	return 0;
fail:
	ctn_server_stop(s);
	return rc;
}

const char *ctn_server_url(const struct ctn_server *server)
{
	return server->url;
}

void ctn_server_refuse(struct ctn_server *server)
{
	atomic_store(&server->refusing, true);
}

void ctn_server_stop(struct ctn_server *server)
{
	uint64_t one = 1;

	ctn_server_refuse(server);
	if (server->stop_fd >= 0 && write(server->stop_fd, &one, sizeof(one)) < 0)
		ctn_error("eventfd: %s", strerror(errno));
	if (server->http.mhd)
		MHD_stop_daemon(server->http.mhd);
	if (server->control.mhd)
		MHD_stop_daemon(server->control.mhd);
	if (server->socket_path && server->socket_stat.st_ino)
		ctn_unlink_unix(server->socket_path, &server->socket_stat);
	server_free(server);
}
