/* SPDX-License-Identifier: MIT */
/*
 * A module for tests of the pool provider "kmod": the pretended one, or, with CTN_TEST_KMOD=real in
 * the environment, the one that is loaded (tests/kmod runs them so, in a guest). What only the
 * pretended one can do is skipped there.
 */
#ifndef CTN_KMOD_FIXTURE_H
#define CTN_KMOD_FIXTURE_H

#include "fake_kmod.h"
#include "pool_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define POOL_NAME "unit-test"

struct module {
	struct fake_kmod *fake; /* NULL: the real one */
	const struct ctn_kmod_sys *sys;
};

static inline int module_real_open(void *ctx, const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	(void)ctx;
	return fd < 0 ? -errno : fd;
}

static inline int module_real_close(void *ctx, int fd)
{
	(void)ctx;
	return close(fd) < 0 ? -errno : 0;
}

static inline int module_real_ioctl(void *ctx, int fd, unsigned long request, void *arg)
{
	(void)ctx;
	return ioctl(fd, request, arg) < 0 ? -errno : 0;
}

/* What another process does to the real one. */
static const struct ctn_kmod_sys module_real = {
	.open = module_real_open, .close = module_real_close, .ioctl = module_real_ioctl};

static inline int module_call(const struct module *m, int fd, unsigned long request, void *arg,
			      uint32_t size)
{
	memcpy(arg, &size, sizeof(size));
	return m->sys->ioctl(m->sys->ctx, fd, request, arg);
}

/* A call on a descriptor of a module. */
#define MODULE_CALL(m, fd, request, arg) module_call((m), (fd), (request), (arg), sizeof(*(arg)))

static inline int module_device(const struct module *m)
{
	int fd = m->sys->open(m->sys->ctx, COMPUTRON_DEVICE);

	CU_ASSERT_TRUE_FATAL(fd >= 0);
	return fd;
}

static inline int module_destroy(const struct module *m, const char *name)
{
	struct computron_pool_destroy d = {0};
	int fd = module_device(m), rc;

	snprintf(d.name, sizeof(d.name), "%s", name);
	rc = MODULE_CALL(m, fd, COMPUTRON_IOC_POOL_DESTROY, &d);
	m->sys->close(m->sys->ctx, fd);
	return rc;
}

/* A writer's file of the pool, as another process has it. */
static inline int module_other(const struct module *m)
{
	struct computron_pool_open o = {.flags = COMPUTRON_OPEN_WRITE, .name = POOL_NAME};
	int fd = module_device(m);

	CU_ASSERT_EQUAL_FATAL(MODULE_CALL(m, fd, COMPUTRON_IOC_POOL_OPEN, &o), 0);
	m->sys->close(m->sys->ctx, fd);
	return o.fd;
}

static inline void module_new(struct module *m)
{
	const char *which = getenv("CTN_TEST_KMOD");

	m->fake = which && strcmp(which, "real") == 0 ? NULL : fake_kmod_new();
	m->sys = m->fake ? fake_kmod_sys(m->fake) : &module_real;
	module_destroy(m, POOL_NAME);
}

static inline void module_free(struct module *m)
{
	module_destroy(m, POOL_NAME);
	if (m->fake)
		fake_kmod_free(m->fake);
}

static inline struct ctn_pool_config module_config(const struct module *m, uint64_t bytes,
						   uint64_t segment)
{
	return (struct ctn_pool_config){.provider = "kmod",
					.name = POOL_NAME,
					.bytes = bytes,
					.segment_bytes = segment,
					.hot_bytes = UINT64_MAX,
					.node = -1,
					.kmod_sys = m->fake ? m->sys : NULL};
}

static inline struct ctn_pool *module_pool(const struct module *m, uint64_t bytes, uint64_t segment)
{
	struct ctn_pool_config cfg = module_config(m, bytes, segment);
	struct ctn_err err = {0};
	struct ctn_pool *pool = NULL;

	if (ctn_pool_open(&cfg, &pool, &err) != 0) {
		fprintf(stderr, "%s\n", err.msg);
		exit(2);
	}
	return pool;
}

/* Ends the test where the module is the one that is loaded. */
#define NEEDS_FAKE(m)                                                                    \
	do {                                                                             \
		if (!(m)->fake) {                                                        \
			module_free(m);                                                  \
			CTN_SKIP("the module that is loaded cannot be made to do that"); \
		}                                                                        \
	} while (0)

#endif
