// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Arguments of calls, in and out, by the rules of the uapi header.
 */
#include <linux/build_bug.h>
#include <linux/file.h>
#include <linux/uaccess.h>

#include "call.h"

/* Who may make a call. */
#define WRITER (1U << 0) /* of pool files: a writer; of the device: open for writing */
#define DEAD   (1U << 1) /* also when the pool was destroyed */

/**
 * struct call - a kind of call
 * @make: does it; the argument is a copy that has at least @bytes
 * @bytes: of the argument
 * @least: bytes of its first version
 * @flags: that the argument may have
 * @who: may make it
 */
struct call {
	int (*make)(struct computron_call *call, void *arg);
	u16 bytes;
	u16 least;
	u32 flags;
	u32 who;
};

#define CALL(ioc, fn, type, allowed, rights)            \
	[_IOC_NR(ioc)] = {.make = (fn),                 \
			  .bytes = sizeof(struct type), \
			  .least = sizeof(struct type), \
			  .flags = (allowed),           \
			  .who = (rights)}

#define CALLS 0x60

static const struct call device_calls[CALLS] = {
	CALL(COMPUTRON_IOC_INFO, computron_call_info, computron_info, 0, 0),
	CALL(COMPUTRON_IOC_POOL_CREATE, computron_call_pool_create, computron_pool_create, 0,
	     WRITER),
	CALL(COMPUTRON_IOC_POOL_OPEN, computron_call_pool_open, computron_pool_open,
	     COMPUTRON_OPEN_WRITE, 0),
	CALL(COMPUTRON_IOC_POOL_LIST, computron_call_pool_list, computron_pool_list, 0, 0),
	CALL(COMPUTRON_IOC_POOL_DESTROY, computron_call_pool_destroy, computron_pool_destroy,
	     COMPUTRON_DESTROY_OPEN, WRITER),
	CALL(COMPUTRON_IOC_POOL_ADOPT, computron_call_pool_adopt, computron_pool_adopt, 0, WRITER),
};

static const struct call file_calls[CALLS] = {
	CALL(COMPUTRON_IOC_INFO, computron_call_info, computron_info, 0, DEAD),
	CALL(COMPUTRON_IOC_POOL_STAT, computron_call_pool_stat, computron_pool_stat,
	     COMPUTRON_STAT_SURVEY, DEAD),
	CALL(COMPUTRON_IOC_POOL_SET, computron_call_pool_set, computron_pool_set,
	     COMPUTRON_SET_QUOTA | COMPUTRON_SET_FLOOR, WRITER),
	CALL(COMPUTRON_IOC_POOL_HOT, computron_call_pool_hot, computron_pool_hot, COMPUTRON_HOT_ON,
	     WRITER),
	CALL(COMPUTRON_IOC_POOL_MEMFD, computron_call_pool_memfd, computron_pool_memfd, 0, WRITER),
	CALL(COMPUTRON_IOC_FRAME_ALLOC, computron_call_alloc, computron_frame_alloc,
	     COMPUTRON_ALLOC_RESERVE, WRITER),
	CALL(COMPUTRON_IOC_FRAME_POPULATE, computron_call_populate, computron_frame_populate, 0,
	     WRITER),
	CALL(COMPUTRON_IOC_FRAME_SEAL, computron_call_seal, computron_frame_seal,
	     COMPUTRON_SEAL_DIGEST | COMPUTRON_SEAL_LEASE, WRITER),
	CALL(COMPUTRON_IOC_FRAME_ABORT, computron_call_abort, computron_frame_op, 0, WRITER | DEAD),
	CALL(COMPUTRON_IOC_FRAME_LOOKUP, computron_call_lookup, computron_frame_lookup,
	     COMPUTRON_LOOKUP_CONTENT | COMPUTRON_LOOKUP_REF, DEAD),
	CALL(COMPUTRON_IOC_FRAME_LIST, computron_call_list, computron_frame_list, 0, DEAD),
	CALL(COMPUTRON_IOC_FRAME_EXTENTS, computron_call_extents, computron_frame_extents, 0, DEAD),
	CALL(COMPUTRON_IOC_FRAME_LEASE, computron_call_lease, computron_frame_op, 0, 0),
	CALL(COMPUTRON_IOC_FRAME_RELEASE, computron_call_release, computron_frame_op, 0, DEAD),
	CALL(COMPUTRON_IOC_FRAME_EVICT, computron_call_evict, computron_frame_op, 0, WRITER),
	CALL(COMPUTRON_IOC_FRAME_EXPORT, computron_call_export, computron_frame_export, 0, 0),
};

