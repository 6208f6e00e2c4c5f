// SPDX-License-Identifier: MIT
#include "daemon/options.h"
#include "sched/sched.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 4096

#define STRING(member) offsetof(struct ctn_options, member)

const struct ctn_option_def ctn_option_defs[] = {
	{"models-dir", "DIR", "serve each subfolder that holds a checkpoint", STRING(models_dir)},
	{"model", "NAME=DIR[,tp=N][,pp=N][,devices=LIST][,priority=N]",
	 "serve one checkpoint (repeatable); of higher priority, up to 8, is served first",
	 SIZE_MAX},
	{"device", "SPEC",
	 "host[:N],mem=SIZE,link=RATE[,uplink=A-B:RATE][,layer_ms=MS] (default: host)",
	 STRING(device)},
	{"pool", "[PROVIDER[:NAME],]size=SIZE[,hot=SIZE][,floor=SIZE][,segment=SIZE]",
	 "host memory for parameters (default: a quarter of what is available)", STRING(pool)},
	{"adopt-verify", "WHEN",
	 "hash again what a kmod pool had at the start: before (its first use), background or off "
	 "(default: background)",
	 STRING(adopt_verify)},
	{"stage-ahead", "on|off",
	 "read what is likely to be asked for from disk when it is idle (default: on)",
	 STRING(stage_ahead)},
	{"listen", "ADDR:PORT", "of the OpenAI API; port 0 picks one (default: 127.0.0.1:8000)",
	 STRING(listen)},
	{"socket", "PATH", "of the control socket", STRING(socket)},
	{"config", "FILE", "YAML with these options by name; the command line wins",
	 STRING(config)},
	{"policy", "NAME", "of the scheduler: default or lru (default: default)", STRING(policy)},
	{"decision-log", "FILE",
	 "all that the scheduler is told and decides, as JSON lines; computron sim --replay reads "
	 "it; what FILE had is kept as FILE.1",
	 STRING(decision_log)},
	{"max-queue", "N", "unfinished requests a model may have (default: 256)",
	 STRING(max_queue)},
	{"max-body", "SIZE", "of a request (default: 4M)", STRING(max_body)},
	{"stage-method", "NAME", "force one way to read the disk", STRING(stage_method)},
	{"log-level", "NAME", "error, warn, info or debug (default: info)", STRING(log_level)},
	{"version", NULL, "print the version", STRING(version)},
	{"help", NULL, "print this", STRING(help)},
	{0},
};

#define OPTION_COUNT (CTN_ARRAY_LEN(ctn_option_defs) - 1)

static char **string_of(struct ctn_options *o, const struct ctn_option_def *def)
{
	return (char **)((char *)o + def->offset);
}

static int set_string(char **where, const char *value, struct ctn_err *err)
{
	char *copy = strdup(value);

	if (!copy)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	free(*where);
	*where = copy;
	return 0;
}

int ctn_options_default(struct ctn_options *o, const struct ctn_option_def *def, const char *value,
			struct ctn_err *err)
{
	char **where = string_of(o, def);

	return *where ? 0 : set_string(where, value, err);
}

/* ---- models ---------------------------------------------------------------------------- */

static void model_free(struct ctn_model_option *m)
{
	free(m->name);
	free(m->dir);
	free(m->devices);
}

static int parse_count(const char *what, const char *s, uint32_t *out, struct ctn_err *err)
{
	uint64_t v;
	int rc;

	if (!s)
		return 0;
	rc = ctn_parse_u64(what, s, 1, MAX_RANKS, &v, err);
	if (!rc)
		*out = (uint32_t)v;
	return rc;
}

/* "2" or "0-3" */
static int add_devices(struct ctn_model_option *m, char *range, struct ctn_err *err)
{
	char *dash = strchr(range, '-');
	uint64_t first, last;
	uint32_t *devices;
	int rc;

	if (dash)
		*dash++ = '\0';
	rc = ctn_parse_u64("devices", range, 0, UINT32_MAX, &first, err);
	last = first;
	if (!rc && dash)
		rc = ctn_parse_u64("devices", dash, first, UINT32_MAX, &last, err);
	if (rc)
		return rc;
	if (last - first >= MAX_RANKS - m->device_count)
		return ctn_err_set(err, -ERANGE, "devices: expected at most %d", MAX_RANKS);
	devices = reallocarray(m->devices, m->device_count + (last - first) + 1, sizeof(*devices));
	if (!devices)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	m->devices = devices;
	while (first <= last)
		m->devices[m->device_count++] = (uint32_t)first++;
	return 0;
}

/* "0,2-3,1" */
static int parse_devices(const char *s, struct ctn_model_option *m, struct ctn_err *err)
{
	char *copy, *save = NULL;
	int rc = 0;

	if (!s)
		return 0;
	copy = strdup(s);
	if (!copy)
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
	for (char *t = copy ? strtok_r(copy, ",", &save) : NULL; t && !rc;
	     t = strtok_r(NULL, ",", &save))
		rc = add_devices(m, t, err);
	if (!rc && m->device_count == 0)
		rc = ctn_err_set(err, -EINVAL, "devices: expected a list of numbers, found none");
	free(copy);
	return rc;
}

