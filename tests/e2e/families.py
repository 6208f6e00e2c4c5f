#!/usr/bin/python3
"""Generated checkpoints of each family and storage type against the reference in tests/ref: greedy ids, and the
log-probability of each token of a prompt."""

import os
import random
import sys
import tempfile

import numpy as np
from harness import Daemon, check, commit_seed, equal, generate, main, same_as_reference, test

import reference  # its folder is on the path once harness is

DTYPES = ("f32", "f16", "bf16")
KINDS = {
    "llama": ["--family", "llama"],
    "llama-rope3": ["--family", "llama", "--rope", "llama3", "--tied"],
    "llama-linear": ["--family", "llama", "--rope", "linear", "--rope-form", "type", "--bias"],
    "llama-mha": ["--family", "llama", "--kv-heads", "4", "--prefix", "bare", "--unpadded"],
    "llama-headdim": ["--family", "llama", "--set", "head_dim=24", "--shards", "2"],
    "mistral": ["--family", "mistral", "--shards", "3", "--order", "shuffled"],
    "qwen2": ["--family", "qwen2", "--rope-form", "parameters"],
    "qwen2-tied": ["--family", "qwen2", "--tied", "--unpadded", "--shards", "2"],
    "opt": ["--family", "opt"],
    "opt-decoder": ["--family", "opt", "--prefix", "decoder", "--shards", "2"],
    "opt-bare": ["--family", "opt", "--prefix", "bare", "--order", "shuffled"],
    "opt350": ["--family", "opt350"],
    "gpt2": ["--family", "gpt2"],
    "gpt2-bare": ["--family", "gpt2", "--prefix", "bare", "--unpadded", "--order", "file"],
}
NEW = 24


def log_softmax(x):
    x = x.astype(np.float64)
    return x - x.max(-1, keepdims=True) - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True))


def scores_agree(d, name, model, ids):
    """echo with logprobs scores each token of the prompt after the first."""
    choice = d.complete(name, ids, 1, echo=True, logprobs=1)
    found = choice["logprobs"]["token_logprobs"][: len(ids)]
    equal(found[0], None, f"{name}: score of the first token")
    want = log_softmax(model.logits(ids))[np.arange(len(ids) - 1), ids[1:]]
    far = np.abs(np.array(found[1:]) - want).max()
    check(far < 1e-3, f"{name}: log-probabilities differ by {far:.3g}")


@test
def all_families_and_storage_types():
    seed = commit_seed()
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{kind}-{dtype}" for kind in KINDS for dtype in DTYPES]
        for i, name in enumerate(names):
            kind, dtype = name.rsplit("-", 1)
            generate(os.path.join(folder, name), *KINDS[kind], "--dtype", dtype, "--seed", (seed + i) % 2**32)
        models = {name: reference.load(os.path.join(folder, name)) for name in names}
        # Two rounds on a small device: in the second, all have been dropped and come back.
        with Daemon(models_dir=folder, device="host,mem=64M", pool="plain,size=128M") as d:
            for _ in range(2):
                rng.shuffle(names)
                for name in names:
                    model = models[name]
                    for length in (1, rng.randrange(2, 60)):
                        ids = [rng.randrange(3, model.vocab) for _ in range(length)]
                        want, gaps = model.greedy(ids, NEW)
                        choice = d.complete(name, ids, NEW)
                        got = choice["token_ids"]
                        if want and want[-1] in model.eos and got + want[-1:] == want:
                            equal(choice["finish_reason"], "stop", f"{name}: finish_reason")
                            got = want  # the id that ended the sequence is not given
                        same_as_reference(got, want, gaps, f"{name} after {ids}")
                    scores_agree(d, name, model, [rng.randrange(3, model.vocab) for _ in range(40)])


if __name__ == "__main__":
    sys.exit(main("families"))
