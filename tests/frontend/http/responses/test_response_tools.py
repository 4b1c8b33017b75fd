"""Tools in the Responses API: namespaces, tools that only OpenAI runs, and the fields of each."""

import json

import msgspec
import pytest

from .response_server import PATH, prompt, refusal, respond, stream

LOOKUP = {"type": "function", "name": "lookup", "description": "Looks up.", "parameters": {"type": "object"}}
NOTE = {"type": "custom", "name": "note", "description": "Notes."}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [LOOKUP, NOTE]}
TOTAL = {"type": "function", "name": "total", "parameters": {"type": "object"}}
WEB = {"type": "web_search", "external_web_access": False}
# What Codex 0.171 sends by default, with fewer functions.
CODEX = {
    "tools": [TOTAL, {"type": "namespace", "name": "multi_agent_v1", "description": "Agents.", "tools": [LOOKUP]}, WEB],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "store": False,
}
SHOWN = "{# calls are <tool_call> #}{{ tools | tojson }}"


def call(name: str, arguments: dict) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


def offered(start, *tools: dict) -> list[dict]:
    """The functions that a template gets."""
    server = start("x", template=SHOWN)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=4096)
    server.good(PATH, {"input": "hi", "tools": [*tools]})
    return [tool["function"] for tool in json.loads(prompt(server))]


def chosen(start, choice: dict, *tools: dict) -> str:
    """The grammar of the answer."""
    server = start("x", ends=False)
    server.good(PATH, {"input": "hi", "tools": [*tools], "tool_choice": choice, "max_output_tokens": 1})
    return server.engine.requests[-1].params.grammar.source


def test_the_model_gets_the_tools_of_a_namespace_under_both_names(start):
    lookup, note, total = offered(start, CRM, TOTAL)
    assert [lookup["name"], note["name"], total["name"]] == ["crm__lookup", "crm__note", "total"]
    assert lookup["description"] == "About all tools named crm__…: Customers.\n\nLooks up."
    assert (lookup["parameters"], note["description"]) == ({"type": "object"}, "Notes.")


def test_a_namespace_that_ends_with_the_separator_gets_no_second_one(start):
    assert offered(start, {**CRM, "name": "mcp__crm__"})[0]["name"] == "mcp__crm__lookup"


def test_long_names_are_shortened_to_different_names(start):
    long = [{**CRM, "name": "n" * 127 + end, "tools": [{**LOOKUP, "name": "x" * 128}]} for end in "ab"]
    names = [function["name"] for function in offered(start, *long)]
    assert [len(name) for name in names] == [128, 128]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("output", "kind", "name"),
    [
        (call("crm__lookup", {"a": 1}), "function_call", "lookup"),
        (call("crm__note", {"input": "hi"}), "custom_tool_call", "note"),
    ],
)
def test_a_call_has_its_namespace_and_its_own_name(start, output, kind, name):
    server = start(output)
    [whole] = respond(server, tools=[CRM])["output"]
    assert (whole["type"], whole["namespace"], whole["name"]) == (kind, "crm", name)
    events = stream(server, tools=[CRM])
    streamed = [event["item"] for event in events if event["type"].startswith("response.output_item.")]
    assert {(item["namespace"], item["name"]) for item in streamed} == {("crm", name)}
    assert events[-1]["response"]["tools"] == respond(server, tools=[CRM])["tools"]


def test_a_call_outside_of_namespaces_has_none(start):
    [item] = respond(start(call("total", {})), tools=[CRM, TOTAL])["output"]
    assert "namespace" not in item


def test_a_call_that_is_sent_back_has_the_name_that_the_model_wrote(start):
    server = start(call("crm__lookup", {"a": 1}))
    [item] = respond(server, tools=[CRM])["output"]
    result = {"type": "function_call_output", "call_id": item["call_id"], "name": "lookup", "namespace": "crm"}
    respond(server, [{"role": "user", "content": "?"}, item, {**result, "output": "4"}], tools=[CRM])
    assert prompt(server) == '<user>?<assistant>[crm__lookup{"a": 1}]<tool>4<assistant>'


