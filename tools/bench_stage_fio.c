// SPDX-License-Identifier: MIT
/* The peer: one process of fio over the same file. */
#include "bench_stage.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK "1M" /* as long as a read of stage */

extern char **environ;

/* fio splits names at colons. NULL when out of memory. */
static char *filename_option(const char *path)
{
	struct ctn_buf buf = {0};

	ctn_buf_puts(&buf, "--filename=");
	for (; *path; path++) {
		if (*path == ':' || *path == '\\')
			ctn_buf_puts(&buf, "\\");
		ctn_buf_append(&buf, path, 1);
	}
	if (!buf.failed)
		return buf.data;
	ctn_buf_free(&buf);
	return NULL;
}

static int read_all(int fd, struct ctn_buf *out)
{
	char piece[4096];
	ssize_t n;

	do {
		n = read(fd, piece, sizeof(piece));
		if (n > 0)
			ctn_buf_append(out, piece, (size_t)n);
	} while (n > 0 || (n < 0 && errno == EINTR));
	if (n < 0)
		return -errno;
	return out->failed ? -ENOMEM : 0;
}

/* Runs it; what it wrote to its standard output. */
static int run_fio(const char *path, uint32_t depth, struct ctn_buf *out, struct ctn_err *err)
{
	char depth_option[32], *filename = filename_option(path);
	char *argv[] = {"fio",
			"--name=peer",
			filename,
			"--readonly",
			"--rw=read",
			"--bs=" BLOCK,
			"--direct=1",
			"--ioengine=io_uring",
			"--fixedbufs=1",
			depth_option,
			"--thread",
			"--output-format=json",
			NULL};
	posix_spawn_file_actions_t actions;
	int pipe_fds[2], status, rc;
	pid_t pid;

	snprintf(depth_option, sizeof(depth_option), "--iodepth=%u", depth);
	if (!filename)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
		rc = ctn_err_set(err, -errno, "pipe: %s", strerror(errno));
		goto free_name;
	}
	rc = -posix_spawn_file_actions_init(&actions);
	if (rc) {
		close(pipe_fds[1]);
		goto close_pipe;
	}
	rc = -posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
	if (rc == 0)
		rc = -posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null",
						       O_WRONLY, 0);
	if (rc == 0)
		rc = -posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(pipe_fds[1]);
	if (rc)
		goto close_pipe;
	rc = read_all(pipe_fds[0], out);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (rc == 0 && status)
		rc = ctn_err_set(err, -EIO,
				 "fio failed (wait status 0x%x); run it to see: fio %s %s %s %s %s "
				 "%s %s %s",
				 (unsigned int)status, argv[1], argv[2], argv[3], argv[4], argv[5],
				 argv[6], argv[7], argv[9]);
	close(pipe_fds[0]);
	free(filename);
	return rc;

close_pipe:
	close(pipe_fds[0]);
	ctn_err_set(err, rc, "fio: cannot be started: %s", strerror(-rc));
free_name:
	free(filename);
	return rc;
}

static int parse_fio(const struct ctn_buf *out, struct ctn_stage_run *run, struct ctn_err *err)
{
	/* Warnings may stand before the JSON. */
	const char *begin = out->data ? strchr(out->data, '{') : NULL;
	json_t *root = begin ? json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
	json_t *job = json_array_get(json_object_get(root, "jobs"), 0);
	json_t *read = json_object_get(job, "read");
	double rate = json_number_value(json_object_get(read, "bw_bytes"));
	double cpu = json_number_value(json_object_get(job, "usr_cpu")) +
		     json_number_value(json_object_get(job, "sys_cpu"));
	double latency =
		json_number_value(json_object_get(json_object_get(read, "lat_ns"), "mean"));
	int rc = 0;

	run->bytes = (uint64_t)json_number_value(json_object_get(read, "io_bytes"));
	run->reads = (uint64_t)json_number_value(json_object_get(read, "total_ios"));
	if (rate <= 0 || run->bytes == 0) {
		rc = ctn_err_set(err, -EPROTO,
				 "fio: expected JSON with the rate and the bytes of a job that "
				 "reads, found none");
	} else {
		run->seconds = (double)run->bytes / rate;
		run->cpu_s = cpu / 100 * run->seconds;
		/* Little's law. */
		run->depth = latency / CTN_NSEC_PER_SEC * (double)run->reads / run->seconds;
	}
	json_decref(root);
	return rc;
}

int ctn_stage_fio(const struct ctn_stage_file *file, uint32_t depth, struct ctn_stage_run *run,
		  struct ctn_err *err)
{
	struct ctn_disk_counts before, after;
	struct ctn_buf out = {0};
	int rc;

	*run = (struct ctn_stage_run){0};
	ctn_disk_counts(file, &before);
	rc = run_fio(file->file.path, depth, &out, err);
	ctn_disk_counts(file, &after);
	if (rc == 0)
		rc = parse_fio(&out, run, err);
	ctn_buf_free(&out);
	run->disk = ctn_disk_counts_between(&before, &after);
	return rc;
}
