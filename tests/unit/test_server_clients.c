// SPDX-License-Identifier: MIT
/* Streams, and clients that go away, stall, crowd or send too much. */
#include "http_fixture.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLETE(fields) "{\"model\":\"m\",\"prompt\":\"ab\"," fields "}"
#define MS               1000000ull

/* "Hi \xe2\x82\xac!" by bytes. */
static const uint32_t euro[] = {'H', 'i', ' ', 0xe2, 0x82, 0xac, '!'};
static const uint32_t letters[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
static struct fake_model models[] = {{.name = "m", .dir = "m"}};
static struct fixture f;

static void start(struct fake_script script, const struct ctn_server_config *cfg)
{
	models[0].script = script;
	fixture_start(&f, models, CTN_ARRAY_LEN(models), cfg);
}

/* ---- streams --------------------------------------------------------------------------- */

struct events {
	json_t *list; /* without [DONE] */
	bool done;    /* [DONE] came last */
	size_t bad;   /* lines that are no event */
};

static struct events parse_events(char *body)
{
	struct events e = {.list = json_array()};
	char *save, *line;

	for (line = strtok_r(body, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		json_t *json = NULL;

		e.bad += e.done || strncmp(line, "data: ", 6) != 0;
		if (strcmp(line, "data: [DONE]") == 0) {
			e.done = true;
			continue;
		}
		json = json_loads(line + 6, 0, NULL);
		e.bad += json == NULL;
		json_array_append_new(e.list, json);
	}
	return e;
}

static struct events stream(const char *body)
{
	struct reply r = http_complete(&f, body);
	struct events e;

	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_TRUE(r.complete);
	CU_ASSERT_TRUE(reply_has(&r, "\r\nContent-Type: text/event-stream\r\n"));
	e = parse_events(r.body);
	CU_ASSERT_TRUE(e.done);
	CU_ASSERT_EQUAL(e.bad, 0);
	reply_free(&r);
	return e;
}

/* The texts of one choice, joined. */
static void join_text(const struct events *e, int index, char *text, size_t size)
{
	size_t i;
	json_t *event;

	text[0] = '\0';
	json_array_foreach(e->list, i, event)
	{
		json_t *choice = json_path(event, "choices.0");

		if (choice && json_integer_value(json_object_get(choice, "index")) == index)
			snprintf(text + strlen(text), size - strlen(text), "%s",
				 json_path_string(choice, "text"));
	}
}

static json_t *last_event(const struct events *e)
{
	return json_array_get(e->list, json_array_size(e->list) - 1);
}

static void test_a_stream_never_splits_a_character(void)
{
	struct fake_script script = {.tokens = euro, .count = 7, .delay_ms = 2};
	struct events e;
	char text[64];

	start(script, NULL);
	e = stream(COMPLETE("\"stream\":true"));
	join_text(&e, 0, text, sizeof(text));
	CU_ASSERT_STRING_EQUAL(text, "Hi \xe2\x82\xac!");
	/* Tokens come one by one, and so do the events: all parsed as JSON, so each is UTF-8. */
	CU_ASSERT_TRUE(json_array_size(e.list) >= 4);
	CU_ASSERT_STRING_EQUAL(json_path_string(last_event(&e), "choices.0.finish_reason"), "stop");
	CU_ASSERT_EQUAL(json_integer_value(json_path(last_event(&e), "computron.bytes_loaded")),
			2000);
	CU_ASSERT_PTR_NULL(json_path(json_array_get(e.list, 0), "computron"));
	CU_ASSERT_PTR_NULL(json_path(json_array_get(e.list, 0), "usage"));
	json_decref(e.list);
	fixture_stop(&f);
}

static void test_a_stream_with_usage(void)
{
	struct fake_script script = {.tokens = letters, .count = 4};
	struct events e;

	start(script, NULL);
	e = stream(COMPLETE("\"stream\":true,\"stream_options\":{\"include_usage\":true}"));
	CU_ASSERT_EQUAL(json_array_size(json_path(last_event(&e), "choices")), 0);
	CU_ASSERT_EQUAL(json_integer_value(json_path(last_event(&e), "usage.total_tokens")), 6);
	CU_ASSERT_TRUE(json_is_object(json_path(last_event(&e), "computron")));
	CU_ASSERT_TRUE(json_is_null(json_path(json_array_get(e.list, 0), "usage")));
	json_decref(e.list);
	fixture_stop(&f);
}

static void test_a_stream_of_choices_with_ids_scores_and_stop(void)
{
	struct fake_script script = {.tokens = letters, .count = 8, .delay_ms = 1};
	struct events e;
	size_t i, ids[2] = {0}, scores[2] = {0}, ends[2] = {0};
	json_t *event;
	char text[64];

	start(script, NULL);
	e = stream(COMPLETE("\"stream\":true,\"n\":2,\"logprobs\":1,\"return_token_ids\":true,"
			    "\"stop\":\"ef\",\"echo\":true"));
	json_array_foreach(e.list, i, event)
	{
		int index = (int)json_integer_value(json_path(event, "choices.0.index"));

		ids[index] += json_array_size(json_path(event, "choices.0.token_ids"));
		scores[index] += json_array_size(json_path(event, "choices.0.logprobs.tokens"));
		ends[index] += !json_is_null(json_path(event, "choices.0.finish_reason"));
	}
	for (int k = 0; k < 2; k++) {
		join_text(&e, k, text, sizeof(text));
		CU_ASSERT_STRING_EQUAL(text, "ababcd");
		CU_ASSERT_EQUAL(ids[k], 2 + 6);
		CU_ASSERT_EQUAL(scores[k], 2 + 4);
		CU_ASSERT_EQUAL(ends[k], 1);
	}
	json_decref(e.list);
	fixture_stop(&f);
}

static void test_an_error_in_the_middle_of_a_stream(void)
{
	struct fake_script script = {
		.tokens = letters, .count = 3, .delay_ms = 2, .finish = CTN_FINISH_ERROR};
	struct events e;

	start(script, NULL);
	e = stream(COMPLETE("\"stream\":true"));
	CU_ASSERT_STRING_EQUAL(json_path_string(last_event(&e), "error.message"),
			       "the script failed the step");
	json_decref(e.list);
	fixture_stop(&f);
}

/* ---- clients that go away -------------------------------------------------------------- */

static uint64_t wait_cancelled(uint32_t count, uint64_t since)
{
	while (fake_engine_cancelled(f.engine) < count && ctn_now_ns() - since < 5000 * MS)
		poll(NULL, 0, 1);
	return ctn_now_ns() - since;
}

static void wait_submitted(uint32_t count)
{
	uint64_t since = ctn_now_ns();

	while (fake_engine_submitted(f.engine) < count && ctn_now_ns() - since < 5000 * MS)
		poll(NULL, 0, 1);
	CU_ASSERT_EQUAL(fake_engine_submitted(f.engine), count);
}

enum leaving { CLOSES, RESETS, HALF_CLOSED_BEFORE };

/* How long it takes until the work of a client that closes is cancelled. */
static uint64_t leave(const char *body, bool read_some, enum leaving how)
{
	struct linger reset = {.l_onoff = 1};
	uint32_t before = fake_engine_submitted(f.engine);
	int sock = http_connect(&f);
	uint64_t since;
	char scratch[64];

	http_post(sock, "/v1/completions", body);
	wait_submitted(before + 1);
	if (read_some)
		CU_ASSERT_TRUE(recv(sock, scratch, sizeof(scratch), 0) > 0);
	if (how == HALF_CLOSED_BEFORE) {
		/* It is served on, until it is gone: it has not read all that it was sent. */
		shutdown(sock, SHUT_WR);
		poll(NULL, 0, 30);
		CU_ASSERT_EQUAL(fake_engine_cancelled(f.engine), before);
	}
	if (how == RESETS)
		setsockopt(sock, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	since = ctn_now_ns();
	close(sock);
	return wait_cancelled(before + 1, since);
}

static void test_a_client_that_leaves_is_noticed_at_once(void)
{
	struct fake_script hold = {.hold = true};
	struct fake_script endless = {
		.tokens = letters, .count = 8, .endless = true, .delay_ms = 20};
	const uint64_t limit = 100 * MS;

	start(hold, NULL);
	/* While the model is not there: */
	for (enum leaving how = CLOSES; how <= HALF_CLOSED_BEFORE; how++) {
		CU_ASSERT_TRUE(leave(COMPLETE("\"n\":1"), false, how) < limit);
		CU_ASSERT_TRUE(leave(COMPLETE("\"stream\":true"), false, how) < limit);
	}
	/* In the middle: */
	models[0].script = endless;
	for (enum leaving how = CLOSES; how <= HALF_CLOSED_BEFORE; how++) {
		CU_ASSERT_TRUE(leave(COMPLETE("\"max_tokens\":100000"), false, how) < limit);
		CU_ASSERT_TRUE(leave(COMPLETE("\"max_tokens\":100000,\"stream\":true"), true, how) <
			       limit);
	}
	/* In the middle of a stream whose next token does not come: */
	models[0].script.delay_ms = 60000;
	CU_ASSERT_TRUE(leave(COMPLETE("\"stream\":true"), false, CLOSES) < limit);
	fixture_stop(&f);
}

/* It has nothing more to ask, and waits for the answer. */
static void test_a_half_closed_client_is_served(void)
{
	struct fake_script script = {.tokens = letters, .count = 8, .delay_ms = 20};

	start(script, NULL);
	for (int i = 0; i < 3; i++) {
		static const char *const bodies[] = {COMPLETE("\"n\":1"), COMPLETE("\"n\":1"),
						     COMPLETE("\"stream\":true")};
		int sock = http_connect(&f);
		struct reply r;

		http_sendf(sock,
			   "POST /v1/completions HTTP/1.%d\r\nHost: x\r\nContent-Length: %zu\r\n"
			   "\r\n%s",
			   i > 0, strlen(bodies[i]), bodies[i]);
		if (i == 2)
			wait_submitted(3); /* a stream in its middle, the others from the start */
		poll(NULL, 0, i == 2 ? 60 : 0);
		shutdown(sock, SHUT_WR);
		r = http_read(sock);
		CU_ASSERT_EQUAL(r.status, 200);
		CU_ASSERT_TRUE(r.complete);
		if (i < 2) {
			CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"),
					       "abcdefgh");
		} else {
			CU_ASSERT_PTR_NOT_NULL(strstr(r.body, "\n\n:\n\n"));
			CU_ASSERT_PTR_NOT_NULL(strstr(r.body, "data: [DONE]"));
		}
		reply_free(&r);
		close(sock);
	}
	CU_ASSERT_EQUAL(fake_engine_cancelled(f.engine), 0);
	fixture_stop(&f);
}

static void test_what_was_pipelined_behind_a_request_is_no_leaving(void)
{
	struct fake_script script = {.tokens = letters, .count = 3, .delay_ms = 10};
	int sock;

	start(script, NULL);
	sock = http_connect(&f);
	for (int i = 0; i < 3; i++)
		http_post(sock, "/v1/completions", COMPLETE("\"n\":1"));
	http_sendf(sock, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
	for (int i = 0; i < 4; i++) {
		struct reply r = http_read(sock);

		CU_ASSERT_EQUAL(r.status, 200);
		if (i < 3)
			CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "abc");
		reply_free(&r);
	}
	close(sock);
	fixture_stop(&f);
}

/* ---- clients that stall ---------------------------------------------------------------- */

static void test_half_a_request_is_given_up(void)
{
	static const char *const halves[] = {
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mod",
		"POST /v1/completions HTTP/1.1\r\nHost", ""};
	struct ctn_server_config cfg = {.idle_timeout_s = 1};
	struct fake_script script = {.tokens = letters, .count = 3};
	int socks[CTN_ARRAY_LEN(halves)];
	char c;

	start(script, &cfg);
	for (size_t i = 0; i < CTN_ARRAY_LEN(halves); i++) {
		socks[i] = http_connect(&f);
		http_sendf(socks[i], "%s", halves[i]);
	}
	for (size_t i = 0; i < CTN_ARRAY_LEN(halves); i++) {
		/* The end of the connection, not our own limit of 20 s. */
		CU_ASSERT_TRUE(recv(socks[i], &c, 1, 0) == 0 || errno == ECONNRESET);
		close(socks[i]);
	}
	CU_ASSERT_EQUAL(fake_engine_submitted(f.engine), 0);
	fixture_stop(&f);
}

static void test_waiting_for_a_model_is_not_idling(void)
{
	struct ctn_server_config cfg = {.idle_timeout_s = 1};
	struct fake_script script = {.tokens = letters, .count = 2, .delay_ms = 1300};
	struct reply r;

	start(script, &cfg);
	r = http_complete(&f, COMPLETE("\"n\":1"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "ab");
	reply_free(&r);
	r = http_complete(&f, COMPLETE("\"stream\":true"));
	CU_ASSERT_TRUE(r.complete);
	CU_ASSERT_PTR_NOT_NULL(strstr(r.body, "[DONE]"));
	reply_free(&r);
	fixture_stop(&f);
}

static void test_a_client_that_does_not_read_is_given_up(void)
{
	struct ctn_server_config cfg = {.idle_timeout_s = 1};
	/* More than the buffers of the sockets hold: an event has about 200 bytes. */
	struct fake_script script = {.tokens = letters, .count = 8, .endless = true};
	static char body[200000];
	int small = 4096, sock;
	uint64_t since;

	/* Echo of a long prompt fills them at once. */
	start(script, &cfg);
	sock = http_connect(&f);
	setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	strcpy(body, "{\"model\":\"m\",\"stream\":true,\"echo\":true,\"logprobs\":5,"
		     "\"max_tokens\":100000,\"prompt\":\"");
	memset(body + strlen(body), 'x', 150000);
	strcat(body, "\"}");
	http_post(sock, "/v1/completions", body);
	wait_submitted(1);
	since = ctn_now_ns();
	CU_ASSERT_TRUE(wait_cancelled(1, since) < 4000 * MS);
	close(sock);
	fixture_stop(&f);
}

/* ---- clients that send too much -------------------------------------------------------- */

static void test_a_body_over_the_limit_is_refused_unread(void)
{
	struct ctn_server_config cfg = {.max_body = 1000};
	struct fake_script script = {.tokens = letters, .count = 3};
	static char junk[1 << 20];
	struct reply r;
	int sock;

	start(script, &cfg);
	/* By its length, before a byte of it was sent. */
	sock = http_connect(&f);
	http_sendf(sock, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n"
			 "Expect: 100-continue\r\n\r\n");
	r = http_read(sock);
	CU_ASSERT_EQUAL(r.status, 413);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), "body_too_large");
	CU_ASSERT_PTR_NOT_NULL(strstr(json_path_string(r.json, "error.message"), "1000"));
	reply_free(&r);
	close(sock);
	/* A client that sends all the same gets to read the answer. */
	sock = http_connect(&f);
	http_sendf(sock, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
		   sizeof(junk));
	memset(junk, 'x', sizeof(junk));
	http_send(sock, junk, sizeof(junk));
	r = http_read(sock);
	CU_ASSERT_EQUAL(r.status, 413);
	reply_free(&r);
	close(sock);
	/* Of unknown length. */
	sock = http_connect(&f);
	http_sendf(sock, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
			 "Transfer-Encoding: chunked\r\n\r\n");
	http_sendf(sock, "3e8\r\n%.1000s\r\n3e8\r\n%.1000s\r\n0\r\n\r\n", junk, junk);
	r = http_read(sock);
	CU_ASSERT_EQUAL(r.status, 413);
	reply_free(&r);
	close(sock);
	fixture_stop(&f);
}

static void test_bodies_of_every_kind_arrive(void)
{
	static const char body[] = COMPLETE("\"n\":1");
	struct fake_script script = {.tokens = letters, .count = 3};
	struct reply r;
	int sock;

	start(script, NULL);
	sock = http_connect(&f);
	http_sendf(sock,
		   "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
		   "Transfer-Encoding: chunked\r\n\r\n%x\r\n%.7s\r\n%zx\r\n%s\r\n0\r\n\r\n",
		   7, body, strlen(body + 7), body + 7);
	r = http_read(sock);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "abc");
	reply_free(&r);
	/* The go-ahead comes before the body. */
	http_sendf(sock,
		   "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n"
		   "Expect: 100-continue\r\n\r\n",
		   strlen(body));
	poll(NULL, 0, 20);
	http_sendf(sock, "%s", body);
	r = http_read(sock);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "abc");
	reply_free(&r);
	close(sock);
	fixture_stop(&f);
}

