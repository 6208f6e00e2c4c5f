// SPDX-License-Identifier: MIT
/*
 * A link of the host backend: a thread that carries loads in order, in pieces of at most
 * CTN_HOST_PIECE bytes. A piece is copied once the uplink says that the link has had the
 * time to carry it, so none of its bytes shows before; a copy that ends late delays no later
 * deadline.
 */
#include "device/host.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <utlist.h>

struct ctn_host_load {
	struct ctn_host_load *prev, *next;
	struct ctn_event *event;
	uint64_t use; /* of the event */
	ctn_load_done_fn *done;
	void *arg;
	uint64_t bytes;
	/* Where the next piece begins. */
	uint32_t copy;
	uint64_t row, column;
	uint32_t count;
	struct ctn_copy copies[];
};

/* Drops what is empty, and makes one row of rows that follow each other without a gap. */
static struct ctn_host_load *new_load(const struct ctn_copy *copies, uint32_t count)
{
	struct ctn_host_load *load = calloc(1, sizeof(*load) + count * sizeof(*copies));

	if (!load)
		return NULL;
	for (uint32_t i = 0; i < count; i++) {
		struct ctn_copy *c = &load->copies[load->count];

		if (copies[i].width == 0 || copies[i].height == 0)
			continue;
		*c = copies[i];
		load->bytes += c->width * c->height;
		if (c->src_pitch == c->width && c->dst_pitch == c->width) {
			c->width *= c->height;
			c->height = 1;
		}
		load->count++;
	}
	return load;
}

/*
 * The bytes of the next piece, 0 at the end of the load. A piece may span copies. It ends
 * between rows, or within a row when a row is larger than a piece.
 */
static uint64_t piece_bytes(const struct ctn_host_load *load)
{
	uint64_t bytes = 0, skip = load->row, within = load->column;

	for (uint32_t i = load->copy; i < load->count && bytes < CTN_HOST_PIECE; i++) {
		const struct ctn_copy *c = &load->copies[i];
		uint64_t rest = (c->height - skip) * c->width - within;
		uint64_t room = CTN_HOST_PIECE - bytes;

		if (c->height > 1 && c->width <= CTN_HOST_PIECE)
			room -= room % c->width;
		bytes += CTN_MIN(rest, room);
		if (rest > room)
			break;
		skip = 0;
		within = 0;
	}
	return bytes;
}

static void copy_piece(struct ctn_host_load *load, uint64_t bytes)
{
	while (bytes) {
		const struct ctn_copy *c = &load->copies[load->copy];
		uint64_t n = CTN_MIN(bytes, c->width - load->column);

		memcpy((uint8_t *)c->dst + load->row * c->dst_pitch + load->column,
		       (const uint8_t *)c->src + load->row * c->src_pitch + load->column, n);
		bytes -= n;
		load->column += n;
		if (load->column < c->width)
			continue;
		load->column = 0;
		if (++load->row < c->height)
			continue;
		load->row = 0;
		load->copy++;
	}
}

/* With the lock held; gives it up to wait. */
static void wait_for_piece(struct ctn_host_link *link)
{
	uint64_t due;

	while ((due = ctn_uplink_due(link->uplink, link->index, link->offset, ctn_now_ns()))) {
		struct timespec ts = {.tv_sec = (time_t)(due / CTN_NSEC_PER_SEC),
				      .tv_nsec = (long)(due % CTN_NSEC_PER_SEC)};

		pthread_cond_timedwait(&link->wake, &link->uplink->lock, &ts);
	}
}

/* With the lock held; gives it up to wait and to copy. */
static void carry(struct ctn_host_link *link, struct ctn_host_load *load)
{
	uint64_t bytes;

	while ((bytes = piece_bytes(load))) {
		link->offset += bytes;
		wait_for_piece(link);
		pthread_mutex_unlock(&link->uplink->lock);
		copy_piece(load, bytes);
		pthread_mutex_lock(&link->uplink->lock);
	}
	DL_DELETE(link->loads, load);
	link->stats.loads++;
	link->stats.load_bytes += load->bytes;
	if (!link->loads)
		link->stats.load_ns += ctn_now_ns() - link->busy_since;
}

static void *link_main(void *arg)
{
	struct ctn_host_link *link = arg;
	pthread_mutex_t *lock = &link->uplink->lock;

	/* The default slack of 50 us would be a delay of each piece. */
	prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
	pthread_setname_np(pthread_self(), "ctn-link");
	pthread_mutex_lock(lock);
	for (;;) {
		struct ctn_host_load *load;

		while (!link->loads && !link->stop)
			pthread_cond_wait(&link->wake, lock);
		load = link->loads;
		if (!load)
			break;
		carry(link, load);
		pthread_mutex_unlock(lock);
		if (load->event)
			ctn_host_event_set(load->event, load->use, 0);
		if (load->done)
			load->done(load->arg, 0);
		free(load);
		pthread_mutex_lock(lock);
	}
	pthread_mutex_unlock(lock);
	return NULL;
}

int ctn_host_link_load(struct ctn_host_link *link, const struct ctn_copy *copies, uint32_t count,
		       struct ctn_event *event, ctn_load_done_fn *done, void *arg)
{
	struct ctn_host_load *load = new_load(copies, count);
	uint64_t now;

	if (!load)
		return -ENOMEM;
	load->event = event;
	load->use = event ? ctn_host_event_arm(event) : 0;
	load->done = done;
	load->arg = arg;
	pthread_mutex_lock(&link->uplink->lock);
	now = ctn_now_ns();
	if (!link->loads)
		link->busy_since = now;
	ctn_uplink_submit(link->uplink, link->index, load->bytes, now);
	DL_APPEND(link->loads, load);
	pthread_cond_signal(&link->wake);
	pthread_mutex_unlock(&link->uplink->lock);
	return 0;
}

void ctn_host_link_get_stats(struct ctn_host_link *link, struct ctn_device_stats *stats)
{
	pthread_mutex_lock(&link->uplink->lock);
	*stats = link->stats;
	if (link->loads)
		stats->load_ns += ctn_now_ns() - link->busy_since;
	pthread_mutex_unlock(&link->uplink->lock);
}

/* Signals are for the threads of the daemon. */
static int start_thread(struct ctn_host_link *link)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = -pthread_create(&link->thread, NULL, link_main, link);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

int ctn_host_link_init(struct ctn_host_link *link, struct ctn_uplink *uplink, uint64_t rate)
{
	pthread_condattr_t attr;
	int rc;

	*link = (struct ctn_host_link){.uplink = uplink, .index = ctn_uplink_add(uplink, rate)};
	rc = -pthread_condattr_init(&attr);
	if (rc)
		goto put_uplink;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = -pthread_cond_init(&link->wake, &attr);
	pthread_condattr_destroy(&attr);
	if (rc)
		goto put_uplink;
	rc = start_thread(link);
	if (rc)
		goto destroy_cond;
	return 0;
destroy_cond:
	pthread_cond_destroy(&link->wake);
put_uplink:
	ctn_uplink_put(uplink);
	return rc;
}

void ctn_host_link_destroy(struct ctn_host_link *link)
{
	pthread_mutex_lock(&link->uplink->lock);
	CTN_ASSERT(!link->loads);
	link->stop = true;
	pthread_cond_signal(&link->wake);
	pthread_mutex_unlock(&link->uplink->lock);
	pthread_join(link->thread, NULL);
	pthread_cond_destroy(&link->wake);
	ctn_uplink_put(link->uplink);
}
