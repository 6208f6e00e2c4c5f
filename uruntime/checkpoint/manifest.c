// SPDX-License-Identifier: MIT
/*
 * Reading the manifest. Nothing in it is believed that could be known otherwise: it has to name
 * exactly the files, texts, tensors and parts that there are.
 *
 *	{"format": 1, "plan": 1,
 *	 "files": {NAME: {"bytes": N, "header": DIGEST, "mtime_ns": N}, ...},
 *	 "texts": {NAME: {"bytes": N, "digest": DIGEST}, ...},
 *	 "parts": [{"bytes": N, "digest": DIGEST, "tensors": {NAME: DIGEST, ...}}, ...]}
 *
 * But for what the parts are made of, which is known when they have been read. The manifest of a
 * base that was copied with the folder names files of the same sizes and headers as its fine-tunes
 * have: only their times tell that they were written since.
 */
#include "checkpoint/manifest.h"

#include "checkpoint/family.h"
#include "checkpoint/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_MANIFEST (512 * CTN_MIB)
/* What --write makes of a tensor or a file, twice; each byte of a name may become an escape of six.
 */
#define ENTRY_BYTES     512
#define NAME_BYTE_BYTES 12
#define MEND            "computron verify --write makes it anew"

struct reader {
	struct ctn_checkpoint *ckpt;
	struct ctn_manifest *m;
	struct ctn_err *err;
};

/* ---- errors ---------------------------------------------------------------------------- */

static int no_memory(const struct reader *r)
{
	return ctn_err_set(r->err, -ENOMEM, "%s: out of memory", r->ckpt->dir);
}

/* jansson names the member in its own words. */
static int malformed(const struct reader *r, const char *where, const json_error_t *je)
{
	return ctn_err_set(r->err, -EINVAL, "%s: %s: %s; " MEND, r->m->path, where,
			   ctn_quote(je->text).s);
}

/* ---- values ---------------------------------------------------------------------------- */

static int take_digest(const struct reader *r, const char *where, const char *text,
		       struct ctn_digest *digest)
{
	if (ctn_digest_parse(text, digest) == 0)
		return 0;
	return ctn_err_set(
		r->err, -EINVAL,
		"%s: %s: expected a digest of 32 hexadecimal digits, found \"%s\"; " MEND,
		r->m->path, where, ctn_quote(text).s);
}

static int take_bytes(const struct reader *r, const char *where, json_int_t n, uint64_t *bytes)
{
	*bytes = (uint64_t)n;
	if (n >= 0)
		return 0;
	return ctn_err_set(r->err, -EINVAL, "%s: %s: bytes: expected 0 or more, found %lld; " MEND,
			   r->m->path, where, (long long)n);
}

/* What is there, against what the manifest says. `mtime_ns`: what it says of that too, if
 * anything. */
static int compare(const struct reader *r, const char *name, uint64_t bytes,
		   const struct ctn_digest *digest, json_t *v, const char *key,
		   json_int_t *mtime_ns)
{
	char expected[CTN_DIGEST_TEXT], found[CTN_DIGEST_TEXT];
	const struct ctn_quoted where = ctn_quote(name);
	struct ctn_digest said;
	uint64_t said_bytes;
	json_error_t je;
	const char *text;
	json_int_t n;
	int rc;

	if (!v)
		return ctn_err_set(r->err, -ESTALE, "%s: does not name %s, which is there; " MEND,
				   r->m->path, where.s);
	rc = mtime_ns ? json_unpack_ex(v, &je, JSON_STRICT, "{s:I, s:s, s?I}", "bytes", &n, key,
				       &text, "mtime_ns", mtime_ns)
		      : json_unpack_ex(v, &je, JSON_STRICT, "{s:I, s:s}", "bytes", &n, key, &text);
	if (rc)
		return malformed(r, where.s, &je);
	rc = take_bytes(r, where.s, n, &said_bytes);
	if (!rc)
		rc = take_digest(r, where.s, text, &said);
	if (rc)
		return rc;
	if (said_bytes != bytes)
		return ctn_err_set(
			r->err, -ESTALE,
			"%s: %s: expected %llu bytes, found %llu; if the change is meant, " MEND,
			r->m->path, where.s, (unsigned long long)said_bytes,
			(unsigned long long)bytes);
	if (memcmp(&said, digest, sizeof(said)) != 0)
		return ctn_err_set(
			r->err, -ESTALE,
			"%s: %s: expected %s %s, found %s; if the change is meant, " MEND,
			r->m->path, where.s, key, ctn_digest_format(&said, expected),
			ctn_digest_format(digest, found));
	return 0;
}

