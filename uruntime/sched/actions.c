// SPDX-License-Identifier: MIT
/* The mirror below the policies: what fits where, and what each action changes. */
#include "sched/state.h"

#include <math.h>

/* ---- charges ---------------------------------------------------------------------------- */

uint64_t sched_kv_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			 uint32_t blocks)
{
	const struct ctn_sched_rank *rank = &m->ranks[r];

	return ctn_align_up(rank->kv_block_bytes * blocks, s->granule[rank->device]);
}

uint64_t sched_rank_charge(const struct ctn_sched *s, const struct sched_model *m, uint32_t r,
			   uint32_t blocks)
{
	return m->ranks[r].weight_bytes + m->ranks[r].workspace_bytes +
	       sched_kv_charge(s, m, r, blocks);
}

uint64_t sched_held(const struct ctn_sched *s, const struct sched_model *m, uint32_t r)
{
	if (m->state == CTN_SCHED_ABSENT)
		return m->kept[r].bytes + sched_kv_charge(s, m, r, m->kv_budget);
	return sched_rank_charge(s, m, r, m->kv_budget);
}

uint64_t sched_device_charge(const struct ctn_sched *s, const struct sched_model *m,
			     uint32_t device, uint32_t blocks)
{
	uint64_t sum = 0;

	for (uint32_t r = 0; r < m->rank_count; r++) {
		if (m->ranks[r].device == device)
			sum += sched_rank_charge(s, m, r, blocks);
	}
	return sum;
}

bool sched_fits(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		bool (*beside)(const struct sched_model *))
{
	uint64_t common[CTN_SCHED_MAX_DEVICES];

	sched_in_common(s, m, beside, common);
	for (uint32_t d = 0; d < s->device_count; d++) {
		uint64_t sum = sched_device_charge(s, m, d, blocks);

		for (uint32_t i = 0; beside && sum && i < s->holder_count; i++) {
			const struct sched_model *o = &s->models[s->holders[i]];

			if (o != m && o->state != CTN_SCHED_ABSENT && beside(o))
				sum += sched_device_charge(s, o, d, o->kv_budget);
		}
		if (sum - common[d] > s->device_bytes[d])
			return false;
	}
	return true;
}

void sched_lacking(const struct ctn_sched *s, const struct sched_model *m, uint32_t blocks,
		   uint64_t need[CTN_SCHED_MAX_DEVICES])
{
	uint64_t had[CTN_SCHED_MAX_DEVICES];

	for (uint32_t d = 0; d < s->device_count; d++)
		need[d] = 0;
	sched_there_already(s, m, had);
	/* A paused model may hold more KV than it asks for. */
	for (uint32_t r = 0; r < m->rank_count; r++) {
		need[m->ranks[r].device] += sched_rank_charge(s, m, r, blocks);
		had[m->ranks[r].device] += sched_held(s, m, r);
	}
	for (uint32_t d = 0; d < s->device_count; d++) {
		had[d] += s->device_bytes[d] - (s->charged[d] - s->common[d]);
		need[d] -= CTN_MIN(need[d], had[d]);
	}
}

bool sched_satisfied(const struct ctn_sched *s, const uint64_t need[CTN_SCHED_MAX_DEVICES])
{
	for (uint32_t d = 0; d < s->device_count; d++) {
		if (need[d])
			return false;
	}
	return true;
}

/* ---- lists of requests ------------------------------------------------------------------ */

void sched_list_append(struct ctn_sched *s, struct sched_list *list, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];

	q->prev = list->tail;
	q->next = NO_REQUEST;
	if (list->tail == NO_REQUEST)
		list->head = slot;
	else
		s->requests[list->tail].next = slot;
	list->tail = slot;
}

/* By arrival. */
static void list_insert(struct ctn_sched *s, struct sched_list *list, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	uint32_t next = list->head;

	while (next != NO_REQUEST && s->requests[next].arrival < q->arrival)
		next = s->requests[next].next;
	if (next == NO_REQUEST) {
		sched_list_append(s, list, slot);
		return;
	}
	q->next = next;
	q->prev = s->requests[next].prev;
	s->requests[next].prev = slot;
	if (q->prev == NO_REQUEST)
		list->head = slot;
	else
		s->requests[q->prev].next = slot;
}

