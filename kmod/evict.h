/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * Frames leave: their page tables, their pages, the table. Nothing is given back while it is
 * pinned.
 */
#ifndef COMPUTRON_EVICT_H
#define COMPUTRON_EVICT_H

#include "pool.h"

int computron_evict(struct computron_pool *pool, const struct computron_ref *ref, u64 cause);
void computron_evict_all(struct computron_pool *pool);
u64 computron_evict_oldest(struct computron_pool *pool);

void computron_abandon(struct computron_pool *pool, struct computron_frame *f, bool keep_hot);
void computron_scrub(struct computron_pool *pool, struct computron_frame *f);
bool computron_pinned(struct computron_pool *pool, const struct computron_ref *ref);

#endif
