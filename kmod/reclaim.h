/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The shrinker.
 */
#ifndef COMPUTRON_RECLAIM_H
#define COMPUTRON_RECLAIM_H

int computron_reclaim_init(void);
void computron_reclaim_exit(void);

#endif
