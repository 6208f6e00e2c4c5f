// SPDX-License-Identifier: MIT
/* How much memory there is for us: /proc/meminfo and the control groups. */
#include "daemon/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of one number; UINT64_MAX when it has none ("max") or cannot be read. */
static uint64_t read_number(const char *path)
{
	unsigned long long v = UINT64_MAX;
	FILE *f = fopen(path, "re");

	if (!f)
		return UINT64_MAX;
	if (fscanf(f, "%llu", &v) != 1)
		v = UINT64_MAX;
	fclose(f);
	return v;
}

static uint64_t available(void)
{
	unsigned long long kib, v = UINT64_MAX;
	char line[256];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			v = kib * 1024;
	}
	if (f)
		fclose(f);
	return v;
}

/* The least limit from a group up to the root of its hierarchy. */
static uint64_t least_limit(const char *root, const char *group, const char *file)
{
	uint64_t least = UINT64_MAX;
	char dir[2048], path[4352];

	snprintf(dir, sizeof(dir), "%s", group);
	for (;;) {
		char *slash = strrchr(dir, '/');

		snprintf(path, sizeof(path), "%s%s/%s", root, dir, file);
		least = CTN_MIN(least, read_number(path));
		if (!slash)
			return least;
		*slash = '\0';
	}
}

/* Lines of /proc/self/cgroup: "0::PATH" (v2), "N:memory:PATH" (v1). */
static uint64_t group_limit(void)
{
	uint64_t least = UINT64_MAX;
	char line[2048];
	FILE *f = fopen("/proc/self/cgroup", "re");

	while (f && fgets(line, sizeof(line), f)) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		uint64_t limit = UINT64_MAX;

		if (!path)
			continue;
		*path++ = '\0';
		path[strcspn(path, "\n")] = '\0';
		if (names[1] == '\0')
			limit = least_limit("/sys/fs/cgroup", path, "memory.max");
		else if (strstr(names + 1, "memory"))
			limit = least_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
		least = CTN_MIN(least, limit);
	}
	if (f)
		fclose(f);
	return least;
}

uint64_t ctn_default_pool_bytes(void)
{
	uint64_t bytes = CTN_MIN(available(), group_limit());

	return bytes == UINT64_MAX ? CTN_GIB : bytes / 4;
}
