// SPDX-License-Identifier: MIT
/* What the kernel itself says of our mappings: /proc/self/smaps. */
#include "pool/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ours(const struct ctn_memory *memory, uint32_t count, uint64_t addr)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t begin = (uintptr_t)memory[i].addr;

		if (addr >= begin && addr - begin < memory[i].bytes)
			return true;
	}
	return false;
}

/* "Rss:    123 kB" -> bytes, when the line starts with `field`; else 0. */
static uint64_t field_bytes(const char *line, const char *field)
{
	size_t n = strlen(field);

	if (strncmp(line, field, n) != 0)
		return 0;
	return strtoull(line + n, NULL, 10) * CTN_KIB;
}

/* Pages of hugetlb are not part of Rss. */
static uint64_t hugetlb_bytes(const char *line)
{
	return field_bytes(line, "Shared_Hugetlb:") + field_bytes(line, "Private_Hugetlb:");
}

int ctn_memory_usage(const struct ctn_memory *memory, uint32_t count, uint64_t *resident,
		     uint64_t *huge)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	bool counted = false;
	char *line = NULL;
	size_t cap = 0;

	*resident = 0;
	*huge = 0;
	if (!f)
		return -errno;
	while (getline(&line, &cap, f) >= 0) {
		uint64_t begin, end;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2) {
			counted = ours(memory, count, begin);
			continue;
		}
		if (!counted)
			continue;
		*resident += field_bytes(line, "Rss:") + hugetlb_bytes(line);
		*huge += field_bytes(line, "AnonHugePages:");
		*huge += field_bytes(line, "ShmemPmdMapped:") + hugetlb_bytes(line);
	}
	free(line);
	fclose(f);
	return 0;
}
