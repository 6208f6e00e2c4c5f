// SPDX-License-Identifier: MIT
/*
 * The table of a module's pool and its order of eviction (kmod/frames.c, kmod/order.c). After each
 * step of a random sequence all counts and lists are compared with a walk over the units.
 */
#include "test.h"
#include "kmod/frames.h"
#include "kmod/order.h"

int kmod_kernel_allocations = -1;

#define UNITS 64
#define UNIT  (2ULL << 20)

static int me, other; /* files */

struct table {
	struct computron_frames t;
	struct list_head loading;
};

static void open_table(struct table *x, u32 segment)
{
	CU_ASSERT_EQUAL_FATAL(computron_frames_init(&x->t, UNIT, UNITS, segment), 0);
	INIT_LIST_HEAD(&x->loading);
	spin_lock(&x->t.lock);
}

static void close_table(struct table *x)
{
	spin_unlock(&x->t.lock);
	computron_frames_fini(&x->t);
}

static struct computron_frame *new_frame(u32 key, u32 units, u32 room)
{
	u8 bytes[COMPUTRON_KEY_BYTES] = {0};

	memcpy(bytes, &key, sizeof(key));
	return computron_frame_new(bytes, units * UNIT - 5, units, room);
}

static int enter(struct table *x, u32 key, u32 units, struct computron_frame **f)
{
	struct computron_ref ref;
	int rc;

	*f = new_frame(key, units, UNITS);
	CU_ASSERT_PTR_NOT_NULL_FATAL(*f);
	rc = computron_frames_enter(&x->t, *f, &me, &x->loading, &ref);
	if (rc) {
		computron_frame_free(*f);
		*f = NULL;
	}
	return rc;
}

static struct computron_frame *clean(struct table *x, u32 key, u32 units)
{
	u8 data[COMPUTRON_OWNER_BYTES] = {0};
	struct computron_frame *f;

	CU_ASSERT_EQUAL_FATAL(enter(x, key, units, &f), 0);
	computron_frame_seal(&x->t, f, NULL, data);
	return f;
}

static void retire(struct table *x, struct computron_frame *f)
{
	computron_frame_depart(&x->t, f);
	computron_frame_retire(&x->t, f);
	computron_frame_free(f);
}

static bool on(const struct list_head *list, const struct computron_frame *f)
{
	const struct list_head *l;

	for (l = list->next; l != list; l = l->next)
		if (l == &f->order)
			return true;
	return false;
}

/* All that the table says, by an independent count. */
static void audit(struct table *x)
{
	struct computron_frames *t = &x->t;
	struct computron_counts n = {0};
	struct computron_frame *f;
	u32 free = 0;

	for (u32 unit = 0; unit < UNITS; unit++) {
		f = t->by_unit[unit];
		n.hot += t->hot[unit] != 0;
		n.hot_free += t->hot[unit] && !f;
		free += !f;
		if (!f)
			continue;
		switch (f->state == COMPUTRON_FRAME_GOING ? f->was : f->state) {
		case COMPUTRON_FRAME_LOADING:
			n.loading++;
			break;
		case COMPUTRON_FRAME_CLEAN:
			n.clean++;
			break;
		default:
			n.quarantined++;
		}
		n.leased += f->leases != 0;
		n.idle += on(&t->idle, f) && !t->hot[unit];
		n.held += on(&t->held, f);
		if (f->ref.id == unit) {
			bool evictable = f->state == COMPUTRON_FRAME_CLEAN && !f->leases;
			u32 warm = 0;

			for (u32 i = 0; i < f->nr_runs; i++)
				for (u32 u = 0; u < f->runs[i].count; u++)
					warm += !t->hot[f->runs[i].first + u];
			CU_ASSERT_EQUAL(f->warm_units, warm);
			CU_ASSERT_EQUAL(on(&t->idle, f), evictable && !f->held && warm > 0);
			CU_ASSERT_EQUAL(on(&t->held, f), evictable && f->held && warm > 0);
			CU_ASSERT_EQUAL(on(&t->quarantined, f),
					f->state == COMPUTRON_FRAME_QUARANTINED);
			n.frames++;
			n.huge_bytes += f->huge_bytes;
		}
	}
	CU_ASSERT_EQUAL(t->units.free, free);
	CU_ASSERT_EQUAL(t->n.loading, n.loading);
	CU_ASSERT_EQUAL(t->n.clean, n.clean);
	CU_ASSERT_EQUAL(t->n.quarantined, n.quarantined);
	CU_ASSERT_EQUAL(t->n.leased, n.leased);
	CU_ASSERT_EQUAL(t->n.idle, n.idle);
	CU_ASSERT_EQUAL(t->n.held, n.held);
	CU_ASSERT_EQUAL(t->n.hot, n.hot);
	CU_ASSERT_EQUAL(t->n.hot_free, n.hot_free);
	CU_ASSERT_EQUAL(t->n.frames, n.frames);
	CU_ASSERT_EQUAL(t->n.huge_bytes, n.huge_bytes);
}

