#!/usr/bin/python3
"""Bad input: a clear error, and nothing else happens."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

from harness import BUILD, MODELS, NAMES, Daemon, check, equal, generate, golden, main, test, tool

LLAMA = NAMES[0]
IDS = golden(LLAMA)["greedy_ids_from_bos"]


def header_of(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        return n, json.loads(f.read(n))


def rewrite_header(path, change):
    """Applies change(header) in place; the header keeps its length."""
    n, header = header_of(path)
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    check(len(text) <= n, "the new header is longer than the old one")
    with open(path, "r+b") as f:
        f.seek(8)
        f.write(text.ljust(n))


def edit_config(path, **keys):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config.update(keys)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


# --- bad checkpoints: name -> (how to make it of a good one of two shards, words of the reason) ------------------------

SHARD = "model-00002-of-00002.safetensors"


def missing_shard(path):
    os.unlink(os.path.join(path, SHARD))


def truncated(path):
    file = os.path.join(path, SHARD)
    os.truncate(file, os.path.getsize(file) - 100)


def trailing_bytes(path):
    with open(os.path.join(path, SHARD), "ab") as f:
        f.write(b"x" * 100)


def wrong_dtype(path):
    def change(header):
        name = next(n for n in sorted(header) if n.endswith("down_proj.weight"))
        header[name]["dtype"] = "I32"

    rewrite_header(os.path.join(path, SHARD), change)


def wrong_shape(path):
    def change(header):
        name = next(n for n in sorted(header) if n.endswith("down_proj.weight"))
        header[name]["shape"].reverse()

    rewrite_header(os.path.join(path, SHARD), change)


def missing_tensor(path):
    def change(header):
        name = next(n for n in sorted(header) if n.endswith("down_proj.weight"))
        header[name.replace("down", "gone")] = header.pop(name)

    rewrite_header(os.path.join(path, SHARD), change)


def huge_header(path):
    with open(os.path.join(path, SHARD), "r+b") as f:
        f.write(struct.pack("<Q", 1 << 62))


def empty_file(path):
    os.truncate(os.path.join(path, SHARD), 0)


def no_config(path):
    os.unlink(os.path.join(path, "config.json"))


def broken_config(path):
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        f.write('{"model_type": "llama", ')


def key_twice(path):
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        text = f.read()
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        f.write(text.replace("{", '{"hidden_size": 64, ', 1))


def index_leaves_the_folder(path):
    file = os.path.join(path, "model.safetensors.index.json")
    with open(file, encoding="utf-8") as f:
        text = f.read()
    with open(file, "w", encoding="utf-8") as f:
        f.write(text.replace(SHARD, "../" + SHARD))


def config(**keys):
    return lambda path: edit_config(path, **keys)


BAD = {
    "missing-shard": (missing_shard, [SHARD]),
    "truncated": (truncated, [SHARD]),
    "trailing": (trailing_bytes, [SHARD]),
    "wrong-dtype": (wrong_dtype, ["down_proj", "I32"]),
    "wrong-shape": (wrong_shape, ["down_proj"]),
    "missing-tensor": (missing_tensor, ["down_proj"]),
    "huge-header": (huge_header, [SHARD]),
    "empty-file": (empty_file, [SHARD]),
    "no-config": (no_config, ["config.json"]),
    "broken-config": (broken_config, ["config.json"]),
    "key-twice": (key_twice, ["hidden_size"]),
    "index-outside": (index_leaves_the_folder, [".."]),
    "unknown-family": (config(model_type="mamba"), ["mamba"]),
    "no-heads": (config(num_attention_heads=0), ["num_attention_heads"]),
    "huge-layers": (config(num_hidden_layers=4000000000), ["num_hidden_layers"]),
    "many-layers": (config(num_hidden_layers=200000000), ["layer"]),
    "sliding-window": (config(model_type="mistral", sliding_window=64), ["sliding_window"]),
    "quantised": (config(quantization_config={"bits": 4}), ["quantization_config"]),
    "yarn": (config(rope_scaling={"rope_type": "yarn", "factor": 2.0}), ["yarn"]),
}


def make_bad(folder):
    for name, (spoil, _) in BAD.items():
        path = os.path.join(folder, name)
        generate(path, "--family", "llama", "--shards", 2)
        spoil(path)


def served(d):
    return [m["id"] for m in d.get("/v1/models").json["data"]]


@test
def bad_checkpoints_are_listed_and_the_rest_goes_on():
    with tempfile.TemporaryDirectory() as folder:
        make_bad(folder)
        shutil.copytree(os.path.join(MODELS, LLAMA), os.path.join(folder, LLAMA))
        generate(os.path.join(folder, "too-large"), "--family", "opt", "--bytes", "80M")
        with Daemon(models_dir=folder, device="host,mem=48M") as d:
            equal(served(d), [LLAMA], "what is served")
            status = {m["name"]: m for m in d.control("GET", "/status").json["models"]}
            for name, words in {**{n: w for n, (_, w) in BAD.items()}, "too-large": ["48"]}.items():
                check(name in status, name, "is not listed; there are", sorted(status))
                equal(status[name]["state"], "unservable", name)
                reason = status[name]["reason"]
                check("\n" not in reason and all(w in reason for w in words), f"{name}: {reason!r} without {words}")
                reply = d.completions(name, [1], max_tokens=1)
                check(400 <= reply.status < 600 and reply.error["message"], f"{name}: {reply.status} {reply.body!r}")
                control = d.control("POST", f"/models/{name}/load")
                check(control.status >= 400, f"load {name}: {control.status}")
            equal(d.ids(LLAMA, IDS[:1], 8), IDS[1:9], "the good one")


@test
def folders_that_cannot_name_a_model():
    """They are told of, and stop neither the rest nor the lists."""
    with tempfile.TemporaryDirectory() as folder:
        for name in (b"\xff", b"two\nlines", b"caf\xc3\xa9", b'"\\{} %41#?'):
            shutil.copytree(os.path.join(MODELS, LLAMA), os.path.join(folder, os.fsdecode(name)))
        with Daemon(models_dir=folder) as d:
            equal(sorted(served(d)), sorted(["caf\xe9", '"\\{} %41#?']), "what is served")
            equal(len(d.control("GET", "/status").json["models"]), 2)
            for name in served(d):
                equal(d.ids(name, IDS[:1], 4), IDS[1:5], name)
                d.tool("load", name)
            check("two?lines" in d.log and "2 served, 2 not" in d.log, d.log)
            d.metrics()


@test
def inspect_tells_what_is_wrong():
    with tempfile.TemporaryDirectory() as folder:
        make_bad(folder)
        for name, (_, words) in BAD.items():
            run = tool("inspect", os.path.join(folder, name))
            check(run.returncode > 0, f"inspect {name}: status {run.returncode}")
            lines = run.stderr.strip().splitlines()
            equal(len(lines), 1, f"lines of inspect {name}: {lines}")
            check(all(w in lines[0] for w in words), f"{name}: {lines[0]!r} without {words}")


@test
def file_that_changes_while_it_is_served():
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            shutil.copytree(os.path.join(MODELS, name), os.path.join(folder, name))
        with Daemon(models_dir=folder) as d:
            file = os.path.join(folder, LLAMA, "model.safetensors")
            os.truncate(file, os.path.getsize(file) // 2)
            reply = d.completions(LLAMA, IDS[:1], max_tokens=4)
            check(reply.status >= 500, reply.status)
            check("model.safetensors" in reply.error["message"], reply.error)
            for name in NAMES[1:]:
                want = golden(name)["greedy_ids_from_bos"]
                equal(d.ids(name, want[:1], 8), want[1:9], name)
            check(d.metrics().sum("computron_moves_total", outcome="failed") >= 1, "a failed move is counted")


@test
def pool_too_small_for_one_part():
    with tempfile.TemporaryDirectory() as folder:
        generate(os.path.join(folder, "wide"), "--family", "opt", "--hidden", 1024, "--heads", 16, "--layers", 2)
        shutil.copytree(os.path.join(MODELS, LLAMA), os.path.join(folder, LLAMA))
        with Daemon(models_dir=folder, pool="plain,size=12M") as d:  # a part of "wide": 16 MiB
            equal(served(d), [LLAMA], "what is served")
            status = {m["name"]: m for m in d.control("GET", "/status").json["models"]}
            check("pool" in status["wide"]["reason"], status["wide"])
            equal(d.ids(LLAMA, IDS[:1], 8), IDS[1:9], "the other one")


# --- start --------------------------------------------------------------------------------------------------------------


def refused(*args, words, **options):
    """A daemon that must not start: status and one clear line, soon."""
    d = Daemon(*args, **options).spawn()
    try:
        status = d.wait(10)
    finally:
        d.kill()
    check(status > 0, f"exit status {status} for {args} {options}: {d.log}")
    errors = [line for line in d.log.splitlines() if "listening" not in line]
    check(errors and all(w in errors[-1] for w in words), f"{errors} without {words}")
    check(not os.path.exists(d.socket), "the control socket was left")


@test
def port_in_use():
    with Daemon() as d:
        refused("--listen", f"127.0.0.1:{d.port}", words=[str(d.port), "in use"])
        refused("--socket", d.socket, words=[d.socket])
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "the first one goes on")


@test
def socket_file_that_was_left():
    with Daemon() as d:
        d.process.kill()
        d.wait()
        check(os.path.exists(d.socket), "a killed daemon leaves its socket file")
        with Daemon("--socket", d.socket) as second:
            second.socket = d.socket
            equal(second.control("GET", "/status").status, 200)
        d.stopped = True


@test
def bad_options():
    for args, words in (
        (["--no-such-option"], ["no-such-option"]),
        (["--device", "host,mem=lots"], ["lots"]),
        (["--device", "host,mem=64M,color=red"], ["color"]),
        (["--device", "cuda"], ["cuda"]),
        (["--device", "abacus,mem=64M"], ["abacus"]),
        (["--pool", "marble,size=64M"], ["marble"]),
        (["--pool", "plain,size=1"], ["pool"]),
        (["--listen", "127.0.0.1:99999"], ["99999"]),
        (["--listen", "nowhere"], ["nowhere"]),
        (["--stage-ahead", "never"], ["stage-ahead", "on or off", "never"]),
        (["--models-dir", "/no/such/folder"], ["/no/such/folder"]),
        (["--model", "a=/no/such/folder,tp=zero"], ["zero"]),
        (["--model", b"\xff=/no/such/folder"], ["name", "UTF-8"]),
        (["--model", "a\nb=/no/such/folder"], ["name", "a?b"]),
        (["--model", "..=/no/such/folder"], ["name"]),
        (["--model", "a=/no/such/folder,devices=3-1"], ["devices", "3"]),
        (["--model", "a=/no/such/folder,devices=0-"], ["devices"]),
        (["--model", "a=/no/such/folder,devices=0-4294967295"], ["devices", "4096"]),
        (["--model", "a=/no/such/folder,priority=9"], ["priority", "-8 to 8", '"9"']),
        (["--config", "/no/such/file.yaml"], ["/no/such/file.yaml"]),
        (["stray"], ["stray"]),
    ):
        refused(*args, words=words)


@test
def bad_configuration_names_the_line():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "c.yaml")
        for text, words in (
            ("listen: 127.0.0.1:0\ncolour: red\n", ["2", "colour"]),
            ("listen: 127.0.0.1:0\n\n\npool: marble,size=64M\n", ["marble"]),
            ("listen: [127.0.0.1\n", [path]),
            ("- a\n- b\n", [path]),
            ("listen: 127.0.0.1:0\nlisten: 127.0.0.1:1\n", ["listen"]),
            ("model:\n  - name: a\n    dir: /no\n    priority: 9\n", ["priority", "-8 to 8", '"9"']),
        ):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            refused(words=words, config=path, pool=None)


@test
def configuration_file_serves():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "c.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"models-dir: {MODELS}\ndevice: host,mem=64M\npool: plain,size=64M\n")
        with Daemon(config=path, models_dir=None, device=None, pool=None) as d:
            equal(sorted(served(d)), sorted(NAMES))
            equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5])
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"model:\n  - tiny={MODELS}/{LLAMA}\n  - {NAMES[1]}={MODELS}/{NAMES[1]}\ndevice: host,mem=64M\n")
        with Daemon(config=path, models_dir=None, device=None) as d:
            equal(sorted(served(d)), sorted(["tiny", NAMES[1]]))
            equal(d.ids("tiny", IDS[:1], 4), IDS[1:5])


@test
def devices_are_numbers_and_ranges():
    with tempfile.TemporaryDirectory() as folder:
        path, split = os.path.join(folder, "c.yaml"), f"{MODELS}/{LLAMA}"
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"model:\n  - name: file\n    dir: {split}\n    tp: 2\n    pp: 2\n    devices: [3, 0-2]\n")
        command = ("--model", f"range={split},tp=2,pp=2,devices=0-3", "--model", f"both={split},pp=3,devices=0,2-3")
        for args, config, names in ((command, None, ["range", "both"]), ((), path, ["file"])):
            with Daemon(*args, config=config, models_dir=None, device="host:4,mem=16M") as d:
                for name in names:
                    equal(d.ids(name, IDS[:1], 4), IDS[1:5], name)


@test
def help_and_version():
    for option in ("--help", "--version"):
        run = subprocess.run([os.path.join(BUILD, "computrond"), option], capture_output=True, text=True, timeout=20)
        equal(run.returncode, 0, option)
        check("computron" in run.stdout, run.stdout)


if __name__ == "__main__":
    sys.exit(main("bad_input"))
