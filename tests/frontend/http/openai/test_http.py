"""The HTTP routes over a fake engine: the form that OpenAI's clients read, streamed and whole."""

import asyncio
import json

import pytest

from paged_serve.protocol.messages.sampling_params import FinishReason

from ...http_server import Server, joined


def test_a_completion_has_openais_form(folder):
    server = Server(folder, "hello")
    answer = server.complete(request_id="r1")
    assert answer.pop("created") > 1e9
    assert answer.pop("system_fingerprint").startswith("paged-serve-")
    assert answer == {
        "id": "cmpl-r1",
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 6,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    assert server.engine.requests[0].prompt_token_ids == server.tokenizer.encode("abc")


def test_a_stream_equals_the_whole_answer(folder):
    server = Server(folder, "naïve 🚀 café")
    chunks = server.stream("/v1/completions", {"prompt": "a", "max_tokens": 60})
    assert joined(chunks) == server.complete()["choices"][0]["text"] == "naïve 🚀 café"
    assert all("�" not in c["text"] for chunk in chunks for c in chunk["choices"])
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "stop"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_defaults_match_the_openai_api(folder):
    server = Server(folder, "x" * 40)
    assert server.good("/v1/completions", {"prompt": "a"})["usage"]["completion_tokens"] == 16
    server.chat()
    params = server.engine.requests[-1].params
    assert (params.max_tokens, params.temperature, params.logprobs) == (None, 1.0, None)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("ab", ["ab"]), (["ab", "c"], ["ab", "c"]), ([65, 66], [None]), ([[65], [66, 67]], [None, None])],
)
def test_a_prompt_is_accepted_in_four_forms(folder, prompt, expected):
    server = Server(folder)
    answer = server.complete(prompt=prompt)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(expected)))
    sent = [request.prompt_token_ids for request in server.engine.requests]
    given = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    assert sent == [server.tokenizer.encode(p) if isinstance(p, str) else p for p in given]


