/* SPDX-License-Identifier: MIT */
/*
 * comm: collectives between the ranks of one model. `local` works between threads of one
 * process on any backend; `nccl` will implement the same table between GPUs.
 *
 * Every rank of a group calls the same collectives in the same order, each from its own
 * thread. Sums are taken in rank order, so that results do not depend on timing. Waits are on
 * conditions: no rank spins.
 */
#ifndef CTN_COMM_H
#define CTN_COMM_H

#include "base/base.h"
#include "device/device.h"

struct ctn_comm_group;

/* One rank's end of a group. */
struct ctn_comm;

/*
 * A group of `size` ranks in this process; comms[i] is rank i's end, to be used by one thread
 * at a time. `max_floats` bounds what one rank gives to one call. -ENOMEM.
 */
int ctn_comm_local_new(uint32_t size, uint64_t max_floats, struct ctn_comm **comms,
		       struct ctn_comm_group **group);
void ctn_comm_group_free(struct ctn_comm_group *group);

uint32_t ctn_comm_rank(const struct ctn_comm *comm);
uint32_t ctn_comm_size(const struct ctn_comm *comm);

/*
 * The calls below return 0, what the stream met, -EINVAL for more than max_floats or a rank
 * that there is not, or what the group was aborted with. Ranks that disagree on the call or
 * its size abort the group with -EPROTO.
 */

/* x[i] = sum over ranks of x[i], on every rank. Size 1: nothing to do. */
int ctn_comm_all_reduce(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n);
/* out[r * n + i] = rank r's x[i], on every rank. */
int ctn_comm_all_gather(struct ctn_comm *comm, struct ctn_stream *stream, float *out,
			const float *x, uint64_t n);
/* x of rank `root` on every rank. */
int ctn_comm_broadcast(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n,
		       uint32_t root);
/* A pair of calls on two ranks; the receiver's x becomes the sender's. */
int ctn_comm_send(struct ctn_comm *comm, struct ctn_stream *stream, const float *x, uint64_t n,
		  uint32_t to);
int ctn_comm_recv(struct ctn_comm *comm, struct ctn_stream *stream, float *x, uint64_t n,
		  uint32_t from);

/* Makes every waiting and later call of the group return `code` (a negative errno): a rank
 * that failed must not leave the others waiting. `ctn_comm_reset` ends that state when no
 * rank is inside a call. */
void ctn_comm_abort(struct ctn_comm_group *group, int code);
void ctn_comm_reset(struct ctn_comm_group *group);

#endif
