#!/usr/bin/python3
"""computron verify and the manifest: what it finds, what a daemon does with it, what is shared by it."""

import json
import os
import pty
import random
import re
import shutil
import subprocess
import sys
import tempfile

from harness import BUILD, MODELS, NAMES, Daemon, check, commit_seed, equal, generate, golden, main, test, tool

LLAMA = NAMES[0]
IDS = golden(LLAMA)["greedy_ids_from_bos"]
MANIFEST = "computron.manifest.json"


def folder():
    return tempfile.mkdtemp(prefix="models-")


def copy(models, name, source=os.path.join(MODELS, LLAMA)):
    return shutil.copytree(source, os.path.join(models, name))


def write(path):
    run = tool("verify", path, "--write")
    equal((run.returncode, run.stderr), (0, ""), "verify --write")


def data_of(path):
    """Where the bytes of each tensor of model.safetensors begin."""
    with open(os.path.join(path, "model.safetensors"), "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
    return {name: 8 + n + t["data_offsets"][0] for name, t in header.items() if name != "__metadata__"}


def rewrite(path, change):
    """Changes the bytes of model.safetensors; the file keeps its times."""
    name = os.path.join(path, "model.safetensors")
    before = os.stat(name)
    with open(name, "r+b") as f:
        change(f)
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path, tensor, bits=0x10):
    """Changes a byte of a tensor."""

    def change(f):
        f.seek(data_of(path)[tensor] + 5)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ bits]))

    rewrite(path, change)


WRONG = "model.layers.3.mlp.up_proj.weight"


@test
def verify_finds_file_part_and_tensor():
    path = copy(folder(), "m")
    run = tool("verify", path)
    equal(run.returncode, 1, "status without a manifest")
    check(MANIFEST in run.stderr and "--write" in run.stderr, run.stderr)
    write(path)
    with open(os.path.join(path, MANIFEST), encoding="utf-8") as f:
        manifest = json.load(f)
    size = os.stat(os.path.join(path, "model.safetensors")).st_size
    equal(manifest["files"]["model.safetensors"]["bytes"], size, "bytes")
    run = tool("verify", path, "--json")
    report = json.loads(run.stdout)
    equal((run.returncode, report["ok"], report["failures"]), (0, True, []), "a checkpoint as it was")
    equal(report["bytes"], sum(p["bytes"] for p in manifest["parts"]), "bytes read")
    flip(path, WRONG)
    run = tool("verify", path, "--json")
    report = json.loads(run.stdout)
    equal((run.returncode, report["ok"], len(report["failures"])), (1, False, 1), "a wrong byte")
    equal(report["parts_failed"], 1, "parts that are others")
    for text in (report["failures"][0], run.stderr):
        check("model.safetensors" in text and "part " in text and WRONG in text, text)
    equal(tool("verify", path, "--nonsense").returncode, 2, "wrong usage")
    equal(tool("verify").returncode, 2, "wrong usage")
    write(path)
    equal(tool("verify", path).returncode, 0, "with a new manifest")


@test
def a_folder_whose_name_is_no_text_is_reported_as_json():
    parent = os.fsencode(folder())
    path = os.path.join(parent, b"m\xff")
    shutil.copytree(os.fsencode(copy(os.fsdecode(parent), "m")), path)
    for options in (["--write"], []):
        run = tool("verify", path, "--json", *options)
        report = json.loads(run.stdout)
        equal((run.returncode, run.stderr), (0, ""), "status")
        check(report["checkpoint"].endswith("/m?"), report)
    run = tool("verify", path + b"\xff", "--json")
    report = json.loads(run.stdout)
    equal((run.returncode, report["ok"], len(report["failures"])), (1, False, 1), "a folder that is not there")
    run = tool("doctor", "--models-dir", path + b"\xff", "--json")
    states = {f["name"]: f["state"] for f in json.loads(run.stdout)["findings"]}
    equal((run.returncode, states["models-dir"]), (1, "blocked"), "doctor")