static void test_a_life(void)
{
	u8 digest[COMPUTRON_DIGEST_BYTES] = {1}, data[COMPUTRON_OWNER_BYTES] = {2};
	struct computron_frame_info info;
	struct computron_frame *f, *found;
	struct computron_ref ref;
	struct table x;

	open_table(&x, 0);
	CU_ASSERT_EQUAL_FATAL(enter(&x, 1, 3, &f), 0);
	ref = f->ref;
	CU_ASSERT_EQUAL(computron_frames_find(&x.t, &ref, &found), 0);
	CU_ASSERT_PTR_EQUAL(found, f);
	CU_ASSERT_FALSE(computron_frames_readable(&x.t, (u32)ref.id, 0));
	CU_ASSERT_EQUAL(computron_frame_lease(&x.t, f), -EBUSY);
	computron_frame_describe(&x.t, f, &me, &info);
	CU_ASSERT_EQUAL(info.flags, COMPUTRON_FRAME_MINE);
	CU_ASSERT_EQUAL(info.bytes, 6291451);
	CU_ASSERT_EQUAL(info.charged, 6291456);
	computron_frame_describe(&x.t, f, &other, &info);
	CU_ASSERT_EQUAL(info.flags, 0);

	computron_frame_seal(&x.t, f, digest, data);
	CU_ASSERT_TRUE(list_empty(&x.loading));
	CU_ASSERT_TRUE(computron_frames_readable(&x.t, (u32)ref.id + 2, ref.generation));
	CU_ASSERT_FALSE(computron_frames_readable(&x.t, (u32)ref.id + 2, ref.generation + 1));
	CU_ASSERT_PTR_EQUAL(computron_frames_spanning(&x.t, (u32)ref.id, (u32)ref.id + 2),
			    x.t.by_unit[ref.id]);
	CU_ASSERT_PTR_NULL(computron_frames_spanning(&x.t, (u32)ref.id, (u32)ref.id + 3));
	CU_ASSERT_PTR_NULL(computron_frames_spanning(&x.t, UINT32_MAX, UINT32_MAX));
	CU_ASSERT_FALSE(computron_frames_readable(&x.t, (u32)ref.id + 3, 0));
	CU_ASSERT_FALSE(computron_frames_readable(&x.t, UNITS, 0));
	CU_ASSERT_PTR_EQUAL(computron_frames_by_content(&x.t, digest, data), f);
	data[5] = 1;
	CU_ASSERT_PTR_NULL(computron_frames_by_content(&x.t, digest, data));
	CU_ASSERT_EQUAL(computron_frame_lease(&x.t, f), 0);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 0);
	computron_frame_release(&x.t, f, 1);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 3);
	audit(&x);

	computron_frame_depart(&x.t, f);
	CU_ASSERT_EQUAL(computron_frames_find(&x.t, &ref, &found), -EAGAIN);
	CU_ASSERT_FALSE(computron_frames_readable(&x.t, (u32)ref.id, 0));
	computron_frame_retire(&x.t, f);
	computron_frame_free(f);
	CU_ASSERT_EQUAL(computron_frames_find(&x.t, &ref, &found), -ESTALE);
	data[5] = 0;
	CU_ASSERT_PTR_NULL(computron_frames_by_content(&x.t, digest, data));
	audit(&x);

	/* The same place, another name. */
	CU_ASSERT_EQUAL_FATAL(enter(&x, 1, 3, &f), 0);
	CU_ASSERT_EQUAL(f->ref.id, ref.id);
	CU_ASSERT_NOT_EQUAL(f->ref.generation, ref.generation);
	CU_ASSERT_EQUAL(computron_frames_find(&x.t, &ref, &found), -ESTALE);
	close_table(&x);
}

