/* SPDX-License-Identifier: MIT */
/* Containers: what the formats and the folder reader share. Private to checkpoint. */
#ifndef CTN_CHECKPOINT_CONTAINER_H
#define CTN_CHECKPOINT_CONTAINER_H

#include <sys/stat.h>

#include "checkpoint/checkpoint.h"

extern const struct ctn_container_format ctn_format_safetensors;

/* ctn_container_open that also tells the identity of the very file that was parsed. */
int ctn_container_open_stat(const char *path, struct ctn_container *c, struct stat *st,
			    struct ctn_err *err);

/* Memory that lives as long as the container, aligned for any type. NULL when there is none. */
void *ctn_container_alloc(struct ctn_container *c, size_t bytes);

#endif
