/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What memory pressure may take, and in which order. Locking as in frames.h.
 */
#ifndef COMPUTRON_ORDER_H
#define COMPUTRON_ORDER_H

#include "frames.h"

void computron_order_place(struct computron_frames *t, struct computron_frame *f);
void computron_order_remove(struct computron_frames *t, struct computron_frame *f);
void computron_order_unhold(struct computron_frames *t, struct computron_frame *f);
struct computron_frame *computron_order_victim(struct computron_frames *t);
u32 computron_order_reclaimable(const struct computron_frames *t);

int computron_hot_on(struct computron_frames *t, u32 first, u32 count);
void computron_hot_off(struct computron_frames *t, u32 first, u32 count);

#endif
