#!/usr/bin/python3
"""Writes the seeds of the fuzz targets: corpus.py FOLDER makes FOLDER/TARGET/NAME.

A seed is an input that the parser takes, or one that it refuses for one reason: the lists below name as many ways as the
parsers know. What a search found is kept in found/TARGET/ and copied beside them.
"""

import json
import os
import re
import shutil
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(os.path.dirname(HERE), "models")


def with_key(base, **keys):
    """A copy with these keys; None removes one, ... is null."""
    out = dict(base)
    for key, value in keys.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = None if value is ... else value
    return out


def dump(value):
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=lambda _: None)).encode()


# ---- safetensors ------------------------------------------------------------------------


def safetensors(header, data=0, length=None):
    text = dump(header)
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data)


def tensor(begin, end, dtype="F32", shape=None):
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def headers():
    one = tensor(0, 8)
    yield safetensors({"a": one, "b": tensor(8, 24, "BF16", [2, 4])}, 24)
    yield safetensors({"b": tensor(8, 24), "a": one, "e": tensor(8, 8, shape=[0, 9]), "s": tensor(24, 28, shape=[])}, 28)
    yield safetensors({"__metadata__": {"format": "pt", "x": "\\ \" \u20ac"}, "a": one}, 8)
    yield safetensors(" \n\t{ \"a\" :\r" + json.dumps(one) + " } ", 8)
    yield safetensors({"a%d" % i: tensor(4 * i, 4 * i + 4) for i in range(70)}, 280)
    yield safetensors({"a": tensor(0, 1, "F4", [2])}, 1)
    yield safetensors({}, 0)
    yield safetensors({"__metadata__": None}, 0)
    # The first eight bytes.
    for raw in (b"", b"\2\0\0\0", struct.pack("<Q", 100000001), struct.pack("<Q", 0), struct.pack("<Q", 3) + b"{}"):
        yield raw
    # The members.
    for text in (
        "[]", "{", "{}x", '{"a"}', '{"a":', '{"a":1', '{"a":1,}', '{"a":1 "b":2}', "{a:1}", '{"a\\', '{"\\u00"}', '{"a":"\\',
        '{"a":[[]', '{"a":["]"}', '{"a":}', '{"a":{"x":"y\\"z"}}', '{"a":1}', '{"a":[1,2}}', '{"a":nul}', '{"a\x00":1}',
        '{"__metadata__":1}', '{"__metadata__":{"a":1}}', '{"__metadata__":{"a"}}', '{"__metadata__":{},"__metadata__":{}}',
        '{"a":{"dtype":"F32","dtype":"F32"}}', '{"a":{"' + "k" * 90 + '\\"":1,"' + "k" * 90 + '\\"":1}}',
        '{"\\u000a' + "n" * 300 + '":3}', '{"__metadata__":{"' + "\\n" * 90 + '":1}}',
    ):
        yield safetensors(text, 0)
    yield safetensors('{"a":%s,"a":%s}' % (json.dumps(one), json.dumps(tensor(8, 16))), 16)
    # One tensor.
    for wrong in (
        with_key(one, dtype=None), with_key(one, dtype=1), with_key(one, dtype="F33"), with_key(one, shape=None),
        with_key(one, shape=[-1]), with_key(one, shape=[1.5]), with_key(one, shape=["2"]), with_key(one, shape=[3]),
        with_key(one, shape=[2**62, 16]), with_key(one, shape=[2**62, 4, 0]), with_key(one, dtype="F4", shape=[1]),
        with_key(one, dtype="F4", shape=[2**62, 2]), with_key(one, data_offsets=[0]), with_key(one, data_offsets=[8, 0]),
        with_key(one, data_offsets=[0, "8"]), with_key(one, data_offsets=[-8, 0]), with_key(one, data_offsets=8),
        with_key(one, extra=1), 7, "[" * 3000,
    ):
        yield safetensors({"a": wrong} if not isinstance(wrong, str) else '{"a":' + wrong, 8)
    # The tiling.
    for second in (tensor(4, 12), tensor(12, 20), tensor(0, 8)):
        yield safetensors({"a": one, "b": second}, 16)
    for data in (0, 7, 9):
        yield safetensors({"a": one}, data)
    yield safetensors({"a": {"pad": "x" * 70000}}, 0)