void sched_list_remove(struct ctn_sched *s, struct sched_list *list, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];

	if (q->prev == NO_REQUEST)
		list->head = q->next;
	else
		s->requests[q->prev].next = q->next;
	if (q->next == NO_REQUEST)
		list->tail = q->prev;
	else
		s->requests[q->next].prev = q->prev;
}

/* ---- actions ---------------------------------------------------------------------------- */

bool sched_room(struct ctn_sched *s, uint32_t count)
{
	if (s->action_max - s->action_count >= count)
		return true;
	s->more = true;
	return false;
}

static struct ctn_sched_action *emit(struct ctn_sched *s, enum ctn_sched_action_type type)
{
	struct ctn_sched_action *a = &s->actions[s->action_count++];

	CTN_ASSERT(s->action_count <= s->action_max);
	*a = (struct ctn_sched_action){.type = type, .request = NO_REQUEST, .reason = s->reason};
	return a;
}

static void charge(struct ctn_sched *s, struct sched_model *m)
{
	sched_note(s, m);
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint32_t d = m->ranks[r].device;

		s->charged[d] += sched_held(s, m, r);
	}
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint32_t d = m->ranks[r].device;

		CTN_ASSERT(s->charged[d] - s->common[d] <= s->device_bytes[d]);
	}
}

static void uncharge(struct ctn_sched *s, const struct sched_model *m)
{
	for (uint32_t r = 0; r < m->rank_count; r++)
		s->charged[m->ranks[r].device] -= sched_held(s, m, r);
}

void sched_count_missing(struct sched_model *m)
{
	uint64_t on_device[CTN_SCHED_MAX_DEVICES] = {0};

	m->missing_bytes = 0;
	m->kept_bytes = 0;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint64_t *sum = &on_device[m->ranks[r].device];

		m->kept_bytes += m->kept[r].bytes;
		*sum += m->ranks[r].weight_bytes - m->kept[r].bytes;
		m->missing_bytes = CTN_MAX(m->missing_bytes, *sum);
	}
}

/* The workspace leaves, and the KV blocks that no paused request holds. */
static void leave(struct sched_model *m)
{
	m->state = CTN_SCHED_ABSENT;
	m->cancelling = false;
	if (m->admitted == 0)
		m->kv_budget = 0;
}

void sched_keep(struct ctn_sched *s, struct sched_model *m, const uint32_t *layers)
{
	uncharge(s, m);
	leave(m);
	s->check_ns[m - s->models] = UINT64_MAX;
	for (uint32_t r = 0; r < m->rank_count; r++) {
		uint32_t n = layers ? layers[r] : 0;

		CTN_ASSERT(n <= m->ranks[r].layer_count);
		sched_set_kept(s, m, r,
			       (struct sched_kept){n, n ? m->ranks[r].layer_bytes[n - 1] : 0});
	}
	sched_count_missing(m);
	charge(s, m);
}

void sched_forget(struct ctn_sched *s, struct sched_model *m)
{
	sched_keep(s, m, NULL);
}

bool sched_may_drop(const struct ctn_sched *s, const struct sched_model *m)
{
	return m->state != CTN_SCHED_LOADING && sched_steps(m) == 0 &&
	       (m->admitted == 0 || s->pauses);
}

void sched_drop(struct ctn_sched *s, uint32_t model)
{
	CTN_ASSERT(sched_may_drop(s, &s->models[model]));
	sched_forget(s, &s->models[model]);
	emit(s, CTN_ACT_DROP)->model = model;
}

