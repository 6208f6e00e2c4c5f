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

#define NO_FRAME UINT32_MAX

enum host_state { HOST_ABSENT, HOST_AWAITED, HOST_STAGING, HOST_CLEAN, HOST_DRAINING };
enum device_state { DEVICE_ABSENT, DEVICE_LOADING, DEVICE_RESIDENT, DEVICE_DRAINING };

struct pager_part {
	struct pager_model *model;
	const struct ctn_part *plan;
	enum host_state state;
	bool has_digest; /* of the bytes that it had when it was last CLEAN, or by a current
			    manifest */
	struct ctn_digest digest;
	struct ctn_frame_ref ref; /* STAGING, DRAINING: ours; CLEAN: leased; else the last */
	const struct ctn_extent *extents; /* while STAGING, CLEAN, DRAINING */
	uint32_t extent_count;
	uint32_t need; /* pieces that the load has to bring from it */
	uint32_t busy; /* of these, those whose copies are under way */
	bool ahead;    /* STAGING, DRAINING: for ctn_pager_stage_ahead, not for the load */
	struct ctn_stage_job *job;      /* STAGING, DRAINING: of the reads, or of the comparison;
					 * jobs_lock: NULL once it is done */
	struct ctn_stage_result result; /* written by a thread of the stage before its completion */
	bool equal;                     /* likewise: of the comparison */
	struct ctn_mail completion;
	/* A frame of another key: while compared with ours, leased. has_twin: its bytes were
	 * found to be this part's; it may be gone by now. */
	bool has_twin;
	struct ctn_frame_ref twin;
	struct ctn_frame_key twin_key;
	const struct ctn_extent *twin_extents; /* while leased */
	uint32_t twin_extent_count;
};

/*
 * A device frame: the memory of a piece, or of pieces of several models on one device that hold
 * equal bytes. Its addresses are fixed.
 */
struct pager_frame {
	struct ctn_pager *pager;
	uint32_t device;
	uint32_t id; /* NO_FRAME until a second piece is bound to it */
	void *va;
	uint64_t bytes; /* mapped at va unless ABSENT */
	enum device_state state;
	uint32_t holders;           /* pieces with `held`: their shards are not ABSENT */
	struct pager_piece *loader; /* LOADING: the piece whose load brings the bytes */
	bool submitted;             /* LOADING, DRAINING: its copies are with the link, or done */
	bool in_flight;
	bool arrived; /* DRAINING: the bytes are there, and right */
	bool spoiled; /* its bytes may be wrong ones: nobody joins its holders, who all fail */
	struct ctn_event *event;
	int rc; /* written by the link thread before its completion */
	struct ctn_mail completion;
	struct pager_piece *pieces; /* bound to it */
	bool named;                 /* found by its content: in the table of its device */
	struct ctn_digest name;
	UT_hash_handle hh;
	uint32_t counted; /* by a walk */
};

struct pager_piece {
	struct pager_shard *shard;
	const struct ctn_piece *plan;
	uint32_t *parts; /* ids of those that it is made of, once each */
	uint32_t part_count;
	struct pager_frame own;
	struct pager_frame *frame;       /* own, or another piece's of equal content */
	bool held;                       /* its share of frame->holders */
	struct pager_piece *prev, *next; /* bound to the same frame */
};

struct pager_shard {
	struct pager_rank *rank;
	const struct ctn_shard *plan;
	enum device_state state;    /* ABSENT: holds no frame; RESIDENT: all of them are */
	struct pager_piece *pieces; /* plan->piece_count */
	void **addresses;           /* of its pieces' frames */
	bool submitted; /* rank lock: the events of its frames belong to the copies of their bytes
			 */
};

struct pager_rank {
	struct pager_model *model;
	const struct ctn_rank_plan *plan;
	uint32_t index;
	uint32_t device;
	void *va;
	uint64_t va_bytes;
	struct pager_shard *shards; /* plan->layer_count */
	struct pager_piece *pieces; /* of all shards, flat, as the next two */
	uint32_t piece_count;
	void **addresses;
	uint32_t *parts;
	void *const **piece_table; /* [shard] */
	uint32_t copies_in_flight; /* pieces */
	uint32_t next;             /* first shard of the load that is not submitted */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* submitted or failed */
	bool failed;            /* rank lock */
};

