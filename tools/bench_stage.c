// SPDX-License-Identifier: MIT
/*
 * computron bench stage: how fast the daemon's stage brings a file into host memory.
 *
 * The frame has all its memory before the clock starts, and the first run, which registers that
 * memory with the kernel, does not count. A round: fio, ours, fio. Each of ours finds the file out
 * of the page cache (or in it, --cached), an overwritten frame, and ends with the digest of what
 * arrived, which is not timed. Digests that the stage itself makes are timed in rounds of their
 * own, so that their cost is told apart.
 */
#include "bench.h"
#include "bench_stage.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS       11
#define TABLE_ROUNDS 3
#define HASH_ROUNDS  3
#define ROUNDS_MAX   100000
#define DEPTH        16 /* the daemon's */
#define DEPTH_MAX    1024
#define USAGE                                                                               \
	"usage: computron bench stage FILE [--method NAME] [--provider NAME] [--peer fio] " \
	"[--rounds N] [--depth N] [--cached] [--table] [--json]"

struct options {
	const char *path;
	struct ctn_stage_rig_config rig;
	uint32_t rounds; /* 0: as many as there should be */
	bool peer;
	bool table;
	bool json;
};

/* ---- rounds ------------------------------------------------------------------------------ */

static int run_round(struct ctn_stage_rig *rig, struct ctn_stage_samples *s, uint32_t i,
		     struct ctn_err *err)
{
	struct ctn_stage_run *peers = &s->peers[2 * (size_t)i];
	int rc = 0;

	if (s->with_peer)
		rc = ctn_stage_fio(rig->file, rig->cfg->depth, &peers[0], err);
	if (rc == 0)
		rc = ctn_stage_rig_run(rig, false, &s->ours[i], err);
	if (rc == 0 && s->with_peer)
		rc = ctn_stage_fio(rig->file, rig->cfg->depth, &peers[1], err);
	s->rounds = i + 1;
	return rc;
}

/* What was got, when all of it is in use. */
static void take_notes(struct ctn_stage_rig *rig, struct ctn_stage_samples *s)
{
	struct ctn_stage_stats stage;
	struct ctn_pool_stats pool;

	ctn_stage_get_stats(rig->stage, &stage);
	ctn_pool_get_stats(rig->pool, true, &pool);
	memcpy(s->method_why, stage.why, sizeof(s->method_why));
	memcpy(s->pool_why, pool.why, sizeof(s->pool_why));
	s->provider = pool.provider;
	s->populate_s = rig->populate_s * (double)CTN_GIB / (double)pool.total_bytes;
	s->register_s = rig->register_s * (double)CTN_GIB / (double)pool.total_bytes;
	if (pool.resident_bytes)
		s->huge_ratio = (double)pool.huge_bytes / (double)pool.resident_bytes;
}

static int run_rounds(struct ctn_stage_rig *rig, uint32_t rounds, struct ctn_stage_samples *s,
		      struct ctn_err *err)
{
	struct ctn_stage_run warm_up;
	int rc = ctn_stage_rig_run(rig, false, &warm_up, err);

	for (uint32_t i = 0; i < rounds && rc == 0; i++)
		rc = run_round(rig, s, i, err);
	if (rc)
		return rc;
	take_notes(rig, s);
	rc = ctn_stage_rig_run(rig, true, &warm_up, err);
	for (uint32_t i = 0; i < HASH_ROUNDS && rc == 0; i++) {
		rc = ctn_stage_rig_run(rig, true, &s->hashed[i], err);
		s->hash_rounds = i + 1;
	}
	return rc;
}

/* Rounds of one method and one provider; free the samples when it is 0. */
static int measure(struct ctn_stage_file *file, const struct ctn_stage_rig_config *cfg,
		   uint32_t rounds, bool peer, struct ctn_stage_samples *s, struct ctn_err *err)
{
	struct ctn_stage_rig rig;
	int rc = ctn_stage_samples_init(s, rounds, HASH_ROUNDS);

	if (rc)
		return ctn_err_set(err, rc, "out of memory");
	s->with_peer = peer;
	rc = ctn_stage_rig_open(file, cfg, &rig, err);
	if (rc == 0) {
		rc = run_rounds(&rig, rounds, s, err);
		ctn_stage_rig_close(&rig);
	}
	if (rc)
		ctn_stage_samples_free(s);
	return rc;
}

static int run_one(const struct options *o, struct ctn_stage_file *file, struct ctn_err *err)
{
	struct ctn_stage_samples s;
	int rc = measure(file, &o->rig, o->rounds ? o->rounds : ROUNDS, o->peer, &s, err);

	if (rc)
		return rc;
	rc = ctn_stage_report(file, &o->rig, &s, o->json, err);
	ctn_stage_samples_free(&s);
	return rc;
}

