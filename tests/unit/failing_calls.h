/* SPDX-License-Identifier: MIT */
/*
 * Stands between the library and its allocations and system calls (the linker's --wrap; the list
 * is in the Makefile), and makes the n-th of them fail, with an error that this call may have.
 * Included by one file of a program. Calls that give something back (free, close, munmap) are let
 * through, as are those that cannot fail where we use them (read and write of an eventfd that does
 * not block, waiting for a thread, locking).
 */
#ifndef CTN_FAILING_CALLS_H
#define CTN_FAILING_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAX_ERRORS 4

struct failing_call {
	const char *name;
	int errors[MAX_ERRORS]; /* in turn; EINTR and EAGAIN are for callers that try again */
};

/* Where each call stands in the table below. */
enum call {
	CALL_ALLOCATION,
	CALL_OPEN,
	CALL_FOPEN,
	CALL_FSTAT,
	CALL_FCNTL,
	CALL_PREAD,
	CALL_POLL,
	CALL_EVENTFD,
	CALL_EPOLL_CREATE,
	CALL_EPOLL_CTL,
	CALL_MMAP,
	CALL_MREMAP,
	CALL_MPROTECT,
	CALL_MADVISE,
	CALL_MEMFD,
	CALL_FTRUNCATE,
	CALL_THREAD,
	CALL_SYSCALL,
	CALL_PRCTL,
	CALL_GETRLIMIT,
	CALL_ADVISE_FILE,
	CALL_ACCESS,
	CALL_RING_SETUP,
	CALL_RING_PROBE,
	CALL_RING_TABLE,
	CALL_RING_REGISTER,
	CALL_RING_ENTER,
	CALL_RING_READ,
	CALLS
};

static const struct failing_call failing_calls[CALLS] = {
	[CALL_ALLOCATION] = {"malloc", {ENOMEM}},
	[CALL_OPEN] = {"open", {EMFILE, EINTR, EINVAL, EACCES}},
	[CALL_FOPEN] = {"fopen", {EMFILE}},
	[CALL_FSTAT] = {"fstat", {EIO}},
	[CALL_FCNTL] = {"fcntl", {EINVAL}},
	[CALL_PREAD] = {"pread", {EIO, EINTR, EAGAIN, EINVAL}},
	[CALL_POLL] = {"poll", {EINTR}},
	[CALL_EVENTFD] = {"eventfd", {EMFILE}},
	[CALL_EPOLL_CREATE] = {"epoll_create1", {EMFILE}},
	[CALL_EPOLL_CTL] = {"epoll_ctl", {ENOMEM, ENOSPC}},
	[CALL_MMAP] = {"mmap", {ENOMEM}},
	[CALL_MREMAP] = {"mremap", {ENOMEM, EINVAL}},
	[CALL_MPROTECT] = {"mprotect", {ENOMEM}},
	[CALL_MADVISE] = {"madvise", {ENOMEM, EINTR, EAGAIN, EINVAL}},
	[CALL_MEMFD] = {"memfd_create", {EMFILE}},
	[CALL_FTRUNCATE] = {"ftruncate", {ENOSPC}},
	[CALL_THREAD] = {"pthread_create", {EAGAIN}},
	[CALL_SYSCALL] = {"syscall", {ENOSYS, EPERM}},
	[CALL_PRCTL] = {"prctl", {EINVAL}},
	[CALL_GETRLIMIT] = {"getrlimit", {EINVAL}},
	[CALL_ADVISE_FILE] = {"posix_fadvise", {EINVAL}},
	[CALL_ACCESS] = {"access", {EACCES}},
	[CALL_RING_SETUP] = {"io_uring_setup", {EPERM, ENOMEM, EMFILE, EINVAL}},
	[CALL_RING_PROBE] = {"the io_uring probe", {ENOMEM}},
	[CALL_RING_TABLE] = {"io_uring_register of a table", {ENOMEM, EINVAL}},
	[CALL_RING_REGISTER] = {"io_uring_register", {ENOMEM, EOPNOTSUPP}},
	[CALL_RING_ENTER] = {"io_uring_enter", {EINTR, EAGAIN, EBUSY, ENOMEM}},
	[CALL_RING_READ] = {"a read of the ring", {EIO, EINTR, EAGAIN, EINVAL}},
};

