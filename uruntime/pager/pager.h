/* SPDX-License-Identifier: MIT */
/*
 * pager: what lies where. It moves parts disk -> host frame (stage) and shards host frame ->
 * device frame (load), forgets them (drop), and keeps the ledger of every byte. It never
 * chooses a victim: that is sched's, and reaches it as a call.
 *
 * States. Each part of each model has a host state, each device frame a device state. A device
 * frame is the memory of one piece of a shard, or of pieces with equal content on the same device
 * (of fine-tunes of one base): it is charged once, and held by every shard that is there.
 *
 *   host     ABSENT   -> STAGING   ctn_pager_load, or ctn_pager_stage_ahead, wants it, and the pool
 *                                  has no such frame
 *            ABSENT   -> CLEAN     ctn_pager_load found a CLEAN frame of its key, or of its
 *                                  content by the manifest or by an earlier comparison, and
 *                                  leased it
 *            ABSENT   -> AWAITED   the frame of this key, or content, is being staged
 *            AWAITED  -> ABSENT    that ended, one way or the other: looked up again
 *            STAGING  -> CLEAN     the bytes are there: sealed, leased; or a CLEAN frame of
 *                                  equal digest was found to hold the same: that one is leased,
 *                                  and the new one forgotten
 *            STAGING  -> DRAINING  the load failed or was cancelled with reads in flight; what is
 *                                  staged ahead was told to stop
 *            STAGING  -> ABSENT    the reads failed, or brought other bytes than the manifest
 *                                  says
 *            DRAINING -> ABSENT    the last read has completed
 *            CLEAN    -> ABSENT    every shard of the load that needs it has arrived, or no load
 *                                  needs it (or its lease was shed for an older load): the
 *                                  lease is released.
 *                                  The frame stays in the pool, for anyone, until it is evicted
 *   device   ABSENT   -> LOADING   ctn_pager_load has reserved its memory
 *            LOADING  -> RESIDENT  its copies have completed
 *            LOADING  -> DRAINING  every load that waits for it has failed or was cancelled, and
 *                                  copies are under way or a step may be reading it
 *            LOADING  -> ABSENT    likewise, before its shard was submitted
 *            DRAINING -> ABSENT    all copies of these loads have completed and no step uses
 *                                  their models: memory given back
 *            DRAINING -> LOADING   another load wants it, and its copies are under way or failed
 *            DRAINING -> RESIDENT  another load wants it, and its bytes are there
 *            RESIDENT -> ABSENT    its last holder was dropped, or the rest of its load failed
 *
 * The host state above is what a model holds (ABSENT: no lease). What the pool holds is a frame
 * of its own that may vanish whenever nobody leases it; a loss is met as an ordinary ABSENT.
 *
 * Threads. One thread owns a pager and makes all calls but ctn_pager_wait_layer, which any
 * thread may make. Completions come in from I/O and link threads through a queue; the owner
 * takes them in ctn_pager_dispatch when ctn_pager_fd is readable.
 */
#ifndef CTN_PAGER_H
#define CTN_PAGER_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "pool/pool.h"
#include "stage/stage.h"

struct ctn_pager;

enum ctn_pager_event_type {
	CTN_PAGER_LOADED,    /* model: all shards are RESIDENT */
	CTN_PAGER_FAILED,    /* model, err: nothing of it is on the devices any more */
	CTN_PAGER_HOST_NEED, /* model, bytes: no room in the pool; make some with
			      * ctn_pager_drop_host, from inside the callback or later */
	CTN_PAGER_STAGED,    /* model, bytes_staged, err: ctn_pager_stage_ahead has ended; err: what
			      * the first part that failed says, NULL: none did */
	CTN_PAGER_FRAME_LOST, /* model, bytes: the pool gave up a frame that its part had */
	CTN_PAGER_SHARED      /* model, rank, layer, frame, bytes: so many of the layer's bytes are
			       * those of a frame that pieces of this number share, from now on:
			       * the device has them once. Also from ctn_pager_find_shared */
};

struct ctn_pager_event {
	enum ctn_pager_event_type type;
	uint32_t model;
	const struct ctn_err *err;
	uint64_t bytes;
	uint32_t rank, layer, frame;
	uint64_t bytes_staged; /* LOADED: moved by this load; STAGED: ahead of any */
	uint64_t bytes_loaded;
	uint64_t nanoseconds; /* LOADED: from ctn_pager_load */
};

/* Called from ctn_pager_dispatch and ctn_pager_load, in the owner's thread. */
typedef void ctn_pager_event_fn(void *arg, const struct ctn_pager_event *event);

struct ctn_pager_config {
	struct ctn_device **devices; /* copied; they outlive the pager, as do pool and stage */
	uint32_t device_count;
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	uint32_t max_models;
	bool poison; /* overwrite device memory on drop, and compare every loaded shard with its
		      * frames (test builds) */
	ctn_pager_event_fn *event;
	void *event_arg;
};

int ctn_pager_new(const struct ctn_pager_config *cfg, struct ctn_pager **pager,
		  struct ctn_err *err);
