"""config.json of a GGUF model: the fields that its architecture has in Hugging Face checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .experts import gpt_oss, mixtral, olmoe, qwen2_moe, qwen3_moe
from .model import GgufModel
from .rope import rope_fields

GEMMA_TANH = "gelu_pytorch_tanh"
# llama.cpp recognises the 27B models, whose scores have another scale, by their number of layers.
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One GGUF architecture."""

    name: str  # in config.json
    model_type: str
    more: Callable[[GgufModel, int], dict[str, Any]]  # (model, head_dim) -> its own fields
    epsilon: str = "rms_norm_eps"
    is_partial: bool = False  # heads may be partially rotated


def _nothing_more(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {}


def _llama(model: GgufModel, head_dim: int) -> dict[str, Any]:
    has = {name: model.tensor(f"blk.0.{name}.bias") is not None for name in ("attn_q", "ffn_up")}
    return {"attention_bias": has["attn_q"], "mlp_bias": has["ffn_up"]}


def _gemma(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"hidden_activation": GEMMA_TANH}


def _scalar(model: GgufModel, head_dim: int) -> float:
    """The scores' divisor, squared."""
    if model.has("attention.scale"):
        if not (scale := model.number("attention.scale")) > 0:
            raise model.refused(f"attention.scale={scale:g} must be above 0")
        return scale**-2
    if model.whole("block_count") == LAYERS_OF_27B[model.architecture]:
        return model.whole("embedding_length") / model.whole("attention.head_count")
    return head_dim


def _gemma2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return _gemma(model, head_dim) | {
        "query_pre_attn_scalar": _scalar(model, head_dim),
        "sliding_window": model.whole("attention.sliding_window", 4096),
        "attn_logit_softcapping": model.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": model.number("final_logit_softcapping", 30.0),
    }


def _gemma3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    if model.has("final_logit_softcapping"):
        raise model.refused("final_logit_softcapping is not supported for gemma3")
    return _gemma(model, head_dim) | {
        "query_pre_attn_scalar": _scalar(model, head_dim),
        "sliding_window": model.whole("attention.sliding_window"),
        "rope_local_base_freq": model.number("rope.freq_base_swa", 10000.0),
        "sliding_window_pattern": model.whole("attention.sliding_window_pattern", 6),
    }


def _phi2(model: GgufModel, head_dim: int) -> dict[str, Any]:
    return {"hidden_act": "gelu_new"}


def _phi3(model: GgufModel, head_dim: int) -> dict[str, Any]:
    window = model.whole("attention.sliding_window", 0)
    return {"sliding_window": window} if window else {}


ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", _llama),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2", _nothing_more),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3", _nothing_more),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", "qwen2_moe", qwen2_moe),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", "qwen3_moe", qwen3_moe),
    "olmoe": Architecture("OlmoeForCausalLM", "olmoe", olmoe),
    "gpt-oss": Architecture("GptOssForCausalLM", "gpt_oss", gpt_oss),
    "gemma": Architecture("GemmaForCausalLM", "gemma", _gemma),
    "gemma2": Architecture("Gemma2ForCausalLM", "gemma2", _gemma2),
    "gemma3": Architecture("Gemma3ForCausalLM", "gemma3_text", _gemma3),
    "phi2": Architecture("PhiForCausalLM", "phi", _phi2, epsilon="layer_norm_eps", is_partial=True),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", _phi3, is_partial=True),
}
OF_EXPERTS = ("qwen2moe", "qwen3moe", "olmoe", "gpt-oss")
MIXTRAL = Architecture("MixtralForCausalLM", "mixtral", mixtral)  # its GGUF architecture is llama, too
VISION = ("clip", "mmproj")


def config_fields(model: GgufModel) -> dict[str, Any]:
    """The fields. Raises ConfigError for what is not supported, by its name."""
    architecture = _supported(model)
    heads, hidden_size = model.whole("attention.head_count"), model.whole("embedding_length")
    if heads < 1 or hidden_size < 1:
        raise model.refused(f"attention.head_count={heads} and embedding_length={hidden_size} must be at least 1")
    head_dim = model.whole("attention.key_length", hidden_size // heads)
    rotary_dim = model.whole("rope.dimension_count", head_dim)
    _check_heads(model, architecture, head_dim, rotary_dim)
    embedding = model.tensor("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise model.refused("it has no matrix token_embd.weight")
    norm = "layer_norm_epsilon" if architecture.epsilon == "layer_norm_eps" else "layer_norm_rms_epsilon"
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "hidden_size": hidden_size,
        "intermediate_size": model.whole("feed_forward_length"),
        "num_hidden_layers": model.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": model.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": model.whole("context_length"),
        "vocab_size": embedding.shape[0],
        architecture.epsilon: model.number(f"attention.{norm}"),
        "tie_word_embeddings": model.tensor("output.weight") is None,
        "torch_dtype": _dtype(model),
        **rope_fields(model, rotary_dim),
        **({"partial_rotary_factor": rotary_dim / head_dim} if architecture.is_partial else {}),
        **architecture.more(model, head_dim),
    }


def _supported(model: GgufModel) -> Architecture:
    name = model.architecture
    if name in VISION:
        raise model.refused("it is the vision or audio part of a model (mmproj); give the file of the language model")
    if name not in ARCHITECTURES:
        raise model.refused(f"the GGUF architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if (experts := model.whole("expert_count", 0)) and name not in OF_EXPERTS:
        if name != "llama":
            raise model.refused(f"it is a mixture of {experts} experts, which is not supported for {name}")
        return MIXTRAL
    return ARCHITECTURES[name]


def _check_heads(model: GgufModel, architecture: Architecture, head_dim: int, rotary_dim: int) -> None:
    value_dim = model.whole("attention.value_length", head_dim)
    if head_dim < 2 or value_dim != head_dim:
        raise model.refused(f"keys have {head_dim} elements a head and values {value_dim}; equal sizes are supported")
    if rotary_dim != head_dim and not (architecture.is_partial and 0 < rotary_dim < head_dim):
        raise model.refused(f"rope.dimension_count={rotary_dim} is not supported with heads of {head_dim} elements")


def _dtype(model: GgufModel) -> str:
    """The dtype of the matrices, routers excepted; bfloat16 if any is quantized, since its range is float32's."""
    matrices = [each for file in model.files for each in file.tensors.values() if len(each.shape) > 1]
    found = {each.format.name for each in matrices if not _is_float32(each.name)}
    return {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}.get(frozenset(found), "bfloat16")


def _is_float32(name: str) -> bool:
    """Whether the converter writes a tensor of more dimensions than one as F32 whatever the model's dtype."""
    return ".ffn_gate_inp." in name or name.endswith(".bias")
