// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Pool files: opened, read, polled, closed. Their calls are in call.c, their mappings in view.c.
 */
#include <linux/anon_inodes.h>
#include <linux/atomic.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "call.h"
#include "evict.h"
#include "file.h"
#include "view.h"

/* Events that a read takes at a time. */
#define READ_EVENTS 8

static atomic64_t last_number;

static int file_close(struct inode *inode, struct file *filp)
{
	struct computron_file *file = filp->private_data;
	struct computron_pool *pool = file->pool;
	struct computron_frames *t = &pool->frames;
	struct computron_frame *f;

	computron_file_drop_all(file);
	spin_lock(&t->lock);
	while (!list_empty(&file->loading)) {
		f = list_first_entry(&file->loading, struct computron_frame, own);
		computron_frame_depart(t, f);
		spin_unlock(&t->lock);
		computron_abandon(pool, f, false);
		spin_lock(&t->lock);
	}
	pool->files--;
	spin_unlock(&t->lock);
	kvfree(file->hot);
	kfree(file);
	computron_pool_put(pool);
	return 0;
}

static bool pending(struct computron_file *file)
{
	struct computron_pool *pool = file->pool;
	bool any;

	spin_lock(&pool->frames.lock);
	any = computron_events_pending(pool->events, &file->position, file->number);
	spin_unlock(&pool->frames.lock);
	return any;
}

static ssize_t file_read(struct file *filp, char __user *to, size_t len, loff_t *offset)
{
	struct computron_file *file = filp->private_data;
	struct computron_pool *pool = file->pool;
	struct computron_event events[READ_EVENTS];
	size_t done = 0;
	u32 n;
	int rc;

	if (len < sizeof(events[0]))
		return -EINVAL;
	while (len - done >= sizeof(events[0])) {
		n = min_t(size_t, READ_EVENTS, (len - done) / sizeof(events[0]));
		spin_lock(&pool->frames.lock);
		n = computron_events_take(pool->events, &file->position, file->number, events, n);
		spin_unlock(&pool->frames.lock);
		if (!n && done)
			break;
		if (!n) {
			if (filp->f_flags & O_NONBLOCK)
				return -EAGAIN;
			rc = wait_event_interruptible(pool->events->wait, pending(file));
			if (rc)
				return rc;
			continue;
		}
		if (copy_to_user(to + done, events, n * sizeof(events[0])))
			return done ? done : -EFAULT;
		done += n * sizeof(events[0]);
	}
	return done;
}

static __poll_t file_poll(struct file *filp, struct poll_table_struct *wait)
{
	struct computron_file *file = filp->private_data;

	poll_wait(filp, &file->pool->events->wait, wait);
	return pending(file) ? EPOLLIN | EPOLLRDNORM : 0;
}

static const struct file_operations file_ops = {
	.owner = THIS_MODULE,
	.release = file_close,
	.read = file_read,
	.poll = file_poll,
	.unlocked_ioctl = computron_file_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = computron_view_mmap,
	.get_unmapped_area = computron_view_area,
	.llseek = noop_llseek,
};

/**
 * computron_file_new() - a pool file
 * @pool: the pool; the file gets a reference of its own
 * @writer: it may change the pool
 *
 * Return: the file, or an error pointer.
 */
struct file *computron_file_new(struct computron_pool *pool, bool writer)
{
	struct computron_file *file;
	struct file *filp;

	file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);
	if (!file)
		return ERR_PTR(-ENOMEM);
	file->pool = pool;
	file->number = atomic64_inc_return(&last_number);
	file->writer = writer;
	mutex_init(&file->lock);
	xa_init(&file->leases);
	INIT_LIST_HEAD(&file->loading);
	/* A reader's is not open for writing: the kernel itself refuses writable mappings. */
	filp = anon_inode_getfile("[computron]", &file_ops, file, writer ? O_RDWR : O_RDONLY);
	if (IS_ERR(filp)) {
		kfree(file);
		return filp;
	}
	computron_pool_get(pool);
	spin_lock(&pool->frames.lock);
	pool->files++;
	file->position = pool->events->next;
	spin_unlock(&pool->frames.lock);
	return filp;
}

/**
 * computron_file_of() - the pool file behind a file
 * @filp: any file
 *
 * Return: the pool file, or NULL when it is none.
 */
struct computron_file *computron_file_of(struct file *filp)
{
	return filp->f_op == &file_ops ? filp->private_data : NULL;
}
