// SPDX-License-Identifier: MIT
#include "kernels/cpu/cpu.h"

const struct ctn_kernels ctn_kernels_cpu = {
	.name = "cpu",
	.gemm = ctn_cpu_gemm,
	.embed = ctn_cpu_embed,
	.add_positions = ctn_cpu_add_positions,
	.rms_norm = ctn_cpu_rms_norm,
	.layer_norm = ctn_cpu_layer_norm,
	.rope = ctn_cpu_rope,
	.kv_store = ctn_cpu_kv_store,
	.attention = ctn_cpu_attention,
	.activate = ctn_cpu_activate,
	.activate_gated = ctn_cpu_activate_gated,
	.add = ctn_cpu_add,
	.gather = ctn_cpu_gather,
};
