/* SPDX-License-Identifier: MIT */
/*
 * Private to engine. Unless marked otherwise everything belongs to the engine thread from
 * ctn_engine_start on (to the caller's before), and no lock is needed.
 */
#ifndef CTN_ENGINE_STATE_H
#define CTN_ENGINE_STATE_H

#include "engine/decisions.h"
#include "engine/engine.h"
#include "pager/pager.h"
#include "sched/sched.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#define ENGINE_MAX_MODELS   4096
#define ENGINE_MAX_REQUESTS 65536
#define NO_SLOT             UINT32_MAX

/* ---- requests --------------------------------------------------------------------------- */

/* What a client sees of a generated token, as the ring keeps it. */
struct ring_token {
	uint32_t id;
	float logprob;
};

/*
 * Shared by the engine and one client. References: one of the client's, one of the engine's
 * while the request holds a slot, one for each mail under way.
 *
 * The ring is as long as the request can become, so nobody waits for a slow reader: the engine
 * fills the next entry and publishes `produced`; `ended` is published after the last entry.
 */
struct ctn_request {
	_Atomic uint32_t refs;
	struct ctn_engine *engine;
	struct engine_model *model;
	struct ctn_sampling sampling;
	bool ignore_eos;
	bool load_only; /* it wants its model resident, and no token */
	double timeout_s;
	int fd;

	/* the ring */
	_Atomic uint32_t produced;
	_Atomic bool ended;
	uint32_t consumed; /* the client's */
	struct ring_token *tokens;
	uint32_t *top_ids; /* sampling.logprobs of them a token; NULL when none */
	float *top_logprobs;
	struct ctn_sample *scores; /* of the prompt; NULL unless asked for */
	uint32_t scored;           /* entries that are there, published like the tokens */
	struct ctn_request_result result;

	/* the sequence; the engine's */
	uint32_t slot;
	uint32_t *ids; /* prompt, then generated */
	uint32_t length;
	uint32_t prompt_len;
	uint32_t max_length;
	uint32_t computed;  /* tokens whose k and v are stored */
	uint32_t kv_blocks; /* the most it can need */
	uint32_t *blocks;   /* block_count ids while admitted, of at most kv_blocks */
	uint32_t block_count;
	uint32_t kv_asked; /* blocks that sched knows it to need */
	bool admitted;
	bool in_step;
	uint64_t submitted_ns, deadline_ns;
	enum ctn_phase phase;
	uint64_t phase_since_ns;
	uint64_t staged_before, loaded_before;
	struct ctn_request *prev, *next;             /* all live ones of the engine */
	struct ctn_request *batch_prev, *batch_next; /* admitted ones of its model */

	struct ctn_mail submit_mail, cancel_mail;
	_Atomic bool cancel_posted;
	void (*on_end)(struct ctn_request *req, void *arg); /* load_only; engine thread */
	void *on_end_arg;
};

/* ---- steps ------------------------------------------------------------------------------ */

/* What is to be done with one row of logits. */
struct step_row {
	struct ctn_request *req;
	struct ctn_sampling sampling;
	uint32_t position;
	bool score; /* of the given token instead of choosing one */
	uint32_t id;
	int rc;
	struct ctn_sample sample;
};

/* One sequence's share of a step. */
struct step_part {
	struct ctn_request *req;
	uint32_t tokens;
};

/* From the engine to the workers and back. The step message itself holds no pointers. */
struct step_job {
	struct ctn_mail mail;
	struct engine_model *model;
	struct ctn_step *step;
	struct step_part *parts;
	struct step_row *rows;
	uint64_t started_ns;
	_Atomic uint32_t ranks_left;
	_Atomic int rc;
	struct ctn_err err; /* of the rank that set rc */
};

/* The thread of one rank: it owns the rank's stream and decoder. Started with the first step. */
struct rank_worker {
	struct engine_model *model;
	uint32_t rank;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct step_job *job; /* lock */
	bool quit;            /* lock */
	struct ctn_stream *stream;
	struct ctn_decoder *decoder;
	struct ctn_claim *workspace, *kv;
	uint64_t workspace_bytes;
	uint64_t kv_block_bytes;
	float *logits; /* max_rows x vocab, where it samples; else NULL */
	void *scratch; /* of the sampler */
};

/* Ranks that talk to each other, and their ends by rank within the group. */
struct rank_group {
	struct ctn_comm_group *group;
	struct ctn_comm **ends;
};

/* ---- models ----------------------------------------------------------------------------- */

struct engine_model {
	struct ctn_engine *engine;
	char *name, *dir, *reason;
	int64_t created;
	uint32_t tp, pp;
	int32_t priority;
	struct ctn_checkpoint *ckpt; /* NULL when not served, as all below */
	struct ctn_plan *plan;
	uint32_t *devices;
	uint32_t *kept_layers; /* by rank: of a cancelled load, for sched */
	uint32_t pager_id, sched_id;
	struct ctn_limits limits;
	struct rank_worker *workers; /* plan->rank_count */
	struct rank_group *groups;   /* tp > 1: one a stage, by stage; then pp > 1: one a tp rank */
	uint32_t group_count;

	uint32_t *free_blocks; /* in no order */
	uint32_t free_block_count, free_block_cap;
	uint32_t kv_budget; /* blocks made known so far: ids 0 .. kv_budget - 1 */

