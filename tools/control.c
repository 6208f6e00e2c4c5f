// SPDX-License-Identifier: MIT
/* computron load, evict, pin and unpin; and the options of all that talk to a daemon. */
#include "tools.h"
#include "client.h"

#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

int ctn_tool_args_parse(int argc, char **argv, bool takes_model, struct ctn_tool_args *args)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'}, {0}};
	int c;

	*args = (struct ctn_tool_args){0};
	optind = 1;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":", options, NULL)) != -1) {
		if (c == 's') {
			args->socket = optarg;
		} else if (c == 'j') {
			args->json = true;
		} else {
			fprintf(stderr, "computron %s: %s: %s\n", argv[0], argv[optind - 1],
				c == ':' ? "expected a value" : "unknown option");
			return CTN_EXIT_USAGE;
		}
	}
	if (argc - optind != (takes_model ? 1 : 0)) {
		fprintf(stderr, "usage: computron %s%s [--json] [--socket PATH]\n", argv[0],
			takes_model ? " MODEL" : "");
		return CTN_EXIT_USAGE;
	}
	args->model = takes_model ? argv[optind] : NULL;
	return 0;
}

int ctn_tool_call_failed(const char *command, const struct ctn_client *client)
{
	fprintf(stderr, "computron %s: %s\n", command,
		client ? ctn_client_error(client) : "out of memory");
	return CTN_EXIT_FAILED;
}

static void print_done(const char *text)
{
	json_t *json = json_loads(text, 0, NULL);
	const char *model = json_string_value(json_object_get(json, "model"));
	const char *done = json_string_value(json_object_get(json, "done"));

	if (model && done)
		printf("%s: %s done in %.3f s\n", model, done,
		       json_number_value(json_object_get(json, "seconds")));
	else
		puts(text);
	json_decref(json);
}

int ctn_tool_control(int argc, char **argv)
{
	struct ctn_tool_args args;
	struct ctn_client *client;
	char *text;
	int rc = ctn_tool_args_parse(argc, argv, true, &args);

	if (rc)
		return rc;
	client = ctn_client_open(args.socket);
	if (!client || ctn_client_model(client, args.model, argv[0], &text)) {
		rc = ctn_tool_call_failed(argv[0], client);
	} else {
		if (args.json)
			puts(text);
		else
			print_done(text);
		free(text);
	}
	if (client)
		ctn_client_close(client);
	return rc;
}
