#!/usr/bin/python3
"""The OpenAI API: completions in all their forms, streaming, errors."""

import json
import os
import sys
import tempfile

import numpy as np
from harness import MODELS, NAMES, Daemon, check, equal, golden, main, scripted, test, vocabulary

import reference  # its folder is on the path once harness is

LLAMA = NAMES[0]
IDS = golden(LLAMA)["greedy_ids_from_bos"]
EOS = 2


def say(*tokens):
    """A daemon over one model, "said", that says these tokens after a prompt of one id."""
    vocab = vocabulary()
    folder = tempfile.mkdtemp(prefix="m-")
    scripted(os.path.join(folder, "said"), [vocab[t] if isinstance(t, str) else t for t in tokens])
    return Daemon(models_dir=folder)


def bytes_of(text):
    """The byte tokens of a text."""
    return [f"<0x{b:02X}>" for b in text.encode()]


# --- what comes back ----------------------------------------------------------------------------------------------------


@test
def models_are_listed():
    with Daemon() as d:
        reply = d.get("/v1/models")
        equal(reply.status, 200)
        equal(reply.json["object"], "list")
        equal(sorted(m["id"] for m in reply.json["data"]), sorted(NAMES))
        for m in reply.json["data"]:
            equal(m["object"], "model")
            check(isinstance(m["created"], int) and m["owned_by"], m)
        equal(d.get("/health").status, 200, "health")


@test
def form_of_a_completion():
    with Daemon() as d:
        reply = d.completions(LLAMA, IDS[:1], max_tokens=5, temperature=0)
        check(reply.headers["Content-Type"].startswith("application/json"), reply.headers["Content-Type"])
        body = reply.json
        equal(body["object"], "text_completion")
        equal(body["model"], LLAMA)
        check(body["id"] and isinstance(body["created"], int), body)
        equal(body["usage"], {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6})
        (choice,) = body["choices"]
        equal((choice["index"], choice["finish_reason"], choice.get("logprobs")), (0, "length", None))
        check("token_ids" not in choice, "token_ids were not asked for")


@test
def prompts_of_all_forms():
    text = "Once upon a time"
    with Daemon() as d:
        alone = d.ids(LLAMA, text, 8)
        many = d.completions(LLAMA, [text, text], max_tokens=8, temperature=0, return_token_ids=True).json["choices"]
        equal([c["index"] for c in many], [0, 1])
        equal([c["token_ids"] for c in many], [alone, alone])
        ids = d.completions(LLAMA, [IDS[:4], IDS[:9]], max_tokens=6, temperature=0, return_token_ids=True).json["choices"]
        equal([c["token_ids"] for c in ids], [IDS[4:10], IDS[9:15]])
        three = d.completions(LLAMA, IDS[:4], n=3, max_tokens=6, temperature=0, return_token_ids=True).json
        equal([c["token_ids"] for c in three["choices"]], [IDS[4:10]] * 3)
        equal(three["usage"]["completion_tokens"], 18)


@test
def end_of_sequence():
    with say("▁The", "!", EOS, "▁a", "▁a") as d:
        choice = d.complete("said", [1], 16)
        equal((choice["text"].strip(), choice["finish_reason"]), ("The!", "stop"))
        equal(choice["token_ids"], [vocabulary()[t] for t in ("▁The", "!")])


@test
def stop_strings():
    words = ["▁a", "▁time", ",", "▁there", "▁was", "▁a", "▁time", "."]
    with say(*words) as d:
        whole = d.complete("said", [1], 8)["text"]
        for stop in (",", " there", "me, th", ["zzz", "was"], "e,", ["there", "time"]):
            stops = [stop] if isinstance(stop, str) else stop
            cut = min(whole.index(s) for s in stops if s in whole)
            choice = d.complete("said", [1], 8, stop=stop)
            equal((choice["text"], choice["finish_reason"]), (whole[:cut], "stop"), f"stop {stop!r}")
            pieces = "".join(e["choices"][0]["text"] for e in d.stream("said", [1], 8, stop=stop) if e["choices"])
            equal(pieces, whole[:cut], f"stop {stop!r}, streamed")
        choice = d.complete("said", [1], 8, stop="never said")
        equal((choice["text"], choice["finish_reason"]), (whole, "length"))


