"""Reads the fields of config.json and generation_config.json that the decoder needs."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta

from paged_serve.protocol.errors import ConfigError

from ..geometry.model_options import Activation
from ..geometry.recurrent.multipliers import PartMultipliers
from .text_part import read_fields

MAX_SIZE = 1 << 24  # more than any model has
Size = Annotated[int, Meta(ge=-1, le=MAX_SIZE)]  # a value below 1 is reported by name later
NumLayers = Annotated[int, Meta(ge=-1, le=1 << 12)]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MAY_BE_INFINITE = ("time_step_limit",)
ACTIVATIONS: dict[str, Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped", "xielu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "clamped": "clamped",  # gpt-oss, whose config.json has no name for it
}


class DualChunks(msgspec.Struct, frozen=True):
    """Dual chunk attention (An et al., arXiv 2402.17463) differs from full attention only beyond its first chunk."""

    chunk_size: Size
    local_size: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 0

    @property
    def num_positions(self) -> int:
        """Of the first chunk; raises ConfigError if there is none."""
        if self.local_size >= self.chunk_size:
            raise ConfigError(
                f"config.json: dual_chunk_attention_config has local_size={self.local_size}; "
                f"it must be below chunk_size={self.chunk_size}"
            )
        return self.chunk_size - self.local_size


class HFConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that dense decoders share, with the defaults of the format."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: NumLayers
    num_attention_heads: Size
    num_attention_heads_per_layer: list[Annotated[int, Meta(ge=1, le=MAX_SIZE)]] | None = None  # Laguna
    num_key_value_heads: Size | None = None
    layers_in_names: list[int | str] | None = None  # Nemotron NAS, Zamba2: where a block is several layers, or one part
    sizes_of_layers: list[Size] | None = None  # Nemotron NAS: the KV heads, or the elements of the feed-forward
    head_dim: Size | None = None
    vocab_size: Size
    max_position_embeddings: Annotated[int, Meta(ge=-1, le=1 << 30)]
    dual_chunk_attention_config: DualChunks | None = None  # Qwen2.5-1M
    rms_norm_eps: float = 1e-6  # epsilon of the family's norm, whatever its kind
    final_norm_eps: float | None = None  # JetMoe: of the last norm
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False  # bias of the output projection, in families with a separate field for it
    mlp_bias: bool = False
    down_bias: bool | None = None  # of the feed-forward's last projection; None: as `mlp_bias`
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    use_sliding_window: bool = False
    use_bidirectional_attention: bool | None = None  # EmbeddingGemma
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    sliding_window_pattern: Annotated[int, Meta(ge=1)] | None = None  # every n-th layer has full attention
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None  # the older format, which has rope_theta outside
    rope_parameters: dict[str, Any] | None = None  # the newer format, which contains rope_theta
    partial_rotary_factor: float | None = None
    rotary_dim: Size | None = None  # the same as a number of elements
    rope_local_base_freq: float = 10000.0  # Gemma 3: theta of the layers with sliding windows
    layer_rope_theta: list[float] | None = None  # Granite with windows: theta per layer, 0: no rotary embedding
    cross_attention_layers: list[int] | None = None  # Llama 3.2 Vision: the layers that read images
    no_rope_layers: list[int] | None = None  # SmolLM3, Llama 4: 0 for each layer without rotary embeddings
    no_rope_layer_interval: Annotated[int, Meta(ge=1)] = 4  # without that list, every n-th layer has none
    attention_chunk_size: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    attn_temperature_tuning: bool = True  # Llama 4: queries of layers without rotary embeddings grow with the position
    attn_scale: float = 0.1
    floor_scale: Annotated[int, Meta(ge=1)] = 8192
    qk_norm: bool = False  # Llama 4: whether queries and keys are normalised
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    stream_multiplier: float = 1.0  # MiniMax-Text-01: of the residual stream
    attention_multiplier: Annotated[float, Meta(gt=0)] | None = None
    attn_logit_softcapping: Annotated[float, Meta(gt=0)] | None = None
    final_logit_softcapping: Annotated[float, Meta(gt=0)] | None = None
    logits_scaling: Annotated[float, Meta(gt=0)] = 1.0  # the divisor of logits
    original_max_position_embeddings: int | None = None
    type_vocab_size: Size = 0  # encoders: the number of token types
    position_buckets: Annotated[int, Meta(ge=4, le=1 << 16)] = 256  # DeBERTa
    max_relative_positions: int = -1
    task_type_vocab_size: Size = 3  # ERNIE, with use_task_id
    use_task_id: bool = False
    use_parallel_residual: bool = False
    use_sandwich_norm: bool = True  # LFM3: norms after each part
    use_attention_gate: bool = True
    has_gates_of_heads: bool = True  # Laguna: one gate for all elements of a head
    use_post_norm: bool = True  # HyperCLOVA X
    alibi: bool = False  # Falcon
    num_norms: Literal[1, 2] = 2  # norms before a layer's attention and feed-forward; 1: they share one
    do_layer_norm_before: bool = True  # OPT: norms before attention and feed-forward; else after each addition
    word_embed_proj_dim: Size | None = None  # the size of token embeddings; None: hidden_size
    clip_qkv: Annotated[float, Meta(gt=0)] | None = None
    num_experts: Size = 0
    num_experts_per_tok: Size = 0
    moe_intermediate_size: Size = 0
    shared_expert_intermediate_size: Size = 0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    zero_expert_num: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 0  # LongCat-Flash: identities among the experts
    n_group: Size = 1
    topk_group: Size = 1
    first_k_dense_replace: Annotated[int, Meta(ge=0)] = 0  # the first layers that are dense
    mlp_only_layers: list[int] | None = None  # the others that are dense
    decoder_sparse_step: Annotated[int, Meta(ge=1)] = 1  # of the others every n-th has experts
    n_shared_experts: Size = 0
    moe_layers: list[int] | None = None  # Llama 4: the layers with experts
    interleave_moe_layer_step: Annotated[int, Meta(ge=1)] = 1  # without that list, every n-th layer
    expert_selection_fn: Literal["softmax", "sigmoid"] = "softmax"  # Command A+
    shared_expert_combination_strategy: Literal["average", "sum"] = "average"
    prefix_dense_sliding_window_pattern: Annotated[int, Meta(ge=1)] = 1
    has_rms_norm: bool = False  # instead of layer norms
    num_unused_embeddings: Size = 0  # Apertus 1.5: rows of the table behind those of the vocabulary
    xielu_alpha_p: list[float] | None = None  # per layer, of GGUF files; other files of Apertus have tensors
    xielu_alpha_n: list[float] | None = None
    swiglu_alpha: float = 1.702  # gpt-oss
    swiglu_limit: Annotated[float, Meta(gt=0)] = 7.0
    conv_width: Annotated[int, Meta(ge=2, le=8)] = 3  # tokens that a short convolution reads
    conv_bias: bool = False
    use_expert_bias: bool = True  # LFM2: routers correct the scores by which experts are chosen
    attn_layer_indices: list[int] | None = None  # the layers that are not recurrent
    attn_layer_period: Annotated[int, Meta(ge=1)] = 8  # Jamba: layers n with n % period == offset have attention
    attn_layer_offset: Annotated[int, Meta(ge=0)] = 4
    expert_layer_period: Annotated[int, Meta(ge=1)] = 2  # likewise experts
    expert_layer_offset: Annotated[int, Meta(ge=0)] = 1
    mamba_intermediate_size: Size | None = None  # None: mamba_expand * hidden_size
    mamba_dt_rank: Size | Literal["auto"] = "auto"
    mixer_rms_eps: float = 1e-6  # FalconMamba
    mamba_n_heads: Size = 128
    mamba_d_head: Size | Literal["auto"] = "auto"
    mamba_n_groups: Size = 1
    mamba_d_state: Size = 256
    mamba_d_conv: Size = 4
    mamba_expand: Size = 2
    mamba_d_ssm: Size | None = None  # Falcon-H1: elements of all heads; None: mamba_expand * hidden_size
    num_mem_blocks: Size = 1  # Zamba2: blocks that layers share
    use_shared_attention_adapter: bool = False
    adapter_rank: Size = 128
    use_mem_rope: bool = False
    num_loops: int = 1  # Ouro
    mamba_rms_norm: bool = False
    mamba_norm_before_gate: bool = True
    lm_head_multiplier: Annotated[float, Meta(gt=0)] = 1.0
    part_multipliers: PartMultipliers = PartMultipliers()
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    full_attention_interval: Annotated[int, Meta(ge=1)] = 4  # Qwen3-Next, Qwen3.5: every n-th layer has attention
    linear_num_value_heads: Size = 32
    linear_num_key_heads: Size = 16
    linear_key_head_dim: Size = 128
    linear_value_head_dim: Size = 128
    linear_conv_kernel_dim: Size = 4
    linear_lower_bound: float = 0.0  # Ling 3: of the logarithms of decays; 0: none
    linear_allow_neg_eigval: bool = True  # OLMo Hybrid: beta is up to 2
    time_step_limit: tuple[float, float] = (0.0, math.inf)
    head_bias: bool = False  # of the output head, in families with a field for it
    router_jitter_noise: Annotated[float, Meta(ge=0)] = 0.0
    q_lora_rank: Size | None = None  # latent attention; None: queries are projected directly
    kv_lora_rank: Size = 0
    qk_nope_head_dim: Size = 0
    qk_rope_head_dim: Size = 0
    v_head_dim: Size = 0
    index_topk: Size = 0  # sparse attention; 0: none
    index_n_heads: Size = 64
    index_head_dim: Size = 128
    index_interleave: bool = False
    index_sources: list[int] | None = None  # per layer: that whose choice of keys it takes; None: each its own
    attention_value_scale: Annotated[float, Meta(gt=0)] = 1.0  # MiMo-V2
    swa_num_key_value_heads: Size = 0  # of its layers with windows
    rope_interleave: bool = True
    num_nextn_predict_layers: Annotated[int, Meta(ge=0, le=64)] = 1  # layers after the last
    global_head_dim: Size = 512  # Gemma 4: of layers with full attention
    num_global_key_value_heads: Size | None = None  # likewise, if attention_k_eq_v
    attention_k_eq_v: bool = False  # in layers with full attention values are the keys before norm and rotation
    per_layer_config: dict[str, dict[str, Any]] | None = None  # by layer, instead of the three
    num_kv_shared_layers: Annotated[int, Meta(ge=0)] = 0  # the last layers, which have the keys and values of others
    use_double_wide_mlp: bool = False  # in these layers
    hidden_size_per_layer_input: Annotated[int, Meta(ge=0, le=MAX_SIZE)] = 256  # 0: none
    vocab_size_per_layer_input: Size = 262_144
    enable_moe_block: bool = False
    altup_num_inputs: Annotated[int, Meta(ge=2, le=16)] = 4  # Gemma 3n: residual streams
    laurel_rank: Annotated[int, Meta(ge=1, le=MAX_SIZE)] = 64
    activation_sparsity_pattern: list[Annotated[float, Meta(ge=0, lt=1)]] | None = None  # per layer
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | list[int] | None = None


def read_architectures(folder: Path) -> list[str]:
    """The architectures in config.json; they decide the meaning of its other fields. Raises ConfigError.

    Of a model that also reads images or audio, the architecture of its text part.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json; give a local Hugging Face folder")
    architectures = read_fields(folder).get("architectures")
    if not isinstance(architectures, list | None) or not all(isinstance(name, str) for name in architectures or ()):
        raise ConfigError(f"{path} cannot be used: architectures={architectures!r} must be a list of names")
    if not architectures:
        raise ConfigError(
            f"{path} names no architecture, by which the code for the model is chosen; set it, as in "
            '"architectures": ["LlamaForCausalLM"]'
        )
    return architectures


