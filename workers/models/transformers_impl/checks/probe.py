"""Determines a model's attention options: runs it once with an attention function that only records its calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paged_serve.protocol.errors import ConfigError

from ....geometry.geometry import Geometry
from ....geometry.layer_options import AttentionOptions
from ..paged_attention import Attended, hold

NUM_TOKENS = 3
# Arguments of the attention function that do not change its result; all others must be absent or None.
IGNORED = ("dropout", "position_ids", "position_embeddings", "use_cache", "cache_position", "output_attentions")


@dataclass(frozen=True, slots=True)
class WindowMask:
    """The mask of a layer: a token attends to `window` positions, itself included; 0: all."""

    window: int


@dataclass(frozen=True, slots=True)
class Call:
    """One layer's call of the attention function."""

    heads: tuple[int, int]  # (heads of queries, heads of keys)
    sizes: tuple[int, int, int]  # of a head's query, key and value
    mask: Any
    options: dict[str, Any]
    is_causal: bool


def window_mask_of(num_positions: int) -> Callable[..., WindowMask]:
    """A mask function for the library, which calls it with functions over indices; the model has `num_positions`."""

    def window_mask(*, mask_function: Callable[..., Tensor], **_: Any) -> WindowMask:
        zero, keys = torch.zeros((), dtype=torch.int64), torch.arange(num_positions)

        def visible(query: int) -> Tensor:
            return mask_function(zero, zero, torch.tensor(query), keys).expand(num_positions)

        window = int(visible(num_positions - 1).sum())
        for query in {0, 1, num_positions // 3, num_positions // 2, num_positions - 2, num_positions - 1}:
            expected = (keys <= query) & (keys > query - window)
            if query >= 0 and not torch.equal(visible(query), expected):
                raise ConfigError("its attention is neither causal nor a sliding window")
        return WindowMask(window % num_positions)

    return window_mask


class Probe:
    """Records each layer's call, and returns zeros."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Call]] = {}

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any) -> Attended:
        heads, sizes = (query.shape[1], key.shape[1]), (query.shape[3], key.shape[3], value.shape[3])
        named = {name: each for name, each in options.items() if name not in IGNORED and each is not None}
        is_causal = getattr(module, "is_causal", True) and named.pop("is_causal", True)
        self.calls.setdefault(module.layer_idx, []).append(Call(heads, sizes, mask, named, bool(is_causal)))
        return torch.zeros(1, query.shape[2], query.shape[1], value.shape[3], dtype=query.dtype), None

    def projected(self, module: Any, projected: Tensor, cosines: Tensor, sines: Tensor, mask: Any) -> Tensor:
        """The call of an AttentionModule, whose heads are not rotated yet."""
        (heads, kv_heads), head_dim = module.heads, module.plain.head_dim
        if cosines.shape[-1] != head_dim:
            raise ConfigError(f"layer {module.layer_idx} rotates {cosines.shape[-1]} of a head's {head_dim} elements")
        parts = torch.split(projected.view(len(projected), -1, head_dim), [heads, kv_heads, kv_heads], dim=1)
        query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in parts)
        return self(module, query, key, value, mask, module.plain.options)[0][0]


def attention_options(base: nn.Module, geometry: Geometry, tp_size: int) -> list[AttentionOptions]:
    """The attention options of each layer. Raises ConfigError for attention that our kernels do not support."""
    probe = Probe()
    hold(base, probe)
    base(input_ids=torch.arange(NUM_TOKENS)[None], position_ids=torch.arange(NUM_TOKENS)[None], use_cache=False)
    layers = range(geometry.num_layers)
    for layer in sorted({*layers, *probe.calls}):
        if len(probe.calls.get(layer, ())) != 1 or layer not in layers:
            raise ConfigError(
                f"layer {layer} of {len(layers)} attends {len(probe.calls.get(layer, ()))} times; each layer must call "
                "the library's attention interface once (recurrent and cross-attention layers are not supported)"
            )
    return [_options(layer, probe.calls[layer][0], geometry, tp_size) for layer in layers]


def _options(layer: int, call: Call, geometry: Geometry, tp_size: int) -> AttentionOptions:
    expected = (geometry.heads_of_rank(tp_size), geometry.kv_heads_of_rank(tp_size))
    if call.heads != expected or set(call.sizes) != {geometry.head_dim}:
        raise ConfigError(
            f"layer {layer} attends with {call.heads[0]} query and {call.heads[1]} KV heads of {call.sizes} elements; "
            f"its config.json says {expected[0]} and {expected[1]} of {geometry.head_dim}, for keys and values alike"
        )
    given = dict(call.options)
    scale, window, cap = given.pop("scaling", None), given.pop("sliding_window", 0), given.pop("softcap", 0.0)
    if given:
        raise ConfigError(f"layer {layer} passes {', '.join(given)} to its attention, which our kernels do not support")
    if not call.is_causal:
        raise ConfigError(f"layer {layer} attends in both directions; encoders are not supported here")
    if isinstance(call.mask, WindowMask):
        window = call.mask.window
    elif call.mask is not None:
        raise ConfigError(f"layer {layer} computes its own attention mask")
    if not isinstance(window, int) or not isinstance(cap, int | float) or not isinstance(scale, int | float | None):
        raise ConfigError(f"layer {layer}: scaling={scale}, sliding_window={window} and softcap={cap} must be numbers")
    return AttentionOptions(geometry.head_dim**-0.5 if scale is None else float(scale), window, float(cap))
