"""The cases of bench_kernels.py for recurrent layers, with the sizes that hidden size 1024 has: Mamba 2 of 32 heads of
64 x 128 in one group, a gated delta net of 16 heads of 128 x 128 over 8 key heads.

The states of consecutive calls are different blocks, which come from memory.
"""

from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import Tensor

from paged_serve.workers.backends.cpu.recurrences import CpuRecurrences
from paged_serve.workers.distributed.huge_pages import allocate
from paged_serve.workers.kernels.cpu.buffers import Buffers
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kv.state_rows import StateRows
from paged_serve.workers.layers.recurrent.weights import CausalConv, GatedDelta, GatedNorm, Mamba2

STATES_BYTES = 256 << 20
BLOCK_SIZE = 512
SHAPES = ((1, 1), (32, 1), (1, 512))  # rows, tokens of each
HEADS, HEAD_DIM, STATE_SIZE = 32, 64, 128
DELTA_HEADS, KEY_HEADS, DELTA_DIM = 16, 8, 128
INNER = HEADS * HEAD_DIM
CHANNELS = INNER + 2 * STATE_SIZE

Run = Callable[[StateRows, Tensor], object]
RecurrentCase = tuple[str, str, Callable[[], object], int, int]  # kernel, shape, call, bytes, operations


def recurrent_cases(pool: Pool) -> Iterator[RecurrentCase]:
    recurrences, ones = CpuRecurrences(pool, Buffers()), torch.ones(HEADS)
    conv = CausalConv(torch.randn(4, CHANNELS), torch.randn(CHANNELS), activates=True)
    scan = Mamba2(-ones, ones, ones, HEAD_DIM, 1, STATE_SIZE, (0.0, torch.inf))
    delta = GatedDelta(-ones[:DELTA_HEADS], ones[:DELTA_HEADS], KEY_HEADS, DELTA_DIM, DELTA_DIM, 1e-6)
    norm = GatedNorm(torch.ones(INNER), INNER, 1e-5)
    width = 2 * KEY_HEADS * DELTA_DIM + DELTA_HEADS * DELTA_DIM
    for rows, tokens in SHAPES:
        count = rows * tokens
        x, wide = torch.randn(count, CHANNELS).bfloat16(), torch.randn(count, width).bfloat16()
        dt, y = torch.randn(count, HEADS).bfloat16(), torch.randn(count, INNER).bfloat16()
        b, alpha = (torch.randn(count, DELTA_HEADS).bfloat16() for _ in "ba")

        def with_states(
            shape: tuple[int, ...],
            dtype: torch.dtype,
            run: Callable[[StateRows, Tensor], object],
            rows: int,
            tokens: int,
        ) -> Callable[[], object]:
            one = torch.Size(shape).numel() * dtype.itemsize
            states = allocate((max(2 * rows, STATES_BYTES // one), *shape), dtype)
            states.zero_()
            turns = cycle(_steps(len(states), rows, tokens))
            return lambda: run(next(turns), states)

        def convolve(place: StateRows, states: Tensor, x: Tensor = x) -> object:
            return recurrences.causal_conv(place, states, conv, x)

        def scanned(place: StateRows, states: Tensor, x: Tensor = x, dt: Tensor = dt) -> object:
            return recurrences.mamba2(place, states, scan, x, dt)

        def changed(place: StateRows, states: Tensor, wide: Tensor = wide, b: Tensor = b, a: Tensor = alpha) -> object:
            return recurrences.gated_delta(place, states, delta, wide, b, a)

        def normed(y: Tensor = y, gate: Tensor = x[:, :INNER]) -> object:
            return recurrences.gated_norm(norm, y, gate)

        shape, state, delta_state = f"{rows} x {tokens}", 4 * INNER * STATE_SIZE, 4 * DELTA_HEADS * DELTA_DIM**2
        call = with_states((3, CHANNELS), torch.bfloat16, convolve, rows, tokens)
        yield "causal_conv", shape, call, 2 * x.nbytes + 2 * rows * 3 * CHANNELS * 2, 8 * count * CHANNELS
        call = with_states(scan.state_shape, torch.float32, scanned, rows, tokens)
        yield "mamba2_scan", shape, call, 2 * rows * state, 6 * count * INNER * STATE_SIZE
        call = with_states(delta.state_shape, torch.float32, changed, rows, tokens)
        yield "gated_delta", shape, call, 2 * rows * delta_state, 8 * count * DELTA_HEADS * DELTA_DIM**2
        yield "gated_norm", shape, normed, 3 * y.nbytes, 0


def _steps(num_blocks: int, rows: int, tokens: int) -> list[StateRows]:
    """Steps of other blocks each; a decoded token is in the middle of its block."""
    starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32)
    kv_lens = torch.full((rows,), tokens if tokens > 1 else 9, dtype=torch.int32)
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))[: num_blocks // rows * rows]
    return [StateRows(table, starts, kv_lens, BLOCK_SIZE) for table in order.int().view(-1, rows, 1)]
