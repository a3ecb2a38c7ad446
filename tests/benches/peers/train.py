"""A training run of 131 million parameters in PyTorch and flash-linear-attention: the model and the step of
`hecate train --rule delta`, timed beside it on one GPU.

    hecate train --device cuda --text kjv.txt --tokenizer tokenizer.json --rule delta --erase decayed --layers 12 \\
        --width 768 --heads 12 --batch 8 --tokens 2048 --steps 40 --lr 6e-4 --precision bf16 \\
        --eval-every 60 --save-every 60
    python3 tests/benches/peers/train.py --parameters 130962096 [--loss chunks] [--graph]
    python3 tests/benches/peers/train.py --parameters 130962096 --compile
    python3 tests/benches/peers/train.py --parameters 130851216 --no-decay

Needs PyTorch, Triton and flash-linear-attention. Weights, their moments and clipped gradients have 32 bits, activations and
the copies of weights that meet them 16; tokens are random, on which speed does not depend, and nothing waits for the GPU
between steps. Every function of flash-linear-attention is first held to PyTorch's own in 32 bits, which stand in for those
that fail. `--loss chunks` keeps no scores, `--graph` records both passes, and with `--compile` torch.compile makes all but
products and the rule. On some Triton and GPUs flash-linear-attention refuses the rule with forgetting: then its guard is
taken away, to time it, and the line of the check says what its gradients are worth. Checking compiles every kernel for small
arguments too, which takes minutes: `--unchecked` leaves it out. `--no-decay` (in Hecate `"decay": false` in a `--config`)
does without. `--reference` needs PyTorch alone, and no GPU.
"""

import argparse
import math
import statistics
import sys
import time
import types

import torch
import torch.nn.functional as F
from torch import nn

EPSILON, ALIGNED = 1e-6, 64


class Plain:
    """Parts of the model in PyTorch's own functions. A part is a function of arrays."""

    def norm(x, stream, weight):
        """`x [B,T,C]`, added to the stream, which there is none of at first: normalised, and the sum."""
        stream = x if stream is None else stream + x
        return F.rms_norm(stream.float(), weight.shape, weight.float(), EPSILON).to(x.dtype), stream

    def conv(x, weight):
        """`x [B,T,C]`, `weight [C,1,taps]`."""
        tokens, taps = x.shape[1], weight.shape[-1]
        past, weight = F.pad(x, (0, 0, taps - 1, 0)).float(), weight.float()
        return F.silu(sum(past[:, i : i + tokens] * weight[:, 0, i] for i in range(taps))).to(x.dtype)

    def rule(q, k, v, b, a=None, A_log=None, dt_bias=None):
        """`q, k, v [B,T,H,D]`, `a, b [B,T,H]`, token by token; without `a` nothing is forgotten."""
        dtype, (q, k, v, beta) = v.dtype, (x.float() for x in (q, k, v, b.sigmoid()))
        q, k = (x * (x.square().sum(-1, keepdim=True) + EPSILON).rsqrt() for x in (q, k))
        keep = torch.ones_like(beta) if a is None else torch.exp(-A_log.exp() * F.softplus(a.float() + dt_bias))
        memory, out = q.new_zeros(*q.shape[::2], q.shape[-1], v.shape[-1]), []
        for t in range(q.shape[1]):
            memory = memory * keep[:, t, :, None, None]
            error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], memory)
            memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
        return torch.stack(out, 1).to(dtype)

    def readout(x, gate, weight):
        """`x, gate [B,T,H,D]`."""
        return (F.rms_norm(x.float(), weight.shape, weight.float(), EPSILON) * F.silu(gate.float())).to(x.dtype)

    def mlp(gate, up, down):
        return F.linear((F.silu(gate.float()) * up.float()).to(up.dtype), down)

    def loss(x, table, mask, targets):
        """The mean, of rows `x [N,C]`; `table [V,C]`, `mask [V]`."""
        return F.cross_entropy(F.linear(x, table, mask).float(), targets)


