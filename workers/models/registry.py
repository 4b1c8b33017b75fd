"""The supported architectures, and the geometry of a model folder."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace as replace_struct

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.plugins import PluginKind, load_plugins

from ..checkpoint.hf_config import (
    HFConfig,
    activation_of,
    dtype_of,
    read_architectures,
    read_hf_config,
)
from ..geometry.experts import Experts
from ..geometry.geometry import Geometry, Head
from ..geometry.model_options import Activation, Embeddings
from ..geometry.rope_scaling import RopeScaling
from ..pooling.spec import max_seq_length
from .catalogue import FAMILIES
from .end_tokens import eos_token_ids
from .families.family import SLIDING, Family, full_attention, no_ropes, none_in_any_layer


def families_with(plugins: tuple[str, ...]) -> tuple[Family, ...]:
    """The built-in families and those of plugins. Raises ConfigError if two have the same architecture."""
    families = (*FAMILIES, *load_plugins(PluginKind.FAMILY, plugins, Family).values())
    counts = Counter(name for family in families for name in family.architectures)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"--plugin: two families support the architecture {twice[0]}; leave a plugin out")
    return families


def family_of(architectures: list[str], families: tuple[Family, ...]) -> tuple[Family, Head]:
    """The family of a config.json's `architectures`, and the model's head. Raises ConfigError for an unknown one."""
    if (found := find_family(architectures, families)) is None:
        raise ConfigError(not_supported(architectures, families))
    return found


def find_family(architectures: list[str], families: tuple[Family, ...]) -> tuple[Family, Head] | None:
    for family in families:
        for name in family.architectures:
            heads = _heads_of(family, name)
            if (given := next((each for each in architectures if each in heads), None)) is not None:
                return family, heads[given]
    return None


def _heads_of(family: Family, name: str) -> dict[str, Head]:
    """The architecture `name` and those that have other heads on the same layers, with their heads."""
    if family.projection:
        return {name: "projection"}
    stem = name.removesuffix("ForCausalLM").removesuffix("LMHeadModel").removesuffix("Model")
    heads: dict[str, Head] = {f"{stem}ForSequenceClassification": "labels", f"{stem}Model": "none"}
    heads |= {f"{stem}ForTokenClassification": "token_labels"}
    if family.reward_layers:
        heads |= {f"{stem}ForRewardModel": "rewards", f"{stem}ForProcessRewardModel": "process_rewards"}
    own: dict[str, Head] = {name: "tokens"}
    if family.is_bidirectional:  # with the heads for training, which are not read
        own = {f"{stem}ForMaskedLM": "none", f"{stem}ForPreTraining": "none"}
    return heads | own


def not_supported(architectures: list[str], families: tuple[Family, ...]) -> str:
    supported = ", ".join(name for family in families for name in family.architectures)
    named = ", ".join(architectures)
    return (
        f"architecture {named} is not supported; supported: {supported}, and their …Model, "
        "…ForSequenceClassification and …ForTokenClassification"
    )


def read_geometry(
    folder: Path,
    wanted_dtype: str = "auto",
    max_model_len: int | None = None,
    plugins: tuple[str, ...] = (),
    tokenizer: str = "",
) -> tuple[Family, Geometry]:
    """The family and geometry of the model in `folder`; reads no weights.

    `max_model_len`: the number of positions to support; None: all that the model has. `tokenizer`: the folder of its
    tokenizer, if that is another.
    """
    family, head = family_of(read_architectures(folder), families_with(plugins))
    return geometry_of(folder, family, head, wanted_dtype, max_model_len, tokenizer)


def geometry_of(
    folder: Path,
    family: Family,
    head: Head,
    wanted_dtype: str = "auto",
    max_model_len: int | None = None,
    tokenizer: str = "",
) -> tuple[Family, Geometry]:
    """The family, adapted to the config.json in `folder`, and the geometry; as `read_geometry`."""
    config = read_hf_config(folder, lambda fields: family.config(_checked_masks(fields, family)))
    family = family.adapted(family, config)
    plain = _plain_geometry(family, config, dtype_of(config, wanted_dtype), max_model_len)
    geometry = replace(
        _with_kinds_of_layers(family, config, _with_kind_of_attention(family, config, plain)),
        head=head,
        eos_token_ids=eos_token_ids(folder, config, tokenizer),
        usual_max_len=max_seq_length(folder) if head in ("none", "projection") else family.usual_max_len,
    )
    return family, family.refined(config, geometry)


def _plain_geometry(family: Family, config: HFConfig, dtype: torch.dtype, max_model_len: int | None) -> Geometry:
    """The geometry without what not every model has."""
    num_kv_heads, head_dim = _kv_heads(family, config)
    _check_layers(family, config)
    windows = family.sliding_windows(config)
    embeddings = _embeddings(family, config)
    chunks, num_positions = config.dual_chunk_attention_config, config.max_position_embeddings
    if chunks is not None:
        num_positions = min(num_positions, chunks.num_positions)
    ropes = no_ropes(config) if embeddings.has_positions else family.ropes(config)
    return Geometry(
        family=family.name,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        norm=family.norm,
        norm_eps=config.rms_norm_eps,
        activation=_activation(family, config),
        ropes=tuple(_for_length(rope, max_model_len or num_positions) for rope in ropes),
        interleaved=family.interleaved,
        multipliers=family.multipliers(config, dtype),
        embeddings=embeddings,
        max_position_embeddings=num_positions,
        sliding_windows=windows,
        tie_word_embeddings=config.tie_word_embeddings,
        biases=family.biases(config),
        caps=family.caps(config),
        dtype=dtype,
    )


def _embeddings(family: Family, config: HFConfig) -> Embeddings:
    names = family.weight_names
    return Embeddings(
        has_positions=bool(names.positions),
        num_token_types=config.type_vocab_size if names.token_types else 0,
        num_task_types=config.task_type_vocab_size if names.task_types else 0,
        projected_size=(config.word_embed_proj_dim or 0) if names.project_in else 0,
    )


def _activation(family: Family, config: HFConfig) -> Activation:
    activation = activation_of(config, is_gated=family.is_gated)
    if activation.kind == "xielu" and not family.weight_names.activation:
        raise ConfigError(f"config.json: hidden_act 'xielu', which has parameters, is not supported for {family.name}")
    return activation


def _kv_heads(family: Family, config: HFConfig) -> tuple[int, int]:
    """The number of KV heads, and the elements of each in the cache."""
    latent = family.latent(config)
    num_kv_heads = 1 if latent else config.num_key_value_heads or config.num_attention_heads
    _check_shape(config, num_kv_heads)
    if latent:
        return num_kv_heads, latent.row_dim
    head_dim = config.head_dim or family.default_head_dim or config.hidden_size // config.num_attention_heads
    if head_dim < 2 or head_dim % 2:
        raise ConfigError(f"config.json: a head of {head_dim} elements cannot be rotated in pairs")
    return num_kv_heads, head_dim


def _with_kind_of_attention(family: Family, config: HFConfig, geometry: Geometry) -> Geometry:
    return replace(
        geometry,
        slopes=family.slopes(config) if family.slopes else (),
        relative_positions=family.relative_positions,
        disentangled=family.disentangled(config),
        attention_chunks=family.attention_chunks(config),
        reaches=family.reaches(config),
        clip_qkv=config.clip_qkv,
        qk_norm=family.qk_norm,
        latent=family.latent(config),
        attention_gate=family.attention_gate,
        is_bidirectional=family.is_bidirectional,
    )


def _with_kinds_of_layers(family: Family, config: HFConfig, geometry: Geometry) -> Geometry:
    """With the kind of each layer, and of what comes before and after them."""
    return replace(
        geometry,
        is_parallel=family.is_parallel,
        experts=_checked(family.experts(config)),
        recurrent=family.recurrent(config),
        is_beside_attention=family.is_beside_attention,
        lone_parts=family.lone_parts(config),
    )


def _checked_masks(fields: dict[str, Any], family: Family) -> dict[str, Any]:
    """The fields. Raises ConfigError for a mask of attention that other engines read there, but the family has not."""
    if not family.is_bidirectional and fields.get("is_causal") is False:
        raise ConfigError(
            f"config.json: is_causal=False is not supported for {family.name}, whose tokens attend only to earlier "
            "ones; serve a model that was trained so, or remove the field"
        )
    kinds, window = fields.get("layer_types"), fields.get("sliding_window")
    has_windows = family.sliding_windows is not full_attention or family.reaches is not none_in_any_layer
    if isinstance(kinds, list) and SLIDING in kinds and window and not has_windows:
        raise ConfigError(
            f"config.json: layer_types has {SLIDING!r} with sliding_window={window}, but the layers of {family.name} "
            "have no windows; remove sliding_window if the model was trained without it"
        )
    return fields


def _checked(experts: tuple[Experts | None, ...]) -> tuple[Experts | None, ...]:
    for each in set(filter(None, experts)):
        each.check()
    return experts


def _for_length(rope: RopeScaling, num_positions: int) -> RopeScaling:
    """Choose longrope's factors by the supported length, so that a request's bits do not depend on its own length."""
    return replace(rope, is_long=rope.kind == "longrope" and num_positions > rope.original_max_positions)


def _check_layers(family: Family, config: HFConfig) -> None:
    """Raises ConfigError for kinds of layers that the family does not have, and for windows in which no token is."""
    kinds, layers = config.layer_types, config.num_hidden_layers
    if kinds is not None and len(kinds) != layers:
        raise ConfigError(f"config.json: layer_types names {len(kinds)} layers, but the model has {layers}")
    if unknown := set(kinds or ()).difference(family.layer_types):
        known = " and ".join(family.layer_types)
        raise ConfigError(f"config.json: layer_types has {min(unknown)!r}; the layers of {family.name} are {known}")
    if config.sliding_window == 0 and any(family.sliding_windows(replace_struct(config, sliding_window=1))):
        raise ConfigError("config.json: sliding_window=0 must be at least 1, or null for full attention")


def _check_shape(config: HFConfig, num_kv_heads: int) -> None:
    for name in (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ):
        if (value := getattr(config, name)) < 1:
            raise ConfigError(f"config.json: {name}={value} must be at least 1")
    if not 0 <= config.rms_norm_eps < 1:
        raise ConfigError(f"config.json: rms_norm_eps={config.rms_norm_eps:g} must be at least 0 and less than 1")
    if num_kv_heads < 1 or config.num_attention_heads % num_kv_heads:
        raise ConfigError(
            f"config.json: {config.num_attention_heads} attention heads cannot share {num_kv_heads} KV heads evenly"
        )
