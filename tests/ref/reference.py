#!/usr/bin/python3
"""Reference decoders in numpy: LLaMA, Mistral, Qwen2, OPT and GPT-2.

Written from the papers and from what the keys of a Hugging Face config.json mean, to be read and to be right; it
shares no code with computron. Weights are widened as they are read and all arithmetic is in float64, so what a float32
implementation differs by is its own rounding. float32 may be asked for where memory is short.

    m = load(folder)         or load(folder, np.float32)
    m.logits([1, 5, 7])      -> float32 [3, vocab]
    m.greedy([1], 20)        -> (new ids, gap between the two largest logits at each step)

From a shell: reference.py FOLDER --ids 1,5,7 -n 20 prints JSON.
"""

import argparse
import json
import math
import os
import sys

import numpy as np

import st

# --- pieces -----------------------------------------------------------------------------------------------------------


def layer_norm(x, weight, bias, eps):
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return y if weight is None else y * weight + bias


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def silu(x):
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(x.dtype))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
}


def attention(q, k, v, scale):
    """q [n, heads, d] are the last n of the m positions of k and v [m, kv heads, d] -> [n, heads * d]."""
    n, heads, d = q.shape
    m, kv_heads = k.shape[:2]
    q = q.transpose(1, 0, 2).reshape(kv_heads, heads // kv_heads * n, d)  # heads of one group share k and v
    scores = (q @ k.transpose(1, 2, 0) * scale).reshape(heads, n, m)
    future = np.arange(m)[None, :] > np.arange(m - n, m)[:, None]
    scores[:, future] = -np.inf
    out = softmax(scores).reshape(kv_heads, -1, m) @ v.transpose(1, 0, 2)
    return out.reshape(heads, n, d).transpose(1, 0, 2).reshape(n, heads * d)


def rope_frequencies(head_dim, theta, scaling):
    """Angle per position of each of the head_dim / 2 planes."""
    freq = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        return freq / scaling["factor"]
    if kind == "llama3":
        # Long waves are stretched by factor, short ones kept, those between are a mix of both.
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * freq / (2 * math.pi)
        keep = np.clip((turns - low) / (high - low), 0, 1)
        return keep * freq + (1 - keep) * freq / scaling["factor"]
    if kind != "default":
        raise ValueError(f"rope type {kind} is not handled")
    return freq


def rotate(x, positions, freq):
    """Plane i of a head is the pair (i, i + head_dim / 2): the order of rows that HF checkpoints have."""
    angle = positions[:, None, None] * freq
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


# --- models -----------------------------------------------------------------------------------------------------------


class Model:
    """What the families share. A family sets vocab, layers, heads, kv_heads, head_dim, max_positions and the output
    matrix, and defines embed(ids, positions), layer(i, x, positions, cache) and final(x)."""

    def __init__(self, config, tensors, eos, real, marker):
        self.config, self.eos, self.real = config, eos, real
        self.tensors, self.widened = tensors, {}
        # Models saved with and without their head differ in the prefix of all names.
        found = sorted({n[: -len(marker)] for n in tensors if n.endswith(marker)})
        if len(found) != 1:
            raise ValueError(f"prefix of {marker}: expected one, found {found}")
        self.prefix = found[0]

    def get(self, key, default=None):
        value = self.config.get(key)
        return default if value is None else value

    def refuse(self, **allowed):
        """Stop at a key that changes the arithmetic in a way that is not written here."""
        for key, values in allowed.items():
            if self.config.get(key) not in (None, *values):
                raise ValueError(f"{key}: {self.config[key]} is not handled")

    def whole(self, name):
        if name not in self.tensors:
            raise KeyError(f"no tensor {name}")
        if name not in self.widened:
            self.widened[name] = st.widen(self.tensors[name]).astype(self.real, copy=False)
        return self.widened[name]

    def w(self, name):
        return self.whole(self.prefix + name)

    def output_matrix(self, embedding, tied):
        self.head = self.w(embedding) if tied else self.whole("lm_head.weight")

    def linear(self, x, name, bias):
        y = x @ self.w(name + ".weight").T
        return y + self.w(name + ".bias") if bias else y

    def split(self, x, heads):
        return x.reshape(len(x), heads, self.head_dim)

    def attend(self, q, k, v, scale, layer, cache):
        if cache[layer] is not None:
            k = np.concatenate([cache[layer][0], k])
            v = np.concatenate([cache[layer][1], v])
        cache[layer] = k, v
        return attention(q, k, v, scale)

    def forward(self, ids, cache):
        """Logits of ids, which follow the positions that cache (a list, one entry a layer) already holds."""
        past = 0 if cache[0] is None else len(cache[0][0])
        ids = np.asarray(ids, np.int64)
        if past + len(ids) > self.max_positions:
            raise ValueError(f"{past + len(ids)} positions, the model has {self.max_positions}")
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= self.vocab:
            raise ValueError(f"ids must be 0 to {self.vocab - 1}, and at least one")
        positions = np.arange(past, past + len(ids))
        x = self.embed(ids, positions)
        for i in range(self.layers):
            x = self.layer(i, x, positions, cache)
        return self.final(x) @ self.head.T

    def logits(self, ids):
        return self.forward(ids, [None] * self.layers).astype(np.float32)

    def greedy(self, ids, n):
        """Up to n new ids, and the gap between the two largest logits at each. An end of sequence is the last id."""
        cache, out, gaps = [None] * self.layers, [], []
        feed = list(ids)
        while len(out) < n and len(ids) + len(out) <= self.max_positions:
            logits = self.forward(feed, cache)[-1]
            second, first = np.partition(logits, -2)[-2:]
            feed = [int(logits.argmax())]
            out += feed
            gaps.append(float(first - second))
            if feed[0] in self.eos:
                break
        return out, gaps


class Llama(Model):
    """Also Mistral and Qwen2. RMSNorm, rotary positions, grouped heads, gated MLP."""

    def __init__(self, config, tensors, eos, real):
        super().__init__(config, tensors, eos, real, "embed_tokens.weight")
        kind = config["model_type"]
        self.refuse(hidden_act=("silu", "swish"), pretraining_tp=(1,), partial_rotary_factor=(1,))
        if kind == "qwen2":
            self.refuse(use_sliding_window=(False,))
        elif kind == "mistral" and config.get("sliding_window", 4096) is not None:
            raise ValueError("sliding_window: only null is handled")  # 4096 where the key is absent
        self.vocab, self.layers = config["vocab_size"], config["num_hidden_layers"]
        self.heads = config["num_attention_heads"]
        absent = {"llama": self.heads, "mistral": 8, "qwen2": 32}[kind]
        self.kv_heads = self.get("num_key_value_heads", self.heads if "num_key_value_heads" in config else absent)
        self.head_dim = self.get("head_dim", config["hidden_size"] // self.heads)
        self.max_positions = config["max_position_embeddings"]
        self.eps = self.get("rms_norm_eps", 1e-6)
        rope = dict(self.get("rope_scaling", {}), **self.get("rope_parameters", {}))
        if rope.get("partial_rotary_factor", 1) != 1:
            raise ValueError("partial_rotary_factor is not handled")
        theta = rope.get("rope_theta", self.get("rope_theta", 10000.0))
        self.freq = rope_frequencies(self.head_dim, theta, rope)
        self.qkv_bias = kind == "qwen2" or (kind == "llama" and self.get("attention_bias", False))
        self.o_bias = kind == "llama" and self.get("attention_bias", False)
        self.mlp_bias = kind == "llama" and self.get("mlp_bias", False)
        self.output_matrix("embed_tokens.weight", self.get("tie_word_embeddings", False))

    def embed(self, ids, positions):
        return self.w("embed_tokens.weight")[ids]

    def layer(self, i, x, positions, cache):
        p = f"layers.{i}."
        h = rms_norm(x, self.w(p + "input_layernorm.weight"), self.eps)
        q = self.split(self.linear(h, p + "self_attn.q_proj", self.qkv_bias), self.heads)
        k = self.split(self.linear(h, p + "self_attn.k_proj", self.qkv_bias), self.kv_heads)
        v = self.split(self.linear(h, p + "self_attn.v_proj", self.qkv_bias), self.kv_heads)
        q, k = rotate(q, positions, self.freq), rotate(k, positions, self.freq)
        h = self.attend(q, k, v, self.head_dim**-0.5, i, cache)
        x = x + self.linear(h, p + "self_attn.o_proj", self.o_bias)
        h = rms_norm(x, self.w(p + "post_attention_layernorm.weight"), self.eps)
        gate = silu(self.linear(h, p + "mlp.gate_proj", self.mlp_bias))
        up = self.linear(h, p + "mlp.up_proj", self.mlp_bias)
        return x + self.linear(gate * up, p + "mlp.down_proj", self.mlp_bias)

    def final(self, x):
        return rms_norm(x, self.w("norm.weight"), self.eps)


class Opt(Model):
    """Learned positions that start at row 2; norm before each block, or after it in the 350m variant."""

    def __init__(self, config, tensors, eos, real):
        super().__init__(config, tensors, eos, real, "embed_tokens.weight")
        self.vocab, self.layers = config["vocab_size"], config["num_hidden_layers"]
        self.heads = self.kv_heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.heads
        self.max_positions = config["max_position_embeddings"]
        self.act = ACTIVATIONS[self.get("activation_function", "relu")]
        self.bias = self.get("enable_bias", True)
        self.affine = self.get("layer_norm_elementwise_affine", True)
        self.before = self.get("do_layer_norm_before", True)
        self.last_norm = self.before and not self.get("_remove_final_layer_norm", False)
        self.projected = self.get("word_embed_proj_dim", config["hidden_size"]) != config["hidden_size"]
        self.output_matrix("embed_tokens.weight", self.get("tie_word_embeddings", True))

    def norm(self, x, name):
        affine = (self.w(name + ".weight"), self.w(name + ".bias")) if self.affine else (None, None)
        return layer_norm(x, *affine, 1e-5)

    def embed(self, ids, positions):
        x = self.w("embed_tokens.weight")[ids]
        if self.projected:
            x = self.linear(x, "project_in", False)
        return x + self.w("embed_positions.weight")[positions + 2]

    def layer(self, i, x, positions, cache):
        p = f"layers.{i}."

        def heads(name, h):
            return self.split(self.linear(h, p + "self_attn." + name, self.bias), self.heads)

        def attn(h):
            qkv = heads("q_proj", h), heads("k_proj", h), heads("v_proj", h)
            h = self.attend(*qkv, self.head_dim**-0.5, i, cache)
            return self.linear(h, p + "self_attn.out_proj", self.bias)

        def mlp(h):
            return self.linear(self.act(self.linear(h, p + "fc1", self.bias)), p + "fc2", self.bias)

        for block, name in (attn, "self_attn_layer_norm"), (mlp, "final_layer_norm"):
            if self.before:
                x = x + block(self.norm(x, p + name))
            else:
                x = self.norm(x + block(x), p + name)
        return x

    def final(self, x):
        if self.last_norm:
            x = self.norm(x, "final_layer_norm")
        return self.linear(x, "project_out", False) if self.projected else x


class Gpt2(Model):
    """Learned positions, fused q, k, v; matrices stand as [in, out]."""

    def __init__(self, config, tensors, eos, real):
        super().__init__(config, tensors, eos, real, "wte.weight")
        self.refuse(add_cross_attention=(False,))
        self.vocab, self.layers = config["vocab_size"], config["n_layer"]
        self.heads = self.kv_heads = config["n_head"]
        self.head_dim = config["n_embd"] // self.heads
        self.max_positions = config["n_positions"]
        self.eps = self.get("layer_norm_epsilon", 1e-5)
        self.act = ACTIVATIONS[self.get("activation_function", "gelu_new")]
        self.scaled = self.get("scale_attn_weights", True)
        self.by_layer = self.get("scale_attn_by_inverse_layer_idx", False)
        self.output_matrix("wte.weight", self.get("tie_word_embeddings", True))

    def conv1d(self, x, name):
        return x @ self.w(name + ".weight") + self.w(name + ".bias")

    def norm(self, x, name):
        return layer_norm(x, self.w(name + ".weight"), self.w(name + ".bias"), self.eps)

    def embed(self, ids, positions):
        return self.w("wte.weight")[ids] + self.w("wpe.weight")[positions]

    def layer(self, i, x, positions, cache):
        p = f"h.{i}."
        qkv = np.split(self.conv1d(self.norm(x, p + "ln_1"), p + "attn.c_attn"), 3, axis=-1)
        scale = (self.head_dim**-0.5 if self.scaled else 1.0) / (i + 1 if self.by_layer else 1)
        h = self.attend(*(self.split(t, self.heads) for t in qkv), scale, i, cache)
        x = x + self.conv1d(h, p + "attn.c_proj")
        h = self.act(self.conv1d(self.norm(x, p + "ln_2"), p + "mlp.c_fc"))
        return x + self.conv1d(h, p + "mlp.c_proj")

    def final(self, x):
        return self.norm(x, "ln_f")


FAMILIES = {"llama": Llama, "mistral": Llama, "qwen2": Llama, "opt": Opt, "gpt2": Gpt2}


def end_of_sequence(folder, config):
    """generation_config.json, else config.json; one id, a list or nothing."""
    eos, path = None, os.path.join(folder, "generation_config.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            eos = json.load(f).get("eos_token_id")
    if eos is None:
        eos = config.get("eos_token_id")
    return set() if eos is None else set(eos) if isinstance(eos, list) else {eos}


def load(folder, real=np.float64):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    if config.get("quantization_config") is not None:
        raise ValueError("quantization_config is not handled")
    if config.get("model_type") not in FAMILIES:
        raise ValueError(f"model_type {config.get('model_type')} is not one of {', '.join(FAMILIES)}")
    return FAMILIES[config["model_type"]](config, st.read_dir(folder), end_of_sequence(folder, config), real)


def main():
    parser = argparse.ArgumentParser(description="logits of the last id and greedy continuation, as JSON")
    parser.add_argument("folder")
    parser.add_argument("--ids", default="1", help="comma-separated (default 1)")
    parser.add_argument("-n", type=int, default=0, help="new ids (default 0)")
    parser.add_argument("--all", action="store_true", help="the logits of every id, not only of the last")
    args = parser.parse_args()
    model, ids = load(args.folder), [int(t) for t in args.ids.split(",")]
    logits = model.logits(ids)
    new, gaps = model.greedy(ids, args.n)
    json.dump({"logits": (logits if args.all else logits[-1]).tolist(), "greedy": new, "gaps": gaps}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
