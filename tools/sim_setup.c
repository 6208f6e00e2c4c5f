// SPDX-License-Identifier: MIT
/* Clusters and models by name or by file. */
#include "sim.h"
#include "sched/sched.h"

#include <errno.h>
#include <libfyaml.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Four A100 behind PCIe 4.0, one NVMe disk; the batch time of OPT-13B at tp=2 pp=2 as the 2023
 * system measured it. */
static const struct ctn_sim_cluster a100 = {.devices = 4,
					    .link_bytes_per_s = 26e9,
					    .load_overhead_s = 0.001,
					    .batch_s = 0.0574,
					    .disk_bytes_per_s = 6e9};

/* The virtual clock counts nanoseconds; a batch has stages. */
#define MIN_BATCH_S     1e-6
#define MAX_MODEL_BYTES (CTN_GIB << 20)

/* ---- a cluster -------------------------------------------------------------------------- */

static int parse_seconds(const char *what, const char *s, double *seconds, struct ctn_err *err)
{
	char *end;
	double v = strtod(s, &end);

	if (end == s || *end || !(v >= 0) || v > 3600)
		return ctn_err_set(err, -EINVAL, "%s: expected seconds, found \"%s\"", what, s);
	*seconds = v;
	return 0;
}

static int set_field(struct ctn_sim_cluster *c, const char *key, const char *value,
		     struct ctn_err *err)
{
	uint64_t v = 0;
	int rc;

	if (strcmp(key, "load_overhead_s") == 0)
		return parse_seconds(key, value, &c->load_overhead_s, err);
	if (strcmp(key, "batch_s") == 0)
		return parse_seconds(key, value, &c->batch_s, err);
	if (strcmp(key, "device_bytes") == 0)
		return ctn_parse_size(value, &c->device_bytes, err);
	if (strcmp(key, "workspace_bytes") == 0)
		return ctn_parse_size(value, &c->workspace_bytes, err);
	if (strcmp(key, "kv_bytes") == 0)
		return ctn_parse_size(value, &c->kv_bytes, err);
	if (strcmp(key, "parallel_steps") == 0) {
		c->parallel_steps = strcmp(value, "true") == 0;
		return c->parallel_steps || strcmp(value, "false") == 0
			       ? 0
			       : ctn_err_set(err, -EINVAL, "%s: expected true or false", key);
	}
	if (strcmp(key, "host_bytes") == 0)
		return ctn_parse_size(value, &c->host_bytes, err);
	if (strcmp(key, "disk_bytes_per_s") == 0) {
		rc = ctn_parse_rate(value, &v, err);
		c->disk_bytes_per_s = (double)v;
		return rc;
	}
	if (strcmp(key, "devices") == 0) {
		rc = ctn_parse_u64(key, value, 1, CTN_SIM_MAX_DEVICES, &v, err);
		c->devices = (uint32_t)v;
		return rc;
	}
	if (strcmp(key, "link_bytes_per_s") == 0) {
		rc = ctn_parse_rate(value, &v, err);
		if (rc == 0 && v == 0)
			rc = ctn_err_set(err, -EINVAL, "%s: expected more than 0", key);
		c->link_bytes_per_s = (double)v;
		return rc;
	}
	return ctn_err_set(
		err, -EINVAL,
		"\"%s\": expected devices, link_bytes_per_s, load_overhead_s, batch_s, "
		"device_bytes, workspace_bytes, kv_bytes, parallel_steps, disk_bytes_per_s, "
		"host_bytes, priorities or pinned",
		key);
}

static int set_priority(struct ctn_sim_cluster *c, uint32_t i, const char *value,
			struct ctn_err *err)
{
	if (i >= CTN_SIM_MAX_NAMED)
		return ctn_err_set(err, -EINVAL, "priorities: expected at most %d",
				   CTN_SIM_MAX_NAMED);
	return ctn_parse_signed("priorities", value, CTN_SCHED_MAX_PRIORITY, &c->priorities[i],
				err);
}

static int set_pinned(struct ctn_sim_cluster *c, uint32_t i, const char *value, struct ctn_err *err)
{
	uint64_t v = 0;
	int rc = ctn_parse_u64("pinned", value, 0, CTN_SIM_MAX_NAMED - 1, &v, err);

	if (rc == 0)
		c->pinned[v] = true;
	return rc;
}

/* Lists: priorities by model, numbers of models that are pinned. */
static int set_list(struct ctn_sim_cluster *c, const char *key, struct fy_node *list,
		    struct ctn_err *err)
{
	int (*set)(struct ctn_sim_cluster * c, uint32_t i, const char *value, struct ctn_err *err);
	void *iter = NULL;
	struct fy_node *item;
	uint32_t i = 0;

	if (strcmp(key, "priorities") == 0)
		set = set_priority;
	else if (strcmp(key, "pinned") == 0)
		set = set_pinned;
	else
		return ctn_err_set(err, -EINVAL, "\"%s\": a list; expected priorities or pinned",
				   key);
	while ((item = fy_node_sequence_iterate(list, &iter))) {
		const char *value = ctn_yaml_scalar(item);
		int rc = value ? set(c, i++, value, err)
			       : ctn_err_set(err, -EINVAL, "%s: expected plain values", key);

		if (rc)
			return rc;
	}
	return 0;
}

