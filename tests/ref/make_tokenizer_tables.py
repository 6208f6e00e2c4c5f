#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes uruntime/tokenizer/tables.c: where the Unicode data behind the `tokenizers` package
differs from that of the libraries that the C tokenizer stands on.

The package's regular expressions (Oniguruma) know a later Unicode than PCRE2 does on most
machines; its NFC knows an earlier one than libunistring. Both differences are measured on
the package itself, code point by code point.

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.23.3 unicodedata2==18.0.0
    VENV/bin/python tests/ref/make_tokenizer_tables.py > uruntime/tokenizer/tables.c

Needs a Python whose own unicodedata is Unicode 14, the oldest that the supported PCRE2
versions (10.39 and later) know.
"""
import sys
import unicodedata

import tokenizers
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Cf".split()
POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def matches(regex):
    """The code points that the package's regular expressions match."""
    text = "".join(map(chr, POINTS))
    rest = pre_tokenizers.Split(Regex(regex), "removed").pre_tokenize_str(text)
    return set(POINTS) - {ord(c) for piece, _ in rest for c in piece}


def utf8_len(c):
    return len(chr(c).encode())


def stand_in(category, length):
    """A code point of the same category and UTF-8 length that Unicode 14 and every later
    version agree on."""
    for c in POINTS:
        if (utf8_len(c) == length and unicodedata.category(chr(c)) == category
                and unicodedata2.category(chr(c)) == category):
            return c
    sys.exit(f"no stand-in for {category} of {length} bytes")


def younger():
    """(code point, stand-in) where the category is not the one of Unicode 14."""
    out = []
    for category in CATEGORIES:
        for c in matches(r"\p{%s}" % category):
            if unicodedata.category(chr(c)) != category:
                if utf8_len(c) < 3:
                    sys.exit("the scan for younger characters skips short ones")
                out.append((c, stand_in(category, utf8_len(c))))
    # PCRE2's \s has U+180E, a space until Unicode 6.3; Oniguruma's has not.
    out.append((0x180E, stand_in("Cf", 3)))
    return sorted(out)


def inert():
    """Code points that later versions reorder, compose or decompose and the package's NFC
    leaves alone."""
    nfc = normalizers.NFC()
    firsts, seconds = {}, {}
    for c in POINTS:
        parts = unicodedata2.decomposition(chr(c)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            a, b = (chr(int(p, 16)) for p in parts)
            firsts.setdefault(a, []).append(b)
            seconds.setdefault(b, []).append(a)
    out = []
    for c in map(chr, POINTS):
        samples = [c]
        if unicodedata2.combining(c):
            samples += ["x\u0345%s\u0301" % c, "x\u0323%s\u0334" % c, "a%s\u0316" % c]
        samples += [c + b for b in firsts.get(c, [])] + [a + c for a in seconds.get(c, [])]
        samples += [unicodedata2.normalize("NFD", c)]
        got = [nfc.normalize_str(s) for s in samples]
        want = [unicodedata2.normalize("NFC", s) for s in samples]
        if got != want and got == samples:
            out.append(ord(c))
    return out


def ranges(pairs):
    out = []
    for c, to in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == to:
            out[-1][1] = c
        else:
            out.append([c, c, to])
    return out


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"needs Unicode 14, this Python has {unicodedata.unidata_version}")
    print("// SPDX-License-Identifier: MIT")
    print("/*")
    print(" * Made by tests/ref/make_tokenizer_tables.py from the PyPI packages tokenizers")
    print(f" * {tokenizers.__version__} and unicodedata2 {unicodedata2.unidata_version}: what the tables "
          "mean stands in unicode.h.")
    print(" */")
    print('#include "tokenizer/unicode.h"\n')
    print("/* clang-format off */")
    print("const struct ctn_tok_stand_in ctn_tok_younger[] = {")
    rows = ranges(younger())
    for a, b, to in rows:
        print(f"\t{{0x{a:04X}, 0x{b:04X}, 0x{to:04X}}},")
    print("};\nconst size_t ctn_tok_younger_count = CTN_ARRAY_LEN(ctn_tok_younger);\n")
    print("const struct ctn_tok_range ctn_tok_inert[] = {")
    for a, b, _ in ranges((c, 0) for c in inert()):
        print(f"\t{{0x{a:04X}, 0x{b:04X}}},")
    print("};\nconst size_t ctn_tok_inert_count = CTN_ARRAY_LEN(ctn_tok_inert);")
    print("/* clang-format on */")


main()
