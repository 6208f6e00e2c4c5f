// SPDX-License-Identifier: MIT
/* Addresses for a segment, and the node that its memory is to come from. */
#include "pool/memory.h"
#include "pool/pool.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A kernel without NUMA has nothing to prefer. */
int ctn_memory_bind(void *addr, uint64_t bytes, int node)
{
	unsigned long mask[16] = {0};
	unsigned int bits = 8 * sizeof(mask[0]);

	if (node < 0 || (unsigned int)node >= bits * CTN_ARRAY_LEN(mask))
		return -1;
	mask[(unsigned int)node / bits] = 1ul << ((unsigned int)node % bits);
	if (syscall(SYS_mbind, addr, bytes, MPOL_PREFERRED, mask,
		    (unsigned long)bits * CTN_ARRAY_LEN(mask), 0ul) != 0)
		return -1;
	return node;
}

/*
 * One alignment longer than the segment: what is left over on either side stays without access,
 * which keeps neighbours apart and catches overruns.
 */
int ctn_memory_reserve(uint64_t bytes, struct ctn_memory *m, struct ctn_err *err)
{
	int rc;

	*m = (struct ctn_memory){
		.bytes = bytes, .base_bytes = bytes + CTN_EXTENT_ALIGN, .node = -1};
	m->base = mmap(NULL, m->base_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		       -1, 0);
	if (m->base == MAP_FAILED) {
		rc = -errno;
		return ctn_err_set(err, rc, "pool: cannot reserve a segment of %llu bytes: %s",
				   (unsigned long long)bytes, strerror(-rc));
	}
	m->addr = (uint8_t *)ctn_align_up((uintptr_t)m->base, CTN_EXTENT_ALIGN);
	return 0;
}

void ctn_memory_unreserve(struct ctn_memory *m)
{
	munmap(m->base, m->base_bytes);
}
