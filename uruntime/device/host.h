/* SPDX-License-Identifier: MIT */
/*
 * The host backend: device memory is host memory, kernels run in the caller, links are
 * emulated in real time. Its pieces, for its own files and their tests.
 */
#ifndef CTN_DEVICE_HOST_H
#define CTN_DEVICE_HOST_H

#include "device/backend.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- host_spec.c: the --device value ---------------------------------------------------- */

struct ctn_host_uplink_spec {
	uint32_t first, last; /* devices, both included */
	uint64_t rate;
};

struct ctn_host_spec {
	uint32_t devices;
	uint64_t mem_bytes; /* of each device; 0: not given */
	uint64_t link_rate; /* 0: as fast as memory */
	uint64_t layer_ns;
	uint32_t uplink_count;
	struct ctn_host_uplink_spec uplinks[CTN_MAX_DEVICES];
};

/* `args` is the N of "host:N", or "". Errors name the key. */
int ctn_host_spec_parse(const char *args, const struct ctn_opts *opts, struct ctn_host_spec *spec,
			struct ctn_err *err);

/* ---- host_memory.c ---------------------------------------------------------------------- */

/* Addresses without memory, some of them backed. */
struct ctn_host_reservation {
	uint8_t *va;
	uint32_t granules;
	uint32_t mapped;
	/* [granules]: 1 + the granule of memory behind each, 0: none. NULL while nothing is
	 * mapped, so that the addresses of an idle model cost nothing. */
	uint32_t *backing;
};

/*
 * The memory of one device is one memfd, so it has a size of its own, can be handed out as a
 * descriptor, and can never be memory of a pool. `window` is a mapping of all of it. To back
 * addresses, the page tables of a run of granules move from the window to the addresses
 * (mremap), and back on unmap: pages that have been touched once are never faulted or zapped
 * again, so that taking 1 GiB back costs 0.2 ms rather than 40, and loads run at the speed
 * of memory. Kernels before 5.13 cannot: there the file is mapped anew each time.
 */
struct ctn_host_memory {
	pthread_mutex_t lock; /* guards all below */
	int fd;
	bool moves;
	uint8_t *window;
	uint64_t granule;
	uint32_t granules;
	uint64_t *free_map;                         /* a set bit is a free granule */
	struct ctn_host_reservation **reservations; /* by address */
	size_t reservation_count, reservation_room;
};

/* A granule for a device of that size. */
uint64_t ctn_host_memory_granule(uint64_t bytes);
/* `bytes` is a multiple of its granule. */
int ctn_host_memory_init(struct ctn_host_memory *memory, const char *name, uint64_t bytes);
void ctn_host_memory_destroy(struct ctn_host_memory *memory);
int ctn_host_memory_reserve(struct ctn_host_memory *memory, uint64_t bytes, void **va);
void ctn_host_memory_unreserve(struct ctn_host_memory *memory, void *va, uint64_t bytes);
int ctn_host_memory_map(struct ctn_host_memory *memory, void *va, uint64_t bytes);
void ctn_host_memory_unmap(struct ctn_host_memory *memory, void *va, uint64_t bytes, bool poison);
void ctn_host_memory_get(struct ctn_host_memory *memory, struct ctn_device_memory *figures);
/* Whether every byte of [va, va + bytes) is mapped. */
bool ctn_host_memory_contains(struct ctn_host_memory *memory, const void *va, uint64_t bytes);

/* ---- host_uplink.c ---------------------------------------------------------------------- */

/* Work in units of 1e-9 byte: a rate in bytes/s times nanoseconds, exactly. */
typedef unsigned __int128 ctn_work;

struct ctn_uplink_link {
	uint64_t own_rate; /* 0: no limit of its own */
	uint64_t rate;     /* now */
	ctn_work submitted, served;
};

/*
 * A fluid model of the links that share an uplink (or of one link that has none): links with
 * work left are busy, and the busy ones get max-min fair shares. Time is an argument, so the
 * model never knows when a copy really ended. Integers throughout: no error adds up, and
 * what is rounded (rates down, times up) never makes a link faster.
 */