def theirs(loss, decay):
    """The same parts in flash-linear-attention. Lengths of queries and keys, and forgetting, are its rules' own work."""
    from fla.modules.activations import swiglu_linear
    from fla.modules.causal_conv1d import causal_conv1d
    from fla.modules.fused_cross_entropy import cross_entropy_loss
    from fla.modules.fused_linear_cross_entropy import fused_linear_cross_entropy_loss
    from fla.modules.norm.fused_norm_gate import rms_norm_gated
    from fla.modules.norm.layernorm import rms_norm
    from fla.ops.delta_rule import chunk_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    def gated(q, k, v, b, a, A_log, dt_bias):
        inside = dict.fromkeys(["use_qk_l2norm_in_kernel", "use_beta_sigmoid_in_kernel", "use_gate_in_kernel"], True)
        return chunk_gated_delta_rule(q, k, v, a, b, scale=1.0, A_log=A_log, dt_bias=dt_bias, **inside)[0]

    def delta(q, k, v, b):
        return chunk_delta_rule(q, k, v, b.sigmoid(), scale=1.0, use_qk_l2norm_in_kernel=True)[0]

    def scores(x, table, mask, targets):
        return cross_entropy_loss(F.linear(x, table, mask), targets, inplace_backward=True)[0].mean()

    def chunks(x, table, mask, targets):
        return fused_linear_cross_entropy_loss(x, targets, table, mask, accumulate_grad_in_fp32=False)

    return {
        "norm": lambda x, stream, weight: rms_norm(x, weight, None, stream, EPSILON, prenorm=True),
        "conv": lambda x, weight: causal_conv1d(x, weight.squeeze(1), activation="silu")[0],
        "rule": gated if decay else delta,
        "readout": lambda x, gate, weight: rms_norm_gated(x, gate, weight, None, eps=EPSILON),
        "mlp": lambda gate, up, down: swiglu_linear(gate, up, down, None),
        "loss": {"scores": scores, "chunks": chunks}[loss],
    }


def examples(decay, device):
    """Small arguments of each part."""
    draw = lambda *axes: torch.randn(*axes, device=device).bfloat16()
    b, t, h, d, v = 2, 128, 2, 64, 1024
    x, heads, gate = (lambda: draw(b, t, h * d)), (lambda: draw(b, t, h, d)), (lambda: draw(b, t, h))
    forgetting = [gate(), draw(h).float(), draw(h).float() - 3] if decay else []
    return {
        "norm": [x(), x(), draw(h * d)],
        "conv": [x(), draw(h * d, 1, 4)],
        "rule": [heads(), heads(), heads(), gate(), *forgetting],
        "readout": [heads(), heads(), draw(d)],
        "mlp": [x(), x(), draw(d, h * d) / 8],
        "loss": [draw(b * t, d), draw(v, d) / 8, torch.zeros_like(draw(v)), torch.randint(v, (b * t,), device=device)],
    }


def outcome(part, arguments, wide):
    """What a part makes of arguments, and the gradients by them."""
    leaf = lambda x: (x.float() if wide else x.clone()).requires_grad_() if x.is_floating_point() else x
    arguments = [leaf(x) for x in arguments]
    out = part(*arguments)
    out = out if isinstance(out, tuple) else (out,)
    torch.manual_seed(1)
    leaves = [x for x in arguments if x.requires_grad]
    weights = [torch.randn_like(x.float()).to(x.dtype) for x in out]
    return out, torch.autograd.grad(out, leaves, weights)


def far(found, expected):
    """The largest distance of arrays, over the length of what is expected."""
    return max(float((a.detach().float() - b).norm() / b.norm()) for a, b in zip(found, expected))


def parts(options, device):
    """What the model is made of: flash-linear-attention's parts, or PyTorch's compiled, where they work."""
    chosen = {name: getattr(Plain, name) for name in ("norm", "conv", "rule", "readout", "mlp", "loss")}
    if options.reference:
        return types.SimpleNamespace(**chosen)
    if options.decay:
        from compare import past_the_guard

        if past_the_guard():
            print("flash-linear-attention refuses the backward with forgetting on this Triton and GPU: past its guard")
    wanted, whose = theirs(options.loss, options.decay), dict.fromkeys(chosen, "flash-linear-attention")
    for name in chosen.keys() - {"rule"} if options.compile else ():
        wanted[name], whose[name] = torch.compile(chosen[name], dynamic=False), "PyTorch, compiled"
    if options.unchecked:
        return types.SimpleNamespace(**wanted)
    given = examples(options.decay, device)
    for name, part in wanted.items():
        try:
            pairs = zip(outcome(part, given[name], False), outcome(chosen[name], given[name], True))
            values, gradients = (far(found, expected) for found, expected in pairs)
        except Exception as error:  # whatever it fails with, PyTorch's own remains
            if name == "rule":  # whose time token by token says nothing
                raise
            print(f"{name}: PyTorch ({type(error).__name__}: {str(error)[:80]})")
            continue
        chosen[name] = part
        print(f"{name}: {whose[name]}, {values:.2%} from PyTorch in 32 bits, its gradients {gradients:.2%}")
    return types.SimpleNamespace(**chosen)


