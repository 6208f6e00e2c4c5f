/* SPDX-License-Identifier: MIT */
/*
 * sched: which model to load, what to drop, which request to admit, which step to start. Pure
 * logic: events in, actions out; no I/O, no clock of its own (the time is an argument), no
 * allocation after the models are added. The daemon and the simulator run this same code.
 *
 * It keeps a mirror of what the devices hold: bytes a model charges on each of its ranks'
 * devices (weights, workspace, KV), rounded as the allocator rounds them. An action is taken
 * to succeed; what fails comes back as an event.
 *
 * Not thread-safe: one thread (the engine's, the simulator's) owns a scheduler.
 */
#ifndef CTN_SCHED_H
#define CTN_SCHED_H

#include "base/base.h"

struct ctn_sched;

#define CTN_SCHED_MAX_DEVICES 64

struct ctn_sched_config {
	const char *policy; /* NULL: "lru"; "clairvoyant" needs next_arrival */
	uint32_t device_count;
	const uint64_t *device_bytes; /* capacity of each, a multiple of its granule; copied */
	const uint64_t *granules;     /* copied */
	uint32_t max_models;
	uint32_t max_requests; /* request slots 0 .. max_requests - 1 */
	/* What the caller can carry out; a policy does without the rest. */
	bool partial_drops; /* CTN_ACT_DROP_TAIL */
	bool pauses;  /* drops of models with admitted requests, CTN_ACT_PREEMPT of paused ones */
	bool cancels; /* CTN_ACT_CANCEL */
	bool host_known;     /* it sends CTN_EV_HOST */
	bool stages;         /* CTN_ACT_STAGE; it tells host_bytes, and of models theirs */
	uint64_t host_bytes; /* that the pool has for parts */
	/* A device computes one step at a time, and sched says whose is next: the caller sends
	 * CTN_EV_STEP_ADVANCED. Else a step starts as soon as its model has one to run. */
	bool exclusive_steps;
	/* Foresight, for the policy "clairvoyant": nanoseconds of the model's next arrival after
	 * now, UINT64_MAX if there is none. */
	uint64_t (*next_arrival)(void *arg, uint32_t model);
	void *next_arrival_arg;
};

/* What one rank of a model charges. */
struct ctn_sched_rank {
	uint32_t device;
	uint32_t stage;           /* of the pipeline: a step begins in stage 0 */
	uint64_t weight_bytes;    /* all its shards, as charged */
	uint64_t workspace_bytes; /* as charged */
	uint64_t kv_block_bytes;  /* of one block; a budget of n blocks charges n times that,
				   * rounded up to the granule */
	/* Of each of its layers, in the order of execution, as charged: together weight_bytes.
	 * Copied. None: it is dropped whole or not at all. */
	const uint64_t *layer_bytes;
	uint32_t layer_count;
};

#define CTN_SCHED_MAX_STEPS    8
#define CTN_SCHED_MAX_PRIORITY 8
/*
 * A request without a deadline is served as if it had one so many seconds after its arrival, one
 * with a later deadline too: the earliest is first. So a stream of urgent requests delays no other
 * for longer than this.
 */
#define CTN_SCHED_PATIENCE_S 10

struct ctn_sched_model {
	uint32_t rank_count;
	const struct ctn_sched_rank *ranks; /* copied */
	uint32_t max_sequences;             /* admitted at a time */
	/* Steps at a time, each over other requests, that end in order: 0 (means 1) up to
	 * CTN_SCHED_MAX_STEPS. A pipeline of n stages can have n. */
	uint32_t max_steps;
	/* A model one higher is served as if its requests had waited CTN_SCHED_PATIENCE_S longer,
	 * has twice the share of the computation when there is not enough, and its absence counts
	 * twice. */
	int32_t priority;    /* -CTN_SCHED_MAX_PRIORITY to CTN_SCHED_MAX_PRIORITY */
	uint64_t host_bytes; /* of all its parts in the pool */
};

/* -ENOENT for an unknown policy, -EINVAL, -ENOMEM. */
int ctn_sched_new(const struct ctn_sched_config *cfg, struct ctn_sched **sched,
		  struct ctn_err *err);
