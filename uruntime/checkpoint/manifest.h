/* SPDX-License-Identifier: MIT */
/* The manifest, as it was read. Private to checkpoint. */
#ifndef CTN_CHECKPOINT_MANIFEST_H
#define CTN_CHECKPOINT_MANIFEST_H

#include "checkpoint/checkpoint.h"

#define CTN_MANIFEST_FORMAT 1

struct ctn_manifest_part {
	struct ctn_digest digest;
	uint64_t bytes; /* of its tensors */
	uint32_t tensor_count;
};

struct ctn_manifest_tensor {
	uint32_t part; /* UINT32_MAX: in none */
	struct ctn_digest digest;
};

struct ctn_manifest {
	char *path;
	bool current; /* its files were not written since */
	struct ctn_manifest_part *parts;
	uint32_t part_count;
	struct ctn_manifest_tensor *tensors; /* by tensor of the checkpoint */
};

/*
 * Reads the manifest of a checkpoint whose files and tensors are known, and holds it against
 * them. 0 also when there is none. -EINVAL (malformed), -ENOTSUP (another format), -ESTALE (made
 * of other files), -ENOMEM.
 */
int ctn_manifest_read(struct ctn_checkpoint *ckpt, struct ctn_err *err);
void ctn_manifest_free(struct ctn_manifest *manifest);

/* Gives the plan's parts their digests, if there is a manifest. -ESTALE when it has others. */
int ctn_manifest_apply(struct ctn_plan *plan, struct ctn_err *err);

/* ---- manifest_files.c -------------------------------------------------------------------- */

/* The texts of the folder that decide what is served: the i-th name, or NULL. */
const char *ctn_manifest_text_name(uint32_t i);
/* Size and digest of one. -ENOENT when it is not there. */
int ctn_manifest_text(const struct ctn_checkpoint *ckpt, const char *name, uint64_t *bytes,
		      struct ctn_digest *digest, struct ctn_err *err);
/* The name of a file inside its folder. */
const char *ctn_manifest_file_name(const struct ctn_checkpoint *ckpt, uint32_t file);

#endif
