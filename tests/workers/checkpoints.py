"""Tiny random models, written and run by transformers: the reference for our decoder."""

import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.layers.backend import Backend
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import load_model

from .latent_variants import LATENT_VARIANTS, YARN_ROPE
from .recurrent_variants import RECURRENT_VARIANTS

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0 + 0.05 * pair for pair in range(6)],
    "long_factor": [1.5 + 0.5 * pair for pair in range(6)],
    "partial_rotary_factor": 0.75,
}
CLASSES = {"GPT2": "GPT2LMHeadModel", "Llama4Text": "Llama4ForCausalLM"}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {"family": "Llama", "rms_norm_eps": 0.05},
    "llama-3.1": {"family": "Llama", "rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    "llama-linear-biased": {
        "family": "Llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama-dynamic": {
        "family": "Llama",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    },
    "llama-multi-query": {"family": "Llama", "num_key_value_heads": 1, "head_dim": 24},
    "llama-attention-biased": {"family": "Llama", "attention_bias": True},
    "llama-even": {"family": "Llama", "intermediate_size": 128},
    "mistral-7-queries-per-key": {
        "family": "Mistral",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "sliding_window": None,
    },
    "mistral-sliding": {"family": "Mistral", "sliding_window": 40, "head_dim": 32},
    "mistral-full": {"family": "Mistral", "sliding_window": None, "num_key_value_heads": 4},
    "qwen2": {"family": "Qwen2", "sliding_window": 40},
    "qwen2-upper-layers-slide": {
        "family": "Qwen2",
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen2-yarn": {"family": "Qwen2", "rope_parameters": YARN_ROPE},
    "qwen3": {"family": "Qwen3", "head_dim": 32, "tie_word_embeddings": True},
    "opt": {"family": "OPT", "ffn_dim": 96, "word_embed_proj_dim": 64},
    "opt-untied-gelu": {
        "family": "OPT",
        "ffn_dim": 96,
        "activation_function": "gelu",
        "word_embed_proj_dim": 64,
        "tie_word_embeddings": False,
    },
    "opt-350m": {"family": "OPT", "ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "opt-post-norm": {"family": "OPT", "ffn_dim": 96, "word_embed_proj_dim": 64, "do_layer_norm_before": False},
    "gemma": {"family": "Gemma", "head_dim": 32},
    "gemma3": {
        "family": "Gemma3",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "sliding_window": 40,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma3-one-layer-fills-up-a-group": {
        "family": "Gemma3",
        "num_hidden_layers": 5,
        "head_dim": 32,
        "sliding_window": 24,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"],
    },
    "gemma2": {
        "family": "Gemma2",
        "num_hidden_layers": 4,
        "head_dim": 32,
        "sliding_window": 40,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 9.0,
        "tie_word_embeddings": False,
    },
    "bloom-even": {"family": "Bloom"},
    "bloom": {"family": "Bloom", "num_attention_heads": 3, "hidden_size": 96, "tie_word_embeddings": False},
    "granite": {
        "family": "Granite",
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
    },
    "granite-heads-of-16": {
        "family": "Granite",
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.25,
        "logits_scaling": 8.0,
        "tie_word_embeddings": True,
    },
    "smollm3": {"family": "SmolLM3", "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]},
    "phi3": {"family": "Phi3", "sliding_window": 40},
    "starcoder2": {"family": "Starcoder2"},
    "starcoder2-plain-sliding": {
        "family": "Starcoder2",
        "use_bias": False,
        "sliding_window": 33,
        "hidden_act": "gelu",
        "tie_word_embeddings": False,
    },
    "gpt-bigcode": {"family": "GPTBigCode", "n_positions": 512, "n_inner": 96},
    "gpt-neox": {"family": "GPTNeoX", "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1000.0}},
    "gpt-neox-in-turn": {
        "family": "GPTNeoX",
        "use_parallel_residual": False,
        "attention_bias": False,
        "hidden_act": "gelu_fast",
        "num_attention_heads": 2,
        "rope_parameters": {"partial_rotary_factor": 0.75, "rope_theta": 1000.0},
    },
    "gptj": {"family": "GPTJ", "n_positions": 512, "n_inner": 96, "rotary_dim": 4},
    "falcon": {"family": "Falcon", "ffn_hidden_size": 96},
    "falcon-two-norms": {
        "family": "Falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "ffn_hidden_size": 96,
        "bias": True,
        "tie_word_embeddings": False,
    },
    "falcon-one-norm": {
        "family": "Falcon",
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
        "ffn_hidden_size": 96,
    },
    "falcon-in-turn": {
        "family": "Falcon",
        "ffn_hidden_size": 96,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    },
    "falcon-alibi": {
        "family": "Falcon",
        "ffn_hidden_size": 96,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
        "bias": True,
    },
    "falcon-alibi-6-heads": {
        "family": "Falcon",
        "ffn_hidden_size": 96,
        "alibi": True,
        "num_attention_heads": 6,
        "hidden_size": 96,
    },
    "mpt": {"family": "Mpt"},
    "mpt-clipped": {
        "family": "Mpt",
        "n_heads": 6,
        "d_model": 96,
        "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.2},
        "tie_word_embeddings": False,
    },
    "phi": {"family": "Phi", "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1000.0}},
    "stablelm": {"family": "StableLm", "use_qkv_bias": True},
    "stablelm-qk-norm": {"family": "StableLm", "qk_layernorm": True},
    "phi-qk-norm": {"family": "Phi", "qk_layernorm": True, "partial_rotary_factor": 0.5, "intermediate_size": 160},
    "cohere-qk-norm": {"family": "Cohere", "logit_scale": 0.25, "use_qk_norm": True, "tie_word_embeddings": False},
    "nemotron": {"family": "Nemotron"},
    "nemotron-biased": {"family": "Nemotron", "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    "arcee": {"family": "Arcee", "head_dim": 24},
    "llama4": {
        "family": "Llama4Text",
        "num_hidden_layers": 5,
        "intermediate_size_mlp": 96,
        "moe_layers": [],
        "head_dim": 32,
        "attention_chunk_size": 40,
        "no_rope_layers": [1, 0, 1, 1, 0],
        "floor_scale": 24,
        "attn_scale": 0.5,
    },
    "llama4-chunks-of-whole-blocks": {
        "family": "Llama4Text",
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 96,
        "moe_layers": [],
        "attention_chunk_size": 48,
        "use_qk_norm": False,
        "attn_temperature_tuning": False,
    },
    "stablelm-parallel": {"family": "StableLm", "use_parallel_residual": True, "tie_word_embeddings": True},
    "cohere": {"family": "Cohere", "logit_scale": 0.25},
    "cohere2": {"family": "Cohere2", "num_hidden_layers": 4, "sliding_window": 40, "logit_scale": 0.5},
    "olmo": {"family": "Olmo"},
    "olmo-clipped": {"family": "Olmo", "clip_qkv": 0.7, "num_key_value_heads": 4, "attention_bias": True},
    "olmo2": {"family": "Olmo2"},
    "olmo3": {"family": "Olmo3", "num_hidden_layers": 4, "sliding_window": 40},
    "glm": {"family": "Glm", "head_dim": 24},
    "glm4": {"family": "Glm4", "head_dim": 16, "attention_bias": False},
    "exaone4": {"family": "Exaone4", "num_hidden_layers": 4, "sliding_window": 40},
    "exaone4-full": {"family": "Exaone4", "sliding_window": None, "layer_types": ["full_attention"] * 3},
    "phi3-partial": {"family": "Phi3", "rope_parameters": {"partial_rotary_factor": 0.75, "rope_theta": 1000.0}},
    "phi3-longrope": {"family": "Phi3", "rope_parameters": LONG_ROPE, "original_max_position_embeddings": 128},
    "helium": {"family": "Helium", "head_dim": 16, "tie_word_embeddings": True},
    "seed-oss": {"family": "SeedOss", "head_dim": 24, "attention_out_bias": True, "mlp_bias": True},
    "mixtral": {"family": "Mixtral", "num_local_experts": 8},
    "qwen2-moe": {
        "family": "Qwen2Moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 80,
        "decoder_sparse_step": 2,
    },
    "qwen3-moe": {
        "family": "Qwen3Moe",
        "head_dim": 32,
        "num_experts": 10,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "phimoe": {
        "family": "Phimoe",
        "num_local_experts": 6,
        "attention_bias": True,
        "lm_head_bias": True,
        "router_jitter_noise": 0.2,
    },
    "granitemoe": {
        "family": "GraniteMoe",
        "num_local_experts": 6,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0625,
        "logits_scaling": 8.0,
    },
    "glm4-moe": {
        "family": "Glm4Moe",
        "head_dim": 24,
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "n_shared_experts": 2,
        "moe_intermediate_size": 40,
        "routed_scaling_factor": 1.5,
    },
    "glm4-moe-wide": {
        "family": "Glm4Moe",
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_attention_heads": 8,
        "head_dim": 16,
        "n_routed_experts": 12,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 128,
    },
    "llama4-experts": {
        "family": "Llama4Text",
        "num_hidden_layers": 4,
        "intermediate_size": 48,
        "intermediate_size_mlp": 96,
        "moe_layers": [1, 3],
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "head_dim": 32,
        "attention_chunk_size": 40,
        "no_rope_layers": [1, 0, 1, 1],
    },
    "gpt-oss": {
        "family": "GptOss",
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "head_dim": 16,
        "sliding_window": 40,
        "swiglu_limit": 1.5,
        "rope_parameters": YARN_ROPE | {"truncate": False},
    },
    "olmoe": {"family": "Olmoe", "num_experts": 12, "num_experts_per_tok": 5},
    "gpt2": {"family": "GPT2", "n_positions": 512},
    "gpt2-relu-untied": {
        "family": "GPT2",
        "n_positions": 400,
        "n_embd": 72,
        "n_inner": 88,
        "activation_function": "relu",
        "tie_word_embeddings": False,
    },
    **RECURRENT_VARIANTS,
    **LATENT_VARIANTS,
}


def reference(variant: str, folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Write the variant's checkpoint in `dtype` to `folder`, and return transformers' float32 model of it."""
    write_checkpoint(variant, folder, dtype)
    return transformers_model(folder, attention=_attention(variant))


def write_checkpoint(
    variant: str, folder: Path, dtype: torch.dtype = torch.float32, fields: dict[str, Any] | None = None, **save: Any
) -> None:
    """Write the variant's checkpoint in `dtype` to `folder`: a copy, as a process makes each only once.

    `fields` replace those of the variant's configuration; tuples stand for lists.
    """
    shutil.copytree(_made(variant, dtype, tuple((fields or {}).items()), **save), folder, dirs_exist_ok=True)


@cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Where the checkpoints of this process are, until it ends."""
    return tempfile.TemporaryDirectory(prefix="paged-serve-checkpoints-")


@cache
def _made(variant: str, dtype: torch.dtype, fields: tuple[tuple[str, Any], ...], **save: Any) -> Path:
    folder = Path(tempfile.mkdtemp(dir=_home().name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in fields}
        options = {**SHAPE, **VARIANTS[variant], **lists}
        family = options.pop("family")
        if family in (
            "GPT2",
            "GPTBigCode",
            "GPTJ",
        ):  # otherwise its own names and the common names would contradict each other
            common = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
            ours = {name: options.pop(name) for name in (*common, "intermediate_size", "num_key_value_heads")}
            options = {"n_embd": ours["hidden_size"], "n_layer": 3, "n_head": 4, **options}
        if family == "Mpt":
            common = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
            ours = {name: options.pop(name) for name in (*common, "intermediate_size", "num_key_value_heads")}
            options = {"d_model": ours["hidden_size"], "n_layers": 3, "n_heads": 4, "max_seq_len": 512, **options}
        config = getattr(transformers, CONFIGS.get(family, f"{family}Config"))(
            **options, attn_implementation=_attention(variant)
        )
        model = getattr(transformers, CLASSES.get(family, f"{family}ForCausalLM"))(config).eval()
        randomise(model)
        model.to(dtype).save_pretrained(folder, **save)
    return folder


def _attention(variant: str) -> str:
    """The correct attention implementation of transformers: with "eager", Falcon adds ALiBi's bias twice."""
    return "sdpa" if variant.startswith("falcon-alibi") else "eager"


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Any:
    """The folder's model in transformers; its rotary frequencies are float32, which a later `.to` would round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
        return loaded.eval()


def randomise(model: Any) -> None:
    """Randomise all parameters so that each matters: norms are not 1, biases are not 0, and logits are far apart."""
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith(".weight") and ("norm" in name or ".ln_" in name):
                parameter.copy_(1 + 0.3 * noise)
            elif "embed" in name or ".wte." in name or ".wpe." in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.dim() == 1 else 1.6 / parameter.shape[1] ** 0.5))
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))


def reference_logits(model: Any, token_ids: list[int]) -> Tensor:
    """The logits [tokens, vocab] float32."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return logits


def reference_continues(model: Any, prompt: list[int], text: list[int]) -> bool:
    """Whether `text` is the model's greedy text after `prompt`: in one pass, instead of one for each token."""
    chosen = reference_logits(model, prompt + text).argmax(1)
    return bool((chosen[len(prompt) - 1 : -1] == torch.tensor(text)).all())


def reference_greedy(model: Any, token_ids: list[int], num_tokens: int) -> list[int]:
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.generation_config.eos_token_id = None
        output = model.generate(
            torch.tensor([token_ids]),
            attention_mask=torch.ones(1, len(token_ids), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
    chosen: list[int] = output[0].tolist()[len(token_ids) :]
    return chosen


def ours(
    folder: Path,
    dtype: Any = "auto",
    group: TensorParallelGroup | None = None,
    pool: Pool | None = None,
    backend: Backend | None = None,
    **options: Any,
) -> Model:
    """Our model on torch row by row, on the kernels of `pool`, or on `backend`; `options` are fields of ModelConfig."""
    config = ModelConfig(dtype=dtype, device="cpu", **options)
    return load_model(str(folder), config, group or TensorParallelGroup(), lambda done, total: None, pool, backend)


def random_tokens(num_tokens: int, seed: int = 0, vocab_size: int = SHAPE["vocab_size"]) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, vocab_size, (num_tokens,), generator=generator).tolist()
    return tokens