class Block(nn.Module):
    def __init__(self, parts, width, heads, decay, deviation):
        super().__init__()
        self.parts, self.heads = parts, heads
        inner = math.ceil(math.ceil(8 * width / 3) / 16) * 16
        self.attn_norm, self.mlp_norm = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.o_norm = nn.Parameter(torch.ones(width // heads))
        self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.o_proj = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        taps = lambda: nn.Parameter((2 * torch.rand(width, 1, 4) - 1) * math.sqrt(3 / 4))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = taps(), taps(), taps()
        self.b_proj = nn.Linear(width, heads)
        self.a_proj = nn.Linear(width, heads, bias=False) if decay else None
        if decay:
            self.A_log = nn.Parameter((1 + 15 * torch.rand(heads)).log())
            step = torch.exp(math.log(1e-3) + math.log(100) * torch.rand(heads))
            self.dt_bias = nn.Parameter(step.expm1().log())
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, width, bias=False)
        for name, map in self.named_children():
            if map is not None:
                nn.init.normal_(map.weight, std=deviation if name in ("o_proj", "down_proj") else 0.02)
        nn.init.zeros_(self.b_proj.bias)

    def forward(self, x, stream):
        parts, split = self.parts, lambda x: x.unflatten(-1, (self.heads, -1))
        y, stream = parts.norm(x, stream, self.attn_norm)
        q = split(parts.conv(self.q_proj(y), self.q_conv1d))
        k = split(parts.conv(self.k_proj(y), self.k_conv1d))
        v = split(parts.conv(self.v_proj(y), self.v_conv1d))
        forgetting = () if self.a_proj is None else (self.a_proj(y), self.A_log, self.dt_bias)
        read = parts.rule(q, k, v, self.b_proj(y), *forgetting)
        x = self.o_proj(parts.readout(read, split(self.g_proj(y)), self.o_norm).flatten(2))
        y, stream = parts.norm(x, stream, self.mlp_norm)
        return parts.mlp(self.gate_proj(y), self.up_proj(y), self.down_proj.weight), stream


class Model(nn.Module):
    """The mean loss of tokens `[B,T+1]`."""

    def __init__(self, parts, options):
        super().__init__()
        self.parts, self.more = parts, -options.vocabulary % ALIGNED
        self.table = nn.Parameter(0.02 * torch.randn(options.vocabulary, options.width))
        deviation = 0.02 / math.sqrt(2 * options.layers)
        block = lambda: Block(parts, options.width, options.heads, options.decay, deviation)
        self.blocks = nn.ModuleList(block() for _ in range(options.layers))
        self.norm = nn.Parameter(torch.ones(options.width))
        # Scores come in rows that matrix units like; no softmax gives those after the vocabulary anything.
        mask = torch.cat([torch.zeros(options.vocabulary), torch.full((self.more,), -1e30)])
        self.register_buffer("mask", mask.bfloat16())

    def forward(self, tokens):
        x, stream = F.embedding(tokens[:, :-1], self.table), None
        for block in self.blocks:
            x, stream = block(x, stream)
        y, _ = self.parts.norm(x, stream, self.norm)
        table = F.pad(self.table, (0, 0, 0, self.more))
        return self.parts.loss(y.flatten(0, 1), table, self.mask, tokens[:, 1:].flatten())


class Optimizer:
    """AdamW over 32-bit weights, of which the model's own are copies: 16-bit ones, constants of gates excepted."""

    def __init__(self, model):
        self.copies = list(model.parameters())
        self.weights = [x.detach().clone() for x in self.copies]
        for (name, copy), weight in zip(model.named_parameters(), self.weights):
            weight.grad = torch.empty_like(weight)
            copy.data = copy.data if name.endswith(("A_log", "dt_bias")) else copy.data.bfloat16()
        groups = [{"params": [], "weight_decay": 0.0}, {"params": [], "weight_decay": 0.1}]
        for copy, weight in zip(self.copies, self.weights):
            groups[weight.dim() > 1 and copy is not model.table]["params"].append(weight)
        self.adamw = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(self):
        torch._foreach_copy_([x.grad for x in self.weights], [x.grad for x in self.copies])
        nn.utils.clip_grad_norm_(self.weights, 1.0, foreach=True)
        self.adamw.step()
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.weights)


