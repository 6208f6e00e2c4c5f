/* SPDX-License-Identifier: MIT */
/*
 * Benchmarks: what the daemon is made of (devices, pool, stage, pager) around two models that
 * take turns on the devices. Private to tools. One thread owns a rig.
 */
#ifndef CTN_TOOLS_BENCH_H
#define CTN_TOOLS_BENCH_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "pager/pager.h"
#include "pool/pool.h"
#include "stage/stage.h"

int ctn_bench_sched(int argc, char **argv);
int ctn_bench_swap(int argc, char **argv);
int ctn_bench_stage(int argc, char **argv);
int ctn_bench_ttft(int argc, char **argv);

/* ---- the rig: bench_rig.c --------------------------------------------------------------- */

/* One model at one tp x pp, as the pager knows it; rank r lies on device r. */
struct ctn_bench_side {
	const char *dir;
	struct ctn_plan *plan;
	uint32_t model;             /* the pager's number */
	uint64_t *bytes;            /* [rank]: what a load brings there */
	struct ctn_digest *digests; /* [rank]: of these bytes, by the files */
};

enum { CTN_BENCH_MODELS = 2, CTN_BENCH_SIDES_MAX = 4 };

struct ctn_bench_rig_config {
	const char *device; /* --device */
	const char *pool;   /* --pool; NULL: as much as both models take */
	const char *dirs[CTN_BENCH_MODELS];
	uint32_t tp, pp;
	bool single;                          /* the same models at (1, 1) as well */
	const struct ctn_stage_config *stage; /* without its pool; NULL: as the daemon's */
};

/*
 * Who looks on while a load is under way, with threads of its own. `begin` is called once the
 * load has memory on the devices, `end` as soon as it has ended or failed: then nothing of the
 * model may be used any more. `end` comes without `begin` when there was no load.
 */
struct ctn_bench_observer {
	/* `since`: no byte can have moved before. */
	void (*begin)(void *arg, const struct ctn_bench_side *side, uint64_t since);
	void (*end)(void *arg);
	void *arg;
};

struct ctn_bench_rig {
	struct ctn_device *devices[CTN_MAX_DEVICES];
	struct ctn_stream *streams[CTN_MAX_DEVICES];
	struct ctn_event *events[CTN_MAX_DEVICES]; /* of the bare copy */
	uint32_t device_count;
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	struct ctn_pager *pager;
	struct ctn_checkpoint *ckpts[CTN_BENCH_MODELS];
	/* By model; from CTN_BENCH_MODELS on the same models at (1, 1), if asked for and if tp x pp
	 * is more. */
	struct ctn_bench_side sides[CTN_BENCH_SIDES_MAX];
	uint32_t side_count;
	const struct ctn_bench_side *resident; /* NULL: none */
	uint64_t ticket;
	const struct ctn_bench_observer *observer; /* of the next load; NULL: none */
	/* Of the load under way. */
	bool ended;
	struct ctn_err failure;
};

/* Opens all of it and makes the models known; nothing is staged. */
int ctn_bench_rig_open(const struct ctn_bench_rig_config *cfg, struct ctn_bench_rig *rig,
		       struct ctn_err *err);
void ctn_bench_rig_close(struct ctn_bench_rig *rig);

struct ctn_bench_switch {
	uint64_t start;   /* the decision, as ctn_now_ns tells it */
	uint64_t ns;      /* from the decision to the event LOADED */
	uint64_t drop_ns; /* the drop's share */
	uint64_t d2h_bytes;
};

/* Drops what is resident, unless it is `to`, and loads what lacks of `to`, by the pager. Parts that
 * the pool lacks are staged. */
int ctn_bench_rig_switch(struct ctn_bench_rig *rig, const struct ctn_bench_side *to,
			 struct ctn_bench_switch *took, struct ctn_err *err);

/* -ENOENT when the pool lacks a CLEAN frame of one of the side's parts. */
int ctn_bench_rig_check_clean(struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
			      struct ctn_err *err);

/* The bare copy: as many bytes as `side` brings, from the pool over what is resident, one 1-D
 * copy a device, all at once; nanoseconds to the last event. Leaves no parameter intact. */
int ctn_bench_rig_bare(struct ctn_bench_rig *rig, const struct ctn_bench_side *side, uint64_t *ns,
		       struct ctn_err *err);

