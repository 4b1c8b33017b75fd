"""Anthropic's API over a fake engine: messages, their events, keys and errors."""

import asyncio

import pytest

from ...http_server import Server
from ..idempotency.test_http_resume import after, client_of, ids
from .anthropic_messages import ASK, CALL, TOOL, collected, message, prompt, roomy, stream


def test_a_message_has_its_form(folder):
    server = Server(folder, "hello")
    answer = server.ask("POST", "/v1/messages", ASK, **{"x-request-id": "r"})
    assert answer.json() == {
        "id": "msg_r",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 18,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 6,
        },
    }
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "r"
    assert prompt(server) == "<user>hi<assistant>"
    assert server.engine.requests[0].params.max_tokens == 40


def test_a_stream_adds_up_to_the_whole_message(folder):
    server = Server(folder, "naïve 🚀 café")
    events = stream(server)
    assert events[0]["message"]["usage"]["output_tokens"] == 0
    assert collected(events) == {**message(server), "id": events[0]["message"]["id"]}
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        *("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop")
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 3}, ("max_tokens", None)),
        ({"max_tokens": 5000}, ("model_context_window_exceeded", None)),
        ({"stop_sequences": ["no", "abc"]}, ("stop_sequence", "abc")),
        ({}, ("end_turn", None)),
    ],
)
def test_the_stop_reason_names_the_end_of_the_message(folder, fields, reason):
    text = "abcdef" if reason[0] != "model_context_window_exceeded" else "x" * 100
    server = Server(folder, text)
    for answer in (message(server, **fields), collected(stream(server, **fields))):
        assert (answer["stop_reason"], answer["stop_sequence"]) == reason


def test_a_call_is_a_block_whose_input_is_an_object(folder):
    server = roomy(Server(folder, f"Sure.\n{CALL}"))
    whole, streamed = message(server, tools=[TOOL], max_tokens=200), stream(server, tools=[TOOL], max_tokens=200)
    text, call = whole["content"]
    assert text == {"type": "text", "text": "Sure."}
    assert call == {"type": "tool_use", "id": call["id"], "name": "sum", "input": {"a": 1, "b": "é"}}
    assert whole["stop_reason"] == "tool_use"
    again = collected(streamed)
    again["content"][1]["id"] = call["id"]
    assert again["content"] == whole["content"]
    pieces = [event["delta"]["partial_json"] for event in streamed if "partial_json" in event.get("delta", {})]
    assert len(pieces) > 5
    assert prompt(server) == "<user>hisum<assistant>"


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        (CALL, {"stop_sequences": ['"b']}, ("stop_sequence", '"b')),
        (CALL[:50], {}, ("end_turn", None)),
        (CALL, {}, ("tool_use", None)),
    ],
)
def test_only_a_finished_call_is_to_be_used(folder, text, fields, reason):
    server = roomy(Server(folder, text))
    fields = {"tools": [TOOL], "max_tokens": 200, **fields}
    for answer in (message(server, **fields), collected_reason(server, **fields)):
        assert (answer["stop_reason"], answer["stop_sequence"]) == reason


def collected_reason(server: Server, **fields) -> dict:
    """The end of a stream; the JSON of a call that was cut off cannot be collected."""
    (end,) = [event["delta"] for event in stream(server, **fields) if event["type"] == "message_delta"]
    return end


def test_a_call_that_the_length_cuts_off_keeps_its_text(folder):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], max_tokens=50)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"INVALID_JSON": '{"a": 1, '}


def test_an_input_has_the_numbers_as_the_model_wrote_them(folder):
    written = '{"a":  123456789012345678901234567890, "b": 1.50}'
    server = roomy(Server(folder, CALL.replace('{"a": 1,  "b": "é"}', written)))
    answer = server.ask("POST", "/v1/messages", {**ASK, "tools": [TOOL], "max_tokens": 200})
    assert f'"input":{written}' in answer.text


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({"type": "auto"}, None),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "sum"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
    ],
)
def test_a_tool_choice_constrains_the_output(folder, chosen, expected):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], tool_choice=chosen, max_tokens=200)
    assert (server.engine.requests[0].params.grammar is not None) == bool(expected)
    assert answer["stop_reason"] == "tool_use"


def test_with_tool_choice_none_the_model_sees_no_tools(folder):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=200)
    assert answer["content"] == [{"type": "text", "text": CALL}]
    assert prompt(server) == "<user>hi<assistant>"


