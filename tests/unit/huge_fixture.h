/* SPDX-License-Identifier: MIT */
/* Huge pages of 2 MiB: as root, some are reserved for as long as the program runs. */
#ifndef CTN_HUGE_FIXTURE_H
#define CTN_HUGE_FIXTURE_H

#include "test.h"

#include <unistd.h>

#define HUGE_COUNTS "/sys/kernel/mm/hugepages/hugepages-2048kB/"

static unsigned long huge_before; /* that were reserved when we came */

static inline unsigned long huge_count(const char *name)
{
	unsigned long v = 0;
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), HUGE_COUNTS "%s", name);
	f = fopen(path, "re");
	if (f && fscanf(f, "%lu", &v) != 1)
		v = 0;
	if (f)
		fclose(f);
	return v;
}

static inline unsigned long huge_usable(void)
{
	return huge_count("free_hugepages") - huge_count("resv_hugepages");
}

static inline void huge_reserve(unsigned long pages)
{
	FILE *f = fopen("/proc/sys/vm/nr_hugepages", "we");

	if (f)
		fprintf(f, "%lu\n", pages);
	if (f)
		fclose(f);
}

static inline void huge_put_back(void)
{
	huge_reserve(huge_before);
}

/* Whether a program that wants so many of them can have them. */
static inline bool huge_have(unsigned long pages)
{
	static bool tried;

	if (!tried && huge_usable() < pages && geteuid() == 0) {
		huge_before = huge_count("nr_hugepages");
		atexit(huge_put_back);
		huge_reserve(huge_before + pages);
	}
	tried = true;
	return huge_usable() >= pages;
}

#endif
