// SPDX-License-Identifier: MIT
/* The control socket, what it tells, and libcomputron on its other end. */
#include "http_fixture.h"
#include "test.h"
#include "client/ctn.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const uint32_t letters[] = {'a', 'b', 'c'};
static struct fake_model models[] = {
	{.name = "m", .dir = "m", .script = {.tokens = letters, .count = 3}},
	{.name = "org/deep \"x\"",
	 .dir = "no-tokenizer",
	 .script = {.tokens = letters, .count = 3}},
	{.name = "broken", .dir = "broken", .reason = "config.json: no such file"},
};
static struct fixture f;

static void start(void)
{
	models[0].script.control = 0;
	models[0].script.control_waits = false;
	fixture_start(&f, models, CTN_ARRAY_LEN(models), NULL);
}

/* ---- metrics --------------------------------------------------------------------------- */

/* The value of one line of the answer; -1 when there is none. */
static double metric(const struct reply *r, const char *series)
{
	const char *at = r->body;
	size_t len = strlen(series);

	for (; at; at = strchr(at, '\n'), at = at ? at + 1 : NULL) {
		if (strncmp(at, series, len) == 0 && at[len] == ' ')
			return strtod(at + len, NULL);
	}
	return -1;
}

static void test_metrics_have_the_pinned_names_and_values(void)
{
	static const struct {
		const char *series;
		double value;
	} cases[] = {
		{"computron_bytes{tier=\"host\",device=\"\",state=\"free\"}", 50},
		{"computron_bytes{tier=\"host\",device=\"\",state=\"staging\"}", 80 - 19},
		{"computron_bytes{tier=\"host\",device=\"\",state=\"clean\"}", 80},
		{"computron_bytes{tier=\"host\",device=\"\",state=\"draining\"}", 19},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"free\"}", 37},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"loading\"}", 38},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"resident\"}", 39},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"draining\"}", 40},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"kv\"}", 41},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"workspace\"}", 42},
		{"computron_bytes{tier=\"device\",device=\"host:0\",state=\"communication\"}", 43},
		{"computron_frames{tier=\"device\",state=\"resident\"}", 45},
		{"computron_frames{tier=\"host\",state=\"clean\"}", 52},
		{"computron_moves_total{move=\"load\",outcome=\"failed\"}", 61},
		{"computron_move_bytes_total{move=\"stage\"}", 63},
		{"computron_move_seconds_total{move=\"drop_host\"}", 0.064},
		{"computron_d2h_bytes_total", 31},
		{"computron_requests_total{model=\"m\",outcome=\"ok\"}", 20},
		{"computron_requests_total{model=\"broken\",outcome=\"refused\"}", 24},
		{"computron_queue_depth{model=\"org/deep \\\"x\\\"\"}", 11},
		{"computron_pool_info{provider=\"plain\"}", 1},
		{"computron_pool_huge_ratio", 0.25},
		{"computron_stage_method{method=\"pread\"}", 1},
		{"computron_stage_method{method=\"uring\"}", 0},
		{"computron_ttft_seconds_bucket{model=\"m\",le=\"0.001\"}", 1},
		{"computron_ttft_seconds_bucket{model=\"m\",le=\"0.005\"}", 1},
		{"computron_ttft_seconds_bucket{model=\"m\",le=\"0.01\"}", 3},
		{"computron_ttft_seconds_bucket{model=\"m\",le=\"50\"}", 3},
		{"computron_ttft_seconds_bucket{model=\"m\",le=\"+Inf\"}", 7},
		{"computron_ttft_seconds_sum{model=\"m\"}", 101.5},
		{"computron_ttft_seconds_count{model=\"m\"}", 7},
		{"computron_switch_seconds_bucket{model=\"m\",le=\"0.002\"}", 3},
	};
	struct reply r;

	start();
	r = http_get(&f, "/metrics");
	CU_ASSERT_EQUAL(r.status, 200);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		CU_ASSERT_DOUBLE_EQUAL(metric(&r, cases[i].series), cases[i].value, 1e-9);
		if (metric(&r, cases[i].series) < 0)
			printf("# no %s\n", cases[i].series);
	}
	CU_ASSERT_PTR_NOT_NULL(strstr(r.body, "# TYPE computron_ttft_seconds histogram\n"));
	reply_free(&r);
	r = http_control(&f, "GET", "/metrics");
	CU_ASSERT_EQUAL(r.status, 200);
	reply_free(&r);
	fixture_stop(&f);
}

