// SPDX-License-Identifier: MIT
/* The decision log: see decisions.h. */
#include "engine/decisions.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* What may wait to be written: some seconds of a busy engine. */
#define BACKLOG (16 * CTN_MIB)
/* What a pipe's reader has to take the rest, once the log is closed. */
#define LAST_READ_NS CTN_NSEC_PER_SEC

struct decisions {
	char *path;
	int fd;         /* does not block: it may be a pipe */
	int closing_fd; /* readable once `closing` is set */
	pthread_t thread;
	/* The engine's alone. */
	uint32_t device_count, max_models, max_actions, model_count;
	uint32_t *ranks; /* of each model */
	struct ctn_buf line;
	/* Of both. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ctn_buf waiting; /* lock */
	bool closing;           /* lock */
	_Atomic bool failed;
	_Atomic uint64_t lines;
};

/* ---- the thread that writes --------------------------------------------------------------- */

static void fail(struct decisions *d, const char *why)
{
	if (!atomic_exchange(&d->failed, true))
		ctn_error("decision log %s: %s; nothing more is written to it", d->path, why);
}

/* A pipe is full. False: the log is closed and nobody reads. `*until_ns`: when that is said. */
static bool await_reader(struct decisions *d, uint64_t *until_ns)
{
	struct pollfd fds[2] = {{.fd = d->fd, .events = POLLOUT},
				{.fd = d->closing_fd, .events = POLLIN}};
	uint64_t now_ns;

	if (!*until_ns) {
		poll(fds, 2, -1);
		if (fds[1].revents)
			*until_ns = ctn_now_ns() + LAST_READ_NS;
		return true;
	}
	now_ns = ctn_now_ns();
	if (now_ns >= *until_ns)
		return false;
	poll(fds, 1, (int)((*until_ns - now_ns) / 1000000 + 1));
	return true;
}

static void write_all(struct decisions *d, const struct ctn_buf *buf, uint64_t *until_ns)
{
	size_t done = 0;

	while (done < buf->len && !atomic_load(&d->failed)) {
		ssize_t n = write(d->fd, buf->data + done, buf->len - done);

		if (n > 0)
			done += (size_t)n;
		else if (n < 0 && errno == EAGAIN) {
			if (!await_reader(d, until_ns))
				fail(d, "its reader does not read");
		} else if (n == 0 || errno != EINTR)
			fail(d, n == 0 ? "no byte can be written" : strerror(errno));
	}
}

static void *write_main(void *arg)
{
	struct decisions *d = arg;
	struct ctn_buf buf = {0};
	uint64_t until_ns = 0;
	bool closing = false;

	while (!closing) {
		struct ctn_buf spare = buf;

		pthread_mutex_lock(&d->lock);
		while (d->waiting.len == 0 && !d->closing)
			pthread_cond_wait(&d->changed, &d->lock);
		closing = d->closing;
		buf = d->waiting;
		d->waiting = spare;
		pthread_mutex_unlock(&d->lock);
		write_all(d, &buf, &until_ns);
		ctn_buf_reset(&buf);
	}
	ctn_buf_free(&buf);
	return NULL;
}

/* ---- what the engine appends -------------------------------------------------------------- */

/* The line is whole: to the thread. */
static void hand_over(struct decisions *d)
{
	bool too_slow, no_memory;

	ctn_buf_puts(&d->line, "\n");
	pthread_mutex_lock(&d->lock);
	too_slow = d->waiting.len > BACKLOG;
	if (!too_slow)
		ctn_buf_append(&d->waiting, d->line.data, d->line.len);
	no_memory = d->waiting.failed || d->line.failed;
	pthread_cond_signal(&d->changed);
	pthread_mutex_unlock(&d->lock);
	if (too_slow)
		fail(d, "the disk is slower than the engine");
	else if (no_memory)
		fail(d, "out of memory");
	atomic_fetch_add(&d->lines, 1);
	ctn_buf_reset(&d->line);
}