@test
def verify_shows_progress_on_a_terminal_only():
    path = copy(folder(), "m")
    write(path)
    ours, theirs = pty.openpty()
    run = subprocess.run([os.path.join(BUILD, "computron"), "verify", path], stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    seen = os.read(ours, 65536).decode()
    os.close(ours)
    equal(run.returncode, 0, "status")
    check(re.search(r"\r\[#{30}\] 100 %  \S+ \S+ of \S+ \S+  \S+ \S+/s  ETA 0:00", seen), repr(seen))
    check(seen.endswith("\r\x1b[K"), "the line is cleared", repr(seen))


@test
def a_wrong_byte_never_becomes_a_token():
    models = folder()
    path = copy(models, "m")
    write(path)
    with Daemon(models_dir=models) as d:
        flip(path, WRONG)
        reply = d.completions("m", [1], max_tokens=8, temperature=0)
        check(reply.status >= 500, reply.status, reply.body)
        check("text" not in reply.json and WRONG in reply.error["message"], reply.body)
        m = d.metrics()
        check(m.sum("computron_moves_total", move="stage", outcome="failed") >= 1, "no move has failed")
        equal(m.sum("computron_moves_total", move="stage", outcome="ok"), 0, "parts that were staged")
        flip(path, WRONG)
        equal(d.ids("m", [1], 16), IDS[1:17] if IDS[0] == 1 else IDS[:16], "with the right byte again")


def spoil(path, what, rng):
    """One bit, or the end of the file, or all weights behind the same header; the words that must tell it."""
    data = data_of(path)
    size = os.path.getsize(os.path.join(path, "model.safetensors"))
    begin = min(data.values())
    if what == "bit":
        tensor = rng.choice(sorted(data))
        flip(path, tensor, 1 << rng.randrange(8))
        return ["part ", tensor]
    if what == "cut":
        rewrite(path, lambda f: f.truncate(rng.randrange(begin, size)))
        return []
    rewrite(path, lambda f: f.seek(begin) and f.write(rng.randbytes(size - begin)))
    return ["part ", "tensor "]


@test
def no_spoiled_model_says_anything():
    rng = random.Random(commit_seed())
    models, words = folder(), {}
    for source in NAMES:
        for what in ("bit", "bit", "cut", "other"):
            name = f"{source}-{len(words)}"
            path = copy(models, name, os.path.join(MODELS, source))
            write(path)
            words[name] = spoil(path, what, rng) + ["model.safetensors"]
    with Daemon(models_dir=models) as d:
        for name in words:
            reply = d.completions(name, [1], max_tokens=4)
            check(reply.status >= 400 and "choices" not in reply.json, reply.status, reply.body)
            for word in words[name]:
                check(word in reply.error["message"], f"{name}: {word} is not in", reply.body)
        m = d.metrics()
        equal(m.sum("computron_moves_total", move="stage", outcome="ok"), 0, "parts that were staged")
        equal(m.sum("computron_bytes", tier="host", state="clean"), 0, "bytes in the pool")


@test
def a_stale_manifest_refuses_the_checkpoint():
    models = folder()
    path = copy(models, "m")
    copy(models, "good")
    write(path)
    with open(os.path.join(path, "config.json"), "a", encoding="utf-8") as f:
        f.write(" ")
    with Daemon(models_dir=models) as d:
        reply = d.completions("m", [1], max_tokens=1)
        check(reply.status >= 400, reply.status, reply.body)
        status = next(m for m in d.control("GET", "/status").json["models"] if m["name"] == "m")
        check(MANIFEST in json.dumps(status) and "config.json" in json.dumps(status), status)
        equal(len(d.ids("good", [1], 2)), 2, "the other model")


@test
def a_manifest_that_came_with_a_copy_of_the_base_is_not_believed():
    models = folder()
    base = copy(models, "base")
    write(base)
    tuned = shutil.copytree(base, os.path.join(models, "tuned"), copy_function=shutil.copyfile)
    flip(tuned, WRONG)
    with Daemon(models_dir=models) as d:
        d.ids("base", [1], 2)
        reply = d.completions("tuned", [1], max_tokens=4)
        check(reply.status >= 500 and "choices" not in reply.json, reply.status, reply.body)
        check("tuned/model.safetensors" in reply.error["message"] and WRONG in reply.error["message"], reply.body)


def staged(d):
    return d.metrics().sum("computron_move_bytes_total", move="stage")


def clean(d):
    return d.metrics().sum("computron_bytes", tier="host", state="clean")


@test
def what_only_differs_in_attention_is_read_once():
    models = folder()
    base = generate(os.path.join(models, "base"), "--family", "llama", "--hidden", 512, "--layers", 4)
    tuned = shutil.copytree(base, os.path.join(models, "tuned"))
    for layer in range(4):
        flip(tuned, f"model.layers.{layer}.self_attn.q_proj.weight", 1)
    for path in (base, tuned):
        write(path)
    with open(os.path.join(tuned, MANIFEST), encoding="utf-8") as f:
        parts = json.load(f)["parts"]
    differing = sum(p["bytes"] for p in parts if any("self_attn" in t for t in p["tensors"]))
    total = sum(p["bytes"] for p in parts)
    check(0 < differing < total / 2, f"{differing} of {total} bytes differ")
    with Daemon(models_dir=models, device="host,mem=1G") as d:
        d.ids("base", [1], 4)
        before, held = staged(d), clean(d)
        d.ids("tuned", [1], 4)
        read, more = staged(d) - before, clean(d) - held
        check(differing <= read <= differing + len(parts) * 8192, f"read {read} bytes, {differing} differ")
        check(differing <= more <= differing + len(parts) * (2 << 20), f"took {more} bytes, {differing} differ")
        equal(d.control("GET", "/status").json["ledger_errors"], 0, "counts that did not agree")


if __name__ == "__main__":
    main("verify")