/* ---- status and control ---------------------------------------------------------------- */

static void test_status_tells_what_the_engine_knows(void)
{
	struct reply r;

	start();
	r = http_control(&f, "GET", "/status");
	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "url"), ctn_server_url(f.server));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "models.0.state"), "resident");
	CU_ASSERT_EQUAL(json_integer_value(json_path(r.json, "models.0.device_bytes")), 16);
	CU_ASSERT_EQUAL(json_integer_value(json_path(r.json, "models.0.requests.timeout")), 22);
	CU_ASSERT_TRUE(json_is_null(json_path(r.json, "models.0.reason")));
	CU_ASSERT_TRUE(json_is_null(json_path(r.json, "models.0.no_tokenizer")));
	CU_ASSERT_PTR_NOT_NULL(
		strstr(json_path_string(r.json, "models.1.no_tokenizer"), "tokenizer.json"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "models.2.reason"),
			       "config.json: no such file");
	CU_ASSERT_EQUAL(json_integer_value(json_path(r.json, "devices.0.kv")), 41);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "pool.why"), "thp: never");
	CU_ASSERT_EQUAL(json_integer_value(json_path(r.json, "stage.methods.pread.jobs")), 54);
	CU_ASSERT_EQUAL(json_integer_value(json_path(r.json, "moves.load.cancelled")), 62);
	reply_free(&r);
	r = http_control(&f, "GET", "/health");
	CU_ASSERT_EQUAL(r.status, 200);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_control_answers_have_their_status(void)
{
	static const struct {
		int rc, status;
	} cases[] = {{0, 200}, {-EBUSY, 409}, {-ENOSPC, 507}, {-ENODEV, 503}, {-EIO, 500}};
	struct reply r;

	start();
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		models[0].script.control = cases[i].rc;
		r = http_control(&f, "POST", "/models/m/load");
		CU_ASSERT_EQUAL(r.status, cases[i].status);
		if (cases[i].rc)
			CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.message"),
					       "control 0 was refused by the script");
		reply_free(&r);
	}
	r = http_control(&f, "POST", "/models/nobody/evict");
	CU_ASSERT_EQUAL(r.status, 404);
	reply_free(&r);
	r = http_control(&f, "GET", "/models/m/evict");
	CU_ASSERT_EQUAL(r.status, 405);
	reply_free(&r);
	r = http_control(&f, "POST", "/models/m/destroy");
	CU_ASSERT_EQUAL(r.status, 404);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_the_client_library(void)
{
	struct ctn_client *client;
	json_t *json;
	char *text;

	start();
	client = ctn_client_open(f.socket_path);
	CU_ASSERT_PTR_NOT_NULL_FATAL(client);
	for (int i = 0; i < 3; i++) {
		CU_ASSERT_EQUAL(ctn_client_get(client, "/status", &text), 0);
		json = json_loads(text, 0, NULL);
		CU_ASSERT_EQUAL(json_array_size(json_object_get(json, "models")), 3);
		json_decref(json);
		free(text);
	}
	CU_ASSERT_EQUAL(ctn_client_model(client, "org/deep \"x\"", "pin", &text), 0);
	json = json_loads(text, 0, NULL);
	CU_ASSERT_STRING_EQUAL(json_path_string(json, "model"), "org/deep \"x\"");
	CU_ASSERT_STRING_EQUAL(json_path_string(json, "done"), "pin");
	json_decref(json);
	free(text);
	CU_ASSERT_EQUAL(ctn_client_model(client, "nobody", "load", &text), 404);
	CU_ASSERT_PTR_NULL(text);
	CU_ASSERT_STRING_EQUAL(ctn_client_error(client), "there is no model \"nobody\"");
	fixture_stop(&f);
	CU_ASSERT_TRUE(ctn_client_get(client, "/status", NULL) < 0);
	CU_ASSERT_PTR_NOT_NULL(strstr(ctn_client_error(client), f.socket_path));
	ctn_client_close(client);
}