/* Nothing may be loading or in use; drops what is resident. */
void ctn_pager_free(struct ctn_pager *pager);

/*
 * Makes a model known: addresses for its shards on each rank's device, no memory. `plan`
 * outlives the pager. devices[r] is the index of rank r's device. Returns the model's number
 * (0, 1, ...); -ENOSPC when the pool is smaller than its host window.
 */
int ctn_pager_add_model(struct ctn_pager *pager, const struct ctn_plan *plan,
			const uint32_t *devices, struct ctn_err *err);

/* Device addresses of a rank's pieces, [shard][piece]. The table is fixed for the life of the
 * pager; an address in it changes when the piece is found to equal another model's, and is to be
 * read after ctn_pager_wait_layer. */
void *const *const *ctn_pager_pieces(const struct ctn_pager *pager, uint32_t model, uint32_t rank);
/* Bytes that a rank's shards charge on its device when all are RESIDENT and none is shared. */
uint64_t ctn_pager_rank_bytes(const struct ctn_pager *pager, uint32_t model, uint32_t rank);
/* The same of one shard; `layer` counts from the rank's first. */
uint64_t ctn_pager_layer_bytes(const struct ctn_pager *pager, uint32_t model, uint32_t rank,
			       uint32_t layer);
/* Looks for pieces of equal content among those of which manifests say what they hold. */
void ctn_pager_find_shared(struct ctn_pager *pager);

/* ---- what the pool had before us ---------------------------------------------------------- */

/* When the digests of adopted frames are made anew and compared. */
enum ctn_pager_verify {
	CTN_PAGER_VERIFY_OFF,        /* never */
	CTN_PAGER_VERIFY_BACKGROUND, /* one after the other, from adoption on */
	CTN_PAGER_VERIFY_BEFORE      /* likewise, and each at the latest before it is first used */
};

/*
 * A pool may outlive the process that filled it. After all models were added: looks for the frames
 * of their parts, which need not be staged. Those that do not fit their
 * part, and without a digest if digests are to be compared, are evicted. A frame whose bytes turn
 * out to be others than it was sealed with is evicted, with an error in the log; what was loaded
 * from it fails (FAILED, also for a model that was LOADED), and the part is staged again.
 */
void ctn_pager_adopt(struct ctn_pager *pager, enum ctn_pager_verify verify);
/* Makes no more digests. */
void ctn_pager_stop_adoption(struct ctn_pager *pager);

struct ctn_pager_adoption {
	uint64_t frames, bytes;           /* found and kept by ctn_pager_adopt */
	uint64_t unfit;                   /* frames that were found and evicted by it */
	uint64_t waiting;                 /* frames whose digests are to be made */
	uint64_t verified, spoiled, lost; /* frames */
};
void ctn_pager_adoption(const struct ctn_pager *pager, struct ctn_pager_adoption *adoption);

/* ---- moves ------------------------------------------------------------------------------ */

/*
 * Reserves memory for all that the model lacks on all its ranks' devices, or none (-ENOSPC),
 * and starts to move it in execution order. Then LOADED or FAILED comes, once. Loads with a
 * smaller ticket go first where both want room. -EALREADY when it is all resident, -EBUSY
 * while it loads or drains.
 */
int ctn_pager_load(struct ctn_pager *pager, uint32_t model, uint64_t ticket, struct ctn_err *err);
/* Ends a load early: FAILED with -ECANCELED comes when nothing is in flight any more. What has
 * arrived by then stays, of each rank from its first layer on; all else is dropped. */
void ctn_pager_cancel(struct ctn_pager *pager, uint32_t model);
/*
 * Stages so many bytes of the model's parts that the pool lacks, the first ones first, for no load;
 * asks for room (HOST_NEED) as a load does. One at a time: -EBUSY. Then STAGED comes, once, with
 * dispatch. It does as much as it can: no more from where a load wants the disk or has no room in
 * the pool, a part cannot be read, or there is no room. A load of the model uses what is on its
 * way.
 */
int ctn_pager_stage_ahead(struct ctn_pager *pager, uint32_t model, uint64_t bytes);
/* Nothing more of the model is staged ahead, and what is on its way is given up. True if STAGED is
 * still to come. */
bool ctn_pager_stop_ahead(struct ctn_pager *pager, uint32_t model);
/* Layers that a rank has, from its first one on. */
uint32_t ctn_pager_kept_layers(const struct ctn_pager *pager, uint32_t model, uint32_t rank);
/* Frees the device frames of a model that no other model holds. -EBUSY while it loads, drains or
 * is in use. */
int ctn_pager_drop(struct ctn_pager *pager, uint32_t model);
/* The same for a rank's last shards: it keeps `layers` from its first one on. A load brings back
 * what is missing, and a step may start on what is left meanwhile. */
int ctn_pager_drop_tail(struct ctn_pager *pager, uint32_t model, uint32_t rank, uint32_t layers);
/* Evicts CLEAN, unleased frames of the model's parts from the pool, last ones first, until
 * `bytes` are free or there are none; returns the bytes freed. */
