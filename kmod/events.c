// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The ring of a pool's events. See events.h.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "events.h"

/**
 * computron_events_new() - an empty ring
 *
 * Return: the ring, which kvfree frees, or NULL.
 */
struct computron_events *computron_events_new(void)
{
	struct computron_events *e = kvzalloc(sizeof(*e), GFP_KERNEL_ACCOUNT);

	if (!e)
		return NULL;
	e->next = 1;
	init_waitqueue_head(&e->wait);
	return e;
}

/**
 * computron_events_push() - something happened
 * @e: the ring
 * @type: enum computron_event_type
 * @ref: the frame
 * @bytes: what it was charged
 * @cause: number of the file that did it, which is not told; 0: nobody's
 *
 * Context: the lock is held; also in reclaim.
 */
void computron_events_push(struct computron_events *e, u32 type, const struct computron_ref *ref,
			   u64 bytes, u64 cause)
{
	struct computron_event *event = &e->ring[e->next % COMPUTRON_EVENTS];

	event->size = sizeof(*event);
	event->type = type;
	event->ref = *ref;
	event->bytes = bytes;
	event->seq = e->next;
	e->causes[e->next % COMPUTRON_EVENTS] = cause;
	e->next++;
	wake_up_interruptible_all(&e->wait);
}

/* The number of the oldest event that is still there. */
static u64 oldest(const struct computron_events *e)
{
	return e->next > COMPUTRON_EVENTS ? e->next - COMPUTRON_EVENTS : 1;
}

/**
 * computron_events_pending() - whether there is something to read
 * @e: the ring
 * @position: of the reader; moves past what the reader has caused itself
 * @reader: number of its file
 *
 * Context: the lock is held.
 * Return: true when a read would give an event.
 */
bool computron_events_pending(struct computron_events *e, u64 *position, u64 reader)
{
	if (*position < oldest(e))
		return true;
	while (*position < e->next && e->causes[*position % COMPUTRON_EVENTS] == reader)
		++*position;
	return *position < e->next;
}

/**
 * computron_events_take() - reads events
 * @e: the ring
 * @position: of the reader; moves on
 * @reader: number of its file
 * @out: to be filled
 * @room: in @out
 *
 * Context: the lock is held.
 * Return: how many there were.
 */
u32 computron_events_take(struct computron_events *e, u64 *position, u64 reader,
			  struct computron_event *out, u32 room)
{
	u32 n = 0;

	while (n < room && computron_events_pending(e, position, reader)) {
		if (*position < oldest(e)) {
			memset(&out[n], 0, sizeof(out[n]));
			out[n].size = sizeof(out[n]);
			out[n].type = COMPUTRON_EVENT_OVERFLOW;
			out[n].seq = oldest(e) - *position;
			*position = oldest(e);
		} else {
			out[n] = e->ring[*position % COMPUTRON_EVENTS];
			++*position;
		}
		n++;
	}
	return n;
}
