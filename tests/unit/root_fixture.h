/* SPDX-License-Identifier: MIT */
/* A folder that stands for "/", for what reads /proc and /sys. */
#ifndef CTN_ROOT_FIXTURE_H
#define CTN_ROOT_FIXTURE_H

#include "test.h"

#include <limits.h>
#include <sys/stat.h>

/* Writes a file, and the folders above it, below a root that stands for "/". */
static inline void ctn_root_put(const char *root, const char *path, const char *text)
{
	char full[2 * PATH_MAX];
	FILE *file;

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *s = full + strlen(root) + 1; (s = strchr(s, '/')); s++) {
		*s = '\0';
		mkdir(full, 0755);
		*s = '/';
	}
	file = fopen(full, "we");
	CU_ASSERT_PTR_NOT_NULL_FATAL(file);
	fputs(text, file);
	fclose(file);
}

static inline const char *ctn_root_new(const char *name)
{
	static char root[PATH_MAX];

	snprintf(root, sizeof(root), "%s/%s", ctn_test_tmpdir(), name);
	CU_ASSERT_EQUAL_FATAL(mkdir(root, 0755), 0);
	return root;
}

#endif
