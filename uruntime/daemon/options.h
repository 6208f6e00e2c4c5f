/* SPDX-License-Identifier: MIT */
/* What computrond was told: command line, then the file, then defaults. Private to daemon/. */
#ifndef CTN_DAEMON_OPTIONS_H
#define CTN_DAEMON_OPTIONS_H

#include "base/base.h"

/* One --model. All strings are malloc'ed; tp, pp 0 and devices NULL when not given. */
struct ctn_model_option {
	char *name;
	char *dir;
	uint32_t tp, pp;
	uint32_t *devices;
	uint32_t device_count;
	int32_t priority;
};

/* Values as they were written; NULL when not given. All malloc'ed. */
struct ctn_options {
	char *config;
	char *models_dir;
	struct ctn_model_option *models;
	size_t model_count;
	bool models_given; /* on the command line: the file's do not count */
	char *device;
	char *pool;
	char *adopt_verify;
	char *stage_ahead;
	char *listen;
	char *socket;
	char *policy;
	char *decision_log;
	char *max_queue;
	char *max_body;
	char *stage_method;
	char *log_level;
	bool help;
	bool version;
};

/* One row an option: its name here and in the file is the same. */
struct ctn_option_def {
	const char *name;
	const char *value; /* as --help shows it; NULL: a flag, of the command line alone */
	const char *help;
	size_t offset; /* of the string or the flag; SIZE_MAX: --model */
};

/* Ends with a NULL name. */
extern const struct ctn_option_def ctn_option_defs[];

/* Reads the command line; -EINVAL naming what is wrong. Free in any case. */
int ctn_options_parse(int argc, char **argv, struct ctn_options *o, struct ctn_err *err);
void ctn_options_free(struct ctn_options *o);
/* To standard output. */
void ctn_options_help(void);

/* Sets a string option unless it has a value. -ENOMEM. */
int ctn_options_default(struct ctn_options *o, const struct ctn_option_def *def, const char *value,
			struct ctn_err *err);

/* A model as --model tells it: NAME=DIR[,tp=N][,pp=N][,devices=LIST][,priority=N]. */
int ctn_options_add_model(struct ctn_options *o, const char *spec, struct ctn_err *err);
/* Part by part, as the file may. NULL when not given. */
int ctn_options_add_model_parts(struct ctn_options *o, const char *name, const char *dir,
				const char *tp, const char *pp, const char *devices,
				const char *priority, struct ctn_err *err);

/* Adds what the YAML file says where the command line said nothing; config.c. The error names
 * file and line. */
int ctn_config_read(const char *path, struct ctn_options *o, struct ctn_err *err);

#endif
