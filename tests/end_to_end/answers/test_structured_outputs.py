"""Structured outputs of real servers: valid at any temperature, with the same bytes alone and through kills."""

import json
import random
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import jsonschema_rs
import pytest

from paged_serve import Client, InvalidRequest, SamplingParams, StructuredOutputsParams
from paged_serve.protocol.messages.structured_outputs import Grammar

from ..serving import Server, serving

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["town", "village"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
        "mayor": {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]},
    },
    "required": ["city", "kind", "sizes", "mayor"],
    "additionalProperties": False,
}
COMPACT = {"json": CITY, "disable_any_whitespace": True}
FORMS = [
    COMPACT,
    {"regex": r"[A-Z][a-z]{2,8}, [0-9]{4}"},
    {"choice": ["yes", "no", "perhaps, but not today"]},
    {"grammar": 'root ::= "(" item ("," item)* ")"\nitem ::= [a-d]{1,3}'},
    {"structural_tag": {"type": "structural_tag", "format": {
        "type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{3,5}"}, "end": "</n>"}}},
]  # fmt: skip
MATCHES = [
    lambda text: jsonschema_rs.is_valid(CITY, json.loads(text)),
    lambda text: re.fullmatch(FORMS[1]["regex"], text),
    lambda text: text in FORMS[2]["choice"],
    lambda text: re.fullmatch(r"\([a-d]{1,3}(,[a-d]{1,3})*\)", text),
    lambda text: re.fullmatch("<n>[0-9]{3,5}</n>", text),
]


CALL = {"type": "object", "properties": {"place": {"enum": ["here", "there"]}}, "required": ["place"]}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {**CALL, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "wait", "parameters": {"type": "object", "additionalProperties": False}}},
]


ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "name": "wait"}]},
}
PARAMETERS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}


def request(number: int) -> tuple[str, dict]:
    """Every seventh request is a chat that must call tools; another seventh asks for several JSON answers."""
    rng = random.Random(number)
    body = {"max_tokens": 160, "seed": number, "temperature": rng.choice([0.7, 1.5])}
    if rng.random() < 0.3:
        body["repetition_penalty"] = 1.1
    kind = number % (len(FORMS) + 2)
    if kind < len(FORMS):
        body["n"] = rng.choice([1, 1, 2])
        return "/v1/completions", {**body, "prompt": f"Item {number}: ", "structured_outputs": FORMS[kind]}
    body["messages"] = [{"role": "user", "content": f"Look around, {number}."}]
    if kind == len(FORMS):
        return "/v1/chat/completions", {**body, "tools": TOOLS, "tool_choice": rng.choice(["required", ALLOWED])}
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    return "/v1/chat/completions", {**body, "n": 2, "response_format": schema}


def ask(server: Server, number: int) -> list[tuple[str, str]]:
    """(text, or calls as JSON; finish reason) of each choice."""
    status, answer = server.post(*request(number))
    assert status == 200, answer
    return [(_output(choice), choice["finish_reason"]) for choice in answer["choices"]]


def _output(choice: dict) -> str:
    if "text" in choice:
        return choice["text"]
    calls = choice["message"].get("tool_calls")
    return json.dumps([call["function"] for call in calls]) if calls else choice["message"]["content"]


def check_form(number: int, text: str, reason: str) -> None:
    kind = number % (len(FORMS) + 2)
    if reason == "length":
        return
    assert reason == ("tool_calls" if kind == len(FORMS) else "stop")
    if kind == len(FORMS):
        calls = json.loads(text)
        assert calls
        for call in calls:
            assert jsonschema_rs.is_valid(PARAMETERS[call["name"]], json.loads(call["arguments"]))
    else:
        assert MATCHES[kind if kind < len(FORMS) else 0](text), (number, text)


