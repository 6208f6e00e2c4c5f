/* SPDX-License-Identifier: MIT */
/*
 * What a device backend supplies: a way to open its devices, and the operations behind
 * device.h. device.c checks the arguments that are the same for all backends and dispatches.
 * A backend embeds the structs below as the first member of its own.
 */
#ifndef CTN_DEVICE_BACKEND_H
#define CTN_DEVICE_BACKEND_H

#include "device/device.h"

/* Each has the contract of the function of device.h with the same name. */
struct ctn_device_ops {
	void (*close)(struct ctn_device *dev);

	int (*reserve)(struct ctn_device *dev, uint64_t bytes, void **va);
	void (*unreserve)(struct ctn_device *dev, void *va, uint64_t bytes);
	int (*map)(struct ctn_device *dev, void *va, uint64_t bytes);
	void (*unmap)(struct ctn_device *dev, void *va, uint64_t bytes, bool poison);
	void (*get_memory)(struct ctn_device *dev, struct ctn_device_memory *mem);
	int (*register_host)(struct ctn_device *dev, void *addr, uint64_t bytes);
	void (*unregister_host)(struct ctn_device *dev, void *addr, uint64_t bytes);

	int (*event_new)(struct ctn_device *dev, struct ctn_event **event);
	void (*event_free)(struct ctn_event *event);
	void (*event_reset)(struct ctn_event *event);
	bool (*event_done)(struct ctn_event *event);
	int (*event_wait)(struct ctn_event *event);

	/* The shapes of the copies have been checked: see ctn_device_load. */
	int (*load)(struct ctn_device *dev, const struct ctn_copy *copies, uint32_t count,
		    struct ctn_event *event, ctn_load_done_fn *done, void *arg);

	int (*stream_new)(struct ctn_device *dev, struct ctn_stream **stream);
	void (*stream_free)(struct ctn_stream *stream);
	int (*stream_wait)(struct ctn_stream *stream, struct ctn_event *event);
	int (*upload)(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
	int (*download)(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
	int (*layer_begin)(struct ctn_stream *stream);
	int (*layer_end)(struct ctn_stream *stream);
	int (*stream_sync)(struct ctn_stream *stream);

	void (*get_stats)(struct ctn_device *dev, struct ctn_device_stats *stats);
};

struct ctn_device {
	const struct ctn_device_ops *ops;
	const struct ctn_kernels *kernels;
	struct ctn_device_props props;
};

struct ctn_event {
	struct ctn_device *dev;
};

struct ctn_stream {
	struct ctn_device *dev;
};

struct ctn_backend {
	const char *name;
	/* `args` is what follows "NAME:" in the first value of the options, "" when nothing
	 * does; otherwise as ctn_devices_open. On failure nothing stays open. */
	int (*open)(const char *args, const struct ctn_opts *opts, struct ctn_device **devices,
		    uint32_t *count, struct ctn_err *err);
};

extern const struct ctn_backend ctn_backend_host;

#endif
