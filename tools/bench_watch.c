// SPDX-License-Identifier: MIT
/*
 * Looks at the devices while a load is under way. Along the way of each rank's bytes, about
 * every MiB, there is a point: a byte that differs from what was overwritten there. Until right
 * before the link can have carried it, the point is read: it must not be there yet. What the ranks
 * of an uplink have together must not be more than it can have carried. Beside that, a thread a
 * rank waits for the rank's layers, as a worker would, and tells when the last one came.
 */
#include "bench.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define STEP   CTN_MIB
#define BEFORE 300000  /* ns: how long before its time a point is looked at ... */
#define OFTEN  2000000 /* ns: ... and how often before that, as the machine may be late then */
/* A byte that happens to be the one that was overwritten with tells nothing: one near it may. */
#define TRIES 64

/* To look at a copy that is under way is a race by intent. */
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#define LOOK_BEGIN() AnnotateIgnoreReadsBegin(__FILE__, __LINE__)
#define LOOK_END()   AnnotateIgnoreReadsEnd(__FILE__, __LINE__)
#else
#define LOOK_BEGIN()
#define LOOK_END()
#endif

struct point {
	double due_s;
	uint64_t bytes; /* of the rank, up to and with this one */
	uint32_t rank;
	uint8_t value;
	bool looked, early;
	const uint8_t *at;
};

enum gate { GATE_CLOSED, GATE_OPEN, GATE_OVER };

struct watch {
	struct ctn_bench_rig *rig;
	const struct ctn_bench_side *side;
	struct ctn_bench_links *links;
	struct ctn_stream *streams[CTN_MAX_DEVICES]; /* of the eyes; the rig's are the waiters' */
	struct point *points;                        /* by rank and due_s */
	uint32_t count, room;
	uint32_t first[CTN_MAX_DEVICES + 1]; /* [rank]: its first point */
	uint32_t next[CTN_MAX_DEVICES];      /* [rank]: the one to look at */
	uint32_t there[CTN_MAX_DEVICES];     /* [rank]: the first that has not been seen there */
	struct ctn_bench_watched *out;
	pthread_t eyes;
	struct waiter {
		struct watch *watch;
		uint32_t rank;
		pthread_t thread;
		int rc;
	} waiters[CTN_MAX_DEVICES];
	uint32_t started; /* waiters */
	bool eyes_started;
	pthread_mutex_t lock;
	pthread_cond_t changed; /* CLOCK_MONOTONIC */
	enum gate gate;
	uint64_t since;
	int rc; /* of the eyes */
};

/* ---- points ----------------------------------------------------------------------------- */

/* Of the uplink that a rank has in common with others. */
static double uplink_rate(const struct watch *w, uint32_t rank)
{
	int uplink = w->links->uplink[rank];

	return uplink < 0 ? INFINITY : w->links->uplink_rate[uplink];
}

/* What was overwritten, and what memory has that was never touched. */
static bool tells_nothing(uint8_t value)
{
	return value == CTN_BENCH_POISON || value == 0;
}

static int add_point(struct watch *w, uint32_t rank, const struct ctn_rect *rect, uint8_t *piece,
		     uint64_t before, uint64_t index)
{
	struct point p = {.rank = rank};
	uint64_t row = 0, column = 0;

	for (uint32_t i = 0; i < TRIES && i <= index && tells_nothing(p.value); i++) {
		int rc;

		row = (index - i) / rect->width;
		column = (index - i) % rect->width;
		rc = ctn_bench_file_byte(w->side, rect->part,
					 rect->src_offset + row * rect->src_pitch + column,
					 &p.value);
		if (rc)
			return rc;
	}
	if (tells_nothing(p.value))
		return 0;
	p.at = piece + rect->dst_offset + row * rect->dst_pitch + column;
	p.bytes = before + row * rect->width + column + 1;
	p.due_s = (double)p.bytes / fmin(w->links->own[rank], uplink_rate(w, rank));
	if (w->count == w->room) {
		struct point *more = reallocarray(w->points, w->room * 2 + 64, sizeof(*more));

		if (!more)
			return -ENOMEM;
		w->points = more;
		w->room = w->room * 2 + 64;
	}
	w->points[w->count++] = p;
	return 0;
}

