// SPDX-License-Identifier: MIT
/* A folder in Hugging Face form -> struct ctn_checkpoint. */
#include "checkpoint/hf.h"
#include "checkpoint/container.h"
#include "checkpoint/family.h"
#include "checkpoint/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG (16 * CTN_MIB)

/* ---- config.json ----------------------------------------------------------------------- */

static int read_generation(const char *dir, json_t **root, char **path, struct ctn_err *err)
{
	int rc;

	*root = NULL;
	*path = ctn_path_join(dir, "generation_config.json");
	if (!*path)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
	rc = ctn_json_read(*path, MAX_CONFIG, root, err);
	return rc == -ENOENT ? 0 : rc;
}

static int interpret(struct ctn_checkpoint *ckpt, struct ctn_config *cfg,
		     const struct ctn_config *generation, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;
	struct ctn_arch *arch = &ckpt->arch;
	int rc;

	rc = ctn_family_find(cfg->path, cfg->root, &ckpt->family, err);
	if (rc)
		return rc;
	rc = ckpt->family->read(cfg, arch, &priv->features, err);
	if (rc)
		return rc;
	rc = ctn_config_heads(cfg, arch, err);
	if (rc)
		return rc;
	rc = ctn_config_tokens(cfg, generation, arch, err);
	if (rc)
		return rc;
	if (arch->final_norm)
		priv->features |= CTN_HAS_FINAL_NORM;
	if (arch->embed_dim != arch->hidden)
		priv->features |= CTN_HAS_PROJECTION;
	if (!arch->tied)
		priv->features |= CTN_HAS_HEAD;
	return ctn_config_check_rest(cfg, err);
}

static int read_config(struct ctn_checkpoint *ckpt, struct ctn_err *err)
{
	struct ctn_config cfg = {0}, generation = {0};
	json_t *root = NULL, *gen_root = NULL;
	char *path, *gen_path = NULL;
	int rc;

	path = ctn_path_join(ckpt->dir, "config.json");
	if (!path)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	rc = ctn_json_read(path, MAX_CONFIG, &root, err);
	if (rc)
		goto out;
	rc = read_generation(ckpt->dir, &gen_root, &gen_path, err);
	if (rc)
		goto out;
	rc = ctn_config_init(&cfg, path, root, err);
	if (!rc && gen_root)
		rc = ctn_config_init(&generation, gen_path, gen_root, err);
	if (!rc)
		rc = interpret(ckpt, &cfg, gen_root ? &generation : NULL, err);
	ctn_config_free(&generation);
	ctn_config_free(&cfg);
out:
	json_decref(gen_root);
	json_decref(root);
	free(gen_path);
	free(path);
	return rc;
}

/* ---- files and tensors ----------------------------------------------------------------- */

static int open_file(struct ctn_checkpoint *ckpt, uint32_t i, const char *name, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;
	struct ctn_container *c = &priv->containers[i];
	struct ctn_file *f = &ckpt->files[i];
	struct stat st;
	int rc;

	f->path = ctn_path_join(ckpt->dir, name);
	if (!f->path)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	rc = ctn_container_open_stat(f->path, c, &st, err);
	if (rc)
		return rc;
	f->bytes = c->file_bytes;
	f->device = st.st_dev;
	f->inode = st.st_ino;
	f->mtime_ns = (int64_t)st.st_mtim.tv_sec * (int64_t)CTN_NSEC_PER_SEC + st.st_mtim.tv_nsec;
	f->header = c->header;
	return 0;
}

static int open_files(struct ctn_checkpoint *ckpt, const struct ctn_file_list *list,
		      struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;

	ckpt->files = calloc(list->count, sizeof(*ckpt->files));
	priv->containers = calloc(list->count, sizeof(*priv->containers));
	if (!ckpt->files || !priv->containers)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	for (size_t i = 0; i < list->count; i++) {
		int rc;

		ckpt->file_count++;
		rc = open_file(ckpt, (uint32_t)i, list->names[i], err);
		if (rc)
			return rc;
	}
	return 0;
}

/* With an index, a tensor counts only in the file that the index names for it. */
static bool is_member(const struct ctn_file_list *list, const char *tensor, const char *file)
{
	const char *named;

	if (!list->weight_map)
		return true;
	named = json_string_value(json_object_get(list->weight_map, tensor));
	return named && strcmp(named, file) == 0;
}

static int collect_tensors(struct ctn_checkpoint *ckpt, const struct ctn_file_list *list,
			   struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;
	uint64_t total = 0;

	for (uint32_t i = 0; i < ckpt->file_count; i++)
		total += priv->containers[i].count;
	if (total > UINT32_MAX / 2)
		return ctn_err_set(err, -E2BIG, "%s: too many tensors", ckpt->dir);
	ckpt->tensors = calloc(total + 1, sizeof(*ckpt->tensors));
	if (!ckpt->tensors)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	for (uint32_t i = 0; i < ckpt->file_count; i++) {
		const struct ctn_container *c = &priv->containers[i];

		for (uint32_t k = 0; k < c->count; k++) {
			struct ctn_tensor *t = &ckpt->tensors[ckpt->tensor_count];

			if (!is_member(list, c->tensors[k].name, list->names[i])) {
				ctn_debug("%s: tensor \"%s\" is not in the index, and ignored",
					  ckpt->files[i].path, ctn_quote(c->tensors[k].name).s);
				continue;
			}
			*t = c->tensors[k];
			t->file = i;
			ckpt->tensor_count++;
		}
	}
	return 0;
}

