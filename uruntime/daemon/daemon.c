// SPDX-License-Identifier: MIT
#include "daemon/daemon.h"
#include "client/ctn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_DEVICE "host"
#define DEFAULT_LISTEN "127.0.0.1:8000"
#define MAX_QUEUE      1000000

/* Test builds overwrite what was dropped, so that a stale read shows. */
#ifdef CTN_DEBUG
#define POISON true
#else
#define POISON false
#endif

/* ---- devices --------------------------------------------------------------------------- */

static void log_device(const struct ctn_device *dev)
{
	const struct ctn_device_props *p = ctn_device_props(dev);
	char mem[32], link[64] = "as fast as memory";

	if (p->link_rate)
		snprintf(link, sizeof(link), "%.6g MB/s", (double)p->link_rate / 1e6);
	ctn_info("device %s: %s, link %s", p->id, ctn_format_size(p->mem_bytes, mem), link);
}

static int start_devices(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	const char *spec = o->device ? o->device : DEFAULT_DEVICE;

	if (ctn_devices_open(spec, d->devices, &d->device_count, err))
		return ctn_err_prefix(err, "device \"%s\"", spec);
	for (uint32_t i = 0; i < d->device_count; i++)
		log_device(d->devices[i]);
	return 0;
}

/* ---- pool ------------------------------------------------------------------------------ */

static void log_pool(struct ctn_pool *pool)
{
	struct ctn_pool_stats stats;
	char size[32];

	ctn_pool_get_stats(pool, false, &stats);
	ctn_info("pool of provider %s: %s%s%s%s", stats.provider,
		 ctn_format_size(stats.total_bytes, size), stats.why[0] ? " (" : "", stats.why,
		 stats.why[0] ? ")" : "");
}

static int start_pool(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	struct ctn_pool_config cfg = {.bytes = ctn_pool_default_bytes(),
				      .bytes_wished = true,
				      .hot_bytes = UINT64_MAX,
				      .node = -1,
				      .poison = POISON};
	struct ctn_opts opts = {0};
	int rc = 0;

	if (o->pool)
		rc = ctn_pool_parse_spec(o->pool, &opts, &cfg, err);
	if (!rc)
		rc = ctn_pool_open(&cfg, &d->pool, err);
	if (!rc)
		log_pool(d->pool);
	else
		ctn_err_prefix(err, "pool \"%s\"", o->pool ? o->pool : "default");
	ctn_opts_free(&opts);
	return rc;
}

/* ---- stage, engine, server ------------------------------------------------------------- */

static int start_stage(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	struct ctn_stage_config cfg = {.pool = d->pool, .method = -1, .hash = true};
	struct ctn_stage_stats stats;
	enum ctn_stage_method method;
	int rc;

	if (o->stage_method) {
		if (ctn_stage_method_parse(o->stage_method, &method))
			return ctn_err_set(err, -EINVAL, "stage-method: there is no \"%s\"",
					   o->stage_method);
		cfg.method = (int)method;
	}
	rc = ctn_stage_open(&cfg, &d->stage, err);
	if (rc)
		return ctn_err_prefix(err, "stage");
	ctn_stage_get_stats(d->stage, &stats);
	ctn_info("stage by %s%s%s%s",
		 o->stage_method ? o->stage_method : "the best method that each disk allows",
		 stats.why[0] ? " (" : "", stats.why, stats.why[0] ? ")" : "");
	return 0;
}

static int parse_verify(const char *text, enum ctn_pager_verify *verify, struct ctn_err *err)
{
	static const char *const names[] = {[CTN_PAGER_VERIFY_OFF] = "off",
					    [CTN_PAGER_VERIFY_BACKGROUND] = "background",
					    [CTN_PAGER_VERIFY_BEFORE] = "before"};

	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			*verify = (enum ctn_pager_verify)i;
			return 0;
		}
	}
	return ctn_err_set(err, -EINVAL,
			   "adopt-verify: expected before, background or off, found \"%s\"", text);
}

