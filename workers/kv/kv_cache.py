"""The paged KV cache of one rank."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paged_serve.protocol.errors import MemoryShortage

from ..distributed.huge_pages import allocate
from ..geometry.geometry import Geometry
from .block_copies import copy_blocks, whole_blocks
from .draft_inputs import DraftInputs
from .kv_groups import KVGroups

ONE_LAYER = KVGroups.whole(1)


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """K and V of every layer, in tensors [num_blocks, kv_heads of this rank, block_size, cached_head_dim].

    With latent attention every rank holds one KV head, whose values are the first elements of its keys: the tensors of
    `values` are those of `keys`.

    Layers of different groups may share a tensor: a block belongs to one group at a time. A layer without attention has
    tensors of 0 blocks. In int8 each head of a token has a scale for its key and one for its value. In fp8 (e4m3) there
    are no scales: values are rounded to nearest even and saturate at 448.

    In a model with states all areas of a block are adjacent in memory, and a state lies anywhere in a block. `keys` and
    `values` of a layer then begin at the layer's area of block 0, and have a row for each area from there on: those of
    block b are row b * groups.unit, which is what the block tables of KV groups hold (TableUnits). Likewise in a model
    whose keys differ in size by layer; a block's rows, which differ by group, are groups.table_units.
    """

    keys: Sequence[Tensor]  # by layer
    values: Sequence[Tensor]
    block_size: int  # tokens
    scales: Sequence[
        tuple[Tensor, Tensor]
    ] = ()  # int8: of keys and of values, [num_blocks, kv_heads, block_size] float32
    groups: KVGroups = ONE_LAYER
    states: Sequence[
        Tensor
    ] = ()  # by layer: [num_blocks, bytes of a state] uint8, or 0 blocks; empty: no layer has one
    draft_inputs: DraftInputs = field(default_factory=DraftInputs)  # of the last step with drafts, for its states
    blocks: Sequence[Tensor] = ()  # [num_blocks, integers]: all memory of the blocks, see whole_blocks

    @classmethod
    def allocate(
        cls,
        geometry: Geometry,
        num_blocks: int,
        block_size: int,
        tp_size: int = 1,
        device: str = "cpu",
        dtype: torch.dtype | None = None,
        groups: KVGroups | None = None,
    ) -> "KVCache":
        """A cache in the model's dtype, e4m3, or int8 with scales. Raises MemoryShortage.

        Without `groups` there is one group, which keeps all positions. `groups` and `block_size` of a model with states
        are those of its CacheLayout. The tensors are not initialised: backends read only slots that were written, and
        untouched pages cost nothing.
        """
        dtype = dtype or geometry.dtype
        shape = (num_blocks, geometry.kv_heads_of_rank(tp_size), block_size, geometry.cached_head_dim)
        if groups is None:
            is_plain = geometry.has_one_head_size and not geometry.kv_sources
            groups = KVGroups.whole(geometry.num_layers) if is_plain else KVGroups.of_model(geometry, 1, tp_size)
        if groups.areas:
            return cls._of_areas(geometry, num_blocks, block_size, tp_size, device, dtype, groups)
        sizes = [0 if kind is None else kind.state_bytes(tp_size, geometry.dtype) for kind in geometry.recurrent]
        try:
            keys, values, memory = _areas(groups, shape, dtype, device, are_same=bool(geometry.latent))
            coded = dtype == torch.int8
            of_scales = _areas(groups, shape[:3], torch.float32, device) if coded else ([], [], None)
            states, memory = _states(groups, sizes, memory, (num_blocks, device))
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:  # torch and mmap
            each = geometry.kv_bytes_per_block(block_size, tp_size, dtype, groups.layers_per_group)
            needed = num_blocks * max(each, _states_end(groups, sizes))
            raise _shortage(num_blocks, needed, device) from error
        areas = [*keys, *values] if memory is None else [memory]
        areas += [*of_scales[0], *of_scales[1]] if of_scales[2] is None else [of_scales[2]]
        pairs, none = list(zip(*of_scales[:2], strict=True)), torch.empty((0, *shape[1:]), dtype=dtype)
        of_layer, no_scales = groups.tensor_of_layer, torch.empty((0, *shape[1:3]))
        keys, values = ([none if index < 0 else held[index] for index in of_layer] for held in (keys, values))
        scales_of = [(no_scales, no_scales) if index < 0 else pairs[index] for index in of_layer if coded]
        return cls(keys, values, block_size, scales_of, groups, states, blocks=whole_blocks(num_blocks, areas))

    @classmethod
    def _of_areas(
        cls,
        geometry: Geometry,
        num_blocks: int,
        block_size: int,
        tp_size: int,
        device: str,
        dtype: torch.dtype,
        groups: KVGroups,
    ) -> "KVCache":
        """The cache of a model whose keys differ in size by layer: one tensor, which each layer views in its own shape.

        As in a model with states a block is one piece of memory, and a layer's tensors begin at its area of block 0.
        """
        per_block = bytes_per_token(geometry, groups, tp_size, dtype) * block_size // dtype.itemsize
        try:
            memory = _empty((num_blocks, per_block), dtype, device)
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:  # torch and mmap
            raise _shortage(num_blocks, num_blocks * per_block * dtype.itemsize, device) from error
        keys, values = list[Tensor](), list[Tensor]()
        for layer, (group, index) in enumerate(zip(groups.of_layer, groups.tensor_of_layer, strict=True)):
            sizes, unit = geometry.of_layer(layer), groups.table_units[group]
            areas = memory.view(-1, sizes.kv_heads_of_rank(tp_size), block_size, sizes.cached_head_dim)
            end = (num_blocks - 1) * unit + 1
            keys.append(areas[2 * index :][:end])
            values.append(areas[2 * index + 1 :][:end])
        return cls(keys, values, block_size, (), groups, blocks=whole_blocks(num_blocks, [memory]))

    @property
    def num_blocks(self) -> int:
        return len(self.blocks[0])

    def scales_of(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return self.scales[layer] if self.scales else None

    def copy_blocks(self, pairs: bytes) -> None:
        """Copy whole blocks, of any KV group, on the device's current stream; `pairs` as in SchedulerOutput."""
        copy_blocks(self.blocks, pairs)


