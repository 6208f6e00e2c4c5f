#!/usr/bin/python3
"""Write a checkpoint with seeded random weights.

    generate.py OUT --family llama --dtype bf16 --seed 7
    generate.py OUT --family opt --bytes 512M --shards 3 --order shuffled --unpadded

The value of a tensor depends on the seed, its name without the prefix and the storage type alone, so checkpoints that
differ only in prefix, shards or order hold equal tensors. Weights are scaled so that activations keep unit size and
logits spread by about 3, which makes ties between the two largest rare. --set KEY=JSON sets any key of config.json
before the tensors are derived from it (enable_bias=false leaves the biases out, head_dim=24 widens the heads); keys
that no tensor depends on are just written, which also makes configs that have to be refused.
"""

import argparse
import json
import math
import os
import random
import shutil
import zlib

import numpy as np

import st

DTYPES = {"f32": ("F32", "float32"), "f16": ("F16", "float16"), "bf16": ("BF16", "bfloat16")}
ROPE = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
BLOCK = 1 << 18  # values made at a time
HEAD_DIM = 64  # with --bytes
SPREAD = 3.0  # of the logits


# --- config.json ------------------------------------------------------------------------------------------------------


def shapes(args):
    """hidden, heads, kv_heads, ffn and layers from the options, or from --bytes."""
    gated = args.family in ("llama", "mistral", "qwen2")
    matrices, ratio = (3, 2.75) if gated else (2, 4)
    layers = args.layers or (8 if args.bytes else 3)
    if not args.bytes:
        hidden, heads = args.hidden or 64, args.heads or 4
        kv_heads = args.kv_heads or (heads // 2 if gated and heads % 2 == 0 else heads)
        return hidden, heads, kv_heads, args.ffn or int(ratio * hidden), layers
    values = args.bytes // st.STORAGE[DTYPES[args.dtype][0]].itemsize
    unit = 4 * HEAD_DIM
    attention = 2.5 if gated else 4  # matrices of hidden x hidden, with a quarter of the heads in k and v if gated
    hidden = args.hidden or max(1, round(math.sqrt(values / layers / (attention + matrices * ratio)) / unit)) * unit
    heads = args.heads or hidden // HEAD_DIM
    kv_heads = args.kv_heads or (heads // 4 if gated and heads % 4 == 0 else heads)
    rest = values - hidden * (args.vocab * (1 if tied(args) else 2) + (0 if gated else args.max_pos))
    rest = rest / layers - 2 * hidden * hidden * (1 + kv_heads / heads)
    return hidden, heads, kv_heads, args.ffn or max(8, round(rest / (matrices * hidden) / 8) * 8), layers


def tied(args):
    return args.family in ("opt", "opt350", "gpt2") if args.tied is None else args.tied


def make_config(args):
    hidden, heads, kv_heads, ffn, layers = shapes(args)
    config = {"vocab_size": args.vocab, "tie_word_embeddings": tied(args), "bos_token_id": 1}
    eos = args.eos if args.eos is not None else [2]
    if eos:
        config["eos_token_id"] = eos if len(eos) > 1 else eos[0]
    config["torch_dtype"] = DTYPES[args.dtype][1]
    if args.family == "gpt2":
        config.update(architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=hidden, n_layer=layers)
        config.update(n_head=heads, n_positions=args.max_pos, n_inner=None if ffn == 4 * hidden else ffn)
        config.update(activation_function="gelu_new", layer_norm_epsilon=1e-5)
    elif args.family in ("opt", "opt350"):
        small = args.family == "opt350"
        config.update(architectures=["OPTForCausalLM"], model_type="opt", hidden_size=hidden, num_hidden_layers=layers)
        config.update(num_attention_heads=heads, ffn_dim=ffn, max_position_embeddings=args.max_pos, pad_token_id=0)
        config.update(word_embed_proj_dim=hidden // 2 if small else hidden, do_layer_norm_before=not small)
        config.update(activation_function="relu")
    else:
        name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2"}[args.family]
        config.update(architectures=[name + "ForCausalLM"], model_type=args.family, hidden_size=hidden)
        config.update(intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads)
        config.update(num_key_value_heads=kv_heads, max_position_embeddings=args.max_pos, rms_norm_eps=1e-5)
        config.update(hidden_act="silu")
        if args.family == "llama":
            config.update(attention_bias=args.bias, mlp_bias=args.bias)
        if args.family == "mistral":
            config.update(sliding_window=None)
        scaling = dict(ROPE[args.rope]) if args.rope else {}
        if args.rope_form == "parameters":
            config["rope_parameters"] = {"rope_type": args.rope or "default", "rope_theta": 10000.0, **scaling}
        else:
            config["rope_theta"] = 10000.0
            config["rope_scaling"] = {args.rope_form: args.rope, **scaling} if args.rope else None
    for item in args.set:
        key, _, value = item.partition("=")
        try:
            config[key] = json.loads(value)
        except ValueError:
            config[key] = value
    return config


# --- tensors: (name without prefix, shape, mean, standard deviation) --------------------------------------------------


def linear(name, n_out, n_in, bias, gain=1.0, conv1d=False):
    yield name + ".weight", (n_in, n_out) if conv1d else (n_out, n_in), 0.0, gain / math.sqrt(n_in)
    if bias:
        yield name + ".bias", (n_out,), 0.0, 0.1


def norm(name, n, bias=True, mean=1.0, deviation=0.1):
    yield name + ".weight", (n,), mean, deviation
    if bias:
        yield name + ".bias", (n,), 0.0, 0.05 * (mean + deviation)


def head_gain(config, columns):
    """By what the last step before the head multiplies: a head that is the embedding has weights of size 1."""
    return SPREAD / math.sqrt(columns) if config["tie_word_embeddings"] else 1.0


def last_norm(name, n, config, bias=True):
    """Before a tied head of either sign, else each token would mostly predict itself."""
    return norm(name, n, bias, *((0.0, head_gain(config, n)) if config["tie_word_embeddings"] else ()))


def branch_gain(layers):
    """Of what a block adds, so that the token itself still counts after many layers."""
    return min(1.0, math.sqrt(3 / layers))


def llama(c):
    hidden, ffn, heads, kv_heads = (
        c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"))
    head_dim, qkv_bias = c.get("head_dim") or hidden // heads, c.get("attention_bias") or c["model_type"] == "qwen2"
    gain = branch_gain(c["num_hidden_layers"])
    yield "embed_tokens.weight", (c["vocab_size"], hidden), 0.0, 1.0
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        yield from norm(p + "input_layernorm", hidden, False)
        yield from linear(p + "self_attn.q_proj", heads * head_dim, hidden, qkv_bias, 1.5)
        yield from linear(p + "self_attn.k_proj", kv_heads * head_dim, hidden, qkv_bias, 1.5)
        yield from linear(p + "self_attn.v_proj", kv_heads * head_dim, hidden, qkv_bias)
        yield from linear(p + "self_attn.o_proj", hidden, heads * head_dim, c.get("attention_bias"), 1.5 * gain)
        yield from norm(p + "post_attention_layernorm", hidden, False)
        yield from linear(p + "mlp.gate_proj", ffn, hidden, c.get("mlp_bias"))
        yield from linear(p + "mlp.up_proj", ffn, hidden, c.get("mlp_bias"))
        yield from linear(p + "mlp.down_proj", hidden, ffn, c.get("mlp_bias"), 1.7 * gain)
    yield from last_norm("norm", hidden, c, False)


def opt(c):
    hidden, ffn, narrow = c["hidden_size"], c["ffn_dim"], c["word_embed_proj_dim"]
    bias, affine = c.get("enable_bias", True), c.get("layer_norm_elementwise_affine", True)
    last = c["do_layer_norm_before"] and not c.get("_remove_final_layer_norm")
    gain = branch_gain(c["num_hidden_layers"])

    def layer_norm(name, make=norm, *rest):
        return make(name, hidden, *rest) if affine else ()

    # Where no weight stands between the layers and a tied head, the embedding itself must be small.
    size = 1.0 if last and affine or narrow != hidden else head_gain(c, narrow)
    yield "embed_tokens.weight", (c["vocab_size"], narrow), 0.0, size
    yield "embed_positions.weight", (c["max_position_embeddings"] + 2, hidden), 0.0, 0.5 * size
    if narrow != hidden:
        yield from linear("project_in", hidden, narrow, False)
        yield from linear("project_out", narrow, hidden, False, head_gain(c, narrow))
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        yield from layer_norm(p + "self_attn_layer_norm")
        yield from linear(p + "self_attn.q_proj", hidden, hidden, bias, 1.5)
        yield from linear(p + "self_attn.k_proj", hidden, hidden, bias, 1.5)
        yield from linear(p + "self_attn.v_proj", hidden, hidden, bias)
        yield from linear(p + "self_attn.out_proj", hidden, hidden, bias, gain)
        yield from layer_norm(p + "final_layer_norm")
        yield from linear(p + "fc1", ffn, hidden, bias)
        yield from linear(p + "fc2", hidden, ffn, bias, gain)
    if last:
        yield from layer_norm("final_layer_norm", *((last_norm, c) if narrow == hidden else ()))


def gpt2(c):
    hidden = c["n_embd"]
    ffn = c.get("n_inner") or 4 * hidden
    gain = branch_gain(c["n_layer"])
    # Without the division by sqrt(head_dim), q and k have to be that much smaller.
    qkv_gain = 1.3 if c.get("scale_attn_weights", True) else 1.3 * (hidden // c["n_head"]) ** -0.25
    yield "wte.weight", (c["vocab_size"], hidden), 0.0, 1.0
    yield "wpe.weight", (c["n_positions"], hidden), 0.0, 0.5
    for i in range(c["n_layer"]):
        p = f"h.{i}."
        yield from norm(p + "ln_1", hidden)
        yield from linear(p + "attn.c_attn", 3 * hidden, hidden, True, qkv_gain, conv1d=True)
        yield from linear(p + "attn.c_proj", hidden, hidden, True, gain, conv1d=True)
        yield from norm(p + "ln_2", hidden)
        yield from linear(p + "mlp.c_fc", ffn, hidden, True, conv1d=True)
        yield from linear(p + "mlp.c_proj", hidden, ffn, True, gain, conv1d=True)
    yield from last_norm("ln_f", hidden, c)


PREFIXES = {  # the first is the default
    "llama": {"model": "model.", "bare": ""},
    "opt": {"model": "model.decoder.", "decoder": "decoder.", "bare": ""},
    "opt350": {"decoder": "decoder.", "model": "model.decoder.", "bare": ""},
    "gpt2": {"transformer": "transformer.", "bare": ""},
}
PREFIXES["mistral"] = PREFIXES["qwen2"] = PREFIXES["llama"]
TENSORS = {"llama": llama, "mistral": llama, "qwen2": llama, "opt": opt, "opt350": opt, "gpt2": gpt2}


def blocks(seed, name, shape, mean, deviation, dtype):
    """The values of a tensor, uniform, a block at a time."""
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())])))
    left = math.prod(shape)
    width = np.float32(deviation * math.sqrt(12))
    while left:
        x = rng.random(min(left, BLOCK), np.float32)
        x -= np.float32(0.5)
        x *= width
        x += np.float32(mean)
        left -= len(x)
        yield st.narrow(x, dtype)


