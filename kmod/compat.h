/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What differs between kernels. The rest is written for the newest; each block says which version
 * changed it.
 */
#ifndef COMPUTRON_COMPAT_H
#define COMPUTRON_COMPAT_H

#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/sched.h>
#include <linux/shrinker.h>
#include <linux/swap.h>
#include <linux/version.h>

/* 5.11: a mapping is handed over by a function. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 11, 0)
static inline void vma_set_file(struct vm_area_struct *vma, struct file *file)
{
	struct file *old = vma->vm_file;

	vma->vm_file = get_file(file);
	fput(old);
}
#endif

/* 5.16: folios; before, the head page of a compound page is used as one. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 16, 0)
#define folio                     page
#define page_folio(p)             compound_head(p)
#define folio_page(f, n)          nth_page(f, n)
#define folio_lock(f)             lock_page(f)
#define folio_put(f)              put_page(f)
#define folio_size(f)             page_size(f)
#define folio_test_large(f)       PageCompound(f)
#define folio_test_locked(f)      PageLocked(f)
#define folio_trylock(f)          trylock_page(f)
#define folio_unlock(f)           unlock_page(f)
#define folio_maybe_dma_pinned(f) page_maybe_dma_pinned(f)

static inline struct folio *filemap_get_folio(struct address_space *mapping, pgoff_t index)
{
	struct page *p = find_get_page(mapping, index);

	return p ? page_folio(p) : NULL;
}
/* 5.18: the last of these. */
#elif LINUX_VERSION_CODE < KERNEL_VERSION(5, 18, 0)
#define folio_maybe_dma_pinned(f) page_maybe_dma_pinned(&(f)->page)
#endif

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

/* 6.4: who frees pages otherwise than by the LRU lists tells reclaim by a function. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0)
static inline void mm_account_reclaimed_pages(unsigned long pages)
{
	if (current->reclaim_state)
		current->reclaim_state->reclaimed_slab += pages;
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

/* 7.0 to 7.2: the flags of new shmem files have a type of their own. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 0, 0)
#define COMPAT_NORESERVE VM_NORESERVE
#else
#define COMPAT_NORESERVE                                                                         \
	__builtin_choose_expr(                                                                   \
		__builtin_types_compatible_p(                                                    \
			typeof(shmem_file_setup_with_mnt),                                       \
			struct file * (struct vfsmount *, const char *, loff_t, unsigned long)), \
		VM_NORESERVE, mk_vma_flags(VMA_NORESERVE_BIT))
#endif

/* 5.16: the symbols of dma-buf are in a namespace. 6.13: whose name is a string. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS(DMA_BUF)
#else
#define COMPAT_IMPORT_DMA_BUF MODULE_IMPORT_NS("DMA_BUF")
#endif

#endif
