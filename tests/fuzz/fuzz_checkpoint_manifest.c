// SPDX-License-Identifier: MIT
/*
 * The input is computron.manifest.json beside a tiny LLaMA. In it $B and $H stand for the bytes
 * of the one container and the digest of its header, $N and $C for those of config.json, so
 * that an input can be true without a hash of its own.
 */
#include "fuzz.h"
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define CONFIG                                                                 \
	"{\"model_type\":\"llama\",\"hidden_size\":4,\"intermediate_size\":6," \
	"\"num_hidden_layers\":1,\"num_attention_heads\":2,\"vocab_size\":8,"  \
	"\"max_position_embeddings\":8}"
#define MAX_INPUT (64 * CTN_KIB)

/* Of the folder without a manifest. */
static struct truth {
	char container[CTN_DIGEST_TEXT], config[CTN_DIGEST_TEXT];
	uint64_t bytes;
} truth;

static void find_truth(void)
{
	struct ctn_checkpoint *ckpt;
	XXH128_canonical_t canonical;
	struct ctn_digest config;

	FUZZ_CHECK(ctn_checkpoint_open_plain(fuzz_dir(), &ckpt, NULL) == 0);
	FUZZ_CHECK(ckpt->file_count == 1);
	ctn_digest_format(&ckpt->files[0].header, truth.container);
	truth.bytes = ckpt->files[0].bytes;
	ctn_checkpoint_close(ckpt);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(CONFIG, strlen(CONFIG)));
	memcpy(config.bytes, canonical.digest, sizeof(config.bytes));
	ctn_digest_format(&config, truth.config);
}

static size_t expand(uint8_t what, char *to, size_t room)
{
	int n = 0;

	if (what == 'B')
		n = snprintf(to, room, "%llu", (unsigned long long)truth.bytes);
	else if (what == 'N')
		n = snprintf(to, room, "%zu", strlen(CONFIG));
	else if (what == 'H' || what == 'C')
		n = snprintf(to, room, "%s", what == 'H' ? truth.container : truth.config);
	FUZZ_CHECK(n >= 0 && (size_t)n < room);
	return (size_t)n;
}

static void put_manifest(const uint8_t *data, size_t size)
{
	/* Not allocated: replay makes allocations fail, and this one is not the parser's. */
	static char text[MAX_INPUT * CTN_DIGEST_TEXT];
	size_t len = 0;

	for (size_t i = 0; i < size; i++) {
		size_t n = data[i] == '$' && i + 1 < size
				   ? expand(data[i + 1], text + len, sizeof(text) - len)
				   : 0;

		if (n)
			i++;
		else
			text[len + n++] = (char)data[i];
		len += n;
	}
	fuzz_put(CTN_MANIFEST_NAME, text, len);
}

/* What the plan took from a manifest is written as it was read. */
static int plan_and_write(const struct ctn_checkpoint *ckpt)
{
	struct ctn_checkpoint *again;
	struct ctn_err err = {0};
	struct ctn_plan *plan;
	int rc = ctn_plan_build(ckpt, 1, 1, &plan, &err);

	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	FUZZ_CHECK(ctn_checkpoint_manifest(ckpt) != NULL);
	for (uint32_t i = 0; i < plan->part_count; i++)
		FUZZ_CHECK(plan->parts[i].has_digest);
	rc = ctn_manifest_write(plan, &err);
	fuzz_check_err(rc, &err);
	ctn_plan_free(plan);
	if (rc)
		return rc;
	rc = ctn_checkpoint_open(fuzz_dir(), &again, &err);
	FUZZ_CHECK(rc == 0 || rc == -ENOMEM);
	if (rc == 0)
		ctn_checkpoint_close(again);
	return rc;
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_checkpoint *ckpt;
	struct ctn_err err = {0};
	int rc;

	if (size > MAX_INPUT)
		return -EFBIG;
	fuzz_clear();
	fuzz_put("config.json", CONFIG, strlen(CONFIG));
	fuzz_put_container("model.safetensors", FUZZ_WHOLE);
	if (!truth.bytes)
		find_truth();
	put_manifest(data, size);
	rc = ctn_checkpoint_open(fuzz_dir(), &ckpt, &err);
	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	rc = plan_and_write(ckpt);
	ctn_checkpoint_close(ckpt);
	return rc;
}
