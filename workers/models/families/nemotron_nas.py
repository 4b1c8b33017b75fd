"""Nemotron Super 49B, Ultra 253B and 51B, and DeciLM 7B: Llama whose layers differ, and may lack a part.

A layer of the decoder is one part of a block: attention, with its own number of KV heads, or a feed-forward of its own
size (Bercovich et al., Puzzle, arXiv 2411.19146).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import MAX_SIZE, HFConfig
from ...geometry.geometry import Geometry, Part
from .family import FULL, MAX_LAYERS, need
from .llama import LLAMA, with_positions

FEED_FORWARD = "feed_forward"  # a value of layer_types, beside FULL
SIZE_MULTIPLE = 256  # of a feed-forward's elements
UNUSED = {"replace_with_linear": False, "sparsify": None, "window_length": None, "num_sink_tokens": None}


class PartOfBlock(NamedTuple):
    """A layer of the decoder."""

    kind: str  # FULL or FEED_FORWARD
    block: int
    size: int  # the KV heads, or the elements of the feed-forward


def config(fields: dict[str, Any]) -> dict[str, Any]:
    need("Nemotron", fields, position_embedding_type="rope", sliding_window=None)
    found = with_positions(fields)
    parts = [*_parts(found)]
    by_kind = {kind: [part.size for part in parts if part.kind == kind] for kind in (FULL, FEED_FORWARD)}
    if not all(by_kind.values()):
        raise ConfigError("config.json: block_configs has no layer with attention, or none with a feed-forward")
    return found | {
        "num_hidden_layers": len(parts),
        "num_key_value_heads": by_kind[FULL][0],
        "intermediate_size": by_kind[FEED_FORWARD][0],
        "layer_types": [part.kind for part in parts],
        "layers_in_names": [part.block for part in parts],
        "sizes_of_layers": [part.size for part in parts],
    }


def _parts(fields: dict[str, Any]) -> Iterator[PartOfBlock]:
    blocks = fields.get("block_configs")
    blocks = _blocks_of_first_files(fields) if blocks is None else blocks
    if not isinstance(blocks, list) or not 0 < len(blocks) <= MAX_LAYERS:
        raise ConfigError(f"config.json: block_configs={blocks!r} must be a list with an object for each layer")
    need("Nemotron", fields, num_hidden_layers=len(blocks))
    for number, block in enumerate(blocks):
        for name, kind, size_of in (("attention", FULL, _kv_heads), ("ffn", FEED_FORWARD, _feed_forward_size)):
            part = block.get(name) if isinstance(block, dict) else None
            if not isinstance(part, dict):
                raise ConfigError(f"config.json: block_configs[{number}] has no object {name}")
            if not part.get("no_op"):
                need(f"Nemotron (block_configs[{number}].{name})", part, **UNUSED)
                need("Nemotron", part, hidden_act=fields.get("hidden_act", "silu"))
                yield PartOfBlock(kind, number, _checked_size(f"block_configs[{number}].{name}", size_of(part, fields)))


def _blocks_of_first_files(fields: dict[str, Any]) -> Any:
    """Those of DeciLM 7B, whose layers differ only in their KV heads."""
    counts, heads = fields.get("num_key_value_heads_per_layer"), fields.get("num_attention_heads")
    if not isinstance(counts, list) or not isinstance(heads, int):
        return None
    sharing = [heads // count if isinstance(count, int) and count > 0 and heads % count == 0 else 0 for count in counts]
    ffn = {"intermediate_size": fields.get("intermediate_size")}
    return [{"attention": {"n_heads_in_group": each}, "ffn": ffn} for each in sharing]


def _kv_heads(part: dict[str, Any], fields: dict[str, Any]) -> int:
    """0, which is refused, if heads cannot be shared so."""
    heads, sharing = fields.get("num_attention_heads"), part.get("n_heads_in_group")
    if not isinstance(heads, int) or not isinstance(sharing, int) or sharing < 1 or heads % sharing:
        return 0
    return heads // sharing


def _feed_forward_size(part: dict[str, Any], fields: dict[str, Any]) -> Any:
    hidden, multiplier = fields.get("hidden_size"), part.get("ffn_mult")
    if multiplier is None:
        return part.get("intermediate_size")
    if not isinstance(hidden, int) or not isinstance(multiplier, int | float) or not 0 < multiplier <= MAX_SIZE:
        return 0
    return -(-int(2 * multiplier * hidden / 3) // SIZE_MULTIPLE) * SIZE_MULTIPLE


def _checked_size(name: str, size: Any) -> int:
    if not isinstance(size, int) or not 1 <= size <= MAX_SIZE:
        raise ConfigError(
            f"config.json: {name} must have n_heads_in_group, a divisor of num_attention_heads, or else ffn_mult or "
            "intermediate_size above 0"
        )
    return size


def lone_parts(config: HFConfig) -> tuple[Part, ...]:
    return tuple("mixer" if kind == FULL else "feed_forward" for kind in config.layer_types or ())


def refined(config: HFConfig, geometry: Geometry) -> Geometry:
    kinds, sizes = config.layer_types or (), config.sizes_of_layers or ()

    def sizes_of(kind: str, common: int) -> list[int]:
        return [size if own == kind else common for own, size in zip(kinds, sizes, strict=True)]

    whole = replace(geometry, layers_in_names=tuple(config.layers_in_names or ()))
    return whole.with_sizes_of_layers(
        num_kv_heads=sizes_of(FULL, geometry.num_kv_heads),
        intermediate_size=sizes_of(FEED_FORWARD, geometry.intermediate_size),
    )


NEMOTRON_NAS = replace(
    LLAMA,
    name="nemotron_nas",
    architectures=("DeciLMForCausalLM",),
    layer_types=(FULL, FEED_FORWARD),
    config=config,
    lone_parts=lone_parts,
    refined=refined,
)
