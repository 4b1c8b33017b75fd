"""The division of a model's cache into blocks: the groups of its layers, and the size of a block."""

from dataclasses import dataclass

import torch

from ..geometry.geometry import Geometry
from .kv_cache import bytes_per_token
from .kv_groups import KVGroups
from .state_places import STATE_ALIGNMENT, STATE_BLOCK, block_size_for, places_of


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The blocks of one rank."""

    groups: KVGroups
    block_size: int  # tokens
    bytes_per_block: int

    @classmethod
    def of(
        cls, geometry: Geometry, max_model_len: int, block_size: int, tp_size: int = 1, dtype: torch.dtype | None = None
    ) -> "CacheLayout":
        """The layout for requests of up to `max_model_len` tokens with a cache in `dtype`; None: in the model's.

        The block size is `block_size`, or a multiple of it in which the model's states fit.
        """
        dtype = dtype or geometry.dtype
        groups = KVGroups.of_model(geometry, max_model_len, tp_size)
        per_token = bytes_per_token(geometry, groups, tp_size, dtype)
        sizes = geometry.state_bytes(tp_size)
        if not sizes:
            return cls(groups, block_size, block_size * per_token)
        if not groups.layers_per_group:
            block_size = -(-STATE_BLOCK // block_size) * block_size
            places = places_of(sizes, sum(sizes) + STATE_ALIGNMENT * len(sizes))
            return cls(groups.with_states(geometry, places), block_size, places[-1].offset + sizes[-1])
        areas = geometry.areas_per_layer * groups.layers_per_group
        of_areas = areas * geometry.area_bytes_per_token(tp_size, dtype)
        block_size = block_size_for(sizes, of_areas, block_size)
        places = places_of(sizes, block_size * of_areas)
        return cls(groups.with_states(geometry, places), block_size, block_size * per_token)
