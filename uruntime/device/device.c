// SPDX-License-Identifier: MIT
/* Finds the backend of a --device value, and dispatches to it. */
#include "device/backend.h"

#include <errno.h>
#include <string.h>

static const struct ctn_backend *const backends[] = {&ctn_backend_host};

static const struct ctn_backend *find_backend(const char *name, size_t len)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(backends); i++) {
		if (strlen(backends[i]->name) == len && memcmp(backends[i]->name, name, len) == 0)
			return backends[i];
	}
	return NULL;
}

int ctn_devices_open(const char *spec, struct ctn_device **devices, uint32_t *count,
		     struct ctn_err *err)
{
	const struct ctn_backend *backend;
	struct ctn_opts opts;
	const char *name;
	size_t len;
	int rc;

	rc = ctn_opts_parse(spec, &opts, err);
	if (rc) {
		ctn_err_prefix(err, "--device");
		return rc;
	}
	name = ctn_opts_get(&opts, "");
	if (!name || !*name) {
		rc = ctn_err_set(err, -EINVAL,
				 "--device \"%s\": expected a backend first, such as host:2", spec);
		goto out;
	}
	len = strcspn(name, ":");
	backend = find_backend(name, len);
	if (!backend) {
		rc = ctn_err_set(err, -ENOTSUP, "--device \"%s\": this build has no %.*s backend",
				 spec, (int)len, name);
		goto out;
	}
	rc = backend->open(name[len] ? name + len + 1 : "", &opts, devices, count, err);
	if (rc)
		ctn_err_prefix(err, "--device %s", backend->name);
out:
	ctn_opts_free(&opts);
	return rc;
}

void ctn_devices_close(struct ctn_device **devices, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		devices[i]->ops->close(devices[i]);
}

const struct ctn_device_props *ctn_device_props(const struct ctn_device *dev)
{
	return &dev->props;
}

const struct ctn_kernels *ctn_device_kernels(const struct ctn_device *dev)
{
	return dev->kernels;
}

int ctn_device_reserve(struct ctn_device *dev, uint64_t bytes, void **va)
{
	return dev->ops->reserve(dev, bytes, va);
}

void ctn_device_unreserve(struct ctn_device *dev, void *va, uint64_t bytes)
{
	dev->ops->unreserve(dev, va, bytes);
}

int ctn_device_map(struct ctn_device *dev, void *va, uint64_t bytes)
{
	return dev->ops->map(dev, va, bytes);
}

void ctn_device_unmap(struct ctn_device *dev, void *va, uint64_t bytes, bool poison)
{
	dev->ops->unmap(dev, va, bytes, poison);
}

void ctn_device_get_memory(struct ctn_device *dev, struct ctn_device_memory *mem)
{
	dev->ops->get_memory(dev, mem);
}

int ctn_device_register_host(struct ctn_device *dev, void *addr, uint64_t bytes)
{
	return dev->ops->register_host(dev, addr, bytes);
}

void ctn_device_unregister_host(struct ctn_device *dev, void *addr, uint64_t bytes)
{
	dev->ops->unregister_host(dev, addr, bytes);
}

int ctn_event_new(struct ctn_device *dev, struct ctn_event **event)
{
	return dev->ops->event_new(dev, event);
}

void ctn_event_free(struct ctn_event *event)
{
	if (event)
		event->dev->ops->event_free(event);
}

void ctn_event_reset(struct ctn_event *event)
{
	event->dev->ops->event_reset(event);
}

bool ctn_event_done(struct ctn_event *event)
{
	return event->dev->ops->event_done(event);
}

int ctn_event_wait(struct ctn_event *event)
{
	return event->dev->ops->event_wait(event);
}

/* Rows must not overlap, and the sums that a backend makes of the sizes must not wrap. */
static int check_copy(const struct ctn_copy *copy, uint64_t *total)
{
	uint64_t bytes, span, pitch = CTN_MAX(copy->src_pitch, copy->dst_pitch);

	if (copy->height > 1 && (copy->src_pitch < copy->width || copy->dst_pitch < copy->width))
		return -EINVAL;
	if (ctn_mul_overflows(copy->width, copy->height, &bytes) ||
	    ctn_add_overflows(*total, bytes, total))
		return -EOVERFLOW;
	if (copy->height > 1 && ctn_mul_overflows(pitch, copy->height, &span))
		return -EOVERFLOW;
	return 0;
}

int ctn_device_load(struct ctn_device *dev, const struct ctn_copy *copies, uint32_t count,
		    struct ctn_event *event, ctn_load_done_fn *done, void *arg)
{
	uint64_t total = 0;
	int rc;

	for (uint32_t i = 0; i < count; i++) {
		rc = check_copy(&copies[i], &total);
		if (rc)
			return rc;
	}
	return dev->ops->load(dev, copies, count, event, done, arg);
}

int ctn_stream_new(struct ctn_device *dev, struct ctn_stream **stream)
{
	return dev->ops->stream_new(dev, stream);
}

void ctn_stream_free(struct ctn_stream *stream)
{
	if (stream)
		stream->dev->ops->stream_free(stream);
}

int ctn_stream_wait(struct ctn_stream *stream, struct ctn_event *event)
{
	return stream->dev->ops->stream_wait(stream, event);
}

int ctn_stream_upload(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes)
{
	return stream->dev->ops->upload(stream, dst, src, bytes);
}

int ctn_stream_download(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes)
{
	return stream->dev->ops->download(stream, dst, src, bytes);
}

int ctn_stream_layer_begin(struct ctn_stream *stream)
{
	return stream->dev->ops->layer_begin(stream);
}

int ctn_stream_layer_end(struct ctn_stream *stream)
{
	return stream->dev->ops->layer_end(stream);
}

int ctn_stream_sync(struct ctn_stream *stream)
{
	return stream->dev->ops->stream_sync(stream);
}

void ctn_device_get_stats(struct ctn_device *dev, struct ctn_device_stats *stats)
{
	dev->ops->get_stats(dev, stats);
}
