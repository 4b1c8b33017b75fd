"""Answers that client libraries send back are accepted, and the model sees the same conversation."""

import json
from pathlib import Path

import msgspec
import pytest

from paged_serve.frontend.conversation import messages
from paged_serve.frontend.conversation.sent_back import SentBack
from paged_serve.frontend.http.openai.request.schemas import ChatCompletionRequest

from ..http_server import Server

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
# Bodies recorded from the libraries with a server like this one: the last request of a conversation each.
RECORDED = [*map(json.loads, Path(__file__).with_name("recorded_histories.jsonl").read_text().splitlines())]


def prompt_of(server: Server, **fields: object) -> str:
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=4096)
    server.good(CHAT, fields)
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


@pytest.mark.parametrize("row", RECORDED, ids=[row["library"] for row in RECORDED])
def test_an_answer_sent_back_by_each_library_is_accepted(folder, row):
    assert prompt_of(Server(folder), **row["body"]) == row["prompt"]
    msgspec.convert(row["body"], ChatCompletionRequest)  # strictly, without dropping unknown fields


# guidance 0.3.1 sends a form under its old and its new name.
TWICE = '%llguidance {}\n\nstart: x\nx[capture]: X\n\nX: "Paris"\n     | "Rome"\n\n'
CALLS = '<think>It is asked.</think>Sure.<tool_call>{"name": "sum", "arguments": {"a": 1}}</tool_call>'
NUM_TURNS = 20


@pytest.mark.parametrize("stream", [False, True])
def test_twenty_turns_of_answers_and_results_are_accepted_unchanged(folder, stream):
    server = Server(folder, CALLS, options={"tool_call_parser": "hermes", "reasoning_parser": "qwen3"})
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=1 << 16)
    tools = [{"type": "function", "function": {"name": "sum"}, "cache_control": {"type": "ephemeral"}}]
    history = [USER]
    for turn in range(NUM_TURNS):
        body = {"messages": history, "tools": tools}
        answer = put_together(server.stream(CHAT, body)) if stream else server.good(CHAT, body)["choices"][0]["message"]
        assert answer["reasoning"] == "It is asked."
        (call,) = answer["tool_calls"]
        content = [{"type": "text", "text": str(turn), "cache_control": {"type": "ephemeral"}}]
        history += [answer, {"role": "tool", "tool_call_id": call["id"], "content": content}]
    shown = server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)
    said = '<assistant>Sure.[sum{"a": 1}]'
    assert shown == "<user>hi" + "".join(f"{said}<tool>{turn}" for turn in range(NUM_TURNS - 1)) + "sum<assistant>"


def put_together(chunks: list[dict]) -> dict:
    """The message made of a stream's deltas, with all their fields."""
    message: dict = {"role": "assistant", "content": "", "tool_calls": []}
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        message["content"] += delta.get("content") or ""
        message["reasoning"] = message.get("reasoning", "") + (delta.get("reasoning") or "")
        for part in delta.get("tool_calls", ()):
            if part["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(part)
            else:
                message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message


def with_template(folder: Path, text: str) -> Server:
    path = folder / "shown.jinja"
    path.write_text(text)
    return Server(folder, options={"chat_template": str(path)})


def tables() -> list[tuple[type[SentBack], str]]:
    structs = (messages.ChatMessage, messages.TextPart, messages.RefusalPart, messages.ToolCall, messages.FunctionCall)
    return [
        (struct, name)
        for struct in (*structs, messages.Tool, messages.Function)
        for part in struct.__bases__
        for name in part.__struct_fields__
    ]


@pytest.mark.parametrize(("struct", "name"), tables(), ids=lambda value: getattr(value, "__name__", value))
def test_a_field_of_the_table_is_dropped_whatever_its_value(folder, struct, name):
    """Otherwise a template that writes a message as JSON would show the field to the model."""
    part, refusal, called, call, message, function, tool = ({} for _ in range(7))
    places = {
        messages.ChatMessage: message,
        messages.TextPart: part,
        messages.RefusalPart: refusal,
        messages.ToolCall: call,
        messages.FunctionCall: called,
        messages.Tool: tool,
        messages.Function: function,
    }
    server, prompts = with_template(folder, "{{ messages | tojson }}{{ tools | tojson }}{{ messages[0].content }}"), []
    for value in (None, 5, {"a": [None, {"b": "c"}]}):
        places[struct][name] = value
        content = [{"type": "text", "text": "said", **part}, {"type": "refusal", "refusal": "not said", **refusal}]
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}", **called}, **call}]
        history = [USER, {"role": "assistant", "content": content, "tool_calls": calls, **message}]
        tools = [{"type": "function", "function": {"name": "f", **function}, **tool}]
        prompts.append(prompt_of(server, messages=history, tools=tools))
        del places[struct][name]
        prompts.append(prompt_of(server, messages=history, tools=tools))
    assert len(set(prompts)) == 1
    assert name not in prompts[0] or name == "id"  # the call's id


