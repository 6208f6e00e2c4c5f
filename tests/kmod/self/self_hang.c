/* SPDX-License-Identifier: MIT */
/* Never ends: the harness ends it. */
#include "ktap.h"

#include <unistd.h>

TEST(hangs)
{
	for (;;)
		pause();
}
