"""The cases of bench_kernels.py: every kernel with the shapes of one model, its operands placed as in a step.

The model has hidden size 1024, intermediate size 3072, 16 heads over 8 KV heads of 128, and 32,000 tokens. Weights and
the KV cache come from memory, because consecutive calls read different copies or blocks. Activations and logits are in
the processor's caches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

import numpy as np
import torch
from cache_views import reading_view, writing_view
from recurrent_cases import recurrent_cases
from torch import Tensor

from paged_serve.protocol.gguf.block_formats import BLOCK_FORMATS as FILE_FORMATS
from paged_serve.workers.checkpoint.blocks.block_weight import PRODUCT_FORMATS
from paged_serve.workers.checkpoint.packed_weight import BLOCK_FORMATS, PackedWeight, WeightFormat
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight
from paged_serve.workers.distributed.huge_pages import allocate
from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cpu.attention import attention
from paged_serve.workers.kernels.cpu.elementwise import activate, normalise, rotate_and_cache
from paged_serve.workers.kernels.cpu.gemm import QuantizedRows, gemm, quantize_rows
from paged_serve.workers.kernels.cpu.library import Pool
from paged_serve.workers.kernels.cpu.loading import packed_fp8, packed_int4
from paged_serve.workers.kernels.cpu.packing import PANEL, pack_float, pack_int4, pack_int8
from paged_serve.workers.kernels.cpu.sampling import draw_tokens, scan_logits, token_logprobs

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 1024, 3072, 16, 8, 128, 32_000
BLOCK_SIZE, NUM_BLOCKS = 16, 8192  # 512 MB
COLD_BYTES = 256 << 20  # of all copies of a weight together
GROUP_SIZE = 32  # of int4, as quantized on load, and of mxfp4
FP8_GROUP_SIZE = 128
GEMM_SHAPES = ((2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))  # outputs, inputs
GEMM_ROWS = (1, 4, 16, 32, 512)
DECODES = ((1, 512), (32, 512), (1, 4096), (32, 4096), (1, 16384), (32, 16384))  # rows, context
PREFILLS = ((1, 512), (1, 2048))
REST_ROWS = (1, 32, 512)
ROW_DTYPES = {
    WeightFormat.BF16: torch.bfloat16,
    WeightFormat.FP16: torch.float16,
    WeightFormat.FP32: torch.float32,
    WeightFormat.INT8: torch.bfloat16,
    **dict.fromkeys((WeightFormat.INT4, WeightFormat.MXFP4, WeightFormat.FP8), torch.bfloat16),
    **dict.fromkeys(BLOCK_FORMATS, torch.bfloat16),
}
PRODUCTS = {  # the format that the products use: float16 is multiplied as float
    WeightFormat.BF16: "bf16",
    WeightFormat.FP16: "fp32",
    WeightFormat.FP32: "fp32",
    WeightFormat.INT8: "int8",
    **dict.fromkeys((WeightFormat.INT4, WeightFormat.MXFP4, WeightFormat.FP8), "bf16"),
    **dict.fromkeys(BLOCK_FORMATS, "int8"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call, and the minimum that any implementation must read (or write) and compute."""

    kernel: str
    shape: str
    call: Callable[[], object]
    nbytes: int
    operations: int = 0  # a multiplication and its addition count as two
    format: str = "fp32"  # number format of the operations: bf16, fp32 or int8


def make_cache() -> Tensor:
    """[2, blocks, kv_heads, block_size, head_dim] bf16, with arbitrary values."""
    cache = allocate((2, NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, HEAD_DIM), torch.bfloat16)
    cache[0, 0].normal_()
    cache[:] = cache[0, 0].clone()
    return cache


