/* SPDX-License-Identifier: MIT */
/*
 * engine: owns models, requests, sequences, batches and KV. One thread feeds events to sched
 * and executes its actions through the pager and the decoders; others talk to it through the
 * functions here.
 */
#ifndef CTN_ENGINE_H
#define CTN_ENGINE_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "model/model.h"
#include "pager/pager.h"
#include "pool/pool.h"
#include "stage/stage.h"

struct ctn_engine;

struct ctn_engine_config {
	struct ctn_device **devices; /* outlive the engine; the array is copied */
	uint32_t device_count;
	struct ctn_pool *pool;    /* likewise */
	struct ctn_stage *stage;  /* likewise */
	const char *policy;       /* NULL: "default" */
	const char *decision_log; /* a file for all that sched is told and decides; NULL: none */
	uint32_t max_queue;       /* unfinished requests a model may have; 0: 256 */
	uint32_t max_sequences;   /* of one model in one step; 0: 16 */
	uint32_t step_tokens;     /* tokens of one step, so the prompt chunk; 0: 128 */
	uint32_t max_requests;    /* that exist at once, each with a descriptor; 0: 65536 */
	enum ctn_pager_verify adopt_verify; /* of what the pool has from before */
	bool stage_ahead; /* sched may have parts staged before a request asks for their model */
	bool poison;      /* overwrite dropped bytes, digest device frames (test builds) */
};

/* One --model value, or one folder below --models-dir. */
struct ctn_model_spec {
	const char *name;
	const char *dir;
	uint32_t tp, pp;         /* 0: 1 */
	const uint32_t *devices; /* tp * pp device indices, by rank; NULL: 0, 1, ... */
	uint32_t device_count;   /* 0 with NULL */
	int32_t priority;        /* as that of sched.h; the higher is served first */
};

/* -ENOENT for an unknown policy, -ENOMEM. */
int ctn_engine_new(const struct ctn_engine_config *cfg, struct ctn_engine **engine,
		   struct ctn_err *err);

/*
 * Registers a model; before ctn_engine_start only. A checkpoint that cannot be served is kept
 * in the list with the reason and does not stop the others: then the return value is the
 * negative errno and `err` the reason. -EEXIST for a name that is taken (not listed twice).
 */
int ctn_engine_add_model(struct ctn_engine *engine, const struct ctn_model_spec *spec,
			 struct ctn_err *err);

/* Starts the engine thread. */
int ctn_engine_start(struct ctn_engine *engine, struct ctn_err *err);

/* Refuses what comes from now on (-ESHUTDOWN), ends every request (cancelled), waits for
 * moves in flight, and joins the threads. Idempotent. */
void ctn_engine_stop(struct ctn_engine *engine);
/* Stops if need be. All request handles must have been released. */
void ctn_engine_free(struct ctn_engine *engine);

/* ---- models ---------------------------------------------------------------------------- */

/* Models are numbered 0 .. count - 1 in the order of registration; fixed after start. */
uint32_t ctn_engine_model_count(const struct ctn_engine *engine);

struct ctn_model_info {
	const char *name;
	const char *dir;
	const char *reason;          /* why it is not served; NULL when it is */
	const char *family;          /* NULL when unknown */
	const struct ctn_arch *arch; /* NULL when not served */
	uint32_t tp, pp;
	int64_t created; /* seconds since the epoch, of registration */
};

void ctn_engine_model(const struct ctn_engine *engine, uint32_t model, struct ctn_model_info *info);
/* The number of a name, or -ENOENT. */
int ctn_engine_find_model(const struct ctn_engine *engine, const char *name);

/* ---- requests -------------------------------------------------------------------------- */

struct ctn_request;

struct ctn_request_params {
	uint32_t model;
	const uint32_t *prompt; /* copied */
	uint32_t prompt_len;    /* >= 1 */
	uint32_t max_tokens;    /* 0: none are generated (with prompt_logprobs: scoring) */
	struct ctn_sampling sampling;
	bool ignore_eos;
	bool prompt_logprobs; /* also score the prompt's tokens */
	double timeout_s;     /* 0: none */
};

enum ctn_finish {
	CTN_FINISH_STOP,   /* end of sequence */
	CTN_FINISH_LENGTH, /* max_tokens or the model's longest sequence */
	CTN_FINISH_CANCELLED,
	CTN_FINISH_TIMEOUT,
	CTN_FINISH_ERROR,
	CTN_FINISHES
};

