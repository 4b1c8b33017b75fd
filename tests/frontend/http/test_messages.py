"""Anthropic's interface over a fake engine: messages of blocks in, blocks and their events out."""

import asyncio
import json

import msgspec
import pytest

from ..http_server import Server
from .test_http_resume import after, client_of, ids

ASK = {"model": "tiny", "max_tokens": 40, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "sum", "description": "adds", "input_schema": {"type": "object", "properties": {"a": {}}}}
CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": 1,  "b": "é"}}\n</tool_call>'


def roomy(server: Server) -> Server:
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=1024)
    return server


def message(server: Server, **fields: object) -> dict:
    return server.good("/v1/messages", ASK | fields)


def refusal(server: Server, path: str = "/v1/messages", /, **fields: object) -> dict:
    answer = server.ask("POST", path, {**ASK, **fields})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    return body["error"]


def prompt(server: Server) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


def events_of(text: str) -> list[dict]:
    """Of a stream, whose every frame names its event twice."""
    found = []
    for frame in text.split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in frame.splitlines())
        found.append(json.loads(lines["data"]))
        assert lines["event"] == found[-1]["type"]
    return found


def stream(server: Server, **fields: object) -> list[dict]:
    answer = server.ask("POST", "/v1/messages", {**ASK, **fields, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


def collected(events: list[dict]) -> dict:
    """The message that a stream's events amount to, as clients put it together."""
    message: dict = {}
    buffers: list[str] = []
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                message = begun
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block)
                buffers.append("")
            case {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}:
                assert index == len(message["content"]) - 1
                if kind == "signature_delta":
                    assert delta["signature"] == ""
                else:
                    buffers[index] += delta[
                        {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "partial_json")
                    ]
            case {"type": "content_block_stop", "index": index}:
                block = message["content"][index]
                field = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
                block[field] = json.loads(buffers[index] or "{}") if field == "input" else buffers[index]
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= {**delta, "usage": usage}
    assert events[-1] == {"type": "message_stop"}
    return message


def test_a_message_has_its_shape(folder):
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


def test_a_stream_amounts_to_the_whole_message(folder):
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
def test_the_stop_reason_says_what_ended_the_message(folder, fields, reason):
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


def test_a_call_that_the_length_cuts_off_keeps_its_text(folder):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], max_tokens=50)
    assert answer["stop_reason"] == "max_tokens"
    assert answer["content"][0]["input"] == {"INVALID_JSON": '{"a": 1, '}


def test_an_input_is_what_the_model_wrote_whatever_numbers_it_has(folder):
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
def test_a_tool_choice_holds_the_output_to_its_form(folder, chosen, expected):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], tool_choice=chosen, max_tokens=200)
    assert (server.engine.requests[0].params.grammar is not None) == bool(expected)
    assert answer["stop_reason"] == "tool_use"


def test_with_tool_choice_none_the_model_sees_no_tools(folder):
    server = roomy(Server(folder, CALL))
    answer = message(server, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=200)
    assert answer["content"] == [{"type": "text", "text": CALL}]
    assert prompt(server) == "<user>hi<assistant>"


HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "What is", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": "1 + 1?"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I add.", "citations": None},
            {"type": "tool_use", "id": "c1", "name": "sum", "input": {"b": 1, "a": 1}, "caller": {"type": "direct"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "2"}], "is_error": False},
            {"type": "tool_result", "tool_use_id": "c1", "content": "late", "is_error": True},
            {"type": "text", "text": "So?"},
        ],
    },
    {"role": "system", "content": "Be brief."},
]


def test_a_history_becomes_a_chat(folder):
    server = roomy(Server(folder))
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1a2b3;"},
        {"type": "text", "text": "You add.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ]
    message(server, system=system, messages=[{"role": "system", "content": "Well."}, *HISTORY])
    assert prompt(server) == (
        '<system>You add.\nWell.<user>What is\n1 + 1?<assistant>I add.[sum{"b": 1, "a": 1}]'
        "<tool>2<tool>Error: late<user>So?<system>Be brief.<assistant>"
    )


def test_templates_see_thinking_names_and_ids(folder, tmp_path):
    (tmp_path / "prints.jinja").write_text("{% for m in messages %}{{ m | tojson }}{% endfor %}")
    server = roomy(Server(folder, options={"chat_template": str(tmp_path / "prints.jinja")}))
    message(server, messages=HISTORY[1:4])
    arguments = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": {"b": 1, "a": 1}}}
    expected = [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [arguments],
            "thinking": "hm",
        },
        {"role": "tool", "tool_call_id": "c1", "name": "sum", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "name": "sum", "content": "Error: late"},
        {"role": "user", "content": "So?"},
    ]
    given = prompt(server).replace("}{", "},{")
    assert json.loads(f"[{given}]") == expected


def test_a_message_without_blocks_is_an_empty_one(folder):
    server = Server(folder)
    message(server, messages=[{"role": "user", "content": []}])
    assert prompt(server) == "<user><assistant>"


def test_an_assistants_last_message_is_continued(folder):
    server = Server(folder, "llo")
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]
    assert message(server, messages=talk)["content"] == [{"type": "text", "text": "llo"}]
    assert prompt(server) == "<user>hi<assistant>He"


THINKS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{{ enable_thinking }} {{ thinking }} {{ reasoning_effort }}<think>{# <think> </think> #}"
)