/* How a cycle fails. */
static struct {
	atomic_uint count;   /* calls since the start of the cycle */
	atomic_uint failing; /* the number of the one that fails, from 1; 0: none */
	atomic_uint turn;    /* which of its errors */
	atomic_bool
		from_then_on; /* and all later ones of its kind, if it has no reason to go away */
	atomic_int failed;    /* enum call of the one that failed; -1: it did not come to it */
} calls;

static _Thread_local bool calls_exempt; /* the test's own */

static inline void calls_begin(unsigned int failing, unsigned int turn, bool from_then_on)
{
	atomic_store(&calls.turn, turn);
	atomic_store(&calls.from_then_on, from_then_on);
	atomic_store(&calls.failed, -1);
	atomic_store(&calls.count, 0);
	atomic_store(&calls.failing, failing);
}

/* From here on none fails. */
static inline void calls_end(void)
{
	atomic_store(&calls.failing, 0);
}

static inline unsigned int call_errors(enum call call)
{
	unsigned int n = 0;

	while (n < MAX_ERRORS && failing_calls[call].errors[n])
		n++;
	return n;
}

/* 0, or the error that this call is to have. */
static inline int call_error(enum call call)
{
	unsigned int failing = atomic_load(&calls.failing), n;
	int error;

	if (calls_exempt)
		return 0;
	n = atomic_fetch_add(&calls.count, 1) + 1;
	if (!failing || n < failing)
		return 0;
	error = failing_calls[call].errors[atomic_load(&calls.turn) % call_errors(call)];
	if (n == failing) {
		atomic_store(&calls.failed, (int)call);
		return error;
	}
	if (!atomic_load(&calls.from_then_on) || atomic_load(&calls.failed) != (int)call ||
	    error == EINTR || (error == EAGAIN && call != CALL_THREAD))
		return 0;
	return error;
}

/* Defines what takes the place of a function that says -1 (or `bad`) and sets errno. */
#define FAILING(call, type, bad, name, parameters, arguments) \
	type __real_##name parameters;                        \
	type __wrap_##name parameters;                        \
	type __wrap_##name parameters                         \
	{                                                     \
		int error = call_error(call);                 \
                                                              \
		if (!error)                                   \
			return __real_##name arguments;       \
		errno = error;                                \
		return bad;                                   \
	}

/* The same of one that returns an error, negative or not, and leaves errno alone. */
#define RETURNING(call, sign, name, parameters, arguments)           \
	int __real_##name parameters;                                \
	int __wrap_##name parameters;                                \
	int __wrap_##name parameters                                 \
	{                                                            \
		int error = call_error(call);                        \
                                                                     \
		return error ? sign error : __real_##name arguments; \
	}

FAILING(CALL_ALLOCATION, void *, NULL, malloc, (size_t size), (size))
FAILING(CALL_ALLOCATION, void *, NULL, calloc, (size_t n, size_t size), (n, size))
FAILING(CALL_ALLOCATION, void *, NULL, realloc, (void *p, size_t size), (p, size))
FAILING(CALL_ALLOCATION, void *, NULL, reallocarray, (void *p, size_t n, size_t size), (p, n, size))
FAILING(CALL_ALLOCATION, char *, NULL, strdup, (const char *s), (s))
FAILING(CALL_FOPEN, FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
FAILING(CALL_FSTAT, int, -1, fstat, (int fd, struct stat *st), (fd, st))
FAILING(CALL_PREAD, ssize_t, -1, pread, (int fd, void *buf, size_t len, off_t at),
	(fd, buf, len, at))
FAILING(CALL_POLL, int, -1, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms))
FAILING(CALL_EVENTFD, int, -1, eventfd, (unsigned int value, int flags), (value, flags))
FAILING(CALL_EPOLL_CREATE, int, -1, epoll_create1, (int flags), (flags))
FAILING(CALL_EPOLL_CTL, int, -1, epoll_ctl, (int ep, int op, int fd, struct epoll_event *ev),
	(ep, op, fd, ev))