void sched_drop_tail(struct ctn_sched *s, uint32_t model, uint32_t r, uint32_t layers)
{
	struct sched_model *m = &s->models[model];
	struct sched_kept *kept = &m->kept[r];
	struct ctn_sched_action *a;

	CTN_ASSERT(s->partial_drops && sched_may_drop(s, m) && layers < kept->layers);
	uncharge(s, m);
	leave(m);
	s->check_ns[model] = UINT64_MAX;
	sched_set_kept(
		s, m, r,
		(struct sched_kept){layers, layers ? m->ranks[r].layer_bytes[layers - 1] : 0});
	sched_count_missing(m);
	charge(s, m);
	a = emit(s, CTN_ACT_DROP_TAIL);
	a->model = model;
	a->rank = r;
	a->layers = layers;
}

void sched_cancel(struct ctn_sched *s, uint32_t model)
{
	struct sched_model *m = &s->models[model];

	CTN_ASSERT(s->cancels && m->state == CTN_SCHED_LOADING && !m->cancelling);
	m->cancelling = true;
	emit(s, CTN_ACT_CANCEL)->model = model;
}

static void emit_kv_budget(struct ctn_sched *s, uint32_t model)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_KV_BUDGET);

	a->model = model;
	a->blocks = s->models[model].kv_budget;
}

void sched_kv_budget(struct ctn_sched *s, uint32_t model, uint32_t blocks)
{
	struct sched_model *m = &s->models[model];

	uncharge(s, m);
	m->kv_budget = blocks;
	charge(s, m);
	emit_kv_budget(s, model);
}

void sched_load(struct ctn_sched *s, uint32_t model, uint32_t kv_blocks, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];
	struct ctn_sched_action *a;

	CTN_ASSERT(m->state == CTN_SCHED_ABSENT && kv_blocks >= m->kv_admitted);
	/* What paused requests do not need becomes free before the weights are reserved. */
	if (kv_blocks < m->kv_budget)
		sched_kv_budget(s, model, kv_blocks);
	sched_learn_wait(s, m, now_ns);
	m->load_bytes = sched_load_bytes(s, m);
	m->load_started_ns = now_ns;
	m->stage_bytes = m->host_missing;
	m->load_due_ns = now_ns + (uint64_t)(1e9 * sched_load_seconds(s, m, m->load_bytes));
	uncharge(s, m);
	m->state = CTN_SCHED_LOADING;
	m->ticket = ++s->tickets;
	m->last_used_ns = now_ns;
	m->kv_budget = kv_blocks;
	for (uint32_t r = 0; r < m->rank_count; r++)
		sched_set_kept(
			s, m, r,
			(struct sched_kept){m->ranks[r].layer_count, m->ranks[r].weight_bytes});
	sched_count_missing(m);
	charge(s, m);
	a = emit(s, CTN_ACT_LOAD);
	a->model = model;
	a->ticket = m->ticket;
	a->seconds = (double)(m->load_due_ns - now_ns) / 1e9;
	emit_kv_budget(s, model);
}

void sched_settle_kv(struct ctn_sched *s, uint32_t model)
{
	const struct sched_model *m = &s->models[model];

	if (m->state == CTN_SCHED_ABSENT && m->admitted == 0 && m->kv_budget)
		sched_kv_budget(s, model, 0);
}

void sched_admit(struct ctn_sched *s, uint32_t slot, uint64_t now_ns)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];
	struct ctn_sched_action *a;

	CTN_ASSERT(q->state == REQUEST_QUEUED);
	sched_dequeue(s, m, slot);
	q->state = REQUEST_ADMITTED;
	q->step = 0;
	sched_list_append(s, &m->batch, slot);
	m->admitted++;
	m->ready += !q->no_step;
	m->kv_admitted += q->kv_blocks;
	m->last_used_ns = now_ns;
	CTN_ASSERT(m->kv_admitted <= m->kv_budget);
	a = emit(s, CTN_ACT_ADMIT);
	a->request = slot;
	a->model = q->model;
}

