"""Logits processors run before a sampler: they cannot change other rows, hide faults of the model, or write tokens."""

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.sampling.custom_sampling import with_processors
from paged_serve.workers.sampling.host_sampling import HostSampling
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler

VOCAB_SIZE = 50


class NextToken:
    """Allows only the successor of the last token."""

    def __init__(self, vocab_size, writes=False):
        if not isinstance(writes, bool):
            raise ValueError(f"writes={writes} must be a boolean")
        self._writes = writes

    def apply(self, logits, token_ids, prompt_len):
        if self._writes:
            token_ids[0] = 3
        allowed = (token_ids[-1] + 1) % len(logits)
        logits[np.arange(len(logits)) != allowed] = -np.inf


@pytest.fixture
def sample():
    sampling = with_processors(HostSampling(Sampler(NumpyPasses(VOCAB_SIZE))), {"next": NextToken}, VOCAB_SIZE, 4)
    state = RequestRows(4, 64, 16, VOCAB_SIZE)

    def sample(logits, *params):
        for row, each in enumerate(params):
            state.reset(NewRow(row, pack_ids([5, 6 + row]), 2, 0, (pack_ids([row]),), row, (), each))
        rows = np.arange(len(params))
        assert sampling.needs_tokens(rows, state) == any(each.logits_processors for each in params)
        found = sampling.launch(logits.clone(), rows, state).result()
        assert state.tokens(0).tolist() == [5, 6]
        return found

    return sample


PLAIN, NEXT = SamplingParams(logprobs=1, seed=1), SamplingParams(logprobs=1, seed=1, logits_processors=["next"])


def logits_of(rows):
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(7))


def test_a_processor_changes_its_own_row_alone(sample):
    logits = logits_of(2)
    plain, beside = sample(logits, PLAIN, PLAIN), sample(logits, NEXT, PLAIN)
    assert beside.token_ids.tolist() == [7, plain.token_ids[1]]
    assert beside.logprobs[1].logprobs.tobytes() == plain.logprobs[1].logprobs.tobytes()
    assert beside.logprobs[0].logprobs[0, 0] == 0.0, "another token was possible"


def test_non_finite_logits_of_the_model_are_bad_and_no_failure_of_the_processor(sample):
    logits = logits_of(2)
    logits[0, 3] = torch.nan
    found = sample(logits, NEXT, NEXT)
    assert (found.bad.tolist(), found.failures, found.token_ids[1]) == ([0], {}, 8)


def test_a_processor_cannot_write_to_the_tokens(sample):
    arguments = {"name": "next", "args": {"writes": True}}
    asked = SamplingParams(logits_processors=[LogitsProcessorParams(**arguments)])
    found = sample(logits_of(2), asked, NEXT)
    assert "read-only" in found.failures[0].reason
    assert not found.failures[0].param, "the plugin is the cause"
    assert (found.bad.tolist(), found.token_ids[1]) == ([], 8)


@pytest.mark.parametrize(
    ("args", "told"),
    [({"writes": 3}, "writes=3 must be a boolean"), ({"step": 3}, "unexpected keyword argument 'step'")],
)
def test_arguments_that_a_processor_refuses_are_the_requests_fault(sample, args, told):
    asked = SamplingParams(logits_processors=[LogitsProcessorParams("next", args)])
    found = sample(logits_of(2), asked, NEXT)
    reason, param = found.failures[0]
    assert reason.startswith("logits_processors: the args of next are wrong: ")
    assert told in reason
    assert (param, found.bad.tolist(), found.token_ids[1]) == ("logits_processors", [], 8)
