#!/usr/bin/python3
"""KV memory for one long answer, and twelve that want it at once: they are admitted by their prompts, sent back to the queue
when it runs out, and no client sees anything of it."""

import json
import sys

from harness import NAMES, Daemon, check, equal, golden, main, parallel, test

LLAMA = NAMES[0]
IDS = golden(LLAMA)["greedy_ids_from_bos"]
GRANULE = 64 << 10
KV = 320 << 10  # 16 blocks of 16 tokens; the longest below takes 13
STREAMS = 12


def bytes_without_kv():
    with Daemon(device="host,mem=64M") as d:
        d.load(LLAMA)
        m = d.metrics()
        used = sum(m.sum("computron_bytes", tier="device", state=state) for state in ("resident", "workspace"))
    return int(-(-used // GRANULE) * GRANULE)


def fields(i):
    """Of every third request: seeds and scores, stop strings, neither."""
    if i % 3 == 0:
        return {"temperature": 0.8, "seed": 1000 + i, "logprobs": 2}
    return {"temperature": 0, **({"stop": [" the", "zebra"][i % 2 :]} if i % 3 == 1 else {})}


def ask(d, i):
    """Text, ids, log-probabilities and reason, as a stream tells them."""
    text, ids, scores, reason = "", [], [], None
    events = d.stream(LLAMA, IDS[: 1 + i], 180, return_token_ids=True, ignore_eos=True, **fields(i))
    for event in events:
        choice = event["choices"][0]
        text += choice["text"]
        ids += choice.get("token_ids") or []
        scores += (choice.get("logprobs") or {}).get("token_logprobs") or []
        reason = choice["finish_reason"] or reason
    return text, ids, scores, reason


@test
def twelve_streams_in_the_memory_of_one():
    with Daemon(device=f"host,mem={bytes_without_kv() + KV}") as d:
        alone = [ask(d, i) for i in range(STREAMS)]
        equal(d.metrics().sum("computron_preemptions_total"), 0, "pre-emptions of requests that are alone")
        check(any(a[3] == "stop" for a in alone) and any(a[3] == "length" for a in alone), json.dumps([a[3] for a in alone]))
        crowded = parallel(*(lambda i=i: ask(d, i) for i in range(STREAMS)))
        m = d.metrics()
        print(f"# {m.sum('computron_preemptions_total'):.0f} pre-emptions,", end=" ")
        print(f"{m.sum('computron_recomputed_tokens_total'):.0f} tokens computed again")
        check(m.sum("computron_preemptions_total") > 0, "nobody was pre-empted")
        check(m.sum("computron_recomputed_tokens_total") > 0, "nothing was computed again")
        for i, (a, c) in enumerate(zip(alone, crowded)):
            for what, one, other in zip(("text", "ids", "reason"), (a[0], a[1], a[3]), (c[0], c[1], c[3])):
                equal(other, one, f"{what} of request {i}")
            equal(len(c[2]), len(a[2]), f"log-probabilities of request {i}")
            check(all(abs(x - y) < 1e-3 for x, y in zip(a[2], c[2])), f"log-probabilities of request {i}")


@test
def what_does_not_fit_alone_is_refused_when_it_comes():
    with Daemon(device=f"host,mem={bytes_without_kv() + (192 << 10)}") as d:  # 9 blocks: 144 tokens
        reply = d.completions(LLAMA, IDS[:10], max_tokens=180, temperature=0)
        check(400 <= reply.status < 500, reply.status, reply.body)
        check("12 KV blocks" in reply.error["message"], reply.error)
        equal(d.ids(LLAMA, IDS[:1], 144), IDS[1:145], "what just fits")


if __name__ == "__main__":
    sys.exit(main("preemption"))
