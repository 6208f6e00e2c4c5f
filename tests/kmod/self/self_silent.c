/* SPDX-License-Identifier: MIT */
/* Says nothing at all. */
int main(void)
{
	return 0;
}
