// SPDX-License-Identifier: MIT
/* computron verify: the bytes of a checkpoint against its manifest, or the manifest anew. */
#include "verify.h"

#include "base/base.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options {
	const char *dir;
	bool write;
	bool json;
};

struct report {
	const struct options *o;
	char *dir; /* as it is shown: a path may be any bytes, JSON and a terminal not */
	uint32_t parts;
	struct ctn_verify_result result;
	bool written;
	json_t *failures; /* with --json */
	uint32_t failed;
};

/* At once for a person; for a program in the end, too. */
static void report_failure(void *arg, const char *why)
{
	struct report *r = arg;

	r->failed++;
	fprintf(stderr, "computron verify: %s\n", why);
	if (r->failures)
		json_array_append_new(r->failures, json_string(why));
}

static int verify(struct report *r, struct ctn_err *err)
{
	struct ctn_checkpoint *ckpt = NULL;
	struct ctn_plan *plan = NULL;
	int rc;

	/* What is written anew may be wrong now. */
	if (r->o->write)
		rc = ctn_checkpoint_open_plain(r->o->dir, &ckpt, err);
	else
		rc = ctn_checkpoint_open(r->o->dir, &ckpt, err);
	if (rc)
		return rc;
	if (!r->o->write && !ctn_checkpoint_manifest(ckpt))
		rc = ctn_err_set(err, -ENOENT,
				 "%s: there is no " CTN_MANIFEST_NAME "; --write makes it",
				 r->o->dir);
	if (!rc)
		rc = ctn_plan_build(ckpt, 1, 1, &plan, err);
	if (!rc) {
		r->parts = plan->part_count;
		rc = ctn_verify_parts(plan, r->o->write, report_failure, r, &r->result, err);
	}
	if (!rc && r->o->write && !r->result.failed) {
		rc = ctn_manifest_write(plan, err);
		r->written = rc == 0;
	}
	ctn_plan_free(plan);
	ctn_checkpoint_close(ckpt);
	return rc;
}

/* ---- the report -------------------------------------------------------------------------- */

static double bytes_per_s(const struct ctn_verify_result *v)
{
	return v->nanoseconds ? (double)v->bytes * CTN_NSEC_PER_SEC / (double)v->nanoseconds : 0;
}

static void print_text(const struct report *r)
{
	char size[32], rate[32];

	if (r->failed)
		return;
	printf("%s: %s %u part%s, %s, at %s/s (%s)\n", r->dir,
	       r->written ? "wrote " CTN_MANIFEST_NAME " of" : "is what its manifest says:",
	       r->parts, r->parts == 1 ? "" : "s", ctn_format_size(r->result.bytes, size),
	       ctn_format_size((uint64_t)bytes_per_s(&r->result), rate),
	       ctn_stage_method_name(r->result.method));
}

static int print_json(struct report *r)
{
	json_t *v = json_pack("{s:s, s:b, s:b, s:i, s:i, s:I, s:f, s:f, s:s, s:O}", "checkpoint",
			      r->dir, "ok", r->failed == 0, "written", r->written, "parts",
			      (int)r->parts, "parts_failed", (int)r->result.failed, "bytes",
			      (json_int_t)r->result.bytes, "seconds",
			      (double)r->result.nanoseconds / CTN_NSEC_PER_SEC, "gb_per_s",
			      bytes_per_s(&r->result) / 1e9, "method",
			      ctn_stage_method_name(r->result.method), "failures", r->failures);
	int rc = v ? json_dumpf(v, stdout, JSON_INDENT(1)) : -1;

	json_decref(v);
	if (rc == 0)
		putchar('\n');
	return rc ? -ENOMEM : 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static int parse_options(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{"write", no_argument, NULL, 'w'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int c;

	*o = (struct options){0};
	opterr = 0;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'w') {
			o->write = true;
		} else if (c == 'j') {
			o->json = true;
		} else {
			fprintf(stderr, "computron verify: %s: unknown option\n", argv[optind - 1]);
			return -EINVAL;
		}
	}
	if (optind + 1 != argc) {
		fprintf(stderr, "usage: computron verify DIR [--write] [--json]\n");
		return -EINVAL;
	}
	o->dir = argv[optind];
	return 0;
}

int ctn_tool_verify(int argc, char **argv)
{
	struct ctn_err err = {0};
	struct options o;
	struct report r = {.o = &o};
	int rc = 0;

	if (parse_options(argc, argv, &o))
		return CTN_EXIT_USAGE;
	r.dir = strdup(o.dir);
	if (o.json)
		r.failures = json_array();
	if (!r.dir || (o.json && !r.failures)) {
		fprintf(stderr, "computron verify: out of memory\n");
		rc = -ENOMEM;
		goto out;
	}
	ctn_one_line(r.dir);
	if (verify(&r, &err))
		report_failure(&r, err.msg);
	if (o.json)
		rc = print_json(&r);
	else
		print_text(&r);
	if (rc == 0 && fflush(stdout) != 0)
		rc = -errno;
	if (rc)
		fprintf(stderr, "computron verify: stdout: %s\n", strerror(-rc));
out:
	json_decref(r.failures);
	free(r.dir);
	return rc || r.failed ? CTN_EXIT_FAILED : 0;
}
