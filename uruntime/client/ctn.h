/* SPDX-License-Identifier: MIT */
/*
 * libcomputron: talk to a computrond over its control socket. Stands by itself: a program
 * includes this header and links libcomputron (which needs libcurl and jansson).
 *
 *	struct ctn_client *client = ctn_client_open(NULL);
 *	char *json;
 *
 *	if (ctn_client_get(client, "/status", &json) == 0)
 *		puts(json);
 */
#ifndef CTN_H
#define CTN_H

#ifdef __cplusplus
extern "C" {
#endif

#define CTN_VERSION "0.1.0"

/* A connection that is kept open between calls. One thread at a time. */
struct ctn_client;

/* Room for a path of a UNIX socket with its NUL. */
#define CTN_SOCKET_PATH_MAX 108

/*
 * Where daemon and clients meet unless told otherwise: $XDG_RUNTIME_DIR/computron.sock, else
 * /run/computron/computron.sock where that folder exists, else /tmp/computron-UID.sock.
 * Returns out.
 */
char *ctn_default_socket_path(char out[CTN_SOCKET_PATH_MAX]);

/* Does not connect yet. `socket_path` NULL: the default. NULL when out of memory. */
struct ctn_client *ctn_client_open(const char *socket_path);
void ctn_client_close(struct ctn_client *client);

/*
 * GET PATH. 0: *json (malloc'ed, the caller frees it; may be NULL when it is not wanted) is
 * the answer. A positive value is the HTTP status of an answer that is an error, a negative
 * one an errno: then ctn_client_error() says what happened and *json is NULL. Waits as long
 * as the daemon takes.
 */
int ctn_client_get(struct ctn_client *client, const char *path, char **json);
/* Likewise POST /models/MODEL/VERB; a name may hold any character. */
int ctn_client_model(struct ctn_client *client, const char *model, const char *verb, char **json);

/* One line about the last call that failed. Lives until the next call. */
const char *ctn_client_error(const struct ctn_client *client);

#ifdef __cplusplus
}
#endif

#endif