static void test_huge_headers_are_refused(void)
{
	struct fake_script script = {.tokens = letters, .count = 3};
	static char junk[200000];
	struct reply r;
	int sock;

	start(script, NULL);
	memset(junk, 'x', sizeof(junk) - 1);
	sock = http_connect(&f);
	http_sendf(sock, "GET /health HTTP/1.1\r\nHost: x\r\nX-Junk: %s\r\n\r\n", junk);
	r = http_read(sock);
	CU_ASSERT_TRUE(r.status == 0 || r.status == 431);
	reply_free(&r);
	close(sock);
	r = http_get(&f, "/health");
	CU_ASSERT_EQUAL(r.status, 200);
	reply_free(&r);
	fixture_stop(&f);
}

/* ---- crowds, and the end --------------------------------------------------------------- */

static size_t open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	size_t n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static void test_two_hundred_streams_at_once(void)
{
	struct fake_script script = {.tokens = letters, .count = 8, .delay_ms = 20};
	size_t before = open_descriptors();
	int socks[200];

	start(script, NULL);
	for (size_t i = 0; i < CTN_ARRAY_LEN(socks); i++) {
		socks[i] = http_connect(&f);
		http_post(socks[i], "/v1/completions", COMPLETE("\"stream\":true"));
	}
	for (size_t i = 0; i < CTN_ARRAY_LEN(socks); i++) {
		struct reply r = http_read(socks[i]);
		struct events e;
		char text[64];

		CU_ASSERT_EQUAL(r.status, 200);
		e = parse_events(r.body);
		CU_ASSERT_TRUE(e.done);
		join_text(&e, 0, text, sizeof(text));
		CU_ASSERT_STRING_EQUAL(text, "abcdefgh");
		json_decref(e.list);
		reply_free(&r);
		close(socks[i]);
	}
	fixture_stop(&f);
	CU_ASSERT_EQUAL(open_descriptors(), before);
}

