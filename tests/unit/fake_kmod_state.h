/* SPDX-License-Identifier: MIT */
/* Private to the pretended module: its tables. All under its lock. */
#ifndef CTN_FAKE_KMOD_STATE_H
#define CTN_FAKE_KMOD_STATE_H

#include "fake_kmod.h"

#include <pthread.h>

#define MAX_UNITS   4096
#define MAX_EXTENTS 256
#define UNIT        (2 * CTN_MIB)

struct file;

struct lease {
	struct file *file;
	struct lease *next;
};

struct frame {
	struct computron_frame_info info; /* .leases, .flags but HAS_DIGEST are made when asked */
	struct computron_extent extents[MAX_EXTENTS];
	struct file *owner; /* LOADING */
	bool populated;
	bool pinned;
	struct lease *leases;
	struct frame *prev, *next; /* ordered by id */
};

struct pool {
	struct computron_pool_create made;
	int memfd;
	uint32_t units;
	bool taken[MAX_UNITS];
	struct file *hot[MAX_UNITS];
	struct frame *frames;
	uint64_t generation, seq;
	struct computron_pool_stat counts; /* only what never goes back */
	struct pool *next;
};

struct file {
	int fd;
	struct pool *pool; /* NULL: of the device */
	struct computron_event events[COMPUTRON_EVENTS];
	uint32_t event_count, lost;
	struct file *next;
};

struct fake_kmod {
	struct ctn_kmod_sys sys;
	struct fake_kmod_faults faults;
	pthread_mutex_t lock;
	struct pool *pools;
	struct file *files;
	uint32_t calls[256];
};

/* fake_kmod_frames.c: calls on a pool file, and ends of frames. */
int fake_pool_call(struct fake_kmod *k, struct file *f, unsigned long request, void *arg);
uint32_t fake_leases_of(const struct frame *fr, const struct file *file);
void fake_drop_lease(struct frame *fr, struct file *f);
void fake_remove_frame(struct pool *p, struct frame *fr);
/* LOADING -> gone, or QUARANTINED. */
void fake_give_up(struct pool *p, struct frame *fr);
uint32_t fake_reclaim(struct fake_kmod *k, struct pool *p, uint32_t frames);

#endif
