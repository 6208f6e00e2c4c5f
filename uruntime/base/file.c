// SPDX-License-Identifier: MIT
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_MAX 65536u

int ctn_open_regular(const char *path, uint64_t *size, struct ctn_err *err)
{
	char target[PATH_MAX];
	struct stat st;
	ssize_t n;
	int fd, code;

	/* O_NONBLOCK: opening a FIFO must not wait for a writer; it means nothing for a file. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		code = -errno;
		n = code == -ENOENT ? readlink(path, target, sizeof(target) - 1) : -1;
		if (n >= 0) {
			target[n] = '\0';
			return ctn_err_set(err, code, "%s: dangling link to %s", path, target);
		}
		return ctn_err_set(err, code, "%s: %s", path, strerror(-code));
	}
	if (fstat(fd, &st) < 0) {
		code = -errno;
		close(fd);
		return ctn_err_set(err, code, "%s: %s", path, strerror(-code));
	}
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return ctn_err_set(err, -EINVAL, "%s: expected a regular file", path);
	}
	if (size)
		*size = (uint64_t)st.st_size;
	return fd;
}

int ctn_pread_all(int fd, void *data, size_t len, uint64_t offset)
{
	char *p = data;

	while (len) {
		ssize_t n = pread(fd, p, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		p += n;
		offset += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int ctn_read_file(const char *path, size_t max, char **data, size_t *len, struct ctn_err *err)
{
	uint64_t size;
	char *buf;
	int fd, rc;

	fd = ctn_open_regular(path, &size, err);
	if (fd < 0)
		return fd;
	if (size > max) {
		rc = ctn_err_set(err, -EFBIG, "%s: expected at most %zu bytes, found %llu", path,
				 max, (unsigned long long)size);
		goto out_close;
	}
	buf = malloc((size_t)size + 1);
	if (!buf) {
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", path);
		goto out_close;
	}
	rc = ctn_pread_all(fd, buf, (size_t)size, 0);
	if (rc) {
		free(buf);
		ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
		goto out_close;
	}
	buf[size] = '\0';
	*data = buf;
	*len = (size_t)size;
out_close:
	close(fd);
	return rc;
}

int ctn_read_text(const char *path, char **text)
{
	FILE *file;
	size_t n;
	int rc = 0;

	*text = malloc(TEXT_MAX);
	if (!*text)
		return -ENOMEM;
	file = fopen(path, "re");
	if (!file) {
		rc = -errno;
		goto out;
	}
	n = fread(*text, 1, TEXT_MAX - 1, file);
	(*text)[n] = '\0';
	if (ferror(file))
		rc = -EIO;
	fclose(file);
out:
	if (rc)
		free(*text);
	return rc;
}

char *ctn_path_join(const char *dir, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}