static void *load_and_wait(void *arg)
{
	struct ctn_client *client = ctn_client_open(f.socket_path);
	int *rc = arg;

	*rc = client ? ctn_client_model(client, "m", "load", NULL) : -ENOMEM;
	if (client)
		ctn_client_close(client);
	return NULL;
}

static void test_a_load_in_progress_ends_with_the_engine(void)
{
	pthread_t thread;
	int rc = 0;

	start();
	models[0].script.control_waits = true;
	CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, NULL, load_and_wait, &rc), 0);
	usleep(50000);
	ctn_server_refuse(f.server);
	ctn_engine_stop(f.engine);
	pthread_join(thread, NULL);
	CU_ASSERT_EQUAL(rc, 503);
	fixture_stop(&f);
}

/* ---- the sockets ----------------------------------------------------------------------- */

static int start_second(const char *listen, const char *socket_path, struct ctn_err *err)
{
	struct ctn_server_config cfg = {
		.engine = f.engine, .listen = listen, .socket_path = socket_path};
	struct ctn_server *server;
	int rc = ctn_server_start(&cfg, &server, err);

	if (!rc)
		ctn_server_stop(server);
	return rc;
}

static void test_the_socket_file(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct ctn_err err = {0};
	char path[300], too_long[200];
	struct stat st;
	int fd;

	start();
	CU_ASSERT_EQUAL(stat(f.socket_path, &st), 0);
	CU_ASSERT_EQUAL(st.st_mode & 0777, 0660);
	/* One that is answered is not taken away, ... */
	CU_ASSERT_EQUAL(start_second(NULL, f.socket_path, &err), -EADDRINUSE);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, f.socket_path));
	CU_ASSERT_EQUAL(access(f.socket_path, F_OK), 0);
	/* ... nor is a file that is no socket, ... */
	snprintf(path, sizeof(path), "%s/file", ctn_test_tmpdir());
	fclose(fopen(path, "w"));
	CU_ASSERT_EQUAL(start_second(NULL, path, &err), -EEXIST);
	CU_ASSERT_EQUAL(access(path, F_OK), 0);
	/* ... but a socket that was left over is. */
	snprintf(path, sizeof(path), "%s/stale", ctn_test_tmpdir());
	snprintf(addr.sun_path, sizeof(addr.sun_path), "%.100s", path);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	CU_ASSERT_EQUAL_FATAL(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	close(fd);
	CU_ASSERT_EQUAL(start_second(NULL, path, &err), 0);
	CU_ASSERT_EQUAL(access(path, F_OK), -1);
	memset(too_long, 'x', sizeof(too_long) - 1);
	too_long[sizeof(too_long) - 1] = '\0';
	CU_ASSERT_EQUAL(start_second(NULL, too_long, &err), -ENAMETOOLONG);
	fixture_stop(&f);
}

static void test_listen_addresses(void)
{
	static const char *const bad[] = {
		"8000",     "127.0.0.1", "127.0.0.1:",      "127.0.0.1:x", ":8000",
		"::1:8000", "[::1]8000", "127.0.0.1:65536", "[::1:8000"};
	struct ctn_err err = {0};
	char taken[64];

	start();
	for (size_t i = 0; i < CTN_ARRAY_LEN(bad); i++) {
		int rc = start_second(bad[i], NULL, &err);

		CU_ASSERT_TRUE(rc == -EINVAL || rc == -ERANGE);
		CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, bad[i]));
	}
	snprintf(taken, sizeof(taken), "127.0.0.1:%d", f.port);
	CU_ASSERT_EQUAL(start_second(taken, NULL, &err), -EADDRINUSE);
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, taken));
	CU_ASSERT_PTR_NOT_NULL(strstr(err.msg, strerror(EADDRINUSE)));
	fixture_stop(&f);
}

CTN_TESTS("server_control", CTN_TEST(test_metrics_have_the_pinned_names_and_values),
	  CTN_TEST(test_status_tells_what_the_engine_knows),
	  CTN_TEST(test_control_answers_have_their_status), CTN_TEST(test_the_client_library),
	  CTN_TEST(test_a_load_in_progress_ends_with_the_engine), CTN_TEST(test_the_socket_file),
	  CTN_TEST(test_listen_addresses))
