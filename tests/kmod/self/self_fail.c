/* SPDX-License-Identifier: MIT */
/* What a test program can do wrong, for the harness to notice. */
#include "ktap.h"

#include <signal.h>

TEST(passes)
{
}

TEST(fails)
{
	EQUAL(1 + 1, 3, "one and one");
}

TEST(dies)
{
	raise(SIGSEGV);
}

TEST(skips)
{
	ktap_skip("because it can");
}