/* The load of a model, from ctn_pager_load to its event. */
struct pager_load {
	bool active;
	bool failed;
	bool cancelled; /* it is a failure that keeps what has arrived */
	struct ctn_err err;
	uint64_t ticket;
	uint64_t started_ns;
	uint32_t shards_left; /* not RESIDENT yet */
	uint32_t stages_in_flight;
	uint32_t copies_in_flight;
	uint64_t bytes_staged, bytes_loaded;
};

/* What is staged ahead of loads, from ctn_pager_stage_ahead to its event. */
struct pager_ahead {
	struct pager_model *model; /* NULL: nothing is */
	uint32_t next;             /* place in the model's order of the part to look at next */
	uint64_t left;             /* bytes that are still to be begun; 0: no more is begun */
	uint32_t stages_in_flight;
	uint64_t bytes_staged;
	bool failed; /* err says why */
	struct ctn_err err;
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

/*
 * A frame that the pool had when we came, whose bytes are to be hashed. From ctn_pager_adopt until
 * its digest is what it was sealed with, or it is gone; a spoiled one until it could be evicted.
 */
struct pager_adopted {
	struct ctn_frame_info info;
	struct pager_part *part; /* one that it is the frame of: tells the layout */
	bool started, spoiled;
	const struct ctn_extent *extents; /* while started: leased */
	uint32_t extent_count;
	struct ctn_stage_job *job;      /* jobs_lock: NULL once it is done */
	struct ctn_stage_result result; /* written by the hashing thread before its completion */
	struct ctn_mail completion;
	UT_hash_handle hh; /* by info.ref */
};

struct pager_device {
	struct ctn_device *dev;
	struct ctn_stream *verify; /* with poison: reads shards back */
	uint64_t granule;
	struct ctn_device_ledger ledger; /* running sums */
	struct pager_frame *named;       /* by content */
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
	struct pager_adopted *adopted; /* in the order of models and parts */
	uint32_t adopted_started;
	enum ctn_pager_verify adopt_verify;
	struct ctn_pager_adoption adoption;
	struct pager_model *loads; /* active, ascending ticket */
	struct pager_model *ended; /* their events are due in dispatch */
	struct pager_ahead ahead;
	bool pump_again; /* host memory may have become free within pager_pump */
	struct ctn_claim *claims;
	uint32_t shared_frames;      /* ids given out */
	uint64_t host_changes;       /* frames that came into the pool or left it */
	struct ctn_host_ledger host; /* running sums */
	struct ctn_pager_move_stats moves[CTN_PAGER_MOVES];
	int epoll_fd;
	pthread_mutex_t jobs_lock; /* a job is not cancelled while, or after, it reports its end */
	struct ctn_mailbox mail;   /* completions; woken when events are due */
};

/* ledger.c: every change of a frame's state or a claim's size goes through these */
void pager_frame_state(struct pager_frame *f, enum device_state state);
void pager_part_state(struct pager_part *part, enum host_state state);
void pager_claim_bytes(struct ctn_claim *claim, uint64_t bytes);

/* Parts of one load, or of what is staged ahead, whose reads are under way; the drive is kept busy,
 * order is kept. */
#define STAGES_AT_ONCE 8

/* order.c: *order is to be freed, also after a failure */
int pager_order(const struct ctn_plan *plan, uint64_t pool_bytes, uint32_t **order);

/* load.c */
/* All frames of a submitted shard may have arrived. */
void pager_settle(struct pager_shard *s);
void pager_pump(struct ctn_pager *p);
/* Makes room in the pool for a part, with the help of sched, who names victims. */
void pager_ask_for_room(const struct pager_part *part);

/* ahead.c */
/* Begins what can be; wanted: a load wants the disk, or room in the pool. */
void pager_go_on_ahead(struct ctn_pager *p, bool wanted);
/* The reads of a part that was staged ahead are over. */
void pager_end_ahead(struct pager_part *part, int rc);
/* Its event is due. */
bool pager_ahead_has_ended(const struct ctn_pager *p);

/* end.c */
void pager_release_shard(struct pager_shard *s);
void pager_fail(struct pager_model *m, int code, const struct ctn_err *err);
void pager_try_end(struct pager_model *m);
/* Its load has, and its event is due. */
bool pager_has_ended(const struct pager_model *m);
/* What a resident model holds has turned out to be wrong: it ends as a failed load does. */
void pager_revoke(struct pager_model *m, int code, const struct ctn_err *err);

/* host.c: parts and frames */
enum host_result { HOST_OK, HOST_WAIT, HOST_NO_ROOM, HOST_FAILED };
enum host_result pager_acquire(struct pager_part *part, bool may_alloc, struct ctn_err *err);
/* A new LOADING frame and the reads into it. */
enum host_result pager_start_stage(struct pager_part *part, struct ctn_err *err);
void pager_release_part(struct pager_part *part);
/* The reads of a part are over: CLEAN (`shared`: with a frame that is leased already), or failed.
 */
void pager_end_stage(struct pager_part *part, int rc, bool shared);
uint64_t pager_part_charge(const struct pager_part *part);
/* A CLEAN frame of its key has another digest than the manifest says. */
bool pager_is_spoiled(const struct pager_part *part, const struct ctn_frame_info *info);
/* As ctn_pool_evict; counted. */
int pager_evict(struct ctn_pager *p, const struct ctn_frame_info *info);
/* The frames of the pool; NULL without memory. The caller frees them. */
struct ctn_frame_info *pager_list(struct ctn_pager *p, size_t *count);
/* The model of a frame; NULL: none of ours. */
struct key_owner *pager_owner(struct ctn_pager *p, const struct ctn_frame_key *key);
void pager_wake_awaiting(struct ctn_pager *p);

/* adopt.c */
enum adopted { ADOPTED_USABLE, ADOPTED_WAIT, ADOPTED_GONE, ADOPTED_FAILED };
/* What may be done with a CLEAN frame that was found for a part. WAIT: its digest is being made;
 * GONE: it had other bytes than it should, and was evicted; FAILED: likewise, and somebody uses it.
 */
enum adopted pager_adopted(const struct pager_part *part, const struct ctn_frame_info *info,
			   struct ctn_err *err);
/* Evicts frames that belong to none of the models until `bytes` are free or there are none;
 * returns the bytes freed. */
uint64_t pager_drop_strangers(struct ctn_pager *p, uint64_t bytes);
void pager_adoption_free(struct ctn_pager *p);

/* share.c: one frame for parts of equal bytes */
void pager_describe_owner(const struct ctn_part *part, uint8_t out[CTN_OWNER_DATA]);
/* A CLEAN frame of another key that is known to hold the part's bytes. -ENOENT. */
int pager_find_equal(const struct pager_part *part, struct ctn_frame_info *info);
/* The frame of its key, else one of those. -ENOENT. */
int pager_find(const struct pager_part *part, struct ctn_frame_info *info);
/* They are on their way, as another part's, for a load or ahead of one. */
bool pager_equal_is_staged(const struct pager_part *part);
/* True when a frame is there that what was staged is now compared with: pager_end_stage follows. */
bool pager_compare(struct pager_part *part);

/* frame.c: device frames and who holds them */
int pager_hold(struct pager_piece *pc);
/* Gives the memory back when nobody else holds it; returns the bytes that became free. */
uint64_t pager_let_go(struct pager_piece *pc);
/* Its load wants the parts of a piece, or no longer. */
void pager_need_parts(struct pager_piece *pc, bool on);
/* True if nobody brings the bytes of its frame, or a younger load would. */
bool pager_should_bring(const struct pager_piece *pc);
/* Its load brings the bytes, and so needs the parts. */
void pager_take_over(struct pager_piece *pc);
/* The loader gives up a frame that it has not submitted; the oldest other load gets it. */
void pager_hand_on(struct pager_piece *pc);
/* Binds a piece to the frame of its content, if that is known and there is one. Its shard may be
 * LOADING, the piece not submitted. */
int pager_bind(struct pager_piece *pc);
/* The oldest load that has not failed and holds the frame; NULL: there is none. */
struct pager_piece *pager_live_holder(const struct pager_frame *f);

/* copy.c: pieces and copies */
int pager_submit(struct pager_piece *pc, struct ctn_err *err);
/* verify.c */
int pager_verify(struct pager_piece *pc, struct ctn_err *err);

#endif