/* What a request's time went into. */
enum ctn_phase {
	CTN_PHASE_QUEUE,   /* waits for its model's turn, for room, or for others of its batch */
	CTN_PHASE_LOAD,    /* its model has the devices, and not all layers */
	CTN_PHASE_COMPUTE, /* in a step */
	CTN_PHASE_OTHER,   /* nothing of the above: unexplained */
	CTN_PHASES
};
const char *ctn_phase_name(enum ctn_phase phase);

struct ctn_request_result {
	enum ctn_finish finish;
	struct ctn_err err;     /* CTN_FINISH_ERROR: why; -E2BIG: prompt and max_tokens need more KV
				 * than the devices have; -ENOSPC: no room beside the pinned models;
				 * -ENODEV: a device is out of service; -EAGAIN: as measured, it would
				 * end after its timeout; else the load or a step failed */
	uint32_t retry_after_s; /* with this -EAGAIN, else 0: then it may come again */
	uint32_t prompt_tokens;
	uint32_t completion_tokens;
	uint64_t bytes_staged; /* moved for its model while it waited */
	uint64_t bytes_loaded;
	uint64_t phase_ns[CTN_PHASES]; /* together total_ns */
	uint64_t first_token_ns;       /* submitted -> first token; 0: none came */
	uint64_t total_ns;
};

/*
 * Any thread. On success the caller holds *req until ctn_request_release.
 *   -ENOENT     no such model              -ENODEV    the model is not served (err: why)
 *   -EINVAL     empty prompt, an id outside the vocabulary, a prompt that is too long
 *   -EAGAIN     the model's queue, or the server, is full; *retry_after_s (may be NULL) says when
 * to try again -ESHUTDOWN  the engine stops           -ENOMEM
 */
int ctn_engine_submit(struct ctn_engine *engine, const struct ctn_request_params *params,
		      struct ctn_request **req, uint32_t *retry_after_s, struct ctn_err *err);

/* An eventfd that becomes readable when tokens or the end have come. The reader reads it
 * before it looks, then takes all there is. Belongs to the request. */
int ctn_request_fd(const struct ctn_request *req);
/* The next generated token; false when there is none now. The token that ended the sequence
 * is not delivered. One thread at a time. Never blocks, and never makes the engine wait. */
bool ctn_request_next(struct ctn_request *req, struct ctn_sample *token);
/* True once the request has ended and all tokens were taken; then fills *result. */
bool ctn_request_finished(struct ctn_request *req, struct ctn_request_result *result);
/* With prompt_logprobs, and once the first token or the end has come: the score of prompt
 * token i >= 1 given those before it. NULL when it is not there. */
const struct ctn_sample *ctn_request_prompt_score(const struct ctn_request *req, uint32_t i);
/* Asks for an early end; finished() follows soon. Any thread, any number of times. */
void ctn_request_cancel(struct ctn_request *req);
/* Gives the handle back; cancels if it has not ended. */
void ctn_request_release(struct ctn_request *req);

/* ---- control --------------------------------------------------------------------------- */

enum ctn_control { CTN_CONTROL_LOAD, CTN_CONTROL_EVICT, CTN_CONTROL_PIN, CTN_CONTROL_UNPIN };

/*
 * Blocks until it is done. LOAD: resident on its devices. EVICT: dropped from the devices and
 * from the host pool, after a load under way has ended; -EBUSY while requests run or it is pinned.
 * PIN: never chosen as a victim until UNPIN.
 * -ENOENT, -ENODEV, -ENOSPC (would not fit), -ESHUTDOWN. Any thread but the engine's.
 */
int ctn_engine_control(struct ctn_engine *engine, enum ctn_control what, uint32_t model,
		       struct ctn_err *err);

/* ---- what there is to see -------------------------------------------------------------- */

/* Upper bounds in seconds, the last is infinity: cumulative counts as Prometheus wants them. */
#define CTN_HISTOGRAM_BUCKETS 16
extern const double ctn_histogram_bounds[CTN_HISTOGRAM_BUCKETS - 1];

struct ctn_histogram {
	uint64_t buckets[CTN_HISTOGRAM_BUCKETS]; /* not cumulative */
	uint64_t count;
	double sum_s;
};

/* Outcomes of requests as metrics name them: finishes, then refusals. */
enum ctn_outcome {
	CTN_OUTCOME_OK,
	CTN_OUTCOME_CANCELLED,
	CTN_OUTCOME_TIMEOUT,
	CTN_OUTCOME_ERROR,
	CTN_OUTCOME_REFUSED,
	CTN_OUTCOMES
};
const char *ctn_outcome_name(enum ctn_outcome outcome);

