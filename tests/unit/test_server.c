// SPDX-License-Identifier: MIT
/* What the server answers: fields, text, stop strings, streams, errors. */
#include "http_fixture.h"
#include "test.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define COMPLETE(fields) "{\"model\":\"m\",\"prompt\":\"ab\"," fields "}"

/* "Hi \xc3\xa9\n" by bytes, as the double's tokens. */
static const uint32_t hi[] = {'H', 'i', ' ', 0xc3, 0xa9, '\n'};
static const uint32_t letters[] = {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'};
static struct fake_model models[] = {
	{.name = "m", .dir = "m", .script = {.tokens = hi, .count = 6}},
	{.name = "broken", .dir = "broken", .reason = "config.json: no such file"},
	{.name = "ids", .dir = "no-tokenizer", .script = {.tokens = letters, .count = 3}},
	{.name = "org/deep", .dir = "deep", .script = {.tokens = hi, .count = 2}},
};
static const struct fake_script hi_script = {.tokens = hi, .count = 6};
static struct fixture f;

static void start(struct fake_script script)
{
	models[0].script = script;
	fixture_start(&f, models, CTN_ARRAY_LEN(models), NULL);
}

static long long number(const struct reply *r, const char *path)
{
	json_t *v = json_path(r->json, path);

	return json_is_number(v) ? (long long)json_number_value(v) : -12345;
}

static void test_a_completion_has_text_reason_and_usage(void)
{
	struct fake_submit last;
	struct reply r;

	start(hi_script);
	r = http_complete(&f, COMPLETE("\"max_tokens\":9,\"temperature\":0.5,\"top_p\":0.25,"
				       "\"top_k\":7,\"seed\":42,\"ignore_eos\":true,"
				       "\"return_token_ids\":true"));
	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "object"), "text_completion");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "model"), "m");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "Hi \xc3\xa9\n");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.finish_reason"), "stop");
	CU_ASSERT_TRUE(json_is_null(json_path(r.json, "choices.0.logprobs")));
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices.0.token_ids")), 6);
	CU_ASSERT_EQUAL(number(&r, "choices.0.token_ids.3"), 0xc3);
	CU_ASSERT_EQUAL(number(&r, "usage.prompt_tokens"), 2);
	CU_ASSERT_EQUAL(number(&r, "usage.completion_tokens"), 6);
	CU_ASSERT_EQUAL(number(&r, "usage.total_tokens"), 8);
	CU_ASSERT_EQUAL(number(&r, "computron.bytes_staged"), 1000);
	CU_ASSERT_EQUAL(number(&r, "computron.bytes_loaded"), 2000);
	CU_ASSERT_EQUAL(number(&r, "computron.queue_ms"), 1);
	CU_ASSERT_EQUAL(number(&r, "computron.load_ms"), 2);
	CU_ASSERT_EQUAL(number(&r, "computron.first_token_ms"), 3);
	CU_ASSERT_EQUAL(number(&r, "computron.total_ms"), 4);
	reply_free(&r);

	last = fake_engine_last(f.engine);
	CU_ASSERT_EQUAL(last.params.prompt_len, 2);
	CU_ASSERT_EQUAL(last.prompt[0], 'a');
	CU_ASSERT_EQUAL(last.prompt[1], 'b');
	CU_ASSERT_EQUAL(last.params.max_tokens, 9);
	CU_ASSERT_EQUAL(last.params.sampling.temperature, 0.5f);
	CU_ASSERT_EQUAL(last.params.sampling.top_p, 0.25f);
	CU_ASSERT_EQUAL(last.params.sampling.top_k, 7);
	CU_ASSERT_EQUAL(last.params.sampling.seed, 42);
	CU_ASSERT_TRUE(last.params.ignore_eos);
	fixture_stop(&f);
}

