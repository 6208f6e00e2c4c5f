// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The module: /dev/computron, and the order in which its parts come and go.
 */
#define pr_fmt(fmt) "computron: " fmt

#include <linux/miscdevice.h>
#include <linux/module.h>

#include "call.h"
#include "pool.h"
#include "procfs.h"
#include "reclaim.h"
#include "sysfs.h"

/* Nobody comes in before all parts are there: a module that fails to load goes, whoever uses it. */
static bool ready;

static int device_open(struct inode *inode, struct file *filp)
{
	/* All that init did before. */
	return smp_load_acquire(&ready) ? 0 : -ENODEV;
}

static const struct file_operations device_ops = {
	.owner = THIS_MODULE,
	.open = device_open,
	.unlocked_ioctl = computron_device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "computron",
	.fops = &device_ops,
	.mode = 0660,
	.groups = computron_sysfs_groups,
};

/* The shrinker comes last and goes first. */
static int __init computron_init(void)
{
	int rc = computron_pools_init();

	if (rc)
		return rc;
	computron_sysfs_prepare();
	rc = misc_register(&device);
	if (rc)
		goto err_pools;
	rc = computron_sysfs_init(device.this_device);
	if (rc)
		goto err_device;
	rc = computron_procfs_init();
	if (rc)
		goto err_sysfs;
	rc = computron_reclaim_init();
	if (rc)
		goto err_procfs;
	smp_store_release(&ready, true); /* for device_open */
	return 0;

err_procfs:
	computron_procfs_exit();
err_sysfs:
	computron_sysfs_exit();
err_device:
	misc_deregister(&device);
err_pools:
	computron_pools_exit();
	return rc;
}

static void __exit computron_exit(void)
{
	computron_reclaim_exit();
	computron_procfs_exit();
	computron_pools_end();
	computron_sysfs_exit();
	misc_deregister(&device);
	computron_pools_exit();
}

module_init(computron_init);
module_exit(computron_exit);

MODULE_DESCRIPTION("Pools of huge pages for the parameters of models");
MODULE_AUTHOR("computron developers");
MODULE_VERSION("0.1");
MODULE_LICENSE("Dual MIT/GPL");
