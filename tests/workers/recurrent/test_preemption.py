"""Every family with recurrent layers: prefixes that start from a kept state, and sequences that are computed again."""

import pytest
import torch

from ..one_process import OneProcess
from ..tiny_models.checkpoints import ours, random_tokens, write_checkpoint
from ..tiny_models.recurrent_variants import RECURRENT_VARIANTS
from .served_alone import SERVER, alone, request, run

FAST = "falcon-h1"
NIGHTLY = [pytest.param(name, marks=pytest.mark.nightly) for name in RECURRENT_VARIANTS if name != FAST]
LENGTH = 1600  # tokens of the longest sequence: some models have blocks of 512


@pytest.fixture
def model(variant, tmp_path, make_pool):
    if (pool := make_pool()) is None:
        pytest.skip("the kernels are not built")
    write_checkpoint(variant, tmp_path, torch.bfloat16)
    return ours(tmp_path, pool=pool)


@pytest.mark.parametrize("variant", [FAST, *NIGHTLY])
def test_a_prefix_hit_and_a_preemption_give_the_bits_of_a_request_alone(model):
    process = OneProcess(model, SERVER, num_blocks=LENGTH // 4, max_model_len=LENGTH)
    size = process.block_size
    prompt = random_tokens(2 * size + 20)
    first, second = request(prompt), request([*prompt[: 2 * size + 5], *random_tokens(20, seed=1)], 2)
    process.add(first)
    assert run(process) == len(prompt)
    process.add(second)
    assert run(process) == 25, "the blocks of the common prefix are cached"
    for one in (first, second):
        assert process.received[one.request_id] == alone(model, one, LENGTH)[one.request_id]
    process = OneProcess(model, SERVER, num_blocks=3 * size // 16, max_model_len=LENGTH)
    several = [request(random_tokens(size - 4, seed), seed, max_tokens=2 * size) for seed in (1, 2, 3)]
    for one in several:
        process.add(one)
    run(process)
    grows = any(not kind.is_state for kind in process.groups.kinds)  # with its sequences; states do not
    assert bool(process.engine.scheduler.num_preemptions) == grows, "no sequence was preempted"
    for one in several:
        assert process.received[one.request_id] == alone(model, one, LENGTH)[one.request_id]