void ctn_sched_free(struct ctn_sched *sched);
/* Models are numbered in the order of these calls. -EFBIG with the device and the bytes when it
 * would not fit on its empty devices with one KV block. */
int ctn_sched_add_model(struct ctn_sched *sched, const struct ctn_sched_model *model,
			struct ctn_err *err);

/*
 * Of the bytes of a layer (counted from the rank's first), `bytes` are those of a frame: whoever
 * has a layer with this frame has them, and the device charges them once. Frames are numbered from
 * 0, and lie on one device. At any time, from now on; decides nothing. -ENOMEM: they are charged to
 * the model as before.
 */
int ctn_sched_share(struct ctn_sched *sched, uint32_t model, uint32_t rank, uint32_t layer,
		    uint32_t frame, uint64_t bytes);

/* Names of the policies, NULL-terminated; the first is the default. */
const char *const *ctn_sched_policies(void);

enum ctn_sched_event_type {
	/* request, model, deadline_ns, kv_blocks: the most it can come to need, kv_first: those of
	 * its first steps, with which it is admitted (0: kv_blocks). */
	CTN_EV_ARRIVAL,
	CTN_EV_KV,             /* request, kv_blocks: admitted, its next step needs so many; told
				* before STEP_DONE */
	CTN_EV_REQUEST_DONE,   /* request: ended, for whatever reason */
	CTN_EV_LOAD_DONE,      /* model: all of it is resident */
	CTN_EV_LOAD_FAILED,    /* model: it charges nothing now; its requests have been ended */
	CTN_EV_LOAD_CANCELLED, /* model, kept_layers: no byte of its load moves any more; it charges
				* no workspace now, and weights as far as they are there */
	CTN_EV_STEP_DONE,      /* model, seconds: the oldest of its steps */
	CTN_EV_STEP_ADVANCED,  /* model: its newest step has left stage 0 and goes on */
	CTN_EV_HOST,           /* model, bytes: so many of its bytes are not in the pool */
	CTN_EV_STAGE_DONE,     /* model, bytes as for HOST: its STAGE has ended, done or not */
	CTN_EV_HOST_NEED,      /* model, bytes, host_evictable: the pool is short by bytes */
	CTN_EV_EVICT,          /* model: drop it if nobody uses it */
	CTN_EV_PIN,            /* model */
	CTN_EV_UNPIN,          /* model */
	CTN_EV_FRAME_LOST,     /* model, bytes: the pool lost frames of it */
	CTN_EV_DEVICE_LOST,    /* device: nothing can be placed on it any more */
	CTN_EV_TIMER
};

struct ctn_sched_event {
	enum ctn_sched_event_type type;
	uint32_t model;
	uint32_t request;
	uint32_t device;
	uint32_t kv_blocks, kv_first;
	uint64_t deadline_ns; /* ARRIVAL: when its answer must have ended; 0: it has none */
	bool no_step; /* ARRIVAL: it only wants the weights resident, and computes nothing */
	uint64_t bytes;
	double seconds;
	/* By rank: it has so many of its layers, from the first one on. NULL: none. */
	const uint32_t *kept_layers;
	const uint64_t *host_evictable; /* by model; valid during the call */
};

enum ctn_sched_action_type {
	/* request, why: it is not queued any more; seconds: for CTN_REFUSED_DEADLINE, after which
	 * it is worth coming again */
	CTN_ACT_REFUSE,
	/* model: its weights and workspace leave the devices, and its KV unless requests of it are
	 * admitted: those pause, and its KV budget stays. No step of it runs. */
	CTN_ACT_DROP,
	/* model, rank, layers: the same, but of its weights the rank keeps so many layers from the
	 * first one on; the workspace of all ranks leaves. It computes again after a LOAD, which
	 * brings what is missing. */
	CTN_ACT_DROP_TAIL,
	/* request: admitted, in no step. It is queued again, in its old place, and its KV blocks
	 * are free; once it is admitted again, what it had is computed again. Only where requests
	 * grow (CTN_EV_KV), or were paused and do not fit beside what was pinned since. */
	CTN_ACT_PREEMPT,
	CTN_ACT_LOAD, /* model, ticket: reserve all that it lacks and load it; seconds: expected */
	CTN_ACT_CANCEL, /* model: end its load, for which nobody waits, as soon as the copies that
			 * are under way allow; LOAD_DONE or LOAD_CANCELLED follows */
	CTN_ACT_KV_BUDGET, /* model, blocks: the blocks it may use from now on */
	CTN_ACT_ADMIT,     /* request joins its model's batch */
	CTN_ACT_STEP, /* model: start one step over its admitted requests that are in none; seconds:
		       * expected */
	CTN_ACT_DROP_HOST, /* model, bytes: free about so many of its bytes in the pool */
	/* model, bytes: bring about so many of its bytes into the pool, the first that are missing,
	 * ahead of any request; ask for room (HOST_NEED) if there is none. May be left undone.
	 * STAGE_DONE follows in any case; one at a time. seconds: expected. */
	CTN_ACT_STAGE
};

