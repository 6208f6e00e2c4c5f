/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Mappings of pool files.
 */
#ifndef COMPUTRON_VIEW_H
#define COMPUTRON_VIEW_H

#include <linux/fs.h>
#include <linux/mm.h>

int computron_view_mmap(struct file *filp, struct vm_area_struct *vma);
unsigned long computron_view_area(struct file *filp, unsigned long addr, unsigned long len,
				  unsigned long pgoff, unsigned long flags);

/* view_adopted.c, for view.c */
int computron_view_mmap_adopted(struct file *filp, struct vm_area_struct *vma);

#endif
