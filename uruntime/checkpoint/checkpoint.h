/* SPDX-License-Identifier: MIT */
/*
 * checkpoint: a folder in Hugging Face form -> what it holds (tensors, architecture) and how
 * it is paged (the plan). Stock files, read as they are; every size, shape, dtype, offset and
 * file is checked here, before any memory for parameters is taken.
 *
 * All structures are immutable after they are made; any thread may read them.
 */
#ifndef CTN_CHECKPOINT_H
#define CTN_CHECKPOINT_H

#include "base/base.h"

/* ---- containers ------------------------------------------------------------------------ */

/* A tensor as it stands in one file. */
struct ctn_tensor {
	const char *name;
	struct ctn_encoding encoding;
	uint32_t file; /* index into the checkpoint's files; 0 in a lone container */
	uint32_t rank; /* number of dimensions; 0 is a scalar */
	const uint64_t *shape;
	uint64_t offset; /* absolute, in the file; any byte */
	uint64_t bytes;
};

/* One parsed container file, its tensors in file order (by offset, then name). */
struct ctn_container {
	const struct ctn_container_format *format;
	uint64_t file_bytes;
	uint64_t data_offset;     /* where tensor data start: 8+N in a safetensors file */
	struct ctn_digest header; /* XXH3-128 of the header bytes */
	struct ctn_tensor *tensors;
	uint32_t count;
	void *arena; /* owns names and shapes */
};

/*
 * A container format: safetensors today, GGUF later. A new one is a new file that exports
 * one of these and a row in container.c.
 */
struct ctn_container_format {
	const char *name;   /* "safetensors" */
	const char *suffix; /* ".safetensors" */
	/* Parses the header of an open regular file of `bytes` bytes; reads no tensor data. */
	int (*parse)(int fd, uint64_t bytes, const char *path, struct ctn_container *c,
		     struct ctn_err *err);
};

/* Opens, checks and parses one file. -ENOTSUP for an unknown suffix, -EINVAL for what breaks
 * a rule of the format. Free with ctn_container_close. */
int ctn_container_open(const char *path, struct ctn_container *c, struct ctn_err *err);
void ctn_container_close(struct ctn_container *c);

/* ---- architecture ---------------------------------------------------------------------- */

enum ctn_norm { CTN_NORM_RMS, CTN_NORM_LAYER };
enum ctn_positions { CTN_POSITIONS_ROPE, CTN_POSITIONS_LEARNED };
enum ctn_activation { CTN_ACT_SILU, CTN_ACT_RELU, CTN_ACT_GELU, CTN_ACT_GELU_TANH };
enum ctn_rope_scaling { CTN_ROPE_PLAIN, CTN_ROPE_LINEAR, CTN_ROPE_LLAMA3 };

struct ctn_rope {
	enum ctn_rope_scaling scaling;
	double theta;
	double factor;             /* linear and llama3 */
	double low_freq_factor;    /* llama3 */
	double high_freq_factor;   /* llama3 */
	double original_positions; /* llama3 */
};

#define CTN_MAX_EOS 16

/* What config.json says of the arithmetic, the same for every family. */
struct ctn_arch {
	uint32_t layers;
	uint32_t hidden;
	uint32_t heads;
	uint32_t kv_heads;
	uint32_t head_dim;
	uint32_t ffn;
	uint32_t vocab;
	uint32_t embed_dim;     /* width of the token embedding; != hidden in OPT-350m */
	uint32_t max_positions; /* longest sequence */
	enum ctn_norm norm;
	float norm_eps;
	bool norm_first; /* pre-LN; false for OPT-350m */
	bool final_norm;
	enum ctn_positions positions;
	uint32_t position_offset; /* added to a learned position (OPT: 2) */
	struct ctn_rope rope;
	enum ctn_activation activation;
	bool gated;                /* act(gate(x)) * up(x) */
	bool tied;                 /* the head is the token embedding */
	float attn_scale;          /* multiplies q.k */
	int64_t bos;               /* -1: none */
	uint32_t eos[CTN_MAX_EOS]; /* generation_config.json, else config.json */
	uint32_t eos_count;
};

/* ---- the checkpoint -------------------------------------------------------------------- */

/* One file of a checkpoint, with what identifies it: a file that no longer has this identity
 * when it is staged was changed, and is refused. */
struct ctn_file {
	char *path;
	uint64_t bytes;
	uint64_t device;
	uint64_t inode;
	int64_t mtime_ns;
	struct ctn_digest header;
};

struct ctn_family;

struct ctn_checkpoint {
	char *dir;
	const struct ctn_family *family;
	struct ctn_arch arch;
	struct ctn_file *files;
	uint32_t file_count;
	struct ctn_tensor *tensors; /* all files, in (file, offset) order */
	uint32_t tensor_count;
	uint64_t bytes; /* of all tensors that the model uses, tied head once */
	void *priv;
};