void sched_preempt(struct ctn_sched *s, uint32_t slot)
{
	struct sched_request *q = &s->requests[slot];
	struct sched_model *m = &s->models[q->model];
	struct ctn_sched_action *a;

	CTN_ASSERT(q->state == REQUEST_ADMITTED && !(q->step > m->steps_done));
	sched_list_remove(s, &m->batch, slot);
	m->admitted--;
	m->ready -= !q->no_step;
	m->kv_admitted -= q->kv_blocks;
	q->state = REQUEST_QUEUED;
	list_insert(s, &m->queue, slot);
	m->queued++;
	m->key_ns = CTN_MIN(m->key_ns, q->key_ns);
	sched_note(s, m);
	a = emit(s, CTN_ACT_PREEMPT);
	a->request = slot;
	a->model = q->model;
	sched_settle_kv(s, q->model);
}

void sched_step(struct ctn_sched *s, uint32_t model, uint64_t now_ns)
{
	struct sched_model *m = &s->models[model];
	struct ctn_sched_action *a;

	CTN_ASSERT(sched_steps(m) < m->max_steps && m->ready > 0);
	m->steps_started++;
	for (uint32_t q = m->batch.head; q != NO_REQUEST; q = s->requests[q].next) {
		if (!s->requests[q].no_step && s->requests[q].step <= m->steps_done) {
			s->requests[q].step = m->steps_started;
			s->requests[q].steps++;
		}
	}
	sched_serve(m, m->step_s);
	if (s->exclusive_steps)
		s->entering |= m->first_stage;
	m->step_alone = sched_steps(m) == 1 && m->state == CTN_SCHED_RESIDENT;
	m->step_started_ns = now_ns;
	m->in_step[m->steps_started % CTN_SCHED_MAX_STEPS] = m->ready;
	m->ready = 0;
	m->last_used_ns = now_ns;
	a = emit(s, CTN_ACT_STEP);
	a->model = model;
	a->seconds = m->step_s;
}

void sched_refuse(struct ctn_sched *s, uint32_t slot, enum ctn_sched_refusal why)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_REFUSE);
	struct sched_model *m = &s->models[s->requests[slot].model];

	CTN_ASSERT(s->requests[slot].state == REQUEST_QUEUED);
	m->deadlines -= s->requests[slot].deadline_ns != 0;
	sched_dequeue(s, m, slot);
	sched_note(s, m);
	s->requests[slot].state = REQUEST_REFUSED;
	a->request = slot;
	a->model = s->requests[slot].model;
	a->why = why;
}

static void drop_host(struct ctn_sched *s, uint32_t model, uint64_t bytes)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_DROP_HOST);

	a->model = model;
	a->bytes = bytes;
}

void sched_make_host_room(struct ctn_sched *s, uint32_t model, uint64_t bytes,
			  const uint64_t *host_evictable,
			  double (*chance)(const struct ctn_sched *s, const struct sched_model *m,
					   uint64_t now_ns),
			  double most, uint64_t now_ns)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->model_count; i++) {
		if (host_evictable[i])
			s->order[n++] = i;
	}
	while (bytes && n && sched_room(s, 1)) {
		uint64_t used_ns = 0, take;
		double least = INFINITY;
		uint32_t best = 0;

		for (uint32_t i = 0; i < n; i++) {
			const struct sched_model *m = &s->models[s->order[i]];
			/* A chance is at most 1. */
			double cost =
				(chance ? chance(s, m, now_ns) : 0) + (s->order[i] == model ? 4
								       : m->pinned          ? 2
											    : 0);

			if (cost > least || (cost == least && m->last_used_ns >= used_ns))
				continue;
			least = cost;
			used_ns = m->last_used_ns;
			best = i;
		}
		if (least >= most)
			break;
		take = CTN_MIN(bytes, host_evictable[s->order[best]]);
		drop_host(s, s->order[best], take);
		bytes -= take;
		s->order[best] = s->order[--n];
	}
}

void sched_stage(struct ctn_sched *s, uint32_t model, uint64_t bytes, uint64_t now_ns)
{
	struct ctn_sched_action *a = emit(s, CTN_ACT_STAGE);

	CTN_ASSERT(s->stages && !s->staging);
	s->staging = true;
	s->stage_started_ns = now_ns;
	a->model = model;
	a->bytes = bytes;
	a->seconds = s->stage_seconds_per_byte * (double)bytes;
}
