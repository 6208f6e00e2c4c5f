/* SPDX-License-Identifier: MIT */
/*
 * Private to pager: its tables. All of it belongs to the owner's thread, but for what is
 * marked: results of completions, and the submitted and failed flags (rank lock).
 */
#ifndef CTN_PAGER_STATE_H
#define CTN_PAGER_STATE_H

#include "pager/pager.h"

#include <pthread.h>

/* A table that cannot grow is an error of the call, not of the process. The element that was
 * not added has no table. */
#define HASH_NONFATAL_OOM         1
#define uthash_nonfatal_oom(elem) ((void)(elem))
#include <uthash.h>

enum host_state { HOST_ABSENT, HOST_AWAITED, HOST_STAGING, HOST_CLEAN, HOST_DRAINING };
enum device_state { DEVICE_ABSENT, DEVICE_LOADING, DEVICE_RESIDENT, DEVICE_DRAINING };

struct pager_part {
	struct pager_model *model;
	const struct ctn_part *plan;
	enum host_state state;
	struct ctn_frame_ref ref; /* STAGING, DRAINING: ours; CLEAN: leased; else the last */
	const struct ctn_extent *extents; /* while STAGING, CLEAN, DRAINING */
	uint32_t extent_count;
	uint32_t need;                  /* LOADING shards of the load that read it */
	uint32_t busy;                  /* of these, those whose copies are under way */
	struct ctn_stage_job *job;      /* STAGING, DRAINING; jobs_lock: NULL once it is done */
	struct ctn_stage_result result; /* written by the I/O thread before its completion */
	struct ctn_mail completion;
};

struct pager_shard {
	struct pager_rank *rank;
	const struct ctn_shard *plan;
	enum device_state state;
	void **pieces;    /* device addresses, one a piece */
	void *va;         /* first of them */
	uint64_t charged; /* bytes mapped at va unless ABSENT */
	struct ctn_event *event;
	bool submitted; /* rank lock: event belongs to the copies of this load */
	int rc;         /* written by the link thread before its completion */
	struct ctn_mail completion;
};

struct pager_rank {
	struct pager_model *model;
	const struct ctn_rank_plan *plan;
	uint32_t index;
	uint32_t device;
	void *va;
	uint64_t va_bytes;
	struct pager_shard *shards; /* plan->layer_count */
	void **pieces;              /* of all shards, flat */
	void *const **piece_table;  /* [shard] */
	uint32_t copies_in_flight;  /* shards */
	uint32_t next;              /* first shard of the load that is not submitted */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* submitted or failed */
	bool failed;            /* rank lock */
};

/* The load of a model, from ctn_pager_load to its event. */
struct pager_load {
	bool active;
	bool failed;
	struct ctn_err err;
	uint64_t ticket;
	uint64_t started_ns;
	uint32_t shards_left; /* not RESIDENT yet */
	uint32_t stages_in_flight;
	uint32_t copies_in_flight;
	uint64_t bytes_staged, bytes_loaded;
};

struct pager_model {
	struct ctn_pager *pager;
	uint32_t index;
	const struct ctn_plan *plan;
	struct pager_rank *ranks; /* plan->rank_count */
	struct pager_part *parts; /* plan->part_count */
	uint32_t *order;          /* of the parts: in which they are acquired */
	uint32_t uses;
	struct pager_load load;
	struct pager_model *prev, *next; /* active loads by ticket, or ended ones */
	uint64_t bytes_staged, bytes_loaded;
};

/* Which model a frame of the pool belongs to. */
struct key_owner {
	struct ctn_frame_key key;
	uint32_t model;
	UT_hash_handle hh;
};

struct pager_device {
	struct ctn_device *dev;
	struct ctn_stream *verify; /* with poison: reads shards back */
	uint64_t granule;
	struct ctn_device_ledger ledger; /* running sums */
};

struct ctn_claim {
	struct ctn_pager *pager;
	uint32_t device;
	enum ctn_claim_kind kind;
	void *va;
	uint64_t max_bytes;
	uint64_t bytes;
	struct ctn_claim *prev, *next;
};

struct ctn_pager {
	struct pager_device *devices;
	uint32_t device_count;
	struct ctn_pool *pool;
	struct ctn_stage *stage;
	bool poison;
	ctn_pager_event_fn *event;
	void *event_arg;
	struct pager_model **models;
	uint32_t model_count, max_models;
	struct key_owner *owners;
	struct pager_model *loads; /* active, ascending ticket */
	struct pager_model *ended; /* their events are due in dispatch */
	struct ctn_claim *claims;
	struct ctn_host_ledger host; /* running sums */
	struct ctn_pager_move_stats moves[CTN_PAGER_MOVES];
	int epoll_fd;
	pthread_mutex_t jobs_lock; /* a job is not cancelled while, or after, it reports its end */
	struct ctn_mailbox mail;   /* completions; woken when events are due */
};

/* ledger.c: every change of a shard's state or a claim's size goes through these */
void pager_shard_state(struct pager_shard *s, enum device_state state);
void pager_part_state(struct pager_part *part, enum host_state state);
void pager_claim_bytes(struct ctn_claim *claim, uint64_t bytes);

/* order.c: *order is to be freed, also after a failure */
int pager_order(const struct ctn_plan *plan, uint64_t pool_bytes, uint32_t **order);

/* load.c */
void pager_pump(struct ctn_pager *p);
void pager_fail(struct pager_model *m, int code, const struct ctn_err *err);
void pager_try_end(struct pager_model *m);

/* host.c: parts and frames */
enum host_result { HOST_OK, HOST_WAIT, HOST_NO_ROOM, HOST_FAILED };
enum host_result pager_acquire(struct pager_part *part, bool may_alloc, struct ctn_err *err);
void pager_release_part(struct pager_part *part);
/* The frame of its key, or a CLEAN one of equal content. -ENOENT. */
int pager_find(const struct pager_part *part, struct ctn_frame_info *info);
uint64_t pager_part_charge(const struct pager_part *part);

/* copy.c: shards and copies */
int pager_submit(struct pager_shard *s, struct ctn_err *err);
void pager_unmap(struct pager_shard *s);
/* verify.c */
int pager_verify(struct pager_shard *s, struct ctn_err *err);

#endif