def bytes_per_token(geometry: Geometry, groups: KVGroups, tp_size: int, dtype: torch.dtype) -> int:
    """Bytes of one token in a block of any group on one rank."""
    if not groups.areas:
        return geometry.kv_bytes_per_block(1, tp_size, dtype, groups.layers_per_group)
    of_layer = geometry.of_layer(groups.of_layer.index(0)).kv_bytes_per_block(1, tp_size, dtype, 1)
    return groups.layers_per_group * of_layer // groups.areas[0]


def _shortage(num_blocks: int, needed: int, device: str) -> MemoryShortage:
    sized_by = "kv_cache_memory_bytes" if device == "cpu" else "gpu_memory_utilization or kv_cache_memory_bytes"
    return MemoryShortage(
        f"the KV cache of {num_blocks} blocks needs {needed} bytes, which cannot be allocated; lower {sized_by}"
    )


def _areas(
    groups: KVGroups, shape: tuple[int, ...], dtype: torch.dtype, device: str, *, are_same: bool = False
) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
    """The tensors of keys and of values, by the index in KVGroups.tensor_of_layer; `are_same`: values are keys.

    With states they are views of one tensor, the last result: area by area, block by block.
    """
    tensors, unit = range(groups.layers_per_group), groups.unit
    if not groups.places or not tensors:
        keys = [_empty(shape, dtype, device) for _ in tensors]
        return keys, keys if are_same else [_empty(shape, dtype, device) for _ in tensors], None
    memory = _empty((shape[0] * unit, *shape[1:]), dtype, device)
    end = (shape[0] - 1) * unit + 1
    each = groups.areas_per_layer
    keys, values = ([memory[each * index + last :][:end] for index in tensors] for last in (0, each - 1))
    return keys, values, memory


def _states_end(groups: KVGroups, sizes: Sequence[int]) -> int:
    """The bytes of a block up to the end of its last state; 0 without states."""
    ends = zip(groups.places, sizes, strict=True) if groups.places else ()
    return max((at.offset + size for at, size in ends if at is not None), default=0)


def _states(
    groups: KVGroups, sizes: Sequence[int], memory: Tensor | None, place: tuple[int, str]
) -> tuple[list[Tensor], Tensor | None]:
    """Each layer's states, of `sizes` bytes, as views of `memory`, which keys and values have, or else of new memory.

    `place`: the number of blocks, and the device. Also returns the memory; None without states.
    """
    if not groups.places:
        return [], memory
    num_blocks, device = place
    if memory is None:
        memory = _empty((num_blocks, _states_end(groups, sizes)), torch.uint8, device)
    blocks = memory.view(num_blocks, -1).view(torch.uint8)
    states = [
        blocks[:0] if at is None else blocks[:, at.offset : at.offset + size]
        for at, size in zip(groups.places, sizes, strict=True)
    ]
    return states, memory


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """An uninitialised tensor, on the CPU in pages of 2 MB: with 4 KB pages each head's part of a block would be a
    separate page, and nearly every access to it would miss the TLB."""
    return allocate(shape, dtype) if device == "cpu" else torch.empty(shape, dtype=dtype, device=device)
