// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The order of eviction under memory pressure: the frame that nobody has leased for longest goes
 * first; what is pinned is held aside until somebody looks again; units in hot ranges do not count.
 */
#include "order.h"

/**
 * computron_order_remove() - the frame cannot be evicted by pressure
 * @t: the table
 * @f: a frame, on a list (also that of QUARANTINED frames) or not
 */
void computron_order_remove(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	if (list_empty(&f->order))
		return;
	list_del_init(&f->order);
	if (f->state != COMPUTRON_FRAME_CLEAN)
		return;
	if (f->held)
		t->n.held -= f->units;
	else
		t->n.idle -= f->warm_units;
}

/**
 * computron_order_place() - puts a frame where it belongs, as the one that was used last
 * @t: the table
 * @f: a frame, on a list or not
 */
void computron_order_place(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	if (f->state != COMPUTRON_FRAME_CLEAN)
		return;
	computron_order_remove(t, f);
	if (f->leases || !f->warm_units)
		return;
	if (f->held) {
		list_add_tail(&f->order, &t->held);
		t->n.held += f->units;
	} else {
		list_add_tail(&f->order, &t->idle);
		t->n.idle += f->warm_units;
	}
}

/**
 * computron_order_unhold() - the frame is not pinned any more: the first to go
 * @t: the table
 * @f: a frame
 */
void computron_order_unhold(struct computron_frames *t, struct computron_frame *f)
{
	lockdep_assert_held(&t->lock);
	if (!f->held)
		return;
	computron_order_remove(t, f);
	f->held = false;
	computron_order_place(t, f);
	if (!list_empty(&f->order))
		list_move(&f->order, &t->idle);
}

/**
 * computron_order_victim() - what memory pressure takes next
 * @t: the table
 *
 * Return: the least recently used frame whose eviction leaves the floor, or NULL.
 */
struct computron_frame *computron_order_victim(struct computron_frames *t)
{
	struct computron_frame *f;

	lockdep_assert_held(&t->lock);
	list_for_each_entry(f, &t->idle, order) {
		if (t->n.clean >= (u64)t->floor + f->units)
			return f;
	}
	return NULL;
}

/**
 * computron_order_reclaimable() - how much memory pressure can take
 * @t: the table
 *
 * Return: units. It may be less when the frames are large and the floor is near.
 */
u32 computron_order_reclaimable(const struct computron_frames *t)
{
	lockdep_assert_held(&t->lock);
	if (t->n.clean <= t->floor)
		return 0;
	return min(t->n.idle, t->n.clean - t->floor);
}

/* A unit becomes hot or warm; its frame may change its place. */
static void turn(struct computron_frames *t, u32 unit, bool hot)
{
	struct computron_frame *f = t->by_unit[unit];
	bool listed = f && !list_empty(&f->order) && f->state == COMPUTRON_FRAME_CLEAN;

	if (hot)
		t->n.hot++;
	else
		t->n.hot--;
	if (!f) {
		if (hot)
			t->n.hot_free++;
		else
			t->n.hot_free--;
		return;
	}
	if (listed && !f->held) {
		if (hot)
			t->n.idle--;
		else
			t->n.idle++;
	}
	if (hot)
		f->warm_units--;
	else
		f->warm_units++;
	/* The first unit that becomes warm brings it in, the last one that was takes it out. */
	if (listed && !f->warm_units) {
		list_del_init(&f->order);
		if (f->held)
			t->n.held -= f->units;
		f->held = false; /* nobody looks any more */
	} else if (!listed && f->warm_units == 1) {
		computron_order_place(t, f);
	}
}

/**
 * computron_hot_on() - a range becomes hot, once more
 * @t: the table
 * @first: its first unit
 * @count: of its units
 *
 * Return: 0; -EAGAIN: memory in it is being given back; -EBUSY: a frame in it is QUARANTINED;
 * -EOVERFLOW. Nothing has changed then.
 */
int computron_hot_on(struct computron_frames *t, u32 first, u32 count)
{
	const struct computron_frame *f;
	u32 unit;

	lockdep_assert_held(&t->lock);
	for (unit = first; unit < first + count; unit++) {
		f = t->by_unit[unit];
		if (t->hot[unit] == U16_MAX)
			return -EOVERFLOW;
		if (f && f->state == COMPUTRON_FRAME_QUARANTINED)
			return -EBUSY;
		if (f ? f->state == COMPUTRON_FRAME_GOING : test_bit(unit, t->units.used))
			return -EAGAIN;
	}
	for (unit = first; unit < first + count; unit++) {
		if (!t->hot[unit]++)
			turn(t, unit, true);
	}
	return 0;
}

/**
 * computron_hot_off() - the opposite
 * @t: the table
 * @first: first unit of a range that computron_hot_on made hot
 * @count: of its units
 */
void computron_hot_off(struct computron_frames *t, u32 first, u32 count)
{
	u32 unit;

	lockdep_assert_held(&t->lock);
	for (unit = first; unit < first + count; unit++) {
		if (!WARN_ON_ONCE(!t->hot[unit]) && !--t->hot[unit])
			turn(t, unit, false);
	}
}