	struct ctn_request *batch; /* admitted, in order of admission */
	struct step_job *job;      /* the step under way, or NULL */
	bool reserved;             /* between LOAD and DROP or failure */
	bool loading;
	bool cancelling; /* its load, because nobody waits for it */
	bool ahead;      /* it was loaded before a request asked for it, and none has come */
	/* What sched expected of the load and of the step that run, and since when. */
	double load_expected_s, step_expected_s;
	uint64_t load_since_ns, step_since_ns;
	enum ctn_predicted load_kind;
	/* What sched was told that the pool lacks of it, and ctn_pager_host_changes then. */
	uint64_t host_missing, host_changes;
	bool stage_failed; /* ahead, when it was last tried */
	bool step_owed;    /* sched started a step of a failing load: its end is told with that */
	uint32_t live;     /* requests that hold a slot */
	_Atomic uint32_t unfinished;    /* any thread: requests accepted and not ended */
	_Atomic uint64_t refused;       /* any thread */
	_Atomic double request_seconds; /* any thread: running mean of a request's service time */
	uint64_t switches;
	uint64_t outcomes[CTN_OUTCOMES];
	struct ctn_histogram ttft, switch_time;
};

/* ---- the engine ------------------------------------------------------------------------- */

struct ctn_engine {
	struct ctn_engine_config cfg;
	struct ctn_device *devices[CTN_MAX_DEVICES];
	struct ctn_pager *pager;
	struct ctn_sched *sched;
	struct decisions *decisions; /* the log of what sched decides, or NULL */
	struct engine_model **models;
	uint32_t model_count;
	uint32_t served_count;
	struct engine_model **by_sched; /* served models by sched's number */
	struct engine_model **by_pager;

	struct ctn_request **slots;
	uint32_t *free_slots;
	uint32_t free_slot_count;
	struct ctn_request *requests; /* live ones */

	/* events on their way to sched: a ring that grows */
	struct ctn_sched_event *events;
	uint32_t event_head, event_count, event_cap;
	struct ctn_sched_action *actions;
	uint32_t action_max;
	uint64_t *host_evictable, *pager_evictable;

	struct command *waiting; /* evictions, for loads to end; of control.c */
	struct ctn_mailbox mail;
	int epoll_fd, timer_fd;
	bool timer_stale; /* deadlines changed since the timer was armed */
	pthread_t thread;
	bool started;
	bool joined;
	pthread_mutex_t gate; /* submit and stop: no mail is posted after the stop's */
	bool closed;          /* gate: not running, or about to stop */
	struct ctn_mail stop_mail;
	bool stopping;
	uint64_t started_ns;
	uint64_t wake_ns; /* when sched wants a timer event */
	struct ctn_histogram phases[CTN_PHASES];
	uint64_t pauses, preemptions, recomputed;
	uint64_t ahead[CTN_AHEAD_OUTCOMES];
	uint64_t staged_ahead_bytes;
	struct ctn_prediction predictions[CTN_PREDICTED];
	uint64_t ledger_errors;
	_Atomic uint32_t open_requests; /* any thread: each has a descriptor */
};

/* request.c */
void request_ref(struct ctn_request *req);
void request_unref(struct ctn_request *req);
void request_publish(struct ctn_request *req, const struct ctn_sample *sample);
/* Ends it for the client; its memory on the device is given back when no step uses it. */
void request_end(struct ctn_request *req, enum ctn_finish finish, const struct ctn_err *err);
void request_release_slot(struct ctn_request *req);
void request_accept(struct ctn_request *req); /* engine thread: takes a slot, tells sched */
void requests_expire(struct ctn_engine *e, uint64_t now_ns);
/* From now on its time goes into another phase. */
void request_phase(struct ctn_request *req, enum ctn_phase phase);
/* A request that ends when its model is resident. */
int request_want_loaded(struct engine_model *m, void (*on_end)(struct ctn_request *req, void *arg),
			void *arg);

/* model.c */
int model_open(struct engine_model *m, const struct ctn_model_spec *spec, struct ctn_err *err);
void model_close(struct engine_model *m);
int model_reserve(struct engine_model *m, uint64_t ticket, struct ctn_err *err);
int model_set_kv(struct engine_model *m, uint32_t blocks);
/* It has no weights, or not all: its workspace goes, and its KV unless admitted requests have some.
 */
void model_leave(struct engine_model *m);

/* step.c */
bool step_start(struct engine_model *m);
void batch_admit(struct ctn_request *req);
void batch_remove(struct ctn_request *req);
/* Its k and v are given up; what it had is computed again. */
void batch_forget(struct ctn_request *req);
/* KV blocks of a sequence of so many tokens. */
uint32_t blocks_for(uint32_t tokens);
/* The phase of an admitted request between steps. */
enum ctn_phase batch_phase(const struct engine_model *m);

/* worker.c */
int worker_start(struct rank_worker *w);
void worker_stop(struct rank_worker *w);
void worker_give(struct rank_worker *w, struct step_job *job);

/* decide.c */
/* As ctn_sched_event, now; with the log of decisions, and what came of predictions. */
uint32_t engine_decide(struct ctn_engine *e, const struct ctn_sched_event *ev,
		       struct ctn_sched_action *actions, uint32_t max);

/* act.c: sched's events and actions */
void engine_tell(struct ctn_engine *e, const struct ctn_sched_event *ev);
void engine_feed(struct ctn_engine *e);
void engine_pager_event(void *arg, const struct ctn_pager_event *ev);

/* Tells sched of an arrival; and before that what the pool lacks of its model, if that is another
 * amount than it was told. */
void engine_tell_arrival(struct engine_model *m, const struct ctn_sched_event *ev);
void engine_tell_host(struct engine_model *m);

/* control.c */
void control_retry(struct ctn_engine *e);

/* histogram.c */
void histogram_add(struct ctn_histogram *h, double seconds);

#endif
