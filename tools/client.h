/* SPDX-License-Identifier: MIT */
/* What the commands that talk to a daemon share. */
#ifndef CTN_TOOLS_CLIENT_H
#define CTN_TOOLS_CLIENT_H

#include "client/ctn.h"

#include <stdbool.h>

struct ctn_tool_args {
	const char *socket; /* NULL: the default */
	bool json;
	const char *model; /* the argument, where the command takes one */
};

/* [--socket PATH] [--json] and, with `takes_model`, MODEL. 0, or CTN_EXIT_USAGE after a line on
 * standard error. */
int ctn_tool_args_parse(int argc, char **argv, bool takes_model, struct ctn_tool_args *args);

/* One line on standard error; returns CTN_EXIT_FAILED. */
int ctn_tool_call_failed(const char *command, const struct ctn_client *client);

#endif
