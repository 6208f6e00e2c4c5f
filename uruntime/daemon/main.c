// SPDX-License-Identifier: MIT
/* computrond: options, start, and the wait for the signal that ends it. */
#include "daemon/daemon.h"
#include "client/ctn.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ctn_daemon running;

static int set_log_level(const char *name, struct ctn_err *err)
{
	static const char *const names[] = {"error", "warn", "info", "debug"};

	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		if (strcmp(names[i], name) == 0) {
			ctn_log_set_level((enum ctn_log_level)i);
			return 0;
		}
	}
	return ctn_err_set(err, -EINVAL, "log-level: expected error, warn, info or debug, found %s",
			   name);
}

/*
 * The second signal. Nothing that we hold outlives the process or was to be written, so that
 * the way out is short: only the socket file would stay.
 */
static void leave_at_once(int number)
{
	(void)number;
	unlink(running.socket_path);
	_exit(0);
}

static void ends(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
}

/* Until SIGTERM or SIGINT, which all threads have blocked. */
static void wait_for_end(void)
{
	struct sigaction again = {.sa_handler = leave_at_once};
	sigset_t set;
	int number, rc;

	ends(&set);
	do {
		rc = sigwait(&set, &number);
	} while (rc == EINTR);
	ctn_info("%s: stopping", rc ? "sigwait failed" : strsignal(number));
	sigaction(SIGTERM, &again, NULL);
	sigaction(SIGINT, &again, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static int serve(struct ctn_options *o, struct ctn_err *err)
{
	sigset_t set;
	int rc = 0;

	if (o->config)
		rc = ctn_config_read(o->config, o, err);
	if (!rc && o->log_level)
		rc = set_log_level(o->log_level, err);
	if (rc)
		return rc;
	/* Before there is a second thread, which would not inherit it. */
	ends(&set);
	sigprocmask(SIG_BLOCK, &set, NULL);
	rc = ctn_daemon_start(o, &running, err);
	if (rc)
		return rc;
	ctn_info("listening on %s", ctn_server_url(running.server));
	wait_for_end();
	ctn_daemon_stop(&running);
	ctn_info("stopped");
	return 0;
}

int main(int argc, char **argv)
{
	struct ctn_options o;
	struct ctn_err err = {0};
	int rc = ctn_process_prepare(&err);

	if (rc) {
		ctn_error("%s", err.msg);
		return 1;
	}
	rc = ctn_options_parse(argc, argv, &o, &err);

	if (!rc && o.help)
		ctn_options_help();
	else if (!rc && o.version)
		printf("computrond %s\n", CTN_VERSION);
	else if (!rc)
		rc = serve(&o, &err);
	if (rc)
		ctn_error("%s", err.msg);
	ctn_options_free(&o);
	return rc ? 1 : 0;
}
