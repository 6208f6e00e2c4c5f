/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What differs between kernels. The rest is written for the newest; each block says which version
 * changed it.
 */
#ifndef COMPUTRON_COMPAT_H
#define COMPUTRON_COMPAT_H

#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/version.h>

/* 6.3: vm_flags are written through helpers. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, unsigned long flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* 6.7: the page cache of hugetlb files counts in pages, not in huge pages. */
static inline unsigned int compat_hugetlb_index_shift(const struct inode *inode)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
	return inode->i_blkbits;
#else
	return PAGE_SHIFT;
#endif
}

/* 6.7: shrinkers are allocated. 6.0: they have names. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
#define COMPAT_SHRINKER(name) struct shrinker name

static inline int compat_shrinker_register(
	struct shrinker *s, unsigned long (*count)(struct shrinker *, struct shrink_control *),
	unsigned long (*scan)(struct shrinker *, struct shrink_control *), long batch)
{
	s->count_objects = count;
	s->scan_objects = scan;
	s->batch = batch;
	s->seeks = DEFAULT_SEEKS;
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 0, 0)
	return register_shrinker(s);
#else
	return register_shrinker(s, "computron");
#endif
}

static inline void compat_shrinker_unregister(struct shrinker *s)
{
	unregister_shrinker(s);
}
#else
#define COMPAT_SHRINKER(name) struct shrinker *name

static inline int compat_shrinker_register(
	struct shrinker **s, unsigned long (*count)(struct shrinker *, struct shrink_control *),
	unsigned long (*scan)(struct shrinker *, struct shrink_control *), long batch)
{
	*s = shrinker_alloc(0, "computron");
	if (!*s)
		return -ENOMEM;
	(*s)->count_objects = count;
	(*s)->scan_objects = scan;
	(*s)->batch = batch;
	shrinker_register(*s);
	return 0;
}

static inline void compat_shrinker_unregister(struct shrinker **s)
{
	shrinker_free(*s);
}
#endif

/* 6.17: vfs_mmap also knows files with mmap_prepare. */
static inline int compat_mmap(struct file *file, struct vm_area_struct *vma)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
	return call_mmap(file, vma);
#else
	return vfs_mmap(file, vma);
#endif
}

/* 6.10: mm_struct has a flag instead of a function. */
static inline unsigned long compat_unmapped_area(struct file *file, unsigned long addr,
						 unsigned long len, unsigned long pgoff,
						 unsigned long flags)
{
	if (file->f_op->get_unmapped_area)
		return file->f_op->get_unmapped_area(file, addr, len, pgoff, flags);
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 10, 0)
	return current->mm->get_unmapped_area(file, addr, len, pgoff, flags);
#else
	return mm_get_unmapped_area(current->mm, file, addr, len, pgoff, flags);
#endif
}

/* 5.16: the symbols of dma-buf are in a namespace. 6.13: whose name is a string. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

/* 5.16: the symbols of dma-buf are in a namespace. 6.13: whose name is a string. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

#endif
