/* SPDX-License-Identifier: MIT */
/*
 * The module's calls for tests. Functions that return int answer 0 or a descriptor, or a negative
 * errno; those whose names begin with "must_" fail the test instead.
 */
#ifndef POOL_H
#define POOL_H

#include "ktap.h"

#include <linux/computron.h>
#include <stddef.h>
#include <sys/types.h>

#define KIB 1024ULL
#define MIB (1024 * KIB)
#define UNIT \
	(2 * MIB) /* COMPUTRON units on the machines that run these tests; see must_control() */

/* ioctl, 0 or -errno. */
int call(int fd, unsigned long request, void *arg);

/* /dev/computron; checks that its units are UNIT. */
int must_control(void);
int pool_create(const char *name, uint64_t bytes, uint64_t quota, uint64_t floor, uint64_t segment);
int pool_open(const char *name, uint32_t flags);
int pool_destroy(const char *name, uint32_t flags);
/* A writer's file of a new pool without quota, floor and segments. */
int must_pool(const char *name, uint64_t bytes);
struct computron_pool_stat must_stat(int pool);
struct computron_pool_stat must_survey(int pool);
uint32_t pool_count(void);

/* Keys are all zeros but for `seed`. */
int frame_alloc(int pool, uint64_t seed, uint64_t bytes, uint32_t flags, struct computron_ref *ref);
int frame_populate(int pool, struct computron_ref ref, uint64_t *huge);
int frame_seal(int pool, struct computron_ref ref, uint32_t flags);
int frame_abort(int pool, struct computron_ref ref);
int frame_lease(int pool, struct computron_ref ref);
int frame_release(int pool, struct computron_ref ref);
int frame_evict(int pool, struct computron_ref ref);
int frame_lookup(int pool, uint64_t seed, struct computron_frame_info *info);
int frame_info(int pool, struct computron_ref ref, struct computron_frame_info *info);
int frame_extents(int pool, struct computron_ref ref, struct computron_extent *extents,
		  uint32_t room, uint32_t *total);

/* The frame of `seed`, populated, filled with pattern_at(seed, ...) and CLEAN. `map` is a writable
 * mapping of the whole pool. */
struct computron_ref must_frame(int pool, uint8_t *map, uint64_t seed, uint64_t bytes,
				uint32_t seal_flags);
void must_fill(int pool, uint8_t *map, struct computron_ref ref, uint64_t seed, uint64_t bytes);
/* The frame holds what must_fill wrote. */
void must_hold(int pool, const uint8_t *map, struct computron_ref ref, uint64_t seed,
	       uint64_t bytes);
/* Where a frame starts in the pool. */
uint64_t frame_offset(struct computron_ref ref);

/* The whole pool; MAP_FAILED never. */
uint8_t *must_map(int pool, uint64_t bytes, int protection);

/* The signal that reading a byte raises, 0 if none. */
int touch(const volatile uint8_t *byte);
int touch_write(volatile uint8_t *byte);

/* Runs `fn` in a child, and waits for it; its wait status. */
int in_child(void (*fn)(void *), void *arg);
/* Becomes an ordinary user, who may open the device all the same. */
void become(uid_t uid);

/* One number of a file of one; fails the test when there is none. */
uint64_t number_of(const char *path);
void must_write(const char *path, const char *text);
/* Waits up to some seconds until the condition holds. */
#define EVENTUALLY(condition, seconds)                                \
	({                                                            \
		bool holds_ = false;                                  \
		for (int tick_ = 0; tick_ < (seconds)*100; tick_++) { \
			holds_ = (condition);                         \
			if (holds_)                                   \
				break;                                \
			usleep(10000);                                \
		}                                                     \
		holds_;                                               \
	})

#endif