/* Rectangles in the order in which the pager loads them. */
static int add_rank(struct watch *w, uint32_t rank)
{
	const struct ctn_rank_plan *plan = &w->side->plan->ranks[rank];
	void *const *const *pieces = ctn_pager_pieces(w->rig->pager, w->side->model, rank);
	uint64_t carried = 0, next = CTN_MIN((uint64_t)STEP, w->side->bytes[rank]);
	int rc = 0;

	for (uint32_t i = 0; i < plan->layer_count; i++) {
		for (uint32_t k = 0; k < plan->shards[i].piece_count; k++) {
			const struct ctn_piece *piece = &plan->shards[i].pieces[k];

			for (uint32_t n = 0; n < piece->rect_count; n++) {
				const struct ctn_rect *rect = &piece->rects[n];
				uint64_t end = carried + rect->width * rect->height;

				for (; next > carried && next <= end && rc == 0; next += STEP)
					rc = add_point(w, rank, rect, pieces[i][k], carried,
						       next - carried - 1);
				if (rc)
					return rc;
				carried = end;
			}
		}
	}
	return 0;
}

/* ---- threads ---------------------------------------------------------------------------- */

static bool wait_for_gate(struct watch *w)
{
	bool open;

	pthread_mutex_lock(&w->lock);
	while (w->gate == GATE_CLOSED)
		pthread_cond_wait(&w->changed, &w->lock);
	open = w->gate == GATE_OPEN || w->since;
	pthread_mutex_unlock(&w->lock);
	return open;
}

/* Until `ns`, or until it is over: then false. */
static bool wait_until(struct watch *w, uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / CTN_NSEC_PER_SEC),
			      .tv_nsec = (long)(ns % CTN_NSEC_PER_SEC)};
	bool open;

	pthread_mutex_lock(&w->lock);
	while (w->gate == GATE_OPEN && ctn_now_ns() < ns)
		pthread_cond_timedwait(&w->changed, &w->lock, &ts);
	open = w->gate == GATE_OPEN;
	pthread_mutex_unlock(&w->lock);
	return open;
}

static uint64_t due_of(const struct watch *w, const struct point *p)
{
	return w->since + (uint64_t)(p->due_s * CTN_NSEC_PER_SEC);
}

static bool is_there(struct watch *w, const struct point *p)
{
	uint8_t found = 0;
	int rc;

	LOOK_BEGIN();
	rc = ctn_stream_download(w->streams[p->rank], &found, p->at, 1);
	LOOK_END();
	if (rc == 0)
		rc = ctn_stream_sync(w->streams[p->rank]);
	w->rc = w->rc ? w->rc : rc;
	return rc == 0 && found == p->value;
}

static void look(struct watch *w, struct point *p)
{
	bool there = is_there(w, p);

	if (ctn_now_ns() >= due_of(w, p))
		return;
	p->looked = true;
	p->early |= there;
}

/* Which of the ranks leads on an uplink is no matter, but together they have no more than it
 * carries. */
static void look_at_uplinks(struct watch *w)
{
	double through[CTN_MAX_DEVICES] = {0};

	for (uint32_t r = 0; r < w->side->plan->rank_count; r++) {
		if (w->links->uplink[r] < 0)
			continue;
		while (w->there[r] < w->first[r + 1] && is_there(w, &w->points[w->there[r]]))
			w->there[r]++;
		if (w->there[r] > w->first[r])
			through[w->links->uplink[r]] += (double)w->points[w->there[r] - 1].bytes;
	}
	for (uint32_t u = 0; u < CTN_MAX_DEVICES; u++) {
		double seconds = (double)(ctn_now_ns() - w->since) / CTN_NSEC_PER_SEC;

		w->out->early += through[u] > w->links->uplink_rate[u] * seconds;
	}
}

/* Looks at each rank's first point that is not due. Returns when to look again; 0: no more. */
static uint64_t look_around(struct watch *w)
{
	uint64_t again = 0;

	for (uint32_t r = 0; r < w->side->plan->rank_count && w->rc == 0; r++) {
		uint64_t now = ctn_now_ns(), due, then;

		while (w->next[r] < w->first[r + 1] && due_of(w, &w->points[w->next[r]]) <= now)
			w->next[r]++;
		if (w->next[r] == w->first[r + 1])
			continue;
		look(w, &w->points[w->next[r]]);
		due = due_of(w, &w->points[w->next[r]]);
		then = CTN_MIN(now + OFTEN, now + BEFORE < due ? due - BEFORE : due);
		again = again ? CTN_MIN(again, then) : then;
	}
	look_at_uplinks(w);
	return w->rc ? 0 : again;
}

static void *eyes_main(void *arg)
{
	struct watch *w = arg;
	uint64_t again;

	prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul);
	if (!wait_for_gate(w))
		return NULL;
	while ((again = look_around(w)) && wait_until(w, again))
		;
	for (uint32_t i = 0; i < w->count; i++) {
		w->out->pieces += w->points[i].looked;
		w->out->missed += !w->points[i].looked;
		w->out->early += w->points[i].early;
	}
	return NULL;
}

