/* SPDX-License-Identifier: MIT */
/*
 * A pretended computron.ko for tests of the pool provider "kmod", written from the comments of
 * kmod/include/uapi/linux/computron.h: files, pools, frames, leases, events. Memory is a memfd a
 * pool. The descriptors are real ones (of eventfds), so that they can be polled. There is one user
 * and there are no readers, dma-bufs or adopted pools: such calls answer -EOPNOTSUPP.
 *
 * Faults are set in its public members, at any time.
 */
#ifndef CTN_FAKE_KMOD_H
#define CTN_FAKE_KMOD_H

#include "pool/pool.h"

#include <linux/computron.h>

struct fake_kmod;

struct fake_kmod_faults {
	int open;             /* of the device: this error */
	int info;             /* of COMPUTRON_IOC_INFO */
	int pool_open;        /* a pool of somebody else: -EACCES */
	uint32_t abi;         /* 0: the header's */
	uint64_t unit;        /* 0: 2 MiB */
	uint64_t max_bytes;   /* 0: no limit */
	uint32_t hot_busy;    /* COMPUTRON_IOC_POOL_HOT answers -EBUSY, so often */
	int populate;         /* of COMPUTRON_IOC_FRAME_POPULATE */
	int seal;             /* of COMPUTRON_IOC_FRAME_SEAL */
	int extents;          /* of COMPUTRON_IOC_FRAME_EXTENTS */
	bool reclaim_in_stat; /* each COMPUTRON_IOC_POOL_STAT ends with a frame less */
};

struct fake_kmod *fake_kmod_new(void);
/* Frees it with all pools. Descriptors that are open are closed. */
void fake_kmod_free(struct fake_kmod *k);
const struct ctn_kmod_sys *fake_kmod_sys(struct fake_kmod *k);
struct fake_kmod_faults *fake_kmod_faults(struct fake_kmod *k);

/* Memory is short: up to `frames` CLEAN frames of a pool go, those of the least id first, but for
 * what is leased, pinned, hot or below the floor. Returns how many. */
uint32_t fake_kmod_reclaim(struct fake_kmod *k, const char *pool, uint32_t frames);
/* A device pins, or unpins, the pages of the frame that begins at a unit of a pool. */
void fake_kmod_pin(struct fake_kmod *k, const char *pool, uint64_t unit, bool pinned);
/* Pool files that are open. */
uint32_t fake_kmod_files(struct fake_kmod *k);
/* Calls of one kind so far. */
uint32_t fake_kmod_calls(struct fake_kmod *k, unsigned long request);

#endif