int ctn_options_add_model_parts(struct ctn_options *o, const char *name, const char *dir,
				const char *tp, const char *pp, const char *devices,
				const char *priority, struct ctn_err *err)
{
	struct ctn_model_option *models, m = {0};
	int rc;

	if (!name || !name[0] || !dir || !dir[0])
		return ctn_err_set(err, -EINVAL, "model: expected a name and a folder");
	rc = set_string(&m.name, name, err);
	if (!rc)
		rc = set_string(&m.dir, dir, err);
	if (!rc)
		rc = parse_count("tp", tp, &m.tp, err);
	if (!rc)
		rc = parse_count("pp", pp, &m.pp, err);
	if (!rc)
		rc = parse_devices(devices, &m, err);
	if (!rc && priority)
		rc = ctn_parse_signed("priority", priority, CTN_SCHED_MAX_PRIORITY, &m.priority,
				      err);
	if (rc) {
		model_free(&m);
		return ctn_err_prefix(err, "model %s", name);
	}
	models = reallocarray(o->models, o->model_count + 1, sizeof(*models));
	if (!models) {
		model_free(&m);
		return ctn_err_set(err, -ENOMEM, "out of memory");
	}
	models[o->model_count++] = m;
	o->models = models;
	return 0;
}

int ctn_options_add_model(struct ctn_options *o, const char *spec, struct ctn_err *err)
{
	const char *known[] = {NULL, "tp", "pp", "devices", "priority", NULL};
	struct ctn_opts opts;
	int rc = ctn_opts_parse(spec, &opts, err);

	if (rc)
		return ctn_err_prefix(err, "--model");
	known[0] = opts.items[0].key;
	rc = ctn_opts_check(&opts, "--model", known, err);
	if (!rc && !opts.items[0].key[0])
		rc = ctn_err_set(err, -EINVAL, "--model \"%s\": expected NAME=DIR", spec);
	if (!rc)
		rc = ctn_options_add_model_parts(
			o, opts.items[0].key, opts.items[0].value, ctn_opts_get(&opts, "tp"),
			ctn_opts_get(&opts, "pp"), ctn_opts_get(&opts, "devices"),
			ctn_opts_get(&opts, "priority"), err);
	ctn_opts_free(&opts);
	return rc;
}

/* ---- the command line ------------------------------------------------------------------ */

static int take(struct ctn_options *o, const struct ctn_option_def *def, const char *value,
		struct ctn_err *err)
{
	if (def->offset == SIZE_MAX) {
		o->models_given = true;
		return ctn_options_add_model(o, value, err);
	}
	if (!def->value) {
		*(bool *)((char *)o + def->offset) = true;
		return 0;
	}
	return set_string(string_of(o, def), value, err);
}

int ctn_options_parse(int argc, char **argv, struct ctn_options *o, struct ctn_err *err)
{
	struct option table[OPTION_COUNT + 1] = {{0}};
	int c, index, rc = 0;

	*o = (struct ctn_options){0};
	for (size_t i = 0; i < OPTION_COUNT; i++)
		table[i] = (struct option){.name = ctn_option_defs[i].name,
					   .has_arg = ctn_option_defs[i].value ? required_argument
									       : no_argument};
	/* Errors are ours to word: one line in the log, like all others. */
	opterr = 0;
	optind = 1;
	while (!rc && (c = getopt_long(argc, argv, ":", table, &index)) != -1) {
		if (c == ':')
			rc = ctn_err_set(err, -EINVAL, "%s: expected a value", argv[optind - 1]);
		else if (c == '?')
			rc = ctn_err_set(err, -EINVAL, "%s: unknown option; see --help",
					 argv[optind - 1]);
		else
			rc = take(o, &ctn_option_defs[index], optarg, err);
	}
	if (!rc && optind < argc)
		rc = ctn_err_set(err, -EINVAL, "%s: expected an option; see --help", argv[optind]);
	return rc;
}

void ctn_options_free(struct ctn_options *o)
{
	for (size_t i = 0; i < OPTION_COUNT; i++) {
		if (ctn_option_defs[i].value && ctn_option_defs[i].offset != SIZE_MAX)
			free(*string_of(o, &ctn_option_defs[i]));
	}
	for (size_t i = 0; i < o->model_count; i++)
		model_free(&o->models[i]);
	free(o->models);
}

void ctn_options_help(void)
{
	printf("Usage: computrond --models-dir DIR [OPTION...]\n"
	       "Serves Hugging Face checkpoints over the OpenAI API (computron).\n\n");
	for (size_t i = 0; i < OPTION_COUNT; i++)
		printf("  --%s%s%s\n        %s\n", ctn_option_defs[i].name,
		       ctn_option_defs[i].value ? " " : "",
		       ctn_option_defs[i].value ? ctn_option_defs[i].value : "",
		       ctn_option_defs[i].help);
	printf("\nSizes are 512M, 2G and the like, of 1024; rates are bytes a second, of 1000.\n");
}
