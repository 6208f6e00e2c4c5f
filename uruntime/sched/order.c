// SPDX-License-Identifier: MIT
/*
 * Who is first, and the lists over which decisions walk.
 *
 * A request's key is when it should be served at the latest: its deadline, but no later than
 * CTN_SCHED_PATIENCE_S after its arrival, which is also what one without a deadline has; less the
 * same again for each step of its model's priority. The least key is first, so it is earliest
 * deadline first between models with deadlines, first come first served between those without, and
 * whoever waits gets older until nobody new comes before it. Within a model: first come, first
 * served; the model's key is the least of its queue.
 *
 * Fairness (start-time fair queueing): each model has a virtual time, the seconds of computation
 * that it had, by its share. One that begins to want something starts from the least virtual time
 * of those that do. Whoever is ahead of that by more than AHEAD_S comes after all who are not, the
 * farthest last: so a resident model with ever new requests is preferred for a while, and then is
 * not, however long its queue.
 *
 * Lists: models that have something on a device, and models that wait for their weights, are
 * dense arrays with back references, so that the cost of a decision is that of a walk over those,
 * not over all models.
 */
#include "sched/state.h"

#include <math.h>

#define AHEAD_S     1.0
#define BEHIND_NS   (1ll << 60) /* more than keys of those who wait can differ by */
#define PATIENCE_NS (CTN_SCHED_PATIENCE_S * 1000000000ll)

int64_t sched_request_key(const struct sched_model *m, uint64_t deadline_ns, uint64_t now_ns)
{
	int64_t key = (int64_t)now_ns + PATIENCE_NS;

	if (deadline_ns && (int64_t)deadline_ns < key)
		key = (int64_t)deadline_ns;
	return key - m->priority * PATIENCE_NS;
}

/* ---- the queue -------------------------------------------------------------------------- */

void sched_enqueue(struct ctn_sched *s, struct sched_model *m, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];

	if (!m->queued && !m->admitted)
		m->served_s = CTN_MAX(m->served_s, s->virtual_s);
	q->state = REQUEST_QUEUED;
	sched_list_append(s, &m->queue, slot);
	m->queued++;
	m->deadlines += q->deadline_ns != 0;
	m->key_ns = CTN_MIN(m->key_ns, q->key_ns);
	sched_note(s, m);
}

void sched_dequeue(struct ctn_sched *s, struct sched_model *m, uint32_t slot)
{
	int64_t key = s->requests[slot].key_ns;

	sched_list_remove(s, &m->queue, slot);
	m->queued--;
	if (key > m->key_ns)
		return;
	/* Without deadlines keys are in the order of arrival. */
	m->key_ns = INT64_MAX;
	for (uint32_t i = m->queue.head; i != NO_REQUEST; i = s->requests[i].next) {
		m->key_ns = CTN_MIN(m->key_ns, s->requests[i].key_ns);
		if (!m->deadlines)
			break;
	}
}

/* ---- fairness --------------------------------------------------------------------------- */

void sched_serve(struct sched_model *m, double seconds)
{
	m->served_s += seconds / m->weight;
}

void sched_advance(struct ctn_sched *s)
{
	double least = INFINITY;

	for (uint32_t i = 0; i < s->waiter_count; i++)
		least = CTN_MIN(least, s->waiters[i].served_s);
	for (uint32_t i = 0; i < s->holder_count; i++) {
		const struct sched_model *m = &s->models[s->holders[i]];

		if (m->queued || m->admitted)
			least = CTN_MIN(least, m->served_s);
	}
	if (least < INFINITY)
		s->virtual_s = CTN_MAX(s->virtual_s, least);
}

int64_t sched_behind_ns(const struct ctn_sched *s, double served_s)
{
	double ahead_s = served_s - s->virtual_s - AHEAD_S;

	return ahead_s > 0 ? BEHIND_NS + (int64_t)(1e9 * CTN_MIN(ahead_s, 1e6)) : 0;
}

/* ---- the lists -------------------------------------------------------------------------- */

static void note_holder(struct ctn_sched *s, struct sched_model *m, uint32_t id)
{
	bool holds = m->state != CTN_SCHED_ABSENT || m->kv_budget || m->admitted || sched_steps(m);

	if ((holds || sched_holds(m)) == (m->holder != NO_PLACE))
		return;
	if (m->holder == NO_PLACE) {
		m->holder = s->holder_count;
		s->holders[s->holder_count++] = id;
		return;
	}
	s->holders[m->holder] = s->holders[--s->holder_count];
	s->models[s->holders[m->holder]].holder = m->holder;
	m->holder = NO_PLACE;
	m->barrier = UINT64_MAX;
	m->drains = m->yields = false;
}

static void note_waiter(struct ctn_sched *s, struct sched_model *m, uint32_t id)
{
	bool waits = m->state == CTN_SCHED_ABSENT && (m->queued || m->admitted) && !m->lost;
	int64_t paused = (int64_t)m->paused_ns + (1 - m->priority) * PATIENCE_NS;
	uint64_t since = m->paused_ns;

	if (!waits && m->waiter != NO_PLACE) {
		s->waiters[m->waiter] = s->waiters[--s->waiter_count];
		s->models[s->waiters[m->waiter].model].waiter = m->waiter;
		m->waiter = NO_PLACE;
	}
	if (!waits)
		return;
	if (m->waiter == NO_PLACE)
		m->waiter = s->waiter_count++;
	if (!m->admitted)
		since = s->requests[m->queue.head].arrival_ns;
	/* What was paused for others is behind those who waited then. */
	s->waiters[m->waiter] = (struct sched_waiter){.key_ns = m->admitted ? paused : m->key_ns,
						      .since_ns = since,
						      .served_s = m->served_s,
						      .devices = m->devices,
						      .model = id};
}

void sched_note(struct ctn_sched *s, struct sched_model *m)
{
	uint32_t id = (uint32_t)(m - s->models);
	bool ahead = m->state == CTN_SCHED_ABSENT && !m->queued && !m->admitted && !m->lost &&
		     !m->evicted && m->gaps.count && !m->host_missing && m->missing_bytes;

	note_holder(s, m, id);
	note_waiter(s, m, id);
	if (!ahead)
		s->check_ns[id] = UINT64_MAX;
	else if (s->check_ns[id] == UINT64_MAX)
		s->check_ns[id] = 0;
}
