"""Bodies of Anthropic's API: the chats that they become, and the fields that are refused by name."""

import json

import pytest

from ...http_server import Server
from .anthropic_messages import ASK, TOOL, collected, message, prompt, refusal, roomy, stream

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


def test_templates_get_thinking_names_and_ids(folder, tmp_path):
    (tmp_path / "prints.jinja").write_text("{% for m in messages %}{{ m | tojson }}{% endfor %}")
    server = roomy(Server(folder, options={"chat_template": str(tmp_path / "prints.jinja")}))
    message(server, messages=HISTORY[1:4])
    arguments = {"id": "c1", "type": "function", "function": {"name": "sum", "arguments": {"b": 1, "a": 1}}}
    expected = [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": "I add.",
            **dict.fromkeys(("reasoning", "reasoning_content", "thinking"), "hm"),
            "tool_calls": [arguments],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "sum", "content": "2"},
        {"role": "tool", "tool_call_id": "c1", "name": "sum", "content": "Error: late"},
        {"role": "user", "content": "So?"},
    ]
    given = prompt(server).replace("}{", "},{")
    assert json.loads(f"[{given}]") == expected


@pytest.mark.parametrize(
    ("thinking", "signature", "reasoning"),
    [("hm", "unsigned", "hm"), ("", "hidden:aG0=", "hm"), ("", "unsigned", None), ("", "ErUBCkYIBRgCIkD=", None)],
)
def test_thinking_that_was_not_shown_is_in_the_next_prompt(folder, tmp_path, thinking, signature, reasoning):
    (tmp_path / "prints.jinja").write_text(
        "{% for m in messages %}{{ m.reasoning_content | default('-') }}{% endfor %}"
    )
    server = Server(folder, options={"chat_template": str(tmp_path / "prints.jinja")})
    block = {"type": "thinking", "thinking": thinking, "signature": signature}
    answered = {"role": "assistant", "content": [block, {"type": "text", "text": "yes"}]}
    message(server, messages=[*ASK["messages"], answered, *ASK["messages"]])
    assert prompt(server) == f"-{reasoning or '-'}-"


def test_a_message_without_blocks_is_empty(folder):
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


@pytest.mark.parametrize("tokens_at_a_time", [1, 100])
@pytest.mark.parametrize(
    ("fields", "arguments", "shown"),
    [
        ({}, "False False ", None),
        ({"thinking": {"type": "disabled"}}, "False False ", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True True ", "hm"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "True True low", "hm"),
        ({"thinking": {"type": "adaptive", "display": "updates"}}, "True True ", "hm"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "True True ", ""),
    ],
)
def test_thinking_reaches_the_template_and_is_returned_on_request(
    folder, tmp_path, fields, arguments, shown, tokens_at_a_time
):
    (tmp_path / "thinks.jinja").write_text(THINKS)
    server = Server(folder, "hm</think>yes", {"chat_template": str(tmp_path / "thinks.jinja")})
    server.engine.per_delta = tokens_at_a_time
    text = {"type": "text", "text": "yes"}
    signature = "unsigned" if shown else "hidden:aG0="
    thought = [] if shown is None else [{"type": "thinking", "thinking": shown, "signature": signature}]
    for answer in (message(server, **fields), collected(stream(server, **fields))):
        assert answer["content"] == [*thought, text]
        assert prompt(server) == f"hi{arguments}<think>"


def test_a_json_schema_constrains_the_output(folder):
    server = Server(folder, '{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    message(server, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert server.engine.requests[0].params.grammar is not None
    refused = refusal(server, output_config={"format": {"type": "json_schema", "schema": {"type": "wrong"}}})
    assert refused["message"].startswith("output_config.format: ")


def test_fields_that_clients_of_the_service_send_are_accepted(folder):
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
            "messages[0].content[1] has the type 'image'; images",
        ),
        (
            {"messages": blocks({"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]})},
            "messages[0].content[0].content[0] has the type 'image'",
        ),
        ({"messages": blocks({"type": "video"})}, "expected one of text, "),
        ({"system": [{"text": "a"}]}, "system[0].type is required"),
        (
            {"messages": blocks({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "video"}]})},
            'messages[0].content[0].content[0].type is "video": expected one of text',
        ),
        (
            {"messages": blocks({"type": "thinking", "thinking": "", "signature": "hidden:a"}, role="assistant")},
            "the encoded reasoning of an earlier answer was changed",
        ),
        ({"messages": blocks({"type": "thinking", "thinking": "a"})}, "a thinking, which a message of the role 'user'"),
        ({"messages": blocks({"type": "tool_result", "tool_use_id": "a"}, role="assistant")}, "role 'assistant'"),
        (
            {"messages": blocks({"type": "tool_use", "id": "a", "name": "b", "input": {}}, role="assistant")},
            "tool_result",
        ),
        ({"messages": [{"role": "assistant", "content": ""}]}, "without text"),
        ({"tools": [{"max_uses": 3, "type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "all tools have defer_loading true"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "product"}}, "'product'; tools has sum"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "sum"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers is not supported"),
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
def test_invalid_values_are_refused_by_name(folder, fields, words):
    server = Server(folder)
    assert words in refusal(server, **fields)["message"]
    assert not server.engine.requests


@pytest.mark.parametrize("depth", range(970, 1010, 4))
def test_no_depth_of_a_value_fails_the_server(folder, depth):
    """A value at the limit of decoding could not be encoded one level deeper."""
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    call = b'{"type":"tool_use","id":"a","name":"b","input":%s}' % nested
    body = b'{"max_tokens":9,"messages":[{"role":"assistant","content":[%s]}]}' % call
    assert Server(folder).ask("POST", "/v1/messages", body).status_code == 400


def test_the_token_count_is_that_of_the_prompt(folder):
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


def test_a_lenient_server_names_ignored_fields(folder):
    server = Server(folder, "hello", {"lenient": True})
    assert "ignored" in message(server, fallbacks=["x"])["warnings"][0]


@pytest.mark.parametrize("lenient", [False, True])
def test_a_thread_is_refused_in_the_form_after_which_clients_send_the_whole_conversation(folder, lenient):
    """Were it ignored, a client would send only the new messages of its next turn."""
    server = Server(folder, "hello", {"lenient": lenient})
    error = refusal(server, thread={"type": "create"})
    assert error["details"] == {"error_code": "thread_unsupported_request"}
    assert "thread is not supported" in error["message"]
    assert "details" not in refusal(server, max_tokens=0)
    assert message(server, thread=None)["content"][0]["text"] == "hello"
