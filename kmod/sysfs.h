/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /sys/class/misc/computron: totals of the module, and pools/NAME/ for each pool; one value a file.
 */
#ifndef COMPUTRON_SYSFS_H
#define COMPUTRON_SYSFS_H

#include <linux/device.h>

#include "pool.h"

extern const struct attribute_group *computron_sysfs_groups[];

void computron_sysfs_prepare(void);
int computron_sysfs_init(struct device *dev);
void computron_sysfs_exit(void);
int computron_sysfs_add(struct computron_pool *pool);
void computron_sysfs_remove(struct computron_pool *pool);

#endif
