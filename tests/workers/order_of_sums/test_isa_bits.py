"""Every kernel has the same bits on every instruction set that this machine runs, as docs/determinism.md promises.

Numbers include denormals, zeros of both signs, and numbers that overflow.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paged_serve.workers.checkpoint.weight_forms import GroupedWeight, Int8Weight, Weight
from paged_serve.workers.geometry.layer_options import AttentionOptions, alibi_slopes
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.geometry.rope_scaling import RopeScaling
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kernels.cpu.attention import attention, cached_head_dim
from paged_serve.workers.kernels.cpu.elementwise import activate, cap_logits, clip, rotate_and_cache
from paged_serve.workers.kernels.cpu.gemm import embed_rows, gemm, quantize_rows, sum_parts
from paged_serve.workers.kernels.cpu.packing import pack
from paged_serve.workers.kernels.cpu.sampling import draw_tokens, scan_logits, token_logprobs
from paged_serve.workers.layers.rotary import Rotary

from ...kernel_oracles import bias_of, sinks_of
from ..cache_views import reading_view, writing_view
from ..elementwise_calls import layer_norm, rms_norm
from ..portable_numbers import KINDS, assert_same_bits, integers, normals, numbers

FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
WITH_FP16 = ("int8 with fp16", "int4 with fp16", "int4 with zeros and fp16")
FORMS = (*FLOATS, "int8", "int4", "int4 with zeros", *WITH_FP16)
SHAPES = [  # rows, outputs, inputs
    *[(1, 64, 64), (1, 70, 33), (2, 3, 1), (3, 63, 7), (4, 65, 129), (5, 100, 200), (6, 64, 257), (7, 130, 96)],
    *[(13, 1, 95), (19, 190, 512), (25, 64, 1030), (66, 257, 31)],
]
SIZES = [1, 2, 7, 8, 15, 16, 17, 24, 31, 33, 63, 64, 65, 79, 100, 127, 129, 200, 1000, 1024]
DTYPES = list(FLOATS.values())
CACHES = [*((dtype, dtype) for dtype in DTYPES), (torch.bfloat16, torch.int8), (torch.float16, torch.int8)]


@pytest.fixture(scope="module")
def agree():
    """Runs a function on every instruction set, on one and three threads, and asserts that all results are equal."""
    if len(cpu.runnable_isas()) < 2:
        pytest.skip("at most one instruction set is built")
    pools = [
        cpu.Pool(cpu.load_library(isa), [-1] * count, summation="dot")
        for isa in cpu.runnable_isas()
        for count in (1, 3)
    ]

    def compare(run: Callable[..., Tensor | tuple[Tensor, ...]], *arguments: Any, **options: Any) -> None:
        found = [run(pool, *arguments, **options) for pool in pools]
        results = [each if isinstance(each, tuple) else (each,) for each in found]
        for result in results[1:]:
            for one, expected in zip(result, results[0], strict=True):
                assert_same_bits(one, expected)

    yield compare
    for pool in pools:
        pool.close()


def seed_of(*names: object) -> int:
    return zlib.crc32(repr(names).encode())


def weight_of(form: str, kind: str, outputs: int, inputs: int, seed: int) -> Weight:
    if form in FLOATS:
        return numbers(kind, (outputs, inputs), seed).to(FLOATS[form])
    if "int8" in form:
        codes = integers(-128, 128, (outputs, inputs), seed).to(torch.int8)
        return Int8Weight(codes, normals((outputs,), seed + 1).abs() + 0.01)
    codes = integers(0, 16, (outputs, inputs), seed).to(torch.uint8)
    scales = (normals((outputs, inputs // 8), seed + 1) * 0.01).bfloat16().float()
    scales[:, ::5] *= 2.0**-18  # some of these are subnormal in float16
    zeros = integers(0, 17, tuple(scales.shape), seed + 2).to(torch.uint8) if "zeros" in form else None
    return GroupedWeight(codes, scales, zeros, bits=4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_have_the_same_bits(agree, shape, form, kind):
    rows, outputs, inputs = shape
    inputs = -(-inputs // 8) * 8 if "int4" in form else inputs
    seed = seed_of(shape, form, kind)
    packed = pack(weight_of(form, kind, outputs, inputs, seed))
    x = numbers(kind, (rows, inputs), seed + 5).to(FLOATS.get(form.split()[-1], torch.bfloat16))
    bias = numbers(kind, (outputs,), seed + 6)
    for out_dtype in {x.dtype, torch.float32}:
        residual = numbers(kind, (rows, outputs), seed + 7).to(out_dtype)
        agree(gemm, x, packed, out_dtype=out_dtype)
        agree(gemm, x, packed, bias, residual, out_dtype=out_dtype)
    if inputs % 32 == 0:
        agree(gemm, x, packed, bias, segments=4)


@pytest.mark.parametrize("group_size", [8, 24, 32, 40, 64, 128])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("plain", "bf16"), ("wide", "bf16"), ("plain", "fp16"), ("halves", "fp16")]
)
def test_int4_groups_have_the_same_bits(agree, group_size, kind, dtype):
    weight = weight_of("int4 with zeros", kind, 70, 16 * group_size, group_size)
    grouped = GroupedWeight(weight.codes, weight.scales[:, :16].contiguous(), weight.zeros[:, :16].contiguous(), bits=4)
    x = numbers(kind, (9, 16 * group_size), group_size).to(FLOATS[dtype])
    agree(gemm, x, pack(grouped))


@pytest.mark.parametrize("rows", [1, 2, 9, 40])
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_nvfp4_has_the_same_bits(agree, kind, segments, rows):
    """Its groups have 16 inputs, and each output has a unit of its own."""
    seed = seed_of(kind, segments, rows)
    codes, units = integers(0, 16, (70, 320), seed).to(torch.uint8), normals((70,), seed + 1).abs() + 0.01
    scales = integers(0, 127, (70, 20), seed + 2).to(torch.uint8).view(torch.float8_e4m3fn).float() * units[:, None]
    weight = GroupedWeight(codes, scales, None, 4, is_e2m1=True, units=units)
    agree(gemm, numbers(kind, (rows, 320), seed + 3).bfloat16(), pack(weight), segments=segments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_quantized_rows_have_the_same_bits(agree, size, dtype, kind):
    x = numbers(kind, (9, size), seed_of(size, kind)).to(dtype)
    x[4] = 0

    def run(pool: cpu.Pool) -> tuple[Tensor, ...]:
        rows = quantize_rows(pool, x)
        return rows.codes[:, :size], rows.scales, rows.sums

    agree(run)


ACTIVATIONS = [
    Activation(kind, is_gated) for kind in ("silu", "gelu", "gelu_tanh", "relu") for is_gated in (True, False)
]
ACTIVATIONS.append(Activation("xielu", is_gated=False, alpha_p=0.7, alpha_n=1.3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_norms_and_gates_have_the_same_bits(agree, size, dtype, kind):
    seed = seed_of(size, dtype, kind)
    hidden, delta, gate_up = (numbers(kind, (7, n), seed + i).to(dtype) for i, n in enumerate((size, size, 2 * size)))
    weight = normals((size,), seed + 9)

    def add_norm(pool: cpu.Pool) -> tuple[Tensor, ...]:
        summed = hidden.clone()
        return rms_norm(pool, summed, weight, 1e-6, delta), summed

    agree(add_norm)
    agree(rms_norm, hidden, weight, 1e-6)
    agree(layer_norm, hidden, weight, normals((size,), seed + 10), 1e-6)
    agree(layer_norm, hidden, weight, None, 1e-6)
    for activation in ACTIVATIONS:
        agree(activate, gate_up, activation)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gates_of_every_float_have_the_same_bits(agree, dtype):
    gates = torch.arange(-120, 120, 0.01)
    for activation in ACTIVATIONS:
        agree(activate, torch.stack([gates, normals((len(gates),), 0)]).flatten()[None].to(dtype), activation)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtypes", CACHES, ids=str)
@pytest.mark.parametrize("norms", [False, True, "own"])
@pytest.mark.parametrize("head_dim", [2, 16, 20, 34, 80, 128, 256, 272])
def test_rotation_and_the_cache_have_the_same_bits(agree, head_dim, norms, dtypes, kind):
    computed, dtype = dtypes
    tokens, heads, kv_heads, blocks, block_size = 21, 3, 2, 3, 16
    seed = seed_of(head_dim, norms, dtypes, kind)
    projected = numbers(kind, (tokens, (heads + 2 * kv_heads) * head_dim), seed).to(computed)
    norm = [normals((head_dim,), seed + 1), normals((head_dim,), seed + 2)] if norms else [None, None]
    positions, slots = integers(0, 2000, (tokens,), seed + 3), torch.arange(tokens) * 2
    table, options = Rotary(RopeScaling("default"), head_dim).table(2000), {}
    if norms == "own":  # for each head, centred
        norm = [normals((count, head_dim), seed + count) for count in (heads, kv_heads)]
        options = {"is_centred": True, "query_scales": normals((2000,), seed + 4), "biases": (norm[0] / 2, norm[1] / 2)}

    def run(pool: cpu.Pool) -> tuple[Tensor, ...]:
        cache = torch.ones((2, blocks, kv_heads, block_size, cached_head_dim(head_dim)), dtype=dtype)
        scales = torch.zeros(cache.shape[:-1])
        query = torch.empty(tokens, heads, head_dim, dtype=computed)
        both = (scales[0], scales[1]) if dtype == torch.int8 else None
        view = writing_view(positions, slots, *cache, both)
        rotate_and_cache(pool, projected, table, view, 0, query, *norm, 1e-6, **options)
        return query, cache, scales

    agree(run)


EDGES = [(0, 1), (7, 1), (15, 1), (63, 1), (64, 1), (130, 1), (1100, 1)]
CHUNKS = [(0, 2), (0, 65), (3, 126), (50, 33), (1000, 40)]


HEADS = [  # queries per key, elements, options
    *[(1, 64, {}), (2, 128, {}), (3, 16, {}), (4, 80, {"window": 40})],
    *[(7, 48, {"cap": 5.0}), (8, 256, {"window": 100}), (2, 20, {})],
    *[(2, 64, {"attention_chunk": 48}), (4, 32, {"attention_chunk": 512, "sinks": True})],
    *[(3, 32, {"alibi": True}), (2, 64, {"is_bidirectional": True}), (1, 16, {"alibi": True, "cap": 3.0})],
    *[(1, 64, {"reach": 128, "is_bidirectional": True}), (3, 32, {"reach": 30})],
]


@pytest.mark.parametrize(
    ("kind", "heads"),
    [
        *(("plain", heads) for heads in HEADS),
        *(("wide", each) for each in HEADS[1:4]),
        *(("halves", each) for each in HEADS[2:5]),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtypes", CACHES, ids=str)
@pytest.mark.parametrize("rows", [EDGES, CHUNKS], ids=["decode", "chunks"])
def test_attention_has_the_same_bits(agree, heads, rows, dtypes, kind):
    kv_heads, block_size, (computed, dtype), (group, head_dim, options) = 2, 16, dtypes, heads
    seed, lengths = seed_of(group, head_dim, rows, dtypes, kind), [old + new for old, new in rows]
    blocks = [-(-length // block_size) for length in lengths]
    shape = (2, sum(blocks), kv_heads, block_size, cached_head_dim(head_dim))
    query = normals((sum(new for _, new in rows), group * kv_heads, head_dim), seed).to(computed)
    if dtype == torch.int8:
        cache, scales = integers(-127, 128, shape, seed + 1).to(torch.int8), normals(shape[:-1], seed + 2).abs() / 50
    else:
        # An infinite value affects tokens before it as 0 times infinity; which tokens depends on the instruction set.
        largest = torch.finfo(dtype).max
        cache, scales = numbers(kind, shape, seed + 1).clamp_(-largest, largest).to(dtype), None
        cache[0] = normals(shape[1:], seed + 2).to(dtype) * 3  # with larger scores only one weight would not be 0
    cache[..., head_dim:] = 0
    tables = torch.zeros((len(rows), max(blocks)), dtype=torch.int32)
    first = np.cumsum([0, *blocks])
    for row, count in enumerate(blocks):
        tables[row, :count] = torch.arange(first[row], first[row] + count)
    starts = torch.tensor([0, *(new for _, new in rows)]).cumsum(0).int()
    both = None if scales is None else (scales[0], scales[1])
    view = reading_view(*cache, tables, starts, torch.tensor(lengths).int(), both)
    slopes = alibi_slopes(group * kv_heads) if "alibi" in options else None
    sinks = sinks_of(group * kv_heads) if "sinks" in options else None
    bias = bias_of(group * kv_heads, options["reach"]) if "reach" in options else None
    others = {name: value for name, value in options.items() if name not in ("alibi", "sinks", "reach")}
    of_heads = {"slopes": slopes, "sinks": sinks, "bias": bias}
    agree(attention, query, view, 0, AttentionOptions(head_dim**-0.5, **of_heads, **others))


def test_clipped_rows_have_the_same_bits(agree):
    for dtype in DTYPES:
        agree(lambda pool, x: clip(pool, x.clone(), 0.3), numbers("wide", (5, 901), 3).to(dtype))


def test_capped_logits_have_the_same_bits(agree):
    logits = numbers("wide", (5, 9001), 3)
    logits[1] = torch.linspace(-200, 200, 9001)

    def run(pool: cpu.Pool) -> Tensor:
        return cap_logits(pool, logits.clone()[:, :8999], 30.0).clone()

    agree(run)


def summed(pool: cpu.Pool, parts: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return sum_parts(pool, parts, bias, torch.empty(parts.shape[1:], dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_and_sums_of_parts_have_the_same_bits(agree, kind):
    ids = integers(0, 150, (40,), 3)
    for form in (*FLOATS, "int8"):
        table = pack(weight_of(form, kind, 150, 90, 4))
        for out_dtype in DTYPES:
            agree(embed_rows, ids, table, out_dtype)
    for count in (1, 2, 3, 4, 7):
        parts, bias = numbers(kind, (count, 9, 77), count), numbers(kind, (77,), 50)
        for out_dtype in DTYPES:
            agree(summed, parts, bias, out_dtype)


@pytest.mark.parametrize("vocab_size", [1, 2, 15, 33, 255, 257, 1000, 4099])
@pytest.mark.parametrize("spread", [0.01, 1.0, 9.0])
def test_sampling_has_the_same_bits(agree, vocab_size, spread):
    count = 60
    logits = (normals((count, vocab_size), vocab_size) * spread).numpy()
    logits[::7] = np.round(logits[::7])  # ties
    logits[3, ::2] = 1e-41  # denormals, which count as zeros
    rows = np.arange(count)
    columns = (
        np.resize(np.array([0.3, 1.0, 1.7], np.float32), count),
        np.resize(np.array([-np.inf, -3.0, -np.inf, -0.5], np.float32), count),
        np.resize(np.array([0, 5, 0, 0, 50]), count),
        np.resize(np.array([1.0, 0.9, 0.999, 0.3, 0.6, 1.0, 0.97]), count),
    )
    uniform = integers(0, 2**53, (count,), 9).numpy() / 2.0**53
    exclusions = np.resize(np.array([2.0, 0.01, 0.2, 0.0, 2.0, 0.001, 0.1]), count)
    words = integers(-(2**31), 2**31, (count, -(-vocab_size // 32)), 10).numpy().astype(np.int32)
    words[:, 0] |= 1
    mask_of = np.where(rows % 3, rows, -1)
    tokens, counts = integers(0, vocab_size, (count,), 8).numpy(), np.resize(np.arange(6), count)

    def run(pool: cpu.Pool) -> tuple[Tensor, ...]:
        best, finite = scan_logits(pool, logits)
        drawn = draw_tokens(pool, logits, rows, rows, *columns, uniform, exclusions, words, mask_of)
        ids, values, ranks = token_logprobs(pool, logits, rows, tokens, counts)
        written = np.arange(ids.shape[1]) <= np.minimum(counts, vocab_size)[:, None]
        return tuple(map(torch.from_numpy, (best, finite, drawn, ids[written], values[written], ranks)))

    agree(run)
