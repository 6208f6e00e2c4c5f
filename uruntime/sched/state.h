/* SPDX-License-Identifier: MIT */
/* Private to sched: the mirror that policies decide over, and what a policy is. */
#ifndef CTN_SCHED_STATE_H
#define CTN_SCHED_STATE_H

#include "sched/sched.h"

#define NO_REQUEST UINT32_MAX

/*
 * A request is FREE, QUEUED (in its model's queue, ordered by arrival), ADMITTED (counted in
 * its model) or REFUSED (until the engine reports its end). Queues are linked by slot numbers.
 */
enum request_state { REQUEST_FREE, REQUEST_QUEUED, REQUEST_ADMITTED, REQUEST_REFUSED };

struct sched_request {
	enum request_state state;
	uint32_t model;
	uint32_t kv_blocks, kv_most; /* that it needs now, or when admitted; ever */
	bool preempted;
	bool no_step;
	uint64_t arrival; /* a sequence number: the order of ARRIVAL events */
	uint64_t arrival_ns;
	uint64_t deadline_ns; /* 0: none */
	int64_t key_ns;       /* the least is served first: see order.c */
	uint32_t steps;       /* that took it */
	uint64_t step;        /* the last step that took it, a number of its model; 0: none */
	uint32_t prev, next;  /* in its model's list of the queued or of the admitted */
};

struct sched_list {
	uint32_t head, tail; /* request slots */
};

/* What the past of a model says of its next arrival: see learn.c. */
struct sched_gaps {
	uint64_t last_ns;
	uint32_t count;
	double mean_s, square_s; /* averages of the gaps and of their squares */
	double shape, scale_s;   /* of the Weibull distribution of that mean and CV */
};

/* What a rank has of its weights: its first layers (all of them or none without layers). */
struct sched_kept {
	uint32_t layers;
	uint64_t bytes;
};

/* Bytes that layers of several models have in common, and that their device has once. */
struct sched_frame {
	uint64_t bytes;
	uint32_t device;
	uint32_t holders; /* layers with it that are kept */
	uint64_t stamp;   /* of the last walk that met it */
};

/* One layer's use of a frame. */
struct sched_share {
	uint32_t rank, layer, frame;
	uint32_t next; /* of the same model; NO_SHARE */
};
#define NO_SHARE UINT32_MAX

struct sched_model {
	struct ctn_sched_rank *ranks;
	struct sched_kept *kept; /* by rank; while RESIDENT or LOADING: everything */
	uint64_t *layer_bytes;   /* of all ranks, summed up; ranks point into it */
	uint32_t shares;         /* the first one */
	uint32_t rank_count;
	uint32_t max_sequences;
	uint32_t max_steps;
	int32_t priority;
	double weight; /* two to the power of its priority */
	uint64_t host_bytes;
	uint64_t devices;     /* bit set of its ranks' devices */
	uint64_t first_stage; /* of those of stage 0 */

	enum ctn_sched_state state;
	bool pinned;
	bool lost;       /* one of its devices is gone */
	bool cancelling; /* its load */
	bool evicted;    /* as somebody asked: nothing is moved ahead of its next request */
	uint64_t ticket;
	uint64_t last_used_ns;
	uint64_t barrier;        /* lru: it admits no request that arrived after this one */
	bool drains;             /* it had a barrier after the last decision */
	uint64_t drains_from;    /* default: it drains what came before this arrival */
	bool yields;             /* default: it starts no step, to be paused when none runs */
	uint64_t since_ns;       /* its residency quantum began */
	uint64_t paused_ns;      /* while ABSENT with admitted requests */
	double served_s;         /* computation that it had, by its share: its virtual time */
	uint32_t holder, waiter; /* where it is in those lists; NO_PLACE */
	/* Scratch of room.c: what the loss is computed from; how much it keeps. */
	double chance, score;
	double hazard; /* chance of a request, as of hazard_ns */
	uint64_t hazard_ns;
	uint32_t level;
	bool stepped; /* scratch of steps.c */
	bool in_vain; /* of default.c: no room in this decision, whatever is dropped */

	struct sched_list queue, batch;
	uint32_t queued, admitted;
	uint32_t deadlines; /* of the queued and the admitted, those that have one */
	int64_t key_ns;     /* the least of its queue; INT64_MAX */
	uint32_t ready;     /* of the admitted, those that compute and are in no step */
	/* Steps are numbered from 1; those after steps_done run. */
	uint64_t steps_started, steps_done, steps_advanced;
	uint32_t in_step[CTN_SCHED_MAX_STEPS]; /* requests of step n at n % CTN_SCHED_MAX_STEPS */
	uint32_t kv_admitted;                  /* sum of kv_blocks of the admitted */
	uint32_t kv_budget;      /* blocks charged; while ABSENT those of the paused */
	uint64_t host_missing;   /* bytes of its parts that the pool lacks */
	uint64_t stage_after_ns; /* not staged ahead before: it would be in vain */
	uint64_t stage_bytes;    /* of the load that runs: missing in the pool when it began */

