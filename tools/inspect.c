// SPDX-License-Identifier: MIT
/* computron inspect: what a checkpoint folder or one container file holds. */
#include "inspect.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct options {
	const char *path;
	uint32_t tp, pp;
	bool split; /* a placement was asked for */
	bool json;
};

/* ---- what both forms share ------------------------------------------------------------- */

void ctn_inspect_sum(const struct ctn_tensor *tensors, uint32_t count, struct ctn_dtype_sums *sums)
{
	*sums = (struct ctn_dtype_sums){0};
	for (uint32_t i = 0; i < count; i++) {
		const enum ctn_dtype dtype = tensors[i].encoding.dtype;

		sums->count[dtype]++;
		sums->bytes[dtype] += tensors[i].bytes;
		sums->total += tensors[i].bytes;
	}
}

const char *ctn_inspect_layer_name(const struct ctn_arch *arch, uint32_t layer, char out[16])
{
	if (layer == 0)
		return "embed";
	if (layer == ctn_layer_count(arch) - 1)
		return "head";
	snprintf(out, 16, "%u", layer - 1);
	return out;
}

const char *ctn_inspect_kind_name(enum ctn_part_kind kind)
{
	static const char *const names[CTN_PART_KINDS] = {"attention", "mlp", "rest"};

	return names[kind];
}

uint64_t ctn_inspect_payload(const struct ctn_shard *shard)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < shard->piece_count; i++)
		bytes += shard->pieces[i].payload;
	return bytes;
}

/* ---- text ------------------------------------------------------------------------------ */

/* Names come from the file: nothing in them may steer a terminal. */
static void print_name(const char *name)
{
	for (; *name; name++) {
		if ((unsigned char)*name < 0x20 || *name == 0x7f)
			printf("\\x%02x", (unsigned char)*name);
		else
			putchar(*name);
	}
}

static void print_sums(const struct ctn_tensor *tensors, uint32_t count)
{
	struct ctn_dtype_sums sums;
	char size[32];

	ctn_inspect_sum(tensors, count, &sums);
	printf("tensors    %u, %s\n", count, ctn_format_size(sums.total, size));
	for (int i = 0; i < CTN_DTYPE_COUNT; i++) {
		if (sums.count[i])
			printf("  %-8s %llu, %s\n", ctn_dtype_name((enum ctn_dtype)i),
			       (unsigned long long)sums.count[i],
			       ctn_format_size(sums.bytes[i], size));
	}
}

static void print_container(const char *path, const struct ctn_container *c)
{
	char size[32];

	printf("file       %s\n", path);
	printf("format     %s\n", c->format->name);
	printf("size       %s, data from byte %llu\n", ctn_format_size(c->file_bytes, size),
	       (unsigned long long)c->data_offset);
	print_sums(c->tensors, c->count);
	for (uint32_t i = 0; i < c->count; i++) {
		const struct ctn_tensor *t = &c->tensors[i];

		printf("  %12llu %-8s [", (unsigned long long)t->offset,
		       ctn_dtype_name(t->encoding.dtype));
		for (uint32_t k = 0; k < t->rank; k++)
			printf("%s%llu", k ? ", " : "", (unsigned long long)t->shape[k]);
		printf("] ");
		print_name(t->name);
		putchar('\n');
	}
}

static void print_arch(const struct ctn_arch *a)
{
	static const char *const activations[] = {"silu", "relu", "gelu", "gelu_tanh"};
	static const char *const scalings[] = {"", ", linear scaling", ", llama3 scaling"};

	printf("layers     %u, hidden %u, ffn %u%s\n", a->layers, a->hidden, a->ffn,
	       a->gated ? " (gated)" : "");
	printf("heads      %u of %u, %u key-value\n", a->heads, a->head_dim, a->kv_heads);
	printf("vocabulary %u, embedding %u, head %s\n", a->vocab, a->embed_dim,
	       a->tied ? "tied" : "of its own");
	printf("norm       %s, eps %g, %s each block%s\n",
	       a->norm == CTN_NORM_RMS ? "RMSNorm" : "LayerNorm", (double)a->norm_eps,
	       a->norm_first ? "before" : "after", a->final_norm ? ", and a final one" : "");
	if (a->positions == CTN_POSITIONS_ROPE)
		printf("positions  %u, rotary, base %g%s\n", a->max_positions, a->rope.theta,
		       scalings[a->rope.scaling]);
	else
		printf("positions  %u, learned\n", a->max_positions);
	printf("activation %s\n", activations[a->activation]);
	printf("end        ");
	for (uint32_t i = 0; i < a->eos_count; i++)
		printf("%s%u", i ? ", " : "", a->eos[i]);
	printf("%s\n", a->eos_count ? "" : "no token");
}

static void print_layers(const struct ctn_plan *whole)
{
	const struct ctn_rank_plan *rank = &whole->ranks[0];

	printf("layer      bytes        parts\n");
	for (uint32_t i = 0; i < rank->layer_count; i++) {
		const struct ctn_shard *s = &rank->shards[i];
		char name[16];

		printf("  %-8s %-12llu", ctn_inspect_layer_name(&whole->ckpt->arch, s->layer, name),
		       (unsigned long long)ctn_inspect_payload(s));
		for (uint32_t k = 0; k < s->part_count; k++)
			printf("%s%u", k ? ", " : "", s->parts[k]);
		printf("%s\n", s->part_count ? "" : "-");
	}
	printf("part       bytes        frame        runs  content\n");
	for (uint32_t i = 0; i < whole->part_count; i++) {
		const struct ctn_part *p = &whole->parts[i];

		printf("  %-8u %-12llu %-12llu %-5u %s\n", p->id,
		       (unsigned long long)p->tensor_bytes, (unsigned long long)p->frame_bytes,
		       p->run_count, p->pack ? "pack" : ctn_inspect_kind_name(p->kind));
	}
}

