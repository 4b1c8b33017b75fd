"""Prompts that are truncated on request, and logprobs in the forms of vLLM's clients."""

import pytest

from ...http_server import Server

LONG = "".join(chr(ord("a") + i % 26) for i in range(100))  # the context is 64 tokens, one per character


def sent(server: Server) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 10}, LONG[-10:]),
        ({"truncate_prompt_tokens": 10, "truncation_side": "right"}, LONG[:10]),
        ({"truncate_prompt_tokens": -1}, LONG[-60:]),
        ({"truncate_prompt_tokens": -1, "max_tokens": None}, LONG[-48:]),
        ({"truncate_prompt_tokens": 64 - 4}, LONG[-60:]),
    ],
)
def test_a_prompt_is_cut_to_the_requested_length(folder, fields, kept):
    server = Server(folder)
    for prompt in (LONG, server.tokenizer.encode(LONG)):
        answer = server.complete(prompt=prompt, **{"max_tokens": 4, "echo": True} | fields)
        assert sent(server) == kept
        assert answer["choices"][0]["text"].startswith(kept)
        assert answer["usage"]["prompt_tokens"] == len(kept)


def test_a_prompt_that_is_short_enough_is_not_cut(folder):
    server = Server(folder)
    server.complete(prompt="abc", truncate_prompt_tokens=5)
    assert sent(server) == "abc"


def test_a_conversation_is_cut_too(folder):
    server = Server(folder)
    server.chat(content=LONG, truncate_prompt_tokens=-1, max_tokens=4)
    assert sent(server) == f"{LONG}<assistant>"[-60:]
    server.chat(content=LONG, truncate_prompt_tokens=9, truncation_side="right")
    assert sent(server) == f"<user>{LONG}"[:9]


def test_tokenize_returns_the_tokens_of_the_cut_prompt(folder):
    server = Server(folder)
    shown = server.good("/tokenize", {"prompt": LONG, "truncate_prompt_tokens": 3})
    assert server.tokenizer.decode(shown["tokens"]) == LONG[-3:]
    body = {"messages": [{"role": "user", "content": LONG}], "truncate_prompt_tokens": 3, "truncation_side": "right"}
    assert server.tokenizer.decode(server.good("/tokenize", body)["tokens"]) == "<us"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ({"truncation_side": "left"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"truncate_prompt_tokens": 5, "prompt": "a" * (1 << 19)}, "prompt"),
        ({"truncate_prompt_tokens": 5, "prompt": [1] * (1 << 19)}, "prompt"),
    ],
)
def test_invalid_truncation_is_refused(folder, fields, param):
    response = Server(folder).ask("POST", "/v1/completions", {"prompt": "a"} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_tokens_are_named_by_their_ids(folder):
    server = Server(folder, "hi")
    named = server.complete(prompt="a", logprobs=1, echo=True, return_tokens_as_token_ids=True)["choices"][0]
    ids = [*server.tokenizer.encode("ahi"), server.tokenizer.token_id("<|end|>")]
    assert named["logprobs"]["tokens"][:3] == [f"token_id:{token}" for token in ids[:3]]
    assert list(named["logprobs"]["top_logprobs"][1]) == [f"token_id:{ids[1]}"]
    chat = server.chat(logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)["choices"][0]
    first = chat["logprobs"]["content"][0]
    assert (first["token"], first["bytes"]) == (f"token_id:{ids[1]}", [*b"h"])
    assert first["top_logprobs"][0]["token"] == f"token_id:{ids[1]}"


def test_minus_one_requests_the_logprobs_of_the_whole_vocabulary(folder):
    server = Server(folder, "hi", {"max_logprobs": 1024})
    size = server.engine.limits.vocab_size
    server.complete(logprobs=-1)
    assert server.engine.requests[-1].params.logprobs == size
    server.chat(logprobs=True, top_logprobs=-1)
    assert server.engine.requests[-1].params.logprobs == size
    for path, fields in (
        ("/v1/completions", {"prompt": "a", "logprobs": -1}),
        ("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}),
        ("/v1/chat/completions", {"messages": [], "logprobs": True, "top_logprobs": -1}),
    ):
        fields |= {"messages": [{"role": "user", "content": "a"}]} if "messages" in fields else {}
        error = Server(folder).ask("POST", path, fields).json()["error"]
        assert error["code"] == 400
        assert (
            f"asks for all {size} tokens of the vocabulary; this server returns at most 20 (--max-logprobs)"
            in error["message"]
        )