static void test_defaults_are_those_of_openai(void)
{
	struct fake_script endless = {.tokens = letters, .count = 8, .endless = true};
	struct fake_submit first, second;
	struct reply r;

	start(endless);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":\"ab\",\"stop\":null,\"seed\":null}");
	CU_ASSERT_EQUAL(number(&r, "usage.completion_tokens"), 16);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "abcdefghabcdefgh");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.finish_reason"), "length");
	CU_ASSERT_PTR_NULL(json_path(r.json, "choices.0.token_ids"));
	reply_free(&r);
	first = fake_engine_last(f.engine);
	CU_ASSERT_EQUAL(first.params.sampling.temperature, 1);
	CU_ASSERT_EQUAL(first.params.sampling.top_p, 1);
	CU_ASSERT_EQUAL(first.params.sampling.top_k, 0);
	CU_ASSERT_FALSE(first.params.prompt_logprobs);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":\"ab\",\"top_k\":-1}");
	reply_free(&r);
	second = fake_engine_last(f.engine);
	CU_ASSERT_NOT_EQUAL(first.params.sampling.seed, second.params.sampling.seed);
	fixture_stop(&f);
}

static void test_every_form_of_prompt(void)
{
	static const struct {
		const char *prompt;
		size_t choices;
		long long prompt_tokens;
		uint32_t last_id; /* first id of the last prompt */
	} cases[] = {
		{"\"xy\"", 1, 2, 'x'},         {"[5,6,7]", 1, 3, 5},
		{"[\"a\",\"bc\"]", 2, 3, 'b'}, {"[[1],[2,3],[4,5,6]]", 3, 6, 4},
		{"\"\"", 1, 1, 256},           {"\"a\\u0000b\"", 1, 3, 'a'},
	};

	start(hi_script);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		char body[128];
		struct reply r;

		snprintf(body, sizeof(body), "{\"model\":\"m\",\"prompt\":%s}", cases[i].prompt);
		r = http_complete(&f, body);
		CU_ASSERT_EQUAL(r.status, 200);
		CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices")), cases[i].choices);
		CU_ASSERT_EQUAL(number(&r, "usage.prompt_tokens"), cases[i].prompt_tokens);
		CU_ASSERT_EQUAL(fake_engine_last(f.engine).prompt[0], cases[i].last_id);
		reply_free(&r);
	}
	fixture_stop(&f);
}