static int by_name(const void *pa, const void *pb, void *arg)
{
	const struct ctn_tensor *tensors = arg;

	return strcmp(tensors[*(const uint32_t *)pa].name, tensors[*(const uint32_t *)pb].name);
}

static int sort_names(struct ctn_checkpoint *ckpt, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;

	priv->by_name = calloc((size_t)ckpt->tensor_count + 1, sizeof(*priv->by_name));
	if (!priv->by_name)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	for (uint32_t i = 0; i < ckpt->tensor_count; i++)
		priv->by_name[i] = i;
	qsort_r(priv->by_name, ckpt->tensor_count, sizeof(*priv->by_name), by_name, ckpt->tensors);
	for (uint32_t i = 1; i < ckpt->tensor_count; i++) {
		const struct ctn_tensor *a = &ckpt->tensors[priv->by_name[i - 1]];
		const struct ctn_tensor *b = &ckpt->tensors[priv->by_name[i]];

		if (strcmp(a->name, b->name) == 0)
			return ctn_err_set(err, -EINVAL,
					   "%s: tensor \"%s\" is in two files, %s and %s",
					   ckpt->dir, ctn_quote(a->name).s,
					   ckpt->files[a->file].path, ckpt->files[b->file].path);
	}
	return 0;
}

const struct ctn_tensor *ctn_checkpoint_tensor(const struct ctn_checkpoint *ckpt, const char *name)
{
	const struct ctn_checkpoint_priv *priv = ctn_priv(ckpt);
	uint32_t low = 0, high = ckpt->tensor_count;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		int cmp = strcmp(name, ckpt->tensors[priv->by_name[mid]].name);

		if (cmp == 0)
			return &ckpt->tensors[priv->by_name[mid]];
		if (cmp < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return NULL;
}

/* Every tensor of the index was found in its file. */
static int check_index(const struct ctn_checkpoint *ckpt, const struct ctn_file_list *list,
		       struct ctn_err *err)
{
	const char *name;
	json_t *file;

	if (!list->weight_map || json_object_size(list->weight_map) == ckpt->tensor_count)
		return 0;
	json_object_foreach(list->weight_map, name, file)
	{
		if (!ctn_checkpoint_tensor(ckpt, name))
			return ctn_err_set(err, -EINVAL,
					   "%s: tensor \"%s\": expected in %s, not found there (a "
					   "stale index)",
					   list->index, ctn_quote(name).s, json_string_value(file));
	}
	CTN_ASSERT(!"an index with fewer tensors than were taken from it");
	return 0;
}

static int read_files(struct ctn_checkpoint *ckpt, struct ctn_err *err)
{
	struct ctn_file_list list;
	int rc;

	rc = ctn_file_list_find(ckpt->dir, &list, err);
	if (!rc)
		rc = open_files(ckpt, &list, err);
	if (!rc)
		rc = collect_tensors(ckpt, &list, err);
	if (!rc)
		rc = sort_names(ckpt, err);
	if (!rc)
		rc = check_index(ckpt, &list, err);
	ctn_file_list_free(&list);
	return rc;
}

/* ---------------------------------------------------------------------------------------- */

static int open_folder(const char *dir, bool with_manifest, struct ctn_checkpoint **out,
		       struct ctn_err *err)
{
	struct ctn_checkpoint *ckpt;
	int rc;

	ckpt = calloc(1, sizeof(*ckpt));
	if (!ckpt)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
	ckpt->dir = strdup(dir);
	ckpt->priv = calloc(1, sizeof(struct ctn_checkpoint_priv));
	if (!ckpt->dir || !ckpt->priv) {
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
		goto fail;
	}
	rc = read_config(ckpt, err);
	if (rc)
		goto fail;
	rc = read_files(ckpt, err);
	if (rc)
		goto fail;
	rc = ctn_family_bind(ckpt, err);
	if (!rc && with_manifest)
		rc = ctn_manifest_read(ckpt, err);
	if (rc)
		goto fail;
	*out = ckpt;
	return 0;
fail:
	ctn_checkpoint_close(ckpt);
	return rc;
}

int ctn_checkpoint_open(const char *dir, struct ctn_checkpoint **ckpt, struct ctn_err *err)
{
	return open_folder(dir, true, ckpt, err);
}

int ctn_checkpoint_open_plain(const char *dir, struct ctn_checkpoint **ckpt, struct ctn_err *err)
{
	return open_folder(dir, false, ckpt, err);
}

void ctn_checkpoint_close(struct ctn_checkpoint *ckpt)
{
	struct ctn_checkpoint_priv *priv;

	if (!ckpt)
		return;
	priv = ckpt->priv;
	for (uint32_t i = 0; i < ckpt->file_count; i++) {
		free(ckpt->files[i].path);
		ctn_container_close(&priv->containers[i]);
	}
	if (priv) {
		free(priv->containers);
		free(priv->by_name);
		free(priv->bindings);
		free(priv->layer_bindings);
		ctn_manifest_free(priv->manifest);
	}
	free(priv);
	free(ckpt->files);
	free(ckpt->tensors);
	free(ckpt->dir);
	free(ckpt);
}
