// SPDX-License-Identifier: MIT
/* What goes in and out by name: for logs, and for those who read them again. */
#include "sched/sched.h"

#define FIELD(type, member, kind)                                        \
	{                                                                \
#member, offsetof(struct type, member), CTN_SCHED_##kind \
	}

#define CONFIG(member, kind) FIELD(ctn_sched_config, member, kind)
#define RANK(member, kind)   FIELD(ctn_sched_rank, member, kind)
#define MODEL(member, kind)  FIELD(ctn_sched_model, member, kind)
#define EVENT(member, kind)  FIELD(ctn_sched_event, member, kind)
#define ACTION(member, kind) FIELD(ctn_sched_action, member, kind)

/* clang-format off */
const struct ctn_sched_field ctn_sched_config_fields[] = {
	CONFIG(max_models, U32), CONFIG(max_requests, U32), CONFIG(partial_drops, BOOL),
	CONFIG(pauses, BOOL), CONFIG(cancels, BOOL), CONFIG(host_known, BOOL),
	CONFIG(stages, BOOL), CONFIG(host_bytes, U64), CONFIG(exclusive_steps, BOOL), {0}};
const struct ctn_sched_field ctn_sched_rank_fields[] = {
	RANK(device, U32), RANK(stage, U32), RANK(weight_bytes, U64), RANK(workspace_bytes, U64),
	RANK(kv_block_bytes, U64), {0}};
const struct ctn_sched_field ctn_sched_model_fields[] = {
	MODEL(max_sequences, U32), MODEL(max_steps, U32), MODEL(priority, I32),
	MODEL(host_bytes, U64), {0}};
const struct ctn_sched_field ctn_sched_event_fields[] = {
	EVENT(model, U32), EVENT(request, U32), EVENT(device, U32), EVENT(kv_blocks, U32),
	EVENT(kv_first, U32), EVENT(deadline_ns, U64), EVENT(no_step, BOOL), EVENT(bytes, U64),
	EVENT(seconds, REAL), {0}};
const struct ctn_sched_field ctn_sched_action_fields[] = {
	ACTION(why, U32), ACTION(model, U32), ACTION(request, U32), ACTION(rank, U32),
	ACTION(layers, U32), ACTION(blocks, U32), ACTION(ticket, U64), ACTION(bytes, U64),
	ACTION(seconds, REAL), {0}};
/* clang-format on */

/* A new member belongs into the lists above, or into what else the log says (lists, texts). */
_Static_assert(sizeof(struct ctn_sched_config) == 80, "ctn_sched_config_fields");
_Static_assert(sizeof(struct ctn_sched_rank) == 48, "ctn_sched_rank_fields");
_Static_assert(sizeof(struct ctn_sched_model) == 40, "ctn_sched_model_fields");
_Static_assert(sizeof(struct ctn_sched_event) == 72, "ctn_sched_event_fields");
_Static_assert(sizeof(struct ctn_sched_action) == 64, "ctn_sched_action_fields");

const char *ctn_sched_event_name(enum ctn_sched_event_type type)
{
	static const char *const names[CTN_SCHED_EVENT_TYPES] = {
		[CTN_EV_ARRIVAL] = "arrival",
		[CTN_EV_KV] = "kv",
		[CTN_EV_REQUEST_DONE] = "request_done",
		[CTN_EV_LOAD_DONE] = "load_done",
		[CTN_EV_LOAD_FAILED] = "load_failed",
		[CTN_EV_LOAD_CANCELLED] = "load_cancelled",
		[CTN_EV_STEP_DONE] = "step_done",
		[CTN_EV_STEP_ADVANCED] = "step_advanced",
		[CTN_EV_HOST] = "host",
		[CTN_EV_STAGE_DONE] = "stage_done",
		[CTN_EV_HOST_NEED] = "host_need",
		[CTN_EV_EVICT] = "evict",
		[CTN_EV_PIN] = "pin",
		[CTN_EV_UNPIN] = "unpin",
		[CTN_EV_FRAME_LOST] = "frame_lost",
		[CTN_EV_DEVICE_LOST] = "device_lost",
		[CTN_EV_TIMER] = "timer",
	};

	return names[type];
}

const char *ctn_sched_action_name(enum ctn_sched_action_type type)
{
	static const char *const names[CTN_SCHED_ACTION_TYPES] = {
		[CTN_ACT_REFUSE] = "refuse",       [CTN_ACT_DROP] = "drop",
		[CTN_ACT_DROP_TAIL] = "drop_tail", [CTN_ACT_PREEMPT] = "preempt",
		[CTN_ACT_LOAD] = "load",           [CTN_ACT_CANCEL] = "cancel",
		[CTN_ACT_KV_BUDGET] = "kv_budget", [CTN_ACT_ADMIT] = "admit",
		[CTN_ACT_STEP] = "step",           [CTN_ACT_DROP_HOST] = "drop_host",
		[CTN_ACT_STAGE] = "stage",
	};

	return names[type];
}

const char *ctn_sched_state_name(enum ctn_sched_state state)
{
	static const char *const names[] = {[CTN_SCHED_ABSENT] = "absent",
					    [CTN_SCHED_LOADING] = "loading",
					    [CTN_SCHED_RESIDENT] = "resident"};

	return names[state];
}
