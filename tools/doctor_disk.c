// SPDX-License-Identifier: MIT
/* What stage would ask for: io_uring, memory that may be locked, O_DIRECT. */
#include "bench_stage.h"
#include "doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TRIED_BYTES (2 * CTN_MIB) /* of a checkpoint, to see how it is read */

/* ---- io_uring ---------------------------------------------------------------------------- */

/* The number in a file of /proc, or -1. */
static long read_number(const struct ctn_doctor *d, const char *path)
{
	char full[512], *text;
	long v;

	snprintf(full, sizeof(full), "%s%s", d->root, path);
	if (ctn_read_text(full, &text))
		return -1;
	v = strtol(text, NULL, 10);
	free(text);
	return v;
}

/* Whether a filter of system calls is on this process. */
static bool filtered(void)
{
	char *text, *line;
	int mode = 0;

	if (ctn_read_text("/proc/self/status", &text))
		return false;
	line = strstr(text, "\nSeccomp:");
	if (line)
		sscanf(line, "\nSeccomp: %d", &mode);
	free(text);
	return mode == 2;
}

static void explain_refusal(const struct ctn_doctor *d, int rc, struct ctn_finding *f)
{
	static const char sysctl[] = "/proc/sys/kernel/io_uring_disabled";
	long disabled = read_number(d, sysctl);

	if (rc == -EPERM && disabled > 0) {
		ctn_doctor_judge(
			f, CTN_DOCTOR_WORSE, "kernel.io_uring_disabled is %ld: %s", disabled,
			disabled == 1 ? "only for the group kernel.io_uring_group" : "for nobody");
		snprintf(f->mend, sizeof(f->mend), "sysctl -w kernel.io_uring_disabled=0");
	} else if (filtered()) {
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
				 "a seccomp filter of this container or service refuses it");
		snprintf(f->mend, sizeof(f->mend),
			 "docker run --security-opt seccomp=PROFILE, one that allows "
			 "io_uring_setup, io_uring_enter, io_uring_register (or unconfined)");
	} else if (rc == -ENOMEM) {
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE, "the limit on locked memory is too small");
		snprintf(f->mend, sizeof(f->mend), "ulimit -l unlimited");
	} else {
		ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
				 "this kernel, or what stands in for it, has "
				 "no io_uring that reads files");
		snprintf(f->mend, sizeof(f->mend),
			 "boot Linux 6.1 or later, not under gVisor: uname -r");
	}
}

static int try_ring(unsigned int flags)
{
	struct io_uring ring;
	int rc = io_uring_queue_init(4, &ring, flags);

	if (rc)
		return rc;
	rc = io_uring_register_buffers_sparse(&ring, 1);
	io_uring_queue_exit(&ring);
	/* Without buffers that can be registered one by one it serves, unregistered. */
	return rc ? 1 : 0;
}

static void check_uring(struct ctn_doctor *d)
{
	static const struct {
		const char *name;
		unsigned int flags;
	} rings[] = {
		{"DEFER_TASKRUN", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN},
		{"COOP_TASKRUN", IORING_SETUP_COOP_TASKRUN},
		{"no flags", 0},
	};
	struct ctn_finding *f = ctn_doctor_add(d, "io_uring");
	int rc = -EINVAL;
	size_t i = 0;

	snprintf(f->asked, sizeof(f->asked), "a ring with DEFER_TASKRUN and registered buffers");
	while (i < CTN_ARRAY_LEN(rings) && (rc = try_ring(rings[i].flags)) == -EINVAL)
		i++;
	if (rc < 0) {
		snprintf(f->got, sizeof(f->got), "none (%s)", strerror(-rc));
		explain_refusal(d, rc, f);
		return;
	}
	snprintf(f->got, sizeof(f->got), "%s, %s registered buffers", rings[i].name,
		 rc ? "without" : "with");
	if (i == 0 && rc == 0)
		return;
	ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
			 "this kernel is older than Linux 6.1 (DEFER_TASKRUN) or 5.19 "
			 "(COOP_TASKRUN, buffers registered one by one)");
	snprintf(f->mend, sizeof(f->mend), "boot Linux 6.1 or later: uname -r");
}

/* ---- locked memory ----------------------------------------------------------------------- */

static bool may_lock_memory(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	return syscall(SYS_capget, &header, data) == 0 && data[0].effective & (1u << CAP_IPC_LOCK);
}

static void check_memlock(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "memlock");
	struct rlimit lim = {0};
	char size[32];

	snprintf(f->asked, sizeof(f->asked), "the pool's %s, locked for io_uring and devices",
		 ctn_format_size(d->pool_bytes, size));
	getrlimit(RLIMIT_MEMLOCK, &lim);
	if (may_lock_memory() || lim.rlim_cur == RLIM_INFINITY) {
		snprintf(f->got, sizeof(f->got), "no limit%s",
			 lim.rlim_cur == RLIM_INFINITY ? "" : " (CAP_IPC_LOCK)");
		return;
	}
	snprintf(f->got, sizeof(f->got), "%s", ctn_format_size(lim.rlim_cur, size));
	if (lim.rlim_cur >= d->pool_bytes)
		return;
	ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
			 "RLIMIT_MEMLOCK: reads go into memory that is not registered, which costs "
			 "CPU");
	snprintf(f->mend, sizeof(f->mend),
		 "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity; docker: --ulimit "
		 "memlock=-1)");
}

/* ---- the folder of models ---------------------------------------------------------------- */

static bool is_container(const char *name)
{
	size_t len = strlen(name), suffix = strlen(".safetensors");

	return len > suffix && strcmp(name + len - suffix, ".safetensors") == 0;
}

/* The first safetensors file in the folder, or in a folder in it. NULL: none; the caller frees
 * it. */