/* ---- files and texts ------------------------------------------------------------------- */

/* All that is there was found in the list: what is left over in it is not there. */
static int check_left(const struct reader *r, json_t *list, size_t seen,
		      bool (*known)(const struct reader *r, const char *name))
{
	const char *name;
	json_t *v;

	if (json_object_size(list) == seen)
		return 0;
	json_object_foreach(list, name, v)
	{
		if (!known(r, name))
			return ctn_err_set(r->err, -ESTALE,
					   "%s: names \"%s\", which is not there; " MEND,
					   r->m->path, ctn_quote(name).s);
	}
	CTN_ASSERT(!"a list with more names than are known");
	return 0;
}

static bool known_file(const struct reader *r, const char *name)
{
	for (uint32_t i = 0; i < r->ckpt->file_count; i++) {
		if (strcmp(ctn_manifest_file_name(r->ckpt, i), name) == 0)
			return true;
	}
	return false;
}

static int read_files(const struct reader *r, json_t *list)
{
	r->m->current = true;
	for (uint32_t i = 0; i < r->ckpt->file_count; i++) {
		const struct ctn_file *f = &r->ckpt->files[i];
		const char *name = ctn_manifest_file_name(r->ckpt, i);
		json_int_t mtime_ns = INT64_MIN;
		int rc = compare(r, name, f->bytes, &f->header, json_object_get(list, name),
				 "header", &mtime_ns);

		if (rc)
			return rc;
		r->m->current = r->m->current && mtime_ns == f->mtime_ns;
	}
	return check_left(r, list, r->ckpt->file_count, known_file);
}

/* Only those that are there get here: the others are left over. */
static bool known_text(const struct reader *r, const char *wanted)
{
	struct ctn_digest digest;
	uint64_t bytes;
	const char *name;

	for (uint32_t i = 0; (name = ctn_manifest_text_name(i)); i++) {
		if (strcmp(name, wanted) == 0)
			return ctn_manifest_text(r->ckpt, name, &bytes, &digest, NULL) == 0;
	}
	return false;
}

static int read_texts(const struct reader *r, json_t *list)
{
	const char *name;
	size_t seen = 0;

	for (uint32_t i = 0; (name = ctn_manifest_text_name(i)); i++) {
		struct ctn_digest digest;
		uint64_t bytes;
		int rc = ctn_manifest_text(r->ckpt, name, &bytes, &digest, r->err);

		if (rc == -ENOENT)
			continue;
		if (rc == 0)
			rc = compare(r, name, bytes, &digest, json_object_get(list, name), "digest",
				     NULL);
		if (rc)
			return rc;
		seen++;
	}
	return check_left(r, list, seen, known_text);
}

/* ---- parts ----------------------------------------------------------------------------- */

static int read_tensor(const struct reader *r, uint32_t part, const char *name, json_t *v)
{
	const struct ctn_tensor *t = ctn_checkpoint_tensor(r->ckpt, name);
	struct ctn_manifest_tensor *said;

	if (!t)
		return ctn_err_set(r->err, -ESTALE,
				   "%s: part %u: names tensor \"%s\", which no file has; " MEND,
				   r->m->path, part, ctn_quote(name).s);
	said = &r->m->tensors[t - r->ckpt->tensors];
	if (said->part != UINT32_MAX)
		return ctn_err_set(r->err, -EINVAL,
				   "%s: tensor \"%s\" is in two parts, %u and %u; " MEND,
				   r->m->path, ctn_quote(name).s, said->part, part);
	if (!json_is_string(v))
		return ctn_err_set(r->err, -EINVAL,
				   "%s: tensor \"%s\": expected a digest, found %s; " MEND,
				   r->m->path, ctn_quote(name).s, ctn_quote_json(v).s);
	said->part = part;
	return take_digest(r, ctn_quote(name).s, json_string_value(v), &said->digest);
}

