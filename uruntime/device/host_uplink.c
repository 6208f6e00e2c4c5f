// SPDX-License-Identifier: MIT
/* The fluid model of links that share an uplink: see host.h. */
#include "device/host.h"

#include <stdlib.h>

#define UNLIMITED UINT64_MAX

struct ctn_uplink *ctn_uplink_new(uint64_t rate)
{
	struct ctn_uplink *uplink = calloc(1, sizeof(*uplink));

	if (!uplink)
		return NULL;
	if (pthread_mutex_init(&uplink->lock, NULL)) {
		free(uplink);
		return NULL;
	}
	uplink->rate = rate;
	uplink->users = 1;
	return uplink;
}

uint32_t ctn_uplink_add(struct ctn_uplink *uplink, uint64_t own_rate)
{
	uint32_t link;

	pthread_mutex_lock(&uplink->lock);
	CTN_ASSERT(uplink->count < CTN_MAX_DEVICES);
	link = uplink->count++;
	uplink->users++;
	uplink->links[link] = (struct ctn_uplink_link){.own_rate = own_rate};
	pthread_mutex_unlock(&uplink->lock);
	return link;
}

void ctn_uplink_put(struct ctn_uplink *uplink)
{
	uint32_t users;

	pthread_mutex_lock(&uplink->lock);
	users = --uplink->users;
	pthread_mutex_unlock(&uplink->lock);
	if (users)
		return;
	pthread_mutex_destroy(&uplink->lock);
	free(uplink);
}

static bool busy(const struct ctn_uplink_link *link)
{
	return link->served < link->submitted;
}

static uint64_t own_rate(const struct ctn_uplink_link *link)
{
	return link->own_rate ? link->own_rate : UNLIMITED;
}

/*
 * Max-min fair: as long as a busy link's own rate is at most an equal share of what is left
 * of the uplink, it gets its own rate; the others then share the rest equally.
 */
static void set_rates(struct ctn_uplink *uplink)
{
	uint64_t left = uplink->rate ? uplink->rate : UNLIMITED, share = 0;
	uint32_t open = 0;
	bool changed = true;

	for (uint32_t i = 0; i < uplink->count; i++) {
		uplink->links[i].rate = 0;
		open += busy(&uplink->links[i]);
	}
	while (open && changed) {
		changed = false;
		share = CTN_MAX(left / open, 1);
		for (uint32_t i = 0; i < uplink->count; i++) {
			struct ctn_uplink_link *link = &uplink->links[i];

			if (!busy(link) || link->rate || own_rate(link) > share)
				continue;
			link->rate = own_rate(link);
			left -= CTN_MIN(left, link->rate);
			open--;
			changed = true;
			break;
		}
	}
	for (uint32_t i = 0; i < uplink->count; i++) {
		struct ctn_uplink_link *link = &uplink->links[i];

		if (busy(link) && !link->rate)
			link->rate = share;
	}
}

/* When a busy link will have carried `work`, at its rate of now; rounded up. */
static uint64_t reach(const struct ctn_uplink *uplink, const struct ctn_uplink_link *link,
		      ctn_work work)
{
	return uplink->now + (uint64_t)((work - link->served + link->rate - 1) / link->rate);
}

/* The first time at which a busy link becomes idle. */
static uint64_t next_idle(const struct ctn_uplink *uplink)
{
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < uplink->count; i++) {
		const struct ctn_uplink_link *link = &uplink->links[i];

		if (busy(link))
			first = CTN_MIN(first, reach(uplink, link, link->submitted));
	}
	return first;
}

/* Carries on to `now`, with new shares each time that a link becomes idle. */
static void advance(struct ctn_uplink *uplink, uint64_t now)
{
	while (uplink->now < now) {
		uint64_t end, ns;

		set_rates(uplink);
		end = CTN_MIN(now, next_idle(uplink));
		ns = end - uplink->now;
		for (uint32_t i = 0; i < uplink->count; i++) {
			struct ctn_uplink_link *link = &uplink->links[i];

			link->served =
				CTN_MIN(link->submitted, link->served + (ctn_work)link->rate * ns);
		}
		uplink->now = end;
	}
}

void ctn_uplink_submit(struct ctn_uplink *uplink, uint32_t link, uint64_t bytes, uint64_t now)
{
	advance(uplink, now);
	uplink->links[link].submitted += (ctn_work)bytes * CTN_NSEC_PER_SEC;
}

uint64_t ctn_uplink_due(struct ctn_uplink *uplink, uint32_t link, uint64_t offset, uint64_t now)
{
	const struct ctn_uplink_link *l = &uplink->links[link];
	ctn_work work = (ctn_work)offset * CTN_NSEC_PER_SEC;

	if (!uplink->rate && !l->own_rate)
		return 0;
	advance(uplink, now);
	if (l->served >= work)
		return 0;
	CTN_ASSERT(work <= l->submitted);
	set_rates(uplink);
	return CTN_MIN(reach(uplink, l, work), next_idle(uplink));
}