@test
def echo_and_logprobs():
    model = reference.load(os.path.join(MODELS, LLAMA))
    with Daemon() as d:
        choice = d.complete(LLAMA, IDS[:4], 3, echo=True, logprobs=2)
        check(choice["text"].strip().startswith("Once upon a"), choice["text"])
        scores = choice["logprobs"]
        equal({len(scores[k]) for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}, {7})
        equal(scores["token_logprobs"][0], None)
        rows = model.logits(IDS[:7]).astype(np.float64)
        rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
        for i in range(1, 7):
            row = rows[i - 1]
            check(abs(scores["token_logprobs"][i] - row[IDS[i]]) < 1e-4, i, scores["token_logprobs"][i], row[IDS[i]])
            best = sorted(scores["top_logprobs"][i].values())[-2:]
            check(np.abs(best - np.sort(row)[-2:]).max() < 1e-4, i, scores["top_logprobs"][i])
        plain = d.complete(LLAMA, IDS[:4], 3, logprobs=0)["logprobs"]
        equal(len(plain["token_logprobs"]), 3)


@test
def seed_decides():
    with Daemon() as d:
        def text(seed, **more):
            return d.ids(LLAMA, IDS[:1], 24, temperature=1.0, seed=seed, **more)

        first = text(7)
        equal(text(7), first, "the same seed")
        check(any(text(seed) != first for seed in range(8, 12)), "four other seeds say the same")
        equal(d.ids(LLAMA, IDS[:1], 24, temperature=1.0, seed=7, top_k=1), IDS[1:25], "top_k 1 is greedy")
        equal(d.ids(LLAMA, IDS[:1], 24, temperature=1.0, seed=7, top_p=1e-6), IDS[1:25], "a small top_p is greedy")


# --- streams ------------------------------------------------------------------------------------------------------------


@test
def stream_equals_the_whole():
    # A token takes long enough that events are not merged: 1 ms a layer.
    with Daemon(device="host,mem=64M,layer_ms=1") as d:
        for name in NAMES:
            whole = d.complete(name, "Once upon a time", 40)
            events = list(d.stream(name, "Once upon a time", 40, return_token_ids=True))
            choices = [e["choices"][0] for e in events if e["choices"]]
            check(len(choices) > 20, f"{len(choices)} events for 40 tokens")
            equal("".join(c["text"] for c in choices), whole["text"], name)
            equal(sum((c.get("token_ids") or [] for c in choices), []), whole["token_ids"], name)
            equal([c["finish_reason"] for c in choices if c["finish_reason"]], [whole["finish_reason"]])
            equal({e["object"] for e in events}, {"text_completion"})
            equal(len({e["id"] for e in events}), 1)


@test
def stream_with_usage():
    with Daemon() as d:
        *events, last = d.stream(LLAMA, IDS[:3], 5, stream_options={"include_usage": True})
        equal(last["choices"], [])
        equal(last["usage"], {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8})
        check(all(e.get("usage") is None for e in events), "usage before the end")
        check(all(not e.get("usage") for e in d.stream(LLAMA, IDS[:3], 5)), "usage that was not asked for")


@test
def characters_are_not_split():
    text = "aé中🙂."
    with say(*bytes_of(text), EOS) as d:
        equal(d.complete("said", [1], 32)["text"].strip(), text)
        pieces = [e["choices"][0]["text"] for e in d.stream("said", [1], 32) if e["choices"]]
        equal("".join(pieces).strip(), text)
        check(all("\ufffd" not in p for p in pieces), pieces)
    with say("▁a", *bytes_of("🙂")[:3], EOS) as d:  # a character that never ends
        choice = d.complete("said", [1], 32)
        check(choice["text"].strip().startswith("a") and "\ufffd" in choice["text"], choice["text"])


