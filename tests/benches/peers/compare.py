"""Times of Hecate's CUDA column beside those of flash-linear-attention and PyTorch, in one run.

    cargo bench -p hecate-tests --bench cuda --no-run        # names the program
    python3 tests/benches/peers/compare.py PROGRAM [--quick] [--shape small …] [--only chunk_delta …]

Needs PyTorch and Triton, and flash-linear-attention for all but attention. Both sides run in turn (A B A B A B) on the
same GPU, in 16-bit floats unless the table says otherwise, with the cache flushed between runs; each figure is the median
of three medians, in milliseconds. The last column is ours over theirs: below 1, Hecate is faster.
"""

import argparse
import concurrent.futures
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
import triton

SHAPES = {
    "large": (4, 2048, 16, 128),
    "small": (8, 1024, 8, 64),
    "long": (2, 16384, 16, 128),
    "many": (1, 8192, 96, 128),
    "larger": (4, 4096, 64, 128),
    "wide": (4, 2048, 8, 256),
}

# Milliseconds (forward, backward) that the NL_Hecate project published for its CUDA kernels, which go token by token in 32
# bits, at 64 lanes of 1,024 tokens; it does not name the GPU.
PUBLISHED = {
    ("delta", 64): (6.8, 31.9),
    ("delta", 128): (23.8, 94.5),
    ("titans", 64): (7.2, 79.6),
    ("titans", 128): (24.5, 227.0),
}


class Ours:
    """The benchmark program, answering requests."""

    def __init__(self, program):
        self.process = subprocess.Popen(
            [program, "--requests"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def time(self, rule, dtype, shape, what):
        print(rule, dtype, *shape, what, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        try:
            return float(answer)
        except ValueError:
            sys.exit(f"the program says of {rule} {shape}: {answer or 'nothing, and ended'}")


def theirs():
    """Peers by name: functions of the arguments."""
    attention = lambda a: F.scaled_dot_product_attention(
        a.q.transpose(1, 2), a.k.transpose(1, 2), a.v.transpose(1, 2), is_causal=True
    )
    peers = {("attention", "scaled_dot_product_attention"): attention}
    try:
        peers.update(linear())
    except ImportError as error:
        print(f"no flash-linear-attention: {error}")
    return peers


def linear():
    """Peers of the linear rules."""
    from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
    from fla.ops.simple_gla import chunk_simple_gla

    peers = {
        ("hebbian", "chunk_simple_gla"): lambda a: chunk_simple_gla(a.q, a.k, a.v * a.beta[..., None], g=a.decay)[0],
        ("delta", "chunk_delta_rule"): lambda a: chunk_delta_rule(a.q, a.k, a.v, a.beta)[0],
        ("delta", "fused_recurrent_delta_rule"): lambda a: fused_recurrent_delta_rule(a.q, a.k, a.v, a.beta)[0],
        ("gated_delta", "chunk_gated_delta_rule"): lambda a: chunk_gated_delta_rule(a.q, a.k, a.v, a.decay, a.beta)[0],
        ("gated_delta", "fused_recurrent_gated_delta_rule"): lambda a: fused_recurrent_gated_delta_rule(
            a.q, a.k, a.v, a.decay, beta=a.beta
        )[0],
    }
    try:
        from fla.ops.momentum_delta_rule.chunk import chunk_momentum_delta_rule
        from fla.ops.momentum_delta_rule.fused_recurrent import fused_recurrent_momentum_delta_rule

        # Both normalise queries and keys inside, if not told otherwise.
        momentum = lambda f: lambda a: f(
            a.q, a.k, a.v, a.decay, a.momentum, beta=a.beta, use_qk_l2norm_in_kernel=False
        )[0]
        peers["titans", "chunk_momentum_delta_rule"] = momentum(chunk_momentum_delta_rule)
        peers["titans", "fused_recurrent_momentum_delta_rule"] = momentum(fused_recurrent_momentum_delta_rule)
    except ImportError:
        pass
    return peers


class Arguments:
    """Random arguments as flash-linear-attention draws them: unit keys, log-sigmoid decays, sigmoid strengths."""

    def __init__(self, shape):
        b, t, h, d = shape
        draw = lambda *axes: torch.randn(*axes, device="cuda", dtype=torch.bfloat16)
        leaf = lambda x: x.detach().requires_grad_()
        self.q, self.k = (leaf(F.normalize(draw(b, t, h, d).float(), dim=-1).bfloat16()) for _ in range(2))
        self.v = leaf(draw(b, t, h, d))
        self.beta = leaf(draw(b, t, h).sigmoid())
        self.decay = leaf(F.logsigmoid(draw(b, t, h).float() + 4))
        self.momentum = leaf(F.logsigmoid(draw(b, t, h).float()))
        self.do = draw(b, t, h, d)

    def leaves(self):
        return [self.q, self.k, self.v, self.beta, self.decay, self.momentum]


def time_peer(peer, arguments, what):
    """Median milliseconds, or why there are none."""

    def forward():
        with torch.no_grad():
            return peer(arguments)

    def both():
        out = peer(arguments)
        out.backward(arguments.do.view_as(out) if out.shape == arguments.do.shape else arguments.do.transpose(1, 2))
        for leaf in arguments.leaves():
            leaf.grad = None

    bench = lambda f: triton.testing.do_bench(f, warmup=25, rep=100, return_mode="median")
    return bench(forward if what == "forward" else both)


def past_the_guard():
    """Lets flash-linear-attention run the gated backward that it refuses on this Triton and GPU (its issue 640: the
    gradients come out wrong): to be timed, not used."""
    try:
        import fla.ops.common.chunk_o as chunk_o
    except ImportError:
        return False
    if not getattr(chunk_o, "IS_NVIDIA_HOPPER", False):
        return False
    chunk_o.IS_NVIDIA_HOPPER = False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="what `cargo bench -p hecate-tests --bench cuda --no-run` built")
    parser.add_argument("--quick", action="store_true", help="one round, not three")
    parser.add_argument("--only", nargs="+", default=[""], help="peers whose names hold one of these")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["large", "small"], help="these")
    parser.add_argument("--compile", nargs=2, metavar=("PEER", "SHAPE"), help="run this once, so that it is compiled")
    parser.add_argument("--jobs", type=int, help="so many peers are compiled at once, beforehand")
    arguments = parser.parse_args()
    if arguments.compile:
        return compile_peer(*arguments.compile)
    rounds = 1 if arguments.quick else 3
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__, "Triton", triton.__version__)
    ours, starred = Ours(arguments.program), past_the_guard()
    print(f"{'rule':<12} {'peer':<38} {'B,T,H,D':<18} {'pass':<8} {'ours':>9} {'theirs':>9} {'ratio':>7}")
    peers = {key: peer for key, peer in theirs().items() if any(only in key[1] for only in arguments.only)}
    if arguments.jobs:
        compile_all(arguments, peers)
    for shape in (SHAPES[name] for name in arguments.shape):
        inputs = Arguments(shape)
        for (rule, name), peer in peers.items():
            for what in ("forward", "both"):
                compare(ours, rule, name, peer, shape, inputs, what, rounds)
    if arguments.only == [""]:
        published(ours)
    if starred:
        print("Gated chunk backwards of flash-linear-attention ran past its own guard: their gradients are wrong here.")