FAILING(CALL_MMAP, void *, MAP_FAILED, mmap,
	(void *addr, size_t len, int prot, int flags, int fd, off_t at),
	(addr, len, prot, flags, fd, at))
FAILING(CALL_MPROTECT, int, -1, mprotect, (void *addr, size_t len, int prot), (addr, len, prot))
FAILING(CALL_MADVISE, int, -1, madvise, (void *addr, size_t len, int advice), (addr, len, advice))
FAILING(CALL_MEMFD, int, -1, memfd_create, (const char *name, unsigned int flags), (name, flags))
FAILING(CALL_FTRUNCATE, int, -1, ftruncate, (int fd, off_t len), (fd, len))
FAILING(CALL_GETRLIMIT, int, -1, getrlimit, (int what, void *lim), (what, lim))
FAILING(CALL_ACCESS, int, -1, access, (const char *path, int mode), (path, mode))
FAILING(CALL_RING_PROBE, void *, NULL, io_uring_get_probe_ring, (struct io_uring * ring), (ring))
RETURNING(CALL_THREAD, +, pthread_create,
	  (pthread_t * thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg),
	  (thread, attr, fn, arg))
RETURNING(CALL_ADVISE_FILE, +, posix_fadvise, (int fd, off_t at, off_t len, int advice),
	  (fd, at, len, advice))
RETURNING(CALL_RING_SETUP, -, io_uring_queue_init,
	  (unsigned int entries, struct io_uring *ring, unsigned int flags), (entries, ring, flags))
RETURNING(CALL_RING_TABLE, -, io_uring_register_buffers_sparse,
	  (struct io_uring * ring, unsigned int n), (ring, n))
RETURNING(CALL_RING_REGISTER, -, io_uring_register_buffers_update_tag,
	  (struct io_uring * ring, unsigned int at, const struct iovec *v, const __u64 *tags,
	   unsigned int n),
	  (ring, at, v, tags, n))
RETURNING(CALL_RING_ENTER, -, io_uring_submit_and_wait, (struct io_uring * ring, unsigned int n),
	  (ring, n))

/* Those with "..." */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags);
int __wrap_open(const char *path, int flags)
{
	int error = call_error(CALL_OPEN);

	/* The library creates no files. */
	if (!error)
		return __real_open(path, flags);
	errno = error;
	return -1;
}

int __real_fcntl(int fd, int op, ...);
int __wrap_fcntl(int fd, int op, long arg);
int __wrap_fcntl(int fd, int op, long arg)
{
	int error = call_error(CALL_FCNTL);

	if (!error)
		return __real_fcntl(fd, op, arg);
	errno = error;
	return -1;
}

void *__real_mremap(void *old, size_t old_len, size_t len, int flags, ...);
void *__wrap_mremap(void *old, size_t old_len, size_t len, int flags, void *to);
void *__wrap_mremap(void *old, size_t old_len, size_t len, int flags, void *to)
{
	int error = call_error(CALL_MREMAP);

	if (!error)
		return __real_mremap(old, old_len, len, flags, to);
	errno = error;
	return MAP_FAILED;
}

long __real_syscall(long nr, ...);
long __wrap_syscall(long nr, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	int error = call_error(CALL_SYSCALL);

	if (!error)
		return __real_syscall(nr, a, b, c, d, e, f);
	errno = error;
	return -1;
}

int __real_prctl(int op, ...);
int __wrap_prctl(int op, unsigned long a, unsigned long b, unsigned long c, unsigned long d);
int __wrap_prctl(int op, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	int error = call_error(CALL_PRCTL);

	if (!error)
		return __real_prctl(op, a, b, c, d);
	errno = error;
	return -1;
}

/* The result of a read by io_uring, which no call returns: for the seam of stage. */
static inline int failing_result(void *ctx, int result, size_t len)
{
	int error = call_error(CALL_RING_READ);

	(void)ctx;
	(void)len;
	return error ? -error : result;
}

#endif
