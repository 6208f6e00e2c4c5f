#!/usr/bin/env python3
"""The reference against transformers (float32, CPU): the models in tests/models, and generated checkpoints of each
family and storage type. All logits within 1e-4 and equal greedy ids (up to a first top-2 gap below 1e-3).

Run by `make check-ref`, which makes the virtual environment that it needs. An argument is the seed (default 1).
"""

import os
import random
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

# ruff: noqa: E402
import torch
import transformers

import generate
import reference

TOLERANCE, GAP = 1e-4, 1e-3
N_IDS, N_NEW = 100, 40  # past the 64 positions from which the generator's Llama-3 scaling stretches
MANY_EOS = ",".join(map(str, range(0, 512, 8)))  # so many that one comes soon
CASES = {
    "llama": ([], ["--tied"], ["--bias"], ["--rope", "linear", "--kv-heads", "1"],
              ["--rope", "llama3", "--kv-heads", "4"],
              ["--rope", "llama3", "--rope-form", "type"], ["--rope", "llama3", "--rope-form", "parameters"],
              ["--rope-form", "parameters"], ["--set", "head_dim=24"], ["--set", "rope_theta=500000.0"],
              ["--eos", MANY_EOS], ["--eos", MANY_EOS, "--generation-eos", "511"], ["--generation-eos", MANY_EOS],
              ["--shards", "3", "--order", "shuffled", "--unpadded"],
              ["--layers", "8", "--hidden", "256", "--heads", "8"]),
    "mistral": ([], ["--rope", "linear"], ["--set", "head_dim=32"]),
    "qwen2": ([], ["--tied"], ["--kv-heads", "1"], ["--rope-form", "parameters"]),
    "opt": ([], ["--prefix", "decoder"], ["--untied"], ["--set", "enable_bias=false"],
            ["--set", "layer_norm_elementwise_affine=false"], ["--set", "_remove_final_layer_norm=true"],
            ["--set", "activation_function=gelu"], ["--set", "do_layer_norm_before=false"]),
    "opt350": ([], ["--prefix", "model"], ["--untied"]),
    "gpt2": ([], ["--prefix", "bare"], ["--untied"], ["--ffn", "100"], ["--set", "activation_function=gelu"],
             ["--set", "activation_function=relu"], ["--set", "scale_attn_weights=false"],
             ["--set", "scale_attn_by_inverse_layer_idx=true"], ["--set", "layer_norm_epsilon=0.01"]),
}


def compare(folder, rng):
    """-> (largest difference of logits, whether the greedy ids agree, how many were compared)"""
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    left = set(info["missing_keys"]) - {"lm_head.weight"} | set(info["unexpected_keys"]) | set(info["mismatched_keys"])
    if left:
        raise ValueError(f"{folder}: transformers did not load {sorted(left)}")
    ours = reference.load(folder)
    ids = [rng.randrange(ours.vocab) for _ in range(N_IDS)]
    new, gaps = ours.greedy(ids[:4], N_NEW)
    with torch.inference_mode():
        logits = theirs(torch.tensor([ids])).logits[0].numpy()
        their_new = theirs.generate(torch.tensor([ids[:4]]), attention_mask=torch.ones(1, 4, dtype=torch.long),
                                    do_sample=False, max_new_tokens=N_NEW)[0, 4:].tolist()
    sure = next((i for i, gap in enumerate(gaps) if gap < GAP), len(gaps))
    same = new[:sure] == their_new[:sure] and (sure < len(gaps) or len(new) == len(their_new))
    return abs(ours.logits(ids) - logits).max(), same, sure


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    rng, passed, failed = random.Random(seed), 0, 0
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, seed {seed}")

    def check(name, folder):
        nonlocal passed, failed
        far, same, sure = compare(folder, rng)
        ok = far <= TOLERANCE and same
        passed, failed = passed + ok, failed + (not ok)
        greedy = f"{sure} greedy ids {'equal' if same else 'DIFFER'}"
        print(f"{'ok' if ok else 'FAIL'} {name}: logits within {far:.1e}, {greedy}")

    models = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")
    for name in sorted(os.listdir(models)):
        check(name, os.path.join(models, name))
    for family, cases in CASES.items():
        for options in cases:
            for dtype in generate.DTYPES:
                with tempfile.TemporaryDirectory() as folder:
                    generate.main([folder, "--family", family, "--dtype", dtype, "--seed", str(seed), *options])
                    check(" ".join([family, dtype, *options]).replace(MANY_EOS, "0,8,..."), folder)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
