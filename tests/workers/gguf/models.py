"""Small random models of each family that GGUF files have, as folders and as files."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file, save_file

from ...gguf_architectures import values_of
from ...gguf_files import blocks_of
from ..tiny_models.checkpoints import CLASSES, CONFIGS, SHAPE, randomise
from ..tiny_models.dense_variants import LLAMA3_ROPE, LONG_ROPE
from ..tiny_models.latent_variants import YARN_ROPE

WIDE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 2}  # rows of whole blocks of K-quants
LLAMA31_ROPE = LLAMA3_ROPE | {"original_max_position_embeddings": 8192}
GEMMA = {"head_dim": 32, "sliding_window": 40, "query_pre_attn_scalar": 32}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama", "rms_norm_eps": 0.05},
    "llama-3.1": {"family": "Llama", "rope_parameters": LLAMA31_ROPE, "tie_word_embeddings": True},
    "llama-other-scaling": {"family": "Llama", "rope_parameters": LLAMA3_ROPE},
    "llama-linear-biased": {
        "family": "Llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama-multi-query": {"family": "Llama", "num_key_value_heads": 1, "head_dim": 24},
    "qwen2": {"family": "Qwen2"},
    "qwen2-yarn": {"family": "Qwen2", "rope_parameters": YARN_ROPE, "tie_word_embeddings": True},
    "qwen3": {"family": "Qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "gemma": {"family": "Gemma", "head_dim": 32},
    "gemma2": {
        "family": "Gemma2",
        "num_hidden_layers": 4,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 9.0,
        **GEMMA,
    },
    "gemma3": {"family": "Gemma3", "num_hidden_layers": 6, **GEMMA},
    "phi2": {"family": "Phi", "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1000.0}},
    "phi3": {"family": "Phi3", "sliding_window": 40},
    "phi3-partial": {"family": "Phi3", "rope_parameters": {"partial_rotary_factor": 0.75, "rope_theta": 1000.0}},
    "phi3-longrope": {"family": "Phi3", "rope_parameters": LONG_ROPE, "original_max_position_embeddings": 128},
    "mixtral": {"family": "Mixtral", "num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen2-moe": {
        "family": "Qwen2Moe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    },
    "qwen3-moe": {
        "family": "Qwen3Moe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "head_dim": 32,
    },
    "olmoe": {"family": "Olmoe", "num_experts": 6, "num_experts_per_tok": 3},
    "gpt-oss": {
        "family": "GptOss",
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "head_dim": 16,
        "sliding_window": 40,
        "rope_parameters": YARN_ROPE | {"truncate": False},
    },
    "wide": {"family": "Llama", **WIDE},
}


def write_model(name: str, folder: Path, dtype: torch.dtype) -> Path:
    """Write the folder of MODELS[name], by transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        options = SHAPE | MODELS[name]
        family = options.pop("family")
        config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(**options)
        model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config).eval()
        randomise(model)
        model.to(dtype).save_pretrained(folder)
    return folder


def dequantize_folder(folder: Path, kind_of: Callable[[str], Any]) -> None:
    """Replace the matrices in a Llama `folder` by what the gguf package makes of their blocks, as float32."""
    tensors = load_file(folder / "model.safetensors")
    shape = SHAPE | WIDE
    for name, tensor in tensors.items():
        if tensor.dim() == 2 and (kind := kind_of(name)) is not None:
            stored = values_of(name, tensor, "llama", shape).float()
            values = torch.from_numpy(gguf.dequantize(blocks_of(kind, stored), kind).copy())
            tensors[name] = _unpermuted(name, values, shape)
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _unpermuted(name: str, values: torch.Tensor, shape: dict[str, Any]) -> torch.Tensor:
    heads = {"q_proj": shape["num_attention_heads"], "k_proj": shape["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return values
    pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, values.shape[1])
    return pairs.swapaxes(1, 2).reshape(values.shape)
