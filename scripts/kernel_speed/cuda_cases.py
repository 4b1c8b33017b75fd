"""The cases of bench_cuda.py: each kernel with shapes of an 8B-class model, its floor, and torch's equivalent.

Llama 8B: 32 query heads, 8 KV heads of 128, hidden size 4096, gate 14336, vocabulary 128k, bfloat16. Bytes and
operations are the minimum that the problem needs, not those of a particular kernel.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from cache_views import reading_view, writing_view
from cuda_timing import Call, copies_of
from torch import Tensor
from torch.nn.functional import rms_norm as torch_rms_norm
from torch.nn.functional import scaled_dot_product_attention, silu

from paged_serve.workers.checkpoint.blocks.fp8_codes import fp8_codes, fp8_scales
from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.kernels.cuda.attention import AttentionWork, attention, plan
from paged_serve.workers.kernels.cuda.attention_kernels import AttentionShape
from paged_serve.workers.kernels.cuda.elementwise import activate, rms_norm
from paged_serve.workers.kernels.cuda.kernel import Launcher
from paged_serve.workers.kernels.cuda.quantize import quantize_rows
from paged_serve.workers.kernels.cuda.rotate import rotate_and_cache

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, GATE, BLOCK_SIZE = 32, 8, 128, 4096, 14336, 16
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
SPLIT_KEYS = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """Where kernels run. `tiny` sizes are for a trial run in the emulator."""

    launcher: Launcher
    device: str
    arch: str
    multiprocessors: int
    tiny: bool


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel with its floor. Each of `calls` computes the same on its own buffers, also for the rivals."""

    kernel: str
    shape: str
    nbytes: float
    operations: float
    calls: list[Call]
    rivals: dict[str, list[Call]] = field(default_factory=dict)


def decode(setting: Setting) -> Iterator[Case]:
    """One token of each request over its keys. Splits are planned once per step, here before the calls."""
    batches, lengths = ((1, 2), (80,)) if setting.tiny else ((1, 8, 32, 128), (1024, 4096, 32768))
    for cache_dtype in (BF16, FP8):
        for batch in batches:
            for length in lengths:
                yield attention_case(setting, "decode", batch, 1, length, cache_dtype)


def prefill(setting: Setting) -> Iterator[Case]:
    """All tokens of a prompt."""
    for length in (80,) if setting.tiny else (1024, 4096, 8192, 32768):
        yield attention_case(setting, "prefill", 1, length, length, BF16)


