// SPDX-License-Identifier: MIT
/*
 * Events of the host backend. Two counters make them safe to reuse: `use` names what the
 * event was last given to, so that work which was given the event before a reset cannot set
 * it after; `sets` lets a waiter return although the event was unset again before it woke.
 */
#include "device/host.h"

#include <errno.h>
#include <stdlib.h>

struct host_event {
	struct ctn_event base;
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t set;
	bool done;
	int rc; /* of the work that set it last */
	uint64_t use;
	uint64_t sets;
};

static struct host_event *host_event(struct ctn_event *event)
{
	return (struct host_event *)event;
}

int ctn_host_event_new(struct ctn_device *dev, struct ctn_event **event)
{
	struct host_event *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->base.dev = dev;
	if (pthread_mutex_init(&e->lock, NULL))
		goto free_event;
	if (pthread_cond_init(&e->set, NULL))
		goto destroy_lock;
	*event = &e->base;
	return 0;
destroy_lock:
	pthread_mutex_destroy(&e->lock);
free_event:
	free(e);
	return -ENOMEM;
}

void ctn_host_event_free(struct ctn_event *event)
{
	struct host_event *e = host_event(event);

	pthread_cond_destroy(&e->set);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

uint64_t ctn_host_event_arm(struct ctn_event *event)
{
	struct host_event *e = host_event(event);
	uint64_t use;

	pthread_mutex_lock(&e->lock);
	e->done = false;
	use = ++e->use;
	pthread_mutex_unlock(&e->lock);
	return use;
}

void ctn_host_event_reset(struct ctn_event *event)
{
	ctn_host_event_arm(event);
}

void ctn_host_event_set(struct ctn_event *event, uint64_t use, int rc)
{
	struct host_event *e = host_event(event);

	pthread_mutex_lock(&e->lock);
	if (e->use == use) {
		e->done = true;
		e->rc = rc;
		e->sets++;
		pthread_cond_broadcast(&e->set);
	}
	pthread_mutex_unlock(&e->lock);
}

bool ctn_host_event_done(struct ctn_event *event)
{
	struct host_event *e = host_event(event);
	bool done;

	pthread_mutex_lock(&e->lock);
	done = e->done;
	pthread_mutex_unlock(&e->lock);
	return done;
}

int ctn_host_event_wait(struct ctn_event *event)
{
	struct host_event *e = host_event(event);
	uint64_t sets;
	int rc;

	pthread_mutex_lock(&e->lock);
	sets = e->sets;
	while (!e->done && e->sets == sets)
		pthread_cond_wait(&e->set, &e->lock);
	rc = e->rc;
	pthread_mutex_unlock(&e->lock);
	return rc;
}