# ---- config.json and generation_config.json ---------------------------------------------

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4, "intermediate_size": 6,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 8,
}
OPT = {
    "model_type": "opt", "hidden_size": 4, "ffn_dim": 6, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8,
    "max_position_embeddings": 8, "enable_bias": False, "layer_norm_elementwise_affine": False,
}
GPT2 = {"model_type": "gpt2", "n_embd": 4, "n_layer": 1, "n_head": 2, "n_inner": 6, "vocab_size": 8, "n_positions": 8}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def configs():
    for base in (LLAMA, OPT, GPT2, with_key(LLAMA, model_type="mistral", architectures=None, num_key_value_heads=2),
                 with_key(LLAMA, model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_key_value_heads=2)):
        yield dump(base)
    for name in sorted(os.listdir(MODELS)):
        with open(os.path.join(MODELS, name, "config.json"), "rb") as f:
            yield f.read()
    for keys in (
        {"model_type": None}, {"model_type": "bert"}, {"model_type": None, "architectures": None}, {"architectures": ["A", "B"]},
        {"architectures": ["OPTForCausalLM"]}, {"architectures": [1]}, {"hidden_size": None}, {"hidden_size": 0},
        {"hidden_size": "4"}, {"hidden_size": 2**28 + 1}, {"hidden_size": 5}, {"num_key_value_heads": 3},
        {"num_key_value_heads": 1}, {"num_attention_heads": 4, "head_dim": 1}, {"head_dim": 3}, {"head_dim": 2},
        {"num_hidden_layers": 2}, {"num_hidden_layers": 2**28}, {"vocab_size": 9}, {"max_position_embeddings": ...},
        {"hidden_act": "swish"}, {"hidden_act": "mish"}, {"hidden_act": 3}, {"rms_norm_eps": 0}, {"rms_norm_eps": 1e300},
        {"rms_norm_eps": 1e-300}, {"rms_norm_eps": "x"}, {"tie_word_embeddings": True}, {"tie_word_embeddings": 1},
        {"attention_bias": True}, {"mlp_bias": True}, {"rope_theta": 1e300}, {"rope_theta": 500000.0}, {"rope_theta": "x"},
        {"rope_scaling": LLAMA3}, {"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": 1e300}}, {"rope_scaling": {"type": "linear", "factor": 0}},
        {"rope_scaling": {"type": "yarn"}}, {"rope_scaling": {"type": 3}}, {"rope_scaling": 7}, {"rope_scaling": ...},
        {"rope_scaling": with_key(LLAMA3, type="linear")}, {"rope_scaling": with_key(LLAMA3, high_freq_factor=1.0)},
        {"rope_scaling": with_key(LLAMA3, factor="x")}, {"rope_scaling": with_key(LLAMA3, surprise=1)},
        {"rope_scaling": with_key(LLAMA3, surprise=..., factor=...)},
        {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3},
        {"rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 5.0}},
        {"rope_parameters": {"rope_theta": 5.0}}, {"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0},
        {"rope_parameters": {"partial_rotary_factor": 0.5}}, {"sliding_window": 4}, {"sliding_window": ...},
        {"sliding_window": 4096}, {"sliding_window": "x"}, {"use_sliding_window": 3}, {"use_sliding_window": False},
        {"bos_token_id": 1, "eos_token_id": 2}, {"bos_token_id": -1}, {"bos_token_id": "x"}, {"eos_token_id": [1, 2, 3]},
        {"eos_token_id": list(range(17))}, {"eos_token_id": ["x"]}, {"eos_token_id": 2**32}, {"eos_token_id": []},
        {"layer_types": ["full_attention"]}, {"layer_types": ["sliding_attention"]}, {"layer_types": 1}, {"layer_types": ...},
        {"clip_qkv": 1.0}, {"clip_qkv": ...}, {"rotary_pct": 1.0}, {"rotary_pct": True}, {"num_experts": 0}, {"alibi": False},
        {"pruned_heads": {}}, {"pruned_heads": {"1": [2]}}, {"quantization_config": []}, {"sliding_window_pattern": [1]},
        {"surprise\n": "\x01"}, {"torch_dtype": "float16", "use_cache": True},
    ):
        yield dump(with_key(LLAMA, **keys))
    yield dump(with_key(LLAMA, model_type="mistral", num_key_value_heads=2, max_position_embeddings=8192))
    for keys in ({"word_embed_proj_dim": 2}, {"do_layer_norm_before": False}, {"_remove_final_layer_norm": True},
                 {"activation_function": "gelu"}, {"enable_bias": 1}, {"num_attention_heads": 3}):
        yield dump(with_key(OPT, **keys))
    for keys in ({"n_inner": ...}, {"scale_attn_weights": False}, {"layer_norm_epsilon": 1e-5}, {"n_positions": 9},
                 {"scale_attn_by_inverse_layer_idx": True}):
        yield dump(with_key(GPT2, **keys))
    for generation in ({"eos_token_id": [5, 6]}, {"eos_token_id": ...}, {"eos_token_id": "x"}, [], {}):
        yield dump(LLAMA) + b"\0" + dump(generation)
    for text in ("", "{", "[]", "7", '{"a":1,"a":2}', '{"a' + "\\\\" * 80 + '":1,"a' + "\\\\" * 80 + '":2}', '{"a":\x01}', '"\xff"',
                 '{"":1,"":2}', '{"model_type":"' + "x" * 300 + '"}', '{"model_type":"\\u0007' + "\\n" * 80 + '"}'):
        yield text.encode("latin-1")


# ---- the manifest -----------------------------------------------------------------------


def manifests():
    """$B, $H, $N and $C: see fuzz_checkpoint_manifest.c."""
    digest = "0123456789abcdef" * 2
    hidden, vocab, ffn = 4, 8, 6
    names = [n for n in container_names() if n == "lm_head.weight" or re.match(r"model\.(embed|layers|norm)", n)]
    bytes_ = 4 * (2 * vocab * hidden + 4 * hidden * hidden + 3 * hidden * ffn + 3 * hidden)
    file = '{"bytes": $B, "header": "$H"}'
    text = '{"bytes": $N, "digest": "$C"}'
    part = {"bytes": bytes_, "digest": digest, "tensors": {name: digest for name in names}}

    def case(files=None, texts=None, parts=None, top='"format": 1, "plan": 1'):
        files = {"model.safetensors": file} if files is None else files
        texts = {"config.json": text} if texts is None else texts
        lists = ["{%s}" % ", ".join(f"{json.dumps(k)}: {v}" for k, v in d.items()) for d in (files, texts)]
        return f'{{{top}, "files": {lists[0]}, "texts": {lists[1]}, "parts": {json.dumps([part] if parts is None else parts)}}}'.encode()

    yield case()
    yield case(files={"model.safetensors": file[:-1] + ', "mtime_ns": 1}'})
    for top in ('"format": 2', '"format": 1, "plan": 0', '"plan": 1', '"format": "1"', '"format": 1, "plan": 1, "more": 0'):
        yield case(top=top)
    for raw in (b"", b"{", b"[]", b'{"format": 1, "plan": 1, "files": 1, "texts": {}, "parts": []}'):
        yield raw
    for files in ({}, {"model.safetensors": file, "other.safetensors": file}, {"model.safetensors": "1"},
                  {"model.safetensors": '{"bytes": -1, "header": "$H"}'}, {"model.safetensors": '{"bytes": 1, "header": "$H"}'},
                  {"model.safetensors": '{"bytes": $B, "header": "$C"}'}, {"model.safetensors": '{"bytes": $B, "header": "$"}'}):
        yield case(files=files)
    for texts in ({}, {"config.json": text, "tokenizer.json": text}, {"config.json": text, "x": text}, {"config.json": "{}"}):
        yield case(texts=texts)
    for changed in (with_key(part, bytes=-1), with_key(part, bytes=1), with_key(part, digest="0"), with_key(part, tensors=1),
                    with_key(part, tensors={}), with_key(part, tensors={"x": digest}), with_key(part, tensors={names[0]: 1}),
                    with_key(part, tensors={names[0]: "0"}), with_key(part, more=1), with_key(part, digest=None), 1,
                    with_key(part, tensors={**part["tensors"], "transformer.ln_f.bias": digest}),
                    with_key(part, tensors={name: digest for name in [*names[1:], "transformer.ln_f.bias"]})):
        yield case(parts=[changed])
    yield case(parts=[])
    yield case(parts=[part, part])
    yield case(parts=[part] * 99)


# ---- the index --------------------------------------------------------------------------


def container_names():
    with open(os.path.join(HERE, "checkpoint.c"), encoding="utf-8") as f:
        return [line.split('"')[1] for line in f if line.startswith('\t{"')]


def halves():
    """Which of the two containers holds which tensor: checkpoint.c takes turns."""
    return {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(container_names())}


def indexes():
    both = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

    def case(index, *files):
        text = b"" if index is None else dump(index)
        return b"\0".join([text, *(name.encode() for name in files)])

    good = {"metadata": {"total_size": 1}, "weight_map": halves()}
    names = sorted(good["weight_map"])
    yield case(good, *both)
    yield case(good, both[0])
    yield case(good, both[0], ">" + both[1])
    yield case(good)
    yield case(good, both[1], both[0])
    yield case({"weight_map": {name: both[0] for name in names}}, *both)
    yield case({"weight_map": {name: file for name, file in good["weight_map"].items() if "opt" not in name}}, *both)
    yield case({"weight_map": {**good["weight_map"], "extra": both[0]}}, *both)
    yield case(None, *both)
    yield case(None, both[0])
    yield case(None, "model.safetensors")
    yield case(None, "x", "y", "model.safetensors")
    yield case(None, ">model.safetensors")
    yield case(None)
    yield case(None, *both, "model-00001-of-00003.safetensors")
    yield case(None, "model-1-of-1.safetensors", "model-00001-of-00001.safetensor", "model-00000-of-00001.safetensors")
    yield case(None, "model-00001-of-99999.safetensors")
    yield case(None, "x", "y", "model-00001-of-00001.safetensors")
    for wrong in ("", ".", "..", "/", "a/b", "../x.safetensors", "x.bin", "config.json", 7, None, [], "y" * 300 + ".safetensors"):
        yield case({"weight_map": {"t": wrong}}, *both)
    for wrong in ({}, [], {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"\n": "\n"}}, "{", '{"weight_map":{"a":"b","a":"b"}}'):
        yield case(wrong, *both)
    yield case({"weight_map": {"t": "x.safetensors"}}, ">x.safetensors")
    yield case({"weight_map": {"t%d" % i: "x%d.safetensors" % i for i in range(40)}})


