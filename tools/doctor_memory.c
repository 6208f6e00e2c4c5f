// SPDX-License-Identifier: MIT
/* What the pool would ask for: huge pages, mappings, a node, and memory at all. */
#include "doctor.h"
#include "pool/pool.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIED_BYTES (32 * CTN_MIB)
#define THP         "/sys/kernel/mm/transparent_hugepage/enabled"

/* The text of a file below the root; NULL when there is none. The caller frees it. */
static char *text_of(const struct ctn_doctor *d, const char *path)
{
	char full[512], *text;

	snprintf(full, sizeof(full), "%s%s", d->root, path);
	return ctn_read_text(full, &text) ? NULL : text;
}

/* "NAME:  123" in /proc/meminfo; 0 when it is not there. */
static uint64_t meminfo(const char *text, const char *name)
{
	const char *line = text;
	size_t len = strlen(name);

	while (line && *line) {
		if (strncmp(line, name, len) == 0 && line[len] == ':')
			return strtoull(line + len + 1, NULL, 10);
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	return 0;
}

/* ---- huge pages -------------------------------------------------------------------------- */

/* The number in a file of the 2 MiB pages, which are those that the pool takes. */
static uint64_t huge_pages(const struct ctn_doctor *d, const char *name)
{
	char path[128], *text;
	uint64_t v;

	snprintf(path, sizeof(path), "/sys/kernel/mm/hugepages/hugepages-2048kB/%s", name);
	text = text_of(d, path);
	v = text ? strtoull(text, NULL, 10) : 0;
	free(text);
	return v;
}

/* What the pool would like best: it keeps its frames, also over a restart of the daemon. */
static void check_module(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "kernel module");
	char size[32], total[32], max[32];
	struct ctn_pool_module m;
	struct ctn_err err = {0};
	uint64_t left;

	snprintf(f->asked, sizeof(f->asked), "computron.ko, and room for a pool of %s",
		 ctn_format_size(d->pool_bytes, size));
	if (ctn_pool_ask_module(d->kmod_sys, &m, &err)) {
		bool refused = strstr(err.msg, "not permitted") != NULL;

		snprintf(f->got, sizeof(f->got), "none");
		ctn_doctor_judge(f, ctn_doctor_without(d, "kmod"), "%.380s", err.msg);
		snprintf(f->mend, sizeof(f->mend), "%s",
			 refused ? "usermod -aG computron USER"
				 : "make dkms-install && modprobe computron");
		return;
	}
	left = m.max_bytes > m.total_bytes ? m.max_bytes - m.total_bytes : 0;
	snprintf(f->got, sizeof(f->got), "version %s, ABI %u; %u pools, %s of at most %s",
		 m.version, m.abi, m.pools, ctn_format_size(m.total_bytes, total),
		 ctn_format_size(m.max_bytes, max));
	if (d->pool_bytes <= left)
		return;
	ctn_doctor_judge(f, ctn_doctor_without(d, "kmod"),
			 "the module's limit leaves %llu bytes for more pools",
			 (unsigned long long)left);
	snprintf(f->mend, sizeof(f->mend), "echo %llu > /sys/module/computron/parameters/max_bytes",
		 (unsigned long long)(m.total_bytes + d->pool_bytes));
}

static void check_hugetlb(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "huge pages");
	uint64_t pages = (d->pool_bytes + CTN_EXTENT_ALIGN - 1) / CTN_EXTENT_ALIGN;
	uint64_t free_pages = huge_pages(d, "free_hugepages");
	uint64_t promised = huge_pages(d, "resv_hugepages");
	uint64_t usable = free_pages > promised ? free_pages - promised : 0;
	char size[32];

	snprintf(f->asked, sizeof(f->asked), "the pool's %s reserved",
		 ctn_format_size(d->pool_bytes, size));
	snprintf(f->got, sizeof(f->got), "%s (%llu pages)",
		 ctn_format_size(usable * CTN_EXTENT_ALIGN, size), (unsigned long long)usable);
	if (usable >= pages)
		return;
	ctn_doctor_judge(f, ctn_doctor_without(d, "hugetlb"), "%s (HugePages_Free %llu)",
			 free_pages ? "fewer huge pages are free than the pool takes"
				    : "no huge pages reserved",
			 (unsigned long long)free_pages);
	snprintf(f->mend, sizeof(f->mend), "sysctl -w vm.nr_hugepages=%llu",
		 (unsigned long long)(pages - usable + huge_pages(d, "nr_hugepages")));
}

/* A frame of the provider, and what the kernel says of its pages. */
static int try_thp(double *share, struct ctn_err *err)
{
	struct ctn_pool_config cfg = {.provider = "thp", .bytes = TRIED_BYTES, .node = -1};
	struct ctn_frame_key key = {{0}};
	const struct ctn_extent *extents;
	struct ctn_pool_stats stats;
	struct ctn_frame_ref frame;
	struct ctn_pool *pool;
	uint32_t count;
	int rc = ctn_pool_open(&cfg, &pool, err);

	if (rc)
		return rc;
	rc = ctn_pool_alloc(pool, &key, TRIED_BYTES, -1, &frame);
	if (rc)
		goto close_pool;
	rc = ctn_pool_extents(pool, frame, &extents, &count);
	if (rc == 0)
		rc = ctn_pool_commit(pool, extents, count);
	if (rc == 0) {
		ctn_pool_get_stats(pool, true, &stats);
		*share = (double)stats.huge_bytes / (double)TRIED_BYTES;
	}
	ctn_pool_abort(pool, frame);
close_pool:
	ctn_pool_close(pool);
	if (rc)
		ctn_err_set(err, rc, "a frame of %llu bytes: %s", (unsigned long long)TRIED_BYTES,
			    strerror(-rc));
	return rc;
}

