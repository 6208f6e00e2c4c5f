/* SPDX-License-Identifier: MIT */
/*
 * device: memory, copies, events, streams and kernels of an accelerator behind one interface.
 * Backends: host (device memory is host memory, links are emulated in real time), cuda later.
 *
 * Memory is fixed virtual addresses over pooled physical granules: `reserve` gives addresses
 * without memory, `map` backs a range, `unmap` takes the memory back and keeps the addresses.
 * All memory of a device comes from here. The device does not know what it holds.
 */
#ifndef CTN_DEVICE_H
#define CTN_DEVICE_H

#include "base/base.h"
#include "kernels/kernels.h"

struct ctn_device;
struct ctn_event;

#define CTN_MAX_DEVICES 64

struct ctn_device_props {
	char id[64]; /* opaque: "host:0" */
	char backend[16];
	uint64_t mem_bytes;   /* a multiple of granule */
	uint64_t granule;     /* of map and unmap, in bytes; a power of two */
	int node;             /* NUMA node, -1 unknown */
	char pci[16];         /* empty: none */
	uint64_t link_rate;   /* bytes/s of its own link; 0: as fast as memory */
	int uplink;           /* group that shares an uplink, -1: none */
	uint64_t uplink_rate; /* bytes/s of that group's uplink */
	uint64_t layer_ns;    /* emulated compute time of a layer, 0: none */
};

/*
 * Opens the devices of one --device value, e.g. "host:2,mem=512M,link=200M". Fills `devices`
 * (room for CTN_MAX_DEVICES) and *count. -EINVAL or -ERANGE names the key; -ENOTSUP an unknown
 * backend.
 */
int ctn_devices_open(const char *spec, struct ctn_device **devices, uint32_t *count,
		     struct ctn_err *err);
/* Nothing may be mapped, reserved or in flight; events and streams have been freed. */
void ctn_devices_close(struct ctn_device **devices, uint32_t count);

const struct ctn_device_props *ctn_device_props(const struct ctn_device *dev);
const struct ctn_kernels *ctn_device_kernels(const struct ctn_device *dev);

/* ---- memory ---------------------------------------------------------------------------- */

/* Addresses for `bytes` bytes (rounded up to the granule), without memory. -ENOMEM. */
int ctn_device_reserve(struct ctn_device *dev, uint64_t bytes, void **va);
/* Gives the addresses back. Nothing in them may be mapped. */
void ctn_device_unreserve(struct ctn_device *dev, void *va, uint64_t bytes);
/* Backs [va, va + bytes) of a reservation, all of it or nothing: -ENOSPC when free memory
 * does not suffice, -EINVAL outside a reservation or off the granule, -EEXIST when some of it
 * is mapped, -ENOMEM when the machine cannot. Contents are undefined. */
int ctn_device_map(struct ctn_device *dev, void *va, uint64_t bytes);
/* Takes the memory of a range back, all of which is mapped (by one call or by several; it may
 * be a part of what a call mapped). With `poison` its bytes are overwritten first, so
 * that a stale read shows (test builds). Moves no bytes otherwise. */
void ctn_device_unmap(struct ctn_device *dev, void *va, uint64_t bytes, bool poison);

struct ctn_device_memory {
	uint64_t total;
	uint64_t free;   /* by the granule free list */
	uint64_t mapped; /* by a walk over the mappings */
};
void ctn_device_get_memory(struct ctn_device *dev, struct ctn_device_memory *mem);

/* Makes host memory known for DMA, or forgets it. Segments of hot pools; -ENOTSUP is no
 * error of the caller's: copies then go through a bounce buffer. */
int ctn_device_register_host(struct ctn_device *dev, void *addr, uint64_t bytes);
void ctn_device_unregister_host(struct ctn_device *dev, void *addr, uint64_t bytes);

/* ---- loads: the host-to-device copies of the link --------------------------------------- */

/* height rows of width bytes. 1-D: height 1, pitches ignored. */
struct ctn_copy {
	const void *src;
	void *dst;
	uint64_t width, height;
	uint64_t src_pitch, dst_pitch;
};

/*
 * An event is unset until the work it was given with has completed; `reset` makes it unset
 * again, and so does giving it to new work. Only the work it was given to last, since the
 * last reset, sets it. Waiting on an unset event blocks until it is set; a waiter that was
 * there when it was set returns, also when it has been unset again since. Any thread may
 * wait. An event that work still holds must not be freed.
 */
int ctn_event_new(struct ctn_device *dev, struct ctn_event **event);
void ctn_event_free(struct ctn_event *event);
void ctn_event_reset(struct ctn_event *event);
bool ctn_event_done(struct ctn_event *event);
/* 0, or the error that the device met in the work of this event. */
int ctn_event_wait(struct ctn_event *event);

/* Called from a backend's thread when a load has completed. It must not block. */
typedef void ctn_load_done_fn(void *arg, int rc);

/*
 * Enqueues copies on the device's link, in order after all loads before it; returns at once.
 * The array is copied; the source bytes stay valid and unchanged until `done`. Then `event`
 * (if not NULL) is set and `done` (if not NULL) is called, in this order; the stats have the
 * load by then. `done` may enqueue. When this fails nothing has been enqueued: -EFAULT when a
 * destination is not mapped memory of the device, -EINVAL when a pitch is less than the width,
 * -EOVERFLOW, -ENOMEM.
 */
int ctn_device_load(struct ctn_device *dev, const struct ctn_copy *copies, uint32_t count,
		    struct ctn_event *event, ctn_load_done_fn *done, void *arg);

/* ---- streams: compute, and small copies beside it --------------------------------------- */

int ctn_stream_new(struct ctn_device *dev, struct ctn_stream **stream);
void ctn_stream_free(struct ctn_stream *stream);
/* Later work of the stream waits for the event. The host backend blocks the caller. */
int ctn_stream_wait(struct ctn_stream *stream, struct ctn_event *event);
/* Small host-to-device and device-to-host copies, ordered with the kernels of the stream. The
 * host bytes are free for reuse on return from `upload`, filled after `sync` by `download`.
 * -EFAULT when the device's end is not mapped memory of the device. */
int ctn_stream_upload(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
int ctn_stream_download(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes);
/* Marks the end of a layer's compute; a backend that emulates compute time waits here until
 * layer_ns after the layer began. */
int ctn_stream_layer_begin(struct ctn_stream *stream);
int ctn_stream_layer_end(struct ctn_stream *stream);
/* Waits until all work of the stream is done; the first error met since the last sync. */
int ctn_stream_sync(struct ctn_stream *stream);

struct ctn_device_stats {
	uint64_t load_bytes; /* over the link */
	uint64_t load_ns;    /* time the link was busy */
	uint64_t loads;
	uint64_t upload_bytes;
	uint64_t d2h_bytes; /* every byte that left the device */
};
void ctn_device_get_stats(struct ctn_device *dev, struct ctn_device_stats *stats);

#endif
