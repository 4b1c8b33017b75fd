"""The cases of bench_cuda.py for mixtures of experts, weights of 4 bits, and latent attention.

A layer of Qwen3-30B-A3B (hidden size 2048, 8 of 128 experts of 768), from normalised hidden states to the sum, in
bfloat16 and in int4; products of two projections of an 8B-class model in int4 (groups of 128); and the
attention of DeepSeek-V3 (vectors of 576, of which 512 are values) with 16 heads, the share of one of eight ranks, and
with 128.
"""

from collections.abc import Iterator
from functools import partial

import torch
from cache_views import reading_view
from cuda_cases import BF16, Case, Setting, random
from cuda_timing import Call, copies_of

from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.products.coded_linear import CodedLinear
from paged_serve.workers.checkpoint.stacked_experts import padded_outputs
from paged_serve.workers.checkpoint.weight_forms import GroupedWeight
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.geometry.experts import Experts
from paged_serve.workers.geometry.layer_options import AttentionOptions
from paged_serve.workers.geometry.model_options import Activation
from paged_serve.workers.kernels.cuda.latent.latent_attention import (
    LatentHeadsShape,
    LatentWork,
    latent_attention,
    plan,
    shape_for,
)
from paged_serve.workers.layers.feed_forward import ExpertWeights

HIDDEN, MIXTURE = 2048, Experts(128, 8, 768, renormalises=True)
TINY_HIDDEN, TINY_MIXTURE = 64, Experts(8, 2, 64, renormalises=True)
GROUP_SIZE, CODED_BYTES = 128, 0.5 + 4 / 128  # of a weight, with its part of a scale
VECTOR, VALUE, BLOCK_SIZE = 576, 512, 64
MAX_SLOTS = 1 << 14


def experts(setting: Setting) -> Iterator[Case]:
    """Mixtures, products of codes, then latent attention of decode steps."""
    hidden, mixture = (TINY_HIDDEN, TINY_MIXTURE) if setting.tiny else (HIDDEN, MIXTURE)
    for is_coded in (False, True):
        for tokens in (3,) if setting.tiny else (1, 8, 32, 128, 8192):
            yield mixture_case(setting, hidden, mixture, tokens, is_coded)
    for outputs, inputs in [(64, 128)] if setting.tiny else [(28672, 4096), (4096, 14336)]:
        for tokens in (3,) if setting.tiny else (1, 8, 32, 128, 2048):
            yield coded_case(setting, outputs, inputs, tokens)
    sizes = [(2, 4, 80)] if setting.tiny else [(32, 16, 4096), (32, 128, 4096), (1, 128, 32768)]
    for batch, heads, length in sizes:
        yield latent_case(setting, batch, heads, length)


def in_codes(setting: Setting, outputs: int, inputs: int) -> GroupedWeight:
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8, device=setting.device)
    scales = torch.full((outputs, -(-inputs // GROUP_SIZE)), 0.01, device=setting.device)
    return GroupedWeight(codes, scales, None, 4)


def coded_case(setting: Setting, outputs: int, inputs: int, tokens: int) -> Case:
    nbytes = int(outputs * inputs * CODED_BYTES) + 2 * tokens * (outputs + inputs)
    copies = 1 if setting.tiny else copies_of(nbytes)
    products = [CodedLinear(setting.launcher, in_codes(setting, outputs, inputs)) for _ in range(copies)]
    x = random(setting, tokens, inputs)
    calls = [partial(product, x) for product in products]
    return Case("int4 product", f"{tokens} x {inputs} x {outputs}", nbytes, 2 * tokens * outputs * inputs, calls)


def mixture_case(setting: Setting, hidden: int, mixture: Experts, tokens: int, is_coded: bool) -> Case:
    """Its floor reads the weights of the experts that random tokens choose."""
    weights = 3 * hidden * mixture.intermediate_size
    used = mixture.count * (1 - (1 - mixture.top_k / mixture.count) ** tokens)
    operations = 2 * tokens * mixture.top_k * weights
    name, nbytes = ("int4 experts", CODED_BYTES) if is_coded else ("experts", 2)
    call = mixture_call(setting, hidden, mixture, tokens, is_coded)
    return Case(name, f"{tokens} tokens", int(nbytes * used * weights), operations, [call])


def mixture_call(setting: Setting, hidden: int, mixture: Experts, tokens: int, is_coded: bool) -> Call:
    """A layer whose weights alone exceed the L2 cache."""
    matrix = in_codes if is_coded else random
    backend = CudaBackend(setting.launcher, setting.arch, setting.multiprocessors, setting.device)
    rows = [mixture.count * padded_outputs(outputs) for outputs in (2 * mixture.intermediate_size, hidden)]
    weights = ExpertWeights(
        router=backend.head(random(setting, mixture.count, hidden)),
        correction=None,
        gate_up=matrix(setting, rows[0], hidden),
        down=matrix(setting, rows[1], mixture.intermediate_size),
        gate_up_bias=None,
        down_bias=None,
        shared_gate_up=None,
        shared_down=None,
    )
    layer = backend.experts(mixture, Activation("silu"), weights, TensorParallelGroup())
    normed = random(setting, tokens, hidden)
    return lambda: layer(normed)


def latent_case(setting: Setting, batch: int, heads: int, length: int) -> Case:
    nbytes = batch * length * VECTOR * 2 + batch * heads * (VECTOR + VALUE) * 2
    operations = 2 * batch * heads * length * (VECTOR + VALUE)
    copies = 1 if setting.tiny else copies_of(nbytes)
    calls = [latent_call(setting, batch, heads, length) for _ in range(copies)]
    return Case("latent decode", f"B={batch} L={length} heads={heads}", nbytes, operations, calls)


def latent_call(setting: Setting, batch: int, heads: int, length: int) -> Call:
    blocks = -(-length // BLOCK_SIZE)
    shape = LatentHeadsShape(BF16, heads, VECTOR, VALUE, BLOCK_SIZE)
    tiles = shape_for(shape, setting.arch)
    assert tiles is not None, setting.arch
    keys = random(setting, batch * blocks, 1, BLOCK_SIZE, VECTOR)
    tables = torch.randperm(batch * blocks, device=setting.device).to(torch.int32).view(batch, blocks)
    row_starts = torch.arange(batch + 1, dtype=torch.int32, device=setting.device)
    kv_lens = torch.full((batch,), length, dtype=torch.int32, device=setting.device)
    view = reading_view(keys, keys, tables, row_starts, kv_lens)
    sizes = setting.multiprocessors, batch, batch, MAX_SLOTS
    work = LatentWork.allocate(shape, tiles, *sizes, setting.device)
    plan(setting.launcher, work, view)
    query, out = random(setting, batch, heads, VECTOR), random(setting, batch, heads, VALUE)
    options = AttentionOptions(VECTOR**-0.5)
    return lambda: latent_attention(setting.launcher, work, query, view, 0, options, out)