static bool allowed(const struct call *kind, const struct computron_call *call)
{
	if (!(kind->who & WRITER))
		return true;
	if (call->file)
		return call->file->writer;
	return (call->filp->f_mode & FMODE_WRITE) != 0;
}

/**
 * computron_call_give() - the call gives the caller a new file
 * @call: the call
 * @opened: the file, or an error pointer; it is the call's from now on
 *
 * The caller gets the descriptor when its answer has been copied out.
 *
 * Return: 0 or a negative error; the file is gone then.
 */
int computron_call_give(struct computron_call *call, struct file *opened)
{
	int fd;

	if (IS_ERR(opened))
		return PTR_ERR(opened);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0) {
		fput(opened);
		return fd;
	}
	call->fd = fd;
	call->opened = opened;
	return 0;
}

/**
 * computron_call_row() - a row of a list for the caller
 * @rows: address of the caller's array
 * @number: of the row
 * @row_bytes: of a row of the caller's
 * @row: ours
 * @bytes: of it
 *
 * Return: 0, -EFAULT, -EINVAL: no such rows.
 */
int computron_call_row(u64 rows, u32 number, u32 row_bytes, const void *row, u32 bytes)
{
	u8 __user *to = (u8 __user *)u64_to_user_ptr(rows) + (u64)number * row_bytes;

	if (row_bytes < bytes || row_bytes > PAGE_SIZE)
		return -EINVAL;
	if (copy_to_user(to, row, bytes) || clear_user(to + bytes, row_bytes - bytes))
		return -EFAULT;
	return 0;
}

static void hand_over(struct computron_call *call, int rc)
{
	if (call->fd < 0)
		return;
	if (rc) {
		put_unused_fd(call->fd);
		fput(call->opened);
	} else {
		fd_install(call->fd, call->opened);
	}
}

static long make(struct computron_call *call, const struct call *kind, void __user *arg)
{
	union {
		struct {
			u32 size;
			u32 flags;
		};
		u64 align;
		u8 bytes[COMPUTRON_ARGUMENT_BYTES];
	} copy;
	u32 size;
	int rc, out;

	if (get_user(size, (u32 __user *)arg))
		return -EFAULT;
	if (size < kind->least)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	rc = copy_struct_from_user(&copy, kind->bytes, arg, size);
	if (rc)
		return rc;
	if (copy.flags & ~kind->flags)
		return -EINVAL;
	if (!allowed(kind, call))
		return -EACCES;
	if (call->file && !(kind->who & DEAD) && READ_ONCE(call->file->pool->dead))
		return -ENODEV;

	copy.size = size;
	rc = kind->make(call, &copy);
	out = rc;
	/* The name of the frame that is in the way is part of the answer. */
	if ((!rc || rc == -EEXIST) && copy_to_user(arg, &copy, min_t(u32, size, kind->bytes)))
		out = -EFAULT;
	hand_over(call, out);
	return out;
}

static long dispatch(struct computron_call *call, const struct call *calls, unsigned int cmd,
		     unsigned long arg)
{
	if (_IOC_TYPE(cmd) != COMPUTRON_IOC_MAGIC || _IOC_DIR(cmd) != (_IOC_READ | _IOC_WRITE) ||
	    _IOC_NR(cmd) >= CALLS || !calls[_IOC_NR(cmd)].make)
		return -ENOTTY;
	return make(call, &calls[_IOC_NR(cmd)], (void __user *)arg);
}

/**
 * computron_device_ioctl() - ioctl of /dev/computron
 * @filp: the file
 * @cmd: the call
 * @arg: address of its argument
 *
 * Return: 0 or a negative error.
 */
long computron_device_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct computron_call call = {.filp = filp, .fd = -1};

	return dispatch(&call, device_calls, cmd, arg);
}

/**
 * computron_file_ioctl() - ioctl of a pool file
 * @filp: the file
 * @cmd: the call
 * @arg: address of its argument
 *
 * Return: 0 or a negative error.
 */
long computron_file_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct computron_call call = {.filp = filp, .file = computron_file_of(filp), .fd = -1};

	BUILD_BUG_ON(sizeof(struct computron_frame_lookup) > COMPUTRON_ARGUMENT_BYTES);
	BUILD_BUG_ON(sizeof(struct computron_pool_stat) > COMPUTRON_ARGUMENT_BYTES);
	return dispatch(&call, file_calls, cmd, arg);
}