static bool off(const struct decisions *d)
{
	return !d || atomic_load_explicit(&d->failed, memory_order_relaxed);
}

/* Members that are not 0, each with a comma in front. */
static void put_fields(struct ctn_buf *b, const struct ctn_sched_field *f, const void *of)
{
	for (; f->name; f++) {
		const char *at = (const char *)of + f->offset;
		uint64_t n = 0;

		switch (f->kind) {
		case CTN_SCHED_U32:
			n = *(const uint32_t *)at;
			break;
		case CTN_SCHED_I32:
			if (*(const int32_t *)at)
				ctn_buf_printf(b, ",\"%s\":%d", f->name, *(const int32_t *)at);
			continue;
		case CTN_SCHED_U64:
			n = *(const uint64_t *)at;
			break;
		case CTN_SCHED_BOOL:
			if (*(const bool *)at)
				ctn_buf_printf(b, ",\"%s\":true", f->name);
			continue;
		case CTN_SCHED_REAL:
			if (*(const double *)at != 0)
				ctn_buf_printf(b, ",\"%s\":%.17g", f->name, *(const double *)at);
			continue;
		}
		/* An action that is about no request has all ones there. */
		if (n && n != UINT32_MAX)
			ctn_buf_printf(b, ",\"%s\":%llu", f->name, (unsigned long long)n);
	}
}

static void put_string(struct ctn_buf *b, const char *s)
{
	json_t *string = json_string_nocheck(s);
	char *text = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;

	ctn_buf_puts(b, text ? text : "\"?\"");
	free(text);
	json_decref(string);
}

static void put_list64(struct ctn_buf *b, const char *name, const uint64_t *list, uint32_t count)
{
	ctn_buf_printf(b, ",\"%s\":[", name);
	for (uint32_t i = 0; i < count; i++)
		ctn_buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)list[i]);
	ctn_buf_puts(b, "]");
}

static void put_list32(struct ctn_buf *b, const char *name, const uint32_t *list, uint32_t count)
{
	ctn_buf_printf(b, ",\"%s\":[", name);
	for (uint32_t i = 0; i < count; i++)
		ctn_buf_printf(b, "%s%u", i ? "," : "", list[i]);
	ctn_buf_puts(b, "]");
}

static void put_config(struct decisions *d, const struct ctn_sched_config *cfg)
{
	ctn_buf_printf(&d->line, "{\"config\":{\"version\":1,\"policy\":");
	put_string(&d->line, cfg->policy);
	ctn_buf_printf(&d->line, ",\"max_actions\":%u", d->max_actions);
	put_fields(&d->line, ctn_sched_config_fields, cfg);
	put_list64(&d->line, "device_bytes", cfg->device_bytes, cfg->device_count);
	put_list64(&d->line, "granules", cfg->granules, cfg->device_count);
	ctn_buf_puts(&d->line, "}}");
	hand_over(d);
}