enum ctn_sched_refusal {
	CTN_REFUSED_TOO_LARGE, /* with its KV the model exceeds the empty devices */
	CTN_REFUSED_PINNED,    /* it does not fit beside the pinned models */
	CTN_REFUSED_DEVICE,    /* a device of its model is lost */
	CTN_REFUSED_DEADLINE   /* as predicted, it would end after its deadline */
};

/* To be executed in the order given: room is made before it is used. */
struct ctn_sched_action {
	enum ctn_sched_action_type type;
	enum ctn_sched_refusal why;
	uint32_t model;
	uint32_t request;
	uint32_t rank;
	uint32_t layers;
	uint32_t blocks;
	uint64_t ticket;
	uint64_t bytes;
	double seconds;
	const char *reason; /* of the policy, for people; static */
};

/*
 * Takes one event at time `now` and writes at most `max` actions (at least the number of
 * models' ranks + 8, so that any single decision finds room); returns how many.
 */
uint32_t ctn_sched_event(struct ctn_sched *sched, uint64_t now_ns,
			 const struct ctn_sched_event *event, struct ctn_sched_action *actions,
			 uint32_t max);
/* When it wants a CTN_EV_TIMER at the latest, UINT64_MAX: it waits for no time to pass. */
uint64_t ctn_sched_wake_ns(const struct ctn_sched *sched);
/* True when the last call stopped for want of room in `actions`: execute them, then call again
 * with CTN_EV_TIMER. */
bool ctn_sched_more(const struct ctn_sched *sched);

/* ---- the mirror, for status and tests --------------------------------------------------- */

/* ABSENT: it lacks some of its weights, and no load is under way. */
enum ctn_sched_state { CTN_SCHED_ABSENT, CTN_SCHED_LOADING, CTN_SCHED_RESIDENT };

struct ctn_sched_model_state {
	enum ctn_sched_state state;
	bool pinned;
	bool stepping;
	uint32_t queued;
	uint32_t admitted;
	uint32_t kv_budget;    /* blocks */
	uint64_t weight_bytes; /* on all its devices */
};

void ctn_sched_model_state(const struct ctn_sched *sched, uint32_t model,
			   struct ctn_sched_model_state *state);
/* Bytes charged on a device. */
uint64_t ctn_sched_charged(const struct ctn_sched *sched, uint32_t device);

/* ---- by name, for logs and those who read them again ------------------------------------- */

enum ctn_sched_kind { CTN_SCHED_U32, CTN_SCHED_I32, CTN_SCHED_U64, CTN_SCHED_BOOL, CTN_SCHED_REAL };

struct ctn_sched_field {
	const char *name;
	size_t offset;
	enum ctn_sched_kind kind;
};

/* Plain members of the structs above, up to one without a name: all but types, lists and texts. */
extern const struct ctn_sched_field ctn_sched_config_fields[], ctn_sched_rank_fields[],
	ctn_sched_model_fields[], ctn_sched_event_fields[], ctn_sched_action_fields[];
#define CTN_SCHED_EVENT_TYPES  (CTN_EV_TIMER + 1)
#define CTN_SCHED_ACTION_TYPES (CTN_ACT_STAGE + 1)
const char *ctn_sched_event_name(enum ctn_sched_event_type type);
const char *ctn_sched_action_name(enum ctn_sched_action_type type);
const char *ctn_sched_state_name(enum ctn_sched_state state);

#endif
