// SPDX-License-Identifier: MIT
#include "checkpoint/hf.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define MAX_INDEX   (256 * CTN_MIB)
#define MAX_SET     100000u

static int no_memory(const char *dir, struct ctn_err *err)
{
	return ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
}

static int add_name(struct ctn_file_list *list, const char *name)
{
	/* Room for the next power of two. */
	if ((list->count & (list->count - 1)) == 0) {
		const size_t room = list->count ? 2 * list->count : 1;
		char **names = reallocarray(list->names, room, sizeof(*names));

		if (!names)
			return -ENOMEM;
		list->names = names;
	}
	list->names[list->count] = strdup(name);
	if (!list->names[list->count])
		return -ENOMEM;
	list->count++;
	return 0;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Appends the name, and where it points when it is a dangling link. */
static void describe_missing(struct ctn_buf *buf, const char *path, const char *name)
{
	char target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof(target));

	ctn_buf_printf(buf, "%s%s", buf->len ? ", " : "", ctn_quote(name).s);
	if (n > 0)
		ctn_buf_printf(buf, " (dangling link to %s)", ctn_quote_n(target, (size_t)n).s);
}

/* Every file is there, or all that are not are named in one message. */
static int check_present(const char *dir, const struct ctn_file_list *list, const char *hint,
			 struct ctn_err *err)
{
	struct ctn_buf missing = {0};
	size_t count = 0;
	int rc = 0;

	for (size_t i = 0; i < list->count; i++) {
		char *path = ctn_path_join(dir, list->names[i]);
		struct stat st;

		if (!path) {
			rc = no_memory(dir, err);
			goto out;
		}
		if (stat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
			/* The message has no room for more. */
			if (missing.len < sizeof(err->msg))
				describe_missing(&missing, path, list->names[i]);
			count++;
		}
		free(path);
	}
	if (count)
		rc = ctn_err_set(err, -ENOENT, "%s: %zu of %zu files are missing (%s): %s", dir,
				 count, list->count, hint, missing.failed ? "?" : missing.data);
out:
	ctn_buf_free(&missing);
	return rc;
}

/* ---- an index -------------------------------------------------------------------------- */

static int add_index_files(const char *dir, struct ctn_file_list *list, struct ctn_err *err)
{
	json_t *files = json_object(); /* a set: the map names each file many times */
	const char *tensor, *name;
	json_t *v;
	int rc = 0;

	if (!files)
		return no_memory(dir, err);
	json_object_foreach(list->weight_map, tensor, v)
	{
		const char *file = json_string_value(v);

		if (!file || !*file || strchr(file, '/')) {
			rc = ctn_err_set(err, -EINVAL,
					 "%s: weight_map: \"%s\": expected a file name, found %s",
					 list->index, ctn_quote(tensor).s, ctn_quote_json(v).s);
			goto out;
		}
		if (!json_object_get(files, file) && json_object_set(files, file, v)) {
			rc = no_memory(dir, err);
			goto out;
		}
	}
	json_object_foreach(files, name, v)
	{
		if (add_name(list, name)) {
			rc = no_memory(dir, err);
			goto out;
		}
	}
out:
	json_decref(files);
	return rc;
}

static int read_index(const char *dir, struct ctn_file_list *list, struct ctn_err *err)
{
	json_t *root, *map;
	int rc;

	rc = ctn_json_read(list->index, MAX_INDEX, &root, err);
	if (rc)
		return rc;
	map = json_object_get(root, "weight_map");
	if (!json_is_object(map) || !json_object_size(map)) {
		json_decref(root);
		return ctn_err_set(err, -EINVAL, "%s: expected a weight_map with tensors",
				   list->index);
	}
	list->weight_map = json_incref(map);
	json_decref(root);
	rc = add_index_files(dir, list, err);
	if (rc)
		return rc;
	qsort(list->names, list->count, sizeof(*list->names), by_text);
	return check_present(dir, list, "a stale index or an unfinished download", err);
}

/* ---- a numbered set -------------------------------------------------------------------- */

/* "model-00001-of-00003.safetensors" -> 1, 3. */
static bool parse_member(const char *name, unsigned int *i, unsigned int *n)
{
	int end = 0;

	return sscanf(name, "model-%5u-of-%5u.safetensors%n", i, n, &end) == 2 && end > 0 &&
	       name[end] == '\0' && *i >= 1 && *i <= *n && *n < MAX_SET;
}

/* Finds the one size of set in the folder; 0 when there is none. */
static int find_set(const char *dir, unsigned int *size, struct ctn_err *err)
{
	const struct dirent *e;
	DIR *d = opendir(dir);
	int rc = 0;

	*size = 0;
	if (!d) {
		rc = -errno;
		return ctn_err_set(err, rc, "%s: %s", dir, strerror(-rc));
	}
	while (!rc && (e = readdir(d))) {
		unsigned int i, n;

		if (!parse_member(e->d_name, &i, &n))
			continue;
		if (*size && *size != n)
			rc = ctn_err_set(err, -EINVAL,
					 "%s: expected one set of files, found sets of %u and of "
					 "%u and no index",
					 dir, *size, n);
		*size = n;
	}
	closedir(d);
	return rc;
}

static int find_numbered(const char *dir, struct ctn_file_list *list, struct ctn_err *err)
{
	unsigned int n;
	int rc;

	rc = find_set(dir, &n, err);
	if (rc)
		return rc;
	if (!n)
		return ctn_err_set(err, -ENOENT,
				   "%s: expected %s, %s or model-00001-of-0000N.safetensors, found "
				   "none of them",
				   dir, SINGLE_NAME, INDEX_NAME);
	for (unsigned int i = 1; i <= n; i++) {
		char name[64];

		snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", i, n);
		if (add_name(list, name))
			return no_memory(dir, err);
	}
	return check_present(dir, list, "no index, and the set is incomplete", err);
}

/* ---------------------------------------------------------------------------------------- */

/* A dangling link is there: reading it will say where it points. */
static bool exists(const char *path)
{
	struct stat st;

	return lstat(path, &st) == 0;
}

int ctn_file_list_find(const char *dir, struct ctn_file_list *list, struct ctn_err *err)
{
	char *single;
	bool found;

	*list = (struct ctn_file_list){0};
	list->index = ctn_path_join(dir, INDEX_NAME);
	single = ctn_path_join(dir, SINGLE_NAME);
	if (!list->index || !single) {
		free(single);
		return no_memory(dir, err);
	}
	found = exists(single);
	free(single);
	if (exists(list->index))
		return read_index(dir, list, err);
	if (!found)
		return find_numbered(dir, list, err);
	return add_name(list, SINGLE_NAME) ? no_memory(dir, err) : 0;
}

void ctn_file_list_free(struct ctn_file_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->names[i]);
	free(list->names);
	free(list->index);
	json_decref(list->weight_map);
	*list = (struct ctn_file_list){0};
}
