// SPDX-License-Identifier: MIT
#include "pool/space.h"

#include "base/base.h"

#include <errno.h>
#include <stdlib.h>

#define NONE UINT32_MAX

static void link_run(struct ctn_space *s, uint32_t first, uint32_t len)
{
	s->units[first].run = len;
	s->units[first + len - 1].run = len;
	s->units[first].prev = NONE;
	s->units[first].next = s->head;
	if (s->head != NONE)
		s->units[s->head].prev = first;
	s->head = first;
}

static void unlink_run(struct ctn_space *s, uint32_t first)
{
	struct ctn_space_unit *u = &s->units[first];

	if (u->prev != NONE)
		s->units[u->prev].next = u->next;
	else
		s->head = u->next;
	if (u->next != NONE)
		s->units[u->next].prev = u->prev;
	s->units[first + u->run - 1].run = 0;
	u->run = 0;
}

int ctn_space_init(struct ctn_space *s, uint32_t units, uint32_t segment_units)
{
	s->units = calloc(units, sizeof(*s->units));
	if (!s->units)
		return -ENOMEM;
	s->count = units;
	s->segment_units = segment_units;
	s->free = units;
	s->head = NONE;
	for (uint32_t first = 0; first < units; first += CTN_MIN(segment_units, units - first))
		link_run(s, first, CTN_MIN(segment_units, units - first));
	return 0;
}

void ctn_space_fini(struct ctn_space *s)
{
	free(s->units);
	s->units = NULL;
}

/* True when run a suits a wish for `want` units better than run b. Low addresses win ties, so
 * that memory which is already committed is used again. */
static bool better(const struct ctn_space *s, uint32_t want, uint32_t a, uint32_t b)
{
	uint32_t la = s->units[a].run, lb = s->units[b].run;

	if ((la >= want) != (lb >= want))
		return la >= want;
	if (la != lb)
		return la >= want ? la < lb : la > lb;
	return a < b;
}

bool ctn_space_take(struct ctn_space *s, uint32_t want, uint32_t *first, uint32_t *got)
{
	uint32_t best = s->head, len;

	if (best == NONE || want == 0)
		return false;
	for (uint32_t r = s->units[best].next; r != NONE; r = s->units[r].next) {
		if (better(s, want, r, best))
			best = r;
	}
	len = s->units[best].run;
	unlink_run(s, best);
	*first = best;
	*got = CTN_MIN(want, len);
	if (len > want)
		link_run(s, best + want, len - want);
	s->free -= *got;
	return true;
}

void ctn_space_give(struct ctn_space *s, uint32_t first, uint32_t count)
{
	uint32_t segment = first / s->segment_units;
	uint32_t begin = first, end = first + count;

	s->free += count;
	if (begin > segment * s->segment_units && s->units[begin - 1].run) {
		begin -= s->units[begin - 1].run;
		unlink_run(s, begin);
	}
	if (end < s->count && end / s->segment_units == segment && s->units[end].run) {
		uint32_t next = end;

		end += s->units[next].run;
		unlink_run(s, next);
	}
	link_run(s, begin, end - begin);
}

uint32_t ctn_space_mark(const struct ctn_space *s, uint8_t *marks)
{
	uint32_t n = 0;

	for (uint32_t r = s->head; r != NONE; r = s->units[r].next) {
		for (uint32_t u = r; u < r + s->units[r].run; u++, n++)
			marks[u]++;
	}
	return n;
}
