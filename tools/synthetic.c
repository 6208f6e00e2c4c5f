// SPDX-License-Identifier: MIT
/*
 * Synthetic checkpoints: the option, the cache and the writing.
 *
 * A checkpoint is written into NAME.partial, under a lock on that folder, synced, and renamed
 * to NAME: a folder NAME is complete. A writer that died leaves NAME.partial unlocked, and the
 * next one writes it anew.
 */
#include "synthetic.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bumped when what is written for the same option changes. */
#define FORMAT 1
#define CHUNK  CTN_MIB

/* ---- the option ------------------------------------------------------------------------- */

int ctn_synthetic_parse(const char *value, struct ctn_synthetic *s, struct ctn_err *err)
{
	static const char *const known[] = {"", "bytes", "seed", NULL};
	struct ctn_opts opts;
	const char *bytes, *seed;
	int rc;

	*s = (struct ctn_synthetic){0};
	rc = ctn_opts_parse(value, &opts, err);
	if (rc)
		return rc;
	rc = ctn_opts_check(&opts, "options", known, err);
	if (rc)
		goto out;
	rc = ctn_synthetic_family(ctn_opts_get(&opts, ""), &s->family, err);
	if (rc)
		goto out;
	bytes = ctn_opts_get(&opts, "bytes");
	seed = ctn_opts_get(&opts, "seed");
	if (!bytes)
		rc = ctn_err_set(err, -EINVAL, "expected bytes=SIZE");
	else
		rc = ctn_parse_size(bytes, &s->bytes, err);
	if (!rc && seed)
		rc = ctn_parse_u64("seed", seed, 0, UINT64_MAX, &s->seed, err);
out:
	ctn_opts_free(&opts);
	return rc;
}

/* ---- writing ---------------------------------------------------------------------------- */

static int write_all(int fd, const void *data, size_t bytes)
{
	const uint8_t *p = data;

	while (bytes) {
		ssize_t n = write(fd, p, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* SplitMix64, four F16 values a step: any sign and fraction, sizes from 2^-6 to 2^-5. */
static void fill(uint64_t *out, size_t n, uint64_t *state)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t z = *state += 0x9e3779b97f4a7c15u;

		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
		z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
		z ^= z >> 31;
		out[i] = (z & 0x83ff83ff83ff83ffu) | 0x2400240024002400u;
	}
}

static int write_data(int fd, uint64_t bytes, uint64_t seed)
{
	uint64_t *buf = malloc(CHUNK), state = seed;
	int rc = buf ? 0 : -ENOMEM;

	while (bytes && rc == 0) {
		size_t n = (size_t)CTN_MIN(bytes, (uint64_t)CHUNK);

		fill(buf, CHUNK / sizeof(*buf), &state);
		rc = write_all(fd, buf, n);
		bytes -= n;
	}
	free(buf);
	return rc;
}

/* One file of the folder, synced: `text`, then `bytes` bytes of data. */
static int write_file(int dir, const char *name, const struct ctn_buf *text, uint64_t bytes,
		      uint64_t seed)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int rc;

	if (fd < 0)
		return -errno;
	/* A full disk shows before gigabytes are written, where the file system can tell. */
	rc = fallocate(fd, 0, 0, (off_t)(text->len + bytes)) < 0 && errno == ENOSPC ? -ENOSPC : 0;
	if (rc == 0)
		rc = write_all(fd, text->data, text->len);
	if (rc == 0)
		rc = write_data(fd, bytes, seed);
	if (rc == 0 && fsync(fd) < 0)
		rc = -errno;
	if (close(fd) < 0 && rc == 0)
		rc = -errno;
	return rc;
}

static int sync_folder(int dir)
{
	return fsync(dir) < 0 ? -errno : 0;
}

static int write_folder(int dir, const char *path, const struct ctn_synthetic *s,
			struct ctn_err *err)
{
	struct ctn_synthetic_text text;
	char size[32];
	int rc;

	rc = ctn_synthetic_describe(s, &text, err);
	if (rc)
		return rc;
	ctn_info("writing %s of %s to %s", ctn_format_size(text.data_bytes, size), s->family, path);
	rc = write_file(dir, "config.json", &text.config, 0, 0);
	if (rc == 0)
		rc = write_file(dir, "model.safetensors", &text.head, text.data_bytes, s->seed);
	if (rc == 0)
		rc = sync_folder(dir);
	if (rc == -ENOSPC || rc == -EDQUOT)
		ctn_err_set(err, rc, "%s: the disk has no room for %" PRIu64 " bytes: %s", path,
			    text.data_bytes, strerror(-rc));
	else if (rc)
		ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
	ctn_synthetic_text_free(&text);
	return rc;
}