def recorded(passes, tokens):
    """The passes as one CUDA graph."""
    tokens, side = tokens.clone(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            passes(tokens)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = passes(tokens)

    def replay(others):
        tokens.copy_(others)
        graph.replay()
        return loss

    return replay


def main():
    options = arguments()
    device = "cpu" if options.reference and not torch.cuda.is_available() else "cuda"
    torch.manual_seed(1)
    if device == "cuda":
        print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    model = Model(parts(options, device), options).to(device)
    count = sum(x.numel() for x in model.parameters())
    print(f"{count} parameters")
    if options.parameters not in (None, count):
        sys.exit(f"{options.parameters} were asked for")
    report(options, *train(model, Optimizer(model), options, device))


def train(model, optimizer, options, device):
    """Times of all steps in milliseconds, and the last loss."""
    shape = (options.steps, options.batch, options.tokens + 1)
    texts = torch.randint(options.vocabulary, shape, device=device)

    def passes(tokens):
        for x in optimizer.copies:
            x.grad = None
        loss = model(tokens)
        loss.backward()
        return loss.detach()

    passes = recorded(passes, texts[0]) if options.graph else passes
    marks = [mark(device)]
    for step, tokens in enumerate(texts, 1):
        loss = passes(tokens)
        optimizer.step()
        marks.append(mark(device))
        if device == "cuda" and step == options.warmup:
            torch.cuda.reset_peak_memory_stats()
    loss = float(loss)
    between = lambda a, b: a.elapsed_time(b) if device == "cuda" else 1e3 * (b - a)
    return [between(a, b) for a, b in zip(marks, marks[1:])], loss


def mark(device):
    """A moment on the device's own clock."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def report(options, times, loss):
    times, tokens = times[options.warmup :], options.batch * options.tokens
    median, mean = statistics.median(times), statistics.mean(times)
    print(f"a step: median {median:.2f} ms, mean {mean:.2f}, {min(times):.2f} to {max(times):.2f} ({len(times)} steps)")
    print(f"{tokens / median * 1e3:.0f} tokens/s (by the mean {tokens / mean * 1e3:.0f}), last loss {loss:.3f}")
    if torch.cuda.is_available():
        taken, held = torch.cuda.max_memory_allocated() / 1e9, torch.cuda.max_memory_reserved() / 1e9
        print(f"at most {taken:.2f} GB in use, {held:.2f} GB held by the pool")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "width": 768, "heads": 12, "batch": 8, "tokens": 2048, "vocabulary": 50257, "steps": 40}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N")
    parser.add_argument("--warmup", type=int, default=8, metavar="N", help="steps at the start that are not counted")
    parser.add_argument("--parameters", type=int, metavar="N", help="how many the model must have")
    parser.add_argument("--no-decay", dest="decay", action="store_false", help="memories that do not forget")
    parser.add_argument("--loss", choices=["scores", "chunks"], default="scores", help="of all scores, or some at a time")
    parser.add_argument("--graph", action="store_true", help="record both passes as a CUDA graph")
    parser.add_argument("--compile", action="store_true", help="PyTorch's own parts, compiled, except the rule")
    parser.add_argument("--unchecked", action="store_true", help="without holding parts to PyTorch's own first")
    parser.add_argument("--reference", action="store_true", help="PyTorch's own parts, the rule token by token")
    options = parser.parse_args()
    if not options.warmup < options.steps:
        parser.error("--warmup has to be under --steps")
    return options


if __name__ == "__main__":
    main()
