// SPDX-License-Identifier: MIT
/* The table of families, and finding in a checkpoint the tensors that one of them needs. */
#include "checkpoint/family.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ctn_family *const families[] = {
	&ctn_family_llama, &ctn_family_mistral, &ctn_family_qwen2,
	&ctn_family_opt,   &ctn_family_gpt2,
};

static const struct ctn_role_info roles[CTN_ROLE_COUNT] = {
	[CTN_ROLE_EMBED] = {"embed", CTN_PART_REST, CTN_IN_EMBED},
	[CTN_ROLE_POSITIONS] = {"positions", CTN_PART_REST, CTN_IN_EMBED},
	[CTN_ROLE_PROJECT_IN] = {"project_in", CTN_PART_REST, CTN_IN_EMBED},
	[CTN_ROLE_NORM1_W] = {"norm1_w", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_NORM1_B] = {"norm1_b", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_QKV_W] = {"qkv_w", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_QKV_B] = {"qkv_b", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_OUT_W] = {"out_w", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_OUT_B] = {"out_b", CTN_PART_ATTENTION, CTN_IN_LAYERS},
	[CTN_ROLE_NORM2_W] = {"norm2_w", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_NORM2_B] = {"norm2_b", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_UP_W] = {"up_w", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_UP_B] = {"up_b", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_DOWN_W] = {"down_w", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_DOWN_B] = {"down_b", CTN_PART_MLP, CTN_IN_LAYERS},
	[CTN_ROLE_NORM_F_W] = {"norm_f_w", CTN_PART_REST, CTN_IN_HEAD},
	[CTN_ROLE_NORM_F_B] = {"norm_f_b", CTN_PART_REST, CTN_IN_HEAD},
	[CTN_ROLE_PROJECT_OUT] = {"project_out", CTN_PART_REST, CTN_IN_HEAD},
	[CTN_ROLE_HEAD] = {"head", CTN_PART_REST, CTN_IN_HEAD},
};

const struct ctn_role_info *ctn_role_info(enum ctn_role role)
{
	return &roles[role];
}

const char *ctn_role_name(enum ctn_role role)
{
	return roles[role].name;
}

const char *ctn_family_name(const struct ctn_family *family)
{
	return family->name;
}

uint64_t ctn_dim_size(const struct ctn_arch *arch, enum ctn_dim dim)
{
	const uint64_t q = (uint64_t)arch->heads * arch->head_dim;
	const uint64_t kv = (uint64_t)arch->kv_heads * arch->head_dim;

	switch (dim) {
	case CTN_DIM_NONE:
		return 1;
	case CTN_DIM_HIDDEN:
		return arch->hidden;
	case CTN_DIM_EMBED:
		return arch->embed_dim;
	case CTN_DIM_POSITIONS:
		return (uint64_t)arch->max_positions + arch->position_offset;
	case CTN_DIM_Q:
		return q;
	case CTN_DIM_KV:
		return kv;
	case CTN_DIM_QKV:
		return q + 2 * kv;
	case CTN_DIM_FFN:
		return arch->ffn;
	case CTN_DIM_VOCAB:
		return arch->vocab;
	}
	CTN_ASSERT(!"dimension");
	return 0;
}

static bool lists_architecture(const struct ctn_family *family, const char *name)
{
	for (size_t i = 0; family->architectures[i]; i++) {
		if (strcmp(family->architectures[i], name) == 0)
			return true;
	}
	return false;
}

/* model_type decides what a config means, as it does for its writers. The architecture may be
 * that of another family with the same tensors: people retag LLaMA's descendants. */
static bool suits_architecture(const struct ctn_family *family, const char *name)
{
	for (size_t i = 0; i < CTN_ARRAY_LEN(families); i++) {
		if (families[i]->specs == family->specs && lists_architecture(families[i], name))
			return true;
	}
	return false;
}

int ctn_family_find(const char *path, const json_t *config, const struct ctn_family **family,
		    struct ctn_err *err)
{
	const json_t *type = json_object_get(config, "model_type");
	const json_t *list = json_object_get(config, "architectures");
	const char *arch = json_string_value(json_array_get(list, 0));

	if (json_array_size(list) > 1 || (list && !json_is_null(list) && !arch))
		return ctn_err_set(err, -EINVAL,
				   "%s: \"architectures\": expected one name, found %s", path,
				   ctn_quote_json(list).s);
	if (!json_is_string(type) && !arch)
		return ctn_err_set(err, -EINVAL, "%s: expected \"model_type\", found nothing",
				   path);
	for (size_t i = 0; i < CTN_ARRAY_LEN(families); i++) {
		if (json_is_string(type) && strcmp(families[i]->name, json_string_value(type)) != 0)
			continue;
		if (arch && !(json_is_string(type) ? suits_architecture(families[i], arch)
						   : lists_architecture(families[i], arch)))
			continue;
		*family = families[i];
		return 0;
	}
	return ctn_err_set(err, -ENOTSUP,
			   "%s: model type \"%s\", architecture \"%s\": not supported", path,
			   json_is_string(type) ? ctn_quote(json_string_value(type)).s : "",
			   arch ? ctn_quote(arch).s : "");
}

