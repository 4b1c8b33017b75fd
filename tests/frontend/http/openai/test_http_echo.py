"""Logprobs over HTTP, with their offsets, and prompts that are echoed."""

import pytest

from paged_serve.frontend.http.openai.logprobs import CompletionLogprobsWriter
from paged_serve.frontend.text.detokenizer import Detokenizer
from paged_serve.frontend.text.tokenizer import Tokenizer

from ...http_server import Server, joined


def test_completion_logprobs_carry_offsets(folder):
    server = Server(folder, "hé", ends=False)
    whole = server.complete(logprobs=2)["choices"][0]["logprobs"]
    assert whole["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9"]
    assert whole["text_offset"] == [0, 1, 1]  # both bytes belong to the second character
    assert [len(top) for top in whole["top_logprobs"]] == [2, 2, 2]
    assert whole["token_logprobs"] == [-0.5, -0.5, -0.5]
    chunks = server.stream("/v1/completions", {"prompt": "a", "logprobs": 2, "max_tokens": 60})
    parts = [c["choices"][0]["logprobs"] for c in chunks]
    assert [t for part in parts for t in part["tokens"]] == whole["tokens"]
    assert [t for part in parts for t in part["text_offset"]] == whole["text_offset"]


def test_a_character_that_does_not_end_takes_the_place_of_its_replacement(folder):
    tokenizer = Tokenizer(str(folder))
    half = tokenizer.encode("é")[:1]
    ids = [*tokenizer.encode("a"), *half, *tokenizer.encode("b"), *half, *tokenizer.encode("éc")]
    writer = CompletionLogprobsWriter(tokenizer, 0, Detokenizer(tokenizer))
    assert tokenizer.decode(ids) == "a�b�éc"
    assert writer.write(ids, [None] * len(ids)).text_offset == [0, 1, 2, 3, 4, 4, 5]


def test_echo_returns_the_prompt_and_its_logprobs(folder):
    server = Server(folder, "xy", ends=False)
    choice = server.complete(echo=True, logprobs=1)["choices"][0]
    assert choice["text"] == "abcxy"
    assert choice["logprobs"]["tokens"] == list("abcxy")
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert server.engine.requests[0].params.prompt_logprobs == 1
    assert joined(server.stream("/v1/completions", {"prompt": "abc", "echo": True, "max_tokens": 9})) == "abcxy"


@pytest.mark.parametrize("n", [1, 2])
def test_offsets_are_right_after_special_tokens_and_long_characters(folder, n):
    server = Server(folder, "é!", ends=False)
    for choice in server.complete(prompt="<|end|>a🚀b", echo=True, logprobs=0, n=n, max_tokens=9)["choices"]:
        assert choice["text"] == "<|end|>a🚀bé!"
        assert len(choice["logprobs"]["tokens"]) == len(choice["logprobs"]["token_logprobs"]) == 10
        for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
            if token in ("a", "b", "!"):
                assert choice["text"][offset] == token


def test_echo_without_output_scores_only_the_prompt(folder):
    answer = Server(folder, "xy").complete(echo=True, logprobs=1, max_tokens=0)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == ("abc", "length", list("abc"))
    assert answer["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_name_token_rank_and_text(folder):
    server = Server(folder)
    choice = server.complete(prompt_logprobs=1)["choices"][0]
    b = str(server.tokenizer.encode("b")[0])
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1][b] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert server.engine.requests[0].params.skip_reading_prefix_cache


@pytest.mark.parametrize("prompt", ["a", "ab"])
def test_prompt_logprobs_have_one_entry_for_each_token_of_the_prompt(folder, prompt):
    """The first token's is null, which is all that a prompt of one token has."""
    server = Server(folder)
    chosen = {"prompt_logprobs": 1, "max_tokens": 5}
    generated = server.good(
        "/inference/v1/generate", {"token_ids": server.tokenizer.encode(prompt), "sampling_params": chosen}
    )
    for answer in (server.complete(prompt=prompt, **chosen)["choices"][0], generated):
        first, *rest = answer["prompt_logprobs"]
        assert (first, len(rest)) == (None, len(prompt) - 1)


def test_an_echo_has_logprobs_only_if_they_are_requested(folder):
    choice = Server(folder, "xy").complete(echo=True, prompt_logprobs=1)["choices"][0]
    assert (choice["text"], choice["logprobs"], len(choice["prompt_logprobs"])) == ("abcxy", None, 3)


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(1, 3), (3, 1), (2, 0), (0, 2)])
def test_an_echo_and_prompt_logprobs_have_as_many_top_tokens_as_each_requests(folder, logprobs, prompt_logprobs):
    server = Server(folder, "xy", ends=False)
    [choice] = server.complete(echo=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs)["choices"]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [logprobs] * 4
    # The fake model's best token is that of the prompt, which counts once.
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [max(1, prompt_logprobs)] * 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("given", ["text", "tokens"])
def test_an_echo_is_the_given_prompt_including_special_tokens(folder, stream, given):
    server = Server(folder)
    text = "<|end|>ab<|end|>c"
    ids = server.tokenizer.encode(text)
    assert server.tokenizer.token_id("<|end|>") in ids
    body = {"prompt": text if given == "text" else ids, "echo": True, "logprobs": 1, "max_tokens": 5}
    if stream:
        chunks = server.stream("/v1/completions", body)
        logprobs = chunks[0]["choices"][0]["logprobs"]
        echoed = joined(chunks)
    else:
        choice = server.complete(**body)["choices"][0]
        echoed, logprobs = choice["text"], choice["logprobs"]
    assert echoed == text + "hello"
    assert logprobs["text_offset"][:6] == [0, 7, 8, 9, 16, 17][: len(logprobs["text_offset"])]
