// SPDX-License-Identifier: MIT
#include "tokenizer/pretokenize.h"
#include "tokenizer/json.h"
#include "tokenizer/unicode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How GPT-2 cuts text into words. */
#define GPT2_PATTERN \
	"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

#define MAX_STEPS 64

/* ---- reading --------------------------------------------------------------------------- */

static int add_step(struct ctn_tok_pre *pre, enum ctn_tok_pre_kind kind,
		    struct ctn_tok_pre_step **step, struct ctn_err *err)
{
	struct ctn_tok_pre_step *grown;

	/* A piece runs through the steps by recursion. */
	if (pre->count == MAX_STEPS)
		return ctn_err_set(err, -ENOTSUP, "pre_tokenizer: more than %d steps", MAX_STEPS);
	grown = reallocarray(pre->steps, pre->count + 1, sizeof(*grown));
	if (!grown)
		return ctn_err_set(err, -ENOMEM, "pre_tokenizer: out of memory");
	pre->steps = grown;
	*step = &grown[pre->count++];
	**step = (struct ctn_tok_pre_step){.kind = kind};
	return 0;
}

static int add_regex_split(struct ctn_tok_pre *pre, const char *what, const char *regex,
			   enum ctn_tok_behavior behavior, struct ctn_err *err)
{
	struct ctn_tok_pre_step *step;
	int rc;

	rc = add_step(pre, CTN_TOK_PRE_SPLIT, &step, err);
	if (rc)
		return rc;
	step->behavior = behavior;
	return ctn_tok_pattern_regex(what, regex, strlen(regex), &step->pattern, err);
}

static int parse_byte_level(struct ctn_tok_pre *pre, const json_t *obj, struct ctn_err *err)
{
	static const char *const known[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
					    NULL};
	const char *what = "pre_tokenizer ByteLevel";
	bool prefix = true, use_regex = true;
	struct ctn_tok_pre_step *step;
	int rc;

	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "add_prefix_space", &prefix, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "use_regex", &use_regex, err);
	if (!rc && prefix)
		rc = add_step(pre, CTN_TOK_PRE_SPACE, &step, err);
	if (!rc && use_regex)
		rc = add_regex_split(pre, what, GPT2_PATTERN, CTN_TOK_ISOLATED, err);
	return rc ? rc : add_step(pre, CTN_TOK_PRE_ALPHABET, &step, err);
}

static int parse_behavior(const json_t *obj, const char *what, enum ctn_tok_behavior *behavior,
			  struct ctn_err *err)
{
	static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
					    "MergedWithNext", "Contiguous"};
	const char *name;
	int rc;

	rc = ctn_tok_json_string(obj, what, "behavior", &name, NULL, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < CTN_ARRAY_LEN(names); i++) {
		if (strcmp(name, names[i]) == 0) {
			*behavior = (enum ctn_tok_behavior)i;
			return 0;
		}
	}
	return ctn_err_set(err, -ENOTSUP, "%s: behavior \"%.64s\" is not supported", what, name);
}

static int parse_split(struct ctn_tok_pre *pre, const json_t *obj, struct ctn_err *err)
{
	static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
	const char *what = "pre_tokenizer Split", *pattern;
	struct ctn_tok_pre_step *step;
	bool is_regex;
	size_t len;
	int rc;

	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = add_step(pre, CTN_TOK_PRE_SPLIT, &step, err);
	if (!rc)
		rc = parse_behavior(obj, what, &step->behavior, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "invert", &step->invert, err);
	if (!rc)
		rc = ctn_tok_json_pattern(obj, what, &is_regex, &pattern, &len, err);
	if (rc)
		return rc;
	return is_regex ? ctn_tok_pattern_regex(what, pattern, len, &step->pattern, err)
			: ctn_tok_pattern_literal(pattern, len, &step->pattern, err);
}

static int parse_digits(struct ctn_tok_pre *pre, const json_t *obj, struct ctn_err *err)
{
	static const char *const known[] = {"type", "individual_digits", NULL};
	const char *what = "pre_tokenizer Digits";
	bool individual = false;
	int rc;

	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "individual_digits", &individual, err);
	if (rc)
		return rc;
	return add_regex_split(pre, what, "\\p{N}",
			       individual ? CTN_TOK_ISOLATED : CTN_TOK_CONTIGUOUS, err);
}

