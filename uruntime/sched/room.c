// SPDX-License-Identifier: MIT
/*
 * Whose bytes leave when room is needed: those that cost least to be without.
 *
 * What it is expected to cost that a share of the weights of a model is missing, in seconds of
 * waiting: the chance that a request comes within HORIZON_S, given how long the model has been
 * idle, times what this request and those behind it then wait: for the link, as measured, and for
 * the bytes. The wait for the link comes with the first byte that is missing, so it is best to take
 * much from few; what gathers behind the request grows with the square of the wait, so it is best
 * to take from models of low rate. Beyond the first byte the cost is convex: for each victim two
 * amounts are looked at, all that is needed and one part, and the cheapest per byte is taken, again
 * and again. So no model is dropped further than needed, and its tail goes first.
 *
 * A victim that runs or has requests that came before is taken when waiting for it is cheaper than
 * another victim: it drains. It may run on until its residency quantum is over, which is
 * QUANTUM_LOADS times the seconds of its load or LEAST_QUANTUM_S, from the end of its load or the
 * arrival of the request that wants its room, whichever is later, so that at most a fifth of the
 * time goes into its loads; but no longer than that request's slack, if it had any when the
 * victim's load ended, else that of the first behind it with a deadline that had. Then it starts no
 * more steps and is paused. A model that is not there itself cannot drain, and gives what it holds:
 * two half-loaded models never wait for each other.
 *
 * Cost: O(h) in the models that hold something, to find the SHORT_LIST that cost least for each
 * byte when dropped whole (more, if these do not bring enough), and then as much for each part of a
 * victim, of which there are at most LEVELS; and in the queue of a model with deadlines whose first
 * request is late. Chances are computed anew when they are CHANCE_NS old.
 */
#include "sched/room.h"

#include <math.h>
#include <string.h>

#define LEVELS    8
#define HORIZON_S 0.2

#define QUANTUM_LOADS 4
/* A pause has costs that do not shrink with the model: its steps drain, and KV may be lost. */
#define LEAST_QUANTUM_S 0.1

#define SHORT_LIST 24
#define CHANCE_NS  2000000ull

static bool in_parts(const struct ctn_sched *s, const struct sched_model *m)
{
	if (!s->partial_drops)
		return false;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		if (m->ranks[r].layer_count == 0)
			return false;
	}
	return true;
}

static double loss(const struct ctn_sched *s, const struct sched_model *m, double share)
{
	double delay_s =
		s->load_wait_s + share * (double)m->whole_bytes * sched_seconds_per_byte(s);

	delay_s += 0.5 * sched_rate(m) * delay_s * delay_s;
	return share > 0 ? m->chance * delay_s * m->weight : 0;
}

/* The residency quantum: a multiple of the seconds of its load, which is by its link, or what its
 * last one took: that may have waited for a disk, and will again. */
static double quantum_s(const struct ctn_sched *s, const struct sched_model *m)
{
	double load_s = sched_seconds_per_byte(s) * (double)m->whole_bytes;

	if (m->since_ns > m->load_started_ns)
		load_s = CTN_MAX(load_s, (double)(m->since_ns - m->load_started_ns) / 1e9);
	return CTN_MAX(QUANTUM_LOADS * load_s, LEAST_QUANTUM_S);
}

/* What a request takes once it runs. */
static double service_s(const struct sched_model *m)
{
	return CTN_MAX(m->steps_each, 1.0) * m->step_s;
}

void sched_value(const struct ctn_sched *s, struct sched_model *m, uint64_t now_ns)
{
	bool waits = m->queued || (m->admitted && m->state == CTN_SCHED_ABSENT);

	/* Who runs is done before it would be paused, or will want to go on. */
	if (s->pauses && m->admitted && service_s(m) > quantum_s(s, m))
		waits = true;

	if (!waits && (m->hazard_ns < m->gaps.last_ns || now_ns >= m->hazard_ns + CHANCE_NS)) {
		m->hazard = sched_chance(s, m, HORIZON_S, now_ns);
		m->hazard_ns = now_ns;
	}
	m->chance = waits ? 1 : m->hazard;
}

static double missing_share(const struct sched_model *m)
{
	return m->whole_bytes ? (double)m->missing_bytes / (double)m->whole_bytes : 0;
}

double sched_loss(const struct ctn_sched *s, const struct sched_model *m)
{
	return loss(s, m, missing_share(m));
}

