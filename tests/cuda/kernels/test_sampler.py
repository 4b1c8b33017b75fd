"""The device's sampler in the emulator; tests/workers/sampling/test_sampler.py also runs its cases on it."""

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.kernels.cuda.sampling import MAX_VOCAB, Blocks
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler

from ..checks.checks_sampler import (
    BLOCKS,
    OUTPUT,
    REQUESTS,
    check_border_of_min_p,
    check_cuts,
    check_logprobs,
    check_random_numbers,
    check_steps,
    new_row,
    tied_logits,
)
from ..emulated import SCHEDULES, EmulatorLauncher


@pytest.fixture(scope="module")
def emulator():
    return EmulatorLauncher()


def rows_of(requests, vocab_size: int, **tokens) -> RequestRows:
    state = RequestRows(len(requests), 64, 16, vocab_size)
    for row, params in enumerate(requests):
        state.reset(new_row(row, params, seed=1000 + row, **tokens))
    return state


def answer(sampled):
    """All fields of the sample, in comparable form."""
    return (
        sampled.token_ids.tolist(),
        sampled.bad.tolist(),
        {index: (found.token_ids.tobytes(), found.logprobs.tobytes(), found.ranks.tobytes())
         for index, found in sampled.logprobs.items()},
    )  # fmt: skip


def test_steps_launched_ahead_match_the_host_in_any_order_of_warps(scheduled, device):
    check_steps(scheduled, device)


def test_random_numbers_and_faults_match_the_host(launcher, device):
    check_random_numbers(launcher, device)
    check_border_of_min_p(launcher, device)


@pytest.mark.parametrize("vocab_size", [200, 513, 1024, 1500])
@pytest.mark.parametrize("blocks", [BLOCKS, Blocks()])
def test_the_kept_tokens_are_those_of_the_oracle(launcher, device, vocab_size, blocks):
    check_cuts(launcher, device, vocab_size=vocab_size, blocks=blocks)


@pytest.mark.parametrize("vocab_size", [601, 5000])
def test_a_row_has_the_same_bits_alone_and_for_any_division_of_the_work(emulator, vocab_size):
    requests = REQUESTS * 2
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 3, (len(requests), vocab_size)).astype(np.float32))
    state, order = rows_of(requests, vocab_size), np.random.default_rng(3).permutation(len(requests))
    together = DeviceSampler(emulator, vocab_size, "cpu", BLOCKS).sample(logits.clone(), order, state)
    for schedule in SCHEDULES:
        sampler = DeviceSampler(EmulatorLauncher(schedule=schedule), vocab_size, "cpu", Blocks())
        assert answer(sampler.sample(logits.clone(), order, state)) == answer(together)
    for index, row in enumerate(order):
        alone = sampler.sample(logits[index : index + 1].clone(), order[index : index + 1], state)
        assert alone.token_ids[0] == together.token_ids[index], row
        assert answer(alone)[2].get(0) == answer(together)[2].get(index)


@pytest.mark.parametrize(("vocab_size", "blocks"), [(1, BLOCKS), (31, BLOCKS), (32000, Blocks()), (50257, BLOCKS)])
def test_a_seed_gives_the_tokens_of_the_host(emulator, vocab_size, blocks):
    """The two may differ with a probability of about 10^-7 per draw; for these seeds they do not."""
    requests = [
        SamplingParams(logprobs=2),
        SamplingParams(temperature=0.7, top_p=0.95),
        SamplingParams(top_k=50, top_p=0.9, logprobs=20),
        SamplingParams(min_p=0.05, temperature=1.4),
        SamplingParams(temperature=0.0, logprobs=0),
    ]
    state = rows_of(requests, vocab_size, prompt=[0], output=[])
    logits = np.random.default_rng(4).normal(0, 2.5, (len(requests), vocab_size)).astype(np.float32)
    rows = np.arange(len(requests))
    host = Sampler(NumpyPasses(vocab_size)).sample(torch.from_numpy(logits.copy()), rows, state)
    found = DeviceSampler(emulator, vocab_size, "cpu", blocks).sample(torch.from_numpy(logits.copy()), rows, state)
    assert found.token_ids.tolist() == host.token_ids.tolist()
    for index in host.logprobs:
        check_logprobs(
            found.logprobs[index], logits[index], int(host.token_ids[index]), min(requests[index].logprobs, vocab_size)
        )


