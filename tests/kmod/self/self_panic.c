/* SPDX-License-Identifier: MIT */
/* Takes the kernel down: what comes after it is never run. */
#include "ktap.h"

#include <fcntl.h>
#include <unistd.h>

TEST(panics)
{
	int fd = open("/proc/sysrq-trigger", O_WRONLY);

	CHECK(fd >= 0, "no sysrq");
	CHECK(write(fd, "c", 1) == 1, "no crash");
	pause();
}
