/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * /proc/computron/pools and /proc/computron/frames: tables for people and scripts.
 */
#ifndef COMPUTRON_PROCFS_H
#define COMPUTRON_PROCFS_H

int computron_procfs_init(void);
void computron_procfs_exit(void);

#endif
