/* SPDX-License-Identifier: MIT */
/* Manifests whose digests are made here, by plain reads, and folders to spoil. */
#ifndef CTN_TEST_MANIFEST_FIXTURE_H
#define CTN_TEST_MANIFEST_FIXTURE_H

#include "ckpt_files.h"
#include "test.h"
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <xxhash.h>

/* The digests of a tensor's chunks, one after the other. */
static inline void chunk_digests(const struct ctn_checkpoint *ckpt, uint32_t tensor,
				 struct ctn_buf *out)
{
	const struct ctn_tensor *t = &ckpt->tensors[tensor];
	int fd = open(ckpt->files[t->file].path, O_RDONLY | O_CLOEXEC);
	char *data = malloc(1 << 20);

	CU_ASSERT_FATAL(fd >= 0 && data);
	for (uint64_t at = 0; at < t->bytes; at += 1 << 20) {
		const size_t n = CTN_MIN(t->bytes - at, 1u << 20);
		XXH128_canonical_t c;

		CU_ASSERT_EQUAL_FATAL(pread(fd, data, n, (off_t)(t->offset + at)), (ssize_t)n);
		XXH128_canonicalFromHash(&c, XXH3_128bits(data, n));
		ctn_buf_append(out, c.digest, sizeof(c.digest));
	}
	free(data);
	close(fd);
}

static inline struct ctn_digest root_digest(struct ctn_buf *chunks)
{
	struct ctn_digest digest;
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(chunks->data, chunks->len));
	memcpy(digest.bytes, c.digest, sizeof(digest.bytes));
	ctn_buf_free(chunks);
	return digest;
}

static inline struct ctn_digest naive_tensor_digest(const struct ctn_checkpoint *ckpt,
						    uint32_t tensor)
{
	struct ctn_buf chunks = {0};

	chunk_digests(ckpt, tensor, &chunks);
	return root_digest(&chunks);
}

static inline struct ctn_digest naive_part_digest(const struct ctn_checkpoint *ckpt,
						  const struct ctn_part *part)
{
	struct ctn_buf chunks = {0};

	for (uint32_t i = 0; i < part->tensor_count; i++)
		chunk_digests(ckpt, part->tensors[i].tensor, &chunks);
	return root_digest(&chunks);
}

static inline int try_write_manifest(const char *dir, struct ctn_err *err)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_plan *plan = NULL;
	int rc;

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open_plain(dir, &ckpt, err), 0);
	CU_ASSERT_EQUAL_FATAL(ctn_plan_build(ckpt, 1, 1, &plan, err), 0);
	for (uint32_t i = 0; i < plan->part_count; i++) {
		struct ctn_part *part = &plan->parts[i];

		CU_ASSERT_FALSE(part->has_digest);
		part->has_digest = true;
		part->digest = naive_part_digest(ckpt, part);
		for (uint32_t k = 0; k < part->tensor_count; k++)
			part->tensors[k].digest =
				naive_tensor_digest(ckpt, part->tensors[k].tensor);
	}
	rc = ctn_manifest_write(plan, err);
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
	return rc;
}

static inline void write_manifest(const char *dir)
{
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(try_write_manifest(dir, &err), 0);
}

/* A fresh folder with the files of another. The caller frees its path. */
static inline char *copy_folder(const char *source)
{
	char *from = strdup(source), *to = strdup(gen_dir()), path[PATH_MAX];
	struct dirent *e;
	DIR *d = opendir(from);

	while (d && (e = readdir(d))) {
		char *data;
		size_t len;

		if (e->d_name[0] == '.')
			continue;
		CU_ASSERT_EQUAL_FATAL(ctn_read_file(gen_path(path, from, e->d_name), SIZE_MAX - 1,
						    &data, &len, NULL),
				      0);
		gen_write_file(to, e->d_name, data, len);
		free(data);
	}
	closedir(d);
	free(from);
	return to;
}

/* Changes one byte in place; the file keeps its identity. */
static inline void flip(const char *dir, const char *name, uint64_t at, uint8_t bits)
{
	char path[PATH_MAX];
	int fd = open(gen_path(path, dir, name), O_RDWR | O_CLOEXEC);
	struct timespec times[2];
	struct stat st;
	uint8_t byte;

	CU_ASSERT_FATAL(fd >= 0 && fstat(fd, &st) == 0);
	CU_ASSERT_EQUAL_FATAL(pread(fd, &byte, 1, (off_t)at), 1);
	byte ^= bits;
	CU_ASSERT_EQUAL_FATAL(pwrite(fd, &byte, 1, (off_t)at), 1);
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	CU_ASSERT_EQUAL_FATAL(futimens(fd, times), 0);
	close(fd);
}

/* The same model but for a bit in each attention; another one for each `bit`. */
static inline char *tuned_folder(const char *dir, uint32_t bit)
{
	char *tuned = copy_folder(dir);
	struct ctn_checkpoint *ckpt;
	struct ctn_err err = {0};

	CU_ASSERT_EQUAL_FATAL(ctn_checkpoint_open_plain(tuned, &ckpt, &err), 0);
	for (uint32_t i = 0; i < ckpt->tensor_count; i++) {
		if (strstr(ckpt->tensors[i].name, "self_attn.q_proj.weight"))
			flip(tuned, "model.safetensors", ckpt->tensors[i].offset + 99,
			     (uint8_t)(1u << bit));
	}
	ctn_checkpoint_close(ckpt);
	return tuned;
}

#endif
