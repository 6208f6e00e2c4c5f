/* SPDX-License-Identifier: MIT */
/*
 * Seeded checkpoints for benchmarks: the shapes of a real family, as many bytes as asked for,
 * weights that are random, finite and the same for a seed. Written once and kept in a cache; no
 * tokenizer. Private to tools.
 */
#ifndef CTN_TOOLS_SYNTHETIC_H
#define CTN_TOOLS_SYNTHETIC_H

#include "base/base.h"

struct ctn_synthetic {
	const char *family; /* "llama", "opt" or "gpt2"; static */
	uint64_t bytes;     /* of the tensors; what is written differs by at most 2 % */
	uint64_t seed;
};

/* "FAMILY,bytes=SIZE[,seed=N]". -EINVAL and -ERANGE name the key. */
int ctn_synthetic_parse(const char *value, struct ctn_synthetic *s, struct ctn_err *err);

/*
 * The folder of the checkpoint: found in the cache, or written there, under another name until
 * it is complete. Processes that want the same one wait for the first. *dir is malloc'ed.
 * -ENOSPC when the disk is full, -ERANGE when no shapes come near to the bytes.
 */
int ctn_synthetic_get(const struct ctn_synthetic *s, char **dir, struct ctn_err *err);

/* ---- synthetic_shapes.c ----------------------------------------------------------------- */

/* The static name that equals `name`; -EINVAL lists what there is. */
int ctn_synthetic_family(const char *name, const char **family, struct ctn_err *err);

/*
 * What the two files hold: all of config.json, and model.safetensors up to its data (length
 * and header), which are `data_bytes` bytes of F16. Free both buffers.
 */
struct ctn_synthetic_text {
	struct ctn_buf config;
	struct ctn_buf head;
	uint64_t data_bytes;
};

int ctn_synthetic_describe(const struct ctn_synthetic *s, struct ctn_synthetic_text *text,
			   struct ctn_err *err);
void ctn_synthetic_text_free(struct ctn_synthetic_text *text);

#endif
