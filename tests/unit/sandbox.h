/* SPDX-License-Identifier: MIT */
/* A child process in which system calls are refused, for tests of what we do then. */
#ifndef CTN_SANDBOX_H
#define CTN_SANDBOX_H

#include "test.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs fn in a child, which ends with what fn returns. -1 when it died otherwise. */
static inline int ctn_in_child(int (*fn)(void))
{
	int status = 0;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(fn());
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* From here on the call `nr` of this process fails with `code` when its argument number `arg`
 * is `value` (arg -1: always). */
static inline int ctn_refuse(uint32_t nr, int arg, uint32_t value, uint32_t code)
{
	uint32_t what = arg < 0 ? (uint32_t)offsetof(struct seccomp_data, nr)
				: (uint32_t)offsetof(struct seccomp_data, args) + 8 * (uint32_t)arg;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, what),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, arg < 0 ? nr : value, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {sizeof(filter) / sizeof(filter[0]), filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0 ? 0 : -errno;
}

#endif