def test_errors_of_every_kind_have_the_form(folder):
    server = Server(folder, options={"api_keys": ("secret",)})
    key = {"x-api-key": "secret"}
    refused = [
        (server.ask("POST", "/v1/messages", ASK), 401, "authentication_error"),
        (server.ask("POST", "/v1/messages", ASK, **{"x-api-key": "wrong"}), 401, "authentication_error"),
        (server.ask("POST", "/v1/messages", {**ASK, "model": "claude"}, **key), 404, "not_found_error"),
        (server.ask("POST", "/v1/messages/batches", ASK, **key), 404, "not_found_error"),
        (server.ask("GET", "/v1/messages", **key), 405, "invalid_request_error"),
        (server.ask("POST", "/v1/messages", b"{", **key), 400, "invalid_request_error"),
        (server.ask("POST", "/v1/messages", b" " * (5 << 20), **key), 413, "request_too_large"),
        (server.ask("GET", f"/v1/streams/msg_{'0' * 32}", **key), 404, "not_found_error"),
    ]
    server.admission.draining = True
    refused.append((server.ask("POST", "/v1/messages", ASK, **key), 503, "overloaded_error"))
    assert refused[-1][0].headers["retry-after"]
    for answer, status, kind in refused:
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json()["request_id"] == answer.headers["request-id"]
    assert "code" in server.ask("GET", "/v1/models").json()["error"]


def test_models_have_the_form_of_the_api_that_the_version_header_names(folder):
    server = Server(folder)
    version = {"anthropic-version": "2023-06-01"}
    page = server.ask("GET", "/v1/models", **version).json()
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "tiny", False)
    assert page["data"] == [server.ask("GET", "/v1/models/tiny", **version).json()]
    assert (page["data"][0]["type"], page["data"][0]["max_input_tokens"]) == ("model", 64)
    assert server.ask("GET", "/v1/models/other", **version).json()["error"]["type"] == "not_found_error"
    assert server.ask("GET", "/v1/models").json()["object"] == "list"


def test_either_header_carries_the_key(folder):
    server = Server(folder, "hello", {"api_keys": ("secret",)})
    for headers in (
        {"x-api-key": "secret"},
        {"authorization": "Bearer secret"},
        {"x-api-key": "secret", "authorization": "Bearer other"},
        {"x-api-key": "other", "authorization": "Bearer secret"},
    ):
        assert server.ask("POST", "/v1/messages", ASK, **headers).status_code == 200
        assert server.ask("GET", "/v1/models", **headers).status_code == 200
    for headers in ({"authorization": "Basic secret"}, {"authorization": "secret"}, {"x-api-key": "Bearer secret"}):
        assert server.ask("POST", "/v1/messages", ASK, **headers).status_code == 401


def test_an_error_within_a_stream_is_its_last_event(folder):
    server = Server(folder, "hello")
    server.engine.fails_after = 3
    *_, last = stream(server)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")


def test_a_silent_stream_gets_pings(folder):
    server = Server(folder, "hello", {"sse_keep_alive_interval_s": 0.01})
    server.engine.pause_s = 0.05
    events = [event for event in stream(server, max_tokens=2) if event != {"type": "ping"}]
    assert collected(events)["content"] == [{"type": "text", "text": "he"}]
    assert len(stream(server, max_tokens=2)) > len(events) + 2


@pytest.mark.parametrize(("per_delta", "burst"), [(1, 1), (2, 3), (7, 1), (100, 5)])
def test_another_frontend_continues_a_message_for_any_portions_of_the_engine(folder, per_delta, burst):
    body = {**ASK, "tools": [TOOL], "max_tokens": 300, "stream": True}
    first, second = (roomy(Server(folder, f"Grüße {CALL}")) for _ in range(2))
    second.engine.per_delta, second.engine.burst = per_delta, burst
    begun = first.ask("POST", "/v1/messages", body, **{"Idempotency-Key": "k"})
    numbers = ids(begun.text)
    assert numbers[0].startswith("msg_")
    assert [number.split(":")[1] for number in numbers] == [*map(str, range(1, begun.text.count("\n\n") + 1))]
    for number in (0, 1, 5, len(numbers) - 1):
        event_id = numbers[0].replace(":1", f":{number}")
        rest = second.ask("POST", "/v1/messages", body, **{"Idempotency-Key": "k", "Last-Event-ID": event_id})
        assert rest.text == after(begun.text, number)


def test_a_message_with_a_key_is_computed_once_and_does_not_depend_on_other_requests(folder):
    server = Server(folder, "hello")

    async def talk() -> None:
        async with client_of(server) as client:
            key = {"Idempotency-Key": "k"}
            first = await client.post("/v1/messages", json=ASK, headers=key)
            assert first.json()["usage"]["cache_read_input_tokens"] == 0
            assert (await client.post("/v1/messages", json=ASK, headers=key)).content == first.content
            assert len(server.engine.requests) == 1
            refused = await client.post("/v1/messages", json={**ASK, "max_tokens": 7}, headers=key)
            assert (refused.status_code, refused.json()["error"]["type"]) == (422, "invalid_request_error")
            stream = await client.get(f"/v1/streams/{first.json()['id']}")
            assert stream.content == first.content

    asyncio.run(talk())