/* Layers that rank r keeps at a level. */
static uint32_t layers_at(const struct sched_model *m, uint32_t r, uint32_t level)
{
	return CTN_MIN(m->kept[r].layers, m->ranks[r].layer_count * level / LEVELS);
}

/* Bytes of those. */
static uint64_t bytes_at(const struct sched_model *m, uint32_t r, uint32_t level)
{
	uint32_t layers;

	if (level == LEVELS)
		return m->kept[r].bytes;
	layers = layers_at(m, r, level);
	return layers ? m->ranks[r].layer_bytes[layers - 1] : 0;
}

/* Bytes that rank r of a victim has at its level now; not those of KV that stay with requests. */
static uint64_t has(const struct ctn_sched *s, const struct sched_model *v, uint32_t r)
{
	uint64_t bytes;

	if (v->level < LEVELS)
		return bytes_at(v, r, v->level);
	bytes = sched_held(s, v, r);
	return v->admitted ? bytes - sched_kv_charge(s, v, r, v->kv_budget) : bytes;
}

/* Of the bytes that are needed, those that m brings when it goes down to `level`. */
static uint64_t brings(const struct ctn_sched *s, const struct sched_model *m, uint32_t level,
		       const uint64_t need[CTN_SCHED_MAX_DEVICES])
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < m->rank_count; r++)
		sum += CTN_MIN(need[m->ranks[r].device], has(s, m, r) - bytes_at(m, r, level));
	return sum;
}

/* Runs, or will run requests that came before it began to drain. One that waits for more KV itself
 * will not. */
static bool busy(const struct ctn_sched *s, const struct sched_model *m)
{
	if (m->state == CTN_SCHED_ABSENT)
		return false; /* what was admitted is paused */
	if (m->admitted || sched_steps(m))
		return true;
	return m->queued && (!m->drains || sched_head_arrival(s, m) < m->drains_from) &&
	       s->requests[m->queue.head].kv_blocks <= m->kv_budget;
}

/* Since when somebody has been waiting for what victims of `m` have. */
static uint64_t waits_since(const struct ctn_sched *s, const struct sched_model *m)
{
	uint64_t since = UINT64_MAX;

	if (m->queue.head != NO_REQUEST)
		since = s->requests[m->queue.head].arrival_ns;
	for (uint32_t i = 0; i < s->waiter_count; i++) {
		if (s->waiters[i].devices & m->devices)
			since = CTN_MIN(since, s->waiters[i].since_ns);
	}
	return since;
}

/* When the load of m has to begin at the latest for its first request: the one with the least key,
 * or, if that was late at `since_ns` already, the first of those with deadlines that were not.
 * INT64_MAX: all were late. */
static int64_t slack_ns(const struct ctn_sched *s, const struct sched_model *m, uint64_t since_ns)
{
	int64_t before = (int64_t)(1e9 * (sched_load_seconds(s, m, m->missing_bytes) + m->step_s)) -
			 m->priority * CTN_SCHED_PATIENCE_S * 1000000000ll;
	int64_t key = m->key_ns, late = (int64_t)since_ns + before;

	if (key > late)
		return key - before;
	key = INT64_MAX;
	if (m->deadlines) {
		for (uint32_t i = m->queue.head; i != NO_REQUEST; i = s->requests[i].next) {
			if (s->requests[i].deadline_ns && s->requests[i].key_ns > late)
				key = CTN_MIN(key, s->requests[i].key_ns);
		}
	}
	return key == INT64_MAX ? key : key - before;
}

/* When a victim that runs has had what it can have, and is paused for m. */
static uint64_t pause_ns(const struct ctn_sched *s, const struct sched_model *v,
			 const struct sched_model *m, uint64_t since)
{
	uint64_t end = CTN_MAX(v->since_ns, since) + (uint64_t)(1e9 * quantum_s(s, v));

	if (m->queue.head == NO_REQUEST)
		return end;
	/* What had no slack left when the victim came is late anyway. Where all are, each would
	 * make way as soon as it is loaded, and none run. */
	return CTN_MIN(end, (uint64_t)slack_ns(s, m, v->since_ns));
}

static bool may_be_victim(const struct ctn_sched *s, const struct sched_model *v,
			  const struct sched_model *m)
{
	return v != m && !(v->pinned && v->state == CTN_SCHED_RESIDENT) &&
	       v->state != CTN_SCHED_LOADING && v->kept_bytes &&
	       (v->state == CTN_SCHED_RESIDENT || !v->admitted || s->pauses);
}

