// SPDX-License-Identifier: MIT
/* How much memory this process may count on. */
#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a file below the root. The caller frees it. */
static int read_text(const char *root, const char *path, char **text)
{
	char full[PATH_MAX];

	if (snprintf(full, sizeof(full), "%s%s", root, path) >= (int)sizeof(full))
		return -ENAMETOOLONG;
	return ctn_read_text(full, text);
}

static int mem_available(const char *root, uint64_t *bytes)
{
	unsigned long long kib;
	char *text, *line;
	int rc = read_text(root, "/proc/meminfo", &text);

	if (rc)
		return rc;
	line = strstr(text, "MemAvailable:");
	rc = line && sscanf(line, "MemAvailable: %llu kB", &kib) == 1 ? 0 : -ENODATA;
	if (!rc)
		*bytes = kib * CTN_KIB;
	free(text);
	return rc;
}

/* Lowers *bytes to the limit in the file of a group, if there is one ("max" is none). */
static void apply_limit(const char *root, const char *mount, const char *group, const char *file,
			uint64_t *bytes)
{
	char path[PATH_MAX];
	char *text, *end;
	uint64_t limit;

	if (snprintf(path, sizeof(path), "%s%s/%s", mount, group, file) >= (int)sizeof(path) ||
	    read_text(root, path, &text))
		return;
	limit = strtoull(text, &end, 10);
	if (end != text)
		*bytes = CTN_MIN(*bytes, limit);
	free(text);
}

/* A group obeys its own limit and those of all above it; a container may see only the top. */
static void apply_limits_upward(const char *root, const char *mount, char *group, const char *file,
				uint64_t *bytes)
{
	for (;;) {
		char *slash = strrchr(group, '/');

		if (slash && !slash[1])
			*slash = '\0';
		apply_limit(root, mount, group, file, bytes);
		if (!*group || !slash)
			return;
		*slash = '\0';
	}
}

/* Whether the comma-separated list has the controller `name`. */
static bool has_controller(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *s = list;; s++) {
		if (strncmp(s, name, len) == 0 && (s[len] == ',' || s[len] == '\0'))
			return true;
		s = strchr(s, ',');
		if (!s)
			return false;
	}
}

/* Lines of /proc/self/cgroup are ID:CONTROLLERS:GROUP; v2's is 0::GROUP. */
static void apply_cgroup(const char *root, char *line, uint64_t *bytes)
{
	char *controllers = strchr(line, ':');
	char *group = controllers ? strchr(controllers + 1, ':') : NULL;

	if (!group)
		return;
	*controllers++ = '\0';
	*group++ = '\0';
	if (!*controllers)
		apply_limits_upward(root, "/sys/fs/cgroup", group, "memory.max", bytes);
	else if (has_controller(controllers, "memory"))
		apply_limits_upward(root, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes",
				    bytes);
}

uint64_t ctn_memory_group_limit(const char *root)
{
	uint64_t bytes = UINT64_MAX;
	char *text, *save = NULL;

	if (read_text(root, "/proc/self/cgroup", &text))
		return bytes; /* a kernel without cgroups */
	for (char *s = strtok_r(text, "\n", &save); s; s = strtok_r(NULL, "\n", &save))
		apply_cgroup(root, s, &bytes);
	free(text);
	return bytes;
}

int ctn_memory_usable(const char *root, uint64_t *bytes)
{
	if (mem_available(root, bytes))
		return -ENODATA;
	*bytes = CTN_MIN(*bytes, ctn_memory_group_limit(root));
	return 0;
}
