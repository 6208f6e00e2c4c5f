/* SPDX-License-Identifier: MIT */
/*
 * ktap: what the test programs of the guest stand on. A program is a list of TEST() functions; each
 * runs in a process of its own, so that what it leaves open ends with it, and becomes one line of
 * KTAP. The program's exit status: 0 all passed, 1 something failed, 4 all skipped (as kselftest
 * has it).
 */
#ifndef KTAP_H
#define KTAP_H

#include <stdbool.h>
#include <stdint.h>

struct ktap_test {
	const char *name;
	void (*run)(void);
	struct ktap_test *next;
};

/* What tests of this program may take beyond $KTAP_SECONDS each. */
extern int ktap_more_seconds;

void ktap_add(struct ktap_test *test);
/* Prints what is wrong and ends the process that runs the test. */
void ktap_fail(const char *file, int line, const char *what, const char *format, ...)
	__attribute__((format(printf, 4, 5), noreturn));
void ktap_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* A line of diagnosis. */
void ktap_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define TEST(title)                                                                   \
	static void test_##title(void);                                               \
	static struct ktap_test ktap_##title = {.name = #title, .run = test_##title}; \
	__attribute__((constructor)) static void ktap_add_##title(void)               \
	{                                                                             \
		ktap_add(&ktap_##title);                                              \
	}                                                                             \
	static void test_##title(void)

#define CHECK(condition, ...)                                                      \
	do {                                                                       \
		if (!(condition))                                                  \
			ktap_fail(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
	} while (0)

/* Integers only: both are printed. */
#define EQUAL(found, expected, what)                                                             \
	do {                                                                                     \
		long long found_ = (long long)(found), expected_ = (long long)(expected);        \
		if (found_ != expected_)                                                         \
			ktap_fail(__FILE__, __LINE__, what, "found %lld, expected %lld", found_, \
				  expected_);                                                    \
	} while (0)

#endif
