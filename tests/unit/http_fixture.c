// SPDX-License-Identifier: MIT
#include "http_fixture.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void fixture_start(struct fixture *f, struct fake_model *models, uint32_t count,
		   const struct ctn_server_config *cfg)
{
	struct ctn_server_config c = cfg ? *cfg : (struct ctn_server_config){0};
	struct ctn_err err = {0};

	/* A client that misbehaves writes to closed sockets. */
	signal(SIGPIPE, SIG_IGN);
	ctn_log_set_level(CTN_LOG_ERROR);
	f->engine = fake_engine_new(models, count);
	snprintf(f->socket_path, sizeof(f->socket_path), "%s/control", ctn_test_tmpdir());
	c.engine = f->engine;
	c.listen = "127.0.0.1:0";
	c.socket_path = f->socket_path;
	if (ctn_server_start(&c, &f->server, &err)) {
		printf("# %s\n", err.msg);
		exit(2);
	}
	f->port = atoi(strrchr(ctn_server_url(f->server), ':') + 1);
}

void fixture_stop(struct fixture *f)
{
	ctn_server_stop(f->server);
	CU_ASSERT_TRUE(fake_engine_drained(f->engine));
	CU_ASSERT_EQUAL(fake_tokenizer_open_count(), 0);
	CU_ASSERT_EQUAL(access(f->socket_path, F_OK), -1);
	ctn_engine_free(f->engine);
}

static int connected(int family, const struct sockaddr *addr, socklen_t len)
{
	struct timeval tv = {.tv_sec = 20};
	int sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return -1;
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	if (connect(sock, addr, len)) {
		close(sock);
		return -1;
	}
	return sock;
}

int http_connect(const struct fixture *f)
{
	struct sockaddr_in addr = {.sin_family = AF_INET,
				   .sin_port = htons((uint16_t)f->port),
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

	return connected(AF_INET, (struct sockaddr *)&addr, sizeof(addr));
}

int http_connect_unix(const struct fixture *f)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};

	snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", f->socket_path);
	return connected(AF_UNIX, (struct sockaddr *)&addr, sizeof(addr));
}

void http_send(int sock, const char *data, size_t len)
{
	while (len) {
		ssize_t n = send(sock, data, len, MSG_NOSIGNAL);

		/* A server that refuses may have closed; what it said is read next. */
		if (n <= 0)
			return;
		data += n;
		len -= (size_t)n;
	}
}

void http_sendf(int sock, const char *fmt, ...)
{
	va_list ap;
	char *s;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	if (n < 0)
		abort();
	http_send(sock, s, (size_t)n);
	free(s);
}

void http_post(int sock, const char *path, const char *body)
{
	http_sendf(sock, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", path,
		   strlen(body), body);
}

/* ---- reading an answer ----------------------------------------------------------------- */

static bool read_byte(int sock, char *c)
{
	return recv(sock, c, 1, 0) == 1;
}

static bool read_exactly(int sock, struct ctn_buf *out, size_t len)
{
	char scratch[4096];

	while (len) {
		ssize_t n = recv(sock, scratch, CTN_MIN(len, sizeof(scratch)), 0);

		if (n <= 0)
			return false;
		ctn_buf_append(out, scratch, (size_t)n);
		len -= (size_t)n;
	}
	return true;
}

static bool read_line(int sock, struct ctn_buf *line)
{
	char c;

	while (read_byte(sock, &c)) {
		ctn_buf_append(line, &c, 1);
		if (c == '\n')
			return true;
	}
	return false;
}

static bool read_chunks(int sock, struct ctn_buf *body)
{
	struct ctn_buf line = {0};
	size_t len = 1;
	bool ok = true;

	while (ok && len) {
		ctn_buf_reset(&line);
		ok = read_line(sock, &line);
		len = ok ? strtoul(line.data, NULL, 16) : 0;
		ok = ok && read_exactly(sock, body, len);
		ctn_buf_reset(&line);
		ok = ok && read_line(sock, &line);
	}
	ctn_buf_free(&line);
	return ok;
}

bool reply_has(const struct reply *r, const char *line)
{
	return r->headers && strcasestr(r->headers, line) != NULL;
}

struct reply http_read(int sock)
{
	struct ctn_buf head = {0}, body = {0};
	struct reply r = {0};
	const char *length;
	size_t line = 0;

	do {
		line = head.len;
		if (!read_line(sock, &head)) {
			ctn_buf_free(&head);
			return r;
		}
		/* A blank line ends the headers; of "100 Continue" it is only the first end. */
		if (head.len - line == 2 && strncmp(head.data, "HTTP/1.1 100", 12) == 0) {
			ctn_buf_reset(&head);
			line = 0;
			continue;
		}
	} while (head.len - line != 2);
	r.headers = head.data;
	r.status = atoi(head.data + 9);
	length = strcasestr(head.data, "\r\nContent-Length:");
	if (reply_has(&r, "Transfer-Encoding: chunked"))
		r.complete = read_chunks(sock, &body);
	else if (length)
		r.complete = read_exactly(sock, &body, strtoul(length + 17, NULL, 10));
	ctn_buf_append(&body, "", 0);
	r.body = body.data;
	r.len = body.len;
	r.json = json_loadb(r.body, r.len, JSON_ALLOW_NUL, NULL);
	return r;
}

void reply_free(struct reply *r)
{
	json_decref(r->json);
	free(r->headers);
	free(r->body);
	*r = (struct reply){0};
}

/* ---- whole requests -------------------------------------------------------------------- */

static struct reply finish(int sock)
{
	struct reply r = http_read(sock);

	close(sock);
	return r;
}

struct reply http_get(const struct fixture *f, const char *path)
{
	int sock = http_connect(f);

	http_sendf(sock, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path);
	return finish(sock);
}

struct reply http_complete(const struct fixture *f, const char *body)
{
	int sock = http_connect(f);

	http_post(sock, "/v1/completions", body);
	return finish(sock);
}

struct reply http_control(const struct fixture *f, const char *method, const char *path)
{
	int sock = http_connect_unix(f);

	http_sendf(sock, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", method, path);
	return finish(sock);
}

json_t *json_path(const json_t *json, const char *path)
{
	char key[64];

	while (json && *path) {
		size_t len = strcspn(path, ".");

		snprintf(key, sizeof(key), "%.*s", (int)len, path);
		json = json_is_array(json) ? json_array_get(json, (size_t)atoi(key))
					   : json_object_get(json, key);
		path += len + (path[len] == '.');
	}
	return (json_t *)json;
}

const char *json_path_string(const json_t *json, const char *path)
{
	const char *s = json_string_value(json_path(json, path));

	return s ? s : "";
}
