/* SPDX-License-Identifier: MIT */
/*
 * What kmod/'s files without mm calls need of the kernel, in user space. The lock is real enough to
 * notice a function that is called without it.
 */
#ifndef CTN_KMOD_KERNEL_H
#define CTN_KMOD_KERNEL_H

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;

#define U16_MAX UINT16_MAX
#define S32_MAX INT32_MAX

#define READ_ONCE(x) (x)
#define WARN_ON_ONCE(c)       \
	({                    \
		assert(!(c)); \
		false;        \
	})

#define container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define min(a, b)                     ((a) < (b) ? (a) : (b))
#define max(a, b)                     ((a) > (b) ? (a) : (b))
#define min_t(type, a, b)             min((type)(a), (type)(b))
#define rounddown(x, y)               ((x) - (x) % (y))
#define struct_size(p, member, n)     (sizeof(*(p)) + sizeof((p)->member[0]) * (n))

/* ---- memory ----------------------------------------------------------------------------- */

#define GFP_KERNEL_ACCOUNT 0

/* Allocations that are let through before one fails; negative: all. */
extern int kmod_kernel_allocations;

static inline void *kmod_kernel_calloc(size_t count, size_t size)
{
	if (kmod_kernel_allocations == 0)
		return NULL;
	if (kmod_kernel_allocations > 0)
		kmod_kernel_allocations--;
	return calloc(count, size);
}

#define kvcalloc(count, size, gfp) kmod_kernel_calloc(count, size)
#define kvzalloc(size, gfp)        kmod_kernel_calloc(1, size)
#define kvfree(p)                  free(p)

/* ---- locks ------------------------------------------------------------------------------ */

typedef struct {
	bool held;
} spinlock_t;

#define spin_lock_init(l)      ((l)->held = false)
#define lockdep_assert_held(l) assert((l)->held)

static inline void spin_lock(spinlock_t *l)
{
	assert(!l->held);
	l->held = true;
}

static inline void spin_unlock(spinlock_t *l)
{
	assert(l->held);
	l->held = false;
}

/* ---- bits ------------------------------------------------------------------------------- */

#define LONG_BITS        (8 * sizeof(long))
#define BITS_TO_LONGS(n) (((n) + LONG_BITS - 1) / LONG_BITS)

static inline bool test_bit(unsigned long bit, const unsigned long *map)
{
	return map[bit / LONG_BITS] >> bit % LONG_BITS & 1;
}

static inline void __set_bit(unsigned long bit, unsigned long *map)
{
	map[bit / LONG_BITS] |= 1UL << bit % LONG_BITS;
}

static inline void __clear_bit(unsigned long bit, unsigned long *map)
{
	map[bit / LONG_BITS] &= ~(1UL << bit % LONG_BITS);
}

static inline void bitmap_set(unsigned long *map, unsigned long first, unsigned long count)
{
	while (count--)
		__set_bit(first++, map);
}

static inline void bitmap_clear(unsigned long *map, unsigned long first, unsigned long count)
{
	while (count--)
		__clear_bit(first++, map);
}

static inline unsigned long find_next_bit(const unsigned long *map, unsigned long size,
					  unsigned long bit)
{
	while (bit < size && !test_bit(bit, map))
		bit++;
	return min(bit, size);
}

static inline unsigned long find_next_zero_bit(const unsigned long *map, unsigned long size,
					       unsigned long bit)
{
	while (bit < size && test_bit(bit, map))
		bit++;
	return min(bit, size);
}

/* ---- lists ------------------------------------------------------------------------------ */

struct list_head {
	struct list_head *next, *prev;
};

static inline void INIT_LIST_HEAD(struct list_head *l)
{
	l->next = l->prev = l;
}

static inline bool list_empty(const struct list_head *l)
{
	return l->next == l;
}

static inline void list_insert(struct list_head *l, struct list_head *prev, struct list_head *next)
{
	l->prev = prev;
	l->next = next;
	prev->next = next->prev = l;
}

static inline void list_add_tail(struct list_head *l, struct list_head *head)
{
	list_insert(l, head->prev, head);
}

static inline void list_del_init(struct list_head *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	INIT_LIST_HEAD(l);
}

static inline void list_move(struct list_head *l, struct list_head *head)
{
	list_del_init(l);
	list_insert(l, head, head->next);
}

#define list_for_each_entry(p, head, member)                                               \
	for (p = container_of((head)->next, __typeof__(*p), member); &p->member != (head); \
	     p = container_of(p->member.next, __typeof__(*p), member))

struct hlist_node {
	struct hlist_node *next, **at;
};

struct hlist_head {
	struct hlist_node *first;
};

static inline void INIT_HLIST_NODE(struct hlist_node *n)
{
	n->next = NULL;
	n->at = NULL;
}

static inline bool hlist_unhashed(const struct hlist_node *n)
{
	return !n->at;
}

static inline void hlist_add_head(struct hlist_node *n, struct hlist_head *h)
{
	n->next = h->first;
	n->at = &h->first;
	if (n->next)
		n->next->at = &n->next;
	h->first = n;
}

static inline void hlist_del_init(struct hlist_node *n)
{
	*n->at = n->next;
	if (n->next)
		n->next->at = n->at;
	INIT_HLIST_NODE(n);
}

#define hlist_entry_or_null(n, type, member) ((n) ? container_of(n, type, member) : NULL)
#define hlist_for_each_entry(p, head, member)                                   \
	for (p = hlist_entry_or_null((head)->first, __typeof__(*p), member); p; \
	     p = hlist_entry_or_null(p->member.next, __typeof__(*p), member))

#endif
