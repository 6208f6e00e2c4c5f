// SPDX-License-Identifier: MIT
/* computron bench: the benchmarks, each in a file of its own. */
#include "bench.h"
#include "tools.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} benchmarks[] = {
	{"sched", ctn_bench_sched},
	{"stage", ctn_bench_stage},
	{"swap", ctn_bench_swap},
	{"ttft", ctn_bench_ttft},
};

int ctn_tool_bench(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < CTN_ARRAY_LEN(benchmarks); i++) {
		if (strcmp(benchmarks[i].name, argv[1]) == 0)
			return benchmarks[i].run(argc - 1, argv + 1);
	}
	if (argc > 1)
		fprintf(stderr, "computron bench: unknown benchmark %s; expected", argv[1]);
	else
		fprintf(stderr, "computron bench: expected a benchmark:");
	for (size_t i = 0; i < CTN_ARRAY_LEN(benchmarks); i++)
		fprintf(stderr, "%s %s", i ? "," : "", benchmarks[i].name);
	fprintf(stderr, "\n");
	return CTN_EXIT_USAGE;
}