# Two ranks lose a worker in plugins/test_served.py.
@pytest.mark.parametrize(("num_requests", "ranks"), [(14, "1"), pytest.param(1000, "2", marks=pytest.mark.nightly)])
def test_outputs_have_their_form_and_the_bytes_that_they_have_alone(num_requests, ranks):
    """Few rows and a small cache cause preemption, ranks share a core, and a worker is killed."""
    with serving("--tp", ranks, "--max-num-seqs", "6", "--num-blocks", "40", "--max-restarts", "1000") as server:
        alone = [ask(server, number) for number in range(num_requests)]
        ended = [reason != "length" for choices in alone for _, reason in choices]
        assert sum(ended) > 0.6 * len(ended)
        for number, choices in enumerate(alone):
            for choice in choices:
                check_form(number, *choice)
        with ThreadPoolExecutor(16) as clients:
            together = [clients.submit(ask, server, number) for number in range(num_requests)]
            together[num_requests // 2].result(120)
            random.Random(1).choice(server.children("workers")).send_signal(signal.SIGKILL)
            assert [each.result(120) for each in together] == alone


def chat(server: Server, **more) -> dict:
    body = {"messages": [{"role": "user", "content": "Look around."}], "max_tokens": 200, "seed": 5, **more}
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]


@pytest.mark.parametrize(
    ("choice", "parallel", "names", "reason"),
    [
        ("required", True, {"look", "wait"}, "tool_calls"),
        ("required", False, {"look", "wait"}, "tool_calls"),
        ({"type": "function", "function": {"name": "look"}}, True, {"look"}, "stop"),
        (ALLOWED, False, {"wait"}, "tool_calls"),
    ],
)  # fmt: skip
def test_a_forced_call_is_one_of_its_tool(server, choice, parallel, names, reason):
    for seed in range(4):
        found = chat(server, tools=TOOLS, tool_choice=choice, parallel_tool_calls=parallel, seed=seed, temperature=1.3)
        if found["finish_reason"] == "length":
            continue
        calls = found["message"]["tool_calls"]
        assert found["finish_reason"] == reason
        assert not found["message"]["content"]
        assert len(calls) == 1 or parallel
        for call in calls:
            assert call["function"]["name"] in names
            arguments = json.loads(call["function"]["arguments"])
            assert jsonschema_rs.is_valid(PARAMETERS[call["function"]["name"]], arguments)


def test_a_strict_tool_binds_its_arguments_when_the_model_calls_it(server):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    question = {"messages": [{"role": "user", "content": "What is the weather in Paris?"}]}
    for seed in range(4):
        found = chat(server, **question, tools=strict, temperature=1.0, seed=seed)
        for call in found["message"].get("tool_calls", []):
            assert jsonschema_rs.is_valid(CALL, json.loads(call["function"]["arguments"]))


def test_response_format_is_the_same_as_structured_outputs(server):
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    named, plain = chat(server, response_format=schema), chat(server, structured_outputs={"json": CITY})
    assert named == plain
    check_form(0, named["message"]["content"], named["finish_reason"])


# offline/test_llm_chat.py has LLM's text.
def test_the_client_library_gives_the_same_text(server):
    form = StructuredOutputsParams(**COMPACT)
    params = SamplingParams(max_tokens=160, seed=3, temperature=1.0, structured_outputs=form)
    body = {"prompt": "A city: ", "max_tokens": 160, "seed": 3, "temperature": 1.0, "structured_outputs": COMPACT}
    text = server.post("/v1/completions", body)[1]["choices"][0]["text"]
    assert jsonschema_rs.is_valid(CITY, json.loads(text))
    with Client.connect(server.run_dir) as client:
        ids = server.post("/tokenize", {"prompt": "A city: "})[1]["tokens"]
        tokens = [token for delta in client.submit(ids, params) for token in delta.token_ids]
        assert server.post("/detokenize", {"tokens": tokens})[1]["prompt"].startswith(text)
        broken = SamplingParams(max_tokens=9, grammar=Grammar("nonsense"))
        with pytest.raises(InvalidRequest, match="Expected token") as refusal:
            list(client.submit(ids, broken))
        assert refusal.value.param == "structured_outputs"
