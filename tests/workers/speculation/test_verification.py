"""Steps that verify drafts give the tokens and logprobs of plain decoding, bit for bit, whatever is drafted."""

from collections import Counter

import pytest

from paged_serve.protocol.messages.config import ModelConfig
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL

from .workloads import TOKENIZER, TOKENS_OF_GRAMMARS, Bench, played_alike


@pytest.fixture(scope="module")
def bench(make_pool):
    model = load_model(
        str(DEMO_MODEL), ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, total: None, make_pool()
    )
    return Bench(model, Grammars(TOKENIZER, TOKENS_OF_GRAMMARS, (2, 0)))


def test_any_drafts_give_the_bytes_of_plain_decoding(bench):
    drafts = sum((played_alike(bench, seed).drafts for seed in range(8)), Counter[str]())
    print(drafts)
    assert drafts["accepted"] > 100
    assert drafts["made"] > drafts["accepted"] + 100