/* The next level down at which it has less. */
static uint32_t next_level(const struct sched_model *v)
{
	uint32_t level = v->level;

	while (level) {
		level--;
		for (uint32_t r = 0; r < v->rank_count; r++) {
			if (layers_at(v, r, level) < v->kept[r].layers)
				return level;
		}
	}
	return 0;
}

/* The highest level at which it brings as much of what is needed as it can. */
static uint32_t deepest_level(const struct ctn_sched *s, const struct sched_model *v,
			      const uint64_t need[CTN_SCHED_MAX_DEVICES])
{
	uint64_t most = brings(s, v, 0, need);
	uint32_t level = 0;

	while (level + 1 < v->level && brings(s, v, level + 1, need) == most)
		level++;
	return level;
}

/* Seconds of waiting that it is expected to cost to go down to `level`. */
static double price(const struct ctn_sched *s, const struct sched_model *v,
		    const struct sched_model *m, uint32_t level)
{
	double before = v->level == LEVELS ? missing_share(v) : 1 - (double)v->level / LEVELS;
	double after = CTN_MAX(1 - (double)level / LEVELS, before);
	double more = loss(s, v, after) - loss(s, v, before);

	if (v->level == LEVELS && busy(s, v) && !v->drains)
		more += m->queued * service_s(v);
	return more;
}

/* The victim (of the first `count` of s->order) and level that cost least for each byte that they
 * bring; NULL: none brings any. */
static struct sched_model *cheapest(const struct ctn_sched *s, const struct sched_model *m,
				    const uint64_t need[CTN_SCHED_MAX_DEVICES], uint32_t count,
				    uint32_t *to, double *paid)
{
	struct sched_model *best = NULL;
	double least = INFINITY;

	for (uint32_t i = 0; i < count; i++) {
		struct sched_model *v = &s->models[s->order[i]];
		uint32_t levels[2] = {0, 0};

		if (v->level == 0)
			continue;
		if (in_parts(s, v)) {
			levels[0] = deepest_level(s, v, need);
			levels[1] = next_level(v);
		}
		for (int k = 0; k < 2; k++) {
			double bytes = (double)brings(s, v, levels[k], need);
			double p = price(s, v, m, levels[k]);

			if (bytes == 0 || p > least * bytes ||
			    (p == least * bytes && v->last_used_ns >= best->last_used_ns))
				continue;
			least = p / bytes;
			*paid = p;
			best = v;
			*to = levels[k];
		}
	}
	return best;
}

/* Lowers levels of the first `count` of s->order until the need is met. */
static enum sched_room_found choose(struct ctn_sched *s, const struct sched_model *m,
				    uint64_t need[CTN_SCHED_MAX_DEVICES], double budget,
				    uint32_t count)
{
	double total = 0;

	while (!sched_satisfied(s, need)) {
		double paid = 0;
		uint32_t to = 0;
		struct sched_model *best = cheapest(s, m, need, count, &to, &paid);

		if (!best)
			return SCHED_ROOM_NEVER;
		total += paid;
		if (total > budget)
			return SCHED_ROOM_LATER;
		for (uint32_t r = 0; r < best->rank_count; r++) {
			uint64_t *left = &need[best->ranks[r].device];

			*left -= CTN_MIN(*left, has(s, best, r) - bytes_at(best, r, to));
		}
		best->level = to;
	}
	return SCHED_ROOM;
}

/* Into s->order: who can bring anything of the need; how many. */
static uint32_t find_victims(struct ctn_sched *s, const struct sched_model *m,
			     const uint64_t need[CTN_SCHED_MAX_DEVICES], bool idle_only,
			     uint64_t now_ns)
{
	uint64_t short_of = 0;
	uint32_t count = 0;

	for (uint32_t d = 0; d < s->device_count; d++)
		short_of |= (uint64_t)(need[d] > 0) << d;
	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];

		if (!(v->devices & short_of) || v->barrier != UINT64_MAX ||
		    !may_be_victim(s, v, m) || (idle_only && busy(s, v)))
			continue;
		v->level = LEVELS;
		sched_value(s, v, now_ns);
		v->score = price(s, v, m, 0) / (double)v->kept_bytes;
		s->order[count++] = s->holders[i];
	}
	return count;
}

