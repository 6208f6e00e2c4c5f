/* SPDX-License-Identifier: MIT */
#include "pin.h"

#include "ktap.h"
#include "module.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

int must_pin_file(void)
{
	int err = module_load("ctn_test_pin", ""), fd;

	CHECK(!err || err == -EEXIST, "loading ctn_test_pin: %d", err);
	fd = open("/dev/ctn_test_pin", O_RDWR | O_CLOEXEC);
	CHECK(fd >= 0, "errno %d", errno);
	return fd;
}

int pin(int file, const void *at, uint64_t bytes, bool write)
{
	struct ctn_test_pin arg = {.address = (uintptr_t)at, .bytes = bytes, .write = write};

	return ioctl(file, CTN_TEST_PIN, &arg) ? -errno : 0;
}

void unpin(int file)
{
	CHECK(!ioctl(file, CTN_TEST_DROP), "errno %d", errno);
}