struct ctn_uplink {
	pthread_mutex_t lock; /* guards all below, and the queues of its links */
	uint64_t rate;        /* 0: no uplink */
	uint64_t now;         /* all work up to here has been accounted, in ns */
	uint32_t users;       /* its maker and its links, until they put it */
	uint32_t count;
	struct ctn_uplink_link links[CTN_MAX_DEVICES];
};

/* NULL when out of memory. The caller has a use of it, to put. */
struct ctn_uplink *ctn_uplink_new(uint64_t rate);
/* Adds a link, which has a use of the uplink; its index. */
uint32_t ctn_uplink_add(struct ctn_uplink *uplink, uint64_t own_rate);
/* Frees it with its last use. */
void ctn_uplink_put(struct ctn_uplink *uplink);
/* With the lock held: gives a link bytes to carry, from `now` or the end of what it has. */
void ctn_uplink_submit(struct ctn_uplink *uplink, uint32_t link, uint64_t bytes, uint64_t now);
/*
 * With the lock held: 0 when the link has carried its first `offset` bytes by `now`, else
 * the time at which to ask again. That is the deadline, unless the shares change before.
 */
uint64_t ctn_uplink_due(struct ctn_uplink *uplink, uint32_t link, uint64_t offset, uint64_t now);

/* ---- host_event.c ----------------------------------------------------------------------- */

int ctn_host_event_new(struct ctn_device *dev, struct ctn_event **event);
void ctn_host_event_free(struct ctn_event *event);
void ctn_host_event_reset(struct ctn_event *event);
bool ctn_host_event_done(struct ctn_event *event);
int ctn_host_event_wait(struct ctn_event *event);
/* Unsets the event for a new piece of work; the result names this use of it. */
uint64_t ctn_host_event_arm(struct ctn_event *event);
/* Sets it, unless it has been reset or armed since: then this use is forgotten. */
void ctn_host_event_set(struct ctn_event *event, uint64_t use, int rc);

/* ---- host_link.c ------------------------------------------------------------------------ */

/* Loads are carried in pieces of at most this many bytes. */
#define CTN_HOST_PIECE CTN_MIB

struct ctn_host_load;

/* A link: a thread that carries loads in order. Its queue is guarded by the uplink's lock. */
struct ctn_host_link {
	struct ctn_uplink *uplink; /* holds a use of it */
	uint32_t index;            /* in the uplink */
	pthread_t thread;
	pthread_cond_t wake; /* CLOCK_MONOTONIC: a load came, or `stop` */
	struct ctn_host_load *loads;
	uint64_t offset; /* bytes taken up so far, that of the piece in hand included */
	uint64_t busy_since;
	struct ctn_device_stats stats; /* load_* */
	bool stop;
};

int ctn_host_link_init(struct ctn_host_link *link, struct ctn_uplink *uplink, uint64_t rate);
/* Ends what is queued, then the thread. */
void ctn_host_link_destroy(struct ctn_host_link *link);
int ctn_host_link_load(struct ctn_host_link *link, const struct ctn_copy *copies, uint32_t count,
		       struct ctn_event *event, ctn_load_done_fn *done, void *arg);
/* Fills in load_*. */
void ctn_host_link_get_stats(struct ctn_host_link *link, struct ctn_device_stats *stats);

/* ---- host_stream.c ---------------------------------------------------------------------- */

struct ctn_host_device {
	struct ctn_device base;
	struct ctn_host_memory memory;
	struct ctn_host_link link;
	_Atomic uint64_t upload_bytes;
	_Atomic uint64_t d2h_bytes;
};

static inline struct ctn_host_device *ctn_host_device(struct ctn_device *dev)
{
	return (struct ctn_host_device *)dev;
}

int ctn_host_stream_new(struct ctn_device *dev, struct ctn_stream **stream);
void ctn_host_stream_free(struct ctn_stream *stream);
int ctn_host_stream_wait(struct ctn_stream *stream, struct ctn_event *event);
int ctn_host_stream_upload(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
int ctn_host_stream_download(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
int ctn_host_stream_layer_begin(struct ctn_stream *stream);
int ctn_host_stream_layer_end(struct ctn_stream *stream);
int ctn_host_stream_sync(struct ctn_stream *stream);

#endif
