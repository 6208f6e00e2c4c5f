// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Pins pages as a GPU driver does for registered host memory: one pin_user_pages() over the range,
 * FOLL_LONGTERM, and FOLL_WRITE when the device may write; set_page_dirty_lock() and unpin later.
 * One file holds one range or one dma-buf.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/highmem.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/platform_device.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "ctn_test_pin.h"

struct held {
	struct mutex lock; /* of all the others */
	struct page **pages;
	long count;
	bool write;
	struct dma_buf *buf;
	struct dma_buf_attachment *attachment;
	struct sg_table *table;
	enum dma_data_direction direction;
};

static struct platform_device *device;

static void drop(struct held *held)
{
	if (held->pages) {
		unpin_user_pages_dirty_lock(held->pages, held->count, held->write);
		kvfree(held->pages);
		held->pages = NULL;
	}
	if (held->buf) {
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
		dma_buf_unmap_attachment_unlocked(held->attachment, held->table, held->direction);
#else
		dma_buf_unmap_attachment(held->attachment, held->table, held->direction);
#endif
		dma_buf_detach(held->buf, held->attachment);
		dma_buf_put(held->buf);
		held->buf = NULL;
	}
}

static long pin(struct held *held, struct ctn_test_pin __user *argp)
{
	unsigned int flags = FOLL_LONGTERM;
	struct ctn_test_pin arg;
	struct page **pages;
	long count, got;

	if (copy_from_user(&arg, argp, sizeof(arg)))
		return -EFAULT;
	if (held->pages || held->buf)
		return -EBUSY;
	if (!arg.bytes || arg.bytes > (1ULL << 30) || !PAGE_ALIGNED(arg.address | arg.bytes))
		return -EINVAL;
	count = arg.bytes >> PAGE_SHIFT;
	pages = kvmalloc_array(count, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	if (arg.write)
		flags |= FOLL_WRITE;
	mmap_read_lock(current->mm);
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
	got = pin_user_pages(arg.address, count, flags, pages);
#else
	got = pin_user_pages(arg.address, count, flags, pages, NULL);
#endif
	mmap_read_unlock(current->mm);
	if (got != count) {
		if (got > 0)
			unpin_user_pages(pages, got);
		kvfree(pages);
		return got < 0 ? got : -EFAULT;
	}
	held->pages = pages;
	held->count = count;
	held->write = arg.write;
	return 0;
}

static long take(struct held *held, struct ctn_test_dmabuf __user *argp)
{
	struct ctn_test_dmabuf arg;
	struct scatterlist *sg;
	u64 first;
	int i;

	if (copy_from_user(&arg, argp, sizeof(arg)))
		return -EFAULT;
	if (held->pages || held->buf)
		return -EBUSY;
	held->direction = arg.from_device ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	held->buf = dma_buf_get(arg.fd);
	if (IS_ERR(held->buf)) {
		long err = PTR_ERR(held->buf);

		held->buf = NULL;
		return err;
	}
	held->attachment = dma_buf_attach(held->buf, &device->dev);
	if (IS_ERR(held->attachment)) {
		long err = PTR_ERR(held->attachment);

		dma_buf_put(held->buf);
		held->buf = NULL;
		return err;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	held->table = dma_buf_map_attachment_unlocked(held->attachment, held->direction);
#else
	held->table = dma_buf_map_attachment(held->attachment, held->direction);
#endif
	if (IS_ERR(held->table)) {
		long err = PTR_ERR(held->table);

		dma_buf_detach(held->buf, held->attachment);
		dma_buf_put(held->buf);
		held->buf = NULL;
		return err;
	}
	arg.segments = 0;
	arg.bytes = 0;
	arg.least = U64_MAX;
	for_each_sgtable_dma_sg(held->table, sg, i) {
		arg.segments++;
		arg.bytes += sg_dma_len(sg);
		arg.least = min_t(u64, arg.least, sg_dma_len(sg));
	}
	if (sg_copy_to_buffer(held->table->sgl, held->table->orig_nents, &first, sizeof(first)) == sizeof(first))
		arg.first = first;
	return copy_to_user(argp, &arg, sizeof(arg)) ? -EFAULT : 0;
}

static long pin_ioctl(struct file *file, unsigned int request, unsigned long argp)
{
	struct held *held = file->private_data;
	long err = 0;

	mutex_lock(&held->lock);
	switch (request) {
	case CTN_TEST_PIN:
		err = pin(held, (void __user *)argp);
		break;
	case CTN_TEST_DMABUF:
		err = take(held, (void __user *)argp);
		break;
	case CTN_TEST_DROP:
		drop(held);
		break;
	default:
		err = -ENOTTY;
	}
	mutex_unlock(&held->lock);
	return err;
}

static int pin_open(struct inode *inode, struct file *file)
{
	struct held *held = kzalloc(sizeof(*held), GFP_KERNEL);

	if (!held)
		return -ENOMEM;
	mutex_init(&held->lock);
	file->private_data = held;
	return 0;
}

static int pin_release(struct inode *inode, struct file *file)
{
	drop(file->private_data);
	kfree(file->private_data);
	return 0;
}

static const struct file_operations pin_fops = {
	.owner = THIS_MODULE,
	.open = pin_open,
	.release = pin_release,
	.unlocked_ioctl = pin_ioctl,
};

static struct miscdevice misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "ctn_test_pin",
	.fops = &pin_fops,
	.mode = 0666,
};

static int __init ctn_test_pin_init(void)
{
	int err;

	device = platform_device_register_simple("ctn_test_pin", -1, NULL, 0);
	if (IS_ERR(device))
		return PTR_ERR(device);
	err = dma_coerce_mask_and_coherent(&device->dev, DMA_BIT_MASK(64));
	dma_set_max_seg_size(&device->dev, UINT_MAX);
	if (!err)
		err = misc_register(&misc);
	if (err)
		platform_device_unregister(device);
	return err;
}

static void __exit ctn_test_pin_exit(void)
{
	misc_deregister(&misc);
	platform_device_unregister(device);
}

module_init(ctn_test_pin_init);
module_exit(ctn_test_pin_exit);
MODULE_DESCRIPTION("Pins pages and takes dma-bufs as a GPU driver does, for computron's tests");
MODULE_LICENSE("Dual MIT/GPL");
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
MODULE_IMPORT_NS("DMA_BUF");
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(5, 16, 0)
MODULE_IMPORT_NS(DMA_BUF);
#endif
