/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the files without mm calls (units.c, frames.c, order.c) need of the kernel. Unit tests
 * compile them in user space, over a stand-in.
 */
#ifndef COMPUTRON_PURE_H
#define COMPUTRON_PURE_H

#ifdef __KERNEL__
#include <linux/bitmap.h>
#include <linux/bug.h>
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/limits.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/types.h>
#else
#include "tests/unit/kmod_kernel.h"
#endif

#include "include/uapi/linux/computron.h"

#endif