/* ---- binding --------------------------------------------------------------------------- */

struct binder {
	struct ctn_checkpoint *ckpt;
	struct ctn_checkpoint_priv *priv;
	const char *prefix;
	bool *used; /* by tensor */
	uint32_t capacity;
};

static void expand_name(const struct binder *b, const struct ctn_tensor_spec *spec, uint32_t layer,
			char name[256])
{
	const char *prefix = spec->bare ? "" : b->prefix;
	const char *hash = strchr(spec->name, '#');

	if (hash)
		snprintf(name, 256, "%s%.*s%u%s", prefix, (int)(hash - spec->name), spec->name,
			 layer - 1, hash + 1);
	else
		snprintf(name, 256, "%s%s", prefix, spec->name);
}

static int find_prefix(struct binder *b, struct ctn_err *err)
{
	const struct ctn_family *family = b->ckpt->family;
	char name[256];

	for (size_t i = 0; family->prefixes[i]; i++) {
		b->prefix = family->prefixes[i];
		expand_name(b, &family->specs[0], 0, name);
		if (ctn_checkpoint_tensor(b->ckpt, name))
			return 0;
	}
	b->prefix = family->prefixes[0];
	expand_name(b, &family->specs[0], 0, name);
	return ctn_err_set(err, -EINVAL, "%s: tensor \"%s\" (or without \"%s\") not found",
			   b->ckpt->dir, name, b->prefix);
}

