"""Times of ggml's products with quantized matrices [4096, 4096] on the CPU, as docs/quantized.md has them.

    pip install llama-cpp-python==0.3.36
    python3 tests/benches/peers/ggml.py .../site-packages/llama_cpp/lib [--threads 2] [ROWS …]

The folder holds libggml-base.so and libggml-cpu.so. Weights lie in as many copies as no cache holds; a round is one graph of products
with all of them, so that starting threads costs next to nothing. A time is the least of the rounds, and includes the rounding of x.
"""

import argparse
import ctypes
import pathlib
import sys
import time

SIZE = 4096
# Bytes of copies, and rounds of which the least counts.
COPIES, ROUNDS = 320 << 20, 12
FORMATS = {"q8_0": 8, "q6_k": 14, "q5_k": 13, "q4_k": 12}


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def load(folder):
    """The functions that are called, of both libraries."""
    base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    for library, name, result, arguments in [
        (base, "ggml_init", pointer, [InitParams]),
        (base, "ggml_free", None, [pointer]),
        (base, "ggml_new_tensor_2d", pointer, [pointer, ctypes.c_int, count, count]),
        (base, "ggml_get_data", pointer, [pointer]),
        (base, "ggml_nbytes", ctypes.c_size_t, [pointer]),
        (base, "ggml_quantize_chunk", ctypes.c_size_t, [ctypes.c_int, pointer, pointer, count, count, count, pointer]),
        (base, "ggml_mul_mat", pointer, [pointer, pointer, pointer]),
        (base, "ggml_new_graph", pointer, [pointer]),
        (base, "ggml_build_forward_expand", None, [pointer, pointer]),
        (cpu, "ggml_cpu_init", None, []),
        (cpu, "ggml_graph_compute_with_ctx", ctypes.c_int, [pointer, pointer, ctypes.c_int]),
    ]:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(base, name, function)
    base.ggml_cpu_init()
    return base


def numbers(n):
    """Between -1 and 1, the same every time."""
    return (ctypes.c_float * n)(*(((i * 2654435761) >> 8 & 0xFFFFFF) / 8388608.0 - 1.0 for i in range(n)))


def weights(ggml, kind, values):
    """A context, and copies of the matrix in it."""
    context = ggml.ggml_init(InitParams(2 * COPIES, None, False))
    copies = [ggml.ggml_new_tensor_2d(context, kind, SIZE, SIZE)]
    data, size = ggml.ggml_get_data(copies[0]), ggml.ggml_nbytes(copies[0])
    ggml.ggml_quantize_chunk(kind, values, data, 0, SIZE, SIZE, None)
    while len(copies) * size < COPIES:
        copies.append(ggml.ggml_new_tensor_2d(context, kind, SIZE, SIZE))
        ctypes.memmove(ggml.ggml_get_data(copies[-1]), data, size)
    return context, copies, size


def seconds(ggml, copies, rows, values, threads):
    """One product with `rows` rows: a round's time by the number of copies."""
    context = ggml.ggml_init(InitParams((64 << 20) + (len(copies) + 64) * 4 * SIZE * rows, None, False))
    x = ggml.ggml_new_tensor_2d(context, 0, SIZE, rows)
    ctypes.memmove(ggml.ggml_get_data(x), values, 4 * SIZE * rows)
    graph = ggml.ggml_new_graph(context)
    for weight in copies:
        ggml.ggml_build_forward_expand(graph, ggml.ggml_mul_mat(context, weight, x))
    start = time.perf_counter()
    status = ggml.ggml_graph_compute_with_ctx(context, graph, threads)
    passed = time.perf_counter() - start
    ggml.ggml_free(context)
    if status != 0:
        sys.exit(f"ggml says {status}")
    return passed / len(copies)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("rows", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_intermixed_args()
    ggml = load(options.folder)
    values = numbers(SIZE * SIZE)
    print("format rows microseconds GB/s GFLOP/s")
    for name, kind in FORMATS.items():
        context, copies, size = weights(ggml, kind, values)
        for rows in options.rows:
            least = min(seconds(ggml, copies, rows, values, options.threads) for _ in range(ROUNDS))
            print(f"{name} {rows} {1e6 * least:.0f} {size / least / 1e9:.1f} {2 * SIZE * SIZE * rows / least / 1e9:.0f}")
        ggml.ggml_free(context)


if __name__ == "__main__":
    main()
