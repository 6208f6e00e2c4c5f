// SPDX-License-Identifier: MIT
/* The input is config.json, then, behind a NUL byte, generation_config.json. */
#include "fuzz.h"
#include "checkpoint/checkpoint.h"

#include <math.h>

static void check(const struct ctn_checkpoint *ckpt)
{
	const struct ctn_arch *a = &ckpt->arch;
	struct ctn_plan *plan;
	struct ctn_err err = {0};
	int rc;

	FUZZ_CHECK(a->layers && a->hidden && a->ffn && a->vocab && a->max_positions);
	FUZZ_CHECK(a->kv_heads && a->heads % a->kv_heads == 0 && a->head_dim);
	FUZZ_CHECK(a->eos_count <= CTN_MAX_EOS);
	/* What these divide or scale must not turn to nothing or to infinity. */
	FUZZ_CHECK(isnormal(a->norm_eps) && a->norm_eps > 0);
	FUZZ_CHECK(isnormal(a->attn_scale) && a->attn_scale > 0);
	FUZZ_CHECK(a->positions != CTN_POSITIONS_ROPE ||
		   (isnormal((float)a->rope.theta) && a->rope.theta > 0));
	FUZZ_CHECK(a->rope.scaling == CTN_ROPE_PLAIN ||
		   (isnormal((float)a->rope.factor) && a->rope.factor > 0));
	rc = ctn_plan_build(ckpt, 1, 1, &plan, &err);
	fuzz_check_err(rc, &err);
	if (!rc)
		ctn_plan_free(plan);
}

int fuzz_one(const uint8_t *data, size_t size)
{
	struct ctn_checkpoint *ckpt;
	struct ctn_err err = {0};
	const char *text = "";
	size_t len = 0;
	int rc;

	fuzz_clear();
	fuzz_put_container("model.safetensors", FUZZ_WHOLE);
	fuzz_field(&data, &size, &text, &len);
	fuzz_put("config.json", text, len);
	if (fuzz_field(&data, &size, &text, &len))
		fuzz_put("generation_config.json", text, len);
	rc = ctn_checkpoint_open(fuzz_dir(), &ckpt, &err);
	fuzz_check_err(rc, &err);
	if (rc)
		return rc;
	check(ckpt);
	ctn_checkpoint_close(ckpt);
	return 0;
}
