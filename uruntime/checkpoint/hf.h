/* SPDX-License-Identifier: MIT */
/* Which files of a folder make up the checkpoint. Private to checkpoint. */
#ifndef CTN_CHECKPOINT_HF_H
#define CTN_CHECKPOINT_HF_H

#include "base/base.h"
#include "checkpoint/json.h"

struct ctn_file_list {
	char **names; /* in the folder; sorted */
	size_t count;
	json_t *weight_map; /* tensor -> file name, when an index decides; else NULL */
	char *index;        /* path of that index */
};

/*
 * The index decides when there is one; else model.safetensors; else a complete set of
 * model-i-of-n.safetensors. Other files are no part of the checkpoint. -ENOENT names every
 * file that is missing. Free with ctn_file_list_free, also after an error.
 */
int ctn_file_list_find(const char *dir, struct ctn_file_list *list, struct ctn_err *err);
void ctn_file_list_free(struct ctn_file_list *list);

#endif