/* The `keep` best scores of s->order to its front (quickselect). */
static void select_victims(struct ctn_sched *s, uint32_t count, uint32_t keep)
{
	uint32_t low = 0, high = count;

	while (high - low > 1) {
		double pivot = s->models[s->order[low + (high - low) / 2]].score;
		uint32_t i = low, j = high - 1;

		for (;;) {
			uint32_t swap;

			while (s->models[s->order[i]].score < pivot)
				i++;
			while (s->models[s->order[j]].score > pivot)
				j--;
			if (i >= j)
				break;
			swap = s->order[i];
			s->order[i++] = s->order[j];
			s->order[j--] = swap;
		}
		/* All before i are no worse than the pivot, all from i on no better. */
		if (keep <= i)
			high = CTN_MAX(i, low + 1);
		else
			low = i;
		if (keep == i || keep == low)
			return;
	}
}

/* Do the first `count` of s->order bring all that is needed? */
static bool suffice(const struct ctn_sched *s, uint32_t count,
		    const uint64_t need[CTN_SCHED_MAX_DEVICES])
{
	uint64_t left[CTN_SCHED_MAX_DEVICES];

	memcpy(left, need, s->device_count * sizeof(*left));
	for (uint32_t i = 0; i < count; i++) {
		const struct sched_model *v = &s->models[s->order[i]];

		for (uint32_t r = 0; r < v->rank_count; r++) {
			uint64_t *of = &left[v->ranks[r].device];

			*of -= CTN_MIN(*of, has(s, v, r));
		}
	}
	return sched_satisfied(s, left);
}

static void drop_to_level(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *v = &s->models[model];

	if (v->admitted && v->state == CTN_SCHED_RESIDENT)
		v->paused_ns = now_ns;
	if (v->level == 0) {
		sched_drop(s, model);
		return;
	}
	for (uint32_t r = 0; r < v->rank_count; r++) {
		uint32_t layers = layers_at(v, r, v->level);

		if (layers < v->kept[r].layers)
			sched_drop_tail(s, model, r, layers);
	}
}

/* Victims (the first `count` of s->order) that run end what they have; true if there are any. */
static bool drain(struct ctn_sched *s, const struct sched_model *m, uint32_t count, uint64_t now_ns)
{
	uint64_t since = s->pauses ? waits_since(s, m) : 0;
	bool waits = false;

	for (uint32_t i = 0; i < count; i++) {
		struct sched_model *v = &s->models[s->order[i]];
		uint64_t due = UINT64_MAX;

		if (!busy(s, v))
			continue;
		if (s->pauses && v->admitted)
			due = pause_ns(s, v, m, since);
		v->yields = due <= now_ns;
		waits |= !v->yields || sched_steps(v);
		if (!v->yields)
			s->wake_ns = CTN_MIN(s->wake_ns, due);
	}
	for (uint32_t i = 0; waits && i < count; i++) {
		struct sched_model *v = &s->models[s->order[i]];

		if (!busy(s, v))
			continue;
		if (!v->drains)
			v->drains_from = s->arrivals;
		v->barrier = v->drains_from - 1;
	}
	return waits;
}

enum sched_room_found sched_make_room(struct ctn_sched *s, struct sched_model *m, uint32_t blocks,
				      double budget, uint64_t now_ns)
{
	uint64_t need[CTN_SCHED_MAX_DEVICES];
	enum sched_room_found found;
	uint32_t actions = 4, count, keep = SHORT_LIST, victims = 0;

	if (!sched_room(s, 4))
		return SCHED_ROOM_LATER;
	sched_lacking(s, m, blocks, need);
	if (sched_satisfied(s, need))
		return SCHED_ROOM;
	count = find_victims(s, m, need, budget < INFINITY, now_ns);
	for (; keep < count; keep *= 2) {
		select_victims(s, count, keep);
		if (suffice(s, keep, need))
			break;
	}
	count = CTN_MIN(count, keep);
	found = choose(s, m, need, budget, count);
	if (found != SCHED_ROOM)
		return found;
	for (uint32_t i = 0; i < count; i++) {
		const struct sched_model *v = &s->models[s->order[i]];

		if (v->level == LEVELS)
			continue;
		actions += v->rank_count;
		s->order[victims++] = s->order[i];
	}
	if (drain(s, m, victims, now_ns) || !sched_room(s, actions))
		return SCHED_ROOM_LATER;
	actions = s->action_count;
	for (uint32_t i = 0; i < victims; i++)
		drop_to_level(s, s->order[i], now_ns);
	if (s->action_count == actions)
		return SCHED_ROOM_NEVER;
	/* What a victim shares with others has not become free. */
	return sched_make_room(s, m, blocks, budget, now_ns);
}
