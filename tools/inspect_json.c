// SPDX-License-Identifier: MIT
/* computron inspect --json. */
#include "inspect.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>

/* Paths may be any bytes; JSON may not. */
static json_t *text(const char *s)
{
	json_t *v = json_string(s);

	return v ? v : json_string("(not UTF-8)");
}

static json_t *number(uint64_t v)
{
	return json_integer((json_int_t)v);
}

/* Appends; the array becomes NULL when memory is short. */
static void append(json_t **array, json_t *value)
{
	if (!*array || json_array_append_new(*array, value)) {
		json_decref(*array);
		*array = NULL;
	}
}

static json_t *sums_json(const struct ctn_tensor *tensors, uint32_t count)
{
	json_t *dtypes = json_object();
	struct ctn_dtype_sums sums;

	ctn_inspect_sum(tensors, count, &sums);
	for (int i = 0; i < CTN_DTYPE_COUNT; i++) {
		if (sums.count[i])
			json_object_set_new(dtypes, ctn_dtype_name((enum ctn_dtype)i),
					    json_pack("{s:o, s:o}", "count", number(sums.count[i]),
						      "bytes", number(sums.bytes[i])));
	}
	return json_pack("{s:i, s:o, s:o}", "count", (int)count, "bytes", number(sums.total),
			 "dtypes", dtypes);
}

static json_t *arch_json(const struct ctn_arch *a)
{
	json_t *eos = json_array();

	for (uint32_t i = 0; i < a->eos_count; i++)
		append(&eos, number(a->eos[i]));
	return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:o}", "layers",
			 (int)a->layers, "hidden", (int)a->hidden, "heads", (int)a->heads,
			 "kv_heads", (int)a->kv_heads, "head_dim", (int)a->head_dim, "ffn",
			 (int)a->ffn, "vocab", (int)a->vocab, "embed_dim", (int)a->embed_dim,
			 "max_positions", (int)a->max_positions, "tied", (int)a->tied, "eos", eos);
}

static json_t *files_json(const struct ctn_checkpoint *ckpt)
{
	json_t *files = json_array();

	for (uint32_t i = 0; i < ckpt->file_count; i++)
		append(&files, json_pack("{s:o, s:o}", "path", text(ckpt->files[i].path), "bytes",
					 number(ckpt->files[i].bytes)));
	return files;
}

static json_t *layers_json(const struct ctn_plan *whole)
{
	const struct ctn_rank_plan *rank = &whole->ranks[0];
	json_t *layers = json_array();

	for (uint32_t i = 0; i < rank->layer_count; i++) {
		const struct ctn_shard *s = &rank->shards[i];
		json_t *parts = json_array();
		char name[16];

		for (uint32_t k = 0; k < s->part_count; k++)
			append(&parts, number(s->parts[k]));
		append(&layers,
		       json_pack("{s:s, s:o, s:o}", "name",
				 ctn_inspect_layer_name(&whole->ckpt->arch, s->layer, name),
				 "bytes", number(ctn_inspect_payload(s)), "parts", parts));
	}
	return layers;
}

static json_t *parts_json(const struct ctn_plan *plan)
{
	json_t *parts = json_array();

	for (uint32_t i = 0; i < plan->part_count; i++) {
		const struct ctn_part *p = &plan->parts[i];

		append(&parts,
		       json_pack("{s:i, s:s, s:b, s:o, s:o, s:i, s:i, s:i}", "id", (int)p->id,
				 "kind", ctn_inspect_kind_name(p->kind), "pack", (int)p->pack,
				 "bytes", number(p->tensor_bytes), "frame_bytes",
				 number(p->frame_bytes), "runs", (int)p->run_count, "first_layer",
				 (int)p->first_layer, "last_layer", (int)p->last_layer));
	}
	return parts;
}

static json_t *rank_json(const struct ctn_plan *plan, const struct ctn_rank_plan *r)
{
	json_t *shards = json_array();

	for (uint32_t i = 0; i < r->layer_count; i++) {
		const struct ctn_shard *s = &r->shards[i];
		char name[16];

		append(&shards,
		       json_pack("{s:s, s:o, s:i}", "layer",
				 ctn_inspect_layer_name(&plan->ckpt->arch, s->layer, name), "bytes",
				 number(s->bytes), "pieces", (int)s->piece_count));
	}
	return json_pack("{s:i, s:i, s:o, s:o}", "tp_rank", (int)r->tp_rank, "pp_rank",
			 (int)r->pp_rank, "bytes", number(r->bytes), "shards", shards);
}

static json_t *plan_json(const struct ctn_plan *plan)
{
	json_t *ranks = json_array();

	for (uint32_t i = 0; i < plan->rank_count; i++)
		append(&ranks, rank_json(plan, &plan->ranks[i]));
	return json_pack("{s:i, s:i, s:o, s:o, s:o}", "tp", (int)plan->tp, "pp", (int)plan->pp,
			 "host_bytes", number(plan->host_bytes), "host_window",
			 number(plan->host_window), "ranks", ranks);
}

static int print(json_t *root)
{
	int rc = root && json_dumpf(root, stdout, JSON_INDENT(1)) == 0 ? 0 : -ENOMEM;

	if (!rc)
		putchar('\n');
	json_decref(root);
	return rc;
}

int ctn_inspect_container_json(const char *path, const struct ctn_container *c)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < c->count; i++) {
		const struct ctn_tensor *t = &c->tensors[i];
		json_t *shape = json_array();

		for (uint32_t k = 0; k < t->rank; k++)
			append(&shape, number(t->shape[k]));
		append(&list, json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", t->name, "dtype",
					ctn_dtype_name(t->encoding.dtype), "shape", shape, "offset",
					number(t->offset), "bytes", number(t->bytes)));
	}
	return print(json_pack("{s:o, s:s, s:o, s:o, s:o, s:o}", "path", text(path), "format",
			       c->format->name, "bytes", number(c->file_bytes), "data_offset",
			       number(c->data_offset), "summary", sums_json(c->tensors, c->count),
			       "tensors", list));
}

int ctn_inspect_checkpoint_json(const struct ctn_checkpoint *ckpt, const struct ctn_plan *whole,
				const struct ctn_plan *split)
{
	json_t *root;

	root = json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "path", text(ckpt->dir),
			 "family", ctn_family_name(ckpt->family), "bytes", number(ckpt->bytes),
			 "architecture", arch_json(&ckpt->arch), "files", files_json(ckpt),
			 "tensors", sums_json(ckpt->tensors, ckpt->tensor_count), "layers",
			 layers_json(whole), "parts", parts_json(whole));
	if (root && split && json_object_set_new(root, "plan", plan_json(split))) {
		json_decref(root);
		root = NULL;
	}
	return print(root);
}
