/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Calls: ioctl of the device and of pool files. call.c copies arguments and checks what all calls
 * have in common; pool_calls.c and frame_calls.c do the work on copies in the kernel.
 */
#ifndef COMPUTRON_CALL_H
#define COMPUTRON_CALL_H

#include <linux/fs.h>

#include "file.h"

/**
 * struct computron_call - a call that is being made
 * @filp: on which
 * @file: the pool file; NULL on the device
 * @fd: a descriptor that the call gives the caller, once its answer has arrived there; -1: none
 * @opened: the file of @fd
 */
struct computron_call {
	struct file *filp;
	struct computron_file *file;
	int fd;
	struct file *opened;
};

/* Room for any argument. */
#define COMPUTRON_ARGUMENT_BYTES 256

long computron_device_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);
long computron_file_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);

int computron_call_give(struct computron_call *call, struct file *opened);

int computron_call_row(u64 rows, u32 number, u32 row_bytes, const void *row, u32 bytes);

int computron_call_info(struct computron_call *call, void *arg);
int computron_call_pool_create(struct computron_call *call, void *arg);
int computron_call_pool_open(struct computron_call *call, void *arg);
int computron_call_pool_list(struct computron_call *call, void *arg);
int computron_call_pool_destroy(struct computron_call *call, void *arg);
int computron_call_pool_adopt(struct computron_call *call, void *arg);
int computron_call_pool_stat(struct computron_call *call, void *arg);
int computron_call_pool_set(struct computron_call *call, void *arg);
int computron_call_pool_hot(struct computron_call *call, void *arg);
int computron_call_pool_memfd(struct computron_call *call, void *arg);

int computron_call_alloc(struct computron_call *call, void *arg);
int computron_call_populate(struct computron_call *call, void *arg);
int computron_call_seal(struct computron_call *call, void *arg);
int computron_call_abort(struct computron_call *call, void *arg);
int computron_call_lookup(struct computron_call *call, void *arg);
int computron_call_list(struct computron_call *call, void *arg);
int computron_call_extents(struct computron_call *call, void *arg);
int computron_call_lease(struct computron_call *call, void *arg);
int computron_call_release(struct computron_call *call, void *arg);
int computron_call_evict(struct computron_call *call, void *arg);
int computron_call_export(struct computron_call *call, void *arg);

#endif
