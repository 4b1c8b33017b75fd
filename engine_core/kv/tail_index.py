"""Which partial last blocks, the tails, can be found: their lengths after each full block."""

from collections import Counter
from collections.abc import Iterable, Sequence


class TailIndex:
    """Keys of the tails in the block pool. A tail has one key for each KV group."""

    def __init__(self) -> None:
        self._place_of: dict[bytes, tuple[bytes, int]] = {}  # key -> hash of the block before the tail, its tokens
        self._lengths: dict[bytes, Counter[int]] = {}  # after the block with this hash: keys by number of tokens

    def __contains__(self, key: object) -> bool:
        return key in self._place_of

    def add(self, keys: Iterable[bytes], parent: bytes, length: int) -> None:
        """`keys`: of a tail of `length` tokens after the block with the hash `parent`; they are new."""
        for key in keys:
            self._place_of[key] = parent, length
            self._lengths.setdefault(parent, Counter())[length] += 1

    def remove(self, keys: Sequence[bytes]) -> list[bytes]:
        """Remove those of `keys` that are tails'; returns the others, which are full blocks'."""
        if not self._place_of:
            return list(keys)
        others = []
        for key in keys:
            if (place := self._place_of.pop(key, None)) is None:
                others.append(key)
                continue
            parent, length = place
            lengths = self._lengths[parent]
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]
            if not lengths:
                del self._lengths[parent]
        return others

    def lengths(self, parent: bytes) -> list[int]:
        """The tokens of tails after the block with the hash `parent`, the longest first."""
        return sorted(self._lengths.get(parent, ()), reverse=True)

    def check(self, keys: Iterable[bytes]) -> None:
        """Raise AssertionError unless every tail's key is one of `keys`, and the lengths are counted right."""
        assert self._place_of.keys() <= set(keys), "a tail has no block"
        counts: dict[bytes, Counter[int]] = {}
        for parent, length in self._place_of.values():
            counts.setdefault(parent, Counter())[length] += 1
        assert counts == self._lengths, "the lengths of tails are miscounted"
