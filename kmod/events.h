/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The last events of a pool, in a ring that is there from the start: nothing is allocated when
 * memory is short. Each file reads it from its own position.
 */
#ifndef COMPUTRON_EVENTS_H
#define COMPUTRON_EVENTS_H

#include <linux/types.h>
#include <linux/wait.h>

#include "include/uapi/linux/computron.h"

/**
 * struct computron_events - the ring
 * @next: number of the next event; the first is 1
 * @wait: for readers
 * @causes: number of the file that caused each; 0: the kernel
 * @ring: event number n is at n % COMPUTRON_EVENTS
 *
 * Guarded by the lock of the pool's frames.
 */
struct computron_events {
	u64 next;
	wait_queue_head_t wait;
	u64 causes[COMPUTRON_EVENTS];
	struct computron_event ring[COMPUTRON_EVENTS];
};

struct computron_events *computron_events_new(void);
void computron_events_push(struct computron_events *e, u32 type, const struct computron_ref *ref,
			   u64 bytes, u64 cause);
u32 computron_events_take(struct computron_events *e, u64 *position, u64 reader,
			  struct computron_event *out, u32 room);
bool computron_events_pending(struct computron_events *e, u64 *position, u64 reader);

#endif
