"""Which layers share a block table: those that see equally far, so that blocks behind their window can be given back.

All groups take blocks of equal bytes from one pool, so all have equally many layers; the cache holds that many tensors
of keys and of values, and the layers of different groups share them, in different blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paged_serve.protocol.messages.worker import MAX_KV_GROUPS

COST_OF_GROUP = 0.02  # what a group's tables and views are worth, in shares of the bytes of a sequence of full length


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The groups of a model, and where each layer's keys and values are."""

    windows: tuple[int, ...]  # of each group: positions that a token sees, itself included; 0: all
    of_layer: tuple[int, ...]  # the layer's group
    tensor_of_layer: tuple[int, ...]  # which of the cache's tensors the layer's blocks are in
    layers_per_group: int  # a group may have fewer; what it lacks takes memory all the same

    @classmethod
    def whole(cls, num_layers: int) -> "KVGroups":
        """One group that keeps all positions, whatever its layers see."""
        return cls((0,), (0,) * num_layers, tuple(range(num_layers)), num_layers)

    @classmethod
    def of(cls, windows: Sequence[int], max_model_len: int) -> "KVGroups":
        """For layers of these windows (0: all), and requests of at most so many tokens.

        A window that is not smaller than the longest request hides nothing: such a layer keeps all positions.
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
        """The most blocks that a sequence of `length` tokens holds, computed in chunks of up to `most_at_once`."""
        whole = -(-length // block_size)

        def of(window: int) -> int:
            """A chunk's tokens, and those before it that its first token sees, may begin anywhere in a block."""
            spanned = window - 1 + min(most_at_once, length)
            return min(whole, (spanned + block_size - 2) // block_size + 1) if window else whole

        return sum(map(of, self.windows))


def _layers_per_group(num_layers: dict[int, int], max_model_len: int) -> int:
    """Of kinds with so many layers, by window. Small groups are many, and large ones are filled up with nothing."""

    def num_groups(size: int) -> int:
        return sum(-(-count // size) for count in num_layers.values())

    def cost(size: int) -> float:
        tokens = sum(-(-count // size) * size * (window or max_model_len) for window, count in num_layers.items())
        return tokens * (1 + COST_OF_GROUP * num_groups(size))

    sizes = [size for size in range(1, max(num_layers.values()) + 1) if num_groups(size) <= MAX_KV_GROUPS]
    return min(sizes, key=cost)
