"""`functions` and `function_call`, the older form of tools, streamed and whole."""

import json

import msgspec
import pytest

from ...http_server import Server

FUNCTION = {"name": "sum", "description": "adds", "parameters": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "sum", "arguments": {"a": 1,  "b": "é"}}\n</tool_call>'
BODY = {"messages": [{"role": "user", "content": "x"}], "functions": [FUNCTION]}


def test_a_call_is_a_function_call(folder):
    choice = Server(folder, CALL).chat(**BODY)["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "sum", "arguments": '{"a": 1,  "b": "é"}'},
    }
    assert choice["finish_reason"] == "function_call"


def test_its_arguments_are_streamed(folder):
    chunks = Server(folder, CALL).stream("/v1/chat/completions", BODY)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    first, *more = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert first["name"] == "sum"
    assert len(more) > 10
    assert not any("name" in each for each in more)
    assert "".join(each["arguments"] for each in (first, *more)) == '{"a": 1,  "b": "é"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    assert not any("tool_calls" in delta for delta in deltas)


def test_the_template_gets_functions_as_tools_unchanged(folder, tmp_path):
    (tmp_path / "prints.jinja").write_text("{% for t in tools %}{{ t | tojson }}{% endfor %}")
    server = Server(folder, options={"chat_template": str(tmp_path / "prints.jinja")})
    odd = {"parameters": {"type": "object"}, "name": "f"}
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
    server.chat(**(BODY | {"functions": [odd], "function_call": None}))
    shown = server.tokenizer.decode(server.engine.requests[0].prompt_token_ids)
    assert shown == json.dumps({"type": "function", "function": odd})


@pytest.mark.parametrize(("choice", "is_free"), [("auto", True), ({"name": "sum"}, False), ("none", None)])
def test_an_output_has_at_most_one_call(folder, choice, is_free):
    """The test checks the grammar, which the fake engine does not apply."""
    server = Server(folder, CALL)
    answer = server.chat(**BODY, function_call=choice)["choices"][0]
    grammar = server.engine.requests[0].params.grammar
    assert (grammar is None) == (is_free is None)
    if is_free is None:
        assert answer["message"] == {"role": "assistant", "content": CALL}
    else:
        assert "function_call" in answer["message"]
        assert answer["finish_reason"] == ("function_call" if is_free else "stop")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"function_call": {"name": "other"}}, "function_call", "functions has sum"),
        ({"function_call": "always"}, "function_call", "'none', 'auto'"),
        ({"function_call": {"name": "sum", "x": 1}}, "function_call", "'none', 'auto'"),
        ({"functions": [], "function_call": "auto"}, "function_call", "there are no functions"),
        ({"tools": [{"type": "function", "function": FUNCTION}]}, "tools", "functions and tools"),
        ({"tool_choice": "auto"}, "tool_choice", "functions and tool_choice"),
        ({"functions": [{"name": "sum", "code": "x"}]}, "functions[0].code", "code"),
    ],
)
def test_contradictory_fields_are_refused(folder, fields, param, words):
    response = Server(folder).ask("POST", "/v1/chat/completions", BODY | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]
