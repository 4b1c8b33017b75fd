"""Every family with recurrent layers, latent attention or experts keeps the determinism contract in every form.

tests/workers/invariance/workloads/test_variant_workloads.py has their prefix hits, preemptions and lost workers.
"""

import pytest
import torch

from paged_serve.workers.kernels.cpu import library as cpu

from ..paged_loop import PagedLoop
from ..ranks import on_ranks
from ..tiny_models.checkpoints import (
    CONTRACT_VARIANTS,
    ours,
    random_tokens,
    reference,
    reference_logits,
    transformers_model,
    write_checkpoint,
)

PROMPT = random_tokens(70)
WAYS = [
    *({"dtype": dtype} for dtype in ("bfloat16", "float16", "float32")),
    {"quantization": "int8"},
]
OTHER_EXPERTS = ("mixtral", "axk1", "kolibri1")  # rounding to bfloat16 changes those of many tokens
EXCEED_FLOAT16 = ("mamba", "mamba-biased")  # with random weights
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not cpu.runnable_isas(), reason="the kernels are not built"),
]


@pytest.fixture
def pool_of():
    """Makes pools of one thread for an instruction set, in the order of sums that all of them have."""
    made = []

    def make(isa: str) -> cpu.Pool:
        made.append(cpu.Pool(cpu.load_library(isa), [-1], summation="dot"))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def whole_prompt(model):
    """The logits of the prompt, whose last step is of a single token."""
    loop = PagedLoop(model)
    return loop.prefill(loop.row(PROMPT), chunk=len(PROMPT) - 1)


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        pytest.param(variant, options, id=f"{variant}-{next(iter(options.values()))}")
        for variant in CONTRACT_VARIANTS
        for options in WAYS
        if not (variant in EXCEED_FLOAT16 and options.get("dtype") == "float16")
    ],
)
def test_chunks_neighbours_ranks_and_instruction_sets_change_no_bit(variant, options, tmp_path, pool_of):
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    isas = cpu.runnable_isas()
    expected = whole_prompt(ours(tmp_path, pool=pool_of(isas[0]), **options))
    for isa in isas:
        loop = PagedLoop(ours(tmp_path, pool=pool_of(isa), **options))
        row, others = loop.row(PROMPT), [loop.row(random_tokens(70, seed)) for seed in (1, 2)]
        done = 0
        for count in (33, 1, 1, 35):
            found = loop.step([(each, count) for each in (row, *others)])[:count]
            assert torch.equal(found, expected[done : done + count]), isa
            done += count
    for size in (2, 4):
        pools = [pool_of(isas[rank % len(isas)]) for rank in range(size)]
        work = lambda group: whole_prompt(ours(tmp_path, group=group, pool=pools[group.rank], **options))  # noqa: B023, E731
        for found in on_ranks(size, tmp_path / f"rendezvous-{size}", work):
            assert torch.equal(found, expected), f"{size} ranks"


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [
        (variant, dtype)
        for variant in CONTRACT_VARIANTS
        for dtype in (torch.bfloat16, torch.float16)
        if not (variant in OTHER_EXPERTS and dtype == torch.bfloat16)
        and not (variant in EXCEED_FLOAT16 and dtype == torch.float16)
    ],
    ids=str,
)
def test_half_precision_is_about_as_accurate_as_in_transformers(variant, dtype, tmp_path, pool_of):
    """By the median of the tokens: one for which rounding changes the experts has a large error."""
    exact = reference_logits(reference(variant, tmp_path, dtype), PROMPT)
    theirs = reference_logits(transformers_model(tmp_path, dtype), PROMPT)
    found = whole_prompt(ours(tmp_path, pool=pool_of(cpu.runnable_isas()[0])))
    assert (found - exact).norm(dim=1).median() < 1.1 * (theirs - exact).norm(dim=1).median()