/*
 * Reads and checks a folder: config.json, generation_config.json, the index or
 * model.safetensors, every header. Finds the family and every tensor that it needs. -ENOTSUP
 * (an architecture, a dtype or a config key that changes the arithmetic and is not handled,
 * by name), -ENOENT, -EINVAL; `err` names file, tensor, expected and found. A manifest that is
 * there is read: one that is malformed, or was made of other files (-ESTALE), refuses the
 * checkpoint.
 */
int ctn_checkpoint_open(const char *dir, struct ctn_checkpoint **ckpt, struct ctn_err *err);
/* The same, but passes over a manifest: for those who make it anew. */
int ctn_checkpoint_open_plain(const char *dir, struct ctn_checkpoint **ckpt, struct ctn_err *err);
void ctn_checkpoint_close(struct ctn_checkpoint *ckpt);

const char *ctn_family_name(const struct ctn_family *family);
/* NULL when there is no tensor of that name. */
const struct ctn_tensor *ctn_checkpoint_tensor(const struct ctn_checkpoint *ckpt, const char *name);

/* ---- the plan -------------------------------------------------------------------------- */

/*
 * Layers are numbered in execution order: 0 is "embed", 1 .. arch.layers are the layers,
 * arch.layers + 1 is "head".
 */
static inline uint32_t ctn_layer_count(const struct ctn_arch *arch)
{
	return arch->layers + 2;
}

/* Tensors as the decoder sees them, after the plan has joined or split what is stored. */
enum ctn_role {
	CTN_ROLE_EMBED,      /* [vocab share, embed_dim] */
	CTN_ROLE_POSITIONS,  /* [max_positions + position_offset, hidden] */
	CTN_ROLE_PROJECT_IN, /* [hidden, embed_dim] */
	CTN_ROLE_NORM1_W,    /* [hidden] before (post-LN: after) attention */
	CTN_ROLE_NORM1_B,
	CTN_ROLE_QKV_W, /* rows of q, then k, then v, of this rank's heads */
	CTN_ROLE_QKV_B,
	CTN_ROLE_OUT_W, /* [hidden, heads share * head_dim] */
	CTN_ROLE_OUT_B,
	CTN_ROLE_NORM2_W,
	CTN_ROLE_NORM2_B,
	CTN_ROLE_UP_W, /* gated: rows of gate, then up; else up */
	CTN_ROLE_UP_B,
	CTN_ROLE_DOWN_W, /* [hidden, ffn share] */
	CTN_ROLE_DOWN_B,
	CTN_ROLE_NORM_F_W,
	CTN_ROLE_NORM_F_B,
	CTN_ROLE_PROJECT_OUT, /* [embed_dim, hidden] */
	CTN_ROLE_HEAD,        /* [vocab share, embed_dim]; tied on one rank: an alias of EMBED */
	CTN_ROLE_COUNT
};

const char *ctn_role_name(enum ctn_role role);

/* Which part of its layer a tensor belongs to. */
enum ctn_part_kind { CTN_PART_ATTENTION, CTN_PART_MLP, CTN_PART_REST, CTN_PART_KINDS };

/* Bytes of one file that are read into consecutive bytes of a frame. Offset, length and
 * frame offset are multiples of CTN_IO_ALIGN, so that O_DIRECT can read them; the last run
 * of a file may reach past its end, and a read that stops at the file's size is complete. */
#define CTN_IO_ALIGN 4096u

struct ctn_run {
	uint32_t file;
	uint64_t file_offset;
	uint64_t bytes;
	uint64_t frame_offset;
};

/* A whole tensor inside the frame of a part. */
struct ctn_part_tensor {
	uint32_t tensor;          /* index into the checkpoint's tensors */
	uint64_t frame_offset;    /* any byte */
	struct ctn_digest digest; /* of it alone, when its part has_digest */
};

/* Names a frame over process restarts: see DESIGN "Frame key". */
struct ctn_frame_key {
	uint8_t bytes[32];
};

/*
 * The unit of the host tier: whole tensors of one part of one layer, the very bytes of the
 * file. Parts of less than CTN_SMALL_PART bytes are packed, in file order, into frames of up
 * to CTN_PACK_MAX bytes; such a pack serves several layers.
 */
#define CTN_SMALL_PART (2 * CTN_MIB)
#define CTN_PACK_MAX   (32 * CTN_MIB)

struct ctn_part {
	uint32_t id; /* index into the plan's parts; they stand in the order in
		      * which execution first needs them */
	bool pack;
	enum ctn_part_kind kind; /* of the first layer in it */
	uint32_t first_layer;    /* layers that need it, in execution order; the last */
	uint32_t last_layer;     /* may depend on pp, when the head is tied */
	uint64_t frame_bytes;    /* linear bytes, a multiple of CTN_IO_ALIGN */
	uint64_t tensor_bytes;
	struct ctn_run *runs; /* ascending in frame_offset, not overlapping there */
	uint32_t run_count;
	struct ctn_part_tensor *tensors; /* in role order: the order of the digest */
	uint32_t tensor_count;
	struct ctn_frame_key key;
	struct ctn_digest layout; /* of the places of its tensors: parts of equal layout and equal
				   * bytes can do with one frame */
	bool has_digest;          /* the manifest names what its bytes are: */
	struct ctn_digest digest; /* the tree digest that stage makes (stage.h) */
	bool current;             /* has_digest, and no file was written since the manifest was
				   * made: equal parts are known unread. Else they are read and
				   * held against it, like a copy of another's manifest */
};

