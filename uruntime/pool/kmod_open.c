// SPDX-License-Identifier: MIT
/* Finding the module and a pool of it; saying why not. */
#include "pool/kmod.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_NAME "computron"
#define TRIES        4 /* somebody else makes or ends the pool between two calls */

/* For one that cannot be used, whatever the reason, another provider can stand in. */
static int open_device(const struct ctn_kmod_sys *sys, struct ctn_err *err)
{
	int fd = sys->open(sys->ctx, COMPUTRON_DEVICE);

	switch (fd) {
	case -ENOENT:
	case -ENODEV:
	case -ENXIO:
		return ctn_err_set(err, -ENOTSUP, "no " COMPUTRON_DEVICE ": modprobe computron");
	case -EACCES:
	case -EPERM:
		return ctn_err_set(err, -ENOTSUP,
				   COMPUTRON_DEVICE ": not permitted: usermod -aG computron USER");
	}
	if (fd < 0)
		return ctn_err_set(err, -ENOTSUP, COMPUTRON_DEVICE ": %s", strerror(-fd));
	return fd;
}

static int check_module(const struct ctn_kmod_sys *sys, int fd, struct computron_info *info,
			struct ctn_err *err)
{
	int rc;

	*info = (struct computron_info){0};
	rc = CTN_KMOD_CALL(sys, fd, COMPUTRON_IOC_INFO, info);
	if (rc)
		return ctn_err_set(err, -ENOTSUP,
				   COMPUTRON_DEVICE " is no computron module of ours: %s",
				   strerror(-rc));
	if (info->abi < COMPUTRON_ABI)
		return ctn_err_set(err, -ENOTSUP,
				   "the computron module %.31s has ABI %u, this program needs %u",
				   info->version, info->abi, (unsigned int)COMPUTRON_ABI);
	if (info->unit_bytes != CTN_EXTENT_ALIGN)
		return ctn_err_set(
			err, -ENOTSUP, "the computron module has units of %llu bytes, not %llu",
			(unsigned long long)info->unit_bytes, (unsigned long long)CTN_EXTENT_ALIGN);
	return 0;
}

static int create(const struct ctn_kmod_sys *sys, int dev, const struct ctn_pool_config *cfg,
		  struct kmod_opened *o, struct ctn_err *err)
{
	struct computron_pool_create c = {.node = cfg->node};
	int rc;

	memcpy(c.name, o->name, sizeof(c.name));
	c.bytes = ctn_align_down(cfg->bytes, CTN_EXTENT_ALIGN);
	c.segment_bytes = CTN_MIN(cfg->segment_bytes ? cfg->segment_bytes : CTN_GIB, c.bytes);
	rc = CTN_KMOD_CALL(sys, dev, COMPUTRON_IOC_POOL_CREATE, &c);
	if (rc == -ENOSPC)
		return ctn_err_set(err, rc,
				   "pool %s: %llu bytes are above the limit of the module: "
				   "/sys/module/computron/parameters/max_bytes",
				   o->name, (unsigned long long)c.bytes);
	if (rc)
		return ctn_err_set(err, rc, "pool %s: create: %s", o->name, strerror(-rc));
	o->fd = c.fd;
	o->bytes = c.bytes;
	o->segment_bytes = c.segment_bytes;
	o->node = c.node;
	return 0;
}

/* A pool without segments can hold extents of any length: not ours. */
static bool fits(const struct ctn_pool_config *cfg, const struct computron_pool_open *p)
{
	if (p->segment_bytes == 0 || p->segment_bytes % CTN_EXTENT_ALIGN)
		return false;
	if (cfg->segment_bytes && p->segment_bytes != CTN_MIN(cfg->segment_bytes, p->bytes))
		return false;
	if (!cfg->bytes_wished && p->bytes != ctn_align_down(cfg->bytes, CTN_EXTENT_ALIGN))
		return false;
	return cfg->node < 0 || cfg->node == p->node;
}

/* What it holds is a cache: nothing is lost but time. Not while somebody else uses it. */
static int destroy_unfit(const struct ctn_kmod_sys *sys, int dev,
			 const struct computron_pool_open *old, struct ctn_err *err)
{
	struct computron_pool_destroy d = {0};
	char size[32];
	int rc;

	memcpy(d.name, old->name, sizeof(d.name));
	rc = CTN_KMOD_CALL(sys, dev, COMPUTRON_IOC_POOL_DESTROY, &d);
	ctn_format_size(old->bytes, size);
	if (rc == -EBUSY)
		return ctn_err_set(err, rc,
				   "pool %s is there, in use, and of another size, segment or "
				   "node: %s, segments of %llu bytes, node %d",
				   old->name, size, (unsigned long long)old->segment_bytes,
				   old->node);
	if (rc && rc != -ENOENT)
		return ctn_err_set(err, rc, "pool %s: destroy: %s", old->name, strerror(-rc));
	ctn_info("pool %s of %s was there with another size, segment or node: it is made anew",
		 old->name, size);
	return 0;
}