/* Opens and locks: 0, or a negative errno. *st: what it is. */
static int open_locked(const char *path, int *fd, struct stat *st)
{
	/* A FIFO without a reader is refused and not waited for. */
	*fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0644);
	if (*fd < 0)
		return -errno;
	if (fstat(*fd, st) < 0)
		return -errno;
	/* A file system without locks has none to refuse. */
	if (S_ISREG(st->st_mode) && flock(*fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return -EBUSY;
	return 0;
}

/*
 * Into *fd, empty, and nobody else's: what two daemons write into one file is no log. What an
 * earlier daemon wrote is kept as PATH.1: it may be all that tells why that one died. Both locks
 * are held while the name changes, so that two daemons that start do not both take the file aside.
 */
static int open_file(const char *path, int *fd)
{
	char *real, *aside = NULL;
	struct stat st, now;
	int old, rc;

	rc = open_locked(path, fd, &st);
	if (rc || !S_ISREG(st.st_mode))
		return rc;
	/* Under its name still, or somebody has just taken it aside. */
	if (stat(path, &now) < 0 || now.st_ino != st.st_ino || now.st_dev != st.st_dev)
		return -EBUSY;
	if (st.st_size == 0)
		return 0;
	real = realpath(path, NULL); /* a link stays where it is */
	if (!real)
		return -errno;
	if (asprintf(&aside, "%s.1", real) < 0) {
		free(real);
		return -ENOMEM;
	}
	old = *fd;
	*fd = -1;
	rc = rename(real, aside) < 0 ? -errno : 0;
	if (rc)
		ctn_error("decision log %s: what is there cannot be kept as %s: %s", path, aside,
			  strerror(-rc));
	else
		rc = open_locked(real, fd, &st);
	close(old);
	free(aside);
	free(real);
	return rc;
}

static const char *why_not(int rc)
{
	switch (rc) {
	case -EBUSY:
		return "another daemon writes to it";
	case -ENXIO:
		return "nobody reads from it";
	default:
		return strerror(-rc);
	}
}

struct decisions *decisions_open(const char *path, const struct ctn_sched_config *cfg,
				 uint32_t max_actions)
{
	struct decisions *d = calloc(1, sizeof(*d));
	int rc;

	if (!d) {
		ctn_error("decision log %s: out of memory; there is none", path);
		return NULL;
	}
	d->device_count = cfg->device_count;
	d->max_models = cfg->max_models;
	d->max_actions = max_actions;
	d->fd = -1;
	d->closing_fd = eventfd(0, EFD_CLOEXEC);
	d->path = strdup(path);
	d->ranks = calloc(CTN_MAX(cfg->max_models, 1u), sizeof(*d->ranks));
	if (d->closing_fd < 0)
		rc = -errno;
	else
		rc = d->path && d->ranks ? open_file(path, &d->fd) : -ENOMEM;
	if (rc)
		goto fail;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->changed, NULL);
	rc = -pthread_create(&d->thread, NULL, write_main, d);
	if (rc == 0) {
		put_config(d, cfg);
		return d;
	}
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->lock);
fail:
	ctn_error("decision log %s: %s; there is none", path, why_not(rc));
	if (d->fd >= 0)
		close(d->fd);
	if (d->closing_fd >= 0)
		close(d->closing_fd);
	free(d->path);
	free(d->ranks);
	free(d);
	return NULL;
}

void decisions_close(struct decisions *d)
{
	if (!d)
		return;
	if (!off(d)) {
		ctn_buf_puts(&d->line, "{\"end\":true}");
		hand_over(d);
	}
	pthread_mutex_lock(&d->lock);
	d->closing = true;
	pthread_cond_signal(&d->changed);
	pthread_mutex_unlock(&d->lock);
	eventfd_write(d->closing_fd, 1);
	pthread_join(d->thread, NULL);
	close(d->closing_fd);
	if (close(d->fd) < 0)
		fail(d, strerror(errno));
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->lock);
	ctn_buf_free(&d->line);
	ctn_buf_free(&d->waiting);
	free(d->path);
	free(d->ranks);
	free(d);
}

void decisions_model(struct decisions *d, const char *name, const struct ctn_sched_model *model)
{
	struct ctn_buf *b;

	if (off(d))
		return;
	b = &d->line;
	d->ranks[d->model_count++] = model->rank_count;
	ctn_buf_puts(b, "{\"model\":{\"name\":");
	put_string(b, name);
	put_fields(b, ctn_sched_model_fields, model);
	ctn_buf_puts(b, ",\"ranks\":[");
	for (uint32_t r = 0; r < model->rank_count; r++) {
		ctn_buf_printf(b, "%s{\"rank\":%u", r ? "," : "", r);
		put_fields(b, ctn_sched_rank_fields, &model->ranks[r]);
		put_list64(b, "layer_bytes", model->ranks[r].layer_bytes,
			   model->ranks[r].layer_count);
		ctn_buf_puts(b, "}");
	}
	ctn_buf_puts(b, "]}}");
	hand_over(d);
}

