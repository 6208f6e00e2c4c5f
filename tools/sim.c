// SPDX-License-Identifier: MIT
/* computron sim: policies side by side on the same arrivals. */
#include "sim.h"
#include "sim_replay.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_POLICIES 16
/* Of a move: the virtual clock has room for thousands of them, one behind the other. */
#define MAX_MOVE_S 1e6

struct options {
	const char *cluster, *model, *workload, *svg, *replay;
	char *policies; /* a copy: it is cut at its commas */
	uint64_t tp, pp, max_batch, seed, resident;
	double resident_percent, host_percent, hours;
	uint64_t tokens;
	bool json, calibrate;
	bool without_pauses, without_load_ahead, without_stage_ahead;
};

static int parse_double(const char *what, double least, double most, double *v, struct ctn_err *err)
{
	char *end;

	*v = strtod(optarg, &end);
	if (*end == '%' && least == 0 && most == 100)
		end++;
	if (end == optarg || *end || !(*v > least && *v <= most))
		return ctn_err_set(err, -EINVAL,
				   "%s: expected a number over %g, up to %g, found \"%s\"", what,
				   least, most, optarg);
	return 0;
}

static int parse_without(struct options *o, struct ctn_err *err)
{
	if (strcmp(optarg, "pauses") == 0)
		o->without_pauses = true;
	else if (strcmp(optarg, "load-ahead") == 0)
		o->without_load_ahead = true;
	else if (strcmp(optarg, "stage-ahead") == 0)
		o->without_stage_ahead = true;
	else
		return ctn_err_set(err, -EINVAL,
				   "--without: expected pauses, load-ahead or stage-ahead, found "
				   "\"%s\"",
				   optarg);
	return 0;
}

static int parse_option(int c, struct options *o, struct ctn_err *err)
{
	switch (c) {
	case 'c':
		o->cluster = optarg;
		return 0;
	case 'm':
		o->model = optarg;
		return 0;
	case 't':
		return ctn_parse_u64("--tp", optarg, 1, CTN_SIM_MAX_DEVICES, &o->tp, err);
	case 'p':
		return ctn_parse_u64("--pp", optarg, 1, 8, &o->pp, err);
	case 'r':
		return ctn_parse_u64("--resident", optarg, 1, 100000, &o->resident, err);
	case 'R':
		return parse_double("--resident-bytes", 0, 100, &o->resident_percent, err);
	case 'h':
		return parse_double("--host-bytes", 0, 100, &o->host_percent, err);
	case 'T':
		return ctn_parse_u64("--tokens", optarg, 1, 100000, &o->tokens, err);
	case 'W':
		return parse_without(o, err);
	case 'b':
		return ctn_parse_u64("--max-batch", optarg, 1, 4096, &o->max_batch, err);
	case 'w':
		o->workload = optarg;
		return 0;
	case 'P':
		free(o->policies);
		o->policies = strdup(optarg);
		return o->policies ? 0 : ctn_err_set(err, -ENOMEM, "out of memory");
	case 's':
		return ctn_parse_u64("--seed", optarg, 0, UINT64_MAX, &o->seed, err);
	case 'H':
		return parse_double("--hours", 0, 1e6, &o->hours, err);
	case 'g':
		o->svg = optarg;
		return 0;
	case 'j':
		o->json = true;
		return 0;
	case 'y':
		o->replay = optarg;
		return 0;
	case 'C':
		o->calibrate = true;
		return 0;
	default:
		return -EINVAL; /* getopt has said why */
	}
}

static int parse_options(int argc, char **argv, struct options *o, struct ctn_err *err)
{
	static const struct option longs[] = {{"cluster", required_argument, NULL, 'c'},
					      {"model", required_argument, NULL, 'm'},
					      {"tp", required_argument, NULL, 't'},
					      {"pp", required_argument, NULL, 'p'},
					      {"resident", required_argument, NULL, 'r'},
					      {"resident-bytes", required_argument, NULL, 'R'},
					      {"host-bytes", required_argument, NULL, 'h'},
					      {"tokens", required_argument, NULL, 'T'},
					      {"without", required_argument, NULL, 'W'},
					      {"max-batch", required_argument, NULL, 'b'},
					      {"workload", required_argument, NULL, 'w'},
					      {"policy", required_argument, NULL, 'P'},
					      {"seed", required_argument, NULL, 's'},
					      {"hours", required_argument, NULL, 'H'},
					      {"svg", required_argument, NULL, 'g'},
					      {"replay", required_argument, NULL, 'y'},
					      {"json", no_argument, NULL, 'j'},
					      {"calibrate", no_argument, NULL, 'C'},
					      {NULL, 0, NULL, 0}};
	int c;

	optind = 1;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		int rc = parse_option(c, o, err);

		if (rc)
			return rc;
	}
	if (optind < argc)
		return ctn_err_set(err, -EINVAL, "unexpected argument \"%s\"", argv[optind]);
	if (o->calibrate || o->replay)
		return 0;
	if (!o->workload)
		return ctn_err_set(err, -EINVAL, "expected --workload");
	return 0;
}