/* A method or a provider that does not work here is a row that says why. */
static int run_row(const struct options *o, struct ctn_stage_file *file, int method,
		   const char *provider, struct ctn_stage_row *row, struct ctn_err *err)
{
	struct ctn_stage_rig_config cfg = o->rig;
	struct ctn_stage_samples s;
	int rc;

	cfg.method = method;
	cfg.provider = provider;
	*row = (struct ctn_stage_row){.method =
					      ctn_stage_method_name((enum ctn_stage_method)method),
				      .provider = provider};
	if (measure(file, &cfg, o->rounds ? o->rounds : TABLE_ROUNDS, false, &s, &row->err))
		return row->err.code == -EBADMSG ? ctn_err_set(err, -EBADMSG, "%s", row->err.msg)
						 : 0;
	rc = ctn_stage_compute(&s, &row->figures);
	row->huge_ratio = s.huge_ratio;
	row->populate_s = s.populate_s;
	row->register_s = s.register_s;
	ctn_stage_samples_free(&s);
	return rc ? ctn_err_set(err, rc, "out of memory") : 0;
}

static int run_table(const struct options *o, struct ctn_stage_file *file, struct ctn_err *err)
{
	struct ctn_stage_row *rows;
	uint32_t providers = 0, n = 0;
	int rc = 0;

	while (ctn_pool_provider_name(providers))
		providers++;
	rows = calloc((size_t)CTN_STAGE_METHODS * providers, sizeof(*rows));
	if (!rows)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	for (int m = 0; m < CTN_STAGE_METHODS; m++) {
		for (uint32_t p = 0; p < providers && rc == 0; p++)
			rc = run_row(o, file, m, ctn_pool_provider_name(p), &rows[n++], err);
	}
	if (rc == 0)
		rc = ctn_stage_table(file, rows, n, o->json, err);
	free(rows);
	return rc;
}

/* ---- the command ------------------------------------------------------------------------- */

static int parse_number(const char *what, uint64_t max, uint32_t *out, struct ctn_err *err)
{
	uint64_t v = 0;
	int rc = ctn_parse_u64(what, optarg, 1, max, &v, err);

	*out = (uint32_t)v;
	return rc;
}

static int parse_method(int *out, struct ctn_err *err)
{
	enum ctn_stage_method method;

	if (ctn_stage_method_parse(optarg, &method))
		return ctn_err_set(err, -EINVAL, "--method: there is no \"%s\"", optarg);
	*out = (int)method;
	return 0;
}

static int parse_option(int c, char **argv, struct options *o, struct ctn_err *err)
{
	switch (c) {
	case 'm':
		return parse_method(&o->rig.method, err);
	case 'p':
		o->rig.provider = optarg;
		return 0;
	case 'P':
		if (strcmp(optarg, "fio") != 0)
			return ctn_err_set(err, -EINVAL, "--peer: expected fio, found %s", optarg);
		o->peer = true;
		return 0;
	case 'r':
		return parse_number("--rounds", ROUNDS_MAX, &o->rounds, err);
	case 'd':
		return parse_number("--depth", DEPTH_MAX, &o->rig.depth, err);
	case 'c':
		o->rig.cached = true;
		return 0;
	case 't':
		o->table = true;
		return 0;
	case 'j':
		o->json = true;
		return 0;
	}
	return ctn_err_set(err, -EINVAL, "%s: unknown option, or one without its value",
			   argv[optind - 1]);
}

static int parse_options(int argc, char **argv, struct options *o, struct ctn_err *err)
{
	static const struct option longs[] = {
		{"method", required_argument, NULL, 'm'},
		{"provider", required_argument, NULL, 'p'},
		{"peer", required_argument, NULL, 'P'},
		{"rounds", required_argument, NULL, 'r'},
		{"depth", required_argument, NULL, 'd'},
		{"cached", no_argument, NULL, 'c'},
		{"table", no_argument, NULL, 't'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int c, rc = 0;

	*o = (struct options){.rig = {.method = -1, .depth = DEPTH}};
	opterr = 0;
	while (!rc && (c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		rc = parse_option(c, argv, o, err);
	if (rc)
		return rc;
	if (optind + 1 != argc)
		return ctn_err_set(err, -EINVAL, "%s", USAGE);
	if (o->table && (o->peer || o->rig.method >= 0 || o->rig.provider))
		return ctn_err_set(err, -EINVAL,
				   "--table is of all methods and providers, without a peer");
	if (o->peer && o->rig.cached)
		return ctn_err_set(err, -EINVAL,
				   "--cached: fio reads from the disk, it would be no peer");
	o->path = argv[optind];
	return 0;
}

static int run(const struct options *o, struct ctn_err *err)
{
	struct ctn_stage_file file;
	int rc = ctn_stage_file_open(o->path, UINT64_MAX, &file, err);

	if (rc)
		return rc;
	rc = o->table ? run_table(o, &file, err) : run_one(o, &file, err);
	ctn_stage_file_close(&file);
	return rc;
}

int ctn_bench_stage(int argc, char **argv)
{
	struct ctn_err err = {0};
	struct options o;

	if (parse_options(argc, argv, &o, &err)) {
		fprintf(stderr, "computron bench stage: %s\n", err.msg);
		return CTN_EXIT_USAGE;
	}
	/* The stage's notes on its methods are part of the figures. */
	ctn_log_set_level(CTN_LOG_WARN);
	if (run(&o, &err) == 0)
		return 0;
	fprintf(stderr, "computron bench stage: %s\n", err.msg);
	return CTN_EXIT_FAILED;
}
