#!/usr/bin/python3
"""Two checkpoints that differ in attention alone, with parts of 128 MiB and more: the rest is there once."""

import json
import os
import shutil
import tempfile

from harness import MODELS, NAMES, Daemon, check, equal, main, test, tool

HEADS, FFN, LAYERS, VOCAB = 34, 5632, 2, 512
HIDDEN = 128 * HEADS
SQUARE, WIDE = [HIDDEN, HIDDEN], [FFN, HIDDEN]
BOUND = 0.02


def tensors():
    """Names and shapes, in the order of the file; F16."""
    yield "model.embed_tokens.weight", [VOCAB, HIDDEN]
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{layer}self_attn.{name}.weight", SQUARE
        yield f"{layer}mlp.gate_proj.weight", WIDE
        yield f"{layer}mlp.up_proj.weight", WIDE
        yield f"{layer}mlp.down_proj.weight", WIDE[::-1]
        yield f"{layer}input_layernorm.weight", [HIDDEN]
        yield f"{layer}post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]


def size(shape):
    n = 2
    for dim in shape:
        n *= dim
    return n


def write(path, tuned):
    """A checkpoint of holes, but for a mark in each tensor: no two are equal, and attention depends on `tuned`."""
    os.mkdir(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(MODELS, NAMES[0], name), path)
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    header, at = {}, 0
    for name, shape in tensors():
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size(shape)]}
        at += size(shape)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.truncate(8 + len(text) + at)
        f.write(len(text).to_bytes(8, "little") + text)
        for i, (name, t) in enumerate(header.items()):
            f.seek(8 + len(text) + t["data_offsets"][0])
            f.write(bytes([i, "self_attn" in name and tuned]))
    return path


def near(found, expected, what):
    check(abs(found - expected) <= BOUND * expected, f"{what}: {found} bytes, expected {expected} within {BOUND:.0%}")


def write_all(names, manifests):
    """The folder; bytes of the first, and of attention."""
    models = tempfile.mkdtemp(prefix="models-")
    for i, name in enumerate(names):
        path = write(os.path.join(models, name), i)
        if manifests:
            equal(tool("verify", path, "--write").returncode, 0, "verify --write")
    base = sum(size(shape) for _, shape in tensors())
    attention = sum(size(shape) for name, shape in tensors() if "self_attn" in name)
    check(attention // LAYERS >= 128 << 20 and 3 * size(WIDE) >= 128 << 20, "parts of 128 MiB and more")
    return models, base, attention


def share(manifests):
    models, base, attention = write_all(("base", "tuned"), manifests)

    def figures():
        m = d.metrics()
        read = m.sum("computron_move_bytes_total", move="stage")
        return read, m.sum("computron_bytes", tier="host", state="clean")

    with Daemon(models_dir=models, device="host,mem=768M", pool="size=1536M") as d:
        d.load("base")
        read, held = figures()
        near(read, base, "read for the first")
        near(held, base, "in the pool with the first")
        d.load("tuned")
        read, held = figures()
        near(held, base + attention, "in the pool with both")
        # By the manifest, unread; else read, compared and forgotten.
        near(read, base + (attention if manifests else base), "read for both")
        d.load("base")
        d.ids("tuned", [1], 1)
        equal(figures(), (read, held), "read, and in the pool, when both have come again")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")


def share_on_a_device(manifests):
    """Room for two that share, and not for three; not for two that do not."""
    names = ("base", "tuned", "other")
    models, base, attention = write_all(names, manifests)

    def figures():
        m = d.metrics()
        moved = m.sum("computron_move_bytes_total", move="load")
        return moved, m.sum("computron_bytes", tier="device", state="resident")

    with Daemon(models_dir=models, device="host,mem=980M", pool="size=1536M") as d:
        d.ids("base", [1], 1)
        d.load("base")
        moved, held = figures()
        near(moved, base, "moved for the first")
        near(held, base, "on the device with the first")
        for name in ("tuned", "other", "base"):
            before = moved
            d.ids(name, [1], 1)
            d.load(name)
            moved, held = figures()
            near(moved - before, attention, f"moved for {name}")
            near(held, base + attention, f"on the device with {name}")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")


@test
def on_a_device_by_the_manifests():
    share_on_a_device(True)


@test
def by_the_manifests_unread():
    share(True)


@test
def without_them_by_comparing():
    share(False)


if __name__ == "__main__":
    main("sharing")