	struct sched_gaps gaps;
	/* On the device that has, or lacks, the most of it: all its weights; what is missing. */
	uint64_t whole_bytes, missing_bytes;
	uint64_t kept_bytes; /* on all its devices */
	uint64_t load_bytes; /* of the load that runs: the most on one device */
	uint64_t load_started_ns, load_due_ns;
	double step_s;     /* average of its steps; 0: none yet */
	double steps_each; /* average of the steps of a request; 0: none yet */
	uint64_t step_started_ns;
	bool step_alone; /* the step that runs began when the weights were there */
};

/* Models that wait for their weights, together, so that a walk over all is short. */
struct sched_waiter {
	int64_t key_ns;
	uint64_t since_ns; /* it waits */
	double served_s;
	uint64_t devices;
	uint32_t model;
};
#define NO_PLACE UINT32_MAX

struct ctn_sched {
	const struct sched_policy *policy;
	uint32_t device_count;
	uint64_t device_bytes[CTN_SCHED_MAX_DEVICES];
	uint64_t granule[CTN_SCHED_MAX_DEVICES];
	uint64_t charged[CTN_SCHED_MAX_DEVICES]; /* to models, each as if it shared nothing */
	uint64_t common[CTN_SCHED_MAX_DEVICES];  /* of these, bytes charged more than once */
	struct sched_frame *frames;
	uint32_t frame_count;
	struct sched_share *shares;
	uint32_t share_count, share_cap;
	uint64_t stamp;
	struct sched_model *models;
	uint32_t model_count, max_models, pinned_count;
	struct sched_request *requests;
	uint32_t max_requests;
	uint64_t arrivals;
	uint64_t tickets;
	/* lru: by device, the arrival of the oldest request that found no room there */
	uint64_t wanted[CTN_SCHED_MAX_DEVICES];
	uint32_t *order; /* scratch of max_models for sorting */

	/* Models that have something on a device, in any order; those that wait for weights. */
	uint32_t *holders;
	uint32_t holder_count;
	struct sched_waiter *waiters;
	uint32_t waiter_count;
	uint64_t *check_ns;  /* by model: a load ahead is worth nothing before; see ahead.c */
	double virtual_s;    /* the least virtual time of those that want to compute */
	uint64_t host_bytes; /* capacity of the pool; 0: not known */
	bool staging;        /* a STAGE has not ended */
	uint64_t stage_started_ns, stage_check_ns;
	uint32_t stages_seen;
	double stage_seconds_per_byte;

	bool partial_drops, pauses, cancels, host_known, stages, exclusive_steps;
	uint64_t entering;       /* bit set of devices in which a step is in stage 0 */
	double seconds_per_byte; /* of loads, on the fullest link */
	uint32_t loads_seen;
	double load_wait_s; /* average wait of a request before the load that it needs begins */
	uint64_t (*next_arrival)(void *arg, uint32_t model);
	void *next_arrival_arg;
	uint64_t wake_ns;   /* set by the policy in each decision */
	const char *reason; /* of the actions that are emitted now, for people; NULL */

	struct ctn_sched_action *actions; /* of the call that runs */
	uint32_t action_count, action_max;
	bool growing; /* a model may have less KV than its admitted requests need */
	bool more;    /* something was left undone for want of room in actions */
};

/* A policy sees the mirror after an event was taken in, and emits actions by the functions
 * below, which keep the mirror true. */
struct sched_policy {
	const char *name;
	bool foresees; /* refuses what cannot meet its deadline */
	void (*decide)(struct ctn_sched *s, uint64_t now_ns);
	/* Of a model that has its weights, or will have them when they are used: admits what can be
	 * admitted. With exclusive_steps it is called when a step can begin. */
	void (*admit)(struct ctn_sched *s, uint32_t model, uint64_t now_ns);
	/* Makes room for a KV budget of `blocks` of a model that runs, at once and from what runs
	 * nothing, or not at all; `arrival` is its oldest admitted request's. */
	bool (*room_now)(struct ctn_sched *s, struct sched_model *m, uint32_t blocks,
			 uint64_t arrival, uint64_t now_ns);
	void (*host_need)(struct ctn_sched *s, uint32_t model, uint64_t bytes,
			  const uint64_t *host_evictable, uint64_t now_ns);
};