static void test_what_is_refused(void)
{
	struct computron_frame *f, *g, *small;
	struct computron_ref ref = {0, 0};
	struct table x;

	open_table(&x, 0);
	x.t.quota = 10;
	CU_ASSERT_EQUAL_FATAL(enter(&x, 1, 6, &f), 0);
	CU_ASSERT_EQUAL(enter(&x, 2, 5, &g), -EDQUOT);
	CU_ASSERT_EQUAL_FATAL(enter(&x, 2, 4, &g), 0);
	small = new_frame(1, 1, 1);
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, small, &me, &x.loading, &ref), -EEXIST);
	CU_ASSERT_EQUAL(ref.generation, f->ref.generation);
	computron_frame_depart(&x.t, f);
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, small, &me, &x.loading, &ref), -EAGAIN);
	/* A frame in quarantine has no key any more. */
	computron_frame_quarantine(&x.t, f);
	CU_ASSERT_PTR_NULL(computron_frames_by_key(&x.t, small->key));
	audit(&x);
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, small, &me, &x.loading, &ref), -EDQUOT);
	x.t.quota = UNITS;
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, small, &me, &x.loading, &ref), 0);
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, 0, UNITS), -EBUSY);
	audit(&x);
	close_table(&x);
}

static u32 free_unit(struct table *x)
{
	return (u32)find_next_zero_bit(x->t.units.used, UNITS, 0);
}

static void test_little_room_for_runs(void)
{
	struct computron_frame *f[UNITS / 2], *g;
	struct computron_ref ref;
	struct table x;

	open_table(&x, 0);
	for (u32 i = 0; i < UNITS / 2; i++)
		CU_ASSERT_EQUAL_FATAL(enter(&x, i, 2, &f[i]), 0);
	for (u32 i = 0; i < UNITS / 2; i += 2)
		retire(&x, f[i]);
	g = new_frame(1000, 9, 4);
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, g, &me, &x.loading, &ref), -ENOBUFS);
	audit(&x);
	computron_frame_free(g);
	g = new_frame(1000, 9, 5);
	CU_ASSERT_EQUAL(computron_frames_enter(&x.t, g, &me, &x.loading, &ref), 0);
	CU_ASSERT_EQUAL(g->nr_runs, 5);
	CU_ASSERT_EQUAL(enter(&x, 1001, 24, &f[0]), -EDQUOT);
	CU_ASSERT_TRUE(computron_units_take_at(&x.t.units, free_unit(&x)));
	CU_ASSERT_EQUAL(enter(&x, 1001, 23, &f[0]), -EAGAIN);
	close_table(&x);
}

static void test_the_least_recently_leased_goes_first(void)
{
	struct computron_frame *a, *b, *c;
	struct table x;

	open_table(&x, 0);
	a = clean(&x, 1, 4);
	b = clean(&x, 2, 4);
	c = clean(&x, 3, 2);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), a);
	computron_frame_lease(&x.t, a);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), b);
	computron_frame_release(&x.t, a, 1);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), b);

	/* Ten units are clean. The floor is kept, by a smaller frame if there is one. */
	x.t.floor = 7;
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 3);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), c);
	x.t.floor = 9;
	CU_ASSERT_PTR_NULL(computron_order_victim(&x.t));
	x.t.floor = 0;

	/* Pinned: aside, and first again when it is not any more. */
	computron_frame_depart(&x.t, b);
	computron_frame_stay(&x.t, b);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), c);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 6);
	audit(&x);
	computron_order_unhold(&x.t, b);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), b);
	audit(&x);

	/* Nobody looks at it while it is leased, or all hot: not aside any more afterwards. */
	computron_frame_depart(&x.t, b);
	computron_frame_stay(&x.t, b);
	computron_frame_lease(&x.t, b);
	computron_frame_release(&x.t, b, 1);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 10);
	audit(&x);
	computron_frame_depart(&x.t, b);
	computron_frame_stay(&x.t, b);
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, b->ref.id, 4), 0);
	computron_hot_off(&x.t, b->ref.id, 4);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 10);
	audit(&x);
	close_table(&x);
}

static void test_hot_units_do_not_count(void)
{
	struct computron_frame *a, *b;
	struct table x;

	open_table(&x, 0);
	a = clean(&x, 1, 4); /* 0 to 3 */
	b = clean(&x, 2, 4); /* 4 to 7 */
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, 0, 6), 0);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 2);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), b);
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, 2, 62), 0);
	CU_ASSERT_PTR_NULL(computron_order_victim(&x.t));
	CU_ASSERT_EQUAL(x.t.n.hot_free, 56);
	computron_hot_off(&x.t, 0, 6);
	CU_ASSERT_EQUAL(computron_order_reclaimable(&x.t), 2);
	CU_ASSERT_PTR_EQUAL(computron_order_victim(&x.t), a);
	audit(&x);
	computron_frame_depart(&x.t, a);
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, 3, 1), -EAGAIN);
	CU_ASSERT_TRUE(computron_units_take_at(&x.t.units, 20));
	CU_ASSERT_EQUAL(computron_hot_on(&x.t, 20, 1), -EAGAIN);
	CU_ASSERT_EQUAL(x.t.n.hot, 62);
	close_table(&x);
}

