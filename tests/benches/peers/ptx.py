"""Times of PyTorch's own calls of what hecate-ptx's kernels compute, at the sizes of `cargo bench -p hecate-tests --bench ptx`.

    python3 tests/benches/peers/ptx.py

Each figure is the median of 21 runs in milliseconds, by the GPU's clock.
"""

import statistics

import torch
import torch.nn.functional as F


def median(work):
    """The median time of a call, after one that is not timed."""
    work()
    torch.cuda.synchronize()
    times = []
    for _ in range(21):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def main():
    # Sums in 32 bits, as the kernels have them.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    random = lambda *sizes, dtype=torch.float32: torch.rand(sizes, device="cuda", dtype=dtype) * 2 - 1
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for n in (1024, 4096):
            a, b, c = (random(n, n, dtype=dtype) for _ in range(3))
            print(f"matmul {dtype}, {n}³ | {median(lambda: torch.matmul(a, b, out=c)):.4f}")
    x, gamma, beta = random(8192, 4096), random(4096), random(4096)
    print(f"softmax, 8192 × 4096 | {median(lambda: F.softmax(x, -1)):.4f}")
    print(f"layer_norm, 8192 × 4096 | {median(lambda: F.layer_norm(x, (4096,), gamma, beta, 1e-6)):.4f}")
    print(f"rms_norm, 8192 × 4096 | {median(lambda: F.rms_norm(x, (4096,), gamma, 1e-6)):.4f}")
    q, k, v = (random(1, 32, 2048, 64) for _ in range(3))
    for causal in (False, True):
        time = median(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal))
        print(f"scaled_dot_product_attention f32, causal {causal} | {time:.4f}")
    # Weights of 16 bits in place of 4.
    w = random(4096, 4096, dtype=torch.float16)
    for rows in (1, 16):
        y = random(rows, 4096, dtype=torch.float16)
        print(f"matmul f16, {rows} × 4096 × 4096 | {median(lambda: y @ w.T):.4f}")


main()