int ctn_tok_metaspace_parse(const json_t *obj, const char *what, char meta[4], size_t *meta_len,
			    enum ctn_tok_prepend *prepend, bool *split, struct ctn_err *err)
{
	static const char *const known[] = {
		"type",    "replacement", "add_prefix_space", "prepend_scheme", "split",
		"str_rep", NULL};
	static const char *const schemes[] = {"never", "first", "always"};
	const char *text, *scheme = "always";
	bool prefix = true;
	size_t len, i;
	uint32_t cp;
	int rc;

	rc = ctn_tok_json_check(obj, what, known, err);
	if (!rc)
		rc = ctn_tok_json_string(obj, what, "replacement", &text, &len, err);
	if (!rc && json_object_get(obj, "prepend_scheme"))
		rc = ctn_tok_json_string(obj, what, "prepend_scheme", &scheme, NULL, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "add_prefix_space", &prefix, err);
	if (!rc)
		rc = ctn_tok_json_bool(obj, what, "split", split, err);
	if (rc)
		return rc;
	if (len == 0 || ctn_tok_utf8_decode(text, &cp) != len)
		return ctn_err_set(err, -EINVAL, "%s: \"replacement\": expected one character",
				   what);
	memcpy(meta, text, len);
	*meta_len = len;
	for (i = 0; i < CTN_ARRAY_LEN(schemes) && strcmp(scheme, schemes[i]) != 0; i++)
		;
	if (i == CTN_ARRAY_LEN(schemes))
		return ctn_err_set(err, -ENOTSUP, "%s: prepend_scheme \"%.64s\" is not supported",
				   what, scheme);
	*prepend = (enum ctn_tok_prepend)i;
	if (prefix || *prepend == CTN_TOK_PREPEND_NEVER)
		return 0;
	return ctn_err_set(err, -EINVAL, "%s: add_prefix_space does not agree with prepend_scheme",
			   what);
}

static int parse_metaspace(struct ctn_tok_pre *pre, const json_t *obj, struct ctn_err *err)
{
	const char *what = "pre_tokenizer Metaspace";
	struct ctn_tok_pre_step *step, meta = {.kind = CTN_TOK_PRE_META};
	bool split = true;
	int rc;

	rc = ctn_tok_metaspace_parse(obj, what, meta.meta, &meta.meta_len, &meta.prepend, &split,
				     err);
	if (rc)
		return rc;
	if (meta.prepend == CTN_TOK_PREPEND_FIRST) {
		/* Behind other steps a piece no longer tells where in the input it began. */
		if (pre->count)
			return ctn_err_set(err, -ENOTSUP,
					   "%s: prepend_scheme \"first\" behind another "
					   "pre-tokenizer is not supported",
					   what);
		pre->wants_start = true;
	}
	rc = add_step(pre, CTN_TOK_PRE_META, &step, err);
	if (rc)
		return rc;
	*step = meta;
	if (!split)
		return 0;
	rc = add_step(pre, CTN_TOK_PRE_SPLIT, &step, err);
	if (rc)
		return rc;
	step->behavior = CTN_TOK_MERGED_WITH_NEXT;
	return ctn_tok_pattern_literal(meta.meta, meta.meta_len, &step->pattern, err);
}

static int parse_step(void *arg, const json_t *obj, const char *type, struct ctn_err *err)
{
	struct ctn_tok_pre *pre = arg;

	if (strcmp(type, "ByteLevel") == 0)
		return parse_byte_level(pre, obj, err);
	if (strcmp(type, "Split") == 0)
		return parse_split(pre, obj, err);
	if (strcmp(type, "Digits") == 0)
		return parse_digits(pre, obj, err);
	if (strcmp(type, "Metaspace") == 0)
		return parse_metaspace(pre, obj, err);
	return ctn_err_set(err, -ENOTSUP, "pre_tokenizer \"%.64s\" is not supported", type);
}

int ctn_tok_pre_parse(const json_t *obj, struct ctn_tok_pre *pre, struct ctn_err *err)
{
	return ctn_tok_json_each(obj, "pre_tokenizer", "pretokenizers", 0, parse_step, pre, err);
}

void ctn_tok_pre_free(struct ctn_tok_pre *pre)
{
	for (size_t i = 0; i < pre->count; i++)
		ctn_tok_pattern_free(pre->steps[i].pattern);
	free(pre->steps);
}

/* ---- running --------------------------------------------------------------------------- */

/* `at_start` matters to a first step alone: see parse_metaspace. */
static int run_from(const struct ctn_tok_pre_run *run, size_t index, const char *text, size_t len,
		    bool at_start, struct ctn_err *err);

