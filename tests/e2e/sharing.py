#!/usr/bin/python3
"""Fine-tunes of one base that differ in attention alone: the rest is there once, in both tiers, and is moved once.

Parts are of 128 MiB and more; of the test with eight fine-tunes in make check-long only, where it takes 4 GB of memory."""

import json
import os
import shutil
import tempfile
from collections import namedtuple

from harness import LONG, MODELS, NAMES, Daemon, check, equal, main, test, tool

Shape = namedtuple("Shape", "heads ffn layers")
LARGE = Shape(34, 5632, 2)  # heads of 128
VOCAB = 512
BOUND = 0.02


def tensors(shape):
    """Names and shapes, in the order of the file; F16."""
    hidden = 128 * shape.heads
    square, wide = [hidden, hidden], [shape.ffn, hidden]
    yield "model.embed_tokens.weight", [VOCAB, hidden]
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{layer}self_attn.{name}.weight", square
        yield f"{layer}mlp.gate_proj.weight", wide
        yield f"{layer}mlp.up_proj.weight", wide
        yield f"{layer}mlp.down_proj.weight", wide[::-1]
        yield f"{layer}input_layernorm.weight", [hidden]
        yield f"{layer}post_attention_layernorm.weight", [hidden]
    yield "model.norm.weight", [hidden]


def size(shape):
    n = 2
    for dim in shape:
        n *= dim
    return n


def write(path, tuned, shape):
    """A checkpoint of holes, but for a mark in each tensor: no two are equal, and attention depends on `tuned`."""
    os.mkdir(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(MODELS, NAMES[0], name), path)
    config = {
        "model_type": "llama",
        "hidden_size": 128 * shape.heads,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    header, at = {}, 0
    for name, dims in tensors(shape):
        header[name] = {"dtype": "F16", "shape": dims, "data_offsets": [at, at + size(dims)]}
        at += size(dims)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.truncate(8 + len(text) + at)
        f.write(len(text).to_bytes(8, "little") + text)
        for i, (name, t) in enumerate(header.items()):
            f.seek(8 + len(text) + t["data_offsets"][0])
            f.write(bytes([i, "self_attn" in name and tuned]))
    return path


def near(found, expected, what, frames=0):
    """`frames`: of parts so small that the 2 MiB to which each is rounded count."""
    bound = BOUND * expected + (frames << 21)
    check(abs(found - expected) <= bound, f"{what}: {found} bytes, expected {expected} within {bound:.0f}")


def write_all(names, manifests, shape=LARGE):
    """The folder; bytes of the first, and of attention."""
    models = tempfile.mkdtemp(prefix="models-")
    for i, name in enumerate(names):
        path = write(os.path.join(models, name), i, shape)
        if manifests:
            equal(tool("verify", path, "--write").returncode, 0, "verify --write")
    base = sum(size(dims) for _, dims in tensors(shape))
    attention = sum(size(dims) for name, dims in tensors(shape) if "self_attn" in name)
    mlp = sum(size(dims) for name, dims in tensors(shape) if "mlp" in name)
    least = shape.layers << (27 if shape.heads >= LARGE.heads else 23)
    check(min(attention, mlp) >= least, "parts of 128 MiB and more, or of 8")
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

    # lru loads nothing ahead: what moves is what is asked for.
    with Daemon("--policy", "lru", models_dir=models, device="host,mem=980M", pool="size=1536M") as d:
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


EIGHT = [f"tuned-{i}" for i in range(8)]


def place(models, tp):
    for name in ("base", *EIGHT):
        yield from ("--model", f"{name}={models}/{name},tp={tp}")


def eight(manifests, tp, shape):
    """All nine side by side, then by turns where there is room for two that share."""
    models, base, attention = write_all(("base", *EIGHT), manifests, shape)
    all_bytes = base + len(EIGHT) * attention
    frames = 0 if LONG else shape.layers * (2 + len(EIGHT)) + 1 + len(EIGHT)
    pool = f"size={all_bytes * 5 // 4 + (frames << 21)}"

    def figures():
        m = d.metrics()
        read, moved = (m.sum("computron_move_bytes_total", move=move) for move in ("stage", "load"))
        held = m.sum("computron_bytes", tier="host", state="clean"), m.sum("computron_bytes", tier="device", state="resident")
        return read, moved, *held

    with Daemon(*place(models, tp), models_dir=None, device=f"host:{tp},mem={2 * all_bytes // tp}", pool=pool) as d:
        d.ids("base", [1], 1)
        beside = sum(d.metrics().sum("computron_bytes", tier="device", state=state) for state in ("workspace", "kv"))
        for name in ("base", *EIGHT):
            d.ids(name, [1], 1)
            d.load(name)
        read, moved, host, on_device = figures()
        near(read, all_bytes if manifests else 9 * base, "read for all")
        near(moved, all_bytes, "moved for all")
        near(host, all_bytes, "in the pool with all", frames)
        near(on_device, all_bytes, "on the devices with all", frames * tp)
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")
    # Two have their attention and workspace there; a third would not have the room that rounding leaves.
    room = int(base + attention + 2 * beside) + max(tp * (3 * shape.layers + 3) << 20, attention // 4)
    # Whole models go, the oldest first: so it is known what each switch has to move.
    lru = ("--policy", "lru", *place(models, tp))
    with Daemon(*lru, models_dir=None, device=f"host:{tp},mem={room // tp}", pool=pool) as d:
        for name in ("base", *EIGHT):
            d.load(name)
        read, moved, _, _ = figures()
        for name in EIGHT[1::2] + EIGHT[0::2]:
            before = moved
            d.ids(name, [1], 1)
            d.load(name)
            again, moved, _, on_device = figures()
            near(moved - before, attention, f"moved for {name}")
            near(on_device, base + attention, f"on the devices with {name}", frames and tp * (3 * shape.layers + 3))
            equal(again, read, f"bytes read when {name} has come again")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")
    shutil.rmtree(models)


@test
def eight_fine_tunes():
    if LONG:
        eight(True, 1, Shape(36, 5632, 1))
        eight(False, 1, Shape(36, 5632, 1))
    else:
        eight(True, 2, Shape(8, 1408, 2))
        eight(False, 1, Shape(8, 1408, 2))


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
