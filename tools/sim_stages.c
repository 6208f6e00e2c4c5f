// SPDX-License-Identifier: MIT
#include "sim_stages.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ctn_sim_stages_init(struct ctn_sim_stages *s, uint32_t cap)
{
	s->waiting = calloc(cap, sizeof(*s->waiting));
	s->cap = cap;
	return s->waiting ? 0 : -ENOMEM;
}

void ctn_sim_stages_free(struct ctn_sim_stages *s)
{
	free(s->waiting);
}

void ctn_sim_stages_add(struct ctn_sim_stages *s, uint32_t step, uint64_t devices)
{
	CTN_ASSERT(s->count < s->cap);
	s->waiting[s->count++] = (struct ctn_sim_waiting_stage){step, devices};
}

bool ctn_sim_stages_start(struct ctn_sim_stages *s, uint32_t *step)
{
	uint64_t held = s->taken;

	for (uint32_t i = 0; i < s->count; i++) {
		struct ctn_sim_waiting_stage next = s->waiting[i];

		if (next.devices & held) {
			held |= next.devices;
			continue;
		}
		s->count--;
		memmove(&s->waiting[i], &s->waiting[i + 1], (s->count - i) * sizeof(next));
		s->taken |= next.devices;
		*step = next.step;
		return true;
	}
	return false;
}

void ctn_sim_stages_end(struct ctn_sim_stages *s, uint64_t devices)
{
	s->taken &= ~devices;
}
