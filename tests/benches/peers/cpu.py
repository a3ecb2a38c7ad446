"""The gated delta rule on the processor: Hecate beside PyTorch's reference, and ggml's operation where there is one.

    cargo build --release
    python3 -m pip install torch transformers
    python3 tests/benches/peers/cpu.py hecate [--threads 2] [--ggml 'COMMAND ARGUMENT..']

Both sides run in turn (A B A B A B) with the same number of threads, in 32-bit floats; each figure is the best of all
calls, in milliseconds. PyTorch's side is what Hugging Face's Qwen3-Next does without a GPU: its form in chunks for many
tokens, its recurrence for one; both get the same sizes, and one is held to the other first. A command given with --ggml
runs once in each round: of gated_delta_net.cpp beside this file the times become a column, what any other prints (ggml's
own `test-backend-ops perf -o GATED_DELTA_NET -b CPU`) is shown as it is. With --no-pytorch it is the only peer.
"""

import argparse
import json
import os
import shlex
import subprocess
import time

# Batch, tokens, heads, width.
SHAPES = [(1, 1024, 32, 128), (1, 1024, 16, 64)]
DECODE = (1, 1, 32, 128)


def ours(program, threads, shape, seconds):
    """Milliseconds by pass."""
    size = "x".join(map(str, shape))
    arguments = f"bench speed --rules gated_delta --shapes {size} --threads {threads} --seconds {seconds} --json"
    found = subprocess.run([program, *arguments.split()], check=True, capture_output=True, text=True)
    return {row["pass"]: row["seconds"] * 1e3 for row in json.loads(found.stdout)["rows"]}


class Theirs:
    """PyTorch's functions and their arguments."""

    def __init__(self, threads):
        import torch
        from transformers.models.qwen3_next import modeling_qwen3_next as reference

        torch.set_num_threads(threads)
        torch.manual_seed(1)
        self.torch = torch
        # Behind a decorator that may look for kernels elsewhere stands the function itself.
        def plain(function):
            return getattr(function, "__wrapped__", function)

        self.chunks = plain(reference.torch_chunk_gated_delta_rule)
        self.recurrence = plain(reference.torch_recurrent_gated_delta_rule)
        self.check()

    def arguments(self, shape, gradients):
        torch, (b, t, h, d) = self.torch, shape
        keys = torch.nn.functional.normalize(torch.randn(b, t, h, d), dim=-1)
        arrays = [torch.randn(b, t, h, d), keys, torch.randn(b, t, h, d)]
        gates = [torch.nn.functional.logsigmoid(torch.randn(b, t, h)), torch.sigmoid(torch.randn(b, t, h))]
        return [x.requires_grad_(gradients) for x in arrays + gates]

    def check(self):
        arguments = self.arguments((1, 100, 2, 16), False)
        a, b = self.chunks(*arguments)[0], self.recurrence(*arguments)[0]
        assert (a - b).abs().max() < 1e-3, "PyTorch's two forms differ"

    def time(self, shape, what, seconds):
        torch = self.torch
        arguments = self.arguments(shape, what == "both")
        function = self.recurrence if what == "decode" else self.chunks
        state = torch.zeros(shape[0], shape[2], shape[3], shape[3]) if what == "decode" else None
        grads = torch.randn(shape)

        def call():
            out, _ = function(*arguments, initial_state=state, output_final_state=what == "decode")
            if what == "both":
                torch.autograd.grad(out, arguments, grads)

        call()
        best, start = float("inf"), time.monotonic()
        while time.monotonic() - start < seconds:
            before = time.monotonic()
            call()
            best = min(best, time.monotonic() - before)
        return best * 1e3


def ggml(command):
    """Milliseconds by shape and pass; lines that are none are shown."""
    found = {}
    for line in subprocess.run(shlex.split(command), check=True, capture_output=True, text=True).stdout.splitlines():
        try:
            row = json.loads(line)
            found[tuple(row["shape"]), row["pass"]] = row["ms"]
        except (ValueError, KeyError, TypeError):
            print(line)
    return found


def cell(ours, theirs):
    return f"{theirs:>7.3f} ms {theirs / ours:>5.1f}x" if theirs < float("inf") else f"{'':>17}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the hecate command")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure, in each round")
    parser.add_argument("--ggml", metavar="COMMAND", help="a command that times ggml's operation")
    parser.add_argument("--no-pytorch", action="store_true", help="leave PyTorch out")
    options = parser.parse_args()
    theirs = None if options.no_pytorch else Theirs(options.threads)
    wanted = [(shape, what) for shape in SHAPES for what in ("forward", "both")] + [(DECODE, "decode")]
    best = {key: [float("inf")] * 3 for key in wanted}
    for _ in range(options.rounds):
        for shape, what in wanted:
            old = best[shape, what]
            old[0] = min(old[0], ours(options.program, options.threads, shape, options.seconds)[what])
            if theirs:
                old[1] = min(old[1], theirs.time(shape, what, options.seconds))
        for key, time in (ggml(options.ggml) if options.ggml else {}).items():
            best[key][2] = min(best[key][2], time)
    versions = f", PyTorch {theirs.torch.__version__}" if theirs else ""
    print(f"{options.threads} threads, load {os.getloadavg()[0]:.1f}{versions}")
    print(f"{'B, T, H, D':<22} {'pass':<8} {'Hecate':>10} {'PyTorch':>17} {'ggml':>17}")
    for (shape, what), (a, pytorch, others) in best.items():
        print(f"{str(shape):<22} {what:<8} {a:>7.3f} ms {cell(a, pytorch)} {cell(a, others)}")


if __name__ == "__main__":
    main()
