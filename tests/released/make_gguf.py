"""Makes the GGUF files in `gguf`, and what is expected of them.

    pip install --target PACKAGES torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3
    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36   # unpacked: SDIST
    PYTHONPATH=PACKAGES:SDIST/vendor/llama.cpp:SDIST/vendor/llama.cpp/gguf-py python make_gguf.py

`llama.gguf` and `qwen3_5_text.gguf` are the models of these names in `models`, as llama.cpp's own converter writes them: what is
expected of those is expected of these. Their tokenizers are left out, since the models have none.

`blocks.gguf` is a model of llama's shape with a matrix in every format that is read, and sizes of whole blocks: random blocks, of
which `blocks.safetensors` has the values, by the names of a folder, as PyPI's `gguf` reads them. It has a tokenizer of a few
merges; `texts.json` has the tokens of texts by PyPI's `tokenizers`, cut into words as SmolLM2's tokenizer does.
"""

import json
import pathlib
import sys
import tempfile

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TO = HERE / "gguf"


def converted(name):
    """A folder's model by llama.cpp's converter, in the types that it picks for f32."""
    import convert_hf_to_gguf as convert

    folder = HERE / "models" / name
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    kind = convert.get_model_class({"llama": "LlamaForCausalLM"}.get(name, "Qwen3_5ForCausalLM"))
    kind.set_vocab, kind.no_mtp = (lambda self: None), True
    with tempfile.TemporaryDirectory() as empty:
        # Only what the model is made of: expected values are arrays too.
        for path in folder.iterdir():
            if path.name != "expected.safetensors":
                (pathlib.Path(empty) / path.name).write_bytes(path.read_bytes())
        (pathlib.Path(empty) / "config.json").write_text(json.dumps(config))
        out = TO / f"{name}.gguf"
        kind(pathlib.Path(empty), gguf.LlamaFileType.ALL_F32, out).write()
    print(out, out.stat().st_size, text["model_type"])


VOCABULARY = 300
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "", " ", "The cat sat on the mat, and the old cat saw 1234 mats.", "  two  spaces\n\n\tand tabs \n", "it's they'll",
    "<|im_start|>user\ncat<|im_end|>\n", "naïve café, 12½ ٣٤ 中文 😀 e\u0301", "x = a+b; // 0x1F", "\r\n\r\n", " <|im_end|> ",
]


def tokenizer():
    """Byte-level BPE that cuts words as SmolLM2's does: digits one by one, then as GPT-2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return made


def random_blocks(shape, kind, draw):
    """Bytes of blocks whose scales are small and finite, and all else random."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (shape[0], shape[1] // values, size), dtype=np.uint8)
    # Where a format's 16-bit floats are.
    halves = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}.get(kind.name, [0, 2])
    for at in halves:
        floats = draw.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = floats[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def blocks():
    """A matrix of every format."""
    draw, hidden, inner, width = np.random.default_rng(5), 256, 32, 6
    kind = gguf.GGMLQuantizationType
    matrices = {
        "token_embd": ("model.embed_tokens", (VOCABULARY, hidden), kind.Q4_0),
        "output": ("lm_head", (VOCABULARY, hidden), kind.Q4_1),
    }
    of_blocks = [
        [kind.Q4_K, kind.Q5_K, kind.Q6_K, kind.F16, kind.Q8_0, kind.Q5_0, kind.Q5_1],
        [kind.Q6_K, kind.Q4_K, kind.BF16, kind.F32, kind.Q5_K, kind.Q4_1, kind.Q4_0],
    ]
    for layer, kinds in enumerate(of_blocks):
        at = f"model.layers.{layer}."
        parts = [
            ("attn_q", "self_attn.q_proj", (3 * width, hidden)), ("attn_k", "self_attn.k_proj", (width, hidden)),
            ("attn_v", "self_attn.v_proj", (width, hidden)), ("attn_output", "self_attn.o_proj", (hidden, 3 * width)),
            ("ffn_gate", "mlp.gate_proj", (inner, hidden)), ("ffn_up", "mlp.up_proj", (inner, hidden)),
            ("ffn_down", "mlp.down_proj", (hidden, inner)),
        ]
        matrices |= {f"blk.{layer}.{a}": (at + b, shape, kind) for (a, b, shape), kind in zip(parts, kinds)}
    norms = {"output_norm": "model.norm"}
    for layer in range(len(of_blocks)):
        norms |= {f"blk.{layer}.{a}": f"model.layers.{layer}.{b}" for a, b in
                  [("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")]}

    writer = gguf.GGUFWriter(TO / "blocks.gguf", "llama")
    writer.add_block_count(len(of_blocks))
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    writer.add_rope_dimension_count(width)
    add_tokenizer(writer)
    expected = {}
    for name, (ours, shape, kind) in matrices.items():
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            stored = draw.normal(0, 0.1, shape).astype(np.float32 if kind.name == "F32" else np.float16)
            values = stored.astype(np.float32)
        elif kind == gguf.GGMLQuantizationType.BF16:
            stored = gguf.quantize(draw.normal(0, 0.1, shape).astype(np.float32), kind)
            values = gguf.dequantize(stored, kind)
        else:
            stored = random_blocks(shape, kind, draw)
            values = gguf.dequantize(stored, kind)
        writer.add_tensor(f"{name}.weight", stored, raw_dtype=kind)
        if name.endswith(("attn_q", "attn_k")):
            # Back from neighbours to halves.
            values = values.reshape(-1, width // 2, 2, hidden).swapaxes(1, 2).reshape(shape)
        expected[f"{ours}.weight"] = np.ascontiguousarray(values)
    for name, ours in norms.items():
        values = (1 + draw.normal(0, 0.1, hidden)).astype(np.float32)
        writer.add_tensor(f"{name}.weight", values)
        expected[f"{ours}.weight"] = values
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Rows of every matrix are alike: the first and the last ones tell.
    save_file({name: np.concatenate([x[:9], x[-9:]]) if x.ndim == 2 else x for name, x in expected.items()},
              TO / "blocks.safetensors")


def add_tokenizer(writer):
    """The tokenizer, and `texts.json`."""
    made = tokenizer()
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    assert len(tokens) == VOCABULARY, len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    texts = [[text, made.encode(text).ids] for text in TEXTS]
    (TO / "texts.json").write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    TO.mkdir(exist_ok=True)
    blocks()
    for name in sys.argv[1:] or ["llama", "qwen3_5_text"]:
        converted(name)
