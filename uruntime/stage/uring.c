// SPDX-License-Identifier: MIT
/*
 * The io_uring reader. The ring is made and used by the I/O thread alone (SINGLE_ISSUER). The
 * thread sleeps in one place, io_uring_enter: wake-ups come as a poll of the disk's wake_fd,
 * which, unlike a read, consumes nothing that a ring which goes away could lose.
 *
 * A hot segment of the pool is registered when it is first read into, and stays registered
 * until it is warm or the ring goes away.
 */
#include "stage/private.h"

#include <errno.h>
#include <liburing.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_BUFFER CTN_GIB /* the kernel's limit for one registered buffer */

struct uring {
	struct io_uring ring;
	bool table;       /* the sparse table of buffers was made */
	bool *registered; /* by segment */
	bool armed;       /* the poll of wake_fd was queued */
	bool poll_queued; /* and has not reached the kernel yet */
};

/* ---- the ring -------------------------------------------------------------------------- */

/* Flags in order of preference: a kernel that does not know some answers -EINVAL. */
static int make_ring(struct disk *d, struct uring *u)
{
	static const unsigned int flags[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_COOP_TASKRUN,
		0,
	};
	const struct ctn_stage_sys *sys = &d->stage->sys;
	unsigned int entries = d->depth + 1; /* the reads, and the poll */
	int rc = -EINVAL;

	for (size_t i = 0; i < CTN_ARRAY_LEN(flags) && rc == -EINVAL; i++) {
		rc = sys->uring_setup(sys->ctx, entries, flags[i]);
		if (rc == 0)
			rc = io_uring_queue_init(entries, &u->ring, flags[i]);
	}
	return rc;
}

static bool can_read(struct uring *u)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
	bool yes = probe && io_uring_opcode_supported(probe, IORING_OP_READ);

	io_uring_free_probe(probe);
	return yes;
}

static int uring_open(struct disk *d, struct ctn_err *err)
{
	struct uring *u = calloc(1, sizeof(*u));
	int rc;

	if (!u)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	u->registered = calloc(ctn_pool_segment_count(d->stage->pool), sizeof(*u->registered));
	if (!u->registered) {
		rc = ctn_err_set(err, -ENOMEM, "out of memory");
		goto free_state;
	}
	rc = make_ring(d, u);
	if (rc) {
		rc = ctn_err_set(err, rc, "io_uring_setup: %s", strerror(-rc));
		goto free_state;
	}
	if (!can_read(u)) {
		rc = ctn_err_set(err, -ENOSYS, "io_uring: this kernel's has no plain reads");
		goto exit_ring;
	}
	d->reader_state = u;
	return 0;

exit_ring:
	io_uring_queue_exit(&u->ring);
free_state:
	free(u->registered);
	free(u);
	return rc;
}

static void uring_close(struct disk *d)
{
	struct uring *u = d->reader_state;

	/* The end of the ring alone would leave the pool's memory pinned until some time later. */
	if (u->table)
		io_uring_unregister_buffers(&u->ring);
	io_uring_queue_exit(&u->ring);
	free(u->registered);
	free(u);
	d->reader_state = NULL;
}

/* ---- registered segments --------------------------------------------------------------- */

static bool may_lock_memory(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data) != 0)
		return false;
	return data[0].effective & (1u << CAP_IPC_LOCK);
}

/* The kernel pins the whole segment before it looks at the limit, and so commits memory for
 * nothing: what cannot succeed is not tried. */
static int check_memlock(uint64_t bytes, struct ctn_err *err)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_MEMLOCK, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY ||
	    lim.rlim_cur >= bytes || may_lock_memory())
		return 0;
	return ctn_err_set(
		err, -ENOMEM,
		"the limit on locked memory (ulimit -l) is %llu bytes, a segment has %llu",
		(unsigned long long)lim.rlim_cur, (unsigned long long)bytes);
}

struct pin {
	struct uring *u;
	uint32_t segment;
};

static int pin_buffer(void *arg, const struct ctn_segment *segment)
{
	struct pin *pin = arg;
	struct iovec iov = {segment->addr, segment->bytes};
	int rc = io_uring_register_buffers_update_tag(&pin->u->ring, pin->segment, &iov, NULL, 1);

	return rc < 0 ? rc : 0;
}

