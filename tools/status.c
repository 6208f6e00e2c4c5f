// SPDX-License-Identifier: MIT
/* computron status: models, devices, pool and stage of a running daemon. */
#include "tools.h"
#include "client.h"
#include "base/base.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *json, const char *key)
{
	const char *s = json_string_value(json_object_get(json, key));

	return s ? s : "-";
}

static uint64_t number_of(const json_t *json, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(json, key));
}

static const char *size_of(const json_t *json, const char *key, char out[32])
{
	return ctn_format_size(number_of(json, key), out);
}

/* The widest of the values and the title. */
static int width_of(const json_t *list, const char *key, const char *title)
{
	size_t i, width = strlen(title);
	const json_t *item;

	json_array_foreach(list, i, item) width = CTN_MAX(width, strlen(text_of(item, key)));
	return (int)width;
}

static void print_models(const json_t *models)
{
	int width = width_of(models, "name", "MODEL");
	size_t i;
	const json_t *m;

	printf("%-*s  %-10s %12s %12s %12s %6s %7s\n", width, "MODEL", "STATE", "CHECKPOINT",
	       "HOST", "DEVICE", "QUEUED", "RUNNING");
	json_array_foreach(models, i, m)
	{
		char checkpoint[32], host[32], device[32];

		if (!json_is_null(json_object_get(m, "reason"))) {
			printf("%-*s  %-10s %s\n", width, text_of(m, "name"), text_of(m, "state"),
			       text_of(m, "reason"));
			continue;
		}
		printf("%-*s  %-10s %12s %12s %12s %6llu %7llu%s\n", width, text_of(m, "name"),
		       text_of(m, "state"), size_of(m, "checkpoint_bytes", checkpoint),
		       size_of(m, "host_bytes", host), size_of(m, "device_bytes", device),
		       (unsigned long long)number_of(m, "queued"),
		       (unsigned long long)number_of(m, "running"),
		       json_is_true(json_object_get(m, "pinned")) ? "  pinned" : "");
	}
}

static void print_devices(const json_t *devices)
{
	static const struct {
		const char *title, *key;
	} columns[] = {
		{"TOTAL", "total"},         {"FREE", "free"},         {"RESIDENT", "resident"},
		{"LOADING", "loading"},     {"DRAINING", "draining"}, {"KV", "kv"},
		{"WORKSPACE", "workspace"}, {"COMM", "comm"},
	};
	int width = width_of(devices, "id", "DEVICE");
	size_t i;
	const json_t *d;

	printf("%-*s ", width, "DEVICE");
	for (size_t k = 0; k < CTN_ARRAY_LEN(columns); k++)
		printf(" %12s", columns[k].title);
	printf("\n");
	json_array_foreach(devices, i, d)
	{
		char size[32];

		printf("%-*s ", width, text_of(d, "id"));
		for (size_t k = 0; k < CTN_ARRAY_LEN(columns); k++)
			printf(" %12s", size_of(d, columns[k].key, size));
		printf("\n");
	}
}

/* What the kernel module says of a pool that it keeps. */
static void print_module(const json_t *pool)
{
	uint64_t bytes = number_of(pool, "module_bytes"),
		 huge = number_of(pool, "module_huge_bytes");
	char populated[32], pinned[32], held[32];

	printf("  by the module: %s populated, %.0f%% in huge pages, %s pinned, %s held by others "
	       "or quarantined\n",
	       size_of(pool, "module_bytes", populated),
	       bytes ? 100.0 * (double)huge / (double)bytes : 0.0,
	       size_of(pool, "module_pinned_bytes", pinned), size_of(pool, "held_bytes", held));
	printf("  %llu evictions, %llu refused, %llu frames lost to memory pressure\n",
	       (unsigned long long)number_of(pool, "evictions"),
	       (unsigned long long)number_of(pool, "refused_evictions"),
	       (unsigned long long)number_of(pool, "losses"));
}

static void print_pool(const json_t *pool)
{
	uint64_t resident = number_of(pool, "resident_bytes"), huge = number_of(pool, "huge_bytes");
	const char *name = json_string_value(json_object_get(pool, "name"));
	char total[32], clean[32], leased[32], loading[32];

	printf("pool %s%sof provider %s: %s, %s clean (%s leased), %s loading, %.0f%% in huge "
	       "pages\n",
	       name ? name : "", name ? " " : "", text_of(pool, "provider"),
	       size_of(pool, "total_bytes", total), size_of(pool, "clean_bytes", clean),
	       size_of(pool, "leased_bytes", leased), size_of(pool, "loading_bytes", loading),
	       resident ? 100.0 * (double)huge / (double)resident : 0.0);
	if (!json_is_null(json_object_get(pool, "why")))
		printf("  why this one: %s\n", text_of(pool, "why"));
	if (name)
		print_module(pool);
}

static void print_adopted(const json_t *a)
{
	char size[32];

	if (number_of(a, "frames") == 0 && number_of(a, "unfit") == 0)
		return;
	printf("  adopted %llu frames, %s: %llu verified, %llu waiting, %llu spoiled, %llu lost\n",
	       (unsigned long long)number_of(a, "frames"), size_of(a, "bytes", size),
	       (unsigned long long)number_of(a, "verified"),
	       (unsigned long long)number_of(a, "waiting"),
	       (unsigned long long)number_of(a, "spoiled"),
	       (unsigned long long)number_of(a, "lost"));
}

static void print_stage(const json_t *stage)
{
	json_t *methods = json_object_get(stage, "methods"), *m;
	const char *name, *sep = "";
	char size[32];

	printf("stage by ");
	json_object_foreach(methods, name, m)
	{
		if (number_of(m, "jobs") == 0)
			continue;
		printf("%s%s: %llu parts, %s", sep, name, (unsigned long long)number_of(m, "jobs"),
		       size_of(m, "bytes", size));
		sep = "; ";
	}
	printf("%s\n", *sep ? "" : "no method yet: nothing was staged");
	if (!json_is_null(json_object_get(stage, "why")))
		printf("  why: %s\n", text_of(stage, "why"));
}

static int print_status(const char *text)
{
	json_t *json = json_loads(text, 0, NULL);

	if (!json) {
		fprintf(stderr, "computron status: the answer is not JSON\n");
		return CTN_EXIT_FAILED;
	}
	printf("computrond at %s, up %.0f s\n\n", text_of(json, "url"),
	       json_number_value(json_object_get(json, "uptime_s")));
	print_models(json_object_get(json, "models"));
	printf("\n");
	print_devices(json_object_get(json, "devices"));
	printf("\n");
	print_pool(json_object_get(json, "pool"));
	print_adopted(json_object_get(json, "adopted"));
	print_stage(json_object_get(json, "stage"));
	if (number_of(json, "ledger_errors"))
		printf("the ledger did not agree with the independent counts %llu times\n",
		       (unsigned long long)number_of(json, "ledger_errors"));
	json_decref(json);
	return 0;
}

int ctn_tool_status(int argc, char **argv)
{
	struct ctn_tool_args args;
	struct ctn_client *client;
	char *text;
	int rc = ctn_tool_args_parse(argc, argv, false, &args);

	if (rc)
		return rc;
	client = ctn_client_open(args.socket);
	if (!client || ctn_client_get(client, "/status", &text)) {
		rc = ctn_tool_call_failed(argv[0], client);
	} else {
		if (args.json)
			puts(text);
		else
			rc = print_status(text);
		free(text);
	}
	if (client)
		ctn_client_close(client);
	return rc;
}
