#!/usr/bin/python3
"""What has to hold in the reference and the generator without anybody else's word.

BF16 rounding equals exact arithmetic; one checkpoint written in many ways (prefix, shards, order, header padding, form
of the rope keys) gives the same logits to the bit; the cached forward pass equals the whole one; unhandled keys are
refused.
"""

import fractions
import os
import sys
import tempfile

import numpy as np

import generate
import reference
import st

IDS = [1, 17, 33, 260, 5, 5, 499]
ALIKE = {  # ways to write the same model
    "llama": (
        ["--rope", "llama3"],
        ["--rope", "llama3", "--rope-form", "type", "--shards", "3"],
        ["--rope", "llama3", "--rope-form", "parameters", "--prefix", "bare", "--order", "file"],
    ),
    "mistral": (["--rope", "linear"], ["--rope", "linear", "--order", "shuffled", "--unpadded", "--shards", "2"]),
    "qwen2": (["--tied"], ["--tied", "--rope-form", "parameters", "--unpadded"]),
    "opt": ([], ["--prefix", "decoder", "--shards", "4", "--order", "shuffled"], ["--prefix", "bare"]),
    "opt350": ([], ["--prefix", "model", "--unpadded"]),
    "gpt2": ([], ["--prefix", "bare", "--order", "shuffled"]),
}
REFUSED = (
    ["--family", "mistral", "--set", "sliding_window=4096"],
    ["--family", "qwen2", "--set", "use_sliding_window=true"],
    ["--family", "llama", "--set", 'rope_scaling={"rope_type":"yarn","factor":2}'],
    ["--family", "llama", "--set", "hidden_act=gelu"],
    ["--family", "gpt2", "--set", 'quantization_config={"bits":4}'],
)


def as_fraction(bits):
    return fractions.Fraction(float(bits.view(np.float32)))


def check_bf16():
    bits = np.random.default_rng(1).integers(0, 0x7F000000, 2000).astype(np.uint32)
    bits[:4] = 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001  # two ties, one below, one above
    values = bits.view(np.float32)
    got = st.widen(st.Tensor("BF16", values.shape, st.to_bf16(values)))
    for value, result in zip(values, got):
        below = np.uint32(int(value.view(np.uint32)) & 0xFFFF0000)
        above = np.uint32(int(below) + 0x10000)
        exact = as_fraction(value)
        far = [(abs(as_fraction(b) - exact), (int(b) >> 16) & 1, b) for b in (below, above)]
        assert result.view(np.uint32) == min(far)[2], f"{value} became {result}"
    nan = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(st.widen(st.Tensor("BF16", (1,), st.to_bf16(nan)))[0])


def check_alike(folder):
    for family, ways in ALIKE.items():
        for dtype in generate.DTYPES:
            first = None
            for i, way in enumerate(ways):
                out = os.path.join(folder, f"{family}-{dtype}-{i}")
                generate.main([out, "--family", family, "--dtype", dtype, "--seed", "3", *way])
                model = reference.load(out)
                logits = model.logits(IDS)
                assert first is None or np.array_equal(first, logits), f"{family} {dtype} {way} differs"
                first = logits
            cache = [None] * model.layers
            pieces = [model.forward(part, cache) for part in (IDS[:3], IDS[3:4], IDS[4:])]
            assert np.abs(np.concatenate(pieces) - first).max() < 1e-5, f"{family} {dtype}: cache"


def check_refused(folder):
    for i, options in enumerate(REFUSED):
        out = os.path.join(folder, f"refused-{i}")
        generate.main([out, *options])
        try:
            reference.load(out)
        except ValueError:
            continue
        raise AssertionError(f"{options} was not refused")


def main():
    check_bf16()
    with tempfile.TemporaryDirectory() as folder:
        check_alike(folder)
        check_refused(folder)
    print("ok reference and generator agree with themselves")


if __name__ == "__main__":
    sys.exit(main())
