// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Mappings of pool files are handed over to the file behind the pool: from then on they are tmpfs
 * mappings, as GUP, io_uring and the huge page code know them. A writer's stays just that.
 *
 * A reader's is a view: it has a copy of tmpfs's operations in which a fault is only served for a
 * page of a CLEAN frame. Why a fault that has passed the gate is safe against an eviction that
 * comes at that moment:
 *  - evict makes the frame GOING before it touches page tables or pages;
 *  - after tmpfs has returned the page, locked, the gate is asked again. If the frame is CLEAN
 * then, truncation has to wait for the lock of this page, and will find it mapped and unmap it. If
 * it is not, the page is dropped. It may be a new one, in the hole that evict has just made: memory
 * without a frame, which the next frame there uses, or reclaim takes.
 */
#include <linux/file.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include <linux/slab.h>

#include "compat.h"
#include "file.h"
#include "view.h"

/**
 * struct computron_view - a reader's mapping, and what it was split and copied into
 * @refs: VMAs
 * @filp: the pool file, which stays open, with the leases, as long as there is a mapping; so does
 *	the module, of which the file has a reference
 * @generation: of the one frame that it shows; 0: of any
 */
struct computron_view {
	refcount_t refs;
	struct file *filp;
	u64 generation;
};

/* tmpfs's operations and their gated copy, once a view was made. */
static DEFINE_MUTEX(view_ops_mutex);
static const struct vm_operations_struct *tmpfs_ops;
static struct vm_operations_struct view_ops;

static struct computron_pool *pool_of(const struct computron_view *view)
{
	return computron_file_of(view->filp)->pool;
}

/* Whether a page can be read. */
static bool gate_open(const struct computron_view *view, pgoff_t page)
{
	struct computron_frames *t = &pool_of(view)->frames;
	u64 unit = div64_u64((u64)page << PAGE_SHIFT, t->unit_bytes);
	bool open;

	if (unit >= t->units.count)
		return false;
	spin_lock(&t->lock);
	open = computron_frames_readable(t, unit, view->generation);
	spin_unlock(&t->lock);
	return open;
}

static bool is_there(struct vm_fault *vmf)
{
	struct folio *folio = filemap_get_folio(vmf->vma->vm_file->f_mapping, vmf->pgoff);

	if (IS_ERR_OR_NULL(folio))
		return false;
	folio_put(folio);
	return true;
}

static vm_fault_t view_fault(struct vm_fault *vmf)
{
	const struct computron_view *view = vmf->vma->vm_private_data;
	vm_fault_t rc;

	/* A writer may have punched a hole: no zeros from there either. */
	if (!gate_open(view, vmf->pgoff) || !is_there(vmf))
		return VM_FAULT_SIGBUS;
	rc = tmpfs_ops->fault(vmf);
	if ((rc & VM_FAULT_LOCKED) && !gate_open(view, vmf->pgoff)) {
		unlock_page(vmf->page);
		put_page(vmf->page);
		vmf->page = NULL;
		return VM_FAULT_SIGBUS;
	}
	return rc;
}

static void view_open(struct vm_area_struct *vma)
{
	struct computron_view *view = vma->vm_private_data;

	refcount_inc(&view->refs);
	if (tmpfs_ops->open)
		tmpfs_ops->open(vma);
}

static void view_close(struct vm_area_struct *vma)
{
	struct computron_view *view = vma->vm_private_data;

	if (tmpfs_ops->close)
		tmpfs_ops->close(vma);
	if (refcount_dec_and_test(&view->refs)) {
		fput(view->filp);
		kfree(view);
	}
}

static int learn_ops(const struct vm_operations_struct *ops)
{
	int rc = 0;

	mutex_lock(&view_ops_mutex);
	if (!tmpfs_ops && ops && ops->fault && !ops->page_mkwrite) {
		view_ops = *ops;
		view_ops.open = view_open;
		view_ops.close = view_close;
		view_ops.fault = view_fault;
		/* Would map pages around the one in question behind the gate. Huge ones are mapped
		 * whole. */
		view_ops.map_pages = NULL;
#ifdef CONFIG_NUMA
		/* It is the file's, and so the pool's: not for readers to set. */
		view_ops.set_policy = NULL;
#endif
		tmpfs_ops = ops;
	}
	if (ops != tmpfs_ops)
		rc = -EOPNOTSUPP;
	mutex_unlock(&view_ops_mutex);
	return rc;
}

