"""Tools of type `custom`, whose input is a text, in chats and in responses, streamed and whole."""

import json
from itertools import pairwise

import msgspec
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from ...http_server import Server, make_model_folder
from ..responses.response_server import TEMPLATE, prompt, refusal, respond
from ..responses.response_server import stream as response_stream

INPUT = 'print("hé\\n")\n' * 3
RUN = {"name": "run", "description": "runs Python"}
TOOL = {"type": "custom", "custom": RUN}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
BODY = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL, ADD]}
REGEX = {"syntax": "regex", "definition": "[a-z]+"}


def call(name: str, arguments: dict) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


OUTPUT = call("run", {"input": INPUT}) + call("add", {"a": 2}) + call("run", {"input": "2"})


@pytest.fixture
def start(tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)

    def start(output: str = OUTPUT) -> Server:
        folder = make_model_folder(tmp_path / "model")
        server = Server(folder, output, {"chat_template": str(tmp_path / "t.jinja")})
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=1024)
        return server

    return start


def schema_of(server: Server) -> str:
    return server.engine.requests[-1].params.grammar.source


def test_a_call_has_its_text(start):
    choice = start().chat(**BODY)["choices"][0]
    ids = [each.pop("id") for each in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 3
    assert choice["message"]["tool_calls"] == [
        {"type": "custom", "custom": {"name": "run", "input": INPUT}},
        {"type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}},
        {"type": "custom", "custom": {"name": "run", "input": "2"}},
    ]
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("output", [OUTPUT, OUTPUT[:60], call("run", {"code": "1"}), call("run", {})])
def test_the_streamed_input_equals_the_whole_input(start, output):
    whole = ChatCompletion.model_validate(start(output).chat(**BODY)).choices[0].message
    found: dict[int, dict] = {}
    num_pieces = 0
    for chunk in start(output).stream("/v1/chat/completions", BODY):
        for piece in chunk["choices"][0]["delta"].get("tool_calls", []):
            kind = "custom" if "custom" in piece else "function"
            of_call = found.setdefault(piece["index"], {"type": piece.get("type"), kind: {}})
            for name, text in piece[kind].items():
                of_call[kind][name] = of_call[kind].get(name, "") + text
            num_pieces += 1
    assert [found[index] for index in sorted(found)] == [
        each.model_dump(exclude_unset=True, exclude={"id"}) for each in whole.tool_calls or []
    ]
    assert num_pieces > (20 if output == OUTPUT else 1)


def test_arguments_in_another_form_are_the_input_unchanged(start):
    written = '{"code": "1"}'
    message = start(f'<tool_call>{{"name": "run", "arguments": {written}}}</tool_call>').chat(**BODY)["choices"][0]
    assert message["message"]["tool_calls"][0]["custom"] == {"name": "run", "input": written}


def test_a_call_can_be_sent_back_unchanged(start):
    server = start()
    answered = server.chat(**BODY)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in answered["tool_calls"]]
    server.good("/v1/chat/completions", BODY | {"messages": [*BODY["messages"], answered, *results]})
    sent_back = prompt(server)
    assert f"[run{json.dumps({'input': INPUT}, ensure_ascii=False)}]" in sent_back
    for each in answered["tool_calls"]:
        if each["type"] == "custom":
            arguments = json.dumps({"input": each.pop("custom")["input"]})
            each.update(type="function", function={"name": "run", "arguments": arguments})
    server.good("/v1/chat/completions", BODY | {"messages": [*BODY["messages"], answered, *results]})
    assert prompt(server) == sent_back


def test_the_token_and_template_routes_render_the_prompt_of_a_chat(start):
    server = start()
    answered = server.chat(**BODY)["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "ok"} for each in answered["tool_calls"]]
    body = BODY | {"messages": [*BODY["messages"], answered, *results]}
    server.good("/v1/chat/completions", body)
    tokens = list(server.engine.requests[-1].prompt_token_ids)
    assert server.good("/tokenize", body)["tokens"] == tokens
    text = server.good("/apply-template", body)["prompt"]
    assert text == server.tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.mark.parametrize(
    ("choice", "is_named"),
    [
        ({"type": "custom", "custom": {"name": "run"}}, True),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}, False),
    ],
)
def test_a_custom_tool_can_be_chosen(start, choice, is_named):
    server = start(call("run", {"input": "1"}))
    answer = server.chat(**BODY, tool_choice=choice)["choices"][0]
    assert answer["finish_reason"] == ("stop" if is_named else "tool_calls")
    assert '"run"' in schema_of(server).replace("\\", "")
    assert '"add"' not in schema_of(server).replace("\\", "")