def all_cases(pool: Pool, cache: Tensor) -> Iterator[Case]:
    """Yields one case at a time, so that only the operands of one case are in memory."""
    for weight_format in WeightFormat:
        for outputs, inputs in GEMM_SHAPES:
            weights = cold_copies(random_weight(pool, weight_format, outputs, inputs))
            for rows in GEMM_ROWS:
                yield gemm_case(pool, weights, rows)
    for kind, shapes in (("decode", DECODES), ("prefill", PREFILLS)):
        for dtype in (torch.bfloat16, torch.float16):
            for rows, context in shapes:
                yield attention_case(pool, cache, kind, rows, context, dtype)
    for rows in REST_ROWS:
        yield from elementwise_cases(pool, cache, rows)
    for case in recurrent_cases(pool):
        yield Case(*case)
    for rows in (1, 32):
        yield from sampling_cases(pool, rows)


# --- products ---


def random_weight(pool: Pool, weight_format: WeightFormat, outputs: int, inputs: int) -> PackedWeight:
    match weight_format:
        case WeightFormat.INT8:
            return pack_int8(torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8), torch.rand(outputs))
        case WeightFormat.INT4:
            codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
            return pack_int4(codes, torch.rand(outputs, inputs // GROUP_SIZE))
        case WeightFormat.MXFP4:
            codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
            scales = torch.randint(-3, 3, (outputs, inputs // GROUP_SIZE)).float().exp2()
            return packed_int4(pool, GroupedWeight(codes, scales, None, 4, is_e2m1=True))
        case WeightFormat.FP8:
            codes = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
            return packed_fp8(pool, codes, torch.rand(outputs, inputs // FP8_GROUP_SIZE))
        case WeightFormat.BF16:
            return pack_float(torch.randn(outputs, inputs).bfloat16())
        case WeightFormat.FP16:
            return pack_float(torch.randn(outputs, inputs).half())
        case WeightFormat.FP32:
            return pack_float(torch.randn(outputs, inputs))
        case _:
            return random_blocks(pool, weight_format, outputs, inputs)


def random_blocks(pool: Pool, weight_format: WeightFormat, outputs: int, inputs: int) -> PackedWeight:
    """Panels of blocks of any bits, whose scales are small numbers."""
    stored = next(each for each in FILE_FORMATS.values() if each.name == weight_format.upper())
    panel_bytes = pool.library.panel_block_bytes(PRODUCT_FORMATS.index(stored.name))
    data = torch.randint(0, 256, (outputs // PANEL, inputs // stored.num_elements, panel_bytes), dtype=torch.uint8)
    data[..., : 4 * PANEL] &= 0x17  # no exponent of a float16 is above 2^-9
    return PackedWeight(weight_format, data, outputs, inputs, dtype=torch.bfloat16)


def cold_copies(weight: PackedWeight) -> list[PackedWeight]:
    """As many copies as needed so that none is in a cache when it is used again."""
    copies = -(-COLD_BYTES // weight.data.nbytes)
    data = allocate((copies, *weight.data.shape), weight.data.dtype)
    data[:] = weight.data
    return [replace(weight, data=copy) for copy in data]


def gemm_case(pool: Pool, weights: list[PackedWeight], rows: int) -> Case:
    weight = weights[0]
    dtype = ROW_DTYPES[weight.format]
    x: Tensor | QuantizedRows = torch.randn(rows, weight.inputs).to(dtype)
    if weight.format == WeightFormat.INT8:
        x = quantize_rows(pool, x)  # done once for several products, so not part of this one
    out, turns = torch.empty((rows, weight.outputs), dtype=dtype), cycle(weights)
    return Case(
        f"gemm_{weight.format}",
        f"{rows} x {weight.inputs} x {weight.outputs}",
        lambda: gemm(pool, x, next(turns), out=out),
        weight.nbytes,
        2 * rows * weight.inputs * weight.outputs,
        PRODUCTS[weight.format],
    )


# --- attention ---


def attention_case(pool: Pool, cache: Tensor, kind: str, rows: int, context: int, dtype: torch.dtype) -> Case:
    """The last token of each row's `context`, in a prefill all tokens; rows beyond the cache share distant blocks."""
    tokens = context if kind == "prefill" else 1
    cache = cache.view(dtype)  # the values do not matter
    blocks = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(0)).int()
    times = -(-rows * context // (NUM_BLOCKS * BLOCK_SIZE))
    tables_in_turn = blocks.repeat(times).view(-1, rows, context // BLOCK_SIZE)
    query = torch.randn(rows * tokens, HEADS, HEAD_DIM).to(dtype)
    out, options = torch.empty_like(query), AttentionOptions(HEAD_DIM**-0.5)
    starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32)
    lens = torch.full((rows,), context, dtype=torch.int32)
    views = cycle(reading_view(*cache, tables, starts, lens) for tables in tables_in_turn)
    seen = rows * (tokens * (context - tokens) + tokens * (tokens + 1) // 2)
    return Case(
        f"attention {kind}{' fp16' if dtype == torch.float16 else ''}",
        f"{rows} x {context}",
        lambda: attention(pool, query, next(views), 0, options, out),
        rows * context * cache[:, 0, :, 0].nbytes,
        4 * HEAD_DIM * HEADS * seen,
        "fp32" if dtype == torch.float16 else "bf16",
    )


# --- other operations ---


def elementwise_cases(pool: Pool, cache: Tensor, rows: int) -> Iterator[Case]:
    hidden, delta = torch.randn(rows, HIDDEN).bfloat16(), torch.zeros(rows, HIDDEN, dtype=torch.bfloat16)
    weight, out = torch.ones(HIDDEN), torch.empty_like(hidden)
    norm = partial(normalise, pool, hidden, weight, None, 1e-6, is_centred=False, delta=delta, out=out)
    yield Case("norm", f"{rows} x {HIDDEN}", norm, 4 * hidden.nbytes)  # reads two, writes two

    gate_up = torch.randn(rows, 2 * INTERMEDIATE).bfloat16()
    product = torch.empty((rows, INTERMEDIATE), dtype=torch.bfloat16)
    gate = partial(activate, pool, gate_up, Activation(), product)
    yield Case("activate", f"{rows} x {INTERMEDIATE}", gate, gate_up.nbytes + product.nbytes)

    projected = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM).bfloat16()
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:rows].contiguous()
    view = writing_view(torch.arange(rows), slots, cache[0], cache[1])
    query, norm_weight = torch.empty((rows, HEADS, HEAD_DIM), dtype=torch.bfloat16), torch.ones(HEAD_DIM)
    rotate = partial(
        rotate_and_cache, pool, projected, torch.rand(rows, HEAD_DIM), view, 0, query, *[norm_weight] * 2, 1e-6
    )
    yield Case("rotate_and_cache", f"{rows} x {projected.shape[1]}", rotate, 2 * projected.nbytes)


def sampling_cases(pool: Pool, rows: int) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    logits = (4 * rng.standard_normal((rows, VOCAB))).astype(np.float32)
    every, shape = np.arange(rows), f"{rows} x {VOCAB}"

    def draw(top_k: int, top_p: float) -> Callable[[], object]:
        columns = np.full(rows, 0.8, np.float32), np.full(rows, -np.inf, np.float32)
        cuts = np.full(rows, top_k), np.full(rows, top_p)
        numbers = rng.random(rows), np.full(rows, 2.0)  # no XTC
        masks = np.empty((0, -(-VOCAB // 32)), np.int32), np.full(rows, -1)  # none
        return partial(draw_tokens, pool, logits, every, every, *columns, *cuts, *numbers, *masks)

    yield Case("sampling greedy", shape, partial(scan_logits, pool, logits), logits.nbytes)
    yield Case("sampling temperature", shape, draw(0, 1.0), logits.nbytes)
    yield Case("sampling top-k, top-p", shape, draw(50, 0.95), logits.nbytes)
    logprobs = partial(token_logprobs, pool, logits, every, every, np.full(rows, 5))
    yield Case("sampling logprobs", shape, logprobs, logits.nbytes)
