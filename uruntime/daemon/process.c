// SPDX-License-Identifier: MIT
/* What the process takes for granted before it opens anything. */
#include "daemon/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_CONNECTIONS 512u
/* Of the daemon itself: sockets, events, rings, files that are staged. */
#define OWN_DESCRIPTORS 24u

/* Whoever started us may have closed 0, 1 or 2. What we open would get the number, and the log
 * would be written into it: into the memory of a device, say. */
static int open_standard(struct ctn_err *err)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
		if (fd < 0)
			return ctn_err_set(err, -errno, "/dev/null: %s", strerror(errno));
	} while (fd <= STDERR_FILENO);
	close(fd);
	return 0;
}

int ctn_process_prepare(struct ctn_err *err)
{
	struct rlimit files;
	int rc = open_standard(err);

	if (rc)
		return rc;
	/* A client that has gone and a log that may not grow are errors of a write, no death. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	/* The soft limit is for programs that call select(). */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	return 0;
}

void ctn_process_share_descriptors(uint32_t devices, uint32_t *connections, uint32_t *requests)
{
	struct rlimit files;
	uint64_t all, own = OWN_DESCRIPTORS + devices;

	if (getrlimit(RLIMIT_NOFILE, &files))
		files.rlim_cur = 1024;
	all = CTN_MIN((uint64_t)files.rlim_cur, (uint64_t)UINT32_MAX);
	*connections = (uint32_t)CTN_MAX(CTN_MIN(all / 4, (uint64_t)MAX_CONNECTIONS), 1ull);
	own += 2 * *connections;
	*requests = all > own ? (uint32_t)(all - own) : 1;
}
