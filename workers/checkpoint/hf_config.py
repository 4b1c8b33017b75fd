"""Reads the fields of config.json and generation_config.json that the decoder needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.json_file import read_json_file

from .geometry import Activation, RopeScaling

Size = Annotated[int, Meta(ge=-1, le=1 << 24)]  # larger than any model's; a value below 1 is reported by name later
NumLayers = Annotated[int, Meta(ge=-1, le=1 << 12)]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
ROPE_FIELDS = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_positions",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}


ACTIVATIONS: dict[str, Literal["silu", "gelu", "gelu_tanh", "relu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


class HFConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json that dense decoders share; defaults are those of the format."""

    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: NumLayers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    max_position_embeddings: Annotated[int, Meta(ge=-1, le=1 << 30)]
    rms_norm_eps: float = 1e-6  # of the family's norm, of any kind
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: Annotated[int, Meta(ge=0, le=1 << 30)] | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None  # the older spelling, beside rope_theta
    rope_parameters: dict[str, Any] | None = None  # the newer one, which contains it
    partial_rotary_factor: float | None = None
    rope_local_base_freq: float = 10000.0  # Gemma 3's layers that slide
    no_rope_layers: list[int] | None = None  # SmolLM3: 0 for each layer without rotary embeddings
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: Annotated[float, Meta(gt=0)] | None = None
    logits_scaling: Annotated[float, Meta(gt=0)] = 1.0
    original_max_position_embeddings: int | None = None
    dtype: str | None = None
    torch_dtype: str | None = None
    eos_token_id: int | list[int] | None = None


class GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


class _Architectures(msgspec.Struct, frozen=True):
    architectures: list[str] | None = None


def read_architectures(folder: Path) -> list[str]:
    """Of config.json, whose other fields only make sense once these are known. Raises ConfigError naming the folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no config.json; give a local Hugging Face folder")
    return read_json_file(path, _Architectures).architectures or []


def read_hf_config(folder: Path, in_common_names: Callable[[dict[str, Any]], dict[str, Any]]) -> HFConfig:
    """Of an architecture that is served, which may have other names for fields.

    Raises ConfigError naming the field that does not fit.
    """
    path = folder / "config.json"
    fields = in_common_names(read_json_file(path, dict[str, Any]))
    try:
        return msgspec.convert(fields, HFConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} cannot be used: {error}") from error


def activation_of(config: HFConfig, *, is_gated: bool) -> Activation:
    """The activation function. Raises ConfigError for one without a kernel."""
    if (kind := ACTIVATIONS.get(config.hidden_act)) is None:
        supported = ", ".join(ACTIVATIONS)
        raise ConfigError(f"config.json: hidden_act {config.hidden_act!r} is not supported; supported are {supported}")
    return Activation(kind, is_gated)


def eos_token_ids(folder: Path, config: HFConfig) -> tuple[int, ...]:
    """From generation_config.json if it names any, else from config.json; may be empty."""
    path = folder / "generation_config.json"
    found: int | list[int] | None = None
    if path.is_file():
        found = read_json_file(path, GenerationConfig).eos_token_id
    if found is None:
        found = config.eos_token_id
    return (found,) if isinstance(found, int) else tuple(found or ())


def dtype_of(config: HFConfig, wanted: str) -> torch.dtype:
    """The dtype to compute in: `wanted`, or for "auto" the checkpoint's own."""
    if wanted != "auto":
        return DTYPES[wanted]
    own = (config.dtype or config.torch_dtype or "float32").removeprefix("torch.")
    if own not in DTYPES:
        raise ConfigError(f"the checkpoint's dtype {own!r} is not supported; choose one of {', '.join(DTYPES)}")
    return DTYPES[own]


def rope_of(config: HFConfig, parameters: dict[str, Any] | None = None) -> RopeScaling:
    """The rotary parameters, in either spelling; `parameters`: those that only some layers have."""
    if parameters is None:
        parameters = dict(config.rope_parameters or config.rope_scaling or {})
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise ConfigError(f"rope type {kind!r} is not supported; supported are {', '.join(ROPE_KINDS)}")
    partial = parameters.get("partial_rotary_factor") or config.partial_rotary_factor or 1.0
    if partial != 1.0:
        raise ConfigError(f"partial_rotary_factor={partial} is not supported; only whole heads are rotated")
    known = {ours: parameters[theirs] for theirs, ours in ROPE_FIELDS.items() if parameters.get(theirs) is not None}
    theta = parameters.get("rope_theta") or config.rope_theta or 10000.0
    if config.original_max_position_embeddings is not None:
        known["original_max_positions"] = config.original_max_position_embeddings
    known.setdefault("original_max_positions", config.max_position_embeddings)
    if kind in ("linear", "llama3", "yarn") and "factor" not in known:
        raise ConfigError(f"rope type {kind!r} needs a factor, but config.json has none")
    try:
        return msgspec.convert({"kind": kind, "theta": theta, **known}, RopeScaling)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: the rope parameters cannot be used: {error}") from error