@pytest.mark.parametrize(
    ("fields", "arguments", "shown"),
    [
        ({}, "False False ", None),
        ({"thinking": {"type": "disabled"}}, "False False ", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True True ", "hm"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "True True low", "hm"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "True True ", ""),
    ],
)
def test_thinking_reaches_the_template_and_is_shown_as_asked(folder, tmp_path, fields, arguments, shown):
    (tmp_path / "thinks.jinja").write_text(THINKS)
    server = Server(folder, "hm</think>yes", {"chat_template": str(tmp_path / "thinks.jinja")})
    text = {"type": "text", "text": "yes"}
    thought = [] if shown is None else [{"type": "thinking", "thinking": shown, "signature": ""}]
    for answer in (message(server, **fields), collected(stream(server, **fields))):
        assert answer["content"] == [*thought, text]
        assert prompt(server) == f"hi{arguments}<think>"


def test_a_json_schema_holds_the_output(folder):
    server = Server(folder, '{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    message(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert server.engine.requests[0].params.grammar is not None
    refused = refusal(server, output_config={"format": {"type": "json_schema", "schema": {"type": "wrong"}}})
    assert refused["message"].startswith("output_config.format: ")


def test_what_clients_of_the_service_send_along_is_taken(folder):
    server = Server(folder, "hello")
    answer = server.ask(
        "POST",
        "/v1/messages?beta=true",
        {
            **ASK,
            "metadata": {"user_id": "u"},
            "service_tier": "auto",
            "container": None,
            "mcp_servers": [],
            "speed": "standard",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "cache_control": {"type": "ephemeral"},
            "diagnostics": {"previous_message_id": None},
            "temperature": 0.5,
            "top_k": 5,
            "top_p": 0.9,
        },
        **{"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "none"},
    )
    assert answer.status_code == 200, answer.text
    params = server.engine.requests[0].params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 5, 0.9)


def blocks(*content: dict, role: str = "user") -> list[dict]:
    return [{"role": role, "content": [*content]}]


NESTED = json.loads('{"a":' * 200 + "1" + "}" * 200)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_token": 1}, "\"max_token\" is not a known field; did you mean 'max_tokens'?"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": None}, "max_tokens is null"),
        ({"messages": []}, "messages"),
        ({"messages": blocks({"type": "text", "text": "a", "txt": 1})}, "did you mean 'text'"),
        (
            {"messages": blocks({"type": "tool_use", "id": "a", "name": "b", "input": {}, "nam": 1})},
            "did you mean 'name'",
        ),
        (
            {"messages": blocks({"type": "text", "text": "a"}, IMAGE)},
            "messages[0].content[1] is of the type 'image'; images",
        ),
        (
            {"messages": blocks({"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]})},
            "messages[0].content[0].content[0] is of the type 'image'",
        ),
        ({"messages": blocks({"type": "video"})}, "expected one of text, "),
        ({"system": [{"text": "a"}]}, "system[0].type is required"),
        (
            {"messages": blocks({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "video"}]})},
            'messages[0].content[0].content[0].type is "video": expected one of text',
        ),
        ({"messages": blocks({"type": "thinking", "thinking": "a"})}, "a thinking, which a message of the role 'user'"),
        ({"messages": blocks({"type": "tool_result", "tool_use_id": "a"}, role="assistant")}, "role 'assistant'"),
        (
            {"messages": blocks({"type": "tool_use", "id": "a", "name": "b", "input": {}}, role="assistant")},
            "tool_result",
        ),
        ({"messages": [{"role": "assistant", "content": ""}]}, "without text"),
        ({"tools": [{"max_uses": 3, "type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "product"}}, "'product'; tools has sum"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "sum"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers is not supported here"),
        ({"speed": "fast"}, 'speed is "fast"'),
        ({"tools": [{**TOOL, "input_schema": NESTED}]}, "tools[0].input_schema is nested more than 64 levels deep"),
        (
            {"messages": blocks({"type": "tool_use", "id": "a", "name": "b", "input": NESTED}, role="assistant")},
            "messages[0].content[0].input is nested more than 64 levels deep",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": NESTED}}},
            "output_config.format.schema is nested more than 64 levels deep",
        ),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "clear_tool_uses_20250919"),
        ({"thinking": {"type": "between_tools"}}, "between_tools"),
        ({"messages": blocks({"type": "text", "text": "x" * 500})}, " tokens > 64 maximum"),
    ],
)
def test_what_cannot_be_is_refused_by_name(folder, fields, words):
    server = Server(folder)
    assert words in refusal(server, **fields)["message"]
    assert not server.engine.requests


@pytest.mark.parametrize("depth", range(970, 1010, 4))
def test_no_depth_of_a_value_is_the_servers_failure(folder, depth):
    """What can just be decoded could no longer be encoded a level deeper."""
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    call = b'{"type":"tool_use","id":"a","name":"b","input":%s}' % nested
    body = b'{"max_tokens":9,"messages":[{"role":"assistant","content":[%s]}]}' % call
    assert Server(folder).ask("POST", "/v1/messages", body).status_code == 400


def test_tokens_are_counted_as_the_prompt_has_them(folder):
    server = roomy(Server(folder))
    asked = {
        "model": "tiny",
        "system": "You add.",
        "messages": HISTORY,
        "tools": [TOOL],
        "thinking": {"type": "adaptive"},
    }
    counted = server.good("/v1/messages/count_tokens", asked)
    message(server, **asked)
    assert counted == {"input_tokens": len(server.engine.requests[0].prompt_token_ids)}
    assert "max_tokens" in server.ask("POST", "/v1/messages/count_tokens", ASK).json()["error"]["message"]


def test_errors_of_every_kind_have_the_shape(folder):
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


def test_a_message_with_a_key_is_made_once_and_shows_nothing_of_other_requests(folder):
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


def test_a_lenient_server_names_what_it_left_out(folder):
    server = Server(folder, "hello", {"lenient": True})
    assert "ignored" in message(server, fallbacks=["x"])["warnings"][0]