def test_prompt_logprobs_match_the_host(emulator):
    random = np.random.default_rng(5)
    logits, tokens = tied_logits(random, 5, 700), random.integers(0, 700, 5)
    logits[2, 3], logits[4, 9] = np.inf, np.nan
    for count in (0, 6, -1):
        host = Sampler(NumpyPasses(700)).prompt_logprobs(torch.from_numpy(logits.copy()), tokens, count)
        found = DeviceSampler(emulator, 700, "cpu", BLOCKS).prompt_logprobs(torch.from_numpy(logits), tokens, count)
        assert np.array_equal(found.token_ids, host.token_ids)
        assert np.array_equal(found.ranks, host.ranks)
        np.testing.assert_allclose(found.logprobs, host.logprobs, rtol=0, atol=2e-6)


def test_a_steady_step_copies_nothing(emulator):
    requests = [SamplingParams(), SamplingParams(frequency_penalty=1.0), SamplingParams(top_p=0.8, logprobs=2)]
    state, rows = rows_of(requests, 64), np.arange(3)
    sampler = DeviceSampler(emulator, 64, "cpu", BLOCKS)

    def step():
        sampler.launch(torch.randn(3, 64), rows, state)
        return sampler._rows._sent

    first = step()
    for _ in range(3):
        state.append_tokens(rows, np.zeros(3, np.int64))
        assert step() is first  # nothing was sent again
    state.reset(new_row(0, SamplingParams(), seed=4, output=OUTPUT))
    assert step() is not first


def test_penalties_follow_the_host_when_a_position_or_row_is_reused(emulator):
    """A position is sampled twice, or a row gets a new request: the counts are those of the host."""
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    state, rows = rows_of([params], 64), np.array([0])
    sampler = DeviceSampler(emulator, 64, "cpu", BLOCKS)
    logits = torch.zeros(1, 64)
    logits[0, [20, 30, 40]] = torch.tensor([3.0, 2.5, 2.25])
    assert [sampler.sample(logits.clone(), rows, state).token_ids[0] for _ in range(2)] == [20, 20]
    found = []
    for _ in range(3):
        found.append(sampler.sample(logits.clone(), rows, state).token_ids[0])
        state.append_tokens(rows, np.zeros(1, np.int64))
    assert found == [20, 30, 40]
    state.reset(new_row(0, params, seed=0, output=[20, 30, 1, 2, 3, 4, 5]))
    assert sampler.sample(logits.clone(), rows, state).token_ids[0] == 40


def test_only_bad_words_of_several_tokens_need_tokens_on_the_host(emulator):
    requests = [
        SamplingParams(repetition_penalty=1.5, min_tokens=9, logit_bias={3: 1.0}, allowed_token_ids=(1, 3)),
        SamplingParams(bad_words_token_ids=((4,),)),
        SamplingParams(bad_words_token_ids=((4,), (5, 6))),
    ]
    state, sampler = rows_of(requests, 64), DeviceSampler(emulator, 64, "cpu")
    assert [sampler.needs_tokens(np.array([row]), state) for row in range(3)] == [False, False, True]


def test_equal_logits_of_the_largest_vocabulary_are_drawn_and_counted(emulator):
    """Gemma 3 4B has 262,208 tokens. No sum of weights is larger than that of equal logits."""
    uniform = SamplingParams(logprobs=2)
    nucleus, best = SamplingParams(top_p=0.5, logprobs=0), SamplingParams(top_k=MAX_VOCAB - 1)
    state, rows = rows_of([uniform, nucleus, best], MAX_VOCAB, prompt=[0], output=[]), np.arange(3)
    logits = torch.zeros(3, MAX_VOCAB)
    expected = Sampler(NumpyPasses(MAX_VOCAB)).sample(logits.clone(), rows, state)
    found = DeviceSampler(emulator, MAX_VOCAB, "cpu").sample(logits, rows, state)
    assert MAX_VOCAB >= 262_208
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    for index, logprobs in found.logprobs.items():
        check_logprobs(logprobs, np.zeros(MAX_VOCAB, np.float32), int(found.token_ids[index]), 2 - 2 * index)
