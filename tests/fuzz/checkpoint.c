// SPDX-License-Identifier: MIT
/* Containers that suit a tiny config.json of each family, so that an input of a target needs
 * none of its own to get to the end of the folder reader. */
#include "fuzz.h"

#include <endian.h>
#include <string.h>

/* Hidden size H, 2 heads, vocabulary V, V positions, FFN width F. */
#define H 4u
#define V 8u
#define F 6u

static const struct {
	const char *name;
	unsigned int rows, cols; /* cols 0: a vector */
} tensors[] = {
	{"model.embed_tokens.weight", V, H},
	{"model.layers.0.input_layernorm.weight", H, 0},
	{"model.layers.0.self_attn.q_proj.weight", H, H},
	{"model.layers.0.self_attn.k_proj.weight", H, H},
	{"model.layers.0.self_attn.v_proj.weight", H, H},
	{"model.layers.0.self_attn.o_proj.weight", H, H},
	{"model.layers.0.post_attention_layernorm.weight", H, 0},
	{"model.layers.0.mlp.gate_proj.weight", F, H},
	{"model.layers.0.mlp.up_proj.weight", F, H},
	{"model.layers.0.mlp.down_proj.weight", H, F},
	{"model.norm.weight", H, 0},
	{"model.decoder.embed_tokens.weight", V, H},
	{"model.decoder.embed_positions.weight", V + 2, H},
	{"model.decoder.layers.0.self_attn.q_proj.weight", H, H},
	{"model.decoder.layers.0.self_attn.k_proj.weight", H, H},
	{"model.decoder.layers.0.self_attn.v_proj.weight", H, H},
	{"model.decoder.layers.0.self_attn.out_proj.weight", H, H},
	{"model.decoder.layers.0.fc1.weight", F, H},
	{"model.decoder.layers.0.fc2.weight", H, F},
	{"transformer.wte.weight", V, H},
	{"transformer.wpe.weight", V, H},
	{"transformer.h.0.ln_1.weight", H, 0},
	{"transformer.h.0.ln_1.bias", H, 0},
	{"transformer.h.0.attn.c_attn.weight", H, 3 * H},
	{"transformer.h.0.attn.c_attn.bias", 3 * H, 0},
	{"transformer.h.0.attn.c_proj.weight", H, H},
	{"transformer.h.0.attn.c_proj.bias", H, 0},
	{"transformer.h.0.ln_2.weight", H, 0},
	{"transformer.h.0.ln_2.bias", H, 0},
	{"transformer.h.0.mlp.c_fc.weight", H, F},
	{"transformer.h.0.mlp.c_fc.bias", F, 0},
	{"transformer.h.0.mlp.c_proj.weight", F, H},
	{"transformer.h.0.mlp.c_proj.bias", H, 0},
	{"transformer.ln_f.weight", H, 0},
	{"transformer.ln_f.bias", H, 0},
	{"lm_head.weight", V, H},
};

static void build(struct ctn_buf *file, unsigned int i, unsigned int n)
{
	uint64_t len = 0, at = 0;

	ctn_buf_append(file, &len, sizeof(len));
	ctn_buf_puts(file, "{");
	for (size_t t = 0; t < CTN_ARRAY_LEN(tensors); t++) {
		const unsigned int cols = tensors[t].cols;
		const uint64_t bytes = 4ull * tensors[t].rows * (cols ? cols : 1);

		if (t % n != i)
			continue;
		ctn_buf_printf(file, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", at ? "," : "",
			       tensors[t].name, tensors[t].rows);
		if (cols)
			ctn_buf_printf(file, ",%u", cols);
		ctn_buf_printf(file, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
			       (unsigned long long)(at + bytes));
		at += bytes;
	}
	ctn_buf_puts(file, "}");
	len = htole64(file->len - sizeof(len));
	for (; at; at--)
		ctn_buf_append(file, "", 1);
	FUZZ_CHECK(!file->failed);
	memcpy(file->data, &len, sizeof(len));
}

void fuzz_put_container(const char *name, enum fuzz_share share)
{
	/* Made once: the same for each input, and no allocation of a later one. */
	static struct ctn_buf files[3];
	struct ctn_buf *file = &files[share];

	if (!file->data)
		build(file, share == FUZZ_SECOND_HALF, share == FUZZ_WHOLE ? 1 : 2);
	fuzz_put(name, file->data, file->len);
}
