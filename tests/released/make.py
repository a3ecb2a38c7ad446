"""Makes the small models of other people's families in `models`, and what their own code computes of them.

    pip install --target PACKAGES torch==2.15.0 transformers==5.24.0 flash-linear-attention==0.6.0
    PYTHONPATH=PACKAGES python make.py [NAME ...]

A folder each: `config.json` and weights as the family's own `save_pretrained` writes them, and `expected.safetensors` with tokens
`ids [2,131]`, the logits of the first 130 of them `[2,130,V]`, the mean loss of the tokens that follow, and its gradient by every
parameter, by the names of the file. Sizes are odd and unlike each other, and values are large, so that no mistake hides.

All of it is computed in 64 bits. What transformers casts to 32 bits is kept in 64; kernels of flash-linear-attention know 32 alone,
so there the recurrence is written out here, and its logits are compared with those of the kernels.
"""

import json
import os
import pathlib
import sys

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton.runtime.autotuner as autotuner

# An interpreter has nothing to measure: the first of a kernel's variants is as good as any.
autotuner.Autotuner.do_bench = staticmethod(lambda *_, **__: [1.0, 1.0, 1.0])
# Transformers would call kernels of flash-linear-attention, which know 32 bits alone.
sys.modules["fla"] = None
import transformers
from transformers import Lfm2ForCausalLM, LlamaForCausalLM, OlmoHybridForCausalLM, Qwen3_5ForCausalLM

del sys.modules["fla"]
from safetensors import safe_open
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent / "models"
VOCABULARY, TOKENS = 37, 130
COMMON = dict(vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, pad_token_id=None)


def draw(model):
    """Larger matrices than a fresh model has, and norms and constants of gates that are not all the same."""
    torch.manual_seed(7)
    for name, x in model.named_parameters():
        if name.endswith("dt_bias"):
            x.data += torch.randn_like(x) - 1
        elif x.dim() == 1:
            x.data += 0.2 * torch.randn_like(x)
        elif "conv1d" in name:
            # Short keys and queries show what is added to their squares.
            x.data = 0.15 * torch.randn_like(x)
        else:
            x.data = torch.randn_like(x) * x.shape[-1] ** -0.5 * 1.5


def texts():
    """Tokens `[2,131]`; each text is of tokens that come again."""
    torch.manual_seed(3)
    return torch.randint(0, VOCABULARY, (2, TOKENS + 1))