static int read_fields(void *arg, struct fy_node *root, struct ctn_err *err)
{
	struct ctn_sim_cluster *c = arg;
	struct fy_node_pair *pair;
	void *iter = NULL;

	if (!root || !fy_node_is_mapping(root))
		return ctn_err_set(err, -EINVAL, "expected a mapping");
	while ((pair = fy_node_mapping_iterate(root, &iter))) {
		const char *key = ctn_yaml_scalar(fy_node_pair_key(pair));
		const char *value = ctn_yaml_scalar(fy_node_pair_value(pair));
		int rc;

		if (key && fy_node_is_sequence(fy_node_pair_value(pair)))
			rc = set_list(c, key, fy_node_pair_value(pair), err);
		else if (key && value)
			rc = set_field(c, key, value, err);
		else
			rc = ctn_err_set(err, -EINVAL, "expected pairs of plain values");
		if (rc)
			return rc;
	}
	if (!c->devices || c->link_bytes_per_s <= 0 || c->batch_s < MIN_BATCH_S)
		return ctn_err_set(
			err, -EINVAL,
			"expected devices, link_bytes_per_s and batch_s, at least one is "
			"missing or 0; a batch takes a microsecond or more");
	if (c->host_bytes && c->disk_bytes_per_s <= 0)
		return ctn_err_set(err, -EINVAL,
				   "host_bytes: expected disk_bytes_per_s with it, more than 0");
	return 0;
}

int ctn_sim_cluster_parse(const char *spec, struct ctn_sim_cluster *cluster, struct ctn_err *err)
{
	int rc;

	if (strcmp(spec, "4xa100-pcie4") == 0) {
		*cluster = a100;
		return 0;
	}
	*cluster = (struct ctn_sim_cluster){0};
	rc = ctn_yaml_read(spec, read_fields, cluster, err);
	return rc ? ctn_err_prefix(err, "cluster \"%s\" (expected 4xa100-pcie4 or a YAML file)",
				   spec)
		  : 0;
}

/* ---- models ----------------------------------------------------------------------------- */

enum { OPT13B_LAYERS = 40, OPT13B_HIDDEN = 5120, OPT13B_VOCAB = 50272, OPT13B_POSITIONS = 2050 };

uint64_t ctn_sim_opt13b_rank_bytes(uint32_t tp, uint32_t pp)
{
	const uint64_t h = OPT13B_HIDDEN, half = 2;
	uint64_t blocks = OPT13B_LAYERS * (12 * h * h + 13 * h) / (tp * pp);
	uint64_t embedding = (OPT13B_VOCAB + OPT13B_POSITIONS) * h, head = OPT13B_VOCAB * h;

	return half * (blocks + embedding + (pp == 1 ? head : 0));
}

/* Some thousand of these can be added up. */
static int parse_model_size(const char *s, uint64_t *bytes, struct ctn_err *err)
{
	int rc = ctn_parse_size(s, bytes, err);

	if (rc == 0 && *bytes > MAX_MODEL_BYTES)
		rc = ctn_err_set(err, -ERANGE, "expected sizes up to 1024T, found %s", s);
	return rc;
}

static int parse_sizes(const char *list, uint32_t ranks, struct ctn_sim_model *models,
		       uint32_t count, struct ctn_err *err)
{
	char *copy = strdup(list), *save = NULL;
	uint64_t sizes[64], layers = OPT13B_LAYERS / 2;
	uint32_t n = 0;
	int rc = copy ? 0 : ctn_err_set(err, -ENOMEM, "out of memory");

	for (char *s = copy ? strtok_r(copy, ",", &save) : NULL; s && !rc;
	     s = strtok_r(NULL, ",", &save)) {
		if (strncmp(s, "layers=", 7) == 0)
			rc = ctn_parse_u64("layers", s + 7, 1, CTN_SIM_MAX_LAYERS, &layers, err);
		else if (n == CTN_ARRAY_LEN(sizes))
			rc = ctn_err_set(err, -EINVAL, "expected at most 64 sizes");
		else
			rc = parse_model_size(s, &sizes[n++], err);
	}
	free(copy);
	if (!rc && n == 0)
		rc = ctn_err_set(err, -EINVAL, "expected a size");
	for (uint32_t i = 0; i < count && !rc; i++) {
		models[i].rank_layers = (uint32_t)layers;
		models[i].rank_bytes = sizes[i % n] / ranks;
		if (models[i].rank_bytes < models[i].rank_layers)
			rc = ctn_err_set(err, -EINVAL, "expected sizes of a byte a layer and more");
	}
	return rc;
}

int ctn_sim_models_parse(const char *spec, uint32_t tp, uint32_t pp, struct ctn_sim_model *models,
			 uint32_t count, struct ctn_err *err)
{
	if (strncmp(spec, "bytes=", 6) == 0) {
		int rc = parse_sizes(spec + 6, tp * pp, models, count, err);

		return rc ? ctn_err_prefix(err, "model \"%s\"", spec) : 0;
	}
	if (strcmp(spec, "opt-13b"))
		return ctn_err_set(
			err, -EINVAL,
			"model \"%s\": expected opt-13b or bytes=SIZE[,SIZE...][,layers=N]", spec);
	for (uint32_t i = 0; i < count; i++)
		models[i] = (struct ctn_sim_model){.rank_bytes = ctn_sim_opt13b_rank_bytes(tp, pp),
						   .rank_layers = OPT13B_LAYERS / pp};
	return 0;
}
