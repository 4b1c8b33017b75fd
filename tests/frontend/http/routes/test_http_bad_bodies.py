"""Bad bodies: each gets its status and an error that names the field."""

import json

import msgspec
import pytest

from ...http_server import Server
from .bad_bodies import BAD, USER, C, D, H, T, called, chat, completion, deep, tool


@pytest.fixture(scope="module")
def server(folder):
    return Server(folder)


@pytest.mark.parametrize(("path", "body", "param", "part"), BAD)
def test_a_bad_body_is_refused_by_name(server, path, body, param, part):
    response = server.ask("POST", path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    code = "context_length_exceeded" if "maximum context length" in error["message"] else 400
    assert (error["code"], error["type"], error["param"]) == (code, "BadRequestError", param)
    assert part in error["message"]
    assert len(error["message"]) < 600
    assert not server.engine.requests
    assert server.admission.num_active == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", C, completion(model="other"), 404, "model"),
        ("POST", H, chat(model="other"), 404, "model"),
        ("POST", T, {"prompt": "x", "model": "other"}, 404, "model"),
        ("POST", D, {"tokens": [], "model": "other"}, 404, "model"),
        ("GET", "/v1/models/other", None, 404, "model"),
        ("GET", "/v1/nothing", None, 404, None),
        ("GET", "/page.html", None, 404, None),
        ("GET", "/v1/models/", None, 404, None),
        ("GET", C, None, 405, None),
        ("DELETE", "/v1/models", None, 405, None),
        ("POST", "/metrics", b"", 404, None),
        ("OPTIONS", C, None, 405, None),
        ("TRACE", "/live", None, 405, None),
        ("POST", C, b"x" * ((4 << 20) + 1), 413, None),
    ],
)
def test_other_refusals_have_the_same_form(server, method, path, body, status, param):
    response = server.ask(method, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, status, param)


def test_brackets_and_colons_in_strings_do_not_count_as_structure(server):
    text = '[{":\\' * 30_000
    answer = server.ask("POST", T, {"prompt": text})
    assert answer.json()["count"] == len(text)


def test_the_allowed_nesting_depth_is_accepted(server):
    fresh = Server(server.folder)
    fresh.engine.limits = msgspec.structs.replace(fresh.engine.limits, max_model_len=10_000)
    fresh.good(H, chat(tools=[tool(deep(64))], messages=[called(deep(64)), called(json.dumps(deep(64))), USER]))


@pytest.mark.parametrize(
    ("path", "begin", "end"),
    [
        (H, '{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","custom":{"name":"f","a":', "}}]}"),
        (H, '{"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"custom","a":', "}}"),
        (H, '{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":', "}}"),
        ("/v1/responses", '{"input":"x","tools":[{"type":"function","name":"f","parameters":', "}]}"),
        ("/v1/responses", '{"input":"x","tools":[{"type":"function","name":"f","output_schema":', "}]}"),
        ("/v1/responses", '{"input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":', "}]}]}"),
        ("/v1/responses", '{"input":"x","tools":[{"type":"web_search","a":', "}]}"),
        ("/v1/responses/input_tokens", '{"input":"x","tools":[{"type":"function","name":"f","parameters":', "}]}"),
        ("/v1/responses", '{"input":"x","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[', "]}}"),
        ("/v1/responses", '{"input":[{"role":"user","content":"x"},', "]}"),
        ("/v1/messages", '{"model":"m","max_tokens":3,"messages":[],"tools":[{"name":"f","input_schema":', "}]}"),
        ("/v1/messages/count_tokens", '{"model":"m","messages":[],"tools":[{"name":"f","input_schema":', "}]}"),
        ("/inference/v1/generate", '{"token_ids":[1],"sampling_params":{"a":', "}}"),
    ],
)  # fmt: skip
def test_no_depth_of_a_body_fails_the_server(server, path, begin, end):
    """The result of parsing may be nested slightly deeper than the body."""
    for levels in (*range(900, 970, 10), *range(970, 1005), 100_000):
        response = server.ask("POST", path, (begin + '{"a":' * levels + "1" + "}" * levels + end).encode())
        assert response.status_code == 400 or (response.status_code == 200 and "response_format" in begin), levels


def test_allowed_tools_within_allowed_tools_are_refused(server):
    flat, nested = '{"type":"custom","name":"x"}', '{"type":"custom","custom":{"name":"x"}}'
    for levels in range(1, 345):
        flat = f'{{"type":"allowed_tools","mode":"auto","tools":[{flat}]}}'
        nested = f'{{"type":"allowed_tools","allowed_tools":{{"mode":"auto","tools":[{nested}]}}}}'
        if levels > 2 and levels % 19:
            continue
        for path, given, choice in (
            ("/v1/responses", '"input":"x"', flat),
            (H, '"messages":[{"role":"user"}]', nested),
        ):
            response = server.ask("POST", path, f'{{{given},"tool_choice":{choice}}}'.encode())
            assert response.status_code == 400, (levels, response.text)


def test_echoed_prompt_text_is_bounded_over_all_choices(server):
    fresh = Server(server.folder)
    fresh.engine.limits = msgspec.structs.replace(fresh.engine.limits, max_model_len=100_000)
    many = {"prompt": [5] * 9000, "n": 128, "temperature": 1, "max_tokens": 1}
    for path, body, field in (
        (C, many | {"echo": True}, "echo"),
        (C, many | {"return_token_ids": True}, "return_token_ids"),
        (H, chat(messages=[USER | {"content": "x" * 9000}], n=128, return_token_ids=True), "return_token_ids"),
    ):
        answer = fresh.ask("POST", path, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert "at most 1048576" in answer.json()["error"]["message"]
    assert not fresh.engine.requests
    fresh.good(C, many)


HARMLESS = {
    "service_tier": "auto",
    "store": False,
    "best_of": 1,
    "suffix": None,
    "structured_outputs": None,
    "logit_bias": None,
    "metadata": None,
}


def test_an_integer_may_be_written_with_a_decimal_point(server):
    fresh = Server(server.folder)
    fresh.complete(prompt=[65.0, 66], max_tokens=2.0, n=1e0, stop_token_ids=[7.0], stream_options=None, best_of=1)
    request = fresh.engine.requests[0]
    assert (request.prompt_token_ids, request.params.max_tokens, request.params.n) == ([65, 66], 2, 1)
    assert request.params.stop_token_ids == (7,)
    call = {"index": 0.0, "function": {"name": "f", "arguments": {"x": 1.5}}}
    fresh.good("/v1/chat/completions", chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}]))


def test_meaningless_fields_that_clients_send_are_accepted(server):
    fresh = Server(server.folder)
    assert "warnings" not in fresh.complete(**HARMLESS)
    fresh.good("/v1/chat/completions", chat(safety_identifier="s", prompt_cache_key="k", user="u"))
    assert fresh.ask("POST", C, json.dumps({"prompt": "x"}).encode()).status_code == 200