def measured(forward, parameters, ids):
    """Logits, loss and gradients of a forward from tokens to logits."""
    logits = forward(ids[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return logits.detach(), loss.detach(), dict(zip(parameters, gradients))


def in_64_bits(model, ids):
    """What transformers computes, with its casts to 32 bits undone."""
    narrow, cast = torch.float32, torch.Tensor.float
    model = model.double()
    torch.set_default_dtype(torch.float64)
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        return measured(lambda x: model(x, use_cache=False).logits, dict(model.named_parameters()), ids)
    finally:
        torch.float32, torch.Tensor.float = narrow, cast
        torch.set_default_dtype(narrow)


def rms(x, weight, epsilon):
    """A root-mean-square norm."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def recurrence(q, k, v, log_a, beta):
    """The gated delta rule token by token: `q, k [B,T,H,K]`, `v [B,T,H,V]`, gates `[B,T,H]`."""
    state, out = torch.zeros(*k[:, 0].shape, v.shape[-1], dtype=v.dtype), []
    for t in range(q.shape[1]):
        state = state * log_a[:, t].exp()[..., None, None]
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * error)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * k.shape[-1] ** -0.5)
    return torch.stack(out, 1)


def mixer(w, x, config, heads):
    """A delta rule as flash-linear-attention has it, with or without retention and output gate."""
    conv = lambda y, taps: torch.nn.functional.conv1d(
        torch.nn.functional.pad(y.mT, (taps.shape[-1] - 1, 0)), taps, groups=taps.shape[0]
    ).mT
    silu = torch.nn.functional.silu
    values = getattr(config, "num_v_heads", None) or heads
    each = dict(q=heads, k=heads, v=values)
    q, k, v = (silu(conv(x @ w[f"{n}_proj.weight"].mT, w[f"{n}_conv1d.weight"])).unflatten(-1, (h, -1)) for n, h in each.items())
    # Value heads that share a key head are neighbours.
    q, k = (y.repeat_interleave(values // heads, -2) for y in (q, k))
    q, k = (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    beta = (x @ w["b_proj.weight"].mT).sigmoid() * (2 if config.allow_neg_eigval else 1)
    log_a = torch.zeros_like(beta)
    if "A_log" in w:
        log_a = -w["A_log"].exp() * torch.nn.functional.softplus(x @ w["a_proj.weight"].mT + w["dt_bias"])
    out = rms(recurrence(q, k, v, log_a, beta), w["o_norm.weight"], config.norm_eps)
    if "g_proj.weight" in w:
        gate = (x @ w["g_proj.weight"].mT).unflatten(-1, (values, -1))
        act = torch.sigmoid if getattr(config, "output_gate_activation", "swish") == "sigmoid" else silu
        out = out * act(gate)
    return out.flatten(-2) @ w["o_proj.weight"].mT


def written_out(model, ids):
    """A model of flash-linear-attention in 64 bits, and how far its own kernels in 32 bits are from that."""
    config = model.config
    w = {name: x.detach().double().requires_grad_() for name, x in model.named_parameters()}

    def forward(tokens):
        x = w["model.embeddings.weight"][tokens]
        for layer in range(config.num_hidden_layers):
            at = f"model.layers.{layer}."
            part = lambda of: {name.removeprefix(at + of): v for name, v in w.items() if name.startswith(at + of)}
            normed = rms(x, w[at + "attn_norm.weight"], config.norm_eps)
            x = x + mixer(part("attn."), normed, config, config.num_heads)
            mlp, normed = part("mlp."), rms(x, w[at + "mlp_norm.weight"], config.norm_eps)
            inner = torch.nn.functional.silu(normed @ mlp["gate_proj.weight"].mT) * (normed @ mlp["up_proj.weight"].mT)
            x = x + inner @ mlp["down_proj.weight"].mT
        return rms(x, w["model.norm.weight"], config.norm_eps) @ w["lm_head.weight"].mT

    truth = measured(forward, w, ids)
    apart = lambda a, b: float((a - b).norm() / b.norm())
    # With no gradient and so few tokens both rules run token by token, which the interpreter can do.
    with torch.no_grad():
        few = ids[:, :64]
        distance = apart(model.eval()(few, use_cache=False).logits, truth[0][:, :64])
    print(f"    its kernels: {distance:.1e}")
    assert distance < 1e-5
    return truth


def save(name, model, compute, shard="1GB", dtype=torch.float32, change=None):
    """Writes a folder."""
    folder = HERE / name
    draw(model)
    # Constants of gates keep 32 bits in files of 16. What a file holds is what is computed with.
    for key, x in model.named_parameters():
        x.data = x.data.to(torch.float32 if key.endswith(("A_log", "dt_bias")) else dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    logits, loss, gradients = compute(model.float(), texts())
    print(name, f"loss {loss:.4f}, largest logit {logits.abs().max():.2f}")
    expected = {f"gradient.{key}": x.float().contiguous() for key, x in gradients.items()}
    expected |= {"logits": logits.float().contiguous(), "loss": loss.float(), "ids": texts().int()}
    save_file(expected, folder / "expected.safetensors")
    if change:
        change(folder)
    for path in folder.glob("generation_config.json"):
        path.unlink()


def nested(folder):
    """As released models that see have it: the text's fields and names one level down, and tensors of other parts."""
    config = json.loads((folder / "config.json").read_text())
    outer = {key: config.pop(key) for key in ("architectures", "dtype", "transformers_version", "tie_word_embeddings")}
    outer |= {"model_type": "qwen3_5", "text_config": config}
    (folder / "config.json").write_text(json.dumps(outer, indent=2) + "\n")
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        weights = {key.replace("model.", "model.language_model.", 1): x for key, x in load_file(path).items()}
        weights |= {"mtp.fc.weight": torch.ones(3, 2), "model.visual.patch_embed.bias": torch.ones(5, dtype=torch.bfloat16)}
        save_file(weights, path, metadata)


def llama(heads, kv_heads, width, tied):
    """Attention alone."""
    config = transformers.LlamaConfig(
        **COMMON, hidden_size=7 * heads, intermediate_size=23, num_hidden_layers=2, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=width, rms_norm_eps=1e-3, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )
    return LlamaForCausalLM(config)


def delta_net():
    """The delta rule, whose memories can turn over."""
    from fla.models import DeltaNetConfig, DeltaNetForCausalLM

    config = DeltaNetConfig(
        **COMMON, hidden_size=18, num_heads=3, expand_v=1.5, num_hidden_layers=2, intermediate_size=23,
        allow_neg_eigval=True, conv_size=3, norm_eps=1e-3,
    )
    return DeltaNetForCausalLM(config)


def gated_deltanet(heads=3, **more):
    """The gated delta rule."""
    from fla.models import GatedDeltaNetConfig, GatedDeltaNetForCausalLM

    config = GatedDeltaNetConfig(
        **COMMON, hidden_size=17, num_heads=heads, head_dim=6, expand_v=1.5, num_hidden_layers=2, intermediate_size=23,
        norm_eps=1e-3, **more,
    )
    return GatedDeltaNetForCausalLM(config)


def olmo_hybrid(**more):
    """The gated delta rule beside attention after whose branches the norms are."""
    config = transformers.OlmoHybridConfig(
        **COMMON, hidden_size=21, intermediate_size=23, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        layer_types=["linear_attention", "full_attention", "linear_attention"], linear_key_head_dim=5,
        linear_value_head_dim=8, rms_norm_eps=1e-3, **more,
    )
    config.head_dim = 6
    return OlmoHybridForCausalLM(config)


def qwen3_5(tied, keys=3, values=3):
    """The gated delta rule beside gated attention."""
    config = transformers.Qwen3_5TextConfig(
        **COMMON, hidden_size=19, intermediate_size=23, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=12, layer_types=["linear_attention", "full_attention", "linear_attention"], linear_key_head_dim=6,
        linear_value_head_dim=9, linear_num_key_heads=keys, linear_num_value_heads=values, linear_conv_kernel_dim=3, rms_norm_eps=1e-3,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    )
    return Qwen3_5ForCausalLM(config)


def mamba2():
    """Hebbian memories whose steps say how much they forget; two groups of three heads share keys and queries."""
    config = transformers.Mamba2Config(
        **COMMON, hidden_size=15, num_heads=6, head_dim=5, expand=2, state_size=7, n_groups=2, conv_kernel=3,
        num_hidden_layers=2, layer_norm_epsilon=1e-3, chunk_size=16,
    )
    return transformers.Mamba2ForCausalLM(config)


def lfm2():
    """Gated convolutions beside attention with norms of queries and keys; the MLPs' width is made of the one that is told."""
    config = transformers.Lfm2Config(
        **COMMON, hidden_size=18, intermediate_size=35, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        layer_types=["conv", "full_attention", "conv"], conv_L_cache=4, norm_eps=1e-3, block_multiple_of=9,
        block_ffn_dim_multiplier=1.1, rope_parameters=ROTARY,
    )
    return Lfm2ForCausalLM(config)


def granitemoehybrid(hidden=15, groups=2, **more):
    """Memories as Mamba-2's beside attention whose scores have a factor of their own, as have both branches."""
    config = transformers.GraniteMoeHybridConfig(
        **COMMON, hidden_size=hidden, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        layer_types=["linear_attention", "full_attention", "linear_attention"], shared_intermediate_size=23, rms_norm_eps=1e-3,
        mamba_n_heads=6, mamba_d_head=hidden // 3, mamba_n_groups=groups, mamba_d_state=7, mamba_d_conv=3, mamba_chunk_size=16,
        num_local_experts=0, num_experts_per_tok=0, embedding_multiplier=1.7, residual_multiplier=0.6,
        attention_multiplier=0.7, logits_scaling=1.3, **more,
    )
    return transformers.GraniteMoeHybridForCausalLM(config)


def falcon_h1(**more):
    """Memories as Mamba-2's and attention side by side, and factors nearly everywhere."""
    config = transformers.FalconH1Config(
        **COMMON, hidden_size=18, intermediate_size=23, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        mamba_d_ssm=30, mamba_n_heads=6, mamba_d_head=5, mamba_n_groups=2, mamba_d_state=7, mamba_d_conv=3,
        mamba_chunk_size=16, rms_norm_eps=1e-3, rope_parameters=ROTARY, ssm_multipliers=[0.8, 0.9, 1.1, 1.2, 0.7],
        mlp_multipliers=[0.8, 1.3], key_multiplier=0.6, attention_in_multiplier=0.9, attention_out_multiplier=0.7,
        ssm_in_multiplier=1.2, ssm_out_multiplier=0.8, embedding_multiplier=1.5, lm_head_multiplier=0.7, **more,
    )
    return transformers.FalconH1ForCausalLM(config)


ROTARY = {"rope_type": "default", "rope_theta": 1000.0}
MODELS = {
    "llama": lambda name: save(name, llama(3, 1, 6, True), in_64_bits),
    "llama_bf16": lambda name: save(name, llama(4, 2, 6, False), in_64_bits, "8KB", torch.bfloat16),
    "delta_net": lambda name: save(name, delta_net(), written_out),
    "gated_deltanet": lambda name: save(name, gated_deltanet(), written_out, "8KB"),
    "gated_deltanet_f16": lambda name: save(
        name, gated_deltanet(output_gate_activation="sigmoid", allow_neg_eigval=True), written_out, dtype=torch.float16
    ),
    "olmo_hybrid": lambda name: save(name, olmo_hybrid(rope_parameters=ROTARY | {"rope_theta": None}), in_64_bits, "8KB"),
    "olmo_hybrid_rotary": lambda name: save(name, olmo_hybrid(rope_parameters=ROTARY), in_64_bits),
    "gated_deltanet_grouped": lambda name: save(name, gated_deltanet(heads=2, num_v_heads=4), written_out),
    "olmo_hybrid_grouped": lambda name: save(
        name, olmo_hybrid(rope_parameters=ROTARY, linear_num_key_heads=2, linear_num_value_heads=4), in_64_bits, "8KB"
    ),
    "mamba2": lambda name: save(name, mamba2(), in_64_bits, "8KB"),
    "lfm2": lambda name: save(name, lfm2(), in_64_bits, "8KB"),
    "granitemoehybrid": lambda name: save(name, granitemoehybrid(tie_word_embeddings=True), in_64_bits),
    "granitemoehybrid_rotary": lambda name: save(
        name, granitemoehybrid(18, 1, position_embedding_type="rope", rope_parameters=ROTARY), in_64_bits, "8KB", torch.bfloat16
    ),
    "falcon_h1": lambda name: save(name, falcon_h1(), in_64_bits, "8KB"),
    "falcon_h1_gate_first": lambda name: save(
        name, falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=False, tie_word_embeddings=True), in_64_bits
    ),
    "falcon_h1_norm_first": lambda name: save(
        name, falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=True), in_64_bits, dtype=torch.bfloat16
    ),
    "qwen3_5": lambda name: save(name, qwen3_5(True), in_64_bits, change=nested),
    "qwen3_5_text": lambda name: save(name, qwen3_5(False), in_64_bits, "8KB", torch.bfloat16),
    "qwen3_5_grouped": lambda name: save(name, qwen3_5(False, 2, 6), in_64_bits, "8KB"),
}

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or MODELS:
        MODELS[name](name)