/* ---- the cache -------------------------------------------------------------------------- */

/* A folder of our own, made if need be. */
static int own_folder(const char *path, struct ctn_err *err)
{
	struct stat st;

	if ((mkdir(path, 0700) < 0 && errno != EEXIST) || stat(path, &st) < 0) {
		int rc = -errno;

		return ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
	}
	/* In a folder that others write to, a name may be taken. */
	if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return ctn_err_set(err, -EPERM, "%s: expected a folder of our own", path);
	if (access(path, W_OK | X_OK) < 0)
		return ctn_err_set(err, -EACCES, "%s: %s", path, strerror(EACCES));
	return 0;
}

static int folder_in(const char *base, const char *name, char **root, struct ctn_err *err)
{
	int rc;

	*root = ctn_path_join(base, name);
	if (!*root)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	rc = own_folder(*root, err);
	if (rc) {
		free(*root);
		*root = NULL;
	}
	return rc;
}

/* $XDG_CACHE_HOME when it is set; else ~/.cache, or where that cannot be, $TMPDIR or /tmp. */
static int cache_root(char **root, struct ctn_err *err)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	const char *tmp = getenv("TMPDIR");
	char name[32];

	if (xdg && *xdg) {
		mkdir(xdg, 0700); /* what is wrong with it shows in the folder below */
		return folder_in(xdg, "computron", root, err);
	}
	if (home && *home) {
		char *cache = ctn_path_join(home, ".cache");
		int rc = -ENOMEM;

		if (cache) {
			mkdir(cache, 0700);
			rc = folder_in(cache, "computron", root, err);
		}
		free(cache);
		if (rc == 0)
			return 0;
	}
	snprintf(name, sizeof(name), "computron-%u", (unsigned int)geteuid());
	return folder_in(tmp && *tmp ? tmp : "/tmp", name, root, err);
}

static bool is_folder(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Opens the folder and locks it; made anew when another writer renamed or removed it while we
 * waited. The lock goes with the descriptor. */
static int lock_folder(const char *path)
{
	for (;;) {
		struct stat ours, there;
		int fd;

		if (mkdir(path, 0755) < 0 && errno != EEXIST)
			return -errno;
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 && errno == ENOENT)
			continue;
		if (fd < 0)
			return -errno;
		while (flock(fd, LOCK_EX) < 0) {
			int rc = -errno;

			if (rc == -EINTR)
				continue;
			close(fd);
			return rc;
		}
		if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 &&
		    ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)
			return fd;
		close(fd);
	}
}

static void remove_partial(int dir, const char *partial)
{
	unlinkat(dir, "config.json", 0);
	unlinkat(dir, "model.safetensors", 0);
	rmdir(partial);
}

static int sync_path(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	rc = sync_folder(fd);
	close(fd);
	return rc;
}

static int make(const struct ctn_synthetic *s, const char *root, const char *path,
		const char *partial, struct ctn_err *err)
{
	int dir = lock_folder(partial), rc = 0;

	if (dir < 0)
		return ctn_err_set(err, dir, "%s: %s", partial, strerror(-dir));
	if (is_folder(path)) {
		remove_partial(dir, partial); /* the writer that we waited for has done it */
		goto out;
	}
	rc = write_folder(dir, partial, s, err);
	if (rc == 0 && rename(partial, path) < 0)
		rc = ctn_err_set(err, -errno, "%s: %s", path, strerror(errno));
	if (rc)
		remove_partial(dir, partial);
	else if ((rc = sync_path(root)))
		ctn_err_set(err, rc, "%s: %s", root, strerror(-rc));
out:
	close(dir);
	return rc;
}

int ctn_synthetic_get(const struct ctn_synthetic *s, char **dir, struct ctn_err *err)
{
	char *root, *path, *partial, name[128];
	int rc;

	*dir = NULL;
	rc = cache_root(&root, err);
	if (rc) {
		ctn_err_prefix(err, "cache of synthetic checkpoints");
		return rc;
	}
	snprintf(name, sizeof(name), "%s-%" PRIu64 "-seed%" PRIu64 "-v%d.partial", s->family,
		 s->bytes, s->seed, FORMAT);
	partial = ctn_path_join(root, name);
	name[strlen(name) - strlen(".partial")] = '\0';
	path = ctn_path_join(root, name);
	if (!partial || !path) {
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto out;
	}
	rc = is_folder(path) ? 0 : make(s, root, path, partial, err);
	if (rc == 0) {
		*dir = path;
		path = NULL;
	}
out:
	free(partial);
	free(path);
	free(root);
	return rc;
}
