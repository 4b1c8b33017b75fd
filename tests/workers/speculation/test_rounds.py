"""Rows without rules are sampled at once: the same tokens, counts and logprobs as round by round."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.sampling.host_sampling import HostSampling
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler
from paged_serve.workers.speculation.drafts import NO_DRAFT
from paged_serve.workers.speculation.rounds import Rounds
from paged_serve.workers.speculation.verified_step import VerifiedStep

VOCAB, NUM_ROWS, MOST = 6, 4, 5
CHOICES = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 3, "logprobs": 1},
    {"temperature": 1.0, "presence_penalty": 1.0},
)


def sampled(seed: int, *, at_once: bool):
    """Tokens, counts, logprobs and lengths of a step with random drafts, some of them right."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    state = RequestRows(NUM_ROWS, 128, 16, VOCAB)
    for row in range(NUM_ROWS):
        params = SamplingParams(**rng.choice(CHOICES))
        output = rng.choice((1, 58, 61, 64))  # 64 random numbers are computed together
        state.reset(NewRow(row, pack_ids([1] * (2 + output)), 2, 0, (b"",), rng.randrange(9), (), params))
    if not at_once:
        state.sampling.has_no_rules[:] = False
    counts = np.array([rng.randint(0, MOST) for _ in range(NUM_ROWS)])
    drafts = np.full((NUM_ROWS, MOST + 1), NO_DRAFT)
    for row, count in enumerate(counts.tolist()):
        drafts[row, :count] = rng.choices(range(2), k=count)
    logits = torch.randn((int(sum(counts)) + NUM_ROWS, VOCAB), generator=generator)
    logits[:, :2] += 2
    if rng.random() < 0.3:
        logits[rng.randrange(len(logits))] = torch.nan
    arrays = SimpleNamespace(sampled_rows=np.arange(NUM_ROWS))
    every_row = np.arange(NUM_ROWS)
    step = VerifiedStep(arrays, drafts, np.cumsum(counts + 1) - counts - 1, every_row, every_row)
    calls = []

    class Counted(HostSampling):
        def launch(self, *arguments):
            calls.append(1)
            return super().launch(*arguments)

    rounds = Rounds(state, TensorParallelGroup(), Counted(Sampler(NumpyPasses(VOCAB))))
    found, numbers = rounds.sample(logits, step)
    logprobs = [(index, one.token_ids.tolist(), one.logprobs.tolist()) for index, one in found.logprobs.items()]
    tokens = [state.tokens(row).tolist() for row in range(NUM_ROWS)]
    assert set(found.bad) <= set(np.cumsum(numbers) - 1), "a token follows one that cannot be emitted"
    return (found.token_ids.tolist(), found.bad.tolist(), logprobs, numbers.tolist(), tokens), len(calls)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_all_positions_at_once_are_those_of_rounds(first):
    num_calls = [0, 0]
    for seed in range(first, first + 50):
        (one, calls), (other, more_calls) = (sampled(seed, at_once=at_once) for at_once in (True, False))
        assert one == other, f"seed {seed}"
        num_calls = [num_calls[0] + calls, num_calls[1] + more_calls]
    assert 1.3 * num_calls[0] < num_calls[1]
