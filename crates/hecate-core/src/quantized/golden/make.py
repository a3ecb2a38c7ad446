"""Writes the golden blocks beside this file: what ggml and its Python package `gguf` make of the same bytes.

    pip install numpy gguf
    python make.py PATH/TO/libggml-base.so

The library is ggml's, built from its sources; its C functions `quantize_row_*_ref` make the blocks. `gguf` is written in
NumPy, apart from the library, and says what values blocks have. A file is, all little-endian:

    1024 floats     weights: normal, with a few large ones, a group of one sign and a group of zeros
    blocks of them  by ggml's reference quantizer
    1024 floats     the values of these blocks, by gguf
    4 or 32 blocks  random bytes with scales of ordinary size: every bit of scales and values is met
    1024 floats     the values of those, by gguf
"""

import ctypes
import pathlib
import sys

import gguf
import numpy as np

COUNT = 1024
FORMATS = {"q8_0": (32, 34, [0]), "q6_k": (256, 210, [208]), "q5_k": (256, 176, [0, 2]), "q4_k": (256, 144, [0, 2])}


def weights(random):
    x = random.normal(0.0, 0.02, COUNT).astype(np.float32)
    x[random.integers(0, COUNT, 8)] *= 20
    x[96:128] = np.abs(x[96:128]) + 0.01
    x[320:352] = 0.0
    return x


def by_ggml(library, name, x):
    values, size, _ = FORMATS[name]
    blocks = np.zeros(COUNT // values * size, np.uint8)
    quantize = getattr(library, f"quantize_row_{name[:-1]}{name[-1].upper()}_ref")
    quantize(x.ctypes.data_as(ctypes.c_void_p), blocks.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(COUNT))
    return blocks


def random_blocks(random, name):
    values, size, scales = FORMATS[name]
    blocks = random.integers(0, 256, (COUNT // values, size), np.uint8)
    for at in scales:
        halves = random.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def main():
    library = ctypes.CDLL(sys.argv[1])
    for seed, name in enumerate(FORMATS):
        random = np.random.default_rng(seed)
        kind = gguf.GGMLQuantizationType[name.upper()]
        x = weights(random)
        parts = [x.tobytes()]
        for blocks in by_ggml(library, name, x), random_blocks(random, name):
            parts += [blocks.tobytes(), gguf.dequantize(blocks, kind).astype("<f4").tobytes()]
        pathlib.Path(__file__).with_name(f"{name}.bin").write_bytes(b"".join(parts))


main()