static void test_a_stop_ends_what_runs(void)
{
	struct fake_script endless = {
		.tokens = letters, .count = 8, .endless = true, .delay_ms = 5};
	struct reply r;
	int waiting, streaming, idle;
	char c;

	start(endless, NULL);
	waiting = http_connect(&f);
	http_post(waiting, "/v1/completions", COMPLETE("\"max_tokens\":100000"));
	streaming = http_connect(&f);
	http_post(streaming, "/v1/completions", COMPLETE("\"max_tokens\":100000,\"stream\":true"));
	CU_ASSERT_EQUAL(recv(streaming, &c, 1, 0), 1);
	idle = http_connect(&f);
	wait_submitted(2);

	/* Refused from here on, while the old ones go on. */
	ctn_server_refuse(f.server);
	r = http_get(&f, "/health");
	CU_ASSERT_EQUAL(r.status, 503);
	reply_free(&r);
	r = http_complete(&f, COMPLETE("\"n\":1"));
	CU_ASSERT_EQUAL(r.status, 503);
	reply_free(&r);
	CU_ASSERT_EQUAL(fake_engine_live(f.engine), 2);

	/* The engine's end is told to who waits. */
	ctn_engine_stop(f.engine);
	r = http_read(waiting);
	CU_ASSERT_EQUAL(r.status, 503);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), "stopping");
	reply_free(&r);
	fixture_stop(&f);
	close(waiting);
	close(streaming);
	close(idle);
}

