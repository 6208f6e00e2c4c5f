// SPDX-License-Identifier: MIT
/* The input is a safetensors file. */
#include "fuzz.h"
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME "model.safetensors"

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_container c;
	struct ctn_err err = {0};
	uint64_t at;
	char *path;
	int rc;

	fuzz_put(NAME, data, size);
	path = ctn_path_join(fuzz_dir(), NAME);
	if (!path)
		return -ENOMEM;
	rc = ctn_container_open(path, &c, &err);
	free(path);
	fuzz_check_err(rc, &err);
	FUZZ_CHECK(rc == 0 || rc == -EINVAL || rc == -ENOMEM);
	if (rc)
		return rc;
	/* The tensors tile what is behind the header, in order. */
	FUZZ_CHECK(c.file_bytes == size && c.data_offset >= 8 && c.data_offset <= size);
	at = c.data_offset;
	for (uint32_t i = 0; i < c.count; i++) {
		const struct ctn_tensor *t = &c.tensors[i];
		uint64_t bits = ctn_dtype_bits(t->encoding.dtype);

		for (uint32_t d = 0; d < t->rank; d++)
			bits *= t->shape[d];
		FUZZ_CHECK(t->bytes * 8 == bits && t->offset == at && strlen(t->name) < size);
		at += t->bytes;
	}
	FUZZ_CHECK(at == size);
	ctn_container_close(&c);
	return 0;
}