void decisions_share(struct decisions *d, uint32_t model, uint32_t rank, uint32_t layer,
		     uint32_t frame, uint64_t bytes)
{
	if (off(d))
		return;
	ctn_buf_printf(&d->line,
		       "{\"share\":{\"model\":%u,\"rank\":%u,\"layer\":%u,\"frame\":%u,"
		       "\"bytes\":%llu}}",
		       model, rank, layer, frame, (unsigned long long)bytes);
	hand_over(d);
}

static void put_event(struct decisions *d, const struct ctn_sched_event *ev)
{
	struct ctn_buf *b = &d->line;

	ctn_buf_printf(b, "\"event\":{\"type\":\"%s\"", ctn_sched_event_name(ev->type));
	put_fields(b, ctn_sched_event_fields, ev);
	if (ev->kept_layers)
		put_list32(b, "kept_layers", ev->kept_layers, d->ranks[ev->model]);
	if (ev->host_evictable)
		put_list64(b, "host_evictable", ev->host_evictable, d->model_count);
	ctn_buf_puts(b, "}");
}

static void put_actions(struct decisions *d, const struct ctn_sched_action *actions, uint32_t count)
{
	struct ctn_buf *b = &d->line;

	ctn_buf_puts(b, ",\"actions\":[");
	for (uint32_t i = 0; i < count; i++) {
		const struct ctn_sched_action *a = &actions[i];

		ctn_buf_printf(b, "%s{\"type\":\"%s\"", i ? "," : "",
			       ctn_sched_action_name(a->type));
		put_fields(b, ctn_sched_action_fields, a);
		if (a->reason)
			ctn_buf_printf(b, ",\"reason\":\"%s\"", a->reason);
		ctn_buf_puts(b, "}");
	}
	ctn_buf_puts(b, "]");
}

/* Of the devices, and of the model that the event, or the first action, is about. */
static void put_state(struct decisions *d, const struct ctn_sched *sched, uint32_t model)
{
	struct ctn_buf *b = &d->line;
	struct ctn_sched_model_state state;

	ctn_buf_puts(b, ",\"state\":{\"charged\":[");
	for (uint32_t i = 0; i < d->device_count; i++)
		ctn_buf_printf(b, "%s%llu", i ? "," : "",
			       (unsigned long long)ctn_sched_charged(sched, i));
	ctn_buf_puts(b, "]");
	if (model < d->model_count) {
		ctn_sched_model_state(sched, model, &state);
		ctn_buf_printf(b,
			       ",\"model\":%u,\"is\":\"%s\",\"queued\":%u,\"admitted\":%u,"
			       "\"kv_budget\":%u,\"weight_bytes\":%llu",
			       model, ctn_sched_state_name(state.state), state.queued,
			       state.admitted, state.kv_budget,
			       (unsigned long long)state.weight_bytes);
	}
	ctn_buf_puts(b, "}");
}

void decisions_add(struct decisions *d, const struct ctn_sched *sched, uint64_t now_ns,
		   const struct ctn_sched_event *ev, uint32_t max,
		   const struct ctn_sched_action *actions, uint32_t count,
		   const struct decision_outcome *outcome)
{
	if (off(d))
		return;
	ctn_buf_printf(&d->line, "{\"ns\":%llu,", (unsigned long long)now_ns);
	if (max != d->max_actions)
		ctn_buf_printf(&d->line, "\"max\":%u,", max);
	put_event(d, ev);
	put_actions(d, actions, count);
	if (outcome)
		ctn_buf_printf(&d->line, ",\"predicted_s\":%.6g,\"actual_s\":%.6g",
			       outcome->predicted_s, outcome->actual_s);
	put_state(d, sched, count ? actions[0].model : ev->model);
	ctn_buf_puts(&d->line, "}");
	hand_over(d);
}

void decisions_state(const struct decisions *d, uint64_t *lines, bool *failed)
{
	*lines = d ? atomic_load(&d->lines) : 0;
	*failed = d && atomic_load(&d->failed);
}