def test_choices_of_prompts_times_n_are_numbered_prompt_first(folder):
    server = Server(folder, "xyz")
    server.engine.outputs = [server.tokenizer.encode(text) for text in ("one", "two")]
    chunks = server.stream("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 60})
    assert [joined(chunks, index) for index in range(4)] == ["one", "two", "one", "two"]
    whole = server.complete(prompt=["a", "b"], n=2)
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two", "one", "two"]
    assert whole["usage"]["completion_tokens"] == 16


def test_a_stop_string_ends_the_sequence_and_aborts_it_in_the_engine(folder):
    server = Server(folder, "hello world", ends=False)
    answer = server.complete(stop="o w")
    assert answer["choices"][0] == {
        "index": 0,
        "text": "hell",
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": "o w",
    }
    assert server.engine.requests[0].aborted == [(0, FinishReason.STOP)]
    assert answer["usage"]["completion_tokens"] == 7
    assert joined(server.stream("/v1/completions", {"prompt": "a", "stop": ["o w"], "max_tokens": 60})) == "hell"


def test_a_stop_token_is_named(folder):
    server = Server(folder, "hello")
    token = server.tokenizer.encode("o")[0]
    choice = server.complete(stop_token_ids=[token])["choices"][0]
    assert (choice["text"], choice["stop_reason"], choice["finish_reason"]) == ("hell", token, "stop")


def test_max_tokens_ends_with_finish_reason_length(folder):
    assert Server(folder, "hello", ends=False).complete(max_tokens=2)["choices"][0]["finish_reason"] == "length"


def test_streams_report_usage_on_request(folder):
    server = Server(folder, "hello")
    last = server.stream(
        "/v1/completions",
        {"prompt": "a", "max_tokens": 60, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    )
    assert last[-1]["choices"] == []
    assert last[-1]["usage"]["completion_tokens"] == 6
    assert [chunk["usage"]["completion_tokens"] for chunk in last[:3]] == [1, 2, 3]


def test_token_ids_are_returned_on_request(folder):
    server = Server(folder, "hi", ends=False)
    choice = server.complete(return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == server.tokenizer.encode("hi")
    assert choice["prompt_token_ids"] == server.tokenizer.encode("abc")


@pytest.mark.parametrize(
    ("path", "prompt"),
    [("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})],
)
def test_text_is_left_out_on_request(folder, path, prompt):
    server, body = (
        Server(folder, "hello there", ends=False),
        prompt | {"return_token_ids": True, "detokenize": False, "max_tokens": 40},
    )
    [choice] = server.good(path, body)["choices"]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) in ("", None)
    assert choice["token_ids"] == server.tokenizer.encode("hello there")
    ids, text = [], ""
    for event in server.stream(path, body):
        for piece in event["choices"]:
            ids += piece.get("token_ids", [])
            text += piece["text"] if "text" in piece else piece["delta"].get("content") or ""
    assert (ids, text) == (choice["token_ids"], "")
    refused = server.ask("POST", path, body | {"stop": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop")


def test_sampling_fields_reach_the_engine(folder):
    server = Server(folder)
    server.complete(
        n=2,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        min_tokens=1,
        ignore_eos=True,
        logit_bias={"5": -3},
        allowed_token_ids=[5, 6],
        bad_words=["no"],
        priority=-1,
        cache_salt="s",
        timeout=50,
        user="u",
        stop=None,
    )
    request = server.engine.requests[0]
    params = request.params
    assert (request.priority, request.cache_salt) == (-1, "s")
    assert 0 < request.timeout_s <= 50
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (2, 0.5, 0.9, 5, 0.1)
    assert (params.seed, params.presence_penalty, params.frequency_penalty) == (7, 1, -1)
    assert (params.repetition_penalty, params.min_tokens, params.ignore_eos) == (1.5, 1, True)
    assert (params.logit_bias, params.allowed_token_ids) == ({5: -3.0}, (5, 6))
    spellings = {server.tokenizer.decode(ids) for ids in params.bad_words_token_ids}
    assert spellings == {"no", " no"}


def test_tokenize_and_detokenize_are_inverse(folder):
    server = Server(folder)
    tokens = server.good("/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert tokens == {
        "count": 3,
        "max_model_len": 64,
        "tokens": server.tokenizer.encode("hé"),
        "token_strs": ["h", "�", "�"],
    }
    assert server.good("/detokenize", {"tokens": tokens["tokens"]}) == {"prompt": "hé"}
    chat = server.good("/tokenize", {"messages": [{"role": "user", "content": "x"}]})
    assert server.tokenizer.decode(chat["tokens"]) == "<user>x<assistant>"


def test_a_lenient_server_warns_of_unknown_fields(folder):
    server = Server(folder, options={"lenient": True})
    answer = server.complete(temprature=1, guided_json={})
    assert answer["warnings"] == [
        "ignored: \"temprature\" is not a known field; did you mean 'temperature'?",
        'ignored: guided_json is not supported; use structured_outputs: {"json": …}',
    ]
    assert "warnings" not in server.complete(new=None, suffix=None)
    chunks = server.stream("/v1/completions", {"prompt": "a", "temprature": 1})
    assert "warnings" in chunks[0]
    assert "warnings" not in chunks[1]


def test_the_openapi_document_names_every_route(folder):
    document = Server(folder).ask("GET", "/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize", "/live"} <= set(document["paths"])
    assert "CompletionRequest" in document["components"]["schemas"]
    assert "$defs" not in json.dumps(document)


@pytest.mark.parametrize(("burst", "per_delta"), [(1, 1), (3, 1), (1, 4), (4, 3)])
def test_ready_chunks_are_sent_together(folder, burst, per_delta):
    server = Server(folder, "abcdefghijkl", ends=False)
    server.engine.burst, server.engine.per_delta = burst, per_delta
    sent = sent_messages(server, {"prompt": "x", "max_tokens": 12, "stream": True})
    bodies = [message["body"] for message in sent if message.get("body")]
    assert len(bodies) == -(-12 // (burst * per_delta)) + 1  # the last is [DONE]
    assert bodies[0].count(b"data: ") == min(burst, -(-12 // per_delta))
    chunks = [json.loads(frame[6:]) for frame in b"".join(bodies).decode().split("\n\n")[:-2]]
    assert joined(chunks) == "abcdefghijkl"


def sent_messages(server: Server, body: dict) -> list[dict]:
    sent, given = [], []

    async def receive():
        if given:
            await asyncio.Event().wait()
        given.append(1)
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
    asyncio.run(server.app(scope, receive, send))
    return sent
