// SPDX-License-Identifier: MIT
/* Opens and closes the devices of the host backend, and ties its pieces together. */
#include "device/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void host_close(struct ctn_device *dev)
{
	struct ctn_host_device *d = ctn_host_device(dev);

	ctn_host_link_destroy(&d->link);
	ctn_host_memory_destroy(&d->memory);
	free(d);
}

static int host_reserve(struct ctn_device *dev, uint64_t bytes, void **va)
{
	return ctn_host_memory_reserve(&ctn_host_device(dev)->memory, bytes, va);
}

static void host_unreserve(struct ctn_device *dev, void *va, uint64_t bytes)
{
	ctn_host_memory_unreserve(&ctn_host_device(dev)->memory, va, bytes);
}

static int host_map(struct ctn_device *dev, void *va, uint64_t bytes)
{
	return ctn_host_memory_map(&ctn_host_device(dev)->memory, va, bytes);
}

static void host_unmap(struct ctn_device *dev, void *va, uint64_t bytes, bool poison)
{
	ctn_host_memory_unmap(&ctn_host_device(dev)->memory, va, bytes, poison);
}

static void host_get_memory(struct ctn_device *dev, struct ctn_device_memory *mem)
{
	ctn_host_memory_get(&ctn_host_device(dev)->memory, mem);
}

/* The link thread reads any memory of the process: there is nothing to make known. */
static int host_register(struct ctn_device *dev, void *addr, uint64_t bytes)
{
	return 0;
}

static void host_unregister(struct ctn_device *dev, void *addr, uint64_t bytes)
{
}

static int host_load(struct ctn_device *dev, const struct ctn_copy *copies, uint32_t count,
		     struct ctn_event *event, ctn_load_done_fn *done, void *arg)
{
	struct ctn_host_device *d = ctn_host_device(dev);

	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_copy *c = &copies[i];
		uint64_t span;

		if (c->width == 0 || c->height == 0)
			continue;
		span = c->height > 1 ? (c->height - 1) * c->dst_pitch + c->width : c->width;
		if (!ctn_host_memory_contains(&d->memory, c->dst, span))
			return -EFAULT;
	}
	return ctn_host_link_load(&d->link, copies, count, event, done, arg);
}

static void host_get_stats(struct ctn_device *dev, struct ctn_device_stats *stats)
{
	struct ctn_host_device *d = ctn_host_device(dev);

	ctn_host_link_get_stats(&d->link, stats);
	stats->upload_bytes = atomic_load_explicit(&d->upload_bytes, memory_order_relaxed);
	stats->d2h_bytes = atomic_load_explicit(&d->d2h_bytes, memory_order_relaxed);
}

static const struct ctn_device_ops host_ops = {
	.close = host_close,
	.reserve = host_reserve,
	.unreserve = host_unreserve,
	.map = host_map,
	.unmap = host_unmap,
	.get_memory = host_get_memory,
	.register_host = host_register,
	.unregister_host = host_unregister,
	.event_new = ctn_host_event_new,
	.event_free = ctn_host_event_free,
	.event_reset = ctn_host_event_reset,
	.event_done = ctn_host_event_done,
	.event_wait = ctn_host_event_wait,
	.load = host_load,
	.stream_new = ctn_host_stream_new,
	.stream_free = ctn_host_stream_free,
	.stream_wait = ctn_host_stream_wait,
	.upload = ctn_host_stream_upload,
	.download = ctn_host_stream_download,
	.layer_begin = ctn_host_stream_layer_begin,
	.layer_end = ctn_host_stream_layer_end,
	.stream_sync = ctn_host_stream_sync,
	.get_stats = host_get_stats,
};

static void fill_props(struct ctn_device_props *props, const struct ctn_host_spec *spec,
		       uint32_t index)
{
	snprintf(props->id, sizeof(props->id), "host:%u", index);
	snprintf(props->backend, sizeof(props->backend), "host");
	props->mem_bytes = spec->mem_bytes;
	props->granule = ctn_host_memory_granule(spec->mem_bytes);
	props->node = -1;
	props->link_rate = spec->link_rate;
	props->uplink = -1;
	props->layer_ns = spec->layer_ns;
	for (uint32_t i = 0; i < spec->uplink_count; i++) {
		if (index < spec->uplinks[i].first || index > spec->uplinks[i].last)
			continue;
		props->uplink = (int)i;
		props->uplink_rate = spec->uplinks[i].rate;
	}
}