/* `height` rows of `width` bytes, frame of a part -> piece of a shard. 1-D: height 1. */
struct ctn_rect {
	uint32_t part;
	uint64_t src_offset; /* in the frame; a row may straddle extents */
	uint64_t src_pitch;
	uint64_t dst_offset; /* in the piece */
	uint64_t dst_pitch;
	uint64_t width;
	uint64_t height;
};

/* A shard's part: the unit of a device frame. One of less than CTN_SMALL_PART bytes is joined
 * with the piece before, or the next when it is the first. */
struct ctn_piece {
	enum ctn_part_kind kind;
	uint64_t bytes;   /* tensors aligned to CTN_TENSOR_ALIGN inside */
	uint64_t payload; /* bytes that the rectangles bring */
	struct ctn_rect *rects;
	uint32_t rect_count;
};

#define CTN_TENSOR_ALIGN 256u

/* Where a role's matrix or vector lies on a device. */
struct ctn_slot {
	bool present;
	bool transposed; /* stored [in, out] (GPT-2's Conv1D) */
	bool alias;      /* lies in the embed layer's shard of the same rank */
	struct ctn_encoding encoding;
	uint32_t piece;
	uint64_t offset;     /* in the piece */
	uint64_t rows, cols; /* as stored on the device; a vector has rows 1 */
};

/* What one rank needs of one layer: the unit of the device tier. A head that is tied to the
 * embedding of the same rank may need nothing else: then it has no piece. */
struct ctn_shard {
	uint32_t layer;
	struct ctn_piece *pieces;
	uint32_t piece_count;
	uint64_t bytes;  /* of all pieces */
	uint32_t *parts; /* ids of the parts that it reads, ascending, once each */
	uint32_t part_count;
	struct ctn_slot slots[CTN_ROLE_COUNT];
};

struct ctn_rank_plan {
	uint32_t tp_rank, pp_rank;
	uint32_t first_layer, layer_count;     /* contiguous, in execution order */
	struct ctn_shard *shards;              /* layer_count of them */
	uint64_t bytes;                        /* of all shards */
	uint32_t head_first, head_count;       /* query heads of this rank */
	uint32_t kv_head_first, kv_head_count; /* kv heads that it holds; replicated if tp > kv */
	uint32_t ffn_first, ffn_count;
	uint32_t vocab_first, vocab_count; /* rows it really has, without padding */
	uint32_t vocab_padded;             /* rows in memory, the same on every rank */
};

struct ctn_plan {
	const struct ctn_checkpoint *ckpt;
	uint32_t tp, pp;
	struct ctn_part *parts; /* the same for every tp and pp, but for last_layer */
	uint32_t part_count;
	struct ctn_rank_plan *ranks; /* rank = pp_rank * tp + tp_rank */
	uint32_t rank_count;
	uint64_t host_bytes;  /* sum of frame_bytes */
	uint64_t host_window; /* least pool that can page it: the largest sum of
			       * frame_bytes (each rounded to 2 MiB) alive at one layer
			       * when parts live from first to last need */
};

/* Bumped when the layout of frames changes: it is part of the frame key. */
#define CTN_PLAN_VERSION 1

/*
 * (checkpoint, tp, pp) -> plan. The checkpoint must outlive it. -EINVAL with the allowed
 * values when the heads, the ffn or the layers cannot be split so; -ESTALE when the manifest has
 * other parts; -ENOMEM.
 */
int ctn_plan_build(const struct ctn_checkpoint *ckpt, uint32_t tp, uint32_t pp,
		   struct ctn_plan **plan, struct ctn_err *err);
void ctn_plan_free(struct ctn_plan *plan);

/* ---- the manifest ---------------------------------------------------------------------- */

/*
 * A file in the folder that says what the bytes of the checkpoint are: sizes and digests of its
 * headers and of the texts that decide what is served, and the digest of each part and each
 * tensor. With it a changed byte is found before it is used, and parts of equal bytes are known
 * as such without being read, as long as the files have the times of last writing that it gives.
 */
#define CTN_MANIFEST_NAME "computron.manifest.json"

/* The path of the manifest that was read, or NULL. */
const char *ctn_checkpoint_manifest(const struct ctn_checkpoint *ckpt);

/*
 * Writes the manifest of a plan all of whose parts and tensors have their digests, in place of
 * one that is there: at once, and on the disk when it returns. Negative errno.
 */
int ctn_manifest_write(const struct ctn_plan *plan, struct ctn_err *err);

#endif
