"""safetensors files, read and written with numpy alone (F32, F16, BF16).

A tensor in memory is a Tensor: its dtype by the name that the format uses, its shape, and the bytes as stored. BF16
has no numpy type and is held as uint16.
"""

import json
import os
import struct
from collections import namedtuple

import numpy as np

Tensor = namedtuple("Tensor", "dtype shape data")  # data: flat array of STORAGE[dtype]
STORAGE = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
INDEX = "model.safetensors.index.json"


def to_bf16(x):
    """float32 -> uint16, round to nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    out = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        out[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x40
    return out


def narrow(x, dtype):
    """float32 array -> flat array as stored."""
    x = np.ascontiguousarray(x, np.float32).reshape(-1)
    return to_bf16(x) if dtype == "BF16" else x.astype(STORAGE[dtype])


def widen(t):
    """Tensor -> float32 array of its shape; exact for all three dtypes."""
    if t.dtype == "BF16":
        return (t.data.astype(np.uint32) << 16).view(np.float32).reshape(t.shape)
    return t.data.astype(np.float32).reshape(t.shape)


def read(path):
    """One file -> {name: Tensor}, the data mapped, not copied. Tensors of other dtypes are left out."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
    blob = np.memmap(path, np.uint8, "r", offset=0)
    out = {}
    for name, info in header.items():
        if name == "__metadata__" or info["dtype"] not in STORAGE:
            continue
        begin, end = (8 + n + k for k in info["data_offsets"])
        storage = STORAGE[info["dtype"]]
        count = int(np.prod(info["shape"], dtype=np.int64))
        if end - begin != count * storage.itemsize or end > blob.size:
            raise ValueError(f"{path}: {name}: {end - begin} bytes for shape {info['shape']} {info['dtype']}")
        data = np.frombuffer(blob, storage, count, begin) if count else np.empty(0, storage)
        out[name] = Tensor(info["dtype"], tuple(info["shape"]), data)
    return out


def read_dir(folder):
    """A checkpoint -> {name: Tensor}; the index decides which files count, when there is one."""
    index = os.path.join(folder, INDEX)
    if not os.path.exists(index):
        return read(os.path.join(folder, "model.safetensors"))
    with open(index, encoding="utf-8") as f:
        weight_map = json.load(f)["weight_map"]
    files = {f: read(os.path.join(folder, f)) for f in set(weight_map.values())}
    return {name: files[file][name] for name, file in weight_map.items() if name in files[file]}


def write(path, tensors, listed=None, padded=True):
    """Write a file. tensors: [(name, dtype, shape, blocks)] in the order of the data, where blocks() yields arrays as
    stored; listed: names in the order of the header (default: that of the data). The data start at a multiple of 8
    when padded, else at an odd byte."""
    entries, offset = {}, 0
    for name, dtype, shape, _ in tensors:
        size = int(np.prod(shape, dtype=np.int64)) * STORAGE[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    header = {"__metadata__": {"format": "pt"}}
    header.update((name, entries[name]) for name in (listed or entries))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 if padded else (len(text) + 1) % 2)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape, blocks in tensors:
            begin = f.tell()
            for block in blocks():
                f.write(memoryview(np.ascontiguousarray(block, STORAGE[dtype])).cast("B"))
            if f.tell() - begin != entries[name]["data_offsets"][1] - entries[name]["data_offsets"][0]:
                raise ValueError(f"{path}: {name}: {f.tell() - begin} bytes written, shape {shape}")
