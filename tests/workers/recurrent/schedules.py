"""Requests whose tokens pass through a recurrent kernel in steps, with their states in a paged cache."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_serve.workers.kv.state_rows import StateRows

Step = Sequence[tuple[int, int]]  # (request, number of its next tokens), in the order of rows
Run = Callable[..., Tensor]  # called with the rows, the states and each input's tokens

BLOCK_SIZE = 16


@dataclass
class Requests:
    """Inputs of each request, and the blocks in which its states lie."""

    inputs: Sequence[Sequence[Tensor]]  # by request, each [length, ...]
    tables: Tensor  # [requests, max_blocks] i32
    block_size: int = BLOCK_SIZE

    @classmethod
    def of(cls, inputs: Sequence[Sequence[Tensor]], block_size: int = BLOCK_SIZE, seed: int = 0) -> "Requests":
        """With blocks in a random order."""
        most = max(-(-len(own[0]) // block_size) for own in inputs)
        order = torch.randperm(len(inputs) * most, generator=torch.Generator().manual_seed(seed))
        return cls(inputs, order.view(len(inputs), most).int(), block_size)

    @property
    def num_blocks(self) -> int:
        return int(self.tables.max()) + 1

    def lengths(self) -> list[int]:
        return [len(own[0]) for own in self.inputs]

    def computed(self, run: Run, states: Tensor, steps: Sequence[Step], done: Sequence[int] = ()) -> list[Tensor]:
        """The results for each request's tokens after the first `done`, by `steps`. Writes `states` [blocks, ...]."""
        positions = list(done) or [0] * len(self.inputs)
        found: list[list[Tensor]] = [[] for _ in self.inputs]
        for step in steps:
            spans = [(request, slice(positions[request], positions[request] + count)) for request, count in step]
            packed = [torch.cat([self.inputs[r][i][span] for r, span in spans]) for i in range(len(self.inputs[0]))]
            counts = torch.tensor([0, *(count for _, count in step)])
            rows = StateRows(
                self.tables[[request for request, _ in step]].contiguous(),
                counts.cumsum(0).int(),
                torch.tensor([span.stop for _, span in spans], dtype=torch.int32),
                self.block_size,
            )
            out = run(rows, states, *packed).clone()
            for (request, span), own in zip(spans, out.split(counts[1:].tolist()), strict=True):
                found[request].append(own)
                positions[request] = span.stop
        return [torch.cat(own) if own else torch.empty(0) for own in found]

    def full_blocks(self, states: Tensor) -> list[Tensor]:
        """The states that other requests may start from."""
        return [
            states[self.tables[request, block]]
            for request, length in enumerate(self.lengths())
            for block in range(length // self.block_size)
        ]


def at_once(lengths: Sequence[int]) -> list[Step]:
    return [[(request, length)] for request, length in enumerate(lengths)]


def one_by_one(lengths: Sequence[int]) -> list[Step]:
    """All requests that have a token left advance by one token."""
    return [[(r, 1) for r, length in enumerate(lengths) if at < length] for at in range(max(lengths))]


def mixed(lengths: Sequence[int], seed: int) -> list[Step]:
    """Steps of random requests with random numbers of tokens: many of one, some of a chunk."""
    rng, left, steps = random.Random(seed), list(lengths), list[Step]()
    while any(left):
        chosen = [r for r, own in enumerate(left) if own and rng.random() < 0.7]
        rng.shuffle(chosen)
        counts = [min(left[r], rng.choice([1, 1, 1, 2, 5, 16, 17, 40])) for r in chosen]
        for request, count in zip(chosen, counts, strict=True):
            left[request] -= count
        steps.append(list(zip(chosen, counts, strict=True)))
    return [step for step in steps if step]
