"""Makes the adapters in `adapters`, and what PEFT computes with them.

    pip install --target PACKAGES torch==2.15.0 transformers==5.24.0 peft==0.21.2
    PYTHONPATH=PACKAGES python adapters.py [NAME ...]

A folder each, of an adapter of the model of that name: `adapter_config.json` and `adapter_model.safetensors` as PEFT's own
`save_pretrained` writes them, and `expected.safetensors` with the logits of the model's texts (`make.py`), their mean loss, and its
gradient by every parameter of the adapter, by the names of the file. All of it is computed in 64 bits.
"""

import json
import pathlib
import sys

from make import HERE, in_64_bits, texts
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

ADAPTERS = pathlib.Path(__file__).parent / "adapters"


def llama():
    """Attention alone, as its folder has it."""
    return transformers.LlamaForCausalLM.from_pretrained(HERE / "llama", dtype=torch.float32)


def qwen3_5():
    """The text's part of a model that sees, by the names that it has alone."""
    config = json.loads((HERE / "qwen3_5" / "config.json").read_text())
    config = transformers.Qwen3_5TextConfig(**config["text_config"], tie_word_embeddings=config["tie_word_embeddings"])
    model = transformers.Qwen3_5ForCausalLM(config)
    weights = load_file(HERE / "qwen3_5" / "model.safetensors")
    text = {name.replace("model.language_model.", "model."): x for name, x in weights.items() if ".language_model." in name}
    missing, unexpected = model.load_state_dict(text, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], []), (missing, unexpected)
    model.tie_weights()
    return model


MLP = ["gate_proj", "up_proj", "down_proj"]
MODELS = {
    "llama": (llama, LoraConfig(r=2, lora_alpha=7, target_modules=["q_proj", "v_proj", "o_proj", *MLP])),
    "qwen3_5": (
        qwen3_5,
        LoraConfig(
            r=3, lora_alpha=5, use_rslora=True, target_modules=["in_proj_qkv", "in_proj_z", "out_proj", "q_proj", "mlp.down_proj"]
        ),
    ),
}


def save(name):
    """Writes an adapter whose `B` is not zero, as one that has learned, and what is expected of it."""
    make, config = MODELS[name]
    config.task_type = "CAUSAL_LM"
    model = get_peft_model(make(), config)
    torch.manual_seed(11)
    learned = {key: x for key, x in model.named_parameters() if x.requires_grad}
    for x in learned.values():
        x.data = 0.2 * torch.randn_like(x)
    model.save_pretrained(ADAPTERS / name)
    (ADAPTERS / name / "README.md").unlink()
    # Where the model lies is another place on every machine.
    path = ADAPTERS / name / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": name}, indent=2) + "\n")
    # Gradients are asked for by all parameters.
    model.requires_grad_(True)
    logits, loss, gradients = in_64_bits(model, texts())
    of_file = lambda key: key.replace(".default", "")
    expected = {f"gradient.{of_file(key)}": gradients[key].float().contiguous() for key in learned}
    expected |= {"logits": logits.float().contiguous(), "loss": loss.float()}
    save_file(expected, ADAPTERS / name / "expected.safetensors")
    print(name, f"loss {loss:.4f}", len(learned))


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:] or MODELS:
        save(name)
