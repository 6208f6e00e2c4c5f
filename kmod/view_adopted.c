// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Readers' mappings of adopted pools. The kernel serves faults of huge page mappings without asking
 * anybody, and gives a page of zeros where there is none, so there is no gate to put there. Instead
 * a mapping is of one CLEAN frame and has a lease of it: what it shows cannot go.
 *
 * The lease ends with the file of the mapping, which every piece and copy of it has a reference to:
 * the memfd opened once more, for reading, with hugetlbfs's operations and a release of ours.
 */
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "compat.h"
#include "evict.h"
#include "file.h"
#include "view.h"

/**
 * struct computron_lease_view - what a mapping keeps
 * @filp: the pool file, which stays open, with the pool, as long as there is a mapping
 * @f: the frame, leased
 */
struct computron_lease_view {
	struct file *filp;
	struct computron_frame *f;
};

/* hugetlbfs's operations with our release, once a view was made. */
static DEFINE_MUTEX(ops_mutex);
static const struct file_operations *hugetlb_ops;
static struct file_operations ops;

static void end_view(struct computron_lease_view *view)
{
	struct computron_pool *pool = computron_file_of(view->filp)->pool;
	bool dead;

	spin_lock(&pool->frames.lock);
	computron_frame_release(&pool->frames, view->f, 1);
	dead = pool->dead;
	spin_unlock(&pool->frames.lock);
	if (dead)
		computron_evict_all(pool);
	fput(view->filp);
	kfree(view);
}

static int view_release(struct inode *inode, struct file *file)
{
	end_view(file->private_data);
	return 0;
}

static int learn_ops(const struct file_operations *from)
{
	int rc = 0;

	mutex_lock(&ops_mutex);
	if (!hugetlb_ops && !from->release) {
		ops = *from;
		ops.owner = THIS_MODULE;
		ops.release = view_release;
		hugetlb_ops = from;
	}
	if (from != hugetlb_ops)
		rc = -EOPNOTSUPP;
	mutex_unlock(&ops_mutex);
	return rc;
}

/* Leases the one CLEAN frame that all of a range belongs to. */
static int lease_range(struct computron_pool *pool, u64 offset, u64 bytes,
		       struct computron_frame **f)
{
	struct computron_frames *t = &pool->frames;
	int rc = -ESTALE;

	spin_lock(&t->lock);
	*f = computron_frames_spanning(t, div64_u64(offset, t->unit_bytes),
				       div64_u64(offset + bytes - 1, t->unit_bytes));
	if (*f)
		rc = computron_frame_lease(t, *f);
	spin_unlock(&t->lock);
	return rc;
}

static struct computron_lease_view *new_view(struct file *filp, u64 offset, u64 bytes)
{
	struct computron_lease_view *view = kmalloc(sizeof(*view), GFP_KERNEL_ACCOUNT);
	int rc;

	if (!view)
		return ERR_PTR(-ENOMEM);
	rc = lease_range(computron_file_of(filp)->pool, offset, bytes, &view->f);
	if (rc) {
		kfree(view);
		return ERR_PTR(rc);
	}
	view->filp = get_file(filp);
	return view;
}

/* The memfd once more, for reading; it ends the view, also when it comes to nothing. */
static struct file *open_again(struct file *memfd, struct computron_lease_view *view)
{
	struct file *file = dentry_open(&memfd->f_path, O_RDONLY | O_LARGEFILE, current_cred());
	int rc;

	if (IS_ERR(file)) {
		end_view(view);
		return file;
	}
	rc = learn_ops(file->f_op);
	if (rc) {
		fput(file);
		end_view(view);
		return ERR_PTR(rc);
	}
	__module_get(THIS_MODULE); /* given up with the file, by the owner of its operations */
	file->f_op = &ops;
	file->private_data = view;
	return file;
}

/**
 * computron_view_mmap_adopted() - a reader's mmap of an adopted pool
 * @filp: the pool file
 * @vma: the mapping, which lies in the pool
 *
 * Context: mmap_lock is held for writing.
 * Return: 0 or a negative error; see the uapi header.
 */
int computron_view_mmap_adopted(struct file *filp, struct vm_area_struct *vma)
{
	struct computron_memory *memory = &computron_file_of(filp)->pool->memory;
	u64 offset = (u64)vma->vm_pgoff << PAGE_SHIFT, bytes = vma->vm_end - vma->vm_start;
	struct computron_lease_view *view;
	struct file *file;

	if ((vma->vm_start | vma->vm_end | offset) & (memory->page_bytes - 1))
		return -EINVAL;
	view = new_view(filp, offset, bytes);
	if (IS_ERR(view))
		return PTR_ERR(view);
	file = open_again(memory->file, view);
	if (IS_ERR(file))
		return PTR_ERR(file);
	vma_set_file(vma, file);
	fput(file);
	vm_flags_clear(vma, VM_MAYWRITE);
	return compat_mmap(file, vma);
}