extern const struct sched_policy sched_policy_lru, sched_policy_default, sched_policy_clairvoyant;
bool sched_refuse_unplaceable(struct ctn_sched *s, const struct sched_model *m);

static inline uint32_t sched_steps(const struct sched_model *m)
{
	return (uint32_t)(m->steps_started - m->steps_done);
}

/* Sequence number of the oldest queued request, UINT64_MAX if there is none. */
static inline uint64_t sched_head_arrival(const struct ctn_sched *s, const struct sched_model *m)
{
	return m->queue.head == NO_REQUEST ? UINT64_MAX : s->requests[m->queue.head].arrival;
}

/* True when some of its weights are on a device. */
static inline bool sched_holds(const struct sched_model *m)
{
	for (uint32_t r = 0; r < m->rank_count; r++) {
		if (m->kept[r].bytes)
			return true;
	}
	return false;
}

/* ---- share.c ---- */

/* Rank r of a model has so many of its layers from now on. */
void sched_set_kept(struct ctn_sched *s, struct sched_model *m, uint32_t r, struct sched_kept kept);
/* By device: of what the model lacks of its weights, the bytes that others have there. */
void sched_there_already(const struct ctn_sched *s, const struct sched_model *m,
			 uint64_t bytes[CTN_SCHED_MAX_DEVICES]);
/* By device: what `m` and the models that `beside` accepts would be charged more than once. */
void sched_in_common(const struct ctn_sched *s, const struct sched_model *m,
		     bool (*beside)(const struct sched_model *),
		     uint64_t bytes[CTN_SCHED_MAX_DEVICES]);

/* Bytes of `blocks` of KV on rank r. */
uint64_t sched_kv_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			 uint32_t blocks);
/* Bytes that rank r of a model charges now, if it shares none. */
uint64_t sched_held(const struct ctn_sched *s, const struct sched_model *m, uint32_t r);
/* Bytes that a model charges on rank r's device with a KV budget of `blocks`. */
uint64_t sched_rank_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			   uint32_t blocks);
/* The same for all its ranks on a device. */
uint64_t sched_device_charge(const struct ctn_sched *s, const struct sched_model *m,
			     uint32_t device, uint32_t blocks);
/* True while `count` more actions can be emitted in this call; notes it if not. */
bool sched_room(struct ctn_sched *s, uint32_t count);
/* True if `m` with `blocks` of KV fits where only the models that `beside` accepts (NULL: none)
 * stay. */
bool sched_fits(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		bool (*beside)(const struct sched_model *));

/* Bytes that must become free on each device before `m` is there with a KV budget of `blocks`. */
void sched_lacking(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		   uint64_t need[CTN_SCHED_MAX_DEVICES]);
/* True when nothing is needed on any device. */
bool sched_satisfied(const struct ctn_sched *s, const uint64_t need[CTN_SCHED_MAX_DEVICES]);

void sched_list_append(struct ctn_sched *s, struct sched_list *list, uint32_t slot);
void sched_list_remove(struct ctn_sched *s, struct sched_list *list, uint32_t slot);

/* Its missing_bytes anew. */
void sched_count_missing(struct sched_model *m);
/* The model is ABSENT, and of its weights each rank keeps so many layers; NULL: none. */
void sched_keep(struct ctn_sched *s, struct sched_model *m, const uint32_t *layers);
/* The model is ABSENT and has no weights. */
void sched_forget(struct ctn_sched *s, struct sched_model *m);

/* ---- order.c ---- */

int64_t sched_request_key(const struct sched_model *m, uint64_t deadline_ns, uint64_t now_ns);
/* Into the model's queue at its end; out of it. */
void sched_enqueue(struct ctn_sched *s, struct sched_model *m, uint32_t slot);
void sched_dequeue(struct ctn_sched *s, struct sched_model *m, uint32_t slot);
/* The model has had so many seconds of computation. */
void sched_serve(struct sched_model *m, double seconds);
/* virtual_s anew. */
void sched_advance(struct ctn_sched *s);
/* By how much the keys of a model with that virtual time count as later. */
int64_t sched_behind_ns(const struct ctn_sched *s, double served_s);
/* After whatever changed what it has, or what waits for it: the lists anew. */
void sched_note(struct ctn_sched *s, struct sched_model *m);

/* ---- deadline.c ---- */

/* A queued request: refused if it cannot meet its deadline, as predicted. */
bool sched_refuse_hopeless(struct ctn_sched *s, uint32_t slot, uint64_t now_ns);

/* ---- learn.c ---- */

