"""Checks at start that a row's bits do not depend on its batch: rows alone, together and in chunks must be equal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paged_serve.protocol.errors import ConfigError

from ....batch.input_batch import InputBatch
from ....kv.kv_cache import KVCache
from .row_rules import RowWatch, check_operations

BLOCK_SIZE = 16
LENGTHS = (1, 7, 33, 18)  # of the rows; they end within blocks, and their sum is odd
CUTS = ((1,), (3, 4), (16, 1, 16), (17, 1))  # the lengths of the same rows' chunks
WATCHED = 31  # tokens of the watched pass: a prime, so that a dimension of this size, or a multiple, is one of tokens
SEED = 20261125

Part = tuple[int, int, int]  # a row, and its positions [first, stop)


class Rows:
    """Random rows, each with its own blocks in a small cache."""

    def __init__(self, lengths: Sequence[int], vocab_size: int, num_groups: int):
        generator = torch.Generator().manual_seed(SEED)
        self._tokens = [torch.randint(vocab_size, (length,), generator=generator) for length in lengths]
        self._widest = -(-max(lengths) // BLOCK_SIZE)
        self.num_blocks = len(lengths) * self._widest
        self._num_groups = num_groups

    def batch(self, parts: Sequence[Part]) -> InputBatch:
        """A step of `parts`; those of one token come first."""
        blocks = torch.arange(self.num_blocks, dtype=torch.int32).flip(0).view(-1, self._widest)
        positions = [torch.arange(first, stop) for _, first, stop in parts]
        each = zip(parts, positions, strict=True)
        slots = [blocks[row, at // BLOCK_SIZE].long() * BLOCK_SIZE + at % BLOCK_SIZE for (row, *_), at in each]
        counts = torch.tensor([0, *(stop - first for _, first, stop in parts)])
        starts = counts.cumsum(0).int()
        return InputBatch(
            token_ids=torch.cat([self._tokens[row][first:stop] for row, first, stop in parts]),
            positions=torch.cat(positions),
            row_starts=starts,
            kv_lens=torch.tensor([stop for *_, stop in parts], dtype=torch.int32),
            longest=max(stop for *_, stop in parts),
            block_tables=[blocks[[row for row, *_ in parts]]] * self._num_groups,
            slots=[torch.cat(slots)] * self._num_groups,
            logit_tokens=starts[1:].long() - 1,
            num_decode_rows=sum(stop - first == 1 for _, first, stop in parts),
        )


def check_rows(
    forward: Callable[[InputBatch, KVCache], Tensor],
    logits: Callable[[Tensor], Tensor],
    new_cache: Callable[[int, int], KVCache],
    vocab_size: int,
) -> None:
    """Raises ConfigError if a row's hidden states or logits depend on how it is computed.

    `new_cache(num_blocks, block_size)` makes a cache; all its layers are in one group.
    """
    rows = Rows(LENGTHS, vocab_size, 1)

    def computed(steps: Sequence[Sequence[Part]]) -> list[Tensor]:
        """The hidden states and logits of each row, concatenated."""
        cache = new_cache(rows.num_blocks, BLOCK_SIZE)
        found: list[list[Tensor]] = [[] for _ in LENGTHS]
        for step in steps:
            parts = sorted(step, key=lambda part: part[2] - part[1] > 1)
            hidden = forward(rows.batch(parts), cache)
            both = torch.cat([hidden.float(), logits(hidden)], dim=1)
            sizes = [stop - first for _, first, stop in parts]
            for (row, *_), one in zip(parts, torch.split(both, sizes), strict=True):
                found[row].append(one)
        return [torch.cat(each) for each in found]

    whole: list[Part] = [(row, 0, length) for row, length in enumerate(LENGTHS)]
    alone = computed([[part] for part in whole])
    ways = {"with other rows": [whole], "in chunks": _in_chunks(), "token by token": _by_token()}
    for way, steps in ways.items():
        for row, (one, other) in enumerate(zip(alone, computed(steps), strict=True)):
            if not torch.equal(one, other):
                position = int((one != other).any(dim=1).nonzero()[0])
                raise ConfigError(
                    f"a row of {LENGTHS[row]} tokens has different bits {way} than alone, from position {position} on"
                )


def _in_chunks() -> list[list[Part]]:
    """All rows in chunks, as a list of steps."""
    steps: list[list[Part]] = [[] for _ in range(max(map(len, CUTS)))]
    for row, cuts in enumerate(CUTS):
        first = 0
        for step, count in zip(steps, cuts, strict=False):
            step.append((row, first, first + count))
            first += count
    return steps


def _by_token() -> list[list[Part]]:
    """Every row's last three tokens one by one, as in decoding."""
    steps: list[list[Part]] = [[(row, 0, length - 3) for row, length in enumerate(LENGTHS) if length > 3]]
    for back in (3, 2, 1):
        steps.append([(row, length - back, length - back + 1) for row, length in enumerate(LENGTHS) if length >= back])
    return [[part for part in step if part[0] != 0 or step is steps[-1]] for step in steps]


def watch_operations(
    start: Callable[[InputBatch, KVCache], None],
    run: Callable[[InputBatch], Any],
    ours: Sequence[nn.Module],
    new_cache: Callable[[int, int], KVCache],
    vocab_size: int,
) -> None:
    """Raises ConfigError if `run` uses operations of torch that could mix rows, outside the modules `ours`.

    `start` is called before it.
    """
    rows = Rows((WATCHED,), vocab_size, 1)
    cache, batch = new_cache(rows.num_blocks, BLOCK_SIZE), rows.batch([(0, 0, WATCHED)])
    watch = RowWatch(WATCHED)
    start(batch, cache)
    with _pausing(watch, ours), watch:
        run(batch)
    check_operations(watch)


@contextmanager
def _pausing(watch: RowWatch, modules: Sequence[nn.Module]) -> Iterator[None]:
    """In this context the watch ignores the operations of these modules."""

    def paused(*_: Any) -> None:
        watch.is_paused = True

    def resumed(*_: Any) -> None:
        watch.is_paused = False

    hooks = [hook for m in modules for hook in (m.register_forward_pre_hook(paused), m.register_forward_hook(resumed))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