/* The generation of the one CLEAN frame that all of a range belongs to, or 0. */
static u64 frame_of_range(struct computron_pool *pool, u64 offset, u64 bytes)
{
	struct computron_frames *t = &pool->frames;
	const struct computron_frame *f;
	u64 generation;

	spin_lock(&t->lock);
	f = computron_frames_spanning(t, div64_u64(offset, t->unit_bytes),
				      div64_u64(offset + bytes - 1, t->unit_bytes));
	generation = f ? f->ref.generation : 0;
	spin_unlock(&t->lock);
	return generation;
}

static int make_view(struct file *filp, struct computron_pool *pool, struct vm_area_struct *vma)
{
	struct computron_view *view = kmalloc(sizeof(*view), GFP_KERNEL_ACCOUNT);
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT;
	int rc;

	if (!view)
		return -ENOMEM;
	rc = learn_ops(vma->vm_ops);
	if (rc) {
		kfree(view);
		return rc;
	}
	refcount_set(&view->refs, 1);
	view->filp = get_file(filp);
	view->generation = frame_of_range(pool, offset, vma->vm_end - vma->vm_start);
	vma->vm_private_data = view;
	vma->vm_ops = &view_ops;
	vm_flags_clear(vma, VM_MAYWRITE);
	/* MADV_COLLAPSE would map a huge page behind the gate, without a fault: not here. */
	vm_flags_set(vma, VM_DONTEXPAND);
	return 0;
}

/**
 * computron_view_mmap() - mmap of a pool file
 * @filp: the pool file
 * @vma: the mapping
 *
 * Context: mmap_lock is held for writing.
 * Return: 0 or a negative error; see the uapi header.
 */
int computron_view_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct computron_file *file = computron_file_of(filp);
	struct computron_pool *pool = file->pool;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT, bytes = vma->vm_end - vma->vm_start;
	int rc;

	if (pool->memory.adopted && file->writer)
		return -EOPNOTSUPP;
	/* A reader's shared mapping has lost VM_SHARED by now, not VM_MAYSHARE. */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if ((vma->vm_flags & VM_EXEC) || (!file->writer && (vma->vm_flags & VM_WRITE)))
		return -EACCES;
	if (vma->vm_pgoff > (pool->bytes >> PAGE_SHIFT) || bytes > pool->bytes - offset)
		return -EINVAL;
	if (READ_ONCE(pool->dead))
		return -ENODEV;

	if (pool->memory.adopted) {
		rc = computron_view_mmap_adopted(filp, vma);
	} else {
		vma_set_file(vma, pool->memory.file);
		rc = compat_mmap(pool->memory.file, vma);
		if (!rc && !file->writer)
			rc = make_view(filp, pool, vma);
	}
	if (rc) {
		/* Before 5.11 the caller drops the file that it came with, not the one that is
		 * here. */
		vma_set_file(vma, filp);
		return rc;
	}
	vm_flags_clear(vma, VM_MAYEXEC);
	vm_flags_set(vma, VM_DONTDUMP);
	return 0;
}

/**
 * computron_view_area() - where a mapping goes: aligned to huge pages
 * @filp: the pool file
 * @addr: as asked for
 * @len: of the mapping
 * @pgoff: likewise
 * @flags: likewise
 *
 * Return: an address or a negative error.
 */
unsigned long computron_view_area(struct file *filp, unsigned long addr, unsigned long len,
				  unsigned long pgoff, unsigned long flags)
{
	const struct computron_file *file = computron_file_of(filp);
	const struct computron_memory *memory = &file->pool->memory;

	if ((memory->adopted && file->writer) || !memory->file->f_op->get_unmapped_area)
		return -EOPNOTSUPP;
	return memory->file->f_op->get_unmapped_area(memory->file, addr, len, pgoff, flags);
}