static int parse_on_off(const char *what, const char *text, bool *on, struct ctn_err *err)
{
	*on = strcmp(text, "on") == 0;
	if (*on || strcmp(text, "off") == 0)
		return 0;
	return ctn_err_set(err, -EINVAL, "%s: expected on or off, found \"%s\"", what, text);
}

static int start_engine(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	struct ctn_engine_config cfg = {.devices = d->devices,
					.device_count = d->device_count,
					.pool = d->pool,
					.stage = d->stage,
					.policy = o->policy,
					.decision_log = o->decision_log,
					.adopt_verify = CTN_PAGER_VERIFY_BACKGROUND,
					.stage_ahead = true,
					.poison = POISON};
	uint64_t max_queue = 0;
	int rc = 0;

	if (o->adopt_verify)
		rc = parse_verify(o->adopt_verify, &cfg.adopt_verify, err);
	if (!rc && o->stage_ahead)
		rc = parse_on_off("stage-ahead", o->stage_ahead, &cfg.stage_ahead, err);
	if (rc)
		return rc;
	if (o->max_queue)
		rc = ctn_parse_u64("max-queue", o->max_queue, 1, MAX_QUEUE, &max_queue, err);
	cfg.max_queue = (uint32_t)max_queue;
	ctn_process_share_descriptors(d->device_count, &d->connections, &cfg.max_requests);
	if (!rc)
		rc = ctn_engine_new(&cfg, &d->engine, err);
	if (!rc)
		rc = ctn_daemon_add_models(d, o, err);
	if (!rc)
		rc = ctn_engine_start(d->engine, err);
	if (!rc)
		ctn_info("models: %u served, %u not", d->servable, d->folders - d->servable);
	return rc;
}

static int start_server(struct ctn_daemon *d, const struct ctn_options *o, struct ctn_err *err)
{
	char path[CTN_SOCKET_PATH_MAX];
	struct ctn_server_config cfg = {.engine = d->engine,
					.listen = o->listen ? o->listen : DEFAULT_LISTEN,
					.max_connections = d->connections};
	int rc = 0;

	cfg.socket_path = o->socket ? o->socket : ctn_default_socket_path(path);
	snprintf(d->socket_path, sizeof(d->socket_path), "%s", cfg.socket_path);
	if (o->max_body) {
		rc = ctn_parse_size(o->max_body, &cfg.max_body, err);
		if (rc)
			return ctn_err_prefix(err, "max-body");
	}
	rc = ctn_server_start(&cfg, &d->server, err);
	if (!rc)
		ctn_info("control socket %s", d->socket_path);
	return rc;
}

/* ---- all of it ------------------------------------------------------------------------- */

int ctn_daemon_start(const struct ctn_options *o, struct ctn_daemon *d, struct ctn_err *err)
{
	int (*const steps[])(struct ctn_daemon *, const struct ctn_options *, struct ctn_err *) = {
		start_devices, start_pool, start_stage, start_engine, start_server};
	int rc = 0;

	*d = (struct ctn_daemon){0};
	for (size_t i = 0; i < CTN_ARRAY_LEN(steps) && !rc; i++)
		rc = steps[i](d, o, err);
	if (rc)
		ctn_daemon_stop(d);
	return rc;
}

void ctn_daemon_stop(struct ctn_daemon *d)
{
	if (d->server)
		ctn_server_refuse(d->server);
	if (d->engine)
		ctn_engine_stop(d->engine);
	if (d->server)
		ctn_server_stop(d->server);
	if (d->engine)
		ctn_engine_free(d->engine);
	if (d->stage)
		ctn_stage_close(d->stage);
	if (d->pool)
		ctn_pool_close(d->pool);
	if (d->device_count)
		ctn_devices_close(d->devices, d->device_count);
	*d = (struct ctn_daemon){0};
}
