// SPDX-License-Identifier: GPL-2.0 OR MIT
/* A module that is wrong on purpose: the harness must notice what the kernel says about it. */
#include <linux/bug.h>
#include <linux/module.h>

static int __init ctn_test_warn_init(void)
{
	WARN(1, "ctn_test_warn: as asked\n");
	return 0;
}

static void __exit ctn_test_warn_exit(void)
{
}

module_init(ctn_test_warn_init);
module_exit(ctn_test_warn_exit);
MODULE_DESCRIPTION("Warns, for the self-test of computron's harness");
MODULE_LICENSE("Dual MIT/GPL");
