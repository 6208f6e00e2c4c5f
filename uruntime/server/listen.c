// SPDX-License-Identifier: MIT
/* Listening sockets: TCP by name and port, and the UNIX socket with its file. */
#include "server/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 512

/* "ADDR:PORT" or "[V6]:PORT" -> its two halves. */
static int split_address(const char *spec, char *host, size_t host_size, const char **port,
			 struct ctn_err *err)
{
	const char *colon = strrchr(spec, ':'), *first = spec, *last = colon;
	uint64_t number;
	size_t len;

	if (colon && spec[0] == '[') {
		first = spec + 1;
		last = colon - 1;
		if (last < first || *last != ']')
			colon = NULL;
	} else if (colon && memchr(spec, ':', (size_t)(colon - spec))) {
		colon = NULL;
	}
	len = colon ? (size_t)(last - first) : 0;
	if (!colon || len == 0 || len >= host_size)
		return ctn_err_set(err, -EINVAL,
				   "listen address \"%s\": expected ADDR:PORT or [V6]:PORT", spec);
	memcpy(host, first, len);
	host[len] = '\0';
	*port = colon + 1;
	if (ctn_parse_u64("port", *port, 0, 65535, &number, err))
		return ctn_err_prefix(err, "listen address \"%s\"", spec);
	return 0;
}

static int bind_one(const struct addrinfo *ai)
{
	int one = 1, fd, rc;

	fd = socket(ai->ai_family, ai->ai_socktype | SOCK_CLOEXEC, ai->ai_protocol);
	if (fd < 0)
		return -errno;
	/* A restart must not wait for the connections of the last run to leave TIME_WAIT. */
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) ||
	    bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, BACKLOG)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

static int write_url(int fd, char *url, size_t url_size)
{
	struct sockaddr_storage addr;
	socklen_t len = sizeof(addr);
	char host[NI_MAXHOST], port[NI_MAXSERV];

	if (getsockname(fd, (struct sockaddr *)&addr, &len))
		return -errno;
	if (getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		return -EINVAL;
	snprintf(url, url_size, addr.ss_family == AF_INET6 ? "http://[%s]:%s" : "http://%s:%s",
		 host, port);
	return 0;
}

int ctn_listen_tcp(const char *spec, char *url, size_t url_size, struct ctn_err *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
	char host[256];
	const char *port = NULL;
	int fd = -EADDRNOTAVAIL, rc;

	rc = split_address(spec, host, sizeof(host), &port, err);
	if (rc)
		return rc;
	rc = getaddrinfo(host, port, &hints, &list);
	if (rc)
		return ctn_err_set(err, -EINVAL, "listen address \"%s\": %s", spec,
				   gai_strerror(rc));
	for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
		fd = bind_one(ai);
	freeaddrinfo(list);
	if (fd < 0)
		return ctn_err_set(err, fd, "cannot listen on %s: %s", spec, strerror(-fd));
	rc = write_url(fd, url, url_size);
	if (rc) {
		close(fd);
		return ctn_err_set(err, rc, "cannot listen on %s: %s", spec, strerror(-rc));
	}
	return fd;
}

/* A socket file that nobody answers is left over from a process that died: it goes. */
static int clear_stale(const struct sockaddr_un *addr, struct ctn_err *err)
{
	struct stat st;
	int fd, rc;

	if (lstat(addr->sun_path, &st))
		return errno == ENOENT ? 0
				       : ctn_err_set(err, -errno, "control socket %s: %s",
						     addr->sun_path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return ctn_err_set(err, -EEXIST, "control socket %s: a file that is no socket",
				   addr->sun_path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ctn_err_set(err, -errno, "socket: %s", strerror(errno));
	rc = connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) ? -errno : 0;
	close(fd);
	if (rc == -ECONNREFUSED && (unlink(addr->sun_path) == 0 || errno == ENOENT))
		return 0;
	if (rc == -ENOENT)
		return 0;
	if (rc == 0 || rc == -EAGAIN)
		return ctn_err_set(err, -EADDRINUSE,
				   "control socket %s: another process answers there",
				   addr->sun_path);
	return ctn_err_set(err, rc, "control socket %s: %s", addr->sun_path, strerror(-rc));
}

int ctn_listen_unix(const char *path, struct stat *st, struct ctn_err *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	int fd, rc;

	if (!path[0] || strlen(path) >= sizeof(addr.sun_path))
		return ctn_err_set(err, -ENAMETOOLONG,
				   "control socket \"%s\": expected a path of 1 to %zu bytes", path,
				   sizeof(addr.sun_path) - 1);
	memcpy(addr.sun_path, path, strlen(path) + 1);
	rc = clear_stale(&addr, err);
	if (rc)
		return rc;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return ctn_err_set(err, -errno, "socket: %s", strerror(errno));
	/* The mode of the socket becomes that of the file, so that it is never open to others,
	 * not even before the chmod that undoes the umask. */
	if (fchmod(fd, 0660) || bind(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		rc = ctn_err_set(err, -errno, "control socket %s: %s", path, strerror(errno));
		close(fd);
		return rc;
	}
	if (chmod(path, 0660) || lstat(path, st) || listen(fd, BACKLOG)) {
		rc = ctn_err_set(err, -errno, "control socket %s: %s", path, strerror(errno));
		close(fd);
		unlink(path);
		return rc;
	}
	return fd;
}

void ctn_unlink_unix(const char *path, const struct stat *st)
{
	struct stat now;

	if (lstat(path, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino)
		unlink(path);
}
