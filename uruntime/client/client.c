// SPDX-License-Identifier: MIT
#include "client/ctn.h"
#include "base/base.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_ANSWER ((size_t)64 * 1024 * 1024)

struct ctn_client {
	CURL *curl;
	char path[CTN_SOCKET_PATH_MAX];
	char error[512];
};

char *ctn_default_socket_path(char out[CTN_SOCKET_PATH_MAX])
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int n = 0;

	if (runtime && runtime[0] == '/')
		n = snprintf(out, CTN_SOCKET_PATH_MAX, "%s/computron.sock", runtime);
	if (n > 0 && n < CTN_SOCKET_PATH_MAX)
		return out;
	if (access("/run/computron", F_OK) == 0)
		snprintf(out, CTN_SOCKET_PATH_MAX, "/run/computron/computron.sock");
	else
		snprintf(out, CTN_SOCKET_PATH_MAX, "/tmp/computron-%u.sock", (unsigned)geteuid());
	return out;
}

static size_t collect(char *data, size_t size, size_t count, void *arg)
{
	struct ctn_buf *body = arg;

	if (body->len + size * count > MAX_ANSWER)
		return 0;
	ctn_buf_append(body, data, size * count);
	return body->failed ? 0 : size * count;
}

struct ctn_client *ctn_client_open(const char *socket_path)
{
	struct ctn_client *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	if (socket_path)
		/* One that is too long does not exist, which the first call will say. */
		snprintf(c->path, sizeof(c->path), "%s", socket_path);
	else
		ctn_default_socket_path(c->path);
	c->curl = curl_easy_init();
	if (!c->curl || curl_easy_setopt(c->curl, CURLOPT_UNIX_SOCKET_PATH, c->path) != CURLE_OK ||
	    curl_easy_setopt(c->curl, CURLOPT_PROXY, "") != CURLE_OK ||
	    curl_easy_setopt(c->curl, CURLOPT_NOSIGNAL, 1L) != CURLE_OK ||
	    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, collect) != CURLE_OK) {
		ctn_client_close(c);
		return NULL;
	}
	return c;
}

void ctn_client_close(struct ctn_client *client)
{
	if (client->curl)
		curl_easy_cleanup(client->curl);
	free(client);
}

const char *ctn_client_error(const struct ctn_client *client)
{
	return client->error;
}

/* The message of an answer in OpenAI's form, else the status alone. */
static void keep_message(struct ctn_client *c, const struct ctn_buf *body, long status)
{
	json_t *json = body->data ? json_loadb(body->data, body->len, 0, NULL) : NULL;
	const char *message = NULL;

	if (json_unpack(json, "{s:{s:s}}", "error", "message", &message))
		message = NULL;
	if (message)
		snprintf(c->error, sizeof(c->error), "%s", message);
	else
		snprintf(c->error, sizeof(c->error), "%s: the answer has status %ld", c->path,
			 status);
	json_decref(json);
}

static int transport_failed(struct ctn_client *c, CURLcode code)
{
	long os = 0;

	curl_easy_getinfo(c->curl, CURLINFO_OS_ERRNO, &os);
	if (code == CURLE_COULDNT_CONNECT) {
		if (!os)
			os = ECONNREFUSED;
		snprintf(c->error, sizeof(c->error), "cannot reach computrond at %s: %s", c->path,
			 strerror((int)os));
		return -(int)os;
	}
	snprintf(c->error, sizeof(c->error), "%s: %s", c->path, curl_easy_strerror(code));
	return code == CURLE_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

static int call(struct ctn_client *c, const char *path, bool post, char **json)
{
	struct ctn_buf body = {0};
	CURLcode code;
	char *url = NULL;
	long status = 0;
	int rc;

	if (json)
		*json = NULL;
	if (asprintf(&url, "http://localhost%s", path) < 0) {
		snprintf(c->error, sizeof(c->error), "out of memory");
		return -ENOMEM;
	}
	code = curl_easy_setopt(c->curl, CURLOPT_URL, url);
	if (!code)
		code = curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &body);
	if (!code && post)
		code = curl_easy_setopt(c->curl, CURLOPT_COPYPOSTFIELDS, "");
	else if (!code)
		code = curl_easy_setopt(c->curl, CURLOPT_HTTPGET, 1L);
	if (!code)
		code = curl_easy_perform(c->curl);
	free(url);
	if (code) {
		rc = transport_failed(c, code);
		goto out;
	}
	curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
	rc = status >= 200 && status < 300 ? 0 : (int)status;
	if (rc)
		keep_message(c, &body, status);
	else if (json) {
		ctn_buf_append(&body, "", 0);
		*json = body.data;
		return *json ? 0 : -ENOMEM;
	}
out:
	ctn_buf_free(&body);
	return rc;
}

int ctn_client_get(struct ctn_client *client, const char *path, char **json)
{
	return call(client, path, false, json);
}

int ctn_client_model(struct ctn_client *client, const char *model, const char *verb, char **json)
{
	char *name = curl_easy_escape(client->curl, model, 0);
	char *path = NULL;
	int rc = -ENOMEM;

	if (json)
		*json = NULL;
	if (!name || asprintf(&path, "/models/%s/%s", name, verb) < 0)
		snprintf(client->error, sizeof(client->error), "out of memory");
	else
		rc = call(client, path, true, json);
	curl_free(name);
	free(path);
	return rc;
}