static void test_n_choices_of_each_prompt_in_order(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":[\"a\",\"b\"],\"n\":3,\"best_of\":3,"
			      "\"seed\":100}");
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices")), 6);
	CU_ASSERT_EQUAL(number(&r, "choices.5.index"), 5);
	/* A prompt counts once, what was generated each time. */
	CU_ASSERT_EQUAL(number(&r, "usage.prompt_tokens"), 2);
	CU_ASSERT_EQUAL(number(&r, "usage.completion_tokens"), 36);
	CU_ASSERT_EQUAL(fake_engine_last(f.engine).params.sampling.seed, 102);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_bad_fields_are_named(void)
{
	static const struct {
		const char *body, *param, *found;
	} cases[] = {
		{"{\"prompt\":\"x\"}", "model", "found none"},
		{"{\"model\":7,\"prompt\":\"x\"}", "model", "found 7"},
		{"{\"model\":\"m\"}", "prompt", "found none"},
		{"{\"model\":\"m\",\"prompt\":[]}", "prompt", "found []"},
		{"{\"model\":\"m\",\"prompt\":[[]]}", "prompt", "found []"},
		{"{\"model\":\"m\",\"prompt\":[1,\"a\"]}", "prompt", "found \"a\""},
		{"{\"model\":\"m\",\"prompt\":[-1]}", "prompt", "found -1"},
		{"{\"model\":\"m\",\"prompt\":[1.5]}", "prompt", "found 1.5"},
		{"{\"model\":\"m\",\"prompt\":[512]}", "prompt", "512"},
		{"{\"model\":\"m\",\"prompt\":{}}", "prompt", "found {}"},
		{COMPLETE("\"max_tokens\":-1"), "max_tokens", "found -1"},
		{COMPLETE("\"max_tokens\":\"9\""), "max_tokens", "found \"9\""},
		{COMPLETE("\"max_tokens\":4294967296"), "max_tokens", "4294967296"},
		{COMPLETE("\"temperature\":2.5"), "temperature", "found 2.5"},
		{COMPLETE("\"temperature\":true"), "temperature", "found true"},
		{COMPLETE("\"top_p\":0"), "top_p", "found 0"},
		/* above 0, but no float */
		{COMPLETE("\"top_p\":1e-300"), "top_p", "found 1e-300"},
		{COMPLETE("\"top_k\":-2"), "top_k", "found -2"},
		{COMPLETE("\"seed\":1.5"), "seed", "found 1.5"},
		{COMPLETE("\"stop\":\"\""), "stop", "found \"\""},
		{COMPLETE("\"stop\":[1]"), "stop", "found 1"},
		{COMPLETE("\"n\":0"), "n", "found 0"},
		{COMPLETE("\"n\":129"), "n", "found 129"},
		{COMPLETE("\"best_of\":2"), "best_of", "found 2"},
		{COMPLETE("\"echo\":1"), "echo", "found 1"},
		{COMPLETE("\"stream\":\"yes\""), "stream", "found \"yes\""},
		{COMPLETE("\"stream_options\":{}"), "stream_options", "stream"},
		{COMPLETE("\"logprobs\":21"), "logprobs", "found 21"},
		{COMPLETE("\"timeout\":0"), "timeout", "found 0"},
		{COMPLETE("\"suffix\":\"x\""), "suffix", "not supported"},
		{COMPLETE("\"logit_bias\":{\"1\":2}"), "logit_bias", "not supported"},
		{COMPLETE("\"presence_penalty\":0.5"), "presence_penalty", "not supported"},
		{COMPLETE("\"frequency_penalty\":-1"), "frequency_penalty", "not supported"},
		{COMPLETE("\"repetition_penalty\":1.1"), "repetition_penalty", "not supported"},
	};

	start(hi_script);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		struct reply r = http_complete(&f, cases[i].body);

		CU_ASSERT_EQUAL(r.status, 400);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.param"), cases[i].param);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.type"),
				       "invalid_request_error");
		CU_ASSERT_PTR_NOT_NULL(
			strstr(json_path_string(r.json, "error.message"), cases[i].found));
		reply_free(&r);
	}
	CU_ASSERT_EQUAL(fake_engine_submitted(f.engine), 0);
	fixture_stop(&f);
}

static void test_fields_that_change_nothing_pass(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, COMPLETE("\"suffix\":null,\"logit_bias\":{},\"presence_penalty\":0,"
				       "\"frequency_penalty\":0.0,\"repetition_penalty\":1,"
				       "\"best_of\":1,\"user\":\"me\",\"whatever\":[1]"));
	CU_ASSERT_EQUAL(r.status, 200);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_bad_json_says_where(void)
{
	static const char *const bodies[] = {
		"",        "{", "[]", "{\"model\":\"m\",\"model\":\"m\"}", "{\"model\":\"\xff\"}",
		"nonsense"};

	start(hi_script);
	for (size_t i = 0; i < CTN_ARRAY_LEN(bodies); i++) {
		struct reply r = http_complete(&f, bodies[i]);

		CU_ASSERT_EQUAL(r.status, 400);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), "invalid_json");
		reply_free(&r);
	}
	fixture_stop(&f);
}

static void test_deep_json_is_refused(void)
{
	size_t depth = 300000;
	char *body = malloc(depth + 1);
	struct reply r;

	if (!body)
		abort();
	memset(body, '[', depth);
	body[depth] = '\0';
	start(hi_script);
	r = http_complete(&f, body);
	CU_ASSERT_EQUAL(r.status, 400);
	reply_free(&r);
	free(body);
	fixture_stop(&f);
}

