"""The ways in which model families differ, with the defaults that most of them share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.experts import Experts
from ...geometry.geometry import Geometry, Head, Part
from ...geometry.layer_options import Disentangled, Latent, RelativePositions, alibi_slopes
from ...geometry.model_options import Biases, Caps, Multipliers, NormKind, QKNorm
from ...geometry.recurrent.recurrent import Recurrent
from ...geometry.rope_scaling import RopeScaling
from ...pooling.head import LabelLayer
from ...pooling.spec import Kind, LabelPooling
from ..names.mtp_names import MtpNames
from ..names.weight_names import USUAL_NAMES, WeightNames
from .rope_config import rope_of

LARGEST = 1e300  # of a field: its products with sizes are finite
MAX_LAYERS = 1 << 12  # HFConfig refuses more
FULL, SLIDING = "full_attention", "sliding_attention"  # values of layer_types


def no_caps(_: HFConfig) -> Caps:
    return Caps()


def no_biases(_: HFConfig) -> Biases:
    return Biases()


def biases_of_layers(_: HFConfig) -> Biases:
    return Biases(qkv=True, output=True, mlp=True)


def biases_of_attention(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias, output=config.attention_bias)


def biases_of_qkv(config: HFConfig) -> Biases:
    return Biases(qkv=config.attention_bias)


def renamed(fields: dict[str, Any], names: Mapping[str, str], **defaults: Any) -> dict[str, Any]:
    """A config.json's fields, renamed by `names` (its own name: the common one). A null field counts as absent."""
    return defaults | {names.get(name, name): value for name, value in fields.items() if value is not None}


def need(model: str, fields: dict[str, Any], **values: Any) -> None:
    """Raises ConfigError for a field that is present with another value."""
    for name, value in values.items():
        if fields.get(name) not in (None, value):
            raise ConfigError(f"config.json: {name}={fields[name]} is not supported for {model}; only {value} is")


def positive(fields: dict[str, Any], name: str) -> float:
    """The field `name`. Raises ConfigError if it is absent or not a number above 0."""
    if not isinstance(value := fields.get(name), int | float) or not 0 < value <= LARGEST:
        raise ConfigError(f"config.json: {name}={value!r} must be a number above 0")
    return float(value)


def unchanged_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


def rope_everywhere(config: HFConfig) -> tuple[RopeScaling, ...]:
    return (rope_of(config),) * config.num_hidden_layers


def partial_rope_everywhere(config: HFConfig) -> tuple[RopeScaling, ...]:
    """The same rope for all layers; heads may be partially rotated."""
    return (rope_of(config, allow_partial=True),) * config.num_hidden_layers


def no_multipliers(_: HFConfig, __: torch.dtype) -> Multipliers:
    return Multipliers()


def full_attention(config: HFConfig) -> tuple[int, ...]:
    return (0,) * config.num_hidden_layers


def windows_by_layer_type(config: HFConfig) -> tuple[int, ...]:
    """With use_sliding_window, layers have a window according to `layer_types`, or else from `max_window_layers` on."""
    window = config.sliding_window if config.use_sliding_window else None
    if window is None:
        return full_attention(config)
    sliding = [layer >= config.max_window_layers for layer in range(config.num_hidden_layers)]
    if config.layer_types is not None:
        sliding = [kind == "sliding_attention" for kind in config.layer_types]
    return tuple(window if slides else 0 for slides in sliding)


def none_in_any_layer(_: HFConfig) -> tuple[()]:
    return ()


def lone_mixers(config: HFConfig) -> tuple[Part, ...]:
    """No layer has a feed-forward."""
    mixer: Part = "mixer"
    return (mixer,) * config.num_hidden_layers


def no_latent(_: HFConfig) -> Latent | None:
    return None


def no_disentangled(_: HFConfig) -> Disentangled | None:
    return None


def as_it_is(family: "Family", _: HFConfig) -> "Family":
    return family


def unchanged_geometry(_: HFConfig, geometry: Geometry) -> Geometry:
    return geometry


def usual_slopes(config: HFConfig) -> tuple[float, ...]:
    return tuple(alibi_slopes(config.num_attention_heads).tolist())


def no_ropes(config: HFConfig) -> tuple[RopeScaling, ...]:
    return (RopeScaling("none"),) * config.num_hidden_layers


def layer_kinds(config: HFConfig) -> list[str]:
    """`layer_types`, or else full attention in every n-th layer (sliding_window_pattern) and windows in the others."""
    pattern, layers = config.sliding_window_pattern or 1, range(1, config.num_hidden_layers + 1)
    return config.layer_types or [FULL if layer % pattern == 0 else SLIDING for layer in layers]