/* ---- what is simulated ------------------------------------------------------------------ */

/* Bytes of the ranks of all models that lie on one device, most of all devices. */
static uint64_t all_bytes(const struct ctn_sim_setup *s)
{
	uint32_t groups = s->cluster.devices / (s->tp * s->pp);
	uint64_t sums[CTN_SIM_MAX_DEVICES] = {0}, most = 0;

	for (uint32_t i = 0; i < s->workload->models; i++) {
		sums[i % groups] += s->models[i].rank_bytes;
		most = CTN_MAX(most, sums[i % groups]);
	}
	return most;
}

static int size_devices(const struct options *o, struct ctn_sim_setup *s, struct ctn_err *err)
{
	uint64_t largest = 0;

	for (uint32_t i = 0; i < s->workload->models; i++)
		largest = CTN_MAX(largest, s->models[i].rank_bytes);
	if (o->resident && o->resident_percent > 0)
		return ctn_err_set(err, -EINVAL,
				   "expected --resident or --resident-bytes, not both");
	if (o->resident)
		s->device_bytes = o->resident * largest;
	else if (o->resident_percent > 0)
		s->device_bytes = (uint64_t)((double)all_bytes(s) * o->resident_percent / 100);
	else
		s->device_bytes = s->cluster.device_bytes;
	if (s->device_bytes < largest)
		return ctn_err_set(err, -EINVAL,
				   "a device of %llu bytes: the largest model has %llu on each; "
				   "give --resident or --resident-bytes",
				   (unsigned long long)s->device_bytes,
				   (unsigned long long)largest);
	return 0;
}

/* The pool's size, and who has a priority or is pinned. */
static int size_host(const struct options *o, struct ctn_sim_setup *s, struct ctn_sim_model *models,
		     struct ctn_err *err)
{
	uint64_t ranks = (uint64_t)s->tp * s->pp, all = 0, largest = 0;

	for (uint32_t i = 0; i < s->workload->models; i++) {
		all += ranks * models[i].rank_bytes;
		largest = CTN_MAX(largest, ranks * models[i].rank_bytes);
		if (i < CTN_SIM_MAX_NAMED) {
			models[i].priority = s->cluster.priorities[i];
			models[i].pinned = s->cluster.pinned[i];
		}
	}
	s->host_bytes = s->cluster.host_bytes;
	if (o->host_percent > 0)
		s->host_bytes = (uint64_t)((double)all * o->host_percent / 100);
	if (s->host_bytes && s->cluster.disk_bytes_per_s <= 0)
		return ctn_err_set(err, -EINVAL,
				   "--host-bytes: the cluster has no disk_bytes_per_s");
	if (s->host_bytes && s->host_bytes < 2 * largest)
		return ctn_err_set(err, -EINVAL,
				   "a pool of %llu bytes: expected twice those of the largest "
				   "model, %llu",
				   (unsigned long long)s->host_bytes,
				   (unsigned long long)(2 * largest));
	if (s->host_bytes >= all)
		s->host_bytes = 0; /* it holds every model */
	return 0;
}

/* By the largest model. */
static int check_moves(const struct ctn_sim_setup *s, struct ctn_err *err)
{
	const struct ctn_sim_cluster *c = &s->cluster;
	double largest = 0, load_s, stage_s = 0;

	for (uint32_t i = 0; i < s->workload->models; i++)
		largest = CTN_MAX(largest, (double)s->models[i].rank_bytes);
	load_s = largest / c->link_bytes_per_s + c->load_overhead_s;
	if (s->host_bytes)
		stage_s = largest * s->tp * s->pp / c->disk_bytes_per_s;
	if (load_s <= MAX_MOVE_S && stage_s <= MAX_MOVE_S)
		return 0;
	return ctn_err_set(err, -ERANGE,
			   "the largest model takes %.3g s to load and %.3g s to stage: expected "
			   "%.0e s at most",
			   load_s, stage_s, MAX_MOVE_S);
}

static int set_up(const struct options *o, struct ctn_sim_setup *s, struct ctn_sim_workload *w,
		  struct ctn_sim_model **models, struct ctn_err *err)
{
	const char *kind = o->model;
	int rc = ctn_sim_cluster_parse(o->cluster, &s->cluster, err);

	s->tp = (uint32_t)o->tp;
	s->pp = (uint32_t)o->pp;
	s->max_batch = (uint32_t)o->max_batch;
	s->tokens = (uint32_t)o->tokens;
	s->without_pauses = o->without_pauses;
	s->without_load_ahead = o->without_load_ahead;
	s->without_stage_ahead = o->without_stage_ahead;
	s->seed = o->seed;
	if (!rc && s->tp * s->pp > s->cluster.devices)
		rc = ctn_err_set(err, -EINVAL, "tp x pp = %u, the cluster has %u devices",
				 s->tp * s->pp, s->cluster.devices);
	if (!rc)
		rc = ctn_sim_workload_parse(o->workload, o->hours, o->seed, w, err);
	if (rc)
		return rc;
	s->workload = w;
	*models = calloc(w->models, sizeof(**models));
	if (!*models)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	s->models = *models;
	if (!kind)
		kind = w->mixed_sizes ? "bytes=2600000000,13400000000,26000000000,66000000000"
				      : "opt-13b";
	rc = ctn_sim_models_parse(kind, s->tp, s->pp, *models, w->models, err);
	if (!rc)
		rc = size_devices(o, s, err);
	if (!rc)
		rc = size_host(o, s, *models, err);
	return rc ? rc : check_moves(s, err);
}

