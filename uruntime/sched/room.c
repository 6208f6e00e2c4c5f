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
 * QUANTUM_LOADS times the seconds of its load, from the end of its load or the arrival of the
 * request that wants its room, whichever is later, so that at most a fifth of the time goes into
 * its loads; but no longer than that request's slack. Then it starts no more steps and is paused.
 * A model that is not there itself cannot drain, and gives what it holds: two half-loaded models
 * never wait for each other.
 *
 * Cost: O(h) in the models that hold something for each part of a victim, of which there are at
 * most LEVELS.
 */
#include "sched/room.h"

#include <math.h>

#define LEVELS    8
#define HORIZON_S 0.2

#define QUANTUM_LOADS 4

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
	return share > 0 ? m->chance * delay_s * exp2(m->priority) : 0;
}

/* The residency quantum: so many seconds for those of its load. */
static double quantum_s(const struct ctn_sched *s, const struct sched_model *m)
{
	return QUANTUM_LOADS * sched_seconds_per_byte(s) * (double)m->whole_bytes;
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

	m->chance = waits ? 1 : sched_chance(s, m, HORIZON_S, now_ns);
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

/* When a victim that runs has had what it can have, and is paused for m. */
static uint64_t pause_ns(const struct ctn_sched *s, const struct sched_model *v,
			 const struct sched_model *m, uint64_t since)
{
	uint64_t end = CTN_MAX(v->since_ns, since) + (uint64_t)(1e9 * quantum_s(s, v));
	int64_t slack;

	if (m->queue.head == NO_REQUEST)
		return end;
	slack = m->key_ns + m->priority * CTN_SCHED_PATIENCE_S * 1000000000ll -
		(int64_t)(1e9 * (sched_load_seconds(s, m, m->missing_bytes) + m->step_s));
	return CTN_MIN(end, (uint64_t)CTN_MAX(slack, 0));
}

static bool may_be_victim(const struct ctn_sched *s, const struct sched_model *v,
			  const struct sched_model *m)
{
	return v != m && !(v->pinned && v->state == CTN_SCHED_RESIDENT) &&
	       v->state != CTN_SCHED_LOADING && sched_holds(v) &&
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

/* The victim and level that cost least for each byte that they bring; NULL: none brings any. */
static struct sched_model *cheapest(const struct ctn_sched *s, const struct sched_model *m,
				    const uint64_t need[CTN_SCHED_MAX_DEVICES], bool idle_only,
				    uint32_t *to, double *paid)
{
	struct sched_model *best = NULL;
	double least = INFINITY;

	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];
		uint32_t levels[2] = {0, 0};

		if (v->level == 0 || (idle_only && busy(s, v)))
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

/* Lowers levels until the need is met. */
static enum sched_room_found choose(struct ctn_sched *s, const struct sched_model *m,
				    uint64_t need[CTN_SCHED_MAX_DEVICES], double budget,
				    bool idle_only)
{
	double total = 0;

	while (!sched_satisfied(s, need)) {
		double paid = 0;
		uint32_t to = 0;
		struct sched_model *best = cheapest(s, m, need, idle_only, &to, &paid);

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

/* Victims that run end what they have; true if there are any. */
static bool drain(struct ctn_sched *s, const struct sched_model *m, uint64_t now_ns)
{
	uint64_t since = s->pauses ? waits_since(s, m) : 0;
	bool waits = false;

	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];
		uint64_t due = UINT64_MAX;

		if (v->level == LEVELS || !busy(s, v))
			continue;
		if (s->pauses && v->admitted)
			due = pause_ns(s, v, m, since);
		v->yields = due <= now_ns;
		waits |= !v->yields || sched_steps(v);
		if (!v->yields)
			s->wake_ns = CTN_MIN(s->wake_ns, due);
	}
	for (uint32_t i = 0; waits && i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];

		if (v->level == LEVELS || !busy(s, v))
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
	bool idle_only = budget < INFINITY;
	enum sched_room_found found;
	uint32_t actions = 4, victims = 0;

	if (!sched_room(s, 4))
		return SCHED_ROOM_LATER;
	sched_lacking(s, m, blocks, need);
	if (sched_satisfied(s, need))
		return SCHED_ROOM;
	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];

		v->level = may_be_victim(s, v, m) && v->barrier == UINT64_MAX ? LEVELS : 0;
		if (v->level)
			sched_value(s, v, now_ns);
	}
	found = choose(s, m, need, budget, idle_only);
	if (found != SCHED_ROOM)
		return found;
	for (uint32_t i = 0; i < s->holder_count; i++) {
		struct sched_model *v = &s->models[s->holders[i]];

		if (v->level == LEVELS || !may_be_victim(s, v, m) || v->barrier != UINT64_MAX) {
			v->level = LEVELS;
		} else {
			actions += v->rank_count;
			s->order[victims++] = s->holders[i];
		}
	}
	if (drain(s, m, now_ns) || !sched_room(s, actions))
		return SCHED_ROOM_LATER;
	actions = s->action_count;
	for (uint32_t i = 0; i < victims; i++)
		drop_to_level(s, s->order[i], now_ns);
	if (s->action_count == actions)
		return SCHED_ROOM_NEVER;
	/* What a victim shares with others has not become free. */
	return sched_make_room(s, m, blocks, budget, now_ns);
}
