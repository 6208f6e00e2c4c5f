/* SPDX-License-Identifier: MIT */
/* The runner of one test program; see ktap.h. */
#include "ktap.h"

#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PASS = 0, FAIL = 1, SKIP = 4 };

static struct ktap_test *first, **last = &first;
int ktap_more_seconds;
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

void ktap_fail(const char *file, int line, const char *what, const char *format, ...)
{
	char prefix[256];
	va_list args;

	snprintf(prefix, sizeof(prefix), "%s:%d: %s: ", file, line, what);
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

/* What each process of a group is doing in the kernel: for a test that hangs. */
static void show_stacks(pid_t group)
{
	char path[64], text[2048];
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	size_t length;
	pid_t pid;
	FILE *f;

	while (proc && (entry = readdir(proc))) {
		pid = atoi(entry->d_name);
		if (pid <= 0 || getpgid(pid) != group)
			continue;
		snprintf(path, sizeof(path), "/proc/%d/stack", pid);
		f = fopen(path, "r");
		length = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
		if (f)
			fclose(f);
		text[length] = 0;
		ktap_note("process %d is at", pid);
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
			ktap_note("  %s", line);
	}
	if (proc)
		closedir(proc);
}

/* Waits for the process of a test; its wait status. One that takes too long is killed with all that
 * it started. */
static int await(const struct ktap_test *test, pid_t pid)
{
	const char *text = getenv("KTAP_SECONDS");
	int limit = ktap_more_seconds + (text ? atoi(text) : 60), status, ticks;
	pid_t got;

	for (ticks = 0; (got = waitpid(pid, &status, WNOHANG)) == 0; ticks++) {
		if (ticks == limit * 100) {
			ktap_note("%s: still running after %d s", test->name, limit);
			show_stacks(pid);
			kill(-pid, SIGKILL);
		}
		usleep(10000);
	}
	kill(-pid, SIGKILL); /* what it has left behind */
	return got == pid ? status : FAIL << 8;
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
		setpgid(0, 0);
		close(why_pipe[0]);
		test->run();
		_exit(PASS);
	}
	close(why_pipe[1]);
	status = pid < 0 ? FAIL << 8 : await(test, pid);
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