static void test_a_stop_without_the_engine_cancels(void)
{
	struct fake_script endless = {
		.tokens = letters, .count = 8, .endless = true, .delay_ms = 5};
	int waiting, streaming;
	char c;

	start(endless, NULL);
	waiting = http_connect(&f);
	http_post(waiting, "/v1/completions", COMPLETE("\"max_tokens\":100000"));
	streaming = http_connect(&f);
	http_post(streaming, "/v1/completions", COMPLETE("\"max_tokens\":100000,\"stream\":true"));
	CU_ASSERT_EQUAL(recv(streaming, &c, 1, 0), 1);
	wait_submitted(2);
	fixture_stop(&f);
	close(waiting);
	close(streaming);
}

CTN_TESTS("server_clients", CTN_TEST(test_a_stream_never_splits_a_character),
	  CTN_TEST(test_a_stream_with_usage),
	  CTN_TEST(test_a_stream_of_choices_with_ids_scores_and_stop),
	  CTN_TEST(test_an_error_in_the_middle_of_a_stream),
	  CTN_TEST(test_a_client_that_leaves_is_noticed_at_once),
	  CTN_TEST(test_a_half_closed_client_is_served),
	  CTN_TEST(test_what_was_pipelined_behind_a_request_is_no_leaving),
	  CTN_TEST(test_half_a_request_is_given_up),
	  CTN_TEST(test_waiting_for_a_model_is_not_idling),
	  CTN_TEST(test_a_client_that_does_not_read_is_given_up),
	  CTN_TEST(test_a_body_over_the_limit_is_refused_unread),
	  CTN_TEST(test_bodies_of_every_kind_arrive), CTN_TEST(test_huge_headers_are_refused),
	  CTN_TEST(test_two_hundred_streams_at_once), CTN_TEST(test_a_stop_ends_what_runs),
	  CTN_TEST(test_a_stop_without_the_engine_cancels))
