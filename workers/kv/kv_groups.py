"""KV groups: layers with the same window or attention chunk share a block table, so that blocks that no later token
attends to can be released.

All groups take blocks of equal size in bytes from one pool, so all have the same number of attention layers. The cache
has this number of tensors for keys and for values; layers of different groups share a tensor, with different blocks.
Where the sizes of heads differ by layer (Gemma 4), a group's layers have keys of the same size, and a block holds as
many layers of a group as fit. A layer that reads another layer's keys and values has that layer's group and tensor.
Recurrent layers are in groups of their own, the last ones, and keep their states in the same tensors. A layer with
keys, values and a state has a pair of groups, and its mixer gets a step made of both (mixers/mixer.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

import torch

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.loading.startup import MAX_KV_GROUPS, KVGroup

from ..geometry.geometry import Geometry
from .state_places import StatePlace

STATE_WINDOW = 2  # tokens: a token needs its own state and that of the token before it
COST_OF_GROUP = 0.02  # the cost of a group's tables and views, in units of the bytes of a sequence of full length


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of a model, and the place of each layer's keys and values."""

    windows: tuple[int, ...]  # per group: positions that a token attends to, itself included; 0: all
    of_layer: tuple[int, ...]  # the group of each layer; of one with both kinds, len(windows) + the index of its pair
    tensor_of_layer: tuple[int, ...]  # the index of the cache tensor with each layer's keys and values; -1: it has none
    layers_per_group: int  # a group with fewer layers takes the same memory; 0: the model has no attention
    attention_chunks: tuple[int, ...] = ()  # of each group, see AttentionMask; 0: none. Empty: no group has one
    places: tuple[StatePlace | None, ...] = ()  # of each layer's state; None: it has none. Empty: no layer has one
    num_state_groups: int = 0  # the last ones
    pairs: tuple[tuple[int, int], ...] = ()  # (KV group, state group) of layers with both
    areas_per_layer: int = 2  # with states: of keys and of values; 1: these are the same (latent attention)
    # By group: the size of a layer's keys, in units of which layers_per_group fit. Empty: 1 in all.
    areas: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """The rows that a block has in the tensors of keys and values: with states, one for each of its areas."""
        return self.areas_per_layer * self.layers_per_group if self.places else 1

    @property
    def table_units(self) -> tuple[int, ...]:
        """By group: what a block counts as in block tables."""
        if self.areas:
            return tuple(2 * self.layers_per_group // area for area in self.areas)
        return (self.unit,) * (len(self.windows) - self.num_state_groups) + (1,) * self.num_state_groups

    def layers_of(self, group: int) -> list[int]:
        return [layer for layer, own in enumerate(self.of_layer) if own == group]

    @property
    def kinds(self) -> tuple[KVGroup, ...]:
        chunks = self.attention_chunks or (0,) * len(self.windows)
        first_state = len(self.windows) - self.num_state_groups
        return tuple(
            KVGroup(window, chunk, index >= first_state)
            for index, (window, chunk) in enumerate(zip(self.windows, chunks, strict=True))
        )

    @classmethod
    def of_model(cls, geometry: Geometry, max_model_len: int, tp_size: int = 1) -> "KVGroups":
        """The groups of the model's attention layers, see CacheLayout for those of its states.

        Other layers have no tensor, and count as layers of the first group.
        """
        layers = range(geometry.num_layers)
        here = [layer for layer in layers if geometry.has_attention(layer) and geometry.kv_source(layer) == layer]
        if not here:
            return cls((), (0,) * len(layers), (-1,) * len(layers), 0)
        chunks = geometry.attention_chunks and [geometry.attention_chunks[layer] for layer in here]
        sizes = [geometry.of_layer(layer).area_bytes_per_token(tp_size, torch.int8) for layer in here]
        unit = gcd(*sizes)
        areas = [] if geometry.has_one_head_size else [size // unit for size in sizes]
        groups = cls.of([geometry.sliding_windows[layer] for layer in here], max_model_len, chunks, areas)
        held = dict(zip(here, zip(groups.of_layer, groups.tensor_of_layer, strict=True), strict=True))
        of_layer, tensors = zip(*(held.get(geometry.kv_source(layer), (0, -1)) for layer in layers), strict=True)
        return replace(groups, of_layer=of_layer, tensor_of_layer=tensors)

    def with_states(self, geometry: Geometry, places: Sequence[StatePlace]) -> "KVGroups":
        """These groups of a model's attention layers, and after them those of its recurrent layers at `places`."""
        states, count = iter(places), places[-1].group + 1
        place_of_layer = [None if kind is None else next(states) for kind in geometry.recurrent]
        first, pairs, of_layer = len(self.windows), list[tuple[int, int]](), list(self.of_layer)
        for layer, place in enumerate(place_of_layer):
            if place is not None and self.tensor_of_layer[layer] < 0:
                of_layer[layer] = first + place.group
            elif place is not None:
                pair = self.of_layer[layer], first + place.group
                pairs += [pair] if pair not in pairs else []
                of_layer[layer] = first + count + pairs.index(pair)
        if len(self.windows) + count > MAX_KV_GROUPS:
            raise ConfigError(
                f"the states of the model's recurrent layers take {count} KV groups, more than {MAX_KV_GROUPS} in all; "
                "raise block_size"
            )
        return replace(
            self,
            windows=(*self.windows, *[0] * count),
            of_layer=tuple(of_layer),
            attention_chunks=(*self.attention_chunks, *[0] * count) if self.attention_chunks else (),
            places=tuple(place_of_layer),
            num_state_groups=count,
            pairs=tuple(pairs),
            areas_per_layer=geometry.areas_per_layer,
        )

    @classmethod
    def whole(cls, num_layers: int) -> "KVGroups":
        """One group that keeps all positions, whatever the windows of its layers."""
        return cls((0,), (0,) * num_layers, tuple(range(num_layers)), num_layers)

    @classmethod
    def of(
        cls,
        windows: Sequence[int],
        max_model_len: int,
        attention_chunks: Sequence[int] = (),
        areas: Sequence[int] = (),
    ) -> "KVGroups":
        """Groups for layers with these `windows` and `attention_chunks` (0: neither) and `areas` (the sizes of their
        keys; empty: equal), and requests of up to `max_model_len` tokens.

        A window or an attention chunk at least as long as the longest request has no effect: its layers keep all
        positions.
        """
        chunks = attention_chunks or (0,) * len(windows)
        kinds: dict[tuple[int, int, int], list[int]] = {}
        for layer, (*sizes, area) in enumerate(zip(windows, chunks, areas or (1,) * len(windows), strict=True)):
            window, chunk = (size if size < max_model_len else 0 for size in sizes)
            kinds.setdefault((window, chunk, area), []).append(layer)
        held = {kind: max(kind[:2]) or max_model_len for kind in kinds}
        size = _layers_per_group([(held[kind], len(layers), kind[2]) for kind, layers in kinds.items()])
        groups = [
            (kind, kinds[kind][first : first + size // kind[2]])
            for kind in sorted(kinds)
            for first in range(0, len(kinds[kind]), size // kind[2])
        ]
        places = {
            layer: (group, tensor) for group, (_, layers) in enumerate(groups) for tensor, layer in enumerate(layers)
        }
        of_layer, tensor_of_layer = zip(*(places[layer] for layer in range(len(windows))), strict=True)
        windows_of, chunks_of, areas_of = zip(*(kind for kind, _ in groups), strict=True)
        chunks_of = chunks_of if any(chunks_of) else ()
        return cls(windows_of, of_layer, tensor_of_layer, size, chunks_of, areas=areas_of if areas else ())

    def blocks_of_sequence(self, length: int, block_size: int, most_at_once: int) -> int:
        """The largest number of blocks of a sequence of `length` tokens in chunks of up to `most_at_once` tokens."""
        whole = -(-length // block_size)

        def of(kind: KVGroup) -> int:
            """The blocks of a chunk and of the positions before it that its first token attends to. A window begins
            anywhere in a block, an attention chunk at a multiple of its size."""
            if kind.is_full:
                return whole
            seen = STATE_WINDOW if kind.is_state else kind.window or kind.attention_chunk
            spanned = seen - 1 + min(most_at_once, length)
            offset = block_size - (gcd(kind.attention_chunk, block_size) if kind.attention_chunk else 1)
            return min(whole, (offset + spanned - 1) // block_size + 1)

        return sum(map(of, self.kinds))


def _layers_per_group(kinds: Sequence[tuple[int, int, int]]) -> int:
    """The cheapest size of groups, in layers whose keys have the size 1, given each kind's number of tokens and of
    layers and the size of their keys: small groups cost many tables, large groups cost padding."""
    unit, largest = lcm(*(area for *_, area in kinds)), max(count * area for _, count, area in kinds)

    def num_groups(size: int) -> int:
        return sum(-(-count * area // size) for _, count, area in kinds)

    def cost(size: int) -> float:
        tokens = sum(-(-count * area // size) * size * held for held, count, area in kinds)
        return tokens * (1 + COST_OF_GROUP * num_groups(size))

    sizes = [size for size in range(unit, largest + unit, unit) if num_groups(size) <= MAX_KV_GROUPS]
    return min(sizes, key=cost)
