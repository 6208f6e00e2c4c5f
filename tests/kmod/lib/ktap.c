/* SPDX-License-Identifier: MIT */
/* The runner of one test program; see ktap.h. */
#include "ktap.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASS = 0, FAIL = 1, SKIP = 4 };

static struct ktap_test *first, **last = &first;
static int why_pipe[2] = {-1, -1};

void ktap_add(struct ktap_test *test)
{
	*last = test;
	last = &test->next;
}

static void say(const char *prefix, const char *format, va_list args)
{
	char line[512];

	vsnprintf(line, sizeof(line), format, args);
	printf("# %s%s\n", prefix, line);
	fflush(stdout);
}

void ktap_note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say("", format, args);
	va_end(args);
}

void ktap_fail(const char *file, int line, const char *format, ...)
{
	char prefix[128];
	va_list args;

	snprintf(prefix, sizeof(prefix), "%s:%d: ", file, line);
	va_start(args, format);
	say(prefix, format, args);
	va_end(args);
	_exit(FAIL);
}

void ktap_skip(const char *format, ...)
{
	char why[200];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	if (write(why_pipe[1], why, strlen(why)) < 0)
		_exit(FAIL);
	_exit(SKIP);
}

/* Runs one test and prints its line; returns PASS, FAIL or SKIP. */
static int run(const struct ktap_test *test, int number)
{
	char why[256] = "";
	ssize_t length;
	int status;
	pid_t pid;

	if (pipe(why_pipe))
		return FAIL;
	fflush(stdout);
	pid = fork();
	if (!pid) {
		close(why_pipe[0]);
		test->run();
		_exit(PASS);
	}
	close(why_pipe[1]);
	/* Until the test and all its children have ended, or the test alone said why. */
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		status = FAIL << 8;
	length = WIFEXITED(status) && WEXITSTATUS(status) == SKIP
			 ? read(why_pipe[0], why, sizeof(why) - 1)
			 : 0;
	close(why_pipe[0]);
	if (WIFSIGNALED(status))
		ktap_note("%s died by signal %d", test->name, WTERMSIG(status));
	if (length > 0) {
		printf("ok %d %s # SKIP %s\n", number, test->name, why);
		return SKIP;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != PASS) {
		printf("not ok %d %s\n", number, test->name);
		return FAIL;
	}
	printf("ok %d %s\n", number, test->name);
	return PASS;
}

int main(int argc, char **argv)
{
	int count = 0, passed = 0, failed = 0, number = 0, verdict;
	struct ktap_test *test;

	for (test = first; test; test = test->next)
		count += argc < 2 || !strcmp(argv[1], test->name);
	printf("KTAP version 1\n1..%d\n", count);
	for (test = first; test; test = test->next) {
		if (argc >= 2 && strcmp(argv[1], test->name))
			continue;
		verdict = run(test, ++number);
		passed += verdict == PASS;
		failed += verdict == FAIL;
	}
	fflush(stdout);
	return failed || !count ? FAIL : passed ? PASS : SKIP;
}