static void print_plan(const struct ctn_plan *plan)
{
	char size[32];

	printf("placement  tp %u, pp %u; host frames %s", plan->tp, plan->pp,
	       ctn_format_size(plan->host_bytes, size));
	printf(", at once %s\n", ctn_format_size(plan->host_window, size));
	for (uint32_t i = 0; i < plan->rank_count; i++) {
		const struct ctn_rank_plan *r = &plan->ranks[i];

		printf("rank %u.%u   %s\n", r->tp_rank, r->pp_rank,
		       ctn_format_size(r->bytes, size));
		for (uint32_t k = 0; k < r->layer_count; k++) {
			const struct ctn_shard *s = &r->shards[k];
			char name[16];

			printf("  %-8s %llu in %u %s\n",
			       ctn_inspect_layer_name(&plan->ckpt->arch, s->layer, name),
			       (unsigned long long)s->bytes, s->piece_count,
			       s->piece_count == 1 ? "piece" : "pieces");
		}
	}
}

static void print_checkpoint(const struct ctn_checkpoint *ckpt, const struct ctn_plan *whole,
			     const struct ctn_plan *split)
{
	char size[32];

	printf("checkpoint %s\n", ckpt->dir);
	printf("family     %s\n", ctn_family_name(ckpt->family));
	print_arch(&ckpt->arch);
	printf("files      %u\n", ckpt->file_count);
	for (uint32_t i = 0; i < ckpt->file_count; i++)
		printf("  %s, %s\n", ckpt->files[i].path,
		       ctn_format_size(ckpt->files[i].bytes, size));
	print_sums(ckpt->tensors, ckpt->tensor_count);
	printf("served     %s\n", ctn_format_size(ckpt->bytes, size));
	print_layers(whole);
	if (split)
		print_plan(split);
}

/* ---- the command ----------------------------------------------------------------------- */

static int inspect_file(const struct options *o, struct ctn_err *err)
{
	struct ctn_container c;
	int rc;

	if (o->split)
		return ctn_err_set(err, -EINVAL, "%s: --tp and --pp want a checkpoint folder",
				   o->path);
	rc = ctn_container_open(o->path, &c, err);
	if (rc)
		return rc;
	if (!o->json)
		print_container(o->path, &c);
	else if (ctn_inspect_container_json(o->path, &c))
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", o->path);
	ctn_container_close(&c);
	return rc;
}

static int inspect_folder(const struct options *o, struct ctn_err *err)
{
	struct ctn_plan *whole = NULL, *split = NULL;
	struct ctn_checkpoint *ckpt = NULL;
	int rc;

	rc = ctn_checkpoint_open(o->path, &ckpt, err);
	if (!rc)
		rc = ctn_plan_build(ckpt, 1, 1, &whole, err);
	if (!rc && o->split)
		rc = ctn_plan_build(ckpt, o->tp, o->pp, &split, err);
	if (!rc && !o->json)
		print_checkpoint(ckpt, whole, split);
	else if (!rc && ctn_inspect_checkpoint_json(ckpt, whole, split))
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", o->path);
	ctn_plan_free(split);
	ctn_plan_free(whole);
	ctn_checkpoint_close(ckpt);
	return rc;
}

static int parse_ways(const char *what, const char *value, uint32_t *out, struct ctn_err *err)
{
	uint64_t v = 0;
	int rc = ctn_parse_u64(what, value, 1, 65536, &v, err);

	*out = (uint32_t)v;
	return rc;
}

static int parse_options(int argc, char **argv, struct options *o, struct ctn_err *err)
{
	static const struct option longs[] = {
		{"tp", required_argument, NULL, 't'},
		{"pp", required_argument, NULL, 'p'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int c, rc = 0;

	*o = (struct options){.tp = 1, .pp = 1};
	opterr = 0;
	while (!rc && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 't':
			o->split = true;
			rc = parse_ways("--tp", optarg, &o->tp, err);
			break;
		case 'p':
			o->split = true;
			rc = parse_ways("--pp", optarg, &o->pp, err);
			break;
		case 'j':
			o->json = true;
			break;
		default:
			rc = ctn_err_set(err, -EINVAL,
					 "%s: unknown option, or one without its value",
					 argv[optind - 1]);
			break;
		}
	}
	if (!rc && optind + 1 != argc)
		rc = ctn_err_set(err, -EINVAL,
				 "usage: computron inspect PATH [--tp N] [--pp N] [--json]");
	if (!rc)
		o->path = argv[optind];
	return rc;
}

int ctn_tool_inspect(int argc, char **argv)
{
	struct ctn_err err = {0};
	struct options o;
	struct stat st;
	int rc;

	if (parse_options(argc, argv, &o, &err)) {
		fprintf(stderr, "computron inspect: %s\n", err.msg);
		return CTN_EXIT_USAGE;
	}
	if (lstat(o.path, &st) < 0)
		rc = ctn_err_set(&err, -errno, "%s: %s", o.path, strerror(errno));
	else if (stat(o.path, &st) == 0 && S_ISDIR(st.st_mode))
		rc = inspect_folder(&o, &err);
	else
		rc = inspect_file(&o, &err);
	if (!rc && fflush(stdout) != 0)
		rc = ctn_err_set(&err, -errno, "stdout: %s", strerror(errno));
	if (rc)
		fprintf(stderr, "computron inspect: %s\n", err.msg);
	return rc ? CTN_EXIT_FAILED : 0;
}