/* ---- the command ------------------------------------------------------------------------ */

static int run_all(const struct options *o, const struct ctn_sim_setup *s,
		   struct ctn_sim_result *results, struct ctn_sim_figures *figures, uint32_t *count,
		   struct ctn_err *err)
{
	char *save = NULL;

	for (char *name = strtok_r(o->policies, ",", &save); name;
	     name = strtok_r(NULL, ",", &save)) {
		int rc;

		if (*count == MAX_POLICIES)
			return ctn_err_set(err, -EINVAL, "--policy: expected at most %d",
					   MAX_POLICIES);
		rc = ctn_sim_run(s, name, &results[*count], err);
		if (rc)
			return rc;
		rc = ctn_sim_figures(s, &results[*count], &figures[*count], err);
		(*count)++;
		if (rc)
			return rc;
	}
	return *count ? 0 : ctn_err_set(err, -EINVAL, "--policy: expected a name, found none");
}

static int simulate(const struct options *o, struct ctn_err *err)
{
	struct ctn_sim_result results[MAX_POLICIES] = {0};
	struct ctn_sim_figures figures[MAX_POLICIES] = {0};
	struct ctn_sim_workload workload = {0};
	struct ctn_sim_model *models = NULL;
	struct ctn_sim_setup setup = {0};
	uint32_t count = 0;
	int rc = set_up(o, &setup, &workload, &models, err);

	if (!rc)
		rc = run_all(o, &setup, results, figures, &count, err);
	if (!rc && o->json) {
		rc = ctn_sim_print_json(results, figures, count, err);
	} else if (!rc) {
		printf("%zu requests to %u models in %.0f s\n\n", workload.count, workload.models,
		       (double)workload.end_ns / 1e9);
		ctn_sim_print_table(results, figures, count);
		ctn_sim_print_cdf(results, figures, count);
	}
	if (!rc && o->svg)
		rc = ctn_sim_write_svg(o->svg, results, figures, count, err);
	for (uint32_t i = 0; i < count; i++) {
		ctn_sim_result_free(&results[i]);
		ctn_sim_figures_free(&figures[i]);
	}
	free(models);
	ctn_sim_workload_free(&workload);
	return rc;
}

/* -EBADMSG: sched decides otherwise than it did. */
static int replay(const struct options *o, struct ctn_err *err)
{
	struct ctn_replay r;
	int rc = ctn_sim_replay(o->replay, &r, err);

	if (rc == 0)
		rc = ctn_sim_replay_print(&r, o->json, err);
	if (rc == 0 && r.differ_at)
		rc = ctn_err_set(err, -EBADMSG, "line %llu: decided otherwise than in the log",
				 (unsigned long long)r.differ_at);
	ctn_sim_replay_free(&r);
	return rc;
}

static void print_calibration(void)
{
	struct ctn_sim_calibration rows[CTN_SIM_CALIBRATIONS];

	ctn_sim_calibrate(rows);
	printf("%-8s %-8s %12s %12s %12s\n", "tp,pp", "move", "published s", "model s", "left ms");
	for (size_t i = 0; i < CTN_ARRAY_LEN(rows); i++)
		printf("%u,%-6u %-8s %12.3f %12.3f %12.1f%s\n", rows[i].tp, rows[i].pp,
		       rows[i].load ? "load" : "offload", rows[i].published_s, rows[i].model_s,
		       1e3 * (rows[i].published_s - rows[i].model_s),
		       rows[i].bound ? "" : "  (not explained by the model)");
}

int ctn_tool_sim(int argc, char **argv)
{
	struct options o = {.cluster = "4xa100-pcie4",
			    .tp = 2,
			    .pp = 2,
			    .max_batch = 8,
			    .tokens = 1,
			    .seed = 1};
	struct ctn_err err = {0};
	int rc;

	o.policies = strdup("lru,computron2023-c,resident");
	rc = o.policies ? parse_options(argc, argv, &o, &err)
			: ctn_err_set(&err, -ENOMEM, "out of memory");
	if (rc) {
		if (err.msg[0])
			fprintf(stderr, "computron sim: %s\n", err.msg);
		free(o.policies);
		return rc == -ENOMEM ? CTN_EXIT_FAILED : CTN_EXIT_USAGE;
	}
	if (o.calibrate)
		print_calibration();
	else if (o.replay)
		rc = replay(&o, &err);
	else
		rc = simulate(&o, &err);
	if (rc)
		fprintf(stderr, "computron sim: %s\n", err.msg);
	free(o.policies);
	return rc ? CTN_EXIT_FAILED : 0;
}