def full_in_every_fourth(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields; without `layer_types`, layers 0, 4, 8, … have full attention and the others windows."""
    layers = fields.get("num_hidden_layers")
    if fields.get("layer_types") is not None or not isinstance(layers, int):
        return fields
    return fields | {"layer_types": [SLIDING if at % 4 else FULL for at in range(min(layers, MAX_LAYERS))]}


def windows_by_pattern(config: HFConfig) -> tuple[int, ...]:
    return tuple((config.sliding_window or 0) if kind == SLIDING else 0 for kind in layer_kinds(config))


def with_qk_norm(family: "Family", config: HFConfig) -> "Family":
    """The family, whose models have their query and key norms only if config.json says so."""
    return replace(family, qk_norm=family.qk_norm if config.qk_norm else None)


@dataclass(frozen=True, slots=True)
class Family:
    """One family: its architectures in config.json, and its differences from Llama."""

    name: str
    architectures: tuple[str, ...]
    weight_names: WeightNames = USUAL_NAMES
    biases: Callable[[HFConfig], Biases] = no_biases
    sliding_windows: Callable[[HFConfig], tuple[int, ...]] = full_attention  # per layer, 0: full attention
    qk_norm: QKNorm | None = None
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    norm: NormKind = "rms"
    is_gated: bool = True  # the feed-forward
    is_parallel: bool = False  # attention and feed-forward read the same hidden states
    ropes: Callable[[HFConfig], tuple[RopeScaling, ...]] = rope_everywhere  # per layer
    interleaved: bool = False  # rotary pairs are the elements 2 i and 2 i + 1 of a head
    multipliers: Callable[[HFConfig, torch.dtype], Multipliers] = no_multipliers
    caps: Callable[[HFConfig], Caps] = no_caps
    slopes: Callable[[HFConfig], tuple[float, ...]] | None = None  # ALiBi's, of all heads; None: no ALiBi
    relative_positions: RelativePositions | None = None
    disentangled: Callable[[HFConfig], Disentangled | None] = no_disentangled
    attention_chunks: Callable[[HFConfig], tuple[int, ...]] = full_attention  # per layer, 0: none
    layer_types: tuple[str, ...] = (FULL, SLIDING)  # the values that `layer_types` in config.json may have
    config: Callable[[dict[str, Any]], dict[str, Any]] = unchanged_fields  # raises ConfigError for unsupported values
    experts: Callable[[HFConfig], tuple[Experts | None, ...]] = none_in_any_layer  # per layer; None: dense
    recurrent: Callable[[HFConfig], tuple[Recurrent | None, ...]] = none_in_any_layer  # per layer; None: attention
    is_beside_attention: bool = False  # recurrent layers have attention too
    lone_parts: Callable[[HFConfig], tuple[Part, ...]] = none_in_any_layer  # per layer, see Geometry
    attention_gate: Literal["sigmoid", "softplus"] | None = None  # see Geometry
    usual_max_len: int | None = None  # the default of max_model_len, for families without a limit on positions
    latent: Callable[[HFConfig], Latent | None] = no_latent  # the sizes of latent attention; raises ConfigError
    is_bidirectional: bool = False  # an encoder
    has_residual_norms: bool = False  # a decoder whose norms replace the residual stream
    is_post_norm: bool = False  # layers normalise after each addition instead of before attention and feed-forward
    reaches: Callable[[HFConfig], tuple[int, ...]] = none_in_any_layer  # encoders, per layer; see Geometry
    label_pooling: LabelPooling | None = None  # None: scores are of an encoder's first token, a decoder's last
    pooled: Kind | None = None  # the hidden state of vectors and scores; None: the last of a decoder, cls of an encoder
    label_layers: tuple[LabelLayer, ...] = (LabelLayer("score"),)  # from the pooled hidden state to the labels' scores
    token_label_layers: tuple[LabelLayer, ...] = (LabelLayer("score"),)  # of …ForTokenClassification
    reward_layers: tuple[LabelLayer, ...] = ()  # of …ForRewardModel and …ForProcessRewardModel; empty: not served
    projection: str = ""  # late interaction: the layer from a token's hidden state to its vector; "": none
    mtp: MtpNames | None = None  # of the layer for multi-token prediction; None: it has none that is supported
    adapted: Callable[["Family", HFConfig], "Family"] = as_it_is  # the family, adapted to a config.json
    refined: Callable[[HFConfig, Geometry], Geometry] = unchanged_geometry  # with options that no other family has

    def layers_to_labels(self, head: Head) -> tuple[LabelLayer, ...]:
        """The layers that compute the scores of a checkpoint with that head."""
        match head:
            case "labels":
                return self.label_layers
            case "token_labels":
                return self.token_label_layers
            case "rewards" | "process_rewards":
                return self.reward_layers
            case "projection":
                return (LabelLayer(self.projection),)
            case "tokens" | "none":
                return ()
