// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Memory of a pool in a user's memfd of huge pages, which the system's administrator has reserved.
 * The file does its own work: we ask it for pages and for holes as a process would.
 */
#include <linux/types.h>
#include <linux/falloc.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/pagemap.h>

#include "compat.h"
#include "memory.h"

/**
 * computron_memory_adopt() - takes a memfd as the memory of a pool
 * @m: to be filled
 * @fd: the caller's descriptor
 * @bytes: set to its size in whole units
 *
 * Return: 0; -EBADF; -EINVAL: not a writable file of huge pages, or empty.
 */
int computron_memory_adopt(struct computron_memory *m, int fd, u64 *bytes)
{
	struct file *file = fget(fd);
	struct inode *inode;

	if (!file)
		return -EBADF;
	inode = file_inode(file);
	if (inode->i_sb->s_magic != HUGETLBFS_MAGIC || !S_ISREG(inode->i_mode) ||
	    !(file->f_mode & FMODE_WRITE) || !(file->f_mode & FMODE_READ))
		goto err_put;
	m->page_bytes = i_blocksize(inode);
	m->unit_bytes = max(m->page_bytes, computron_memory_unit());
	*bytes = round_down(i_size_read(inode), m->unit_bytes);
	if (!*bytes)
		goto err_put;
	m->adopted = true;
	m->mnt = NULL;
	m->file = file;
	return 0;

err_put:
	fput(file);
	return -EINVAL;
}

/**
 * computron_adopted_shift() - where an offset is in the page cache
 * @m: the memory
 *
 * Return: by how much to shift it to get the index.
 */
unsigned int computron_adopted_shift(const struct computron_memory *m)
{
	return compat_hugetlb_index_shift(file_inode(m->file));
}

/**
 * computron_adopted_populate() - as computron_memory_populate
 * @m: the memory
 * @offset: of the range
 * @bytes: of it
 *
 * Return: 0 or a negative error.
 */
int computron_adopted_populate(struct computron_memory *m, u64 offset, u64 bytes)
{
	return vfs_fallocate(m->file, 0, offset, bytes);
}

/**
 * computron_adopted_punch() - as computron_memory_punch
 * @m: the memory
 * @offset: of the range
 * @bytes: of it
 *
 * Return: 0 or a negative error.
 */
int computron_adopted_punch(struct computron_memory *m, u64 offset, u64 bytes)
{
	return vfs_fallocate(m->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}
