// SPDX-License-Identifier: MIT
/*
 * The input is model.safetensors.index.json (none when it is empty), then, each behind a NUL
 * byte, names of files that are there. The first two hold one half each of a tiny model's
 * tensors, later ones all of them. A name behind a '>' is a link to nowhere.
 */
#include "fuzz.h"
#include "checkpoint/checkpoint.h"

#include <string.h>

#define CONFIG                                                                 \
	"{\"model_type\":\"llama\",\"hidden_size\":4,\"intermediate_size\":6," \
	"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":8,"  \
	"\"max_position_embeddings\":8}"
#define MAX_FILES 8

static void put_file(const char *text, size_t len, unsigned int i)
{
	const bool dangling = len && text[0] == '>';
	char name[64];

	text += dangling;
	len -= dangling;
	if (len == 0 || len >= sizeof(name) || memchr(text, '/', len) || text[0] == '.' ||
	    (len > 5 && memcmp(text + len - 5, ".json", 5) == 0))
		return;
	memcpy(name, text, len);
	name[len] = '\0';
	if (dangling)
		fuzz_link(name, "nowhere/\n");
	else
		fuzz_put_container(name, i == 0   ? FUZZ_FIRST_HALF
					 : i == 1 ? FUZZ_SECOND_HALF
						  : FUZZ_WHOLE);
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_checkpoint *ckpt;
	struct ctn_err err = {0};
	const char *text;
	size_t len;
	int rc;

	fuzz_clear();
	fuzz_put("config.json", CONFIG, strlen(CONFIG));
	if (fuzz_field(&data, &size, &text, &len) && len)
		fuzz_put("model.safetensors.index.json", text, len);
	for (unsigned int i = 0; i < MAX_FILES && fuzz_field(&data, &size, &text, &len); i++)
		put_file(text, len, i);
	rc = ctn_checkpoint_open(fuzz_dir(), &ckpt, &err);
	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < ckpt->tensor_count; i++) {
		const struct ctn_tensor *t = &ckpt->tensors[i];

		FUZZ_CHECK(t->file < ckpt->file_count);
		FUZZ_CHECK(t->offset + t->bytes <= ckpt->files[t->file].bytes);
		FUZZ_CHECK(ctn_checkpoint_tensor(ckpt, t->name) == t);
	}
	ctn_checkpoint_close(ckpt);
	return 0;
}