static void test_models_that_are_not_there_or_not_served(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, "{\"model\":\"nobody\",\"prompt\":\"x\"}");
	CU_ASSERT_EQUAL(r.status, 404);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), "model_not_found");
	CU_ASSERT_PTR_NOT_NULL(strstr(json_path_string(r.json, "error.message"), "nobody"));
	reply_free(&r);
	r = http_complete(&f, "{\"model\":\"broken\",\"prompt\":\"x\"}");
	CU_ASSERT_EQUAL(r.status, 503);
	CU_ASSERT_PTR_NOT_NULL(
		strstr(json_path_string(r.json, "error.message"), "config.json: no such file"));
	reply_free(&r);

	r = http_get(&f, "/v1/models");
	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "data")), 3);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "data.0.id"), "m");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "data.1.id"), "ids");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "data.0.object"), "model");
	CU_ASSERT_EQUAL(number(&r, "data.0.created"), 1700000000);
	reply_free(&r);
	r = http_get(&f, "/v1/models/org/deep");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "id"), "org/deep");
	reply_free(&r);
	r = http_get(&f, "/v1/models/nobody");
	CU_ASSERT_EQUAL(r.status, 404);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_a_model_without_a_tokenizer_takes_ids(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, "{\"model\":\"ids\",\"prompt\":[1,2],\"logprobs\":0}");
	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "");
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices.0.token_ids")), 3);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.logprobs.tokens.0"),
			       "token_id:97");
	reply_free(&r);
	r = http_complete(&f, "{\"model\":\"ids\",\"prompt\":\"text\"}");
	CU_ASSERT_EQUAL(r.status, 400);
	CU_ASSERT_PTR_NOT_NULL(strstr(json_path_string(r.json, "error.message"), "tokenizer.json"));
	reply_free(&r);
	r = http_complete(&f, "{\"model\":\"ids\",\"prompt\":[1],\"stop\":\"x\"}");
	CU_ASSERT_EQUAL(r.status, 400);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.param"), "stop");
	reply_free(&r);
	fixture_stop(&f);
}

/* Each token is a letter of "abcdefgh", again and again. */
static void test_stop_strings_end_the_text_and_the_work(void)
{
	static const struct {
		const char *stop, *text;
		long long tokens;
	} cases[] = {
		{"\"d\"", "abc", 4},
		{"\"cde\"", "ab", 5},
		{"[\"zz\",\"gh\"]", "abcdef", 8},
		/* The one that ends first counts, of those that end together the longest. */
		{"[\"defg\",\"ef\"]", "abcd", 6},
		{"[\"f\",\"def\"]", "abc", 6},
		{"\"ha\"", "abcdefg", 9},
		{"[\"a\"]", "", 1},
	};
	struct fake_script endless = {.tokens = letters, .count = 8, .endless = true};

	start(endless);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		char body[160];
		struct reply r;

		snprintf(body, sizeof(body),
			 "{\"model\":\"m\",\"prompt\":\"d\",\"max_tokens\":1000000000,\"stop\":%s}",
			 cases[i].stop);
		r = http_complete(&f, body);
		CU_ASSERT_EQUAL(r.status, 200);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), cases[i].text);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.finish_reason"), "stop");
		CU_ASSERT_EQUAL(number(&r, "usage.completion_tokens"), cases[i].tokens);
		reply_free(&r);
	}
	CU_ASSERT_EQUAL(fake_engine_cancelled(f.engine), CTN_ARRAY_LEN(cases));
	fixture_stop(&f);
}

static void test_what_was_held_back_comes_at_the_end(void)
{
	struct fake_script script = {.tokens = letters, .count = 4};
	struct reply r;

	start(script);
	r = http_complete(&f, COMPLETE("\"stop\":[\"cdX\",\"dY\"]"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "abcd");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.finish_reason"), "stop");
	reply_free(&r);
	/* A character that never completes is U+FFFD, and the stop string may hold it. */
	models[0].script = (struct fake_script){.tokens = hi, .count = 4};
	r = http_complete(&f, COMPLETE("\"max_tokens\":4"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "Hi \xef\xbf\xbd");
	reply_free(&r);
	fixture_stop(&f);
}

static void test_a_completion_after_bos_alone_starts_a_text(void)
{
	static const uint32_t world[] = {258, 258};
	struct fake_script script = {.tokens = world, .count = 2};
	struct reply r;

	start(script);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":[256]}");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "world world");
	reply_free(&r);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":[256,257]}");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), " world world");
	reply_free(&r);
	fixture_stop(&f);
}