static void check_thp(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "thp");
	char *mode = text_of(d, THP);
	struct ctn_err err = {0};
	double share = 0;
	int rc = try_thp(&share, &err);

	snprintf(f->asked, sizeof(f->asked), "transparent huge pages where the pool wants them");
	if (mode)
		mode[strcspn(mode, "\n")] = '\0';
	snprintf(f->got, sizeof(f->got), "%.0f%% of a frame (%s)", 100 * share,
		 mode ? mode : "no " THP);
	free(mode);
	if (rc == 0 && share > 0.99)
		return;
	if (rc) {
		ctn_doctor_judge(f, ctn_doctor_without(d, "thp"), "%.380s", err.msg);
		snprintf(f->mend, sizeof(f->mend), "echo madvise > " THP);
	} else {
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE, "memory is too fragmented");
		snprintf(f->mend, sizeof(f->mend), "echo 1 > /proc/sys/vm/compact_memory");
	}
}

/* ---- nodes, limits ----------------------------------------------------------------------- */

static int try_bind(void)
{
	long page = sysconf(_SC_PAGESIZE);
	void *at = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			0);
	unsigned long node_0 = 1;
	int rc = 0;

	if (at == MAP_FAILED)
		return -errno;
	if (syscall(SYS_mbind, at, page, MPOL_PREFERRED, &node_0, 8 * sizeof(node_0), 0ul) != 0)
		rc = -errno;
	munmap(at, (size_t)page);
	return rc;
}

/* "0-1,3" has more than one node unless it is a lone number. */
static void check_numa(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "numa");
	char *nodes = text_of(d, "/sys/devices/system/node/online");
	int rc = try_bind();

	if (nodes)
		nodes[strcspn(nodes, "\n")] = '\0';
	snprintf(f->asked, sizeof(f->asked), "memory on the node of its device");
	if (!nodes || !strpbrk(nodes, "-,")) {
		snprintf(f->got, sizeof(f->got), "it: there is one node");
	} else if (rc == 0) {
		snprintf(f->got, sizeof(f->got), "it, on nodes %.64s", nodes);
	} else {
		snprintf(f->got, sizeof(f->got), "any of nodes %.64s", nodes);
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE, "mbind is refused: %s", strerror(-rc));
		snprintf(f->mend, sizeof(f->mend), "docker run --cap-add SYS_NICE");
	}
	free(nodes);
}

static void check_memory(struct ctn_doctor *d, const char *info)
{
	struct ctn_finding *f = ctn_doctor_add(d, "memory");
	uint64_t total = meminfo(info, "MemTotal") * CTN_KIB;
	uint64_t limit = ctn_memory_group_limit(d->root), usable = 0;
	char pool[32], size[32];

	ctn_memory_usable(d->root, &usable);
	snprintf(f->asked, sizeof(f->asked), "the pool's %s, and no limit below %s",
		 ctn_format_size(d->pool_bytes, pool), ctn_format_size(total, size));
	snprintf(f->got, sizeof(f->got), "%s", ctn_format_size(usable, size));
	if (d->pool_bytes < CTN_EXTENT_ALIGN || d->pool_bytes > usable) {
		ctn_doctor_judge(f, CTN_DOCTOR_BLOCKED, "%s",
				 usable / 4 >= CTN_EXTENT_ALIGN && d->pool_bytes <= usable
					 ? "a pool has one extent of 2 MiB at the least"
				 : limit < total ? "the limit of a cgroup, and what is in use"
						 : "other programs hold the rest");
		snprintf(f->mend, sizeof(f->mend), "computrond --pool size=%lluM",
			 (unsigned long long)CTN_MAX(usable / 4 / CTN_MIB, (uint64_t)2));
	} else if (limit < total) {
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE, "a cgroup's limit of %s",
				 ctn_format_size(limit, size));
		snprintf(f->mend, sizeof(f->mend),
			 "systemctl set-property UNIT MemoryMax=infinity (docker: --memory)");
	}
}

/* A CLEAN frame is read-only, and so a mapping of its own: in the worst case they alternate with
 * others, extent by extent. */
static void check_mappings(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "max_map_count");
	uint64_t need = 2 * (d->pool_bytes / CTN_EXTENT_ALIGN) + 4096;
	char *text = text_of(d, "/proc/sys/vm/max_map_count");
	uint64_t have = text ? strtoull(text, NULL, 10) : 0;

	free(text);
	snprintf(f->asked, sizeof(f->asked), "%llu mappings", (unsigned long long)need);
	snprintf(f->got, sizeof(f->got), "%llu", (unsigned long long)have);
	if (have >= need)
		return;
	ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
			 "with many small frames a pool of this size takes more mappings than a "
			 "process may have");
	snprintf(f->mend, sizeof(f->mend), "sysctl -w vm.max_map_count=%llu",
		 (unsigned long long)need);
}

void ctn_doctor_memory(struct ctn_doctor *d)
{
	char *info = text_of(d, "/proc/meminfo");

	check_module(d);
	check_hugetlb(d);
	check_thp(d);
	check_numa(d);
	check_memory(d, info ? info : "");
	check_mappings(d);
	free(info);
}
