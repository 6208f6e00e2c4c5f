/* SPDX-License-Identifier: MIT */
/*
 * What a family is: how its config.json reads, and one row for each tensor that it stores. How
 * a tensor splits over tensor-parallel ranks follows from the names of its dimensions: heads,
 * ffn and vocabulary are divided, the others are whole on every rank. Private to checkpoint.
 */
#ifndef CTN_CHECKPOINT_FAMILY_H
#define CTN_CHECKPOINT_FAMILY_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

/* The name of a dimension; its size comes from the architecture. */
enum ctn_dim {
	CTN_DIM_NONE, /* the second of a vector */
	CTN_DIM_HIDDEN,
	CTN_DIM_EMBED,
	CTN_DIM_POSITIONS,
	CTN_DIM_Q,   /* heads * head_dim */
	CTN_DIM_KV,  /* kv_heads * head_dim */
	CTN_DIM_QKV, /* one of Q, then two of KV, in one tensor */
	CTN_DIM_FFN,
	CTN_DIM_VOCAB,
};

uint64_t ctn_dim_size(const struct ctn_arch *arch, enum ctn_dim dim);

/* What a config switches on or off beyond the architecture: a tensor with `needs` bits exists
 * when all of them are on. */
#define CTN_HAS_QKV_BIAS (1u << 0)
#define CTN_HAS_OUT_BIAS (1u << 1)
#define CTN_HAS_MLP_BIAS (1u << 2)
#define CTN_HAS_NORM_W   (1u << 3)
/* Set from the architecture. */
#define CTN_HAS_FINAL_NORM (1u << 4)
#define CTN_HAS_PROJECTION (1u << 5)
#define CTN_HAS_HEAD       (1u << 6)

struct ctn_tensor_spec {
	enum ctn_role role; /* rows of one role are joined in the order of the table */
	const char *name;   /* '#' stands for the number of the layer */
	enum ctn_dim dims[2];
	bool transposed; /* stored [in, out] */
	bool bare;       /* has no prefix */
	unsigned int needs;
};

struct ctn_family {
	const char *name;                 /* model_type */
	const char *const *architectures; /* NULL-terminated */
	const char *const *prefixes;      /* what names may start with; NULL-terminated */
	const struct ctn_tensor_spec *specs;
	size_t spec_count;
	const char *const *ignored; /* stored by some writers, never used; '#' a number */
	/* Fills arch (zeroed, but for the token ids) and the first features. */
	int (*read)(struct ctn_config *cfg, struct ctn_arch *arch, unsigned int *features,
		    struct ctn_err *err);
};

extern const struct ctn_family ctn_family_llama;
extern const struct ctn_family ctn_family_mistral;
extern const struct ctn_family ctn_family_qwen2;
extern const struct ctn_family ctn_family_opt;
extern const struct ctn_family ctn_family_gpt2;

/* By model_type and architectures. -ENOTSUP names what was found. */
int ctn_family_find(const char *path, const json_t *config, const struct ctn_family **family,
		    struct ctn_err *err);

/* What is fixed of a role whatever the family. */
struct ctn_role_info {
	const char *name;
	enum ctn_part_kind kind;
	enum { CTN_IN_EMBED, CTN_IN_LAYERS, CTN_IN_HEAD } where;
};

const struct ctn_role_info *ctn_role_info(enum ctn_role role);

/* A tensor of the checkpoint in its role. */
struct ctn_binding {
	uint32_t layer; /* in execution order */
	uint32_t tensor;
	const struct ctn_tensor_spec *spec;
};

/* ctn_checkpoint.priv */
struct ctn_checkpoint_priv {
	unsigned int features;
	struct ctn_container *containers; /* one a file; they own names and shapes */
	uint32_t *by_name;                /* tensor indices, sorted by name */
	struct ctn_binding *bindings;     /* by layer, role, order in the table */
	uint32_t binding_count;
	uint32_t *layer_bindings;      /* first binding of each layer, and the count at the end */
	struct ctn_manifest *manifest; /* NULL: none */
};

static inline const struct ctn_checkpoint_priv *ctn_priv(const struct ctn_checkpoint *ckpt)
{
	return ckpt->priv;
}

/*
 * Finds and checks every tensor that the family needs: fills bindings and ckpt->bytes. Warns
 * about tensors that nobody uses. -EINVAL, -ENOTSUP for a dtype, -ENOMEM.
 */
int ctn_family_bind(struct ctn_checkpoint *ckpt, struct ctn_err *err);

#endif
