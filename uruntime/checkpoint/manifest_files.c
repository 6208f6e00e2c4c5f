// SPDX-License-Identifier: MIT
/* What a manifest covers of a folder beside the tensors, and writing it. */
#include "checkpoint/json.h"
#include "checkpoint/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAX_TEXT (256 * CTN_MIB)

/* ---- files and texts ------------------------------------------------------------------- */

const char *ctn_manifest_text_name(uint32_t i)
{
	static const char *const names[] = {
		"config.json",    "generation_config.json", "model.safetensors.index.json",
		"tokenizer.json", "tokenizer_config.json",
	};

	return i < CTN_ARRAY_LEN(names) ? names[i] : NULL;
}

int ctn_manifest_text(const struct ctn_checkpoint *ckpt, const char *name, uint64_t *bytes,
		      struct ctn_digest *digest, struct ctn_err *err)
{
	char *path = ctn_path_join(ckpt->dir, name), *data;
	XXH128_canonical_t canonical;
	size_t len;
	int rc;

	if (!path)
		return ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
	rc = ctn_read_file(path, MAX_TEXT, &data, &len, err);
	free(path);
	if (rc)
		return rc;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, len));
	free(data);
	memcpy(digest->bytes, canonical.digest, sizeof(digest->bytes));
	*bytes = len;
	return 0;
}

const char *ctn_manifest_file_name(const struct ctn_checkpoint *ckpt, uint32_t file)
{
	return ckpt->files[file].path + strlen(ckpt->dir) + 1;
}

/* ---- as JSON --------------------------------------------------------------------------- */

/* NULL when out of memory, here and below. */
static json_t *describe(uint64_t bytes, const char *key, const struct ctn_digest *digest)
{
	char text[CTN_DIGEST_TEXT];

	return json_pack("{s:I, s:s}", "bytes", (json_int_t)bytes, key,
			 ctn_digest_format(digest, text));
}

static json_t *describe_files(const struct ctn_checkpoint *ckpt)
{
	json_t *files = json_object();

	for (uint32_t i = 0; files && i < ckpt->file_count; i++) {
		const struct ctn_file *f = &ckpt->files[i];

		json_t *v = describe(f->bytes, "header", &f->header);

		/* Each takes what it is given, also when it fails, and NULL is a failure. */
		if (json_object_set_new(files, ctn_manifest_file_name(ckpt, i), v) ||
		    json_object_set_new(v, "mtime_ns", json_integer(f->mtime_ns))) {
			json_decref(files);
			return NULL;
		}
	}
	return files;
}

static json_t *describe_part(const struct ctn_checkpoint *ckpt, const struct ctn_part *part)
{
	json_t *v = describe(part->tensor_bytes, "digest", &part->digest);
	json_t *tensors = json_object();
	char text[CTN_DIGEST_TEXT];
	int rc = v && tensors ? 0 : -1;

	for (uint32_t i = 0; rc == 0 && i < part->tensor_count; i++)
		rc = json_object_set_new(
			tensors, ckpt->tensors[part->tensors[i].tensor].name,
			json_string(ctn_digest_format(&part->tensors[i].digest, text)));
	if (rc == 0)
		rc = json_object_set(v, "tensors", tensors);
	json_decref(tensors);
	if (rc == 0)
		return v;
	json_decref(v);
	return NULL;
}

static json_t *describe_parts(const struct ctn_plan *plan)
{
	json_t *parts = json_array();

	for (uint32_t i = 0; parts && i < plan->part_count; i++) {
		CTN_ASSERT(plan->parts[i].has_digest);
		if (json_array_append_new(parts, describe_part(plan->ckpt, &plan->parts[i]))) {
			json_decref(parts);
			return NULL;
		}
	}
	return parts;
}

static int describe_texts(const struct ctn_checkpoint *ckpt, json_t **out, struct ctn_err *err)
{
	json_t *texts = json_object();
	const char *name;
	int rc = texts ? 0 : ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);

	for (uint32_t i = 0; rc == 0 && (name = ctn_manifest_text_name(i)); i++) {
		struct ctn_digest digest;
		uint64_t bytes;

		rc = ctn_manifest_text(ckpt, name, &bytes, &digest, err);
		if (rc == 0 && json_object_set_new(texts, name, describe(bytes, "digest", &digest)))
			rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
		if (rc == -ENOENT)
			rc = 0;
	}
	if (rc)
		json_decref(texts);
	else
		*out = texts;
	return rc;
}

static int describe_plan(const struct ctn_plan *plan, char **text, struct ctn_err *err)
{
	json_t *texts, *root;
	int rc = describe_texts(plan->ckpt, &texts, err);

	if (rc)
		return rc;
	/* Takes what it is given, also when it fails. */
	root = json_pack("{s:i, s:i, s:o, s:o, s:o}", "format", CTN_MANIFEST_FORMAT, "plan",
			 CTN_PLAN_VERSION, "files", describe_files(plan->ckpt), "texts", texts,
			 "parts", describe_parts(plan));
	*text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
	json_decref(root);
	return *text ? 0 : ctn_err_set(err, -ENOMEM, "%s: out of memory", plan->ckpt->dir);
}

/* ---- writing --------------------------------------------------------------------------- */

static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(fd, data, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		data += n;
		len -= (size_t)n;
	}
	return 0;
}

/* A new file beside the manifest, complete and on the disk. `path` is a template. */
static int write_aside(char *path, const char *text)
{
	int fd = mkostemp(path, O_CLOEXEC);
	int rc;

	if (fd < 0)
		return -errno;
	rc = write_all(fd, text, strlen(text));
	/* Whoever serves the checkpoint reads it, under any user. */
	if (rc == 0 && (fchmod(fd, 0644) != 0 || fsync(fd) != 0))
		rc = -errno;
	if (close(fd) != 0 && rc == 0)
		rc = -errno;
	if (rc)
		unlink(path);
	return rc;
}

static int sync_folder(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = 0;

	if (fd < 0)
		return -errno;
	/* Some file systems have no such thing. */
	if (fsync(fd) != 0 && errno != EINVAL)
		rc = -errno;
	close(fd);
	return rc;
}

int ctn_manifest_write(const struct ctn_plan *plan, struct ctn_err *err)
{
	const char *dir = plan->ckpt->dir;
	char *path = ctn_path_join(dir, CTN_MANIFEST_NAME);
	char *aside = ctn_path_join(dir, "." CTN_MANIFEST_NAME ".XXXXXX");
	char *text = NULL;
	int rc;

	if (!path || !aside) {
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", dir);
		goto out;
	}
	rc = describe_plan(plan, &text, err);
	if (rc)
		goto out;
	rc = write_aside(aside, text);
	if (rc == 0 && rename(aside, path) != 0) {
		rc = -errno;
		unlink(aside);
	}
	if (rc == 0)
		rc = sync_folder(dir);
	if (rc)
		ctn_err_set(err, rc, "%s: %s", path, strerror(-rc));
out:
	free(text);
	free(aside);
	free(path);
	return rc;
}