static double real(const struct reply *r, const char *path)
{
	return json_number_value(json_path(r->json, path));
}

static void test_logprobs_with_echo(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, "{\"model\":\"m\",\"prompt\":\"\xc3\xa9x\",\"echo\":true,"
			      "\"logprobs\":2,\"max_tokens\":2,\"return_token_ids\":true}");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "\xc3\xa9xHi");
	/* Ids and scores are those of the whole text: c3 a9 x, H i. */
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices.0.token_ids")), 5);
	CU_ASSERT_EQUAL(number(&r, "choices.0.token_ids.0"), 0xc3);
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices.0.logprobs.tokens")), 5);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.logprobs.tokens.2"), "x");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.logprobs.tokens.3"), "H");
	CU_ASSERT_TRUE(json_is_null(json_path(r.json, "choices.0.logprobs.token_logprobs.0")));
	CU_ASSERT_TRUE(json_is_null(json_path(r.json, "choices.0.logprobs.top_logprobs.0")));
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.token_logprobs.2"), -3);
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.token_logprobs.3"), -0.5);
	CU_ASSERT_EQUAL(json_object_size(json_path(r.json, "choices.0.logprobs.top_logprobs.3")),
			2);
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.top_logprobs.3.H"), -0.5);
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.top_logprobs.3.I"), -1);
	/* Offsets count characters, not bytes. */
	CU_ASSERT_EQUAL(number(&r, "choices.0.logprobs.text_offset.0"), 0);
	CU_ASSERT_EQUAL(number(&r, "choices.0.logprobs.text_offset.2"), 1);
	CU_ASSERT_EQUAL(number(&r, "choices.0.logprobs.text_offset.3"), 2);
	CU_ASSERT_EQUAL(number(&r, "choices.0.logprobs.text_offset.4"), 3);
	CU_ASSERT_TRUE(fake_engine_last(f.engine).params.prompt_logprobs);
	CU_ASSERT_EQUAL(fake_engine_last(f.engine).params.sampling.logprobs, 2);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_scoring_without_generating(void)
{
	struct reply r;

	start(hi_script);
	r = http_complete(&f, COMPLETE("\"echo\":true,\"logprobs\":0,\"max_tokens\":0"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "ab");
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.finish_reason"), "length");
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.token_logprobs.1"), -2);
	CU_ASSERT_EQUAL(real(&r, "choices.0.logprobs.top_logprobs.1.b"), -2);
	CU_ASSERT_EQUAL(number(&r, "usage.completion_tokens"), 0);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_scores_end_where_a_stop_string_starts(void)
{
	struct fake_script script = {.tokens = letters, .count = 8};
	struct reply r;

	start(script);
	r = http_complete(&f, COMPLETE("\"stop\":\"cd\",\"logprobs\":1"));
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "choices.0.text"), "ab");
	CU_ASSERT_EQUAL(json_array_size(json_path(r.json, "choices.0.logprobs.tokens")), 2);
	reply_free(&r);
	fixture_stop(&f);
}

static void test_refusals_have_their_status(void)
{
	static const struct {
		int refuse, status;
		const char *code;
	} cases[] = {
		{-EAGAIN, 429, "queue_full"},
		{-ESHUTDOWN, 503, "stopping"},
		{-ENODEV, 503, "model_not_servable"},
		{-EINVAL, 400, "invalid_value"},
		{-ENOMEM, 503, "no_room"},
		{-EMFILE, 503, "no_room"},
		{-EIO, 500, ""},
	};
	struct reply r;

	start(hi_script);
	for (size_t i = 0; i < CTN_ARRAY_LEN(cases); i++) {
		models[0].script.refuse = cases[i].refuse;
		r = http_complete(&f, COMPLETE("\"n\":2"));
		CU_ASSERT_EQUAL(r.status, cases[i].status);
		CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), cases[i].code);
		CU_ASSERT_EQUAL(reply_has(&r, "\r\nRetry-After: 7\r\n"), cases[i].status == 429);
		reply_free(&r);
	}
	fixture_stop(&f);
}

