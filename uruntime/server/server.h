/* SPDX-License-Identifier: MIT */
/*
 * server: OpenAI's HTTP API over TCP, and the control socket. One thread a connection; it
 * tokenises, submits to the engine, detokenises and looks for stop strings.
 */
#ifndef CTN_SERVER_H
#define CTN_SERVER_H

#include "base/base.h"
#include "engine/engine.h"

struct ctn_server;

struct ctn_server_config {
	struct ctn_engine *engine; /* started; outlives the server */
	const char *listen;        /* "ADDR:PORT" or "[V6]:PORT", port 0 picks one; NULL: none */
	const char *socket_path;   /* of the control socket; NULL: none */
	uint64_t max_body;         /* of a request, in bytes; 0: 4 MiB */
	uint32_t max_connections;  /* of each of the two; 0: 512 */
	uint32_t idle_timeout_s;   /* a client that neither sends nor takes a byte; 0: 30 */
};

/*
 * Opens the tokenizers of the engine's served models and starts to answer. Where a model has
 * no usable tokenizer it takes and gives ids alone, which is logged. -EINVAL for an address
 * that is none, -EADDRINUSE when another process answers there (also on the control socket;
 * a socket file that nobody answers is replaced), else what bind(2) and listen(2) say.
 */
int ctn_server_start(const struct ctn_server_config *cfg, struct ctn_server **server,
		     struct ctn_err *err);

/* "http://ADDR:PORT" with the port that was picked; empty without `listen`. */
const char *ctn_server_url(const struct ctn_server *server);

/* From now on new work is answered with 503, as is /health; what runs goes on. Any thread. A
 * clean stop is this, then ctn_engine_stop (it ends requests and control calls, whose clients
 * are told), then ctn_server_stop. */
void ctn_server_refuse(struct ctn_server *server);

/* Closes the sockets, cancels every request, joins all threads and frees the server. A
 * control call that the engine is busy with is waited for. */
void ctn_server_stop(struct ctn_server *server);

#endif
