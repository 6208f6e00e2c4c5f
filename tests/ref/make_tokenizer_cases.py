#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes tests/data/tokenizer: strings, and what the `tokenizers` package of PyPI makes of
them with each tokenizer of tests/data/tokenizers, tests/models and tests/data/tokenizer.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3
    VENV/bin/python tests/ref/make_tokenizer_cases.py

The same versions make the same files. The formats stand in tests/data/tokenizer/README.md.
"""
import json
import random
from collections import Counter
from pathlib import Path

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

TESTS = Path(__file__).resolve().parent.parent
DATA = TESTS / "data" / "tokenizer"
COUNT = 10000
# Every so manieth string goes through the variants.
VARIANT_STEP = 20

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
          r"|\s*[\r\n]|\s+(?!\S)|\s+")

TOKENS = ["<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|im_start|>", "<|im_end|>",
          "[tool]", "[tool_call]", "naïve", "Å", "<0x41>", "<|wide|>", "<|left|>", "<|right|>", "word"]
WORDS = """the a of and to in that it is was he for on are as with his they I at be this have from or one
had by hot but what some we can out other were all there when up use your how said an each she which do
their time if will way about many then them write would like so these her long make thing see him two has
look more day could go come did number sound no most people my over know water than call first who may
down side been now find any new work part take get place made live where after back little only round man
year came show every good me give our under name very through just form sentence great think say help low
Über façade naïve coöperate Ångström señor garçon œuvre Straße ŒUVRE ĲSSEL ǅ don't I'll we've they're it's
IT'S WE'LL he'd I'm ’s ſ K'ſ привет мир слово ЁЖИК γειά σου Κόσμε مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก
こんにちは世界 カタカナ ｶﾀｶﾅ 你好世界 繁體中文 안녕하세요 세계 გამარჯობა բարև ሰላም ជំរាបសួរ မင်္ဂလာပါ বাংলা தமிழ் తెలుగు ಕನ್ನಡ
മലയാളം සිංහල ᚠᛇᚻ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 Ⅷ ⅷ ½ ² ① ٣٤ ४५ 五""".split()
CODE = ["int main(void)\n{\n\treturn 0;\n}\n", "def f(x, *args, **kw):\n    return {k: v for k, v in kw.items()}\n",
        "SELECT * FROM t WHERE a >= 10 AND b <> 'x''y';", "<a href=\"https://example.org/?q=1&r=%20\">x</a>",
        "for (size_t i = 0; i < n; i++)\n\t\tsum += v[i] >> 3;\n", "$x = @{ $y->{'z'} } // 0xDEADBEEF;",
        "{\"key\": [1, 2.5e-10, null, true]}", "fn f<'a>(x: &'a str) -> Option<&'a [u8]> { None }",
        "#!/bin/sh\nset -eu\necho \"${HOME%/}\" | sed 's/a/b/g' && exit\r\n", "a\\b\\\\c\\n", "\\frac{\\alpha_1}{\\beta^2}"]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷🇯", "1️⃣", "❤️", "☺︎", "👨🏿‍🦰", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😀😃😄", "🫠", "🫨", "🪿", "⌚", "\u200d", "\ufe0f"]
MARKS = [chr(c) for r in (range(0x300, 0x370), range(0x483, 0x488), range(0x591, 0x5BE), range(0x64B, 0x660),
                          range(0x93C, 0x94E), range(0x3099, 0x309B), range(0x20D0, 0x20F1), (0x1ABF, 0x1DF6, 0x898))
         for c in r]
SPACES = " \t\n\r\x0b\x0c\x85\xa0\u1680\u180e\u2000\u2003\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"


def assigned():
    """The code points that the package's regular expressions take for assigned."""
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    rest = pre_tokenizers.Split(Regex(r"\p{Cn}"), "removed").pre_tokenize_str("".join(map(chr, points)))
    return [ord(c) for piece, _ in rest for c in piece]


def blocks(rng, points):
    """Some characters of every 128 that have any: so every block, and every script."""
    rows = {}
    for c in points:
        rows.setdefault(c >> 7, []).append(c)
    for row, some in sorted(rows.items()):
        if row >= 0xE000 >> 7 and some[0] < 0xF900 and row % 16 or row > 0xF0000 >> 7 and row % 256:
            continue  # private use: a few
        n = min(len(some), 10)
        at = rng.randrange(len(some) - n + 1)
        yield "".join(map(chr, some[at:at + n])) + rng.choice(["", " ", "1", "-"]) + "".join(
            chr(rng.choice(some)) + rng.choice(["", "", "", " ", "a"]) for _ in range(5))