# ---- tokenizer.json ---------------------------------------------------------------------

BPE = {
    "type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "\u0120": 5, "<unk>": 6, "<0x0A>": 7, "aab": 8},
    "merges": ["a b", "a ab"],
}
BASE = {"version": "1.0", "model": BPE}
ADDED = {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
TEMPLATE = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}
META = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
SPLIT = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}
REGEXES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\s|\p{P}", r"[a-z&&[^b]]", r"\h", r"\w+", r"\bx", "^a", "a$", "(", ")", "[", "[]", "[a", "[z-a]", "[a-\\s]", "a{2,1}", "a{,2}",
    "a{2", "a{x}", "a**", "a*+", "a*?", "a??", "*a", "(?:a|b)", "(?=a)b", "(?!a)", "(?<=a)b", "(?<!a)b", "(?>a)", "(?<n>a)", "(?i)a",
    "(?i:ss)", "(?i:\u00e9)", "(?#c)", "\\x41", "\\x{1F98A}", "\\x{110000}", "\\xZ", "\\u0041", "\\u00", "\\p{L}", "\\p{Lx}", "\\p{^L}",
    "\\P{L}", "\\pL", "\\p", "\\1", "\\k<n>", "\\", "\\n\\r\\t\\f\\v\\a\\e", "\\.", "\\q", "\u20ac", "[\u4e00-\u9fff]", "[\\x41-\\x5A]", "[^a]",
    "[a\\]b]", "[[:alpha:]]", "[\\p{L}\\d\\s]", "[^\\S]", "\\D\\S", ".", "a{1,3}", "a{3}?", "a{200000}", "((((((((a))))))))",
    "(" * 70 + "a" + ")" * 70, "(a*)*b", "x*", "|", "a|", "\U0001FAE8", "(?i:[a-\u00e9])", "(?i:f|s)t", "(?i:k)",
)


def tokenizers():
    for name in sorted(os.listdir(MODELS)):
        with open(os.path.join(MODELS, name, "tokenizer.json"), "rb") as f:
            yield f.read()

    def case(config=None, text=None, **keys):
        out = dump(with_key(BASE, **keys))
        if config is not None or text is not None:
            out += b"\0" + dump({} if config is None else config)
        return out + (b"" if text is None else b"\0" + text)

    def model(**keys):
        return case(model=with_key(BPE, **keys))

    yield case()
    for keys in (
        {"type": None}, {"type": "Unigram"}, {"type": 1}, {"vocab": None}, {"vocab": []}, {"vocab": {}}, {"vocab": {"a": -1}},
        {"vocab": {"a": "0"}}, {"vocab": {"a": 0, "b": 0}}, {"vocab": {"a": 1 << 24}}, {"vocab": {"a": 0, "b": 70000}, "merges": []},
        {"merges": None}, {"merges": [["a", "b"], ["a", "ab"]]}, {"merges": ["#version: 0.2", "a b", "a b"]}, {"merges": ["a q"]},
        {"merges": ["q a"]}, {"merges": ["b a"]}, {"merges": ["a"]}, {"merges": ["a a a"]}, {"merges": [7]}, {"merges": [["a"]]},
        {"unk_token": "<unk>", "fuse_unk": True}, {"unk_token": "<unk>", "fuse_unk": False}, {"unk_token": "q"}, {"unk_token": 1},
        {"unk_token": ...}, {"byte_fallback": True}, {"byte_fallback": True, "unk_token": "<unk>"}, {"ignore_merges": True},
        {"dropout": 0.5}, {"dropout": 0}, {"dropout": ...}, {"continuing_subword_prefix": "#"}, {"end_of_word_suffix": ""},
        {"end_of_word_suffix": 1}, {"surprise\n": 1}, {"fuse_unk": 1}, {"byte_fallback": 2}, {"ignore_merges": "x"},
        {"vocab": {"a": 0, "\n": -1}}, {"vocab": {"a\n": 0, "b": 0}}, {"unk_token": "\n" * 80}, {"merges": ["\n \n"]},
        {"type": "\n"}, {"vocab": {"a" * 63 + "\u20ac": -1}},
    ):
        yield model(**keys)
    for keys in (
        {"model": 7}, {"model": None}, {"version": "2.0"}, {"version": 1}, {"version": None}, {"truncation": {}}, {"padding": ...},
        {"surprise": 1},
    ):
        yield case(**keys)
    for normalizer in (
        ..., 7, {}, {"type": "NFC"}, {"type": "NFC", "x": 1}, {"type": "Lowercase"}, {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Prepend", "prepend": 1}, {"type": "Prepend", "prepend": ""}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "Replace", "pattern": {"String": ""}, "content": ""}, {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "bb"},
        {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"}, {"type": "Replace", "pattern": "x", "content": ""},
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""}, {"type": "Replace", "pattern": {"Regex": ".|\\n"}, "content": ""},
        {"type": "Replace", "pattern": {"String": "a", "Regex": "b"}, "content": ""},
        {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Sequence", "normalizers": []}]},
        {"type": "Sequence"}, {"type": "Sequence", "normalizers": [None]}, {"type": "Sequence", "normalizers": [], "x": 1}, {"type": "\n"},
    ):
        yield case(normalizer=normalizer)
    deep = {"type": "NFC"}
    for _ in range(10):
        deep = {"type": "Sequence", "normalizers": [deep]}
    yield case(normalizer=deep)
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    for pre in (
        ..., byte_level, with_key(byte_level, use_regex=False), with_key(byte_level, add_prefix_space=1), with_key(byte_level, x=1), META,
        with_key(META, prepend_scheme="always"), with_key(META, prepend_scheme="never", split=False), with_key(META, prepend_scheme="odd"),
        with_key(META, prepend_scheme=1), with_key(META, replacement="ab"), with_key(META, replacement=None), with_key(META, replacement=""),
        with_key(META, add_prefix_space=False), with_key(META, add_prefix_space=False, prepend_scheme="never"), with_key(META, x=1),
        {"type": "Digits", "individual_digits": True}, {"type": "Digits"}, {"type": "Digits", "x": 1}, {"type": "Digits", "individual_digits": 1},
        with_key(SPLIT, behavior="Removed"), with_key(SPLIT, behavior="MergedWithPrevious"), with_key(SPLIT, behavior="MergedWithNext"),
        with_key(SPLIT, behavior="Contiguous", invert=True), with_key(SPLIT, behavior="Odd"), with_key(SPLIT, behavior=None),
        with_key(SPLIT, invert=1), with_key(SPLIT, x=1), with_key(SPLIT, pattern=None), {"type": "Whitespace"}, {"type": "\x7f"},
        {"type": "Sequence", "pretokenizers": [SPLIT, META]}, {"type": "Sequence", "pretokenizers": [SPLIT, byte_level]},
    ):
        yield case(pre_tokenizer=pre)
    yield case(pre_tokenizer=META, normalizer={"type": "NFC"})
    for regex in REGEXES:
        yield case(pre_tokenizer=with_key(SPLIT, pattern={"Regex": regex}))
    for keys in (
        {}, {"normalized": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"id": 3}, {"id": -1}, {"id": "x"}, {"content": None},
        {"content": ""}, {"content": 7}, {"special": "x"}, {"special": False}, {"x": 1}, {"single_word": 1}, {"lstrip": 1}, {"rstrip": 1},
        {"normalized": 1}, {"content": "x\n", "id": 0}, {"content": "x\n", "id": 9},
    ):
        yield case(added_tokens=[with_key(ADDED, **keys)], normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    new = with_key(ADDED, id=9, content="new")
    for added in ([ADDED, ADDED], [ADDED, new], 7, ..., [], [7], [ADDED, new, with_key(new, id=10, content="newer", special=False)],
                  [with_key(new, content="On", lstrip=True), with_key(new, id=10, content="ce", rstrip=True, single_word=True)],
                  [with_key(new, content="a ", normalized=True), with_key(new, id=10, content="a\u2581", normalized=True)]):
        yield case(added_tokens=added, normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
    yield case(added_tokens=[with_key(ADDED, normalized=True)], normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": ""})
    sequence = TEMPLATE["single"][1]
    for post in (
        ..., TEMPLATE, byte_level, {"type": "BertProcessing"}, with_key(TEMPLATE, single=[]), with_key(TEMPLATE, single=None),
        with_key(TEMPLATE, single=[sequence, TEMPLATE["single"][0]]), with_key(TEMPLATE, single=[{"Sequence": {"id": "B"}}]),
        with_key(TEMPLATE, single=[{"Sequence": {}}]), with_key(TEMPLATE, single=[{"SpecialToken": {}}]), with_key(TEMPLATE, single=[{}]),
        with_key(TEMPLATE, single=[7]), with_key(TEMPLATE, special_tokens={}), with_key(TEMPLATE, x=1),
        with_key(TEMPLATE, special_tokens={"<s>": {"ids": ["x"]}}), with_key(TEMPLATE, special_tokens={"<s>": {"ids": [-1]}}),
        with_key(TEMPLATE, special_tokens={"<s>": {"ids": [1 << 24]}}), with_key(TEMPLATE, special_tokens={"<s>": {"ids": [4000]}}),
        with_key(TEMPLATE, single=[sequence, sequence]), {"type": "Sequence", "processors": [byte_level, TEMPLATE]},
        {"type": "Sequence", "processors": [TEMPLATE, TEMPLATE]}, with_key(TEMPLATE, single=[{"SpecialToken": {"id": "\n"}}]),
    ):
        yield case(post_processor=post)
    fuse, fallback = {"type": "Fuse"}, {"type": "ByteFallback"}
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    for decoder in (
        ..., {"type": "ByteLevel"}, {"type": "ByteLevel", "x": 1}, fuse, fallback, replace, strip, META, with_key(META, prepend_scheme="never"),
        with_key(META, replacement="ab"), {"type": "WordPiece"}, with_key(fuse, x=1), with_key(strip, stop=1), with_key(strip, start=-1),
        with_key(strip, start=None), with_key(strip, content="ab"), with_key(strip, content=None), with_key(replace, pattern={"Regex": "a"}),
        with_key(replace, pattern=7), with_key(replace, content=7), with_key(replace, x=1), 7,
        {"type": "Sequence", "decoders": [replace, fallback, fuse, strip]}, {"type": "Sequence", "decoders": [fuse, replace, fallback, strip]},
        {"type": "Sequence", "decoders": [strip, {"type": "ByteLevel"}, replace]}, {"type": "Sequence", "decoders": []},
        {"type": "Sequence", "decoders": [with_key(replace, content=""), fallback, strip, strip]}, {"type": "\n"},
    ):
        yield case(model=with_key(BPE, byte_fallback=True), decoder=decoder, text="\u2581\u2581a\nb <s>\u20ac".encode())
    for config in (
        {"add_bos_token": True, "bos_token": "<s>"}, {"add_eos_token": True, "eos_token": {"content": "ab"}}, {"add_bos_token": True},
        {"add_bos_token": 1}, {"add_bos_token": True, "bos_token": "q"}, {"add_eos_token": True, "eos_token": {"content": 1}}, [], "{",
        {"add_bos_token": False, "add_eos_token": None},
    ):
        yield case(config)
        yield case(config, added_tokens=[ADDED])
    # Characters younger than the package's tables, before and behind combining ones.
    young = "a\U0001e4d0\U0001e4ec\u0301e\u0301\U0001fae8\u3130\u1acd x" * 3
    yield case({}, young.encode(), normalizer={"type": "NFC"}, pre_tokenizer=with_key(SPLIT, pattern={"Regex": REGEXES[0]}))
    yield case({}, b"a" * 3000 + b"c", pre_tokenizer=with_key(SPLIT, pattern={"Regex": "(?:a|a)*b|(?:a*)*b"}))
    yield case({}, b"\xff")
    yield case({}, b"\xe2\x82")
    for text in ("", "[]", "7", '{"a":1,"a":1}', "[" * 5000, '{"model":{"vocab":{"\xff":1}}}', '{"\n":1}'):
        yield text.encode("latin-1")


# ---- the request ------------------------------------------------------------------------

REQUEST = {"model": "m", "prompt": "Once"}


def requests():
    yield dump(REQUEST)
    for keys in (
        {"model": None}, {"model": 1}, {"model": "a\0b"}, {"prompt": None}, {"prompt": ""}, {"prompt": [1, 2, 3]}, {"prompt": ["a", "b"]},
        {"prompt": [[1], [2, 3]]}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [1, "a"]}, {"prompt": [-1]}, {"prompt": [2**32]}, {"prompt": 7},
        {"prompt": [[1], 2]}, {"prompt": ["a"] * 129}, {"prompt": ["a"] * 65, "n": 2}, {"prompt": "a\0b"}, {"n": 2}, {"n": 0}, {"n": 129}, {"n": "x"},
        {"n": 2, "best_of": 2}, {"best_of": 2}, {"best_of": 0}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 2**32}, {"max_tokens": ...},
        {"temperature": 0}, {"temperature": 2.1}, {"temperature": "x"}, {"top_p": 0.5}, {"top_p": 0}, {"top_p": 1e-320}, {"top_k": -1}, {"top_k": 40},
        {"top_k": -2}, {"seed": -5}, {"seed": 2**63 - 1}, {"seed": 1.5}, {"logprobs": 0}, {"logprobs": 5}, {"logprobs": 1000}, {"stop": "x"},
        {"stop": ["a"] * 16}, {"stop": ["a"] * 17}, {"stop": ""}, {"stop": ["x" * 1024]}, {"stop": ["x" * 1025]}, {"stop": [1]}, {"stop": 1},
        {"stream": True}, {"stream": 1}, {"stream": True, "stream_options": {"include_usage": True}}, {"stream_options": {}},
        {"stream": True, "stream_options": 1}, {"stream": True, "stream_options": {"include_usage": 1}}, {"echo": True}, {"echo": 1},
        {"return_token_ids": True}, {"return_token_ids": 1}, {"ignore_eos": True}, {"ignore_eos": 1}, {"timeout": 1.5}, {"timeout": 0},
        {"timeout": 1e9}, {"suffix": "x"}, {"suffix": ...}, {"logit_bias": {}}, {"logit_bias": {"1": 2}}, {"presence_penalty": 0.0},
        {"presence_penalty": 1}, {"repetition_penalty": 1}, {"use_beam_search": False}, {"use_beam_search": True}, {"bad_words": []},
        {"bad_words": ["x"]}, {"n": "\u20ac" * 60}, {"unknown": [[[]]]},
    ):
        yield dump(with_key(REQUEST, **keys))
    for text in ("", "[]", "{", '{"model":"a","model":"a"}', '"\xff"', '{"model":"\xff\xfe', '{"\xe2\x82', "[" * 3000, '{"model":"' + "\xc3\xa9" * 200):
        yield text.encode("latin-1")


# ---- options ----------------------------------------------------------------------------


def options():
    for text in (
        "", "# nothing\n", "---\n", "listen: 127.0.0.1:0\nmax-queue: 7\nmax-body: 4M\npolicy: lru\n", "models-dir: /m\ndevice: host:2,mem=1G,uplink=0-1:3M,1-1:2M\n",
        "model: [a=/b, 'c=/d,tp=2,pp=2,devices=0,1']\n", "model:\n- name: a\n  dir: /b\n  tp: 2\n  pp: 1\n  devices: [0, 1]\n- name: b\n  dir: c\n  devices: 0,1\n",
        "model:\n- a=/b,tp=0\n", "model:\n- {name: a}\n", "model: x\n", "model: [[x]]\n", "model:\n- {name: a, dir: b, devices: {}}\n", "model: [null]\n",
        "model:\n- {name: a, dir: b, devices: [[1]]}\n", "model:\n- {name: a, dir: b, devices: []}\n", "model:\n- {name: [], dir: b}\n", "model:\n- {x: y}\n",
        "model:\n- {name: a, dir: b, devices: [x]}\n", "model: ['=b']\n", "model: [a=b,a=c]\n", "model: ['']\n", "model: [a=b,x=1]\n", "model: [a=b,tp=9999]\n",
        "config: x\n", "help: 1\n", "version: true\n", "unknown: 1\n", "? [a]\n: b\n", "listen: [1]\n", "listen:\n", "listen: *x\n", "a: &x 1\nb: *x\n", "- a\n", "x\n",
        "listen: a\nlisten: b\n", "a: b\n---\nc: d\n", "listen: \"a\\0b\"\n", "listen: \"\\n\\x01\"\n", "{", "a: [", "\t- x", "%YAML 9.9\n---\na: b\n", "&a [*a]\n", "\xff\xfe",
        "pool: hugetlb,size=1G,hot=512M,segment=64M\n", "pool: size\n", "pool: ',,,=,'\n", "max-body: 1.5G\n", "max-body: 99999999999T\n", "max-body: x\n", "max-body: 5X\n",
        "max-body: 1.123456789K\n", "max-body: 16777215.9999999T\n", "max-queue: -1\n", "max-queue: 5x\n", "max-queue: 99999999999999999999\n",
        "model:\n- a=/b,priority=8\n- {name: c, dir: d, priority: -8}\n", "model: ['a=b,priority=9']\n", "model: ['a=b,priority=--1']\n",
        "device: '" + "k" * 70 + "=1'\n", "log-level: debug\nstage-method: pread\nsocket: /s\n",
    ):
        yield text.encode("latin-1")


def specs():
    yield from (
        text.encode() for text in (
            "", "1", "2,mem=512M,link=400M,uplink=0-1:300M,layer_ms=1.5", "4,uplink=0-1:3M,2-3:2M", "0", "65", "x", "1,mem=0", "1,mem=1K",
            "1,mem=99999T", "1,mem=20T", "1,mem=x", "1,link=x", "1,link=99999999999999T", "1,uplink=", "1,uplink=0-0", "1,uplink=0:1M-0", "2,uplink=1-0:1M",
            "2,uplink=0-2:1M", "2,uplink=0-1:0", "2,uplink=0-1:x", "2,uplink=0-1:1M,1-1:1M", "1,layer_ms=x", "1,layer_ms=1x", "1,layer_ms=1e9",
            "1,layer_ms=0x1p4", "1,layer_ms=0.0001", "1,y=2", "1,mem=1G,mem=2G", "1,=2", "64,uplink=" + ",".join(f"{i}-{i}:1M" for i in range(64)),
            "1,mem=1G,,,", ",,", "1," + "k" * 70 + "=1",
        )
    )


TARGETS = {
    "fuzz_checkpoint_header": headers,
    "fuzz_checkpoint_config": configs,
    "fuzz_checkpoint_index": indexes,
    "fuzz_checkpoint_manifest": manifests,
    "fuzz_tokenizer": tokenizers,
    "fuzz_server_request": requests,
    "fuzz_daemon_options": options,
    "fuzz_device_spec": specs,
}


def main():
    for target, seeds in TARGETS.items():
        folder = os.path.join(sys.argv[1], target)
        os.makedirs(folder, exist_ok=True)
        for i, seed in enumerate(seeds()):
            with open(os.path.join(folder, f"seed-{i:03}"), "wb") as f:
                f.write(seed)
        found = os.path.join(HERE, "found", target)
        if os.path.isdir(found):
            for name in os.listdir(found):
                shutil.copyfile(os.path.join(found, name), os.path.join(folder, name))


if __name__ == "__main__":
    main()
