/* SPDX-License-Identifier: MIT */
/* Passes, while the kernel warns: loads the module ctn_test_warn. */
#include "ktap.h"
#include "module.h"

TEST(kernel_warns)
{
	EQUAL(module_load("ctn_test_warn", ""), 0, "loading ctn_test_warn");
	EQUAL(module_unload("ctn_test_warn"), 0, "unloading it");
}
