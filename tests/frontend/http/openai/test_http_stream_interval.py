"""Streams whose events have a given number of tokens."""

import random

import pytest

from paged_serve.frontend.client.streams.deltas import TokenLogprobs
from paged_serve.frontend.http.openai.pieces import Piece
from paged_serve.frontend.http.openai.streaming.stream_interval import StreamInterval
from paged_serve.protocol.messages.sampling_params import FinishReason

from ...http_server import Server, joined

TEXT = "0123456789abcdefghij"


def sizes(chunks: list[dict], index: int = 0) -> list[int]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [len(choice["token_ids"]) for choice in choices if choice.get("token_ids")]


@pytest.mark.parametrize(
    ("interval", "expected"), [(None, [1] * 21), (1, [1] * 21), (8, [1, 8, 8, 4]), (1000, [1, 20])]
)
def test_events_have_the_requested_number_of_tokens_except_the_first_and_last(folder, interval, expected):
    server = Server(folder, TEXT)
    body = {"prompt": "a", "max_tokens": 60, "return_token_ids": True, "logprobs": 1, "stream_interval": interval}
    chunks = server.stream("/v1/completions", body)
    assert sizes(chunks) == expected
    assert joined(chunks) == TEXT
    tokens = [token for chunk in chunks for token in chunk["choices"][0]["logprobs"]["tokens"]]
    assert "".join(tokens[:-1]) == TEXT


def test_a_chat_has_an_interval_per_choice(folder):
    server = Server(folder, TEXT)
    body = {"messages": [{"role": "user", "content": "x"}], "n": 2, "stream_interval": 8, "return_token_ids": True}
    chunks = server.stream("/v1/chat/completions", body)
    assert [sizes(chunks, index) for index in range(2)] == [[1, 8, 8, 4]] * 2


def test_an_answer_that_is_not_streamed_is_the_same(folder):
    assert Server(folder, TEXT).complete(stream_interval=7)["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("interval", [0, 1025, "8"])
def test_an_interval_out_of_bounds_is_refused(folder, interval):
    response = Server(folder).ask("POST", "/v1/completions", {"prompt": "a", "stream_interval": interval})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream_interval")


def test_no_token_is_lost_whatever_arrives_together():
    rng = random.Random(7)
    for _ in range(200):
        interval, lengths = rng.randint(1, 9), [rng.randint(1, 40) for _ in range(3)]
        joining, sent, found = StreamInterval(interval), [0, 0, 0], [[], [], []]
        while any(had < length for had, length in zip(sent, lengths, strict=True)):
            choice = rng.choice([i for i in range(3) if sent[i] < lengths[i]])
            tokens = [*range(sent[choice], min(lengths[choice], sent[choice] + rng.randint(0, 6)))]
            sent[choice] += len(tokens)
            reason = FinishReason.STOP if sent[choice] == lengths[choice] else None
            logprobs = [TokenLogprobs([token], [-1.0], 1) for token in tokens]
            found[choice] += joining.joined([Piece(choice, "x" * len(tokens), tokens, logprobs, reason, None)])
        assert joining.num_tokens == 0
        for pieces, length in zip(found, lengths, strict=True):
            assert [token for piece in pieces for token in piece.token_ids] == [*range(length)]
            assert [entry.token_ids for piece in pieces for entry in piece.logprobs] == [[i] for i in range(length)]
            assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
            sent_with = [num for piece in pieces if (num := len(piece.token_ids))]
            assert all(num >= interval for num in sent_with[1:-1])
            assert "".join(piece.text for piece in pieces) == "x" * length
