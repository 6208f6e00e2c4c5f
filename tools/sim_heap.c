// SPDX-License-Identifier: MIT
/* A binary heap of events; equal times come out in the order in which they went in. */
#include "sim.h"

#include <stdlib.h>

static bool before(const struct ctn_sim_event *a, const struct ctn_sim_event *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void ctn_sim_heap_push(struct ctn_sim_heap *h, uint64_t at_ns, uint32_t type, uint32_t what)
{
	struct ctn_sim_event ev = {at_ns, h->pushed++, type, what};
	size_t i = h->count;

	if (h->count == h->cap) {
		size_t cap = CTN_MAX(2 * h->cap, (size_t)64);
		struct ctn_sim_event *events = realloc(h->events, cap * sizeof(*events));

		if (!events) {
			h->failed = true;
			return;
		}
		h->events = events;
		h->cap = cap;
	}
	for (; i && before(&ev, &h->events[(i - 1) / 2]); i = (i - 1) / 2)
		h->events[i] = h->events[(i - 1) / 2];
	h->events[i] = ev;
	h->count++;
}

struct ctn_sim_event ctn_sim_heap_pop(struct ctn_sim_heap *h)
{
	struct ctn_sim_event first = h->events[0], last = h->events[--h->count];
	size_t i = 0;

	for (;;) {
		size_t child = 2 * i + 1;

		if (child + 1 < h->count && before(&h->events[child + 1], &h->events[child]))
			child++;
		if (child >= h->count || !before(&h->events[child], &last))
			break;
		h->events[i] = h->events[child];
		i = child;
	}
	if (h->count)
		h->events[i] = last;
	return first;
}

void ctn_sim_heap_free(struct ctn_sim_heap *h)
{
	free(h->events);
	*h = (struct ctn_sim_heap){0};
}
