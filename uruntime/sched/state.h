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
	uint32_t kv_blocks;
	bool no_step;
	uint64_t arrival; /* a sequence number: the order of ARRIVAL events */
	uint32_t prev, next;
};

struct sched_model {
	struct ctn_sched_rank *ranks;
	uint32_t rank_count;
	uint32_t max_sequences;
	uint64_t devices; /* bit set of its ranks' devices */

	enum ctn_sched_state state;
	bool pinned;
	bool stepping;
	bool lost; /* one of its devices is gone */
	uint64_t ticket;
	uint64_t last_used_ns;

	uint32_t queue_head, queue_tail; /* request slots */
	uint32_t queued, admitted;
	uint32_t admitted_steps; /* of the admitted, those that compute */
	uint32_t kv_admitted;    /* sum of kv_blocks of the admitted */
	uint32_t kv_budget;      /* blocks charged; 0 while ABSENT */
};

struct ctn_sched {
	const struct sched_policy *policy;
	uint32_t device_count;
	uint64_t device_bytes[CTN_SCHED_MAX_DEVICES];
	uint64_t granule[CTN_SCHED_MAX_DEVICES];
	uint64_t charged[CTN_SCHED_MAX_DEVICES];
	struct sched_model *models;
	uint32_t model_count, max_models;
	struct sched_request *requests;
	uint32_t max_requests;
	uint64_t arrivals;
	uint64_t tickets;
	uint32_t *order; /* scratch of max_models for sorting */

	struct ctn_sched_action *actions; /* of the call that runs */
	uint32_t action_count, action_max;
	bool more; /* something was left undone for want of room in actions */
};

/* A policy sees the mirror after an event was taken in, and emits actions by the functions
 * below, which keep the mirror true. */
struct sched_policy {
	const char *name;
	void (*decide)(struct ctn_sched *s, uint64_t now_ns);
	void (*host_need)(struct ctn_sched *s, uint32_t model, uint64_t bytes,
			  const uint64_t *host_evictable);
};

extern const struct sched_policy sched_policy_lru;

/* Bytes that a model charges on rank r's device with a KV budget of `blocks`. */
uint64_t sched_rank_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			   uint32_t blocks);
/* True while `count` more actions can be emitted in this call; notes it if not. */
bool sched_room(struct ctn_sched *s, uint32_t count);
/* True if `m` with `blocks` of KV fits where only the models that `beside` accepts (NULL: none)
 * stay. */
bool sched_fits(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		bool (*beside)(const struct sched_model *));

/* Actions. Each emits and updates the mirror; the caller has checked that it is possible. */
void sched_drop(struct ctn_sched *s, uint32_t model);
void sched_load(struct ctn_sched *s, uint32_t model, uint32_t kv_blocks, uint64_t now_ns);
void sched_kv_budget(struct ctn_sched *s, uint32_t model, uint32_t blocks);
void sched_admit(struct ctn_sched *s, uint32_t request, uint64_t now_ns);
void sched_step(struct ctn_sched *s, uint32_t model, uint64_t now_ns);
void sched_refuse(struct ctn_sched *s, uint32_t request, enum ctn_sched_refusal why);
void sched_drop_host(struct ctn_sched *s, uint32_t model, uint64_t bytes);

#endif