def sentence(rng):
    return "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", " ", "  ", ", ", ". ", "\n", "", "-", "'s ", "!? "])
                   for _ in range(rng.randrange(1, 12)))


def spaces(rng):
    run = "".join(rng.choice(SPACES if rng.random() < 0.4 else "  \n\t") * rng.choice([1, 1, 2, 3, 7, 33])
                  for _ in range(rng.randrange(1, 5)))
    return rng.choice(["", "x", "Ω"]) + run + rng.choice(["", "y", "7", "…", "字"])


def digits(rng):
    return "".join(rng.choice(["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "½²Ⅻ①𝟙৳", "９８７"])[0:rng.randrange(1, 10)]
                   * rng.choice([1, 1, 3]) + rng.choice(["", ".", ",", " ", "e-", "%"]) for _ in range(rng.randrange(1, 5)))


def combining(rng):
    return "".join(rng.choice("aeoAnsqkﬁ각각かハक्षא") + "".join(rng.choices(MARKS, k=rng.randrange(0, 5)))
                   for _ in range(rng.randrange(1, 9)))


def with_tokens(rng):
    def filler():
        return rng.choice(["", " ", "  ", "\n", "a", "é", "_", "1", "word", "words", " \u3000", sentence(rng)[:8], "<|", "</", "<"])
    return filler() + "".join(rng.choice(TOKENS)[0:rng.choice([None, None, None, 4])] + filler()
                              for _ in range(rng.randrange(1, 5)))


def code(rng):
    text = rng.choice(CODE) + rng.choice(["", "\n\n", " // ", "\t"]) + rng.choice(CODE)
    return text[rng.randrange(4):]


def any_points(rng, points):
    return "".join(chr(rng.choice(points) if rng.random() < 0.5 else rng.randrange(0x250)) for _ in range(rng.randrange(1, 20)))


def make_strings():
    rng = random.Random(20240501)
    points = assigned()
    out = ["", " ", "\n", "Hello world, my dog is cute", "Once upon a time", "a\0b\0", "\0"]
    out += [chr(c) for c in range(1, 0x180)] + [" " + chr(c) + chr(c) for c in range(0, 0x100)]
    out += list(blocks(rng, points))
    out += ["a" * 20000, " " * 20000, "\n" * 3000, "ab " * 5000, "é" * 4000, "中" * 4000, "🦀" * 2000,
            "x\u0301\u0316" * 3000, "9" * 5000, "".join(sentence(rng) for _ in range(400)), "<s>" * 1000]
    makers = [(sentence, 30), (spaces, 14), (digits, 8), (combining, 12), (with_tokens, 16), (code, 4),
              (lambda r: "".join(r.choices(EMOJI + WORDS[:20] + [" "], k=r.randrange(1, 6))), 8),
              (lambda r: any_points(r, points), 8)]
    seen = set(out)
    while len(seen) < COUNT:
        maker = rng.choices([m for m, _ in makers], [w for _, w in makers])[0]
        text = maker(rng)
        if text not in seen:
            seen.add(text)
            out.append(text)
    return list(dict.fromkeys(out))


# ---- files -------------------------------------------------------------------------------


def varint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def blob(text):
    data = text.encode()
    return varint(len(data)) + data


def id_list(ids):
    return varint(len(ids)) + b"".join(map(varint, ids))


def text_or_same(text, other):
    """One byte 0 where the text is the one before, else 1 and the text."""
    return b"\0" if text == other else b"\1" + blob(text)


def write_encodings(tok, strings, path):
    out = bytearray(varint(len(strings)))
    for text, enc in zip(strings, tok.encode_batch(strings)):
        out += id_list(enc.ids) + text_or_same(tok.decode(enc.ids, skip_special_tokens=True), text)
    path.write_bytes(out)


def write_decodings(tok, path, count):
    """Random ids, also such that their bytes are not UTF-8."""
    rng = random.Random(7)
    vocab = {i: t for t, i in tok.get_vocab(with_added_tokens=True).items()}
    ids = sorted(vocab)
    short = [i for i in ids if len(vocab[i]) == 1 or vocab[i].startswith("<0x")]
    special = [i for i, t in tok.get_added_tokens_decoder().items()]
    out = bytearray(varint(count))
    for _ in range(count):
        weights = rng.choice([(1, 0, 0), (0, 1, 0), (4, 8, 1), (8, 2, 1)])
        seq = [rng.choice(rng.choices([ids, short, special or ids], weights)[0]) for _ in range(rng.randrange(1, 24))]
        plain = tok.decode(seq, skip_special_tokens=False)
        out += id_list(seq) + blob(plain) + text_or_same(tok.decode(seq, skip_special_tokens=True), plain)
    path.write_bytes(out)


# ---- tokenizers made here ----------------------------------------------------------------


def train(tok, strings, size, alphabet, special):
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special, show_progress=False)
    tok.train_from_iterator(strings, trainer)


def byte_level(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def make_qwen2(strings):
    tok = Tokenizer(models.BPE(unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = byte_level(QWEN2)
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tok, strings, 1600, pre_tokenizers.ByteLevel.alphabet(), [])
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tok


def make_llama3(strings):
    """Every option of added tokens, ignore_merges, a Sequence of post-processors."""
    tok = Tokenizer(models.BPE(ignore_merges=True))
    tok.pre_tokenizer = byte_level(LLAMA3)
    tok.decoder = decoders.ByteLevel()
    train(tok, strings, 1200, pre_tokenizers.ByteLevel.alphabet(), ["<s>", "</s>"])
    # Words that no merges make: only ignore_merges finds them.
    data = json.loads(tok.to_str())
    for word in ["Ġother", "Ġpeople", "Ġthrough", "ĠIT", "because", "ĠÐ¼Ð¸ÑĢ", "123"]:
        data["model"]["vocab"].setdefault(word, len(data["model"]["vocab"]))
    tok = Tokenizer.from_str(json.dumps(data))
    tok.add_tokens([AddedToken("<|left|>", lstrip=True, normalized=False),
                    AddedToken("<|right|>", rstrip=True, normalized=True),
                    AddedToken("<|wide|>", lstrip=True, rstrip=True, normalized=False),
                    AddedToken("[tool]", normalized=True), AddedToken("[tool_call]", normalized=True),
                    AddedToken("word", single_word=True, normalized=True),
                    AddedToken("naïve", single_word=True, normalized=False), AddedToken("Å", special=True, normalized=True)])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1", special_tokens=[("<s>", 0), ("</s>", 1)])])
    return tok


def make_llama(strings, normalizer, words, pre_tokenizer, decoder, **options):
    """`words` cuts the strings for training, `pre_tokenizer` afterwards."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", **options))
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = words
    bytes_ = ["<0x%02X>" % b for b in range(256)] if options.get("byte_fallback") else []
    # Not the limit_alphabet of the trainer, which is not the same from run to run. Without NUL,
    # which the JSON library on the C side does not read in a key.
    counts = Counter("".join(strings).replace("\0", ""))
    common = set(sorted(counts, key=lambda c: (-counts[c], c))[:400])
    strings = ["".join(c for c in s if c in common) for s in strings]
    train(tok, strings, 1500, list("▁abcdefghijklmnopqrstuvwxyz"), ["<unk>", "<s>", "</s>"] + bytes_)
    data = json.loads(tok.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] not in bytes_]
    tok = Tokenizer.from_str(json.dumps(data))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoder
    return tok


def llama_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def make_mistral(strings):
    """Metaspace in front of the first piece only; byte fall-back."""
    return make_llama(strings, None, pre_tokenizers.Metaspace(),
                      pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False), llama_decoder(), byte_fallback=True, fuse_unk=True)


def make_gemma(strings):
    """Spaces replaced, pieces end in one, unknown characters one by one, Metaspace decoder."""
    words = pre_tokenizers.Split("▁", "merged_with_previous")
    return make_llama(strings, normalizers.Replace(" ", "▁"), words, words,
                      decoders.Metaspace(replacement="▁", prepend_scheme="always"), fuse_unk=False)


def variants():
    """(base, key, value): one part of a tokenizer replaced."""
    def split(pattern, behavior, invert=False):
        return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}

    def bytes_after(*steps):
        return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": False,
                                                               "trim_offsets": True, "use_regex": False}]}

    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            yield "qwen2", "pre_tokenizer", bytes_after(split({"Regex": r"\s|\p{P}"}, behavior, invert))
            yield "qwen2", "pre_tokenizer", bytes_after(split({"String": "a"}, behavior, invert))
    for pattern in [O200K, CL100K, LLAMA3, r"[\u4e00-\u9fa5\x{3040}-\x{30FF}]+", r"(?<=\d)\D", r"(?<!\p{Lu})(?=\p{Lu})",
                    r"\P{L}*?\p{L}", r"[^\P{L}a-z]+", r"(?>\p{M}+|.)\S?", r"x*", r"[-+*/\]]|\p{Sm}{2,}", r"\p{Cf}|\p{Mn}|\p{So}|\p{Nd}"]:
        yield "qwen2", "pre_tokenizer", bytes_after(split({"Regex": pattern}, "Isolated"))
    yield "qwen2", "pre_tokenizer", bytes_after({"type": "Digits", "individual_digits": True})
    yield "qwen2", "pre_tokenizer", bytes_after({"type": "Digits", "individual_digits": False}, split({"Regex": QWEN2}, "Isolated"))
    yield "qwen2", "pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    yield "qwen2", "normalizer", {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}, {"type": "NFC"}, {"type": "Prepend", "prepend": "# "}]}
    for scheme in ["always", "never"]:
        yield "gemma", "pre_tokenizer", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    yield "mistral", "pre_tokenizer", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    yield "gemma", "normalizer", {"type": "Prepend", "prepend": "▁"}
    for base in ["qwen2", "mistral", "gemma"]:
        yield base, "decoder", None
    yield "gemma", "decoder", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True}
    yield "mistral", "decoder", {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁",
                                                                   "prepend_scheme": "first", "split": False}]}
    yield "mistral", "decoder", {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁a"}, "content": " <A>"},
                                                                   {"type": "Strip", "content": "▁", "start": 3, "stop": 0}]}
    yield "qwen2", "decoder", {"type": "Sequence", "decoders": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                                                                 {"type": "Replace", "pattern": {"String": "\ufffd\ufffd"}, "content": "é"}]}
    yield "llama3", "post_processor", None
    yield "mistral", "added_tokens", [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                                       "normalized": True, "special": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])]


def write_variants(tokens, strings):
    """variants.json and, per variant, encodings of some strings and random decodings."""
    some = strings[::VARIANT_STEP]
    described = []
    for n, (base, key, value) in enumerate(variants()):
        data = json.loads(tokens[base].to_str())
        data[key] = value
        tok = Tokenizer.from_str(json.dumps(data))
        described.append({"base": base, "set": {key: value}})
        write_encodings(tok, some, DATA / f"variant-{n:02}.ids")
        if key == "decoder":
            write_decodings(tok, DATA / f"variant-{n:02}.decode", 200)
    (DATA / "variants.json").write_text(json.dumps(described, indent=1, ensure_ascii=False) + "\n")


def main():
    DATA.mkdir(parents=True, exist_ok=True)
    strings = make_strings()
    (DATA / "strings.bin").write_bytes(varint(len(strings)) + b"".join(map(blob, strings)))
    tokens = {"gpt2": Tokenizer.from_file(str(TESTS / "data/tokenizers/gpt2/tokenizer.json")),
              "opt": Tokenizer.from_file(str(TESTS / "data/tokenizers/opt/tokenizer.json")),
              "stories": Tokenizer.from_file(str(TESTS / "models/llama-stories260k/tokenizer.json"))}
    for name, make in [("qwen2", make_qwen2), ("llama3", make_llama3), ("mistral", make_mistral), ("gemma", make_gemma)]:
        tok = make(strings)
        (DATA / name).mkdir(exist_ok=True)
        (DATA / name / "tokenizer.json").write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n")
        tokens[name] = Tokenizer.from_file(str(DATA / name / "tokenizer.json"))
    for name, tok in tokens.items():
        write_encodings(tok, strings, DATA / f"{name}.ids")
        write_decodings(tok, DATA / f"{name}.decode", 1000)
    write_variants(tokens, strings)
    print(f"{len(strings)} strings, tokenizers {tokenizers.__version__}")


main()