def test_function_calls_become_tool_calls(folder):
    legacy = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "2"},
        {"role": "assistant", "content": None, "function_call": {"name": "g", "arguments": "{}"}},
        {"role": "function", "name": "g", "content": None},
    ]
    calls = [
        {"id": i, "type": "function", "function": f}
        for i, f in zip(
            ("000000001", "000000003"),
            ({"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}),
            strict=True,
        )
    ]
    now = [
        USER,
        {"role": "assistant", "tool_calls": calls[:1]},
        {"role": "tool", "name": "f", "content": "2", "tool_call_id": "000000001"},
        {"role": "assistant", "tool_calls": calls[1:]},
        {"role": "tool", "name": "g", "content": "", "tool_call_id": "000000003"},
    ]
    server = with_template(folder, "{% for m in messages %}{{ m.content }}{{ m | dictsort }}{% endfor %}")
    assert prompt_of(server, messages=legacy) == prompt_of(server, messages=now)


@pytest.mark.parametrize(
    ("message", "param", "reason"),
    [
        ({"role": "function", "content": "2"}, "messages[0].name", "is required"),
        (
            {"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [{"function": {"name": "f"}}]},
            "messages",
            "send only one",
        ),
        ({"role": "assistant", "audio": {"id": "audio_1"}}, "messages[0].audio", "only text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
            "expected one of text, refusal",
        ),
        (
            {"role": "assistant", "content": "x", "prefix": True},
            "messages[0].prefix",
            "use continue_final_message: true",
        ),
        (
            {"role": "assistant", "content": "x", "reasonning": "y"},
            "messages[0].reasonning",
            "did you mean 'reasoning'?",
        ),
        ({"role": "user", "refusal": "no"}, "messages[0].content", "is required for the role 'user'"),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "[" * 100_001}},
            None,
            "more than 100000 lists",
        ),
    ],
)
def test_unsupported_fields_of_messages_are_refused_by_name(folder, message, param, reason):
    error = Server(folder).ask("POST", CHAT, {"messages": [message]}).json()["error"]
    assert (error["code"], error["param"]) == (400, param)
    assert reason in error["message"]


def test_a_refusal_is_the_content_of_the_assistant(folder):
    refused = [USER, {"role": "assistant", "content": None, "refusal": "I cannot."}]
    parts = [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}]
    both = [USER, {"role": "assistant", "content": "I can.", "refusal": "I cannot."}]
    prompts = [prompt_of(Server(folder), messages=history) for history in (refused, parts, both)]
    assert prompts == [*["<user>hi<assistant>I cannot.<assistant>"] * 2, "<user>hi<assistant>I can.<assistant>"]


