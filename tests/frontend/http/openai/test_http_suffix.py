"""Completions between a prompt and a suffix, for models with fill-in-the-middle tokens."""

import json

import pytest

from ...http_server import Server

PSM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]


def with_tokens(folder, path, spellings: list[str]) -> Server:
    """A server of the same model with these tokens in its vocabulary."""
    for each in folder.iterdir():
        (path / each.name).write_bytes(each.read_bytes())
    declared = json.loads((path / "tokenizer.json").read_text())
    first = max(entry["id"] for entry in declared["added_tokens"]) + 1
    for i, spelling in enumerate(spellings):
        fields = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        declared["added_tokens"].append({"id": first + i, "content": spelling, "special": True, **fields})
    (path / "tokenizer.json").write_text(json.dumps(declared))
    return Server(path)


def shown(server: Server) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("spellings", "expected"),
    [
        (PSM, "<|fim_prefix|>def f(<|fim_suffix|>): pass<|fim_middle|>"),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], "<fim_prefix>def f(<fim_suffix>): pass<fim_middle>"),
        (["[SUFFIX]", "[PREFIX]"], "[SUFFIX]): pass[PREFIX]def f("),
    ],
)
def test_the_prompt_has_the_models_order(folder, tmp_path, spellings, expected):
    server = with_tokens(folder, tmp_path, spellings)
    for prompt in ("def f(", server.tokenizer.encode("def f(")):
        answer = server.complete(prompt=prompt, suffix="): pass", max_tokens=10)
        assert shown(server) == expected
        assert answer["choices"][0]["text"] == "hello"


def test_an_output_ends_at_the_models_end_of_infill_tokens(folder, tmp_path):
    server = with_tokens(folder, tmp_path, PSM)
    server.complete(prompt=["a", "b"], suffix="c", stop_token_ids=[7], max_tokens=10)
    assert len(server.engine.requests) == 2
    pad = server.tokenizer.token_id("<|fim_pad|>")
    assert [request.params.stop_token_ids for request in server.engine.requests] == [(7, pad)] * 2


def test_an_empty_suffix_has_no_effect(folder):
    server = Server(folder)
    assert server.complete(suffix="")["choices"][0]["text"] == "hello"
    assert shown(server) == "abc"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"echo": True}, "suffix", "echo"),
        ({"truncate_prompt_tokens": 3}, "suffix", "truncate_prompt_tokens"),
        ({"suffix": "x" * 1000}, "suffix", "maximum context length"),
        ({"prompt": "x" * 40, "suffix": "x" * 40}, "prompt", "maximum context length"),
    ],
)
def test_invalid_infill_requests_are_refused(folder, tmp_path, fields, param, words):
    server = with_tokens(folder, tmp_path, PSM)
    response = server.ask("POST", "/v1/completions", {"prompt": "a", "suffix": "b"} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


def test_a_model_without_infill_tokens_refuses_a_suffix_by_name(folder):
    error = Server(folder).ask("POST", "/v1/completions", {"prompt": "a", "suffix": "b"}).json()["error"]
    assert (error["param"], "no fill-in-the-middle tokens" in error["message"]) == ("suffix", True)
