/* SPDX-License-Identifier: MIT */
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int module_load(const char *name, const char *parameters)
{
	char path[128];
	int fd, err = 0;

	snprintf(path, sizeof(path), "/modules/%s.ko", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (syscall(SYS_finit_module, fd, parameters, 0))
		err = -errno;
	close(fd);
	return err;
}

int module_unload(const char *name)
{
	return syscall(SYS_delete_module, name, O_NONBLOCK) ? -errno : 0;
}

int module_users(const char *name)
{
	char line[512], found[128];
	int users = -1, n;
	FILE *f = fopen("/proc/modules", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%127s %*u %d", found, &n) == 2 && !strcmp(found, name))
			users = n;
	if (f)
		fclose(f);
	return users;
}
