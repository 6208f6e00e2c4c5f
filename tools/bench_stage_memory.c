// SPDX-License-Identifier: MIT
/* What the memory of a pool costs before anything is read into it: to have it, and to register it.
 */
#include "bench_stage.h"

#include <liburing.h>

int ctn_stage_rig_commit(struct ctn_stage_rig *rig)
{
	uint64_t begun = ctn_now_ns();
	int rc = ctn_pool_commit(rig->pool, rig->extents, rig->extent_count);

	rig->populate_s = (double)(ctn_now_ns() - begun) / CTN_NSEC_PER_SEC;
	return rc;
}

struct registration {
	struct io_uring ring;
	uint64_t ns, bytes;
};

static int register_segment(void *arg, const struct ctn_segment *segment)
{
	struct registration *r = arg;
	const struct iovec iov = {segment->addr, segment->bytes};
	uint64_t begun = ctn_now_ns();
	int rc = io_uring_register_buffers(&r->ring, &iov, 1);

	if (rc)
		return rc;
	r->ns += ctn_now_ns() - begun;
	r->bytes += segment->bytes;
	return io_uring_unregister_buffers(&r->ring);
}

void ctn_stage_rig_register(struct ctn_stage_rig *rig)
{
	struct registration r = {0};
	int rc = io_uring_queue_init(1, &r.ring, 0);

	if (rc)
		return;
	for (uint32_t i = 0; rc == 0 && i < ctn_pool_segment_count(rig->pool); i++)
		rc = ctn_pool_pin_segment(rig->pool, i, register_segment, &r);
	io_uring_queue_exit(&r.ring);
	if (rc == 0)
		rig->register_s = (double)r.ns / CTN_NSEC_PER_SEC;
}