enum ctn_move {
	CTN_MOVE_STAGE,
	CTN_MOVE_LOAD,
	CTN_MOVE_DROP_DEVICE,
	CTN_MOVE_DROP_HOST,
	CTN_MOVES
};
enum ctn_move_outcome { CTN_MOVE_OK, CTN_MOVE_FAILED, CTN_MOVE_CANCELLED, CTN_MOVE_OUTCOMES };
const char *ctn_move_name(enum ctn_move move);
const char *ctn_move_outcome_name(enum ctn_move_outcome outcome);

/* What became of a load that began before a request asked for it. */
enum ctn_ahead {
	CTN_AHEAD_HIT,       /* a request came while it was there, or on its way */
	CTN_AHEAD_CANCELLED, /* another model needed the link */
	CTN_AHEAD_DROPPED,   /* it left, all of it or its last layers, before a request came */
	CTN_AHEAD_OUTCOMES
};
const char *ctn_ahead_name(enum ctn_ahead outcome);

/* What sched predicts. */
enum ctn_predicted {
	CTN_PREDICTED_LOAD,  /* seconds of a load of which the pool has all */
	CTN_PREDICTED_STAGE, /* of one that reads the disk as well */
	CTN_PREDICTED_STEP,  /* of a step that waits for no layer */
	CTN_PREDICTED
};
const char *ctn_predicted_name(enum ctn_predicted what);

struct ctn_prediction {
	double predicted_s, actual_s; /* sums */
	struct ctn_histogram error;   /* of each: how far off it was, either way */
};

struct ctn_move_counts {
	uint64_t outcomes[CTN_MOVE_OUTCOMES];
	uint64_t bytes;
	uint64_t nanoseconds;
};

struct ctn_model_snapshot {
	struct ctn_model_info info;
	const char *state; /* "unservable", "idle", "loading", "resident", "partial" */
	bool pinned;
	uint32_t queued;  /* admitted nowhere yet */
	uint32_t running; /* sequences in the batch */
	uint64_t checkpoint_bytes;
	uint64_t host_bytes; /* of its parts that are CLEAN in the pool */
	uint64_t host_total;
	uint64_t device_bytes; /* of its shards that are RESIDENT, all ranks */
	uint64_t device_total;
	uint64_t kv_bytes;
	uint64_t bytes_staged; /* since start */
	uint64_t bytes_loaded;
	uint64_t switches; /* completed loads */
	uint64_t outcomes[CTN_OUTCOMES];
	struct ctn_histogram ttft;
	struct ctn_histogram switch_time;
};

/* The ledger of one device, in bytes; total = sum of the others. */
struct ctn_device_snapshot {
	struct ctn_device_props props;
	struct ctn_device_stats stats;
	uint64_t total, free, loading, resident, draining, kv, workspace, comm;
	uint64_t frames_loading, frames_resident, frames_draining;
};

struct ctn_snapshot {
	struct ctn_model_snapshot *models;
	uint32_t model_count;
	struct ctn_device_snapshot *devices;
	uint32_t device_count;
	struct ctn_pool_stats pool;
	struct ctn_pager_adoption adoption;
	uint64_t host_staging_frames, host_clean_frames, host_draining_frames;
	uint64_t host_draining_bytes;
	struct ctn_stage_stats stage;
	struct ctn_move_counts moves[CTN_MOVES];
	struct ctn_histogram phases[CTN_PHASES]; /* of the requests that have ended */
	uint64_t pauses;                         /* drops of models with requests that had begun */
	uint64_t preemptions;                    /* requests that gave up their KV */
	uint64_t recomputed_tokens;              /* whose KV was given up, by these too */
	uint64_t ahead[CTN_AHEAD_OUTCOMES];      /* loads */
	uint64_t staged_ahead_bytes;
	struct ctn_prediction predictions[CTN_PREDICTED];
	uint64_t decision_lines; /* that the log of decisions was given */
	bool decisions_failed;   /* that could not be written */
	uint64_t ledger_errors;  /* counts that did not agree, ever: 0 */
	double uptime_s;
};

/* A consistent picture, made by the engine thread. Free with ctn_snapshot_free. */
int ctn_engine_snapshot(struct ctn_engine *engine, struct ctn_snapshot *snap);
void ctn_snapshot_free(struct ctn_snapshot *snap);

#endif