/* A split under way. [start, end) is the part that the next item may still join. */
struct splitting {
	const struct ctn_tok_pre_run *run;
	size_t index; /* of the step */
	const char *text;
	bool pending;
	bool prev_match;
	size_t start;
	size_t end;
};

static int flush_part(struct splitting *s, struct ctn_err *err)
{
	if (!s->pending || s->start == s->end)
		return 0;
	s->pending = false;
	return run_from(s->run, s->index + 1, s->text + s->start, s->end - s->start, false, err);
}

static bool joins(const struct splitting *s, bool match)
{
	switch (s->run->pre->steps[s->index].behavior) {
	case CTN_TOK_MERGED_WITH_PREVIOUS:
		return s->pending && match && !s->prev_match;
	case CTN_TOK_MERGED_WITH_NEXT:
		return s->pending && !match && s->prev_match;
	case CTN_TOK_CONTIGUOUS:
		return s->pending && match == s->prev_match;
	default:
		return false;
	}
}

static int split_item(void *arg, size_t start, size_t end, bool match, struct ctn_err *err)
{
	struct splitting *s = arg;
	const struct ctn_tok_pre_step *step = &s->run->pre->steps[s->index];
	bool join;
	int rc = 0;

	match ^= step->invert;
	join = joins(s, match);
	s->prev_match = match;
	if (join) {
		s->end = end;
		return 0;
	}
	rc = flush_part(s, err);
	s->pending = !(match && step->behavior == CTN_TOK_REMOVED);
	s->start = start;
	s->end = end;
	return rc;
}

static int split(const struct ctn_tok_pre_run *run, size_t index, const char *text, size_t len,
		 struct ctn_err *err)
{
	struct splitting s = {.run = run, .index = index, .text = text};
	int rc;

	rc = ctn_tok_pattern_cut(run->pre->steps[index].pattern, text, len, split_item, &s, err);
	return rc ? rc : flush_part(&s, err);
}

static void to_alphabet(const char *text, size_t len, struct ctn_buf *out)
{
	char chars[512];
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		n += ctn_tok_utf8_encode(ctn_tok_byte_to_char((uint8_t)text[i]), chars + n);
		if (n + 4 > sizeof(chars) || i + 1 == len) {
			ctn_buf_append(out, chars, n);
			n = 0;
		}
	}
}

static void to_metaspace(const struct ctn_tok_pre_step *step, const char *text, size_t len,
			 bool at_start, struct ctn_buf *out)
{
	bool has_it = text[0] == ' ' ||
		      (len >= step->meta_len && memcmp(text, step->meta, step->meta_len) == 0);
	size_t done = 0;

	if (!has_it && (step->prepend == CTN_TOK_PREPEND_ALWAYS ||
			(step->prepend == CTN_TOK_PREPEND_FIRST && at_start)))
		ctn_buf_append(out, step->meta, step->meta_len);
	for (size_t i = 0; i < len; i++) {
		if (text[i] != ' ')
			continue;
		ctn_buf_append(out, text + done, i - done);
		ctn_buf_append(out, step->meta, step->meta_len);
		done = i + 1;
	}
	ctn_buf_append(out, text + done, len - done);
}

static int run_from(const struct ctn_tok_pre_run *run, size_t index, const char *text, size_t len,
		    bool at_start, struct ctn_err *err)
{
	const struct ctn_tok_pre_step *step;
	struct ctn_buf *out;

	if (index == run->pre->count)
		return run->word(run->arg, text, len, err);
	step = &run->pre->steps[index];
	if (step->kind == CTN_TOK_PRE_SPLIT)
		return split(run, index, text, len, err);
	if (step->kind == CTN_TOK_PRE_SPACE && text[0] == ' ')
		return run_from(run, index + 1, text, len, false, err);
	out = &run->scratch[index];
	ctn_buf_reset(out);
	if (step->kind == CTN_TOK_PRE_SPACE) {
		ctn_buf_append(out, " ", 1);
		ctn_buf_append(out, text, len);
	} else if (step->kind == CTN_TOK_PRE_ALPHABET) {
		to_alphabet(text, len, out);
	} else {
		to_metaspace(step, text, len, at_start, out);
	}
	if (out->failed)
		return ctn_err_set(err, -ENOMEM, "out of memory");
	return run_from(run, index + 1, out->data, out->len, false, err);
}

int ctn_tok_pre_piece(const struct ctn_tok_pre_run *run, const char *text, size_t len,
		      bool at_start, struct ctn_err *err)
{
	CTN_ASSERT(len > 0);
	return run_from(run, 0, text, len, at_start, err);
}
