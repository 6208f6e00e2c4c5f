/* SPDX-License-Identifier: MIT */
/*
 * Private to pool/: where the bytes of a segment come from, for the providers whose frame
 * table is frames.c.
 */
#ifndef CTN_POOL_MEMORY_H
#define CTN_POOL_MEMORY_H

#include "base/base.h"

/* A mapped segment. [base, base + base_bytes) is what was reserved around it. */
struct ctn_memory {
	uint8_t *addr; /* aligned to CTN_EXTENT_ALIGN */
	uint64_t bytes;
	int node; /* NUMA node that it is bound to, -1 none */
	void *base;
	uint64_t base_bytes;
};

struct ctn_memory_ops {
	/* Reserves addresses, readable and writable, and commits no memory. Mappings of two
	 * segments never touch each other or anybody else's, so that the kernel keeps their
	 * books apart. -ENOMEM. */
	int (*map)(uint64_t bytes, int node, struct ctn_memory *memory, struct ctn_err *err);
	void (*unmap)(struct ctn_memory *memory);
	/* Commits memory to writable bytes, with the largest pages there are. Their content
	 * stays, also when others write to them. -ENOMEM. Any thread. */
	int (*populate)(uint8_t *addr, uint64_t bytes);
};

/* Addresses without access, aligned, apart from all others: a map of the above begins with it. */
int ctn_memory_reserve(uint64_t bytes, struct ctn_memory *memory, struct ctn_err *err);
/* And with all that was mapped there; an unmap of the above. */
void ctn_memory_unreserve(struct ctn_memory *memory);
/* Prefers the node for memory that is not there yet. Returns the node, or -1. */
int ctn_memory_bind(void *addr, uint64_t bytes, int node);

/* Faults in [addr, addr + bytes), several threads sharing a large piece. -ENOMEM. */
int ctn_populate(uint8_t *addr, uint64_t bytes);

/* What the kernel says of these mappings: resident bytes, and those in huge pages. */
int ctn_memory_usage(const struct ctn_memory *memory, uint32_t count, uint64_t *resident,
		     uint64_t *huge);

#endif