/* ---- options: bench_options.c ------------------------------------------------------------- */

/* What the caller sets stands when nothing else is given. */
struct ctn_bench_options {
	const char *synthetic; /* NULL: models have to be named */
	struct ctn_bench_rig_config rig;
	uint32_t rounds;
	bool json;
};

typedef int ctn_bench_run_fn(const struct ctn_bench_options *o, struct ctn_err *err);

/* Reads the options, finds or writes the models, and runs; the exit status. */
int ctn_bench_command(const char *name, int argc, char **argv, struct ctn_bench_options *o,
		      ctn_bench_run_fn *run);

/* ---- what the links allow: bench_links.c -------------------------------------------------- */

struct ctn_bench_phase {
	double from; /* seconds since the start */
	double rate[CTN_MAX_DEVICES];
};

/* By rank: all start at once, links that share an uplink get max-min fair shares of it. */
struct ctn_bench_links {
	uint32_t count;
	bool limited;     /* every rank has a link with a rate, or an uplink; else all below is 0 */
	double ceiling_s; /* bytes over links and uplinks: no order of copies is faster */
	double end_s[CTN_MAX_DEVICES]; /* with fair shares */
	/* Of the computation: */
	double own[CTN_MAX_DEVICES], left[CTN_MAX_DEVICES];
	int uplink[CTN_MAX_DEVICES];
	double uplink_rate[CTN_MAX_DEVICES];
	uint32_t phases;
	struct ctn_bench_phase phase[CTN_MAX_DEVICES + 1]; /* the last one begins at the end */
};

/* -ENOMEM. Free *links. */
int ctn_bench_links(const struct ctn_bench_rig *rig, const struct ctn_bench_side *side,
		    struct ctn_bench_links **links);
/* Seconds since the start before which a rank cannot have its first `bytes` bytes. */
double ctn_bench_links_due(const struct ctn_bench_links *links, uint32_t rank, uint64_t bytes);

/* ---- what can be seen of a load: bench_watch.c -------------------------------------------- */

struct ctn_bench_watched {
	uint64_t pieces;               /* looked at right before the link can have carried them */
	uint64_t missed;               /* the machine was too late to look */
	uint64_t early;                /* of pieces: were there */
	double end_s[CTN_MAX_DEVICES]; /* [rank]: when its last layer's event was set */
};

/* A switch to `to` under the eyes of a thread that looks at the devices, and one a rank that
 * waits for its layers. Not to be timed. -EPROTO when a byte was there too early. */
int ctn_bench_watch(struct ctn_bench_rig *rig, const struct ctn_bench_side *to,
		    struct ctn_bench_watched *watched, struct ctn_err *err);

/* ---- whether the bytes arrived: bench_verify.c ------------------------------------------- */

#define CTN_BENCH_POISON 0xdb

/* Overwrites the device bytes of what is resident, through the streams: so before each drop, and
 * memory that is free holds no parameter of any model. */
int ctn_bench_poison(struct ctn_bench_rig *rig, struct ctn_err *err);
/* The same of all but the first `keep[rank]` layers of each rank. */
int ctn_bench_poison_tail(struct ctn_bench_rig *rig, const uint32_t *keep, struct ctn_err *err);

/* The byte of the files that a frame has at `offset`. */
int ctn_bench_file_byte(const struct ctn_bench_side *side, uint32_t part, uint64_t offset,
			uint8_t *byte);

/* The digests of a side by its files alone: runs and rectangles of the plan, read with pread. */
int ctn_bench_digest_files(const struct ctn_bench_side *side, struct ctn_err *err);

/* Reads what is resident back from the devices. -EBADMSG when a rank holds other bytes. */
int ctn_bench_verify(struct ctn_bench_rig *rig, struct ctn_err *err);

/* ---- what others measured: bench_published.c ---------------------------------------------- */

struct ctn_bench_published {
	uint32_t tp, pp;
	double offload_s, load_s; /* means; there an evicted model is written back */
};

/* NULL: nothing was published for this placement. */
const struct ctn_bench_published *ctn_bench_published(uint32_t tp, uint32_t pp);

/* ---- figures: bench_stats.c ------------------------------------------------------------- */

/* Sort `v` in place. n > 0. */
double ctn_bench_median(double *v, uint32_t n);
/* The least value that 95 % of all do not exceed. */
double ctn_bench_p95(double *v, uint32_t n);

#endif