static void *waiter_main(void *arg)
{
	struct waiter *waiter = arg;
	struct watch *w = waiter->watch;
	const struct ctn_rank_plan *plan = &w->side->plan->ranks[waiter->rank];

	if (!wait_for_gate(w))
		return NULL;
	for (uint32_t i = 0; i < plan->layer_count && waiter->rc == 0; i++)
		waiter->rc =
			ctn_pager_wait_layer(w->rig->pager, w->side->model, waiter->rank,
					     plan->first_layer + i, w->rig->streams[waiter->rank]);
	w->out->end_s[waiter->rank] = (double)(ctn_now_ns() - w->since) / CTN_NSEC_PER_SEC;
	return NULL;
}

static void set_gate(struct watch *w, enum gate gate)
{
	pthread_mutex_lock(&w->lock);
	w->gate = gate;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
}

static void watch_begin(void *arg, const struct ctn_bench_side *side, uint64_t since)
{
	struct watch *w = arg;

	w->since = since;
	set_gate(w, GATE_OPEN);
}

static void watch_end(void *arg)
{
	struct watch *w = arg;

	set_gate(w, GATE_OVER);
	if (w->eyes_started)
		pthread_join(w->eyes, NULL);
	for (uint32_t r = 0; r < w->started; r++) {
		pthread_join(w->waiters[r].thread, NULL);
		w->rc = w->rc ? w->rc : w->waiters[r].rc;
	}
	w->eyes_started = false;
	w->started = 0;
}

/* ---- a switch that is watched ----------------------------------------------------------- */

static int make_lock(struct watch *w)
{
	pthread_condattr_t attr;
	int rc = -pthread_condattr_init(&attr);

	if (rc)
		return rc;
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	rc = -pthread_cond_init(&w->changed, &attr);
	pthread_condattr_destroy(&attr);
	if (rc == 0)
		rc = -pthread_mutex_init(&w->lock, NULL);
	return rc;
}

static int start(struct watch *w)
{
	uint32_t ranks = w->side->plan->rank_count;
	int rc = ctn_bench_links(w->rig, w->side, &w->links);

	for (uint32_t r = 0; r < ranks && rc == 0; r++) {
		rc = ctn_stream_new(w->rig->devices[r], &w->streams[r]);
		w->first[r] = w->next[r] = w->there[r] = w->count;
		if (rc == 0 && w->links->limited)
			rc = add_rank(w, r);
	}
	if (rc)
		return rc;
	w->first[ranks] = w->count;
	rc = -pthread_create(&w->eyes, NULL, eyes_main, w);
	w->eyes_started = rc == 0;
	for (uint32_t r = 0; r < ranks && rc == 0; r++) {
		w->waiters[r] = (struct waiter){.watch = w, .rank = r};
		rc = -pthread_create(&w->waiters[r].thread, NULL, waiter_main, &w->waiters[r]);
		w->started += rc == 0;
	}
	return rc;
}

int ctn_bench_watch(struct ctn_bench_rig *rig, const struct ctn_bench_side *to,
		    struct ctn_bench_watched *watched, struct ctn_err *err)
{
	struct watch w = {.rig = rig, .side = to, .out = watched};
	struct ctn_bench_observer observer = {watch_begin, watch_end, &w};
	struct ctn_bench_switch took;
	int rc;

	*watched = (struct ctn_bench_watched){0};
	rc = make_lock(&w);
	if (rc)
		return ctn_err_set(err, rc, "nobody to watch: %s", strerror(-rc));
	rc = start(&w);
	if (rc) {
		watch_end(&w);
		ctn_err_set(err, rc, "nobody to watch: %s", strerror(-rc));
	} else {
		rig->observer = &observer;
		rc = ctn_bench_rig_switch(rig, to, &took, err);
		if (rc == 0 && w.rc)
			rc = ctn_err_set(err, w.rc, "%s: while it was watched: %s", to->dir,
					 strerror(-w.rc));
	}
	if (rc == 0 && watched->early)
		rc = ctn_err_set(err, -EPROTO,
				 "%s: %llu of %llu pieces were on a device before its link can "
				 "have carried them",
				 to->dir, (unsigned long long)watched->early,
				 (unsigned long long)watched->pieces);
	for (uint32_t r = 0; r < CTN_MAX_DEVICES; r++) {
		if (w.streams[r])
			ctn_stream_free(w.streams[r]);
	}
	pthread_mutex_destroy(&w.lock);
	pthread_cond_destroy(&w.changed);
	free(w.links);
	free(w.points);
	return rc;
}
