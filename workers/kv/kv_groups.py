"""KV groups: layers with the same window share a block table, so that blocks outside the window can be released.

All groups take blocks of equal size in bytes from one pool, so all have the same number of layers. The cache has this
number of tensors for keys and for values; layers of different groups share a tensor, with different blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paged_serve.protocol.messages.worker import MAX_KV_GROUPS

COST_OF_GROUP = 0.02  # the cost of a group's tables and views, in units of the bytes of a sequence of full length


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of a model, and the place of each layer's keys and values."""

    windows: tuple[int, ...]  # per group: positions that a token attends to, itself included; 0: all
    of_layer: tuple[int, ...]  # the group of each layer
    tensor_of_layer: tuple[int, ...]  # the index of the cache tensor with each layer's blocks
    layers_per_group: int  # a group may have fewer layers, but takes the same memory

    @classmethod
    def whole(cls, num_layers: int) -> "KVGroups":
        """One group that keeps all positions, whatever the windows of its layers."""
        return cls((0,), (0,) * num_layers, tuple(range(num_layers)), num_layers)

    @classmethod
    def of(cls, windows: Sequence[int], max_model_len: int) -> "KVGroups":
        """Groups for layers with these `windows` (0: full attention) and requests of up to `max_model_len` tokens.

        A window that is no smaller than the longest request hides nothing: its layers keep all positions.
        """
        kinds: dict[int, list[int]] = {}
        for layer, window in enumerate(windows):
            kinds.setdefault(window if window < max_model_len else 0, []).append(layer)
        size = _layers_per_group({window: len(layers) for window, layers in kinds.items()}, max_model_len)
        groups = [
            (window, kinds[window][first : first + size])
            for window in sorted(kinds)
            for first in range(0, len(kinds[window]), size)
        ]
        places = {
            layer: (group, tensor) for group, (_, layers) in enumerate(groups) for tensor, layer in enumerate(layers)
        }
        of_layer, tensor_of_layer = zip(*(places[layer] for layer in range(len(windows))), strict=True)
        return cls(tuple(window for window, _ in groups), of_layer, tensor_of_layer, size)

    def blocks_of_sequence(self, length: int, block_size: int, most_at_once: int) -> int:
        """The largest number of blocks of a sequence of `length` tokens in chunks of up to `most_at_once` tokens."""
        whole = -(-length // block_size)

        def of(window: int) -> int:
            """Blocks spanned by a chunk and the window before it, which may begin anywhere in a block."""
            spanned = window - 1 + min(most_at_once, length)
            return min(whole, (spanned + block_size - 2) // block_size + 1) if window else whole

        return sum(map(of, self.windows))


def _layers_per_group(num_layers: dict[int, int], max_model_len: int) -> int:
    """The cheapest size, given the number of layers by window: small groups mean many tables, large ones padding."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in num_layers.values())

    def cost(size: int) -> float:
        tokens = sum(-(-count // size) * size * (window or max_model_len) for window, count in num_layers.items())
        return tokens * (1 + COST_OF_GROUP * num_groups(size))

    sizes = [size for size in range(1, max(num_layers.values()) + 1) if num_groups(size) <= MAX_KV_GROUPS]
    return min(sizes, key=cost)
