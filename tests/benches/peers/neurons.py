"""Leaky integrate-and-fire neurons of snnTorch and SpikingJelly: spikes, and gradients of currents.

    pip install torch snntorch spikingjelly
    python tests/benches/peers/neurons.py > tests/cpu/neurons.json

Made with the versions that the file names. `tests/cpu/neurons.rs` holds rule `lif` to it. Each case names the settings of
`lif` that are the peer's neuron. All is computed in 64 bits, of currents that never bring a potential next to its threshold.
"""

import json
from importlib.metadata import version

import snntorch
import torch
from snntorch import surrogate as snn
from spikingjelly.activation_based import neuron, surrogate as jelly

TOKENS, WIDTH = 24, 3
torch.set_default_dtype(torch.float64)


def numbers(seed, low, high):
    """Uniform numbers [T,V] that 32 bits hold exactly: multiples of 2^-10."""
    generator = torch.Generator().manual_seed(seed)
    drawn = low + (high - low) * torch.rand(TOKENS, WIDTH, generator=generator)
    return torch.round(drawn * 1024) / 1024


CURRENTS = numbers(1, -0.1, 0.6)
WEIGHTS = numbers(2, -1.0, 1.0)


def torch_case(name, rule, beta, threshold, reset, spike_grad, delay=True):
    """snnTorch's `Leaky`, step by step."""
    node = snntorch.Leaky(beta=beta, threshold=threshold, reset_mechanism=reset, spike_grad=spike_grad,
                          reset_delay=delay, learn_beta=True)
    node = node.double()
    node.beta.data = torch.tensor(beta)
    node.threshold = torch.tensor(threshold)
    x, mem, spikes = CURRENTS.clone().requires_grad_(), torch.zeros(WIDTH), []
    for row in x:
        spike, mem = node(row, mem)
        spikes.append(spike)
    s = torch.stack(spikes)
    (s * WEIGHTS).sum().backward()
    # Where the delayed reset is a part of what decays here, the two betas are not one number.
    da = node.beta.grad.item() if reset == "zero" else None
    return case(name, rule, beta, 1.0, s, x, da)


def jelly_case(name, rule, tau, decay_input, **options):
    """SpikingJelly's `LIFNode`, all steps at once."""
    node = neuron.LIFNode(tau=tau, decay_input=decay_input, step_mode="m", **options)
    x = CURRENTS.clone().requires_grad_()
    s = node(x)
    (s * WEIGHTS).sum().backward()
    return case(name, rule, 1.0 - 1.0 / tau, 1.0 / tau if decay_input else 1.0, s, x, None)


def case(name, rule, a, theta, s, x, da):
    """A line of the file."""
    flat = lambda array: array.detach().flatten().tolist()
    return {"name": name, "rule": {"name": "lif"} | rule, "a": a, "theta": theta,
            "spikes": [int(spike) for spike in flat(s)], "dx": flat(x.grad), "da": da}


CASES = [
    torch_case("snntorch, zero, atan", {"threshold": 0.6, "slope": 2.0, "detach_reset": True},
               0.8, 0.6, "zero", snn.atan(alpha=2.0)),
    torch_case("snntorch, subtract, fast_sigmoid",
               {"threshold": 0.6, "slope": 5.0, "surrogate": "fast_sigmoid", "reset": "subtract", "drop": 0.75,
                "detach_reset": True}, 0.8, 0.6, "subtract", snn.fast_sigmoid(slope=5.0)),
    torch_case("snntorch, subtract at once, fast_sigmoid",
               {"threshold": 0.9, "slope": 5.0, "surrogate": "fast_sigmoid", "reset": "subtract"},
               0.8, 0.9, "subtract", snn.fast_sigmoid(slope=5.0), delay=False),
    jelly_case("spikingjelly, zero, ATan", {"threshold": 0.3}, 2.0, True, v_threshold=0.3, v_reset=0.0,
               surrogate_function=jelly.ATan(alpha=2.0)),
    jelly_case("spikingjelly, soft, PiecewiseQuadratic",
               {"threshold": 0.7, "slope": 1.5, "surrogate": "triangle", "reset": "subtract", "detach_reset": True},
               4.0, False, v_threshold=0.7, v_reset=None, detach_reset=True,
               surrogate_function=jelly.PiecewiseQuadratic(alpha=1.5)),
    jelly_case("spikingjelly, zero, SoftSign",
               {"threshold": 0.5, "slope": 2.0, "surrogate": "fast_sigmoid"},
               3.0, False, v_threshold=0.5, v_reset=0.0, surrogate_function=jelly.SoftSign(alpha=2.0)),
]

print(json.dumps({
    "versions": {name: version(name) for name in ["torch", "snntorch", "spikingjelly"]},
    "tokens": TOKENS, "width": WIDTH,
    "currents": CURRENTS.flatten().tolist(), "weights": WEIGHTS.flatten().tolist(), "cases": CASES,
}))