def test_the_answer_repeats_a_namespace(start):
    [repeated] = respond(start("x"), tools=[CRM])["tools"]
    lookup, note = repeated["tools"]
    assert {**repeated, "tools": [lookup, note]} == {**CRM, "tools": [{**LOOKUP, "strict": None}, NOTE]}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "lookup", "namespace": "crm"},
        {"type": "function", "name": "crm__lookup"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "crm"}]},
    ],
)
def test_a_tool_of_a_namespace_can_be_chosen(start, choice):
    grammar = chosen(start, choice, CRM, TOTAL)
    assert ("crm__lookup" in grammar, "total" in grammar) == (True, False)


def test_what_codex_sends_by_default_is_answered(start):
    server = start(call("multi_agent_v1__lookup", {}))
    answer = respond(server, **CODEX)
    [item] = answer["output"]
    assert (item["namespace"], item["name"]) == ("multi_agent_v1", "lookup")
    assert answer["warnings"] == ["tools: this server cannot run web_search; the model answers without it"]
    assert [tool["type"] for tool in answer["tools"]] == ["function", "namespace"]
    assert stream(server, **CODEX)[-1]["response"]["warnings"] == answer["warnings"]


@pytest.mark.parametrize(
    "kind",
    [
        *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
        *("image_generation", "tool_search"),
    ],
)
def test_a_tool_that_only_openai_runs_is_not_offered_to_the_model(start, kind):
    assert [function["name"] for function in offered(start, {"type": kind, "any": 1}, TOTAL)] == ["total"]


def test_a_conversation_that_began_at_openai_continues_without_its_searches(start):
    server = start("x")
    asked, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes."}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    respond(server, [asked, search, answer, asked], include=["web_search_call.action.sources"])
    assert prompt(server) == "<user>hi<assistant>Yes.<user>hi<assistant>"


def test_allowed_tools_may_name_a_tool_that_only_openai_runs(start):
    allowed = [{"type": "web_search"}, {"type": "function", "name": "total"}]
    assert "total" in chosen(start, {"type": "allowed_tools", "mode": "required", "tools": allowed}, WEB, TOTAL)


@pytest.mark.parametrize(
    "fields",
    [
        {"defer_loading": True},
        {"allowed_callers": ["direct", "programmatic"]},
        {"output_schema": {"type": "object"}},
    ],
)
def test_harmless_fields_of_a_tool_change_no_prompt(start, fields):
    assert offered(start, {**TOTAL, **fields}) == offered(start, TOTAL)
    [repeated] = respond(start("x"), tools=[{**TOTAL, **fields}])["tools"]
    assert repeated == {**TOTAL, "description": None, "strict": None, **fields}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [WEB]}, "tools", "only web_search, which this server cannot run"),
        ({"tools": [WEB, TOTAL], "tool_choice": {"type": "web_search"}}, "tool_choice", "cannot run"),
        ({"tools": [CRM, {**TOTAL, "name": "crm__lookup"}]}, "tools[0].tools[0].name", "rename one"),
        ({"tools": [{**CRM, "tools": [LOOKUP, LOOKUP]}]}, "tools[0].tools[0].name", "rename one"),
        (
            {"tools": [CRM, {**CRM, "name": "b", "tools": [{**TOTAL, "name": str(i)} for i in range(127)]}]},
            "tools",
            "129",
        ),
        ({"tools": [{**TOTAL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers", "add 'direct'"),
        ({"tools": [{**TOTAL, "async": True}]}, "tools[0].async", "next request"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "send 'standard'"),
    ],
)
def test_tools_that_cannot_be_honoured_are_refused(start, fields, param, words):
    error = refusal(start(), **fields)
    assert error["param"] == param, error
    assert words in error["message"], error


def test_a_standard_mode_and_a_limit_of_openais_calls_change_nothing(start):
    answer = respond(start("x"), reasoning={"mode": "standard"}, max_tool_calls=3)
    assert (answer["max_tool_calls"], answer["reasoning"]["mode"]) == (3, "standard")