/* `groups` are the uplinks of the groups; a device in none has one that limits nothing. */
static int open_link(struct ctn_host_device *d, struct ctn_uplink *const *groups)
{
	const struct ctn_device_props *props = &d->base.props;
	struct ctn_uplink *own;
	int rc;

	if (props->uplink >= 0)
		return ctn_host_link_init(&d->link, groups[props->uplink], props->link_rate);
	own = ctn_uplink_new(0);
	if (!own)
		return -ENOMEM;
	rc = ctn_host_link_init(&d->link, own, props->link_rate);
	ctn_uplink_put(own);
	return rc;
}

static int open_device(const struct ctn_host_spec *spec, uint32_t index,
		       struct ctn_uplink *const *groups, struct ctn_device **dev,
		       struct ctn_err *err)
{
	struct ctn_host_device *d = calloc(1, sizeof(*d));
	int rc;

	if (!d)
		return ctn_err_set(err, -ENOMEM, "device %u: out of memory", index);
	d->base.ops = &host_ops;
	d->base.kernels = &ctn_kernels_cpu;
	rc = ctn_kernels_cpu_start(err);
	if (rc)
		goto free_device;
	fill_props(&d->base.props, spec, index);
	rc = ctn_host_memory_init(&d->memory, d->base.props.id, spec->mem_bytes);
	if (rc) {
		ctn_err_set(err, rc, "device %u: cannot have %llu bytes of memory: %s", index,
			    (unsigned long long)spec->mem_bytes, strerror(-rc));
		goto free_device;
	}
	rc = open_link(d, groups);
	if (rc) {
		ctn_err_set(err, rc, "device %u: cannot start its link: %s", index, strerror(-rc));
		goto destroy_memory;
	}
	*dev = &d->base;
	return 0;
destroy_memory:
	ctn_host_memory_destroy(&d->memory);
free_device:
	free(d);
	return rc;
}

/* Half of what the process may count on, for all devices together. */
static int default_memory(struct ctn_host_spec *spec, struct ctn_err *err)
{
	uint64_t bytes;
	int rc = ctn_memory_usable("", &bytes);

	if (rc)
		return ctn_err_set(err, -EINVAL,
				   "mem: expected a size, as /proc/meminfo tells of no memory");
	bytes = bytes / 2 / spec->devices;
	spec->mem_bytes = ctn_align_down(bytes, ctn_host_memory_granule(bytes));
	if (spec->mem_bytes == 0)
		return ctn_err_set(err, -ENOMEM, "mem: there is not enough memory for %u devices",
				   spec->devices);
	return 0;
}

static int host_open(const char *args, const struct ctn_opts *opts, struct ctn_device **devices,
		     uint32_t *count, struct ctn_err *err)
{
	struct ctn_uplink *groups[CTN_MAX_DEVICES] = {0};
	struct ctn_host_spec spec;
	uint32_t opened = 0, group = 0;
	int rc;

	rc = ctn_host_spec_parse(args, opts, &spec, err);
	if (!rc && spec.mem_bytes == 0)
		rc = default_memory(&spec, err);
	if (rc)
		return rc;
	for (; group < spec.uplink_count; group++) {
		groups[group] = ctn_uplink_new(spec.uplinks[group].rate);
		if (!groups[group]) {
			rc = ctn_err_set(err, -ENOMEM, "uplink: out of memory");
			goto out;
		}
	}
	for (; opened < spec.devices; opened++) {
		rc = open_device(&spec, opened, groups, &devices[opened], err);
		if (rc)
			goto out;
	}
	*count = spec.devices;
out:
	/* The links have uses of their own. */
	while (group > 0)
		ctn_uplink_put(groups[--group]);
	while (rc && opened > 0)
		host_close(devices[--opened]);
	return rc;
}

const struct ctn_backend ctn_backend_host = {.name = "host", .open = host_open};