/* -ENOENT: there is none, any more. */
static int open_existing(const struct ctn_kmod_sys *sys, int dev, const struct ctn_pool_config *cfg,
			 struct kmod_opened *o, struct ctn_err *err)
{
	struct computron_pool_open p = {.flags = COMPUTRON_OPEN_WRITE};
	int rc;

	memcpy(p.name, o->name, sizeof(p.name));
	rc = CTN_KMOD_CALL(sys, dev, COMPUTRON_IOC_POOL_OPEN, &p);
	if (rc == -ENOENT)
		return rc;
	if (rc == -EACCES)
		return ctn_err_set(err, rc, "pool %s belongs to another user", o->name);
	if (rc)
		return ctn_err_set(err, rc, "pool %s: open: %s", o->name, strerror(-rc));
	if (fits(cfg, &p)) {
		o->fd = p.fd;
		o->bytes = p.bytes;
		o->segment_bytes = p.segment_bytes;
		o->node = p.node;
		return 0;
	}
	sys->close(sys->ctx, p.fd);
	rc = destroy_unfit(sys, dev, &p, err);
	return rc ? rc : -ENOENT;
}

void ctn_kmod_destroy(const struct ctn_kmod_sys *sys, const char *name)
{
	struct computron_pool_destroy d = {0};
	int dev = open_device(sys, NULL), rc;

	if (dev < 0)
		return;
	memcpy(d.name, name, CTN_MIN(strlen(name), sizeof(d.name) - 1));
	rc = CTN_KMOD_CALL(sys, dev, COMPUTRON_IOC_POOL_DESTROY, &d);
	if (rc)
		ctn_warn("pool %s stays: %s", name, strerror(-rc));
	sys->close(sys->ctx, dev);
}

/* Of a temporary pool: nobody else's, not even of this process. */
static void make_name(char *name, size_t len)
{
	static atomic_uint count;

	snprintf(name, len, "temporary-%d-%u", (int)getpid(), atomic_fetch_add(&count, 1));
}

int ctn_kmod_open_pool(const struct ctn_kmod_sys *sys, const struct ctn_pool_config *cfg,
		       struct kmod_opened *o, struct ctn_err *err)
{
	const char *name = cfg->name ? cfg->name : DEFAULT_NAME;
	char own[COMPUTRON_NAME_BYTES];
	struct computron_info info;
	int dev, rc;

	if (cfg->temporary) {
		make_name(own, sizeof(own));
		name = own;
	}
	if (strlen(name) >= sizeof(o->name))
		return ctn_err_set(err, -EINVAL, "pool: a name has at most %zu bytes, found \"%s\"",
				   sizeof(o->name) - 1, name);
	memset(o, 0, sizeof(*o));
	memcpy(o->name, name, strlen(name));
	dev = open_device(sys, err);
	if (dev < 0)
		return dev;
	rc = check_module(sys, dev, &info, err);
	for (int i = 0; rc == 0 && i < TRIES; i++) {
		rc = open_existing(sys, dev, cfg, o, err);
		if (rc == -ENOENT)
			rc = create(sys, dev, cfg, o, err);
		if (rc != -EEXIST)
			break;
		rc = 0;
		o->fd = -1;
	}
	if (rc == 0 && o->fd < 0)
		rc = ctn_err_set(err, -EBUSY, "pool %s: somebody makes and destroys it", name);
	sys->close(sys->ctx, dev);
	return rc;
}

int ctn_pool_ask_module(const struct ctn_kmod_sys *sys, struct ctn_pool_module *module,
			struct ctn_err *err)
{
	struct computron_info info;
	int dev, rc;

	sys = sys ? sys : &ctn_kmod_real_sys;
	dev = open_device(sys, err);
	if (dev < 0)
		return dev;
	rc = check_module(sys, dev, &info, err);
	sys->close(sys->ctx, dev);
	if (rc)
		return rc;
	*module = (struct ctn_pool_module){.abi = info.abi,
					   .pools = info.pools,
					   .total_bytes = info.total_bytes,
					   .max_bytes = info.max_bytes};
	memcpy(module->version, info.version, sizeof(module->version));
	module->version[sizeof(module->version) - 1] = '\0';
	return 0;
}
