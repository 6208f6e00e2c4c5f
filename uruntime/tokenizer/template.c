// SPDX-License-Identifier: MIT
#include "tokenizer/template.h"
#include "tokenizer/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WHAT "post_processor TemplateProcessing"

int ctn_tok_template_add(struct ctn_tok_template *t, bool is_text, uint32_t id, struct ctn_err *err)
{
	struct ctn_tok_template_part *grown = reallocarray(t->parts, t->count + 1, sizeof(*grown));

	if (!grown)
		return ctn_err_set(err, -ENOMEM, "post_processor: out of memory");
	t->parts = grown;
	t->parts[t->count++] = (struct ctn_tok_template_part){is_text, id};
	return 0;
}

/* {"SpecialToken": {"id": NAME}}: the ids that "special_tokens" has for the name. */
static int add_special_token(struct ctn_tok_template *t, const json_t *obj, const json_t *token,
			     struct ctn_err *err)
{
	const json_t *ids;
	const char *name;
	int rc;

	rc = ctn_tok_json_string(token, WHAT ": SpecialToken", "id", &name, NULL, err);
	if (rc)
		return rc;
	ids = json_object_get(json_object_get(json_object_get(obj, "special_tokens"), name), "ids");
	if (!json_is_array(ids))
		return ctn_err_set(err, -EINVAL, WHAT ": special_tokens has no ids for \"%.64s\"",
				   name);
	for (size_t i = 0; !rc && i < json_array_size(ids); i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0 ||
		    json_integer_value(id) >= CTN_TOK_MAX_ID)
			return ctn_err_set(err, -EINVAL,
					   WHAT ": \"%.64s\": expected ids from 0 to %u", name,
					   CTN_TOK_MAX_ID - 1);
		rc = ctn_tok_template_add(t, false, (uint32_t)json_integer_value(id), err);
	}
	return rc;
}

static int add_piece(struct ctn_tok_template *t, const json_t *obj, const json_t *piece,
		     struct ctn_err *err)
{
	const json_t *token = json_object_get(piece, "SpecialToken");
	const json_t *sequence = json_object_get(piece, "Sequence");
	const char *which;
	int rc;

	if (json_object_size(piece) != 1 || (!token && !sequence))
		return ctn_err_set(err, -EINVAL, WHAT ": expected SpecialToken or Sequence");
	if (token)
		return add_special_token(t, obj, token, err);
	rc = ctn_tok_json_string(sequence, WHAT ": Sequence", "id", &which, NULL, err);
	if (rc)
		return rc;
	if (strcmp(which, "A") != 0)
		return ctn_err_set(err, -EINVAL, WHAT ": sequence \"%.64s\" in \"single\"", which);
	return ctn_tok_template_add(t, true, 0, err);
}

static int parse_processor(void *arg, const json_t *obj, const char *type, struct ctn_err *err)
{
	static const char *const byte_level[] = {"type", "add_prefix_space", "trim_offsets",
						 "use_regex", NULL};
	static const char *const known[] = {"type", "single", "pair", "special_tokens", NULL};
	struct ctn_tok_template *t = arg;
	const json_t *single;
	int rc;

	if (strcmp(type, "ByteLevel") == 0)
		return ctn_tok_json_check(obj, "post_processor ByteLevel", byte_level, err);
	if (strcmp(type, "TemplateProcessing") != 0)
		return ctn_err_set(err, -ENOTSUP, "post_processor \"%.64s\" is not supported",
				   type);
	if (t->count)
		return ctn_err_set(err, -ENOTSUP,
				   "post_processor: more than one TemplateProcessing");
	rc = ctn_tok_json_check(obj, WHAT, known, err);
	if (!rc)
		rc = ctn_tok_json_array(obj, WHAT, "single", &single, err);
	if (rc)
		return rc;
	if (json_array_size(single) == 0)
		return ctn_err_set(err, -EINVAL, WHAT ": \"single\" is empty");
	for (size_t i = 0; !rc && i < json_array_size(single); i++)
		rc = add_piece(t, obj, json_array_get(single, i), err);
	return rc;
}

int ctn_tok_template_parse(const json_t *obj, struct ctn_tok_template *t, struct ctn_err *err)
{
	int rc;

	rc = ctn_tok_json_each(obj, "post_processor", "processors", 0, parse_processor, t, err);
	if (!rc && !t->count)
		rc = ctn_tok_template_add(t, true, 0, err);
	return rc;
}

void ctn_tok_template_free(struct ctn_tok_template *t)
{
	free(t->parts);
}

void ctn_tok_template_apply(const struct ctn_tok_template *t, const struct ctn_tok_ids *text,
			    bool add_special, struct ctn_tok_ids *out)
{
	for (size_t i = 0; i < t->count; i++) {
		if (t->parts[i].is_text)
			ctn_tok_ids_append(out, text->v, text->count);
		else if (add_special)
			ctn_tok_ids_append(out, &t->parts[i].id, 1);
	}
}