static int register_segment(struct disk *d, struct uring *u, uint32_t i,
			    const struct ctn_segment *segment, struct ctn_err *err)
{
	const struct ctn_stage_sys *sys = &d->stage->sys;
	struct pin pin = {u, i};
	int rc = check_memlock(segment->bytes, err);

	if (rc)
		return rc;
	if (segment->bytes > MAX_BUFFER)
		return ctn_err_set(err, -EFBIG,
				   "a segment of %llu bytes cannot be registered, %llu "
				   "is the most",
				   (unsigned long long)segment->bytes,
				   (unsigned long long)MAX_BUFFER);
	rc = sys->uring_register(sys->ctx, 1);
	if (rc == 0 && !u->table) {
		rc = io_uring_register_buffers_sparse(&u->ring,
						      ctn_pool_segment_count(d->stage->pool));
		u->table = rc == 0;
	}
	if (rc == 0)
		rc = ctn_pool_pin_segment(d->stage->pool, i, pin_buffer, &pin);
	if (rc)
		return ctn_err_set(err, rc, "io_uring_register of segment %u: %s", i,
				   strerror(-rc));
	u->registered[i] = true;
	return 0;
}

static int uring_prepare(struct disk *d, struct request *r, struct ctn_err *err)
{
	struct uring *u = d->reader_state;
	struct ctn_segment segment;
	struct iovec none = {NULL, 0};
	int rc;

	ctn_pool_segment(d->stage->pool, r->segment, &segment);
	if (!segment.hot) {
		/* The kernel keeps it for the reads that still use it. */
		if (u->registered[r->segment])
			io_uring_register_buffers_update_tag(&u->ring, r->segment, &none, NULL, 1);
		u->registered[r->segment] = false;
		ctn_err_set(err, -ENOTSUP, "segment %u is warm: not registered", r->segment);
		return 0;
	}
	if (u->registered[r->segment])
		return 1;
	rc = register_segment(d, u, r->segment, &segment, err);
	return rc ? rc : 1;
}

/* ---- reads ----------------------------------------------------------------------------- */

static void uring_start(struct disk *d, struct request *r)
{
	struct uring *u = d->reader_state;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	/* The ring has as many entries as there are requests. */
	CTN_ASSERT(sqe);
	if (r->fixed)
		io_uring_prep_read_fixed(sqe, r->fd, r->addr, (unsigned int)r->len, r->offset,
					 (int)r->segment);
	else
		io_uring_prep_read(sqe, r->fd, r->addr, (unsigned int)r->len, r->offset);
	if (r->patient)
		sqe->flags |= IOSQE_ASYNC;
	io_uring_sqe_set_data(sqe, r);
}

static void arm(struct disk *d, struct uring *u)
{
	struct io_uring_sqe *sqe;

	if (u->armed)
		return;
	sqe = io_uring_get_sqe(&u->ring);
	CTN_ASSERT(sqe);
	io_uring_prep_poll_add(sqe, d->wake_fd, POLLIN);
	io_uring_sqe_set_data(sqe, NULL);
	u->armed = true;
	u->poll_queued = true;
}

static void reap(struct disk *d, struct uring *u)
{
	const struct ctn_stage_sys *sys = &d->stage->sys;
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&u->ring, &cqe) == 0) {
		struct request *r = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&u->ring, cqe);
		if (r) {
			ctn_disk_completed(d, r, sys->uring_result(sys->ctx, result, r->len));
		} else {
			u->armed = false;
			ctn_disk_clear_wake(d);
		}
	}
}

/*
 * A kernel that is short of memory may refuse to take reads. Those it has taken are waited
 * for first; when it has none, the caller goes on without io_uring.
 */
static int uring_wait(struct disk *d)
{
	struct uring *u = d->reader_state;
	struct io_uring_cqe *cqe;
	uint32_t queued;
	int rc;

	arm(d, u);
	rc = io_uring_submit_and_wait(&u->ring, 1);
	queued = io_uring_sq_ready(&u->ring);
	if (queued == 0)
		u->poll_queued = false;
	if (rc < 0 && rc != -EINTR) {
		if (d->in_reader == queued - u->poll_queued)
			return rc;
		io_uring_wait_cqe(&u->ring, &cqe);
	}
	reap(d, u);
	return 0;
}

const struct reader_ops ctn_reader_uring = {
	.open = uring_open,
	.close = uring_close,
	.prepare = uring_prepare,
	.start = uring_start,
	.wait = uring_wait,
};
