// SPDX-License-Identifier: MIT
/* The computron command: a table of commands, each in a file of its own. */
#include "tools.h"
#include "base/base.h"
#include "client/ctn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct command {
	const char *name;
	const char *arguments;
	const char *summary;
	int (*run)(int argc, char **argv);
} commands[] = {
	{"inspect", "PATH [--tp N] [--pp N] [--json]",
	 "what a checkpoint or one of its files holds, and how it is split", ctn_tool_inspect},
	{"status", "[--json] [--socket PATH]", "what a running computrond holds", ctn_tool_status},
	{"load", "MODEL [--json] [--socket PATH]", "make a model resident on its devices",
	 ctn_tool_control},
	{"evict", "MODEL [--json] [--socket PATH]", "drop a model from devices and host memory",
	 ctn_tool_control},
	{"pin", "MODEL [--json] [--socket PATH]", "keep a model from being dropped",
	 ctn_tool_control},
	{"unpin", "MODEL [--json] [--socket PATH]", "undo pin", ctn_tool_control},
	{"verify", "DIR [--write] [--json]",
	 "the bytes of a checkpoint against its manifest; --write: make the manifest",
	 ctn_tool_verify},
	{"doctor", "[--models-dir DIR] [--pool SPEC] [--json]",
	 "what this machine does not give, why, and the command that mends it", ctn_tool_doctor},
	{"bench",
	 "swap --device SPEC (--synthetic FAMILY,bytes=SIZE | --model DIR --model DIR) [--tp N]\n"
	 "        [--pp N] [--rounds N] [--pool SPEC] [--json]",
	 "how long a switch between two models takes, beside the bare copy", ctn_tool_bench},
	{"bench",
	 "ttft --device SPEC [--synthetic FAMILY,bytes=SIZE | --model DIR --model DIR] [--tp N]\n"
	 "        [--pp N] [--rounds N] [--pool SPEC] [--json]",
	 "how long the first token takes, cold, warm and partly resident, beside its bound",
	 ctn_tool_bench},
	{"bench",
	 "stage FILE [--method NAME] [--provider NAME] [--peer fio] [--rounds N] [--depth N]\n"
	 "        [--cached] [--table] [--json]",
	 "how fast a file comes into host memory, beside fio; --table: by every method and "
	 "provider",
	 ctn_tool_bench},
	{"bench",
	 "sched [--models N] [--requests N] [--decisions N] [--policy NAME] [--pool-unknown] "
	 "[--json]",
	 "the processor time of one decision of the scheduler", ctn_tool_bench},
	{"sim",
	 "--workload SPEC [--policy NAME[,NAME...]] [--cluster NAME|FILE] [--model SPEC] [--tp N]\n"
	 "        [--pp N] (--resident N | --resident-bytes P%) [--max-batch N] [--seed N] "
	 "[--hours H]\n"
	 "        [--tokens N] [--host-bytes P%] [--without pauses|load-ahead|stage-ahead]\n"
	 "        [--svg FILE] [--json] | --calibrate | --replay FILE [--json]",
	 "policies side by side under a virtual clock; SPEC: gamma:rates=R,...,cv=C,\n"
	 "        azure:FILE,models=N[,zipf=S], servegen:DIR,rate=R, csv:FILE",
	 ctn_tool_sim},
};

static bool is_help(const char *word)
{
	return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* Of the command of this name, or of all. False when there is none of it. */
static bool print_commands(FILE *out, const char *name)
{
	bool found = false;

	for (size_t i = 0; i < CTN_ARRAY_LEN(commands); i++) {
		if (name && strcmp(commands[i].name, name) != 0)
			continue;
		fprintf(out, "  %s %s\n        %s\n", commands[i].name, commands[i].arguments,
			commands[i].summary);
		found = true;
	}
	return found;
}

static void print_help(FILE *out)
{
	fprintf(out, "usage: computron COMMAND [ARGUMENTS]\n\n");
	print_commands(out, NULL);
	fprintf(out, "  help [COMMAND], --help\n        this text, or that of one command\n"
		     "  --version\n");
}

static int unknown(const char *name)
{
	fprintf(stderr, "computron: unknown command %s; see computron help\n", name);
	return CTN_EXIT_USAGE;
}

static int run(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;

	if (!name) {
		print_help(stderr);
		return CTN_EXIT_USAGE;
	}
	if (strcmp(name, "help") == 0 && argc > 2)
		return print_commands(stdout, argv[2]) ? 0 : unknown(argv[2]);
	if (strcmp(name, "help") == 0 || is_help(name)) {
		print_help(stdout);
		return 0;
	}
	if (strcmp(name, "--version") == 0) {
		printf("computron %s\n", CTN_VERSION);
		return 0;
	}
	for (size_t i = 0; i < CTN_ARRAY_LEN(commands); i++) {
		if (strcmp(commands[i].name, name) != 0)
			continue;
		for (int a = 2; a < argc; a++)
			if (is_help(argv[a]))
				return print_commands(stdout, name) ? 0 : CTN_EXIT_FAILED;
		return commands[i].run(argc - 1, argv + 1);
	}
	return unknown(name);
}

/* What was to be printed may not have been: nobody is to take half of it for all. */
int main(int argc, char **argv)
{
	int status = run(argc, argv);
	bool flushed = fflush(stdout) == 0;

	if ((flushed && !ferror(stdout)) || status)
		return status;
	fprintf(stderr, "computron: standard output: %s\n",
		flushed ? "not all was written" : strerror(errno));
	return CTN_EXIT_FAILED;
}