static void format_shape(struct ctn_buf *buf, const uint64_t *shape, uint32_t rank)
{
	ctn_buf_puts(buf, "[");
	for (uint32_t i = 0; i < rank; i++)
		ctn_buf_printf(buf, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
	ctn_buf_puts(buf, "]");
}

static int wrong_shape(const struct binder *b, const struct ctn_tensor *t, const uint64_t *want,
		       uint32_t rank, struct ctn_err *err)
{
	struct ctn_buf expected = {0}, found = {0};
	int rc;

	format_shape(&expected, want, rank);
	format_shape(&found, t->shape, t->rank);
	rc = ctn_err_set(err, -EINVAL,
			 "%s: tensor \"%s\": expected shape %s by config.json, found %s",
			 b->ckpt->files[t->file].path, ctn_quote(t->name).s,
			 expected.failed ? "?" : expected.data,
			 found.failed ? "?" : ctn_quote(found.data).s);
	ctn_buf_free(&expected);
	ctn_buf_free(&found);
	return rc;
}

static int check_tensor(const struct binder *b, const struct ctn_tensor_spec *spec,
			const struct ctn_tensor *t, struct ctn_err *err)
{
	const uint64_t want[2] = {ctn_dim_size(&b->ckpt->arch, spec->dims[0]),
				  ctn_dim_size(&b->ckpt->arch, spec->dims[1])};
	const uint32_t rank = spec->dims[1] == CTN_DIM_NONE ? 1 : 2;
	const enum ctn_dtype dtype = t->encoding.dtype;

	if (t->rank != rank || t->shape[0] != want[0] || (rank == 2 && t->shape[1] != want[1]))
		return wrong_shape(b, t, want, rank, err);
	if (dtype != CTN_DTYPE_F32 && dtype != CTN_DTYPE_F16 && dtype != CTN_DTYPE_BF16)
		return ctn_err_set(
			err, -ENOTSUP, "%s: tensor \"%s\": expected F32, F16 or BF16, found %s",
			b->ckpt->files[t->file].path, ctn_quote(t->name).s, ctn_dtype_name(dtype));
	return 0;
}

static int add_binding(struct binder *b, uint32_t layer, const struct ctn_tensor_spec *spec,
		       const struct ctn_tensor *t, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = b->priv;
	const struct ctn_binding *last;

	if (priv->binding_count == b->capacity) {
		uint32_t capacity = b->capacity ? 2 * b->capacity : 256;
		void *p = reallocarray(priv->bindings, capacity, sizeof(*priv->bindings));

		if (!p)
			return ctn_err_set(err, -ENOMEM, "%s: out of memory", b->ckpt->dir);
		priv->bindings = p;
		b->capacity = capacity;
	}
	last = priv->binding_count ? &priv->bindings[priv->binding_count - 1] : NULL;
	if (last && last->layer == layer && last->spec->role == spec->role) {
		const struct ctn_tensor *first = &b->ckpt->tensors[last->tensor];

		if (first->encoding.dtype != t->encoding.dtype)
			return ctn_err_set(err, -ENOTSUP,
					   "%s: tensor \"%s\": expected %s like \"%s\", with which "
					   "it is joined, found %s",
					   b->ckpt->files[t->file].path, ctn_quote(t->name).s,
					   ctn_dtype_name(first->encoding.dtype),
					   ctn_quote(first->name).s,
					   ctn_dtype_name(t->encoding.dtype));
	}
	priv->bindings[priv->binding_count++] = (struct ctn_binding){
		.layer = layer,
		.tensor = (uint32_t)(t - b->ckpt->tensors),
		.spec = spec,
	};
	b->used[t - b->ckpt->tensors] = true;
	b->ckpt->bytes += t->bytes;
	return 0;
}

static int bind_layer(struct binder *b, uint32_t layer, struct ctn_err *err)
{
	const struct ctn_family *family = b->ckpt->family;
	const uint32_t last = ctn_layer_count(&b->ckpt->arch) - 1;

	for (size_t i = 0; i < family->spec_count; i++) {
		const struct ctn_tensor_spec *spec = &family->specs[i];
		const int where = roles[spec->role].where;
		const struct ctn_tensor *t;
		char name[256];
		int rc;

		if (where != (layer == 0      ? CTN_IN_EMBED
			      : layer == last ? CTN_IN_HEAD
					      : CTN_IN_LAYERS) ||
		    (spec->needs & ~b->priv->features))
			continue;
		expand_name(b, spec, layer, name);
		t = ctn_checkpoint_tensor(b->ckpt, name);
		if (!t)
			return ctn_err_set(err, -EINVAL, "%s: tensor \"%s\" not found%s",
					   b->ckpt->dir, name,
					   spec->role == CTN_ROLE_HEAD
						   ? ", and config.json does not tie it to the "
						     "token embedding"
						   : "");
		rc = check_tensor(b, spec, t, err);
		if (!rc)
			rc = add_binding(b, layer, spec, t, err);
		if (rc)
			return rc;
	}
	return 0;
}

/* Some writers store a tied head as well. It is the embedding by definition. */
static void skip_tied_head(struct binder *b)
{
	const struct ctn_family *family = b->ckpt->family;

	for (size_t i = 0; b->ckpt->arch.tied && i < family->spec_count; i++) {
		const struct ctn_tensor *embed, *head;
		char name[256];

		if (family->specs[i].role != CTN_ROLE_HEAD)
			continue;
		expand_name(b, &family->specs[i], 0, name);
		head = ctn_checkpoint_tensor(b->ckpt, name);
		if (!head)
			continue;
		embed = &b->ckpt->tensors[b->priv->bindings[0].tensor];
		b->used[head - b->ckpt->tensors] = true;
		if (head->bytes != embed->bytes || head->encoding.dtype != embed->encoding.dtype)
			ctn_warn("%s: tensor \"%s\" is tied to \"%s\" but differs in size; the "
				 "latter is used",
				 b->ckpt->files[head->file].path, name, embed->name);
	}
}

/* '#' in the pattern stands for digits. */
static bool matches(const char *pattern, const char *name)
{
	for (; *pattern; pattern++) {
		if (*pattern != '#') {
			if (*pattern != *name++)
				return false;
			continue;
		}
		if (!isdigit((unsigned char)*name))
			return false;
		while (isdigit((unsigned char)*name))
			name++;
	}
	return *name == '\0';
}

static bool is_ignored(const struct binder *b, const char *name)
{
	const char *const *ignored = b->ckpt->family->ignored;
	const size_t n = strlen(b->prefix);

	if (strncmp(name, b->prefix, n) != 0)
		return false;
	for (size_t i = 0; ignored[i]; i++) {
		if (matches(ignored[i], name + n))
			return true;
	}
	return false;
}

static void warn_unused(const struct binder *b)
{
	const char *first = NULL;
	uint32_t count = 0;

	for (uint32_t i = 0; i < b->ckpt->tensor_count; i++) {
		const char *name = b->ckpt->tensors[i].name;

		if (b->used[i] || is_ignored(b, name))
			continue;
		if (!count++)
			first = name;
	}
	if (count)
		ctn_warn("%s: %u tensors are not used, the first is \"%s\"", b->ckpt->dir, count,
			 ctn_quote(first).s);
}

int ctn_family_bind(struct ctn_checkpoint *ckpt, struct ctn_err *err)
{
	struct ctn_checkpoint_priv *priv = ckpt->priv;
	struct binder b = {.ckpt = ckpt, .priv = priv};
	const uint32_t layers = ctn_layer_count(&ckpt->arch);
	int rc;

	/* Bounds the loops below by what the files hold. */
	if (ckpt->arch.layers > ckpt->tensor_count)
		return ctn_err_set(err, -EINVAL,
				   "%s: config.json has %u layers, the files only %u tensors",
				   ckpt->dir, ckpt->arch.layers, ckpt->tensor_count);
	b.used = calloc((size_t)ckpt->tensor_count + 1, sizeof(*b.used));
	priv->layer_bindings = calloc((size_t)layers + 1, sizeof(*priv->layer_bindings));
	if (!b.used || !priv->layer_bindings) {
		rc = ctn_err_set(err, -ENOMEM, "%s: out of memory", ckpt->dir);
		goto out;
	}
	rc = find_prefix(&b, err);
	for (uint32_t layer = 0; !rc && layer < layers; layer++) {
		rc = bind_layer(&b, layer, err);
		priv->layer_bindings[layer + 1] = priv->binding_count;
	}
	if (rc)
		goto out;
	skip_tied_head(&b);
	warn_unused(&b);
out:
	free(b.used);
	return rc;
}
