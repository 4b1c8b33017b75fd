"""The cases of bench_kernels.py for recurrent layers, with the sizes that hidden size 1024 has: Mamba 1 of 2048
channels of 16 numbers, Mamba 2 of 32 heads of 64 x 128 in one group, a gated delta net of 16 heads of 128 x 128 over 8
key heads.

The states of consecutive calls are different blocks, which come from memory.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import torch
from torch import Tensor

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences, CpuSelectiveScan
from paged_serve.workers.distributed.huge_pages import allocate
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.recurrences import Recurrences, SelectiveScan
from paged_serve.workers.layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm, Mamba1, Mamba2

STATES_BYTES = 256 << 20
BLOCK_SIZE = 512
SHAPES = ((1, 1), (32, 1), (1, 512))  # rows, tokens of each
HEADS, HEAD_DIM, STATE_SIZE = 32, 64, 128
MAMBA1_STATE_SIZE = 16
DELTA_HEADS, KEY_HEADS, DELTA_DIM = 16, 8, 128
INNER = HEADS * HEAD_DIM
CHANNELS = INNER + 2 * STATE_SIZE

RecurrentCase = tuple[str, str, Callable[[], object], int, int]  # kernel, shape, call, bytes, operations


def recurrent_cases(pool: Pool) -> Iterator[RecurrentCase]:
    recurrences = CpuRecurrences(pool, Buffers())
    for rows, tokens in SHAPES:
        yield conv_case(recurrences, rows, tokens)
        yield mamba1_case(CpuSelectiveScan(pool, Buffers()), rows, tokens)
        yield mamba2_case(recurrences, rows, tokens)
        yield gated_delta_case(recurrences, rows, tokens)
        yield gated_norm_case(recurrences, rows, tokens)


def conv_case(recurrences: Recurrences, rows: int, tokens: int) -> RecurrentCase:
    conv = CausalConv(torch.randn(4, CHANNELS), torch.randn(CHANNELS), activates=True)
    count, x = rows * tokens, random(rows * tokens, CHANNELS)
    steps = steps_of((3, CHANNELS), torch.bfloat16, rows, tokens)
    call = lambda: recurrences.causal_conv(*next(steps), conv, x)  # noqa: E731
    nbytes = 2 * x.nbytes + 2 * rows * 3 * CHANNELS * 2
    return "causal_conv", f"{rows} x {tokens}", call, nbytes, 8 * count * CHANNELS


def mamba1_case(selective: SelectiveScan, rows: int, tokens: int) -> RecurrentCase:
    ones, count, size = torch.ones(INNER), rows * tokens, MAMBA1_STATE_SIZE
    scan = Mamba1(-torch.arange(1.0, size + 1).repeat(INNER, 1), ones, ones)
    x, dt, b_and_c = random(count, INNER), random(count, INNER), random(count, 2 * size)
    steps = steps_of(scan.state_shape, torch.float32, rows, tokens)
    call = lambda: selective.scan(*next(steps), scan, x, dt, b_and_c)  # noqa: E731
    nbytes = 2 * rows * 4 * INNER * size + 3 * x.nbytes
    return "mamba1_scan", f"{rows} x {tokens}", call, nbytes, 6 * count * INNER * size  # without the exponential


def mamba2_case(recurrences: Recurrences, rows: int, tokens: int) -> RecurrentCase:
    ones, count = torch.ones(HEADS), rows * tokens
    scan = Mamba2(-ones, ones, ones, HEAD_DIM, 1, STATE_SIZE, (0.0, torch.inf))
    x, dt = random(count, CHANNELS), random(count, HEADS)
    steps = steps_of(scan.state_shape, torch.float32, rows, tokens)
    call = lambda: recurrences.mamba2(*next(steps), scan, x, dt)  # noqa: E731
    state = 4 * INNER * STATE_SIZE
    return "mamba2_scan", f"{rows} x {tokens}", call, 2 * rows * state, 6 * count * INNER * STATE_SIZE


def gated_delta_case(recurrences: Recurrences, rows: int, tokens: int) -> RecurrentCase:
    ones, count = torch.ones(DELTA_HEADS), rows * tokens
    delta = GatedDelta(-ones, ones, KEY_HEADS, DELTA_DIM, DELTA_DIM, 1e-6)
    x = random(count, (2 * KEY_HEADS + DELTA_HEADS) * DELTA_DIM)
    b, alpha = random(count, DELTA_HEADS), random(count, DELTA_HEADS)
    steps = steps_of(delta.state_shape, torch.float32, rows, tokens)
    call = lambda: recurrences.gated_delta(*next(steps), delta, x, b, alpha)  # noqa: E731
    state = 4 * DELTA_HEADS * DELTA_DIM**2
    return "gated_delta", f"{rows} x {tokens}", call, 2 * rows * state, 8 * count * DELTA_HEADS * DELTA_DIM**2


def gated_norm_case(recurrences: Recurrences, rows: int, tokens: int) -> RecurrentCase:
    norm = GatedNorm(torch.ones(INNER), INNER, 1e-5)
    x, gate = random(rows * tokens, INNER), random(rows * tokens, CHANNELS)[:, :INNER]
    return "gated_norm", f"{rows} x {tokens}", lambda: recurrences.gated_norm(norm, x, gate), 3 * x.nbytes, 0


def random(*sizes: int) -> Tensor:
    return torch.randn(*sizes).bfloat16()


def steps_of(shape: Sequence[int], dtype: torch.dtype, rows: int, tokens: int) -> Iterator[tuple[StateRows, Tensor]]:
    """The rows and the states of one call after another, without end; a state has this shape."""
    one = torch.Size(shape).numel() * dtype.itemsize
    states = allocate((max(2 * rows, STATES_BYTES // one), *shape), dtype)
    states.zero_()
    return cycle((step, states) for step in _steps(len(states), rows, tokens))


def _steps(num_blocks: int, rows: int, tokens: int) -> list[StateRows]:
    """Steps of other blocks each; a decoded token is in the middle of its block."""
    starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32)
    kv_lens = torch.full((rows,), tokens if tokens > 1 else 9, dtype=torch.int32)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))[: num_blocks // rows * rows]
    return [StateRows(table, starts, kv_lens, BLOCK_SIZE) for table in order.int().view(-1, rows, 1)]
