"""Tools with defer_loading, as Claude Code sends them: the model gets them after a search by the client."""

from ...http_server import Server
from .anthropic_messages import ASK, message, prompt, refusal, roomy

SCHEMA = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "WebFetch", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "ToolSearch", "input_schema": SCHEMA},
    {"name": "DeferredToolPlaceholder", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "Write", "input_schema": SCHEMA, "defer_loading": False},
]
SEARCH = {"type": "tool_use", "id": "c1", "name": "ToolSearch", "input": {"query": "select:Gone,WebFetch"}}
FOUND = [
    {"type": "tool_reference", "tool_name": "Gone"},
    {"type": "tool_reference", "tool_name": "WebFetch", "cache_control": None},
]


def searched(result: list[dict]) -> list[dict]:
    """A conversation whose tool search had this result."""
    return [
        {"role": "user", "content": "Fetch it."},
        {"role": "assistant", "content": [SEARCH]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": result}]},
    ]


def test_a_deferred_tool_is_left_out_until_a_search_finds_it(folder):
    server = roomy(Server(folder))
    message(server, tools=TOOLS)
    assert prompt(server) == "<user>hiToolSearch,Write<assistant>"
    message(server, tools=TOOLS, messages=searched(FOUND))
    assert prompt(server).endswith(
        "<tool>Found the tool Gone.\nFound the tool WebFetch.ToolSearch,Write,WebFetch<assistant>"
    )


def test_a_search_without_a_result_loads_nothing(folder):
    server = roomy(Server(folder))
    message(server, tools=TOOLS, messages=searched([{"type": "text", "text": "No tool was found."}]))
    assert prompt(server).endswith("<tool>No tool was found.ToolSearch,Write<assistant>")


def test_the_token_count_is_that_of_the_loaded_tools(folder):
    server = roomy(Server(folder))
    asked = {"tools": TOOLS, "messages": searched(FOUND)}
    message(server, **asked)
    counted = server.good("/v1/messages/count_tokens", {"model": ASK["model"], **asked})
    assert counted == {"input_tokens": len(server.engine.requests[0].prompt_token_ids)}


def test_a_tool_that_is_not_loaded_cannot_be_forced(folder):
    choice = {"type": "tool", "name": "WebFetch"}
    refused = refusal(Server(folder), tools=TOOLS, tool_choice=choice)
    assert refused["message"] == "tool_choice.name is 'WebFetch'; tools has ToolSearch, Write"
