"""The checks of the determinism contract that tests of several kinds of models share."""

from itertools import pairwise

import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import ours, random_tokens

PROMPT = random_tokens(60)
WAYS = [
    *({"dtype": dtype} for dtype in ("bfloat16", "float16", "float32")),
    *({"quantization": kind, "quantization_group_size": 32} for kind in ("int8", "int4")),
]


def whole_prompt(model, prompt=PROMPT):
    """The logits of all tokens, computed in one step."""
    loop = PagedLoop(model)
    return loop.prefill(loop.row(prompt))


def check_steps(folder, summation, options, block_sizes=(16,)):
    """Chunks, neighbours, decode steps, block sizes, prefix hits and threads change no bit."""
    isa = cpu.runnable_isas()[:1] or pytest.skip("the kernels are not built")
    pools = [cpu.Pool(cpu.load_library(isa[0]), [-1] * threads, summation=summation) for threads in (1, 2)]
    expected = whole_prompt(ours(folder, pool=pools[0], **options))
    for block_size in block_sizes:
        loop = PagedLoop(ours(folder, pool=pools[1], **options), block_size=block_size)
        row, others = loop.row(PROMPT), [loop.row(random_tokens(60, seed)) for seed in (1, 2)]
        for start, stop in pairwise((0, 20, 33, 34, 35, 36, 60)):
            found = loop.step([(each, stop - start) for each in (row, *others)])[: stop - start]
            assert torch.equal(found, expected[start:stop])
        hit = loop.row(PROMPT, row, 32 // block_size)
        assert torch.equal(loop.prefill(hit), expected[32:])
    for pool in pools:
        pool.close()


def check_ranks_and_isas(folder, rendezvous, options):
    """Ranks, each with another instruction set, and every instruction set alone have the bits of one rank."""
    isas = cpu.runnable_isas() or pytest.skip("the kernels are not built")
    pools = [cpu.Pool(cpu.load_library(isas[rank % len(isas)]), [-1], summation="dot") for rank in range(4)]
    expected = whole_prompt(ours(folder, pool=pools[0], **options))
    for isa in isas[1:]:
        pools.append(cpu.Pool(cpu.load_library(isa), [-1], summation="dot"))
        assert torch.equal(whole_prompt(ours(folder, pool=pools[-1], **options)), expected), isa
    for size in (2, 4):
        work = lambda group: whole_prompt(ours(folder, group=group, pool=pools[group.rank], **options))  # noqa: E731
        for found in on_ranks(size, rendezvous / f"rendezvous-{size}", work):
            assert torch.equal(found, expected)
    for pool in pools:
        pool.close()


def check_packed_weights(folder, packed, pool, prompt=PROMPT):
    """Weights packed into the folder `packed` give the bits of the checkpoint's, once written and once read."""
    for number, options in enumerate(({}, {"quantization": "int8"}), start=1):
        expected = whole_prompt(ours(folder, pool=pool, **options), prompt)
        for _ in range(2):
            found = whole_prompt(ours(folder, pool=pool, packed_weights_dir=str(packed), **options), prompt)
            assert torch.equal(found, expected)
        assert len(list(packed.glob("*.packed"))) == number
