/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * dma-bufs of frames.
 */
#ifndef COMPUTRON_EXPORT_H
#define COMPUTRON_EXPORT_H

#include <linux/fs.h>

#include "pool.h"

bool computron_export_works(void);
struct file *computron_export(struct computron_pool *pool, const struct computron_ref *ref,
			      bool writer);

#endif