@test
def many_choices_in_one_stream():
    with Daemon() as d:
        texts = {0: [], 1: []}
        for event in d.stream(LLAMA, [IDS[:4], IDS[:9]], 6, return_token_ids=True):
            for choice in event["choices"]:
                texts[choice["index"]] += choice.get("token_ids") or []
        equal(texts, {0: IDS[4:10], 1: IDS[9:15]})


# --- errors -------------------------------------------------------------------------------------------------------------


@test
def unknown_model_is_404():
    with Daemon() as d:
        reply = d.completions("no-such-model", "x")
        equal(reply.status, 404)
        check("no-such-model" in reply.error["message"], reply.error)
        equal(d.get("/v1/nothing").status, 404, "unknown path")


@test
def bad_fields_are_400_and_named():
    cases = {
        "prompt": ({"prompt": []}, {"prompt": {"a": 1}}, {"prompt": [1, "a"]}, {"prompt": [512]}, {"prompt": [-1]}, {"prompt": [1] * 600}),
        "max_tokens": ({"max_tokens": -1}, {"max_tokens": "many"}, {"max_tokens": 1.5}),
        "temperature": ({"temperature": -0.1}, {"temperature": "hot"}),
        "top_p": ({"top_p": 1.5}, {"top_p": -1}),
        "top_k": ({"top_k": -5}, {"top_k": 1.5}),
        "n": ({"n": 0}, {"n": "two"}),
        "stop": ({"stop": 5}, {"stop": [1]}),
        "seed": ({"seed": "x"},),
        "stream": ({"stream": "yes"},),
        "echo": ({"echo": 1},),
        "logprobs": ({"logprobs": -1}, {"logprobs": "all"}),
        "model": ({"model": 5},),
    }
    with Daemon() as d:
        for field, bodies in cases.items():
            for body in bodies:
                reply = d.post("/v1/completions", {"model": LLAMA, "prompt": "x", "max_tokens": 1, **body})
                equal(reply.status, 400, f"{body}: {reply.body!r}; status")
                equal(reply.error["param"], field, f"{body}: param of {reply.error}")
                check(field in reply.error["message"], reply.error)
                check(reply.error["message"].count(f"{field}:") <= 1, "named twice:", reply.error)
        for missing in ("model", "prompt"):
            body = {"model": LLAMA, "prompt": "x"}
            del body[missing]
            reply = d.post("/v1/completions", body)
            equal((reply.status, reply.error["param"]), (400, missing))
        for text in ("", "{", "[]", '{"model": "a", "model": "b"}', '{"prompt": "\\ud800"}', b"\xff\xfe"):
            reply = d.request("POST", "/v1/completions", text)
            equal(reply.status, 400, f"{text!r}")
            check(reply.error["message"], text)
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "after all that")


@test
def long_body_is_413():
    with Daemon() as d:
        body = json.dumps({"model": LLAMA, "prompt": "x" * (32 << 20)})
        try:
            reply = d.request("POST", "/v1/completions", body)
        except (BrokenPipeError, ConnectionResetError):
            # The daemon need not read what it refuses; what it said may be lost with the rest.
            reply = None
        if reply:
            equal(reply.status, 413)
            check(reply.error["message"], reply.body)
        c = d.connection()
        c.putrequest("POST", "/v1/completions")
        c.putheader("Content-Type", "application/json")
        c.putheader("Content-Length", str(1 << 40))
        c.endheaders()
        c.send(b"{")
        equal(c.getresponse().status, 413, "a length of 1 TiB")
        c.close()
        equal(d.ids(LLAMA, IDS[:1], 4), IDS[1:5], "after that")


@test
def long_prompt_is_400():
    with Daemon() as d:
        reply = d.completions(LLAMA, [1] * 513, max_tokens=1)
        equal(reply.status, 400)
        check("512" in reply.error["message"], reply.error)


if __name__ == "__main__":
    sys.exit(main("api"))