static char *find_container(const char *path, int depth)
{
	struct dirent *entry;
	DIR *dir = opendir(path);
	char *found = NULL;

	while (dir && !found && (entry = readdir(dir))) {
		char *full = entry->d_name[0] == '.' ? NULL : ctn_path_join(path, entry->d_name);
		struct stat st;

		if (full && stat(full, &st) == 0) {
			if (S_ISDIR(st.st_mode) && depth > 0)
				found = find_container(full, depth - 1);
			else if (S_ISREG(st.st_mode) && is_container(entry->d_name))
				found = strdup(full);
		}
		free(full);
	}
	if (dir)
		closedir(dir);
	return found;
}

/* The name of the file system that a file is on, as far as we know any. */
static const char *file_system(const char *path)
{
	static const struct {
		unsigned long magic;
		const char *name;
	} known[] = {
		{0xEF53, "ext4"},      {0x58465342, "xfs"},     {0x9123683E, "btrfs"},
		{0x01021994, "tmpfs"}, {0x794c7630, "overlay"}, {0x73717368, "squashfs"},
		{0x6969, "nfs"},       {0x65735546, "fuse"},    {0x2fc12fc1, "zfs"},
		{0x01021997, "9p"},    {0xFF534D42, "cifs"},    {0xF2F52010, "f2fs"},
	};
	struct statfs fs;

	if (statfs(path, &fs) != 0)
		return "unknown";
	for (size_t i = 0; i < CTN_ARRAY_LEN(known); i++) {
		if (known[i].magic == (unsigned long)fs.f_type)
			return known[i].name;
	}
	return "of another kind";
}

/* Opened and read: some file systems refuse only then. */
static int try_direct(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	void *block = NULL;
	int rc = 0;

	if (fd < 0)
		return -errno;
	if (posix_memalign(&block, CTN_IO_ALIGN, CTN_IO_ALIGN) != 0)
		rc = -ENOMEM;
	else if (pread(fd, block, CTN_IO_ALIGN, 0) < 0)
		rc = -errno;
	free(block);
	close(fd);
	return rc;
}

static void check_direct(struct ctn_doctor *d, const char *path)
{
	struct ctn_finding *f = ctn_doctor_add(d, "o_direct");
	int rc = try_direct(path);

	snprintf(f->asked, sizeof(f->asked), "reads that bypass the page cache");
	snprintf(f->got, sizeof(f->got), "%s (file system %s)", rc ? strerror(-rc) : "them",
		 file_system(path));
	if (rc == 0)
		return;
	ctn_doctor_judge(f, CTN_DOCTOR_WORSE,
			 "the file system of %s refuses O_DIRECT: buffered reads cost CPU and page "
			 "cache",
			 path);
	snprintf(f->mend, sizeof(f->mend), "cp -rL %.160s /on/a/disk/with/ext4/or/xfs",
		 d->models_dir);
}

/* The first bytes of a checkpoint, by the daemon's own stage. */
static void check_stage(struct ctn_doctor *d, const char *path)
{
	struct ctn_finding *f = ctn_doctor_add(d, "stage");
	struct ctn_stage_rig_config cfg = {.method = -1};
	struct ctn_stage_stats stats = {0};
	struct ctn_stage_file file;
	struct ctn_stage_run run = {0};
	struct ctn_stage_rig rig;
	struct ctn_err err = {0};
	int rc = ctn_stage_file_open(path, TRIED_BYTES, &file, &err);

	snprintf(f->asked, sizeof(f->asked), "%s", ctn_stage_method_name(CTN_STAGE_URING_FIXED));
	if (rc == 0) {
		rc = ctn_stage_rig_open(&file, &cfg, &rig, &err);
		if (rc == 0) {
			rc = ctn_stage_rig_run(&rig, false, &run, &err);
			ctn_stage_get_stats(rig.stage, &stats);
			ctn_stage_rig_close(&rig);
		}
		ctn_stage_file_close(&file);
	}
	if (rc) {
		snprintf(f->got, sizeof(f->got), "nothing read");
		ctn_doctor_judge(f, CTN_DOCTOR_BLOCKED, "%.380s", err.msg);
		snprintf(f->mend, sizeof(f->mend), "computron bench stage %.200s", path);
		return;
	}
	snprintf(f->got, sizeof(f->got), "%s", ctn_stage_method_name(run.method));
	if (run.method == CTN_STAGE_URING_FIXED)
		return;
	ctn_doctor_judge(f, CTN_DOCTOR_WORSE, "%s", stats.why);
	snprintf(f->mend, sizeof(f->mend), "see io_uring, memlock and o_direct");
}

static void check_models(struct ctn_doctor *d)
{
	struct ctn_finding *f = ctn_doctor_add(d, "models-dir");
	char *path;

	snprintf(f->asked, sizeof(f->asked), "a folder with checkpoints");
	path = find_container(d->models_dir, 1);
	if (path) {
		snprintf(f->got, sizeof(f->got), "%.250s", path);
		check_direct(d, path);
		check_stage(d, path);
		free(path);
		return;
	}
	snprintf(f->got, sizeof(f->got), "%s",
		 access(d->models_dir, R_OK | X_OK) == 0 ? "one without any" : strerror(errno));
	ctn_doctor_judge(f, CTN_DOCTOR_BLOCKED,
			 "%.256s: no readable .safetensors file in it or in a folder in it",
			 d->models_dir);
	snprintf(f->mend, sizeof(f->mend), "ls -lL %.200s/*/*.safetensors", d->models_dir);
}

void ctn_doctor_disk(struct ctn_doctor *d)
{
	check_uring(d);
	check_memlock(d);
	if (d->models_dir)
		check_models(d);
}
