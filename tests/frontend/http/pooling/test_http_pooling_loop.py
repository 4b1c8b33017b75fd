"""Large pooling requests and their large answers do not block the event loop."""

import dataclasses
from array import array

import msgspec
import pytest

from paged_serve.protocol.messages.pooling_params import Pooled

from ...fake_engine import FakePooling
from ..connections.event_loop_turns import check_no_delay
from .pooling_server import EMBEDS, pooling_server

E, P, S, R = "/v1/embeddings", "/pooling", "/score", "/rerank"
LARGEST = {"max_model_len": 8192, "embedding_size": 512}

REQUESTS = [
    (E, {"input": "a" * 3_900_000}),
    (E, {"input": [1] * 1_500_000}),
    (E, {"input": [1, "a"] * 400_000}),
    (E, {"input": [[1] * 8000] * 100}),
    (E, {"input": ["a"] * 2048}),
    (E, {"input": ["a"] * 2048, "encoding_format": "base64"}),
    (E, {"input": "a", "prompt_name": "k" * 3_000_000}),
    (E, {"messages": [{"role": "user", "content": "x" * 200}] * 4000}),
    (P, {"input": "a" * 2000, "task": "token_embed"}),
    (P, {"input": "a" * 7000, "task": "token_embed", "encoding_format": "base64"}),
    (S, {"text_1": "a", "text_2": ["b"] * 2048}),
]
LONG = [  # seconds of work, most of it in threads
    (E, {"input": ["words " * 300] * 2000}),
    (E, {"input": ["words " * 600] * 1000, "truncate_prompt_tokens": -1}),
    (R, {"query": "a" * 4000, "documents": ["b" * 1000] * 2048, "truncate_prompt_tokens": 200}),
    (R, {"query": "a", "documents": [{"text": "words " * 100}] * 2048}),
    (S, {"text_1": ["a"] * 2048, "text_2": ["b" * 100] * 2048}),
]
_NAMES = {"ids": lambda value: value if isinstance(value, str) else "+".join(value)[:60]}


@dataclasses.dataclass
class Quick(FakePooling):
    """A pooling request whose vector is made in no time."""

    columns: int = 0

    async def _vector(self) -> Pooled:
        self.answer.times = None
        rows = len(self.prompt_token_ids) if self.params.task.startswith("token_") else 1
        return Pooled(rows, self.columns, array("f", [0.0123456789]).tobytes() * (rows * self.columns))


def large_server(folder, tasks=EMBEDS, num_labels=3):
    server = pooling_server(folder, tasks, num_labels)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, **LARGEST)
    columns = 512 if "embed" in tasks else num_labels
    server.engine.pool = lambda ids, params, **terms: Quick(list(ids), params, terms, {}, [], 0.0, columns=columns)
    return server


@pytest.mark.parametrize(("path", "body"), REQUESTS, **_NAMES)
def test_one_request_does_not_delay_the_others(folder, path, body):
    check_no_delay(large_server(folder), path, body)


@pytest.mark.nightly
@pytest.mark.parametrize(("path", "body"), LONG, **_NAMES)
def test_no_long_request_does(folder, path, body):
    check_no_delay(large_server(folder), path, body)


@pytest.mark.nightly
def test_pairs_for_a_cross_encoder_do_not_delay_the_others(folder):
    server = large_server(folder, ("classify",), 1)
    for path, body in LONG[2:]:
        check_no_delay(server, path, body)
