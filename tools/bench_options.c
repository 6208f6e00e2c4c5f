// SPDX-License-Identifier: MIT
/* The options of the benchmarks that run on a rig, and the models that they name. */
#include "bench.h"
#include "synthetic.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 100000
#define USAGE                                                                                \
	"usage: computron bench %s --device SPEC (--synthetic FAMILY,bytes=SIZE[,seed=N] | " \
	"--model DIR --model DIR) [--tp N] [--pp N] [--rounds N] [--pool SPEC] [--json]"

/* What was given on the command line. */
struct given {
	const char *synthetic;
	const char *dirs[CTN_BENCH_MODELS];
	uint32_t dir_count;
};

static int parse_number(const char *what, uint64_t min, uint64_t max, uint32_t *out,
			struct ctn_err *err)
{
	uint64_t v = 0;
	int rc = ctn_parse_u64(what, optarg, min, max, &v, err);

	*out = (uint32_t)v;
	return rc;
}

static int parse_option(int c, char **argv, struct ctn_bench_options *o, struct given *given,
			struct ctn_err *err)
{
	switch (c) {
	case 'd':
		o->rig.device = optarg;
		return 0;
	case 's':
		given->synthetic = optarg;
		return 0;
	case 'm':
		if (given->dir_count == CTN_BENCH_MODELS)
			return ctn_err_set(err, -EINVAL, "--model: expected two, found more");
		given->dirs[given->dir_count++] = optarg;
		return 0;
	case 't':
		return parse_number("--tp", 1, CTN_MAX_DEVICES, &o->rig.tp, err);
	case 'p':
		return parse_number("--pp", 1, CTN_MAX_DEVICES, &o->rig.pp, err);
	case 'r':
		return parse_number("--rounds", 2, ROUNDS_MAX, &o->rounds, err);
	case 'P':
		o->rig.pool = optarg;
		return 0;
	case 'j':
		o->json = true;
		return 0;
	}
	return ctn_err_set(err, -EINVAL, "%s: unknown option, or one without its value",
			   argv[optind - 1]);
}

static int parse(const char *name, int argc, char **argv, struct ctn_bench_options *o,
		 struct given *given, struct ctn_err *err)
{
	static const struct option longs[] = {
		{"device", required_argument, NULL, 'd'},
		{"synthetic", required_argument, NULL, 's'},
		{"model", required_argument, NULL, 'm'},
		{"tp", required_argument, NULL, 't'},
		{"pp", required_argument, NULL, 'p'},
		{"rounds", required_argument, NULL, 'r'},
		{"pool", required_argument, NULL, 'P'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int c, rc = 0;

	opterr = 0;
	while (!rc && (c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		rc = parse_option(c, argv, o, given, err);
	if (rc)
		return rc;
	if (!given->synthetic && !given->dir_count)
		given->synthetic = o->synthetic;
	if (optind < argc || !o->rig.device || !given->synthetic == !given->dir_count ||
	    (given->dir_count && given->dir_count != CTN_BENCH_MODELS))
		return ctn_err_set(err, -EINVAL, USAGE, name);
	return 0;
}

/* The folders of the two models; the caller frees those of synthetic ones, made[]. */
static int find_models(const struct given *given, const char *dirs[CTN_BENCH_MODELS],
		       char *made[CTN_BENCH_MODELS], struct ctn_err *err)
{
	struct ctn_synthetic spec;
	int rc;

	memcpy(dirs, given->dirs, sizeof(given->dirs));
	if (!given->synthetic)
		return 0;
	rc = ctn_synthetic_parse(given->synthetic, &spec, err);
	/* The second model has the next seed. */
	for (uint32_t i = 0; i < CTN_BENCH_MODELS && rc == 0; i++, spec.seed++) {
		rc = ctn_synthetic_get(&spec, &made[i], err);
		dirs[i] = made[i];
	}
	if (rc)
		ctn_err_prefix(err, "--synthetic");
	return rc;
}

int ctn_bench_command(const char *name, int argc, char **argv, struct ctn_bench_options *o,
		      ctn_bench_run_fn *run)
{
	char *made[CTN_BENCH_MODELS] = {0};
	struct given given = {0};
	struct ctn_err err = {0};
	int status = 0;

	if (parse(name, argc, argv, o, &given, &err))
		status = CTN_EXIT_USAGE;
	else if (find_models(&given, o->rig.dirs, made, &err) || run(o, &err))
		status = CTN_EXIT_FAILED;
	for (uint32_t i = 0; i < CTN_BENCH_MODELS; i++)
		free(made[i]);
	if (status)
		fprintf(stderr, "computron bench %s: %s\n", name, err.msg);
	return status;
}
