// SPDX-License-Identifier: MIT
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unistr.h>

static char folder[PATH_MAX];

void fuzz_failed(const char *expr, const char *file, int line)
{
	fprintf(stderr, "%s:%d: not so: %s\n", file, line, expr);
	abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	ctn_log_set_level(CTN_LOG_ERROR);
	fuzz_one(data, size);
	return 0;
}

void fuzz_check_err(int rc, const struct ctn_err *err)
{
	if (!rc)
		return;
	FUZZ_CHECK(rc == -EINVAL || rc == -ENOTSUP || rc == -ENOENT || rc == -ERANGE ||
		   rc == -ENAMETOOLONG || rc == -ESTALE || rc == -ENOMEM);
	FUZZ_CHECK(err->code == rc);
	FUZZ_CHECK(memchr(err->msg, '\0', sizeof(err->msg)) && err->msg[0]);
	FUZZ_CHECK(!u8_check((const uint8_t *)err->msg, strlen(err->msg)));
	for (const char *c = err->msg; *c; c++)
		FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7f);
}

static void die(const char *what)
{
	perror(what);
	_exit(2);
}

static void remove_folder(void)
{
	fuzz_clear();
	rmdir(folder);
}

const char *fuzz_dir(void)
{
	const char *tmp = getenv("TMPDIR");

	if (folder[0])
		return folder;
	snprintf(folder, sizeof(folder), "%s/fuzz-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(folder))
		die(folder);
	atexit(remove_folder);
	return folder;
}

static const char *path_of(const char *name)
{
	static char path[PATH_MAX + NAME_MAX + 2];

	snprintf(path, sizeof(path), "%s/%s", fuzz_dir(), name);
	return path;
}

void fuzz_put(const char *name, const void *data, size_t size)
{
	const char *path = path_of(name);
	int fd;

	unlink(path); /* it may be a link */
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd))
		die(path);
}

void fuzz_link(const char *name, const char *to)
{
	const char *path = path_of(name);

	if (symlink(to, path) && errno != EEXIST)
		die(path);
}

void fuzz_clear(void)
{
	DIR *d = opendir(fuzz_dir());
	const struct dirent *e;

	if (!d)
		die(folder);
	while ((e = readdir(d))) {
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlink(path_of(e->d_name));
	}
	closedir(d);
}

bool fuzz_field(const uint8_t **data, size_t *size, const char **field, size_t *len)
{
	const uint8_t *end;

	if (!*data || !*size)
		return false;
	end = memchr(*data, '\0', *size);
	*field = (const char *)*data;
	*len = end ? (size_t)(end - *data) : *size;
	*size -= end ? *len + 1 : *len;
	*data += end ? *len + 1 : *len;
	return true;
}