static void test_bad_ends_have_their_status(void)
{
	struct reply r;

	start((struct fake_script){.hold = true});
	r = http_complete(&f, COMPLETE("\"timeout\":0.05"));
	CU_ASSERT_EQUAL(r.status, 504);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.type"), "timeout_error");
	reply_free(&r);
	/* A stream that has not begun has a status too. */
	r = http_complete(&f, COMPLETE("\"timeout\":0.05,\"stream\":true"));
	CU_ASSERT_EQUAL(r.status, 504);
	reply_free(&r);
	models[0].script = hi_script;
	models[0].script.finish = CTN_FINISH_ERROR;
	r = http_complete(&f, COMPLETE("\"max_tokens\":100"));
	CU_ASSERT_EQUAL(r.status, 500);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.message"),
			       "the script failed the step");
	reply_free(&r);
	fixture_stop(&f);
}

static void test_paths_and_methods(void)
{
	struct reply r;
	int sock;

	start(hi_script);
	r = http_get(&f, "/v1/nothing");
	CU_ASSERT_EQUAL(r.status, 404);
	CU_ASSERT_STRING_EQUAL(json_path_string(r.json, "error.code"), "unknown_url");
	reply_free(&r);
	r = http_get(&f, "/v1/completions");
	CU_ASSERT_EQUAL(r.status, 405);
	CU_ASSERT_TRUE(reply_has(&r, "\r\nAllow: POST\r\n"));
	reply_free(&r);
	/* What controls the daemon is not for the network. */
	r = http_get(&f, "/status");
	CU_ASSERT_EQUAL(r.status, 404);
	reply_free(&r);
	sock = http_connect(&f);
	http_post(sock, "/models/m/evict", "");
	r = http_read(sock);
	CU_ASSERT_EQUAL(r.status, 404);
	reply_free(&r);
	/* The connection goes on. */
	http_sendf(sock, "DELETE /health HTTP/1.1\r\nHost: x\r\n\r\n");
	r = http_read(sock);
	CU_ASSERT_EQUAL(r.status, 405);
	CU_ASSERT_TRUE(reply_has(&r, "\r\nAllow: GET\r\n"));
	reply_free(&r);
	close(sock);
	r = http_get(&f, "/health");
	CU_ASSERT_EQUAL(r.status, 200);
	CU_ASSERT_STRING_EQUAL(r.body, "{\"status\":\"ok\"}");
	reply_free(&r);
	fixture_stop(&f);
}

CTN_TESTS("server", CTN_TEST(test_a_completion_has_text_reason_and_usage),
	  CTN_TEST(test_defaults_are_those_of_openai), CTN_TEST(test_every_form_of_prompt),
	  CTN_TEST(test_n_choices_of_each_prompt_in_order), CTN_TEST(test_bad_fields_are_named),
	  CTN_TEST(test_fields_that_change_nothing_pass), CTN_TEST(test_bad_json_says_where),
	  CTN_TEST(test_deep_json_is_refused),
	  CTN_TEST(test_models_that_are_not_there_or_not_served),
	  CTN_TEST(test_a_model_without_a_tokenizer_takes_ids),
	  CTN_TEST(test_stop_strings_end_the_text_and_the_work),
	  CTN_TEST(test_what_was_held_back_comes_at_the_end),
	  CTN_TEST(test_a_completion_after_bos_alone_starts_a_text),
	  CTN_TEST(test_logprobs_with_echo), CTN_TEST(test_scoring_without_generating),
	  CTN_TEST(test_scores_end_where_a_stop_string_starts),
	  CTN_TEST(test_refusals_have_their_status), CTN_TEST(test_bad_ends_have_their_status),
	  CTN_TEST(test_paths_and_methods))