def attention_case(setting: Setting, kernel: str, batch: int, new: int, length: int, cache_dtype: torch.dtype) -> Case:
    heads = AttentionShape(BF16, cache_dtype, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    seen = new * length - new * (new - 1) / 2  # keys that all new tokens of a request attend to, added up
    kv_bytes = 2 * batch * length * KV_HEADS * HEAD_DIM * cache_dtype.itemsize
    nbytes = kv_bytes + 2 * batch * new * HEADS * HEAD_DIM * 2
    copies = 1 if setting.tiny else copies_of(nbytes)
    calls = [paged_call(setting, heads, batch, new, length) for _ in range(copies)]
    rivals = {"SDPA": [dense_call(setting, batch, new, length) for _ in range(copies)]} if cache_dtype == BF16 else {}
    name = f"B={batch} L={length}" + (" fp8" if cache_dtype == FP8 else "")
    return Case(kernel, name, nbytes, 4 * batch * HEADS * HEAD_DIM * seen, calls, rivals)


def paged_call(setting: Setting, heads: AttentionShape, batch: int, new: int, length: int) -> Call:
    blocks = -(-length // BLOCK_SIZE)
    shape = batch * blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM
    keys, values = (random(setting, *shape).to(heads.cache_dtype) for _ in range(2))
    query = random(setting, batch * new, HEADS, HEAD_DIM)
    order = torch.randperm(batch * blocks, device=setting.device)
    tables = order.to(torch.int32).view(batch, blocks)
    row_starts = torch.arange(0, batch * new + 1, new, dtype=torch.int32, device=setting.device)
    kv_lens = torch.full((batch,), length, dtype=torch.int32, device=setting.device)
    grid = -(-2 * setting.multiprocessors // KV_HEADS)
    slots = batch * -(-length // SPLIT_KEYS) * heads.group if new == 1 else 1
    work = AttentionWork.allocate(heads, setting.arch, grid, batch, batch * new, slots, setting.device)
    view = reading_view(keys, values, tables, row_starts, kv_lens)
    plan(setting.launcher, work, view)
    out, options, prefills = torch.empty_like(query), AttentionOptions(HEAD_DIM**-0.5), new * heads.group > 64
    return lambda: attention(setting.launcher, work, query, view, 0, options, prefills=prefills, out=out)


def dense_call(setting: Setting, batch: int, new: int, length: int) -> Call:
    """torch's attention over contiguous keys instead of paged ones."""
    query = random(setting, batch, HEADS, new, HEAD_DIM)
    keys, values = (random(setting, batch, KV_HEADS, length, HEAD_DIM) for _ in range(2))
    return lambda: scaled_dot_product_attention(query, keys, values, is_causal=new > 1, enable_gqa=True)


def elementwise(setting: Setting) -> Iterator[Case]:
    for tokens in (3,) if setting.tiny else (1, 32, 8192):
        yield rotation_case(setting, tokens)
        hidden_bytes = 2 * tokens * HIDDEN
        yield repeated(setting, "norm, residual added", tokens, 4 * hidden_bytes, norm_call, {"torch": torch_norm_call})
        gate_bytes = 2 * 3 * tokens * GATE
        yield repeated(setting, "silu(gate) * up", tokens, gate_bytes, gate_call, {"torch": torch_gate_call})
        coded_bytes = 3 * tokens * HIDDEN
        yield repeated(setting, "to fp8, a scale per row", tokens, coded_bytes, codes_call, {"torch": torch_codes_call})


def repeated(
    setting: Setting,
    kernel: str,
    tokens: int,
    nbytes: float,
    make: Callable[[Setting, int], Call],
    rivals: dict[str, Callable[[Setting, int], Call]],
) -> Case:
    copies = 1 if setting.tiny else copies_of(nbytes)
    calls = [make(setting, tokens) for _ in range(copies)]
    theirs = {name: [rival(setting, tokens) for _ in range(copies)] for name, rival in rivals.items()}
    return Case(kernel, f"{tokens} tokens", nbytes, 0, calls, theirs)


def rotation_case(setting: Setting, tokens: int) -> Case:
    return repeated(
        setting,
        "rotation and cache write",
        tokens,
        2 * 2 * tokens * (HEADS + 2 * KV_HEADS) * HEAD_DIM,
        rotation_call,
        {},
    )


def rotation_call(setting: Setting, tokens: int) -> Call:
    projected = random(setting, tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
    query = random(setting, tokens, HEADS, HEAD_DIM)
    angles = random(setting, tokens, HEAD_DIM).float()
    places = torch.arange(tokens, device=setting.device)
    shape = -(-tokens // BLOCK_SIZE), KV_HEADS, BLOCK_SIZE, HEAD_DIM
    keys, values = (random(setting, *shape) for _ in range(2))
    view = writing_view(places, places, keys, values)
    return lambda: rotate_and_cache(setting.launcher, projected, angles, view, 0, query)


def norm_call(setting: Setting, tokens: int) -> Call:
    hidden, delta, out = (random(setting, tokens, HIDDEN) for _ in range(3))
    weight = torch.ones(HIDDEN, device=setting.device)
    return lambda: rms_norm(setting.launcher, hidden, weight, 1e-5, delta, out)


def torch_norm_call(setting: Setting, tokens: int) -> Call:
    hidden, delta = (random(setting, tokens, HIDDEN) for _ in range(2))
    weight = torch.ones(HIDDEN, device=setting.device, dtype=BF16)
    return lambda: torch_rms_norm(hidden.add_(delta), (HIDDEN,), weight, 1e-5)


def gate_call(setting: Setting, tokens: int) -> Call:
    gate_up, out = random(setting, tokens, 2 * GATE), random(setting, tokens, GATE)
    return lambda: activate(setting.launcher, gate_up, out=out)


def torch_gate_call(setting: Setting, tokens: int) -> Call:
    gate_up = random(setting, tokens, 2 * GATE)

    def call() -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up

    return call


def codes_call(setting: Setting, tokens: int) -> Call:
    hidden = random(setting, tokens, HIDDEN)
    codes = torch.empty(hidden.shape, dtype=torch.float8_e4m3fn, device=setting.device)
    scales = torch.empty((tokens, 1), device=setting.device)
    return lambda: quantize_rows(setting.launcher, hidden, codes, scales)


def torch_codes_call(setting: Setting, tokens: int) -> Call:
    hidden = random(setting, tokens, HIDDEN)
    return lambda: fp8_codes(hidden, fp8_scales(hidden))


def random(setting: Setting, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=BF16, device=setting.device).normal_()
