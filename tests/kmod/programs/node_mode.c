/* SPDX-License-Identifier: MIT */
/* The device's node as the kernel makes it: mode 0660, so that a group can be given to it. */
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(mode)
{
	struct stat st;

	CHECK(!stat(COMPUTRON_DEVICE, &st), "errno %d", errno);
	EQUAL(st.st_mode & 07777, 0660, "mode");
	EQUAL(st.st_uid, 0, "uid");
}

static void opens(void *unused)
{
	(void)unused;
	CHECK(!setgroups(0, NULL) && !setgid(1000) && !setuid(1000), "errno %d", errno);
	CHECK(open(COMPUTRON_DEVICE, O_RDWR) < 0 && errno == EACCES, "another user opens it");
}

TEST(another_user_does_not_open_it)
{
	EQUAL(in_child(opens, NULL), 0, "status");
}
