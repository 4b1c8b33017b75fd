"""The paged KV cache of one rank."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError

from ..checkpoint.geometry import Geometry
from ..distributed.huge_pages import allocate
from .kv_groups import KVGroups

ONE_LAYER = KVGroups.whole(1)


@dataclass(frozen=True, slots=True, eq=False)
class KVCache:
    """K and V of every layer, in tensors [num_blocks, kv_heads of this rank, block_size, cached_head_dim].

    With latent attention every rank holds one KV head, whose values are the first elements of its keys: the tensors of
    `values` are those of `keys`.

    Layers of different groups may share a tensor: a block belongs to one group at a time. In int8 each head of a token
    has a scale for its key and one for its value. In fp8 (e4m3) there are no scales: values are rounded to nearest
    even and saturate at 448.
    """

    keys: Sequence[Tensor]  # by layer
    values: Sequence[Tensor]
    block_size: int  # tokens
    scales: Sequence[
        tuple[Tensor, Tensor]
    ] = ()  # int8: of keys and of values, [num_blocks, kv_heads, block_size] float32
    groups: KVGroups = ONE_LAYER

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
        """A cache in the model's dtype, e4m3, or int8 with scales. Raises ConfigError if memory is short.

        Without `groups` there is one group, which keeps all positions. The tensors are not initialised: backends read
        only slots that were written, and untouched pages cost nothing.
        """
        dtype = dtype or geometry.dtype
        shape = (num_blocks, geometry.kv_heads_of_rank(tp_size), block_size, geometry.cached_head_dim)
        groups = groups or KVGroups.whole(geometry.num_layers)
        tensors = range(groups.layers_per_group)
        try:
            keys = [_empty(shape, dtype, device) for _ in tensors]
            values = keys if geometry.latent else [_empty(shape, dtype, device) for _ in tensors]
            coded = tensors if dtype == torch.int8 else ()
            key_scales, value_scales = ([_empty(shape[:3], torch.float32, device) for _ in coded] for _ in "kv")
        except (RuntimeError, MemoryError, OSError, OverflowError) as error:  # torch and mmap
            needed = num_blocks * geometry.kv_bytes_per_block(block_size, tp_size, dtype, groups.layers_per_group)
            raise ConfigError(
                f"the KV cache of {num_blocks} blocks needs {needed} bytes, which cannot be allocated; "
                "lower kv_cache_memory_bytes"
            ) from error
        scales = list(zip(key_scales, value_scales, strict=True))
        keys, values = ([held[tensor] for tensor in groups.tensor_of_layer] for held in (keys, values))
        return cls(keys, values, block_size, [scales[tensor] for tensor in groups.tensor_of_layer if coded], groups)

    def scales_of(self, layer: int) -> tuple[Tensor, Tensor] | None:
        return self.scales[layer] if self.scales else None


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """An uninitialised tensor, on the CPU in pages of 2 MB: with 4 KB pages each head's part of a block would be a
    separate page, and nearly every access to it would miss the TLB."""
    return allocate(shape, dtype) if device == "cpu" else torch.empty(shape, dtype=dtype, device=device)
