/* SPDX-License-Identifier: MIT */
/*
 * Reading config.json with strict types. A family takes the keys that it handles; every other
 * key must be harmless (see config_keys.c). Private to checkpoint.
 */
#ifndef CTN_CHECKPOINT_CONFIG_H
#define CTN_CHECKPOINT_CONFIG_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/json.h"

struct ctn_config {
	const char *path;
	const json_t *root; /* borrowed */
	json_t *rest;       /* keys that nobody has taken yet; owned */
};

/* `root` must outlive it. -ENOMEM. */
int ctn_config_init(struct ctn_config *cfg, const char *path, const json_t *root,
		    struct ctn_err *err);
void ctn_config_free(struct ctn_config *cfg);

/*
 * The readers take a key: present and of the right type, or absent or null and the default.
 * -EINVAL names the key, what was expected and what was found.
 */

/* A default of CTN_CONFIG_REQUIRED makes the key obligatory. What is given is in
 * 1 .. CTN_CONFIG_MAX; a default may be 0. */
#define CTN_CONFIG_REQUIRED UINT32_MAX
#define CTN_CONFIG_MAX      (1 << 28)
int ctn_config_u32(struct ctn_config *cfg, const char *key, uint32_t dflt, uint32_t *out,
		   struct ctn_err *err);
int ctn_config_bool(struct ctn_config *cfg, const char *key, bool dflt, bool *out,
		    struct ctn_err *err);
/* A number above 0 that a float can hold: the decoder computes with floats. */
bool ctn_config_is_real(const json_t *v);
int ctn_config_real(struct ctn_config *cfg, const char *key, double dflt, double *out,
		    struct ctn_err *err);
int ctn_config_activation(struct ctn_config *cfg, const char *key, enum ctn_activation dflt,
			  enum ctn_activation *out, struct ctn_err *err);
/* heads, head_dim and kv_heads against each other and hidden. What a family leaves 0 gets
 * its usual value: kv_heads is heads, head_dim hidden / heads, attn_scale
 * 1 / sqrt(head_dim). */
int ctn_config_heads(const struct ctn_config *cfg, struct ctn_arch *arch, struct ctn_err *err);
/* rope_theta with rope_scaling or rope_parameters, in every spelling. */
int ctn_config_rope(struct ctn_config *cfg, double theta, struct ctn_rope *rope,
		    struct ctn_err *err);
/* A window is harmless when it is off or no sequence can be longer. -ENOTSUP. */
int ctn_config_window(struct ctn_config *cfg, bool use_dflt, uint32_t window_dflt,
		      uint32_t max_positions, struct ctn_err *err);
/* bos_token_id and eos_token_id; `generation` (may be NULL) has precedence. */
int ctn_config_tokens(struct ctn_config *cfg, const struct ctn_config *generation,
		      struct ctn_arch *arch, struct ctn_err *err);

/* Refuses (-ENOTSUP) any key left that changes the arithmetic, by name, unless its value is
 * neutral; logs the unknown ones. */
int ctn_config_check_rest(const struct ctn_config *cfg, struct ctn_err *err);

#endif
