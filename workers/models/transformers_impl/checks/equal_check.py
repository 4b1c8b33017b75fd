"""Finds out at start whether two ways to compute a model give the same bits, at near and at far positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from ....batch.input_batch import InputBatch
from ....kv.kv_cache import KVCache
from .row_check import BLOCK_SIZE, SEED, Rows

Forward = Callable[[InputBatch, KVCache], Tensor]

LENGTHS = (2 * BLOCK_SIZE, 7, 1)  # of the rows; those that end within a block have free places
FAR = 4096  # the far positions are the last ones before the served length, and before this
NUM_FAR = 5


def are_equal(
    one: Forward, other: Forward, new_cache: Callable[[int, int], KVCache], vocab_size: int, num_positions: int
) -> bool:
    """Whether both give all tokens the same hidden states. All layers of `new_cache` are in one group."""
    rows = Rows(LENGTHS, vocab_size, 1)
    whole = rows.batch([(row, 0, length) for row, length in enumerate(LENGTHS)])
    caches = [new_cache(rows.num_blocks + 1, BLOCK_SIZE) for _ in range(2)]
    far = _far_batch(whole, rows.num_blocks, vocab_size, num_positions)
    return all(torch.equal(one(batch, caches[0]).clone(), other(batch, caches[1])) for batch in (whole, *far))


def _far_batch(written: InputBatch, free_block: int, vocab_size: int, num_positions: int) -> list[InputBatch]:
    """Tokens far from the start, whose earlier positions are all in two blocks of the step `written`; or no batch."""
    first = (min(num_positions, FAR) - NUM_FAR) // BLOCK_SIZE * BLOCK_SIZE
    if first <= 0:
        return []
    blocks = written.block_tables[0][0, :2].repeat(-(-first // (2 * BLOCK_SIZE)))[: first // BLOCK_SIZE]
    positions = torch.arange(first, first + NUM_FAR)
    generator = torch.Generator().manual_seed(SEED)
    return [
        InputBatch(
            token_ids=torch.randint(vocab_size, (NUM_FAR,), generator=generator),
            positions=positions,
            row_starts=torch.tensor([0, NUM_FAR], dtype=torch.int32),
            kv_lens=torch.tensor([first + NUM_FAR], dtype=torch.int32),
            longest=first + NUM_FAR,
            block_tables=[torch.cat([blocks, torch.tensor([free_block], dtype=torch.int32)]).unsqueeze(0)],
            slots=[free_block * BLOCK_SIZE + positions - first],
            logit_tokens=torch.tensor([NUM_FAR - 1]),
            num_decode_rows=0,
        )
    ]