def read_hf_config(folder: Path, rename_fields: Callable[[dict[str, Any]], dict[str, Any]]) -> HFConfig:
    """Read config.json; `rename_fields` renames the fields of the architecture to those of HFConfig.

    Raises ConfigError naming the invalid field.
    """
    path = folder / "config.json"
    found = read_fields(folder)
    if infinite := [name for name, value in found.items() if name not in MAY_BE_INFINITE and not _is_finite(value)]:
        raise ConfigError(f"{path} cannot be used: {infinite[0]}={found[infinite[0]]!r} must be finite")
    fields = rename_fields(found)
    try:
        return msgspec.convert(fields, HFConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def _is_finite(value: Any) -> bool:
    """Whether no number in `value`, however nested, is infinite."""
    pending = [value]
    while pending:
        match pending.pop():
            case float() as number if not math.isfinite(number):
                return False
            case dict() as fields:
                pending.extend(fields.values())
            case list() as values:
                pending.extend(values)
    return True


def activation_of(config: HFConfig, *, is_gated: bool) -> Activation:
    """The activation function. Raises ConfigError if there is no kernel for it."""
    if (kind := ACTIVATIONS.get(config.hidden_act)) is None:
        supported = ", ".join(ACTIVATIONS)
        raise ConfigError(f"config.json: hidden_act {config.hidden_act!r} is not supported; supported: {supported}")
    if kind == "clamped":
        return Activation(kind, is_gated, config.swiglu_alpha, config.swiglu_limit)
    return Activation(kind, is_gated)


def dtype_of(config: HFConfig, wanted: str) -> torch.dtype:
    """The model's dtype: `wanted`, or for "auto" the checkpoint's dtype."""
    if wanted != "auto":
        return DTYPES[wanted]
    own = (config.dtype or config.torch_dtype or "float32").removeprefix("torch.")
    if own not in DTYPES:
        raise ConfigError(f"the checkpoint's dtype {own!r} is not supported; choose one of {', '.join(DTYPES)}")
    return DTYPES[own]
