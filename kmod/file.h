/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Pool files: what a process holds in a pool, and that it ends with the file.
 */
#ifndef COMPUTRON_FILE_H
#define COMPUTRON_FILE_H

#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/xarray.h>

#include "pool.h"

/**
 * struct computron_file - an open pool file
 * @pool: the pool, with a reference
 * @number: of the file, never used again
 * @writer: may alloc, seal, evict and map for writing
 * @lock: guards @leases and @hot
 * @leases: how many, by id of the frame
 * @hot: a bit for each unit that it made hot; NULL: none ever
 * @loading: its LOADING frames; frames.lock of the pool
 * @position: of the next event to read; frames.lock of the pool
 */
struct computron_file {
	struct computron_pool *pool;
	u64 number;
	bool writer;
	struct mutex lock;
	struct xarray leases;
	unsigned long *hot;
	struct list_head loading;
	u64 position;
};

struct file *computron_file_new(struct computron_pool *pool, bool writer);
struct computron_file *computron_file_of(struct file *filp);

/* lease.c */
int computron_file_lease_begin(struct computron_file *file, u64 id);
void computron_file_lease_end(struct computron_file *file, u64 id, bool made);
bool computron_file_has_lease(struct computron_file *file, u64 id);
int computron_file_lease(struct computron_file *file, const struct computron_ref *ref);
int computron_file_release(struct computron_file *file, const struct computron_ref *ref);
int computron_file_hot(struct computron_file *file, u64 offset, u64 bytes, bool on);
void computron_file_drop_all(struct computron_file *file);

#endif