uint64_t ctn_pager_drop_host(struct ctn_pager *pager, uint32_t model, uint64_t bytes);
/* What ctn_pager_drop_host could free, for every model (room for max_models). */
void ctn_pager_host_evictable(struct ctn_pager *pager, uint64_t *bytes);
/* Bytes, as the pool charges them, of the model's parts that it has not CLEAN. Costs a look-up for
 * each part. */
uint64_t ctn_pager_host_missing(const struct ctn_pager *pager, uint32_t model);
/* The same of all its parts. */
uint64_t ctn_pager_host_bytes(const struct ctn_pager *pager, uint32_t model);
/* Another number when frames have come into the pool or left it: what the pool lacks of any model
 * may be another amount. */
uint64_t ctn_pager_host_changes(const struct ctn_pager *pager);

/* While in use (counted) a model is not dropped, also not by a failure of its load: FAILED
 * comes after the last unuse. */
void ctn_pager_use(struct ctn_pager *pager, uint32_t model);
void ctn_pager_unuse(struct ctn_pager *pager, uint32_t model);

/*
 * Returns when work that is enqueued on `stream` from now on may read the layer's weights on
 * this rank: waits until the copies of this load were submitted, then makes the stream wait
 * for their event. -EIO when the load has failed. Any thread; the model is in use.
 */
int ctn_pager_wait_layer(struct ctn_pager *pager, uint32_t model, uint32_t rank, uint32_t layer,
			 struct ctn_stream *stream);

/* Readable when there are completions; ctn_pager_dispatch takes them all. */
int ctn_pager_fd(const struct ctn_pager *pager);
void ctn_pager_dispatch(struct ctn_pager *pager);
/* True from the moment a load has failed or was cancelled until its FAILED: nothing of the model
 * may be used any more. */
bool ctn_pager_failing(const struct ctn_pager *pager, uint32_t model);
/* Loads and stages ahead that have not ended, and digests that are being made: 0 when nothing is
 * under way. */
uint32_t ctn_pager_active(const struct ctn_pager *pager);

/* ---- other device memory ---------------------------------------------------------------- */

enum ctn_claim_kind { CTN_CLAIM_KV, CTN_CLAIM_WORKSPACE, CTN_CLAIM_COMM, CTN_CLAIM_KINDS };

/* A stretch of device addresses that grows and shrinks at its end. */
struct ctn_claim;

int ctn_claim_new(struct ctn_pager *pager, uint32_t device, enum ctn_claim_kind kind,
		  uint64_t max_bytes, struct ctn_claim **claim);
void ctn_claim_free(struct ctn_claim *claim);
void *ctn_claim_addr(const struct ctn_claim *claim);
/* Backs the first `bytes` bytes, rounded up to the granule. -ENOSPC leaves it as it was. */
int ctn_claim_resize(struct ctn_claim *claim, uint64_t bytes);

/* ---- the ledger ------------------------------------------------------------------------- */

struct ctn_device_ledger {
	uint64_t total, free;
	uint64_t loading, resident, draining; /* weights */
	uint64_t claims[CTN_CLAIM_KINDS];
	uint64_t frames_loading, frames_resident, frames_draining;
};
void ctn_pager_device_ledger(const struct ctn_pager *pager, uint32_t device,
			     struct ctn_device_ledger *ledger);

struct ctn_host_ledger {
	uint64_t frames_staging, frames_draining;
	uint64_t bytes_draining; /* as charged by the pool, where it counts as loading */
};
void ctn_pager_host_ledger(const struct ctn_pager *pager, struct ctn_host_ledger *ledger);

/*
 * Holds independent counts against each other: the running sums, a walk over the tables, and
 * the allocators' own. 0, or -EUCLEAN with the first pair that differs. Cheap: a walk over the
 * shards of all models.
 */
int ctn_pager_check(struct ctn_pager *pager, struct ctn_err *err);

enum ctn_pager_move {
	CTN_PAGER_STAGE,
	CTN_PAGER_LOAD,
	CTN_PAGER_DROP_DEVICE,
	CTN_PAGER_DROP_HOST,
	CTN_PAGER_MOVES
};

struct ctn_pager_move_stats {
	uint64_t ok, failed, cancelled; /* frames */
	uint64_t bytes;                 /* of those that went well */
	uint64_t nanoseconds;
};
void ctn_pager_move_stats(const struct ctn_pager *pager, enum ctn_pager_move move,
			  struct ctn_pager_move_stats *stats);

struct ctn_pager_model_stats {
	uint64_t host_bytes; /* tensor bytes of its parts that the pool has CLEAN */
	uint64_t host_total;
	uint64_t device_bytes; /* payload of its RESIDENT shards */
	uint64_t device_total;
	uint64_t bytes_staged; /* since the start */
	uint64_t bytes_loaded;
};
void ctn_pager_model_stats(struct ctn_pager *pager, uint32_t model,
			   struct ctn_pager_model_stats *stats);
/* Two of these alone, at no cost. */
void ctn_pager_moved(const struct ctn_pager *pager, uint32_t model, uint64_t *bytes_staged,
		     uint64_t *bytes_loaded);

#endif
