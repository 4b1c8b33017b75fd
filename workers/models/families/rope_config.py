"""Reads the rotary parameters of config.json, in the older and the newer format."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from paged_serve.protocol.errors import ConfigError

from ...checkpoint.hf_config import HFConfig
from ...geometry.rope_scaling import RopeScaling

ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
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
    "short_factor": "short_factors",
    "long_factor": "long_factors",
}
UNREAD = ("alpha", "use_fope", "rope_dim")  # that other engines read: HunYuan's alpha is read by its family


def rope_of(config: HFConfig, parameters: Any = None, *, allow_partial: bool = False) -> RopeScaling:
    """The rotary parameters, from either format; `parameters` replaces those of config.json for some layers.

    `allow_partial`: the family's models may rotate only a part of each head.
    """
    _check_agreement(config.rope_scaling or {}, config.rope_parameters or {})
    if parameters is None:
        parameters = config.rope_parameters or config.rope_scaling or {}
    if not isinstance(parameters, dict):
        raise ConfigError(f"config.json: the rope parameters of a kind of layer are {parameters!r}, not an object")
    if unread := [name for name in UNREAD if parameters.get(name)]:
        raise ConfigError(
            f"config.json: {unread[0]}={parameters[unread[0]]!r} among the rope parameters is not supported for this "
            "family"
        )
    kind = _kind(parameters)
    if kind == "mrope":  # of models that read images: the three positions of a token of text are the same
        kind = "default"
    if kind not in ROPE_KINDS:
        raise ConfigError(f"rope type {kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
    known = {ours: parameters[theirs] for theirs, ours in ROPE_FIELDS.items() if parameters.get(theirs) is not None}
    stated = (parameters.get("rope_theta"), config.rope_theta)
    theta = next((each for each in stated if each is not None), 10000.0)  # 0 is refused
    if config.original_max_position_embeddings is not None:
        known["original_max_positions"] = config.original_max_position_embeddings
    known.setdefault("original_max_positions", config.max_position_embeddings)
    if kind in ("linear", "llama3", "yarn") and "factor" not in known:
        raise ConfigError(f"rope type {kind!r} needs a factor, but config.json has none")
    is_proportional = kind == "proportional"  # all pairs of the head count, but only the first turn
    if is_proportional:
        known["share"] = parameters.get("partial_rotary_factor") or 1.0
    rotary_dim = None if is_proportional else _rotary_dim(config, parameters, allow_partial)
    try:
        rope = msgspec.convert({"kind": kind, "theta": theta, "rotary_dim": rotary_dim, **known}, RopeScaling)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: the rope parameters cannot be used: {error}") from error
    if kind == "longrope":
        return _longrope(rope, config, has_factor="factor" in known)
    return rope


def ropes_of_kinds(
    config: HFConfig, kinds: Sequence[str], *, allow_partial: bool = False, defaults: Mapping[str, Any] | None = None
) -> tuple[RopeScaling, ...]:
    """The rope of each layer by its kind, which is a name in rope_parameters; `defaults` are those of an entry."""
    given, of_kind = config.rope_parameters or {}, dict[str, RopeScaling]()
    for kind in dict.fromkeys(kinds):
        if not isinstance(own := given.get(kind), dict):
            raise ConfigError(f"config.json: rope_parameters has nothing for {kind}; leave it out or state all kinds")
        of_kind[kind] = rope_of(config, {**(defaults or {}), **own}, allow_partial=allow_partial)
    return tuple(of_kind[kind] for kind in kinds)


def _check_agreement(older: dict[str, Any], newer: dict[str, Any]) -> None:
    """Raises ConfigError if config.json has both formats and they differ: only one of them can be meant."""
    by_layer = [each for each in newer.values() if isinstance(each, dict)]
    if older and newer and not any(_agree(older, each) for each in by_layer or [newer]):
        raise ConfigError(
            "config.json has rope_scaling beside rope_parameters, its newer form, and they differ; keep one of them"
        )


def _agree(older: dict[str, Any], newer: dict[str, Any]) -> bool:
    stated = [name for name in ROPE_FIELDS if older.get(name) is not None]
    return _kind(older) == _kind(newer) and all(older[name] == newer.get(name) for name in stated)


def _kind(parameters: dict[str, Any]) -> Any:
    return parameters.get("rope_type") or parameters.get("type") or "default"


def _rotary_dim(config: HFConfig, parameters: dict[str, Any], allow_partial: bool) -> int | None:
    """The number of rotated elements of a head; None: all."""
    head_dim = _head_dim(config)
    stated = (parameters.get("partial_rotary_factor"), config.partial_rotary_factor)
    partial = next((each for each in stated if each is not None), 1.0)
    if partial == 1.0 and config.rotary_dim in (None, head_dim):
        return None
    spelled = f"partial_rotary_factor={partial}" if config.rotary_dim is None else f"rotary_dim={config.rotary_dim}"
    if not allow_partial:
        raise ConfigError(f"config.json: {spelled} is not supported for this family; only whole heads are rotated")
    found = config.rotary_dim
    if found is None:
        found = int(head_dim * partial) if isinstance(partial, int | float) and 0 < partial <= 1 else 0
    if not 2 <= found <= head_dim or found % 2:
        raise ConfigError(f"config.json: {spelled} must give an even number of elements from 2 to head_dim={head_dim}")
    return found


def _longrope(rope: RopeScaling, config: HFConfig, *, has_factor: bool) -> RopeScaling:
    """Derive `factor` if config.json has none. Raises ConfigError unless there is a factor for each rotary pair."""
    pairs = (rope.rotary_dim or _head_dim(config)) // 2
    for name, factors in (("short_factor", rope.short_factors), ("long_factor", rope.long_factors)):
        if len(factors) != pairs:
            raise ConfigError(f"config.json: {name} has {len(factors)} numbers, but a head has {pairs} rotary pairs")
    if rope.original_max_positions < 2:
        raise ConfigError("config.json: longrope needs original_max_position_embeddings of at least 2")
    if has_factor:
        return rope
    return replace(rope, factor=config.max_position_embeddings / rope.original_max_positions)


def _head_dim(config: HFConfig) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads
