/* SPDX-License-Identifier: MIT */
/* Loading and unloading the modules of the guest, which lie in /modules. */
#ifndef MODULE_H
#define MODULE_H

/* 0 or a negative errno. */
int module_load(const char *name, const char *parameters);
/* Without waiting. */
int module_unload(const char *name);
/* As lsmod counts it; -1: not loaded. */
int module_users(const char *name);

#endif