def make_tensors(args, config):
    """[(name, dtype, shape, blocks)] in the order in which a forward pass meets them."""
    prefixes, dtype = PREFIXES[args.family], DTYPES[args.dtype][0]
    prefix = prefixes[args.prefix or next(iter(prefixes))]
    listed = [(prefix, *t) for t in TENSORS[args.family](config)]
    if not config["tie_word_embeddings"]:
        columns = listed[0][2][1]
        listed.append(("", "lm_head.weight", (args.vocab, columns), 0.0, SPREAD / math.sqrt(columns)))

    def source(name, *rest):
        return lambda: blocks(args.seed, name, *rest, dtype)

    return [(pre + name, dtype, shape, source(name, shape, *rest)) for pre, name, shape, *rest in listed]


# --- files ------------------------------------------------------------------------------------------------------------


def size_of(tensor):
    return math.prod(tensor[2]) * st.STORAGE[tensor[1]].itemsize


def write_files(args, tensors):
    if args.order == "name":
        tensors.sort(key=lambda t: t[0])
    elif args.order == "shuffled":
        random.Random(args.seed).shuffle(tensors)

    def write(file, part):
        listed = sorted(t[0] for t in part) if args.order == "shuffled" else None
        st.write(os.path.join(args.out, file), part, listed, not args.unpadded)

    if args.shards == 1:
        write("model.safetensors", tensors)
        return
    total, parts, done = sum(map(size_of, tensors)), [[] for _ in range(args.shards)], 0
    for t in tensors:
        parts[min(args.shards - 1, (done + size_of(t) // 2) * args.shards // total)].append(t)
        done += size_of(t)
    names = [f"model-{i + 1:05}-of-{args.shards:05}.safetensors" for i in range(args.shards)]
    for name, part in zip(names, parts):
        write(name, part)
    weight_map = {t[0]: name for name, part in zip(names, parts) for t in part}
    dump(args, st.INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def dump(args, file, value):
    with open(os.path.join(args.out, file), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1)


def size(text):
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def ids(text):
    return [int(t) for t in text.split(",") if t]


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", help="folder, made if need be")
    p.add_argument("--family", required=True, choices=TENSORS)
    p.add_argument("--dtype", default="f32", choices=DTYPES)
    p.add_argument("--seed", type=int, default=0)
    for name in ("layers", "hidden", "heads", "kv-heads", "ffn"):
        p.add_argument("--" + name, type=int)
    p.add_argument("--vocab", type=int, default=512)
    p.add_argument("--max-pos", type=int, default=512)
    p.add_argument("--bytes", type=size, help="pick the shapes not given so that the tensors have about this size")
    p.add_argument("--tied", dest="tied", action="store_true", default=None)
    p.add_argument("--untied", dest="tied", action="store_false")
    p.add_argument("--bias", action="store_true", help="llama: attention_bias and mlp_bias")
    p.add_argument("--rope", choices=ROPE)
    p.add_argument("--rope-form", default="rope_type", choices=("type", "rope_type", "parameters"),
                   help="rope_scaling with the key type or rope_type, or rope_parameters")
    p.add_argument("--prefix", help="llama: model, bare; opt: model, decoder, bare; gpt2: transformer, bare")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a key of config.json")
    p.add_argument("--eos", type=ids, help="eos_token_id of config.json, comma-separated, empty for none (default 2)")
    p.add_argument("--generation-eos", type=ids, help="write generation_config.json with this eos_token_id")
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--order", default="name", choices=("name", "file", "shuffled"),
                   help="of the data: by name, as a forward pass meets them, or shuffled (header by name)")
    p.add_argument("--unpadded", action="store_true", help="the data start at an odd byte")
    p.add_argument("--tokenizer", metavar="DIR", help="copy tokenizer.json and tokenizer_config.json from there")
    args = p.parse_args(argv)
    if args.prefix and args.prefix not in PREFIXES[args.family]:
        p.error(f"--prefix {args.prefix}: {args.family} has {', '.join(PREFIXES[args.family])}")

    os.makedirs(args.out, exist_ok=True)
    config = make_config(args)
    dump(args, "config.json", config)
    if args.generation_eos is not None:
        eos = args.generation_eos
        dump(args, "generation_config.json", {"bos_token_id": 1, "eos_token_id": eos if len(eos) > 1 else eos[0]})
    write_files(args, make_tensors(args, config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if args.tokenizer and os.path.exists(os.path.join(args.tokenizer, name)):
            shutil.copy(os.path.join(args.tokenizer, name), args.out)


if __name__ == "__main__":
    main()
