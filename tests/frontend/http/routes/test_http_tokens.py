"""POST /inference/v1/generate: tokens in, tokens out."""

import pytest

from ...http_server import Server

PATH = "/inference/v1/generate"


def body(server: Server, **sampling: object) -> dict:
    return {"token_ids": server.tokenizer.encode("abc"), "sampling_params": sampling}


def test_an_answer_is_tokens(folder):
    server = Server(folder, "hi")
    answer = server.good(PATH, body(server, temperature=0, logprobs=1) | {"request_id": "r"})
    assert (answer["id"], answer["request_id"], answer["object"]) == ("generate-r", "generate-r", "generate")
    (choice,) = answer["choices"]
    ids = [*server.tokenizer.encode("hi"), server.tokenizer.token_id("<|end|>")]
    assert (choice["token_ids"], choice["finish_reason"]) == (ids, "stop")
    assert "text" not in choice
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [f"token_id:{token}" for token in ids]
    assert answer["usage"]["prompt_tokens"] == 3
    assert server.engine.requests[0].prompt_token_ids == server.tokenizer.encode("abc")


def test_a_stream_has_the_same_tokens(folder):
    server = Server(folder, "hello")
    given = body(server, n=2, logprobs=0)
    whole = server.good(PATH, given)
    chunks = server.stream(PATH, given | {"stream_options": {"include_usage": True}})
    assert {chunk["request_id"] for chunk in chunks} == {chunks[0]["id"]}
    for index, choice in enumerate(whole["choices"]):
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert [e for part in parts for e in part["logprobs"]["content"]] == choice["logprobs"]["content"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "stop"
    assert chunks[-1]["usage"] == whole["usage"]


def test_outputs_continue_until_the_context_is_full(folder):
    server = Server(folder, "x" * 100)
    (choice,) = server.good(PATH, body(server))["choices"]
    assert server.engine.requests[0].params.max_tokens is None
    assert server.good(PATH, body(server, max_tokens=5))["choices"][0]["token_ids"] == choice["token_ids"][:5]


def test_the_models_recommended_values_do_not_apply(folder, tmp_path):
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "top_k": 3}')
    server = Server(tmp_path)
    server.complete()
    server.good(PATH, body(server, seed=1))
    recommended, plain = (request.params for request in server.engine.requests)
    assert (recommended.temperature, recommended.top_k) == (0.5, 3)
    assert (plain.temperature, plain.top_k, plain.seed) == (1.0, 0, 1)


def test_prompt_logprobs_and_forms_are_those_of_completions(folder):
    server = Server(folder)
    given = body(server, prompt_logprobs=1, structured_outputs={"choice": ["hello"]})
    assert len(server.good(PATH, given)["prompt_logprobs"]) == 3
    assert server.engine.requests[0].params.grammar is not None


@pytest.mark.parametrize("given", [{}, {"logprobs": 1}, {"logprobs": 5}])
def test_logprobs_of_named_tokens_replace_those_of_the_top_tokens(folder, given):
    server = Server(folder, "hi")
    (choice,) = server.good(PATH, body(server, logprob_token_ids=[5, 6], **given))["choices"]
    assert server.engine.requests[0].params.logprobs == 2
    assert len(choice["logprobs"]["content"]) == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [10**6]}, "token_ids"),
        ({"token_ids": [1] * 64}, "token_ids"),
        ({"token_ids": "abc"}, "token_ids"),
        ({"sampling_params": {"temperature": 3}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_tokens": 62}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"stop_token_ids": [10**6]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"stream": True}}, "sampling_params.stream"),
        ({"sampling_params": None}, "sampling_params"),
        ({"features": {}}, "features"),
        ({"prompt": "a"}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_an_invalid_field_is_refused_by_name(folder, fields, param):
    server = Server(folder)
    response = server.ask("POST", PATH, body(server) | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_a_request_with_a_key_is_computed_once(folder):
    server = Server(folder)
    first, second = (server.ask("POST", PATH, body(server), **{"Idempotency-Key": "k" * 16}).content for _ in range(2))
    assert first == second
    assert len(server.engine.requests) == 1
