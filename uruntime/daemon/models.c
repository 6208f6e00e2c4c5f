// SPDX-License-Identifier: MIT
/* Which checkpoints are served. */
#include "daemon/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A name stands in JSON, in lines of the log and of tables, and in the paths of URLs. */
static int check_name(const char *name, struct ctn_err *err)
{
	char line[NAME_MAX + 1];

	if (strlen(name) < sizeof(line)) {
		strcpy(line, name);
		ctn_one_line(line);
		if (strcmp(line, name) == 0 && strcmp(name, ".") && strcmp(name, ".."))
			return 0;
	}
	return ctn_err_set(err, -EINVAL,
			   "model \"%.300s\": expected a name of up to %d bytes of UTF-8 without "
			   "control characters",
			   name, NAME_MAX);
}

/* A model that cannot be served stays in the list with the reason, and stops no other. */
static int add(struct ctn_daemon *d, const struct ctn_model_spec *spec, struct ctn_err *err)
{
	struct ctn_err why = {0};
	int rc = ctn_engine_add_model(d->engine, spec, &why);

	if (rc == -EEXIST || rc == -ENOMEM) {
		*err = why;
		return rc;
	}
	d->folders++;
	if (rc)
		ctn_warn("model %s cannot be served: %s", spec->name, why.msg);
	else
		d->servable++;
	return 0;
}

/* Also one that lacks its config.json: an unfinished download is listed with the reason. */
static bool is_checkpoint(const char *dir)
{
	static const char *const files[] = {"config.json", "model.safetensors",
					    "model.safetensors.index.json"};
	bool is = false;

	for (size_t i = 0; i < CTN_ARRAY_LEN(files) && !is; i++) {
		char *path = ctn_path_join(dir, files[i]);
		struct stat st;

		is = path && stat(path, &st) == 0;
		free(path);
	}
	return is;
}

/* A folder that was also named by --model is served as that says. */
static bool is_named(const struct ctn_options *o, const char *name)
{
	for (size_t i = 0; i < o->model_count; i++) {
		if (strcmp(o->models[i].name, name) == 0)
			return true;
	}
	return false;
}

static int add_folder(struct ctn_daemon *d, const struct ctn_options *o, const char *name,
		      struct ctn_err *err)
{
	char *dir = ctn_path_join(o->models_dir, name);
	struct ctn_model_spec spec = {.name = name, .dir = dir};
	struct ctn_err why;
	int rc = 0;

	if (!dir)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	if (is_checkpoint(dir) && !is_named(o, name)) {
		if (check_name(name, &why) == 0) {
			rc = add(d, &spec, err);
		} else {
			/* Nothing could name it: it is not even listed. */
			ctn_warn("%s", why.msg);
			d->folders++;
		}
	}
	free(dir);
	return rc;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int not_hidden(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static int add_dir(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	struct dirent **list;
	int count, rc = 0;

	count = scandir(o->models_dir, &list, not_hidden, by_name);
	if (count < 0)
		return ctn_err_set(err, -errno, "models-dir %s: %s", o->models_dir,
				   strerror(errno));
	for (int i = 0; i < count; i++) {
		if (!rc)
			rc = add_folder(d, o, list[i]->d_name, err);
		free(list[i]);
	}
	free(list);
	return rc;
}

int ctn_daemon_add_models(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	int rc = 0;

	for (size_t i = 0; i < o->model_count && !rc; i++) {
		const struct ctn_model_option *m = &o->models[i];
		struct ctn_model_spec spec = {.name = m->name,
					      .dir = m->dir,
					      .tp = m->tp,
					      .pp = m->pp,
					      .devices = m->devices,
					      .device_count = m->device_count,
					      .priority = m->priority};

		rc = check_name(m->name, err);
		if (!rc)
			rc = add(d, &spec, err);
	}
	if (!rc && o->models_dir)
		rc = add_dir(d, o, err);
	if (!rc && d->folders == 0) {
		if (o->models_dir)
			rc = ctn_err_set(err, -ENOENT,
					 "models-dir %s: expected subfolders with a config.json, "
					 "found none",
					 o->models_dir);
		else
			rc = ctn_err_set(err, -ENOENT,
					 "no model: expected --models-dir or --model; see --help");
	}
	return rc;
}
