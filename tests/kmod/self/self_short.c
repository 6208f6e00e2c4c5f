/* SPDX-License-Identifier: MIT */
/* Promises two tests and ends well after one. */
#include <stdio.h>

int main(void)
{
	printf("KTAP version 1\n1..2\nok 1 one\n");
	return 0;
}