static void test_a_walk(void)
{
	struct computron_frame *f[3];
	struct table x;

	open_table(&x, 0);
	for (u32 i = 0; i < 3; i++)
		f[i] = clean(&x, i, 5);
	CU_ASSERT_PTR_EQUAL(computron_frames_next(&x.t, 0), f[0]);
	CU_ASSERT_PTR_EQUAL(computron_frames_next(&x.t, 1), f[1]);
	computron_frame_depart(&x.t, f[1]);
	CU_ASSERT_PTR_EQUAL(computron_frames_next(&x.t, 1), f[2]);
	CU_ASSERT_PTR_NULL(computron_frames_next(&x.t, 11));
	CU_ASSERT_PTR_NULL(computron_frames_next(&x.t, UNITS));
	close_table(&x);
}

#define KEYS 24

struct fuzz {
	struct table x;
	struct computron_frame *f[KEYS];
	u8 hot[UNITS];
};

static void fuzz_frame(struct fuzz *z, u32 key)
{
	struct computron_frames *t = &z->x.t;
	struct computron_frame *f = z->f[key];
	u8 digest[COMPUTRON_DIGEST_BYTES] = {(u8)(key % 3)}, data[COMPUTRON_OWNER_BYTES] = {0};

	if (!f) {
		if (enter(&z->x, key, 1 + (u32)random() % 9, &z->f[key]) == 0)
			computron_frame_counted(t, z->f[key], (u64)random() % 1000);
	} else if (f->state == COMPUTRON_FRAME_GOING) {
		u32 way = (u32)random() % 2;

		if (way && f->was == COMPUTRON_FRAME_CLEAN) {
			computron_frame_stay(t, f);
		} else if (way) {
			computron_frame_quarantine(t, f);
		} else {
			computron_frame_retire(t, f);
			computron_frame_free(f);
			z->f[key] = NULL;
		}
	} else if (f->state == COMPUTRON_FRAME_LOADING && random() % 3) {
		computron_frame_seal(t, f, random() % 2 ? digest : NULL, data);
	} else if (f->leases) {
		computron_frame_release(t, f, 1 + (u32)random() % f->leases);
	} else if (f->state == COMPUTRON_FRAME_CLEAN && random() % 2) {
		CU_ASSERT_EQUAL(computron_frame_lease(t, f), 0);
	} else if (random() % 3 == 0) {
		computron_order_unhold(t, f);
	} else {
		computron_frame_depart(t, f);
	}
}

static void fuzz_hot(struct fuzz *z)
{
	u32 first = (u32)random() % UNITS, count = 1 + (u32)random() % (UNITS - first), unit;

	if (random() % 2) {
		if (computron_hot_on(&z->x.t, first, count) == 0)
			for (unit = first; unit < first + count; unit++)
				z->hot[unit]++;
		return;
	}
	for (unit = first; unit < first + count && z->hot[unit]; unit++)
		z->hot[unit]--;
	computron_hot_off(&z->x.t, first, unit - first);
}

static void test_any_sequence(void)
{
	struct fuzz z;

	srandom(11);
	for (u32 round = 0; round < 20; round++) {
		memset(&z, 0, sizeof(z));
		open_table(&z.x, round % 2 ? 16 : 0);
		for (u32 step = 0; step < 1500; step++) {
			if (random() % 5)
				fuzz_frame(&z, (u32)random() % KEYS);
			else
				fuzz_hot(&z);
			audit(&z.x);
		}
		close_table(&z.x);
	}
}

static void test_without_memory(void)
{
	struct computron_frames t;

	for (int n = 0; n < 6; n++) {
		kmod_kernel_allocations = n;
		CU_ASSERT_EQUAL(computron_frames_init(&t, UNIT, UNITS, 0), -ENOMEM);
	}
	kmod_kernel_allocations = 6;
	CU_ASSERT_EQUAL(computron_frames_init(&t, UNIT, UNITS, 0), 0);
	CU_ASSERT_PTR_NULL(new_frame(1, 1, 1));
	kmod_kernel_allocations = -1;
	computron_frames_fini(&t);
}

CTN_TESTS("kmod-frames", CTN_TEST(test_a_life), CTN_TEST(test_what_is_refused),
	  CTN_TEST(test_little_room_for_runs), CTN_TEST(test_the_least_recently_leased_goes_first),
	  CTN_TEST(test_hot_units_do_not_count), CTN_TEST(test_a_walk), CTN_TEST(test_any_sequence),
	  CTN_TEST(test_without_memory))
