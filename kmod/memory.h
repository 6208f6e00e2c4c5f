/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The memory behind the units of a pool: one file, of a private tmpfs mount with huge=always
 * (memory.c), or a user's memfd of huge pages (adopt.c). The mappings of users are mappings of that
 * file, so that they are what GUP, io_uring and the fault handlers know.
 *
 * Locking: none here. The caller sees to it that a range is not given back while it is in use; all
 * functions may sleep, but for computron_memory_populated.
 */
#ifndef COMPUTRON_MEMORY_H
#define COMPUTRON_MEMORY_H

#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/types.h>

/**
 * struct computron_memory - the file and how to treat it
 * @file: ours
 * @mnt: ours; NULL when adopted
 * @unit_bytes: what ranges are multiples of
 * @page_bytes: the least that a page of it has
 * @adopted: it is a memfd of huge pages
 */
struct computron_memory {
	struct file *file;
	struct vfsmount *mnt;
	u64 unit_bytes;
	u64 page_bytes;
	bool adopted;
};

/**
 * struct computron_survey - what there is in a range
 * @present: bytes that have memory
 * @huge: of them, in huge pages
 * @pinned: a page is pinned for DMA
 * @locked: a page is locked by somebody; looked at on request only
 */
struct computron_survey {
	u64 present;
	u64 huge;
	bool pinned;
	bool locked;
};

u64 computron_memory_unit(void);
int computron_memory_open(struct computron_memory *m, u64 bytes, int node);
int computron_memory_adopt(struct computron_memory *m, int fd, u64 *bytes);
bool computron_memory_let_go(struct computron_memory *m);
bool computron_memory_in_use(const struct computron_memory *m);
void computron_memory_close(struct computron_memory *m);

int computron_memory_populate(struct computron_memory *m, u64 offset, u64 bytes, int node);
bool computron_memory_end_faults(struct computron_memory *m, u64 offset, u64 bytes, bool wait);
void computron_memory_unmap(struct computron_memory *m, u64 offset, u64 bytes);
int computron_memory_punch(struct computron_memory *m, u64 offset, u64 bytes);
void computron_memory_survey(struct computron_memory *m, u64 offset, u64 bytes, bool locks,
			     struct computron_survey *s);
bool computron_memory_present(struct computron_memory *m, u64 offset, u64 bytes);
u64 computron_memory_populated(const struct computron_memory *m);

/* adopt.c, for memory.c */
int computron_adopted_populate(struct computron_memory *m, u64 offset, u64 bytes);
int computron_adopted_punch(struct computron_memory *m, u64 offset, u64 bytes);
unsigned int computron_adopted_shift(const struct computron_memory *m);

#endif