def test_a_null_is_an_absent_field_at_any_depth(folder):
    """Including fields with unknown names, as in the next version of a library."""
    absent = dict.fromkeys(("new", "temprature", "tool_choice"))
    called = {"name": "f", "arguments": None, "new": None}
    history = [
        {**USER, "content": [{"type": "text", "text": "hi", "new": None}], "new": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": called, "type": None, "id": None, "new": None}],
        },
    ] * 50
    tools = [{"type": None, "function": {"name": "f", "description": None, "new": None}, "new": None}]
    options = {"stream_options": {"include_usage": None, "new": None}, "stream": True}
    server = Server(folder)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=4096)
    answer = server.ask("POST", CHAT, {"messages": history, "tools": tools, **options, **absent})
    assert answer.status_code == 200, answer.text
    chosen = {"type": "function", "function": {"name": "f", "description": None}, "allowed_tools": None}
    assert server.ask("POST", CHAT, {"messages": [USER], "tools": tools, "tool_choice": chosen}).status_code == 200
    strict = {"type": "object", "properties": {"x": {"const": None}}}  # null has a meaning in a schema, so it stays
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": strict, "new": None}}
    server.chat(response_format=form)
    assert "null" in json.dumps(server.engine.requests[-1].params.grammar.source)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False, "service_tier": "auto", "modalities": ["text"], "audio": None, "web_search_options": None},
        {"metadata": {"run": "7"}, "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}, "moderation": None, "verbosity": None},
        {"prediction": {"type": "content", "content": "hello"}},
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "hello"}]}},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream_options": {"include_usage": False, "continuous_usage_stats": None}, "echo": False},
        {"watermarking": False, "return_prompt_text": False, "return_token_offsets": False, "return_mm_kwargs": True},
        {"routed_experts_prompt_start": 0, "media_io_kwargs": {}, "ec_transfer_params": {}, "session_id": "s"},
        {"documents": [], "logits_processors": [], "vllm_xargs": {}, "use_beam_search": False},
        {
            "guided_decoding_backend": "guidance",
            "guided_grammar": TWICE,
            "structured_outputs": {"grammar": TWICE},
            "tools": None,
            "top_p": None,
        },
    ],
)
def test_fields_without_an_effect_are_accepted(folder, fields):
    server = Server(folder)
    answer = server.ask("POST", CHAT, {"messages": [USER], **fields})
    assert answer.status_code == 200, answer.text
    assert "warnings" not in answer.text


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("store", True, "answers are not stored"),
        ("modalities", ["text", "audio"], "only text"),
        ("audio", {"voice": "alloy", "format": "wav"}, "only text"),
        ("moderation", {"model": "omni-moderation-latest"}, "no moderation model"),
        ("web_search_options", {}, "no access to the web"),
        ("enable_thinking", False, 'use chat_template_kwargs: {"enable_thinking": …}'),
        ("extra_body", {"top_k": 1}, "as top-level fields"),
        ("guided_grammar", TWICE, 'use structured_outputs: {"grammar": …}'),
        ("guided_decoding_backend", "other", "leave it out"),
        ("max_new_tokens", 5, "use max_tokens"),
        ("include_usage", True, "use stream_options"),
        ("return_prompt_text", True, "use /apply-template"),
        ("watermarking", True, "no watermark"),
    ],
)
def test_fields_that_would_change_the_answer_are_refused_with_the_reason(folder, field, value, reason):
    error = Server(folder).ask("POST", CHAT, {"messages": [USER], field: value}).json()["error"]
    assert (error["code"], error["param"]) == (400, field)
    assert error["message"].startswith(f"{field} is not supported")
    assert reason in error["message"]


def test_a_predicted_part_without_its_type_is_refused(folder):
    body = {"messages": [USER], "prediction": {"type": "content", "content": [{"text": "hello"}]}}
    error = Server(folder).ask("POST", CHAT, body).json()["error"]
    assert error["code"] == 400
    assert "type" in error["message"]


def test_padding_of_a_stream_is_refused(folder):
    body = {"messages": [USER], "stream": True, "stream_options": {"include_obfuscation": True}}
    error = Server(folder).ask("POST", CHAT, body).json()["error"]
    assert (error["param"], "not padded" in error["message"]) == ("stream_options.include_obfuscation", True)