static int read_part(const struct reader *r, uint32_t i, json_t *v)
{
	struct ctn_manifest_part *part = &r->m->parts[i];
	json_t *tensors;
	json_error_t je;
	const char *name, *text;
	json_int_t n;
	char where[32];
	int rc;

	snprintf(where, sizeof(where), "part %u", i);
	if (json_unpack_ex(v, &je, JSON_STRICT, "{s:I, s:s, s:o}", "bytes", &n, "digest", &text,
			   "tensors", &tensors))
		return malformed(r, where, &je);
	rc = take_bytes(r, where, n, &part->bytes);
	if (!rc)
		rc = take_digest(r, where, text, &part->digest);
	if (rc)
		return rc;
	if (!json_is_object(tensors))
		return ctn_err_set(r->err, -EINVAL,
				   "%s: %s: tensors: expected an object, found %s; " MEND,
				   r->m->path, where, ctn_quote_json(tensors).s);
	part->tensor_count = (uint32_t)json_object_size(tensors);
	json_object_foreach(tensors, name, v)
	{
		rc = read_tensor(r, i, name, v);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_parts(const struct reader *r, json_t *list)
{
	const size_t count = json_array_size(list);

	/* A part has a tensor. */
	if (count > r->ckpt->tensor_count)
		return ctn_err_set(r->err, -ESTALE,
				   "%s: expected at most %u parts, found %zu; " MEND, r->m->path,
				   r->ckpt->tensor_count, count);
	r->m->parts = calloc(count + 1, sizeof(*r->m->parts));
	r->m->tensors = malloc((r->ckpt->tensor_count + (size_t)1) * sizeof(*r->m->tensors));
	if (!r->m->parts || !r->m->tensors)
		return no_memory(r);
	for (uint32_t i = 0; i < r->ckpt->tensor_count; i++)
		r->m->tensors[i].part = UINT32_MAX;
	r->m->part_count = (uint32_t)count;
	for (uint32_t i = 0; i < r->m->part_count; i++) {
		int rc = read_part(r, i, json_array_get(list, i));

		if (rc)
			return rc;
	}
	return 0;
}

/* ---- the whole ------------------------------------------------------------------------- */

/* A manifest of this checkpoint is not larger, in whatever layout: parsing takes many times its
 * size in memory. */
static size_t largest(const struct ctn_checkpoint *ckpt)
{
	uint64_t bytes = CTN_MIB;

	for (uint32_t i = 0; i < ckpt->file_count; i++)
		bytes += ENTRY_BYTES + NAME_BYTE_BYTES * strlen(ckpt->files[i].path);
	for (uint32_t i = 0; i < ckpt->tensor_count; i++)
		bytes += ENTRY_BYTES + NAME_BYTE_BYTES * strlen(ckpt->tensors[i].name);
	return CTN_MIN(bytes, MAX_MANIFEST);
}

static int read_root(const struct reader *r, json_t *root)
{
	json_t *files, *texts, *parts;
	json_int_t format, version;
	int rc;
	json_error_t je;

	/* Another format may have other members. */
	if (json_unpack_ex(root, &je, 0, "{s:I}", "format", &format))
		return malformed(r, "the top", &je);
	if (format != CTN_MANIFEST_FORMAT)
		return ctn_err_set(r->err, -ENOTSUP, "%s: format: expected %d, found %lld; " MEND,
				   r->m->path, CTN_MANIFEST_FORMAT, (long long)format);
	if (json_unpack_ex(root, &je, JSON_STRICT, "{s:I, s:I, s:o, s:o, s:o}", "format", &format,
			   "plan", &version, "files", &files, "texts", &texts, "parts", &parts))
		return malformed(r, "the top", &je);
	if (!json_is_object(files) || !json_is_object(texts) || !json_is_array(parts))
		return ctn_err_set(r->err, -EINVAL,
				   "%s: expected objects \"files\" and \"texts\" and an array "
				   "\"parts\"; " MEND,
				   r->m->path);
	if (version != CTN_PLAN_VERSION)
		return ctn_err_set(r->err, -ESTALE, "%s: plan: expected %d, found %lld; " MEND,
				   r->m->path, CTN_PLAN_VERSION, (long long)version);
	rc = read_files(r, files);
	if (!rc)
		rc = read_texts(r, texts);
	return rc ? rc : read_parts(r, parts);
}

int ctn_manifest_read(struct ctn_checkpoint *ckpt, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;
	struct reader r = {.ckpt = ckpt, .err = err};
	json_t *root = NULL;
	struct stat st;
	int rc;

	r.m = calloc(1, sizeof(*r.m));
	if (!r.m)
		return no_memory(&r);
	r.m->path = ctn_path_join(ckpt->dir, CTN_MANIFEST_NAME);
	if (!r.m->path) {
		rc = no_memory(&r);
		goto fail;
	}
	if (lstat(r.m->path, &st) != 0 && errno == ENOENT) {
		ctn_manifest_free(r.m);
		return 0;
	}
	rc = ctn_json_read(r.m->path, largest(ckpt), &root, err);
	if (!rc)
		rc = read_root(&r, root);
	json_decref(root);
	if (rc)
		goto fail;
	priv->manifest = r.m;
	return 0;
fail:
	ctn_manifest_free(r.m);
	return rc;
}

void ctn_manifest_free(struct ctn_manifest *m)
{
	if (!m)
		return;
	free(m->path);
	free(m->parts);
	free(m->tensors);
	free(m);
}

const char *ctn_checkpoint_manifest(const struct ctn_checkpoint *ckpt)
{
	const struct ctn_manifest *m = ctn_priv(ckpt)->manifest;

	return m ? m->path : NULL;
}

/* ---- the plan -------------------------------------------------------------------------- */

static bool same_part(const struct ctn_manifest *m, const struct ctn_part *part)
{
	const struct ctn_manifest_part *said = &m->parts[part->id];

	if (said->bytes != part->tensor_bytes || said->tensor_count != part->tensor_count)
		return false;
	for (uint32_t i = 0; i < part->tensor_count; i++) {
		if (m->tensors[part->tensors[i].tensor].part != part->id)
			return false;
	}
	return true;
}

int ctn_manifest_apply(struct ctn_plan *plan, struct ctn_err *err)
{
	const struct ctn_manifest *m = ctn_priv(plan->ckpt)->manifest;

	if (!m)
		return 0;
	if (m->part_count != plan->part_count)
		return ctn_err_set(err, -ESTALE, "%s: expected %u parts, found %u; " MEND, m->path,
				   plan->part_count, m->part_count);
	for (uint32_t i = 0; i < plan->part_count; i++) {
		struct ctn_part *part = &plan->parts[i];

		if (!same_part(m, part))
			return ctn_err_set(
				err, -ESTALE,
				"%s: part %u: expected %u tensors of %llu bytes beginning with "
				"\"%s\", found others; " MEND,
				m->path, i, part->tensor_count,
				(unsigned long long)part->tensor_bytes,
				ctn_quote(plan->ckpt->tensors[part->tensors[0].tensor].name).s);
		part->has_digest = true;
		part->current = m->current;
		part->digest = m->parts[i].digest;
		for (uint32_t k = 0; k < part->tensor_count; k++)
			part->tensors[k].digest = m->tensors[part->tensors[k].tensor].digest;
	}
	return 0;
}
