// SPDX-License-Identifier: MIT
/* computron doctor: the command, and its ways to tell. */
#include "doctor.h"
#include "pool/pool.h"
#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define USAGE "usage: computron doctor [--models-dir DIR] [--pool SPEC] [--json]"

static const char *const state_names[] = {
	[CTN_DOCTOR_OK] = "ok",
	[CTN_DOCTOR_WORSE] = "worse",
	[CTN_DOCTOR_BLOCKED] = "blocked",
};

struct ctn_finding *ctn_doctor_add(struct ctn_doctor *d, const char *name)
{
	struct ctn_finding *f = &d->findings[d->count++];

	CTN_ASSERT(d->count <= CTN_FINDINGS_MAX);
	*f = (struct ctn_finding){.name = name};
	return f;
}

void ctn_doctor_judge(struct ctn_finding *f, enum ctn_doctor_state state, const char *why, ...)
{
	va_list ap;

	f->state = state;
	va_start(ap, why);
	vsnprintf(f->why, sizeof(f->why), why, ap);
	va_end(ap);
}

void ctn_doctor_examine(struct ctn_doctor *d)
{
	d->count = 0;
	ctn_doctor_disk(d);
	ctn_doctor_memory(d);
	/* Paths may be any bytes, JSON and a terminal not. */
	for (uint32_t i = 0; i < d->count; i++) {
		ctn_one_line(d->findings[i].asked);
		ctn_one_line(d->findings[i].got);
		ctn_one_line(d->findings[i].why);
		ctn_one_line(d->findings[i].mend);
	}
}

/* ---- telling ----------------------------------------------------------------------------- */

static uint32_t count_of(const struct ctn_doctor *d, enum ctn_doctor_state state)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < d->count; i++)
		n += d->findings[i].state == state;
	return n;
}

static void print_text(const struct ctn_doctor *d)
{
	for (uint32_t i = 0; i < d->count; i++) {
		const struct ctn_finding *f = &d->findings[i];

		printf("%-8s %-14s asked for %s; got %s\n", state_names[f->state], f->name,
		       f->asked, f->got);
		if (f->state == CTN_DOCTOR_OK)
			continue;
		printf("%-8s   why   %s\n%-8s   mend  %s\n", "", f->why, "", f->mend);
	}
	printf("%u ok, %u worse than they could be, %u blocked\n", count_of(d, CTN_DOCTOR_OK),
	       count_of(d, CTN_DOCTOR_WORSE), count_of(d, CTN_DOCTOR_BLOCKED));
}

/* A member that an OK finding does not have. */
static json_t *text_or_null(const struct ctn_finding *f, const char *text)
{
	return f->state == CTN_DOCTOR_OK ? json_null() : json_string(text);
}

static int print_json(const struct ctn_doctor *d)
{
	json_t *list = json_array(), *root;
	int rc = 0;

	for (uint32_t i = 0; i < d->count; i++) {
		const struct ctn_finding *f = &d->findings[i];

		rc |= json_array_append_new(
			list,
			json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", f->name, "state",
				  state_names[f->state], "asked", f->asked, "got", f->got, "why",
				  text_or_null(f, f->why), "mend", text_or_null(f, f->mend)));
	}
	root = json_pack("{s:o, s:i, s:i, s:i}", "findings", list, "ok",
			 (int)count_of(d, CTN_DOCTOR_OK), "worse",
			 (int)count_of(d, CTN_DOCTOR_WORSE), "blocked",
			 (int)count_of(d, CTN_DOCTOR_BLOCKED));
	if (rc == 0)
		rc = root ? json_dumpf(root, stdout, JSON_INDENT(1)) : -1;
	json_decref(root);
	if (rc)
		return -ENOMEM;
	putchar('\n');
	return 0;
}

/* ---- the pool ---------------------------------------------------------------------------- */

enum ctn_doctor_state ctn_doctor_without(const struct ctn_doctor *d, const char *provider)
{
	return d->provider && strcmp(d->provider, provider) == 0 ? CTN_DOCTOR_BLOCKED
								 : CTN_DOCTOR_WORSE;
}

/* The same word, which lives as long as the program. */
static int find_provider(const char *name, const char **provider, struct ctn_err *err)
{
	for (uint32_t i = 0; (*provider = ctn_pool_provider_name(i)); i++) {
		if (strcmp(*provider, name) == 0)
			return 0;
	}
	return ctn_err_set(err, -ENOENT, "there is no provider \"%s\"", name);
}

/* ---- the command ------------------------------------------------------------------------- */

static int parse_pool(struct ctn_doctor *d, const char *spec, struct ctn_err *err)
{
	struct ctn_pool_config cfg = {.bytes = d->pool_bytes};
	struct ctn_opts opts;
	int rc = ctn_pool_parse_spec(spec, &opts, &cfg, err);

	if (rc == 0 && cfg.provider)
		rc = find_provider(cfg.provider, &d->provider, err);
	ctn_opts_free(&opts);
	d->pool_bytes = cfg.bytes;
	return rc ? ctn_err_prefix(err, "--pool") : 0;
}

static int parse_options(int argc, char **argv, struct ctn_doctor *d, bool *json,
			 struct ctn_err *err)
{
	static const struct option longs[] = {
		{"models-dir", required_argument, NULL, 'm'},
		{"pool", required_argument, NULL, 'P'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	int c, rc = 0;

	opterr = 0;
	while (!rc && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'm')
			d->models_dir = optarg;
		else if (c == 'P')
			rc = parse_pool(d, optarg, err);
		else if (c == 'j')
			*json = true;
		else
			rc = ctn_err_set(err, -EINVAL,
					 "%s: unknown option, or one without its value",
					 argv[optind - 1]);
	}
	if (rc == 0 && optind < argc)
		rc = ctn_err_set(err, -EINVAL, "%s", USAGE);
	return rc;
}

/* 0 also when something is worse than it could be: it is so on most machines, and the daemon
 * serves there. 1 when something is in its way. */
int ctn_tool_doctor(int argc, char **argv)
{
	struct ctn_doctor d = {.root = "", .pool_bytes = ctn_pool_default_bytes()};
	struct ctn_err err = {0};
	bool json = false;
	int rc = 0;

	if (parse_options(argc, argv, &d, &json, &err)) {
		fprintf(stderr, "computron doctor: %s\n", err.msg);
		return CTN_EXIT_USAGE;
	}
	/* What the parts would log is in the findings. */
	ctn_log_set_level(CTN_LOG_WARN);
	ctn_doctor_examine(&d);
	if (json)
		rc = print_json(&d);
	else
		print_text(&d);
	if (rc || fflush(stdout) != 0) {
		fprintf(stderr, "computron doctor: stdout: %s\n", strerror(rc ? -rc : errno));
		return CTN_EXIT_FAILED;
	}
	return count_of(&d, CTN_DOCTOR_BLOCKED) ? CTN_EXIT_FAILED : 0;
}
