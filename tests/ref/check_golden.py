#!/usr/bin/python3
"""The reference against golden.json of the models in tests/models: greedy ids, and logits within 1e-4."""

import json
import os
import sys

import reference

MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "models")


def main():
    bad = 0
    for name in sorted(os.listdir(MODELS)):
        folder = os.path.join(MODELS, name)
        if not os.path.exists(os.path.join(folder, "golden.json")):
            continue
        with open(os.path.join(folder, "golden.json"), encoding="utf-8") as f:
            golden = json.load(f)
        model, ids = reference.load(folder), golden["greedy_ids_from_bos"]
        new, gaps = model.greedy(ids[:1], len(ids) - 1)
        row = model.logits(ids[:16])[-1]
        far = max(abs(float(a) - b) for a, b in zip(row, golden["logits_after_first_16_ids_first8"]))
        ok = ids[:1] + new == ids and far <= 1e-4 and int(row.argmax()) == golden["argmax"]
        bad += not ok
        print(f"{'ok' if ok else 'FAIL'} {name}: {len(new)} ids, smallest gap {min(gaps):.2g}, logits within {far:.2g}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
