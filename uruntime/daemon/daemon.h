/* SPDX-License-Identifier: MIT */
/* The parts of a running daemon, in the order in which they stand on each other. Private to
 * daemon/. */
#ifndef CTN_DAEMON_H
#define CTN_DAEMON_H

#include "daemon/options.h"
#include "server/server.h"

struct ctn_daemon {
	struct ctn_device *devices[CTN_MAX_DEVICES];
	uint32_t device_count;
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_engine *engine;
	struct ctn_server *server;
	uint32_t connections; /* most of each listener */
	char socket_path[256];
	uint32_t folders;  /* models that were named or found */
	uint32_t servable; /* of them */
};

/* Brings everything up; on failure nothing is left. */
int ctn_daemon_start(const struct ctn_options *o, struct ctn_daemon *d, struct ctn_err *err);
/* Refuses what comes, ends what runs, tells the clients, and takes everything down. */
void ctn_daemon_stop(struct ctn_daemon *d);

/* Registers --model and --models-dir; models.c. -ENOENT when there is none at all. */
int ctn_daemon_add_models(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err);

/* First of all, while there is one thread: descriptors 0 to 2 lead somewhere, signals that mean
 * a failed write are ignored, and as many files may be open as the hard limit allows; process.c. */
int ctn_process_prepare(struct ctn_err *err);
/* Of the descriptors that there may be: so many for the connections of each listener, so many
 * for requests, the rest for the daemon. Without a share each, accept() would fail and be
 * tried again, round and round, while requests hold what it needs. */
void ctn_process_share_descriptors(uint32_t devices, uint32_t *connections, uint32_t *requests);

#endif
