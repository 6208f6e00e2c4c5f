// SPDX-License-Identifier: MIT
/* Streams of the host backend: all work is done in the caller, so it is done on return. */
#include "device/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Belongs to one thread at a time. */
struct host_stream {
	struct ctn_stream base;
	int rc; /* first error met since the last sync */
	uint64_t layer_began;
};

static struct host_stream *host_stream(struct ctn_stream *stream)
{
	return (struct host_stream *)stream;
}

/* Keeps the first error for ctn_stream_sync. */
static int note(struct ctn_stream *stream, int rc)
{
	struct host_stream *s = host_stream(stream);

	if (rc && !s->rc)
		s->rc = rc;
	return rc;
}

int ctn_host_stream_new(struct ctn_device *dev, struct ctn_stream **stream)
{
	struct host_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->base.dev = dev;
	*stream = &s->base;
	return 0;
}

void ctn_host_stream_free(struct ctn_stream *stream)
{
	free(host_stream(stream));
}

int ctn_host_stream_wait(struct ctn_stream *stream, struct ctn_event *event)
{
	return note(stream, ctn_event_wait(event));
}

int ctn_host_stream_upload(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes)
{
	struct ctn_host_device *dev = ctn_host_device(stream->dev);

	if (!ctn_host_memory_contains(&dev->memory, dst, bytes))
		return note(stream, -EFAULT);
	memcpy(dst, src, bytes);
	atomic_fetch_add_explicit(&dev->upload_bytes, bytes, memory_order_relaxed);
	return 0;
}

int ctn_host_stream_download(struct ctn_stream *stream, void *dst, const void *src, uint64_t bytes)
{
	struct ctn_host_device *dev = ctn_host_device(stream->dev);

	if (!ctn_host_memory_contains(&dev->memory, src, bytes))
		return note(stream, -EFAULT);
	memcpy(dst, src, bytes);
	atomic_fetch_add_explicit(&dev->d2h_bytes, bytes, memory_order_relaxed);
	return 0;
}

int ctn_host_stream_layer_begin(struct ctn_stream *stream)
{
	host_stream(stream)->layer_began = ctn_now_ns();
	return 0;
}

int ctn_host_stream_layer_end(struct ctn_stream *stream)
{
	uint64_t ns = stream->dev->props.layer_ns, end;
	struct timespec ts;

	if (!ns)
		return 0;
	end = host_stream(stream)->layer_began + ns;
	ts.tv_sec = (time_t)(end / CTN_NSEC_PER_SEC);
	ts.tv_nsec = (long)(end % CTN_NSEC_PER_SEC);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
		;
	return 0;
}

int ctn_host_stream_sync(struct ctn_stream *stream)
{
	int rc = host_stream(stream)->rc;

	host_stream(stream)->rc = 0;
	return rc;
}