/* Takes the time between arrivals into account. */
void sched_learn_arrival(struct sched_model *m, uint64_t now_ns);
/* A load begins, for the oldest request that waits for it. */
void sched_learn_wait(struct ctn_sched *s, const struct sched_model *m, uint64_t now_ns);
void sched_learn_load(struct ctn_sched *s, struct sched_model *m, uint64_t now_ns);
void sched_learn_step(struct sched_model *m, uint64_t now_ns);
/* A request ends that was admitted. */
void sched_learn_request(struct sched_model *m, const struct sched_request *q);
/* For a while nothing of the model is staged ahead. */
void sched_put_off_stage(struct sched_model *m, uint64_t now_ns);
/* A STAGE has ended; the pool now lacks `missing` bytes of the model. */
void sched_learn_stage(struct ctn_sched *s, struct sched_model *m, uint64_t missing,
		       uint64_t now_ns);
/* The chance that a request comes within `within_s`, after what was heard so far. */
double sched_chance(const struct ctn_sched *s, const struct sched_model *m, double within_s,
		    uint64_t now_ns);
/* Requests per second while they come. */
double sched_rate(const struct sched_model *m);
/* Bytes that a load of all that `m` lacks moves to the device that gets the most. */
uint64_t sched_load_bytes(const struct ctn_sched *s, const struct sched_model *m);
double sched_seconds_per_byte(const struct ctn_sched *s);
/* Expected seconds of a load that moves `bytes` to one device, and what the pool lacks into it. */
double sched_load_seconds(const struct ctn_sched *s, const struct sched_model *m, uint64_t bytes);

/* ---- kv.c ---- */

/* The KV budget with which the head of the queue can be admitted. */
uint32_t sched_kv_to_admit(const struct ctn_sched *s, const struct sched_model *m);
/* Others on the devices of `m` that `of` accepts give back KV that none of their requests needs, if
 * they are between steps; true if there was any. */
bool sched_kv_trim(struct ctn_sched *s, const struct sched_model *m,
		   bool (*of)(const struct sched_model *));
/* An admitted request needs more blocks. */
void sched_kv_grow(struct ctn_sched *s, uint32_t request, uint32_t blocks);
/* Policies call it first in each decision: models between steps get the KV that their admitted
 * requests need, or the youngest of these go back to the queue. */
void sched_kv_settle(struct ctn_sched *s, uint64_t now_ns);
/* Of a paused model that has KV: its youngest request is queued again, its KV becomes free. */
void sched_kv_give_back(struct ctn_sched *s, struct sched_model *m);

/* ---- steps.c ---- */

/* Starts every step that can start now. */
void sched_start_steps(struct ctn_sched *s, uint64_t now_ns);

/* True when it can be dropped: nothing of it moves or runs. */
bool sched_may_drop(const struct ctn_sched *s, const struct sched_model *m);

/* Actions. Each emits and updates the mirror; the caller has checked that it is possible. */
void sched_drop(struct ctn_sched *s, uint32_t model);
/* Rank r keeps `layers` of the layers that it has. */
void sched_drop_tail(struct ctn_sched *s, uint32_t model, uint32_t r, uint32_t layers);
void sched_cancel(struct ctn_sched *s, uint32_t model);
void sched_load(struct ctn_sched *s, uint32_t model, uint32_t kv_blocks, uint64_t now_ns);
void sched_kv_budget(struct ctn_sched *s, uint32_t model, uint32_t blocks);
/* A model that is not there keeps KV for its paused requests alone. */
void sched_settle_kv(struct ctn_sched *s, uint32_t model);
void sched_admit(struct ctn_sched *s, uint32_t request, uint64_t now_ns);
/* Back into the queue: it is in no step. */
void sched_preempt(struct ctn_sched *s, uint32_t request);
void sched_step(struct ctn_sched *s, uint32_t model, uint64_t now_ns);
void sched_refuse(struct ctn_sched *s, uint32_t request, enum ctn_sched_refusal why);
/* `bytes` of the model into the pool. */
void sched_stage(struct ctn_sched *s, uint32_t model, uint64_t bytes, uint64_t now_ns);
/* Frees `bytes` of the pool as far as can be: of models in the order not pinned, least `chance`
 * (NULL: all alike), least recently used; of `model`, which needs the room, last. With a `most`
 * that is no more than 1 only of models that are not pinned, with a lesser chance, and not of
 * `model`; INFINITY: of all. */
void sched_make_host_room(struct ctn_sched *s, uint32_t model, uint64_t bytes,
			  const uint64_t *host_evictable,
			  double (*chance)(const struct ctn_sched *s, const struct sched_model *m,
					   uint64_t now_ns),
			  double most, uint64_t now_ns);

#endif
