/* SPDX-License-Identifier: MIT */
/*
 * computron doctor: what the daemon would ask this machine for, what it would get, why no more,
 * and the command that mends it. Whatever can be tried is tried; the rest is read from /proc and
 * /sys. Private to tools. One thread.
 */
#ifndef CTN_TOOLS_DOCTOR_H
#define CTN_TOOLS_DOCTOR_H

#include "base/base.h"
#include "pool/pool.h"

enum ctn_doctor_state {
	CTN_DOCTOR_OK,
	CTN_DOCTOR_WORSE,   /* it works, but slower or with less than it could */
	CTN_DOCTOR_BLOCKED, /* the daemon could not serve */
};

struct ctn_finding {
	const char *name;
	enum ctn_doctor_state state;
	char asked[128];
	char got[256];
	char why[384];  /* unless it is OK */
	char mend[256]; /* likewise */
};

#define CTN_FINDINGS_MAX 16

struct ctn_doctor {
	const char *root;       /* in front of the paths of /proc and /sys; "" in service */
	const char *models_dir; /* NULL: not looked at */
	uint64_t pool_bytes;    /* what the pool would take */
	const char *provider;   /* that the pool has to be of; NULL: the best that works */
	const struct ctn_kmod_sys *kmod_sys; /* NULL: the real calls */
	struct ctn_finding findings[CTN_FINDINGS_MAX];
	uint32_t count;
};

/* Looks at everything; root, models_dir and pool_bytes are set. */
void ctn_doctor_examine(struct ctn_doctor *d);

/* What it means that a provider does not work: BLOCKED when it is the one that was asked for. */
enum ctn_doctor_state ctn_doctor_without(const struct ctn_doctor *d, const char *provider);
/* Adds an OK finding of that name; doctor.c. */
struct ctn_finding *ctn_doctor_add(struct ctn_doctor *d, const char *name);
/* Makes it one that is not; why and mend are set by the caller. */
void ctn_doctor_judge(struct ctn_finding *f, enum ctn_doctor_state state, const char *why, ...)
	CTN_PRINTF(3, 4);

/* Each adds its findings: doctor_memory.c, doctor_disk.c. */
void ctn_doctor_memory(struct ctn_doctor *d);
void ctn_doctor_disk(struct ctn_doctor *d);

#endif
