/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Looks after frames whose pages are pinned: work that is scheduled while there are such.
 */
#ifndef COMPUTRON_TEND_H
#define COMPUTRON_TEND_H

#include "pool.h"

void computron_tend_init(struct computron_pool *pool);
void computron_tend_start(struct computron_pool *pool);
void computron_tend_stop(struct computron_pool *pool);

#endif
