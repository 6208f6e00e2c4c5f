// SPDX-License-Identifier: MIT
/*
 * Runs a target on inputs that are there: replay PATH... Each input runs once as it is, and then
 * again and again with one allocation failing, another one each time: that must end in -ENOMEM, or
 * in what the input comes to anyway, and leave nothing behind. Linked with --wrap, so that the
 * allocations of our own code count; jansson, for one, does not survive all of its own failing.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Of an input with more allocations, this many are made to fail, evenly spread. */
#define MAX_FAILURES 48
#define INPUT_MAX    (4 * CTN_MIB)

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);

static unsigned long allocations, failing; /* the count of this run; which one fails, 0: none */

static bool fails(void)
{
	return ++allocations == failing;
}

/* The linker's names. */
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	return fails() ? NULL : __real_realloc(p, size);
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	return fails() ? NULL : __real_reallocarray(p, n, size);
}

char *__wrap_strdup(const char *s)
{
	return fails() ? NULL : __real_strdup(s);
}

char *__wrap_strndup(const char *s, size_t n)
{
	return fails() ? NULL : __real_strndup(s, n);
}

static int run(const char *data, size_t len, unsigned long failure)
{
	/* Exactly as long as the input, so that a sanitizer sees a read past its end. */
	uint8_t *copy = __real_malloc(len + !len);
	int rc;

	FUZZ_CHECK(copy);
	memcpy(copy, data, len);
	allocations = 0;
	failing = failure;
	rc = fuzz_one(copy, len);
	failing = 0;
	free(copy);
	return rc;
}

static void replay_file(const char *path)
{
	unsigned long count, step;
	char *data;
	size_t len;
	int rc;

	fprintf(stderr, "%s\n", path);
	FUZZ_CHECK(!ctn_read_file(path, INPUT_MAX, &data, &len, NULL));
	run(data, len, 0); /* what is allocated once is there from now on */
	rc = run(data, len, 0);
	count = allocations;
	step = (count + MAX_FAILURES - 1) / MAX_FAILURES;
	for (unsigned long i = 1; i <= count; i += step) {
		const int found = run(data, len, i);

		if (found != rc && found != -ENOMEM) {
			fprintf(stderr, "allocation %lu of %lu: expected %d or %d, found %d\n", i,
				count, rc, -ENOMEM, found);
			abort();
		}
	}
	free(data);
}

static void replay(const char *path)
{
	struct dirent **names;
	struct stat st;
	int n;

	if (stat(path, &st) || !S_ISDIR(st.st_mode)) {
		replay_file(path);
		return;
	}
	n = scandir(path, &names, NULL, alphasort);
	FUZZ_CHECK(n > 0);
	for (int i = 0; i < n; i++) {
		char inner[PATH_MAX];

		snprintf(inner, sizeof(inner), "%s/%s", path, names[i]->d_name);
		if (names[i]->d_name[0] != '.')
			replay(inner);
		free(names[i]);
	}
	free(names);
}

int main(int argc, char **argv)
{
	ctn_log_set_level(CTN_LOG_ERROR);
	for (int i = 1; i < argc; i++)
		replay(argv[i]);
	return 0;
}