@pytest.mark.parametrize("form", [{"type": "grammar", **REGEX}, {"type": "grammar", "grammar": REGEX}])
def test_a_regular_expression_constrains_the_input(start, form):
    server = start(call("run", {"input": "abc"}))
    tools = [{"type": "custom", "custom": {**RUN, "format": form}}]
    assert server.chat(tools=tools)["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "abc"
    assert "[a-z]+" in schema_of(server)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"tools": [TOOL, {"type": "function", "function": {"name": "run"}}]}, "tools", "twice"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom", "tools[0].custom"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "code": 1}}]}, "tools[0].custom", "code"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "format": {"type": "x"}}}]}, "tools[0].custom", "type"),
        ({"tools": [{"type": "custom", "custom": {**RUN, "format": {"type": "grammar", **REGEX, "syntax": "lark"}}}]},
         "tools[0].custom.format", "only 'regex'"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "other"}}}, "tool_choice", "tools has add, run"),
        ({"custom_tools": ["add"]}, "custom_tools", "did you mean tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "run"}}]}]},
         "messages[0].tool_calls[0].custom", "input"),
    ],
)  # fmt: skip
def test_contradictory_fields_are_refused(start, fields, param, words):
    response = start().ask("POST", "/v1/chat/completions", BODY | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"], error


def test_the_internal_field_is_refused_in_a_body(start):
    body = {key: value for key, value in BODY.items() if key != "tools"} | {"tools": [ADD]}
    response = start().ask("POST", "/v1/chat/completions", body | {"custom_tools": ["add"]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "custom_tools")


FLAT = [
    {"type": "custom", **RUN},
    {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": None},
]


def test_a_response_has_calls_of_custom_tools(start):
    server = start()
    answer = respond(server, tools=FLAT)
    first, _, last = answer["output"]
    assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "run", INPUT)
    assert first["id"].startswith("ctc_")
    assert last["input"] == "2"
    assert prompt(server) == prompt_of_chat(start)
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in answer["output"]
    ]
    again = [{"role": "user", "content": "hi"}, *answer["output"], *results]
    respond(server, again, tools=FLAT)
    assert "[run" in prompt(server)


def prompt_of_chat(start) -> str:
    server = start()
    server.chat(tools=BODY["tools"])
    return prompt(server)


def test_a_response_streams_the_text(start):
    events = response_stream(start(), tools=FLAT)
    Response.model_validate(events[-1]["response"], strict=True)
    pieces = [event for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    done = [event["input"] for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done == [INPUT, "2"]
    assert len(pieces) > 10
    assert "".join(piece["delta"] for piece in pieces) == "".join(done)
    kinds = [event["type"] for event in events]
    for before, after in pairwise(kinds):
        if before == "response.custom_tool_call_input.done":
            assert after == "response.output_item.done"
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "custom_tool_call",
        "function_call",
        "custom_tool_call",
    ]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "name": "run"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "run"}]},
    ],
)
def test_a_response_can_be_forced_to_call_a_custom_tool(start, choice):
    server = start(call("run", {"input": "1"}))
    respond(server, tools=FLAT, tool_choice=choice)
    assert '"add"' not in schema_of(server).replace("\\", "")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [FLAT[0], FLAT[0]]}, "tools", "twice"),
        ({"tools": [{**FLAT[0], "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]},
         "tools[0].format", "only 'regex'"),
        ({"input": [{"type": "custom_tool_call_output", "call_id": "c", "output": "x"}]},
         "input[0].call_id", "custom_tool_call"),
    ],
)  # fmt: skip
def test_a_response_refuses_invalid_custom_tools(start, fields, param, words):
    error = refusal(start(), **fields)
    assert error["param"] == param, error
    assert words in error["message"]