def compile_peer(name, shape):
    """Both passes of a peer, for what they leave in Triton's cache; what each kernel is tuned to is not kept there."""
    past_the_guard()
    peer = next(peer for (_, known), peer in theirs().items() if known == name)
    inputs = Arguments(SHAPES[shape])
    out = peer(inputs)
    out.backward(torch.ones_like(out))
    torch.cuda.synchronize()


def compile_all(arguments, peers):
    """In processes of their own, since compiling takes most of a first call."""
    work = [(name, shape) for shape in arguments.shape for _, name in peers]
    run = lambda of: subprocess.run([sys.executable, __file__, arguments.program, "--compile", *of], capture_output=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for (name, shape), done in zip(work, pool.map(run, work)):
            if done.returncode:
                print(f"compiling {name} for {shape} failed: {done.stderr.decode().splitlines()[-1:]}", flush=True)


def compare(ours, rule, name, peer, shape, inputs, what, rounds):
    """One line of the table."""
    a, b, failure = [], [], None
    for _ in range(rounds):
        a.append(ours.time(rule, "bf16", shape, what))
        try:
            b.append(time_peer(peer, inputs, what))
        except Exception as error:  # whatever a peer fails with is its result
            failure = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            break
    left = f"{rule:<12} {name:<38} {','.join(map(str, shape)):<18} {what:<8} {statistics.median(a):>9.3f}"
    if failure:
        print(left, failure[:80], flush=True)
    else:
        theirs_ms = statistics.median(b)
        print(f"{left} {theirs_ms:>9.3f} {statistics.median(a) / theirs_ms:>7.2f}", flush=True)


def published(ours):
    """Shapes that others published figures for, in 32 bits."""
    for (rule, width), (forward, backward) in PUBLISHED.items():
        shape = (8, 1024, 8, width)
        mine = [ours.time(rule, "f32", shape, what) for what in ("forward", "both")]
        print(
            f"{rule:<12} f32, {','.join(map(str, shape))}: forward {mine[0]:.3f}, both {mine[1]:.3f};"
            f" published {forward}, {forward + backward}"
        )


if __name__ == "__main__":
    main()
