"""OpenAI's Responses API over a fake engine: items in, items and their events out."""

import pytest
from openai.types.responses.input_token_count_response import InputTokenCountResponse

from .response_server import OUTPUT, PATH, TOOL, prompt, refusal, respond, stream


def test_a_response_has_items(start):
    answer = respond(start(), tools=[TOOL], instructions="Be brief.", metadata={"a": "b"})
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"] == [{"type": "output_text", "text": "It is", "annotations": [], "logprobs": []}]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "add", '{"a": [2, 2]}')
    assert call["call_id"].startswith("call_")
    assert {item["status"] for item in answer["output"]} == {"completed"}
    assert (answer["status"], answer["incomplete_details"], answer["store"]) == ("completed", None, False)
    assert (answer["instructions"], answer["metadata"]) == ("Be brief.", {"a": "b"})
    assert answer["tools"] == [{**TOOL, "description": None}]
    assert answer["id"].startswith("resp_")


def test_a_stream_has_the_same_items_in_the_official_order(start):
    events = stream(start(), tools=[TOOL])
    kinds = [event["type"].removeprefix("response.") for event in events]
    once = [kind for kind, before in zip(kinds, ["", *kinds], strict=False) if kind != before]
    part = ["content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    assert once == [
        *("created", "in_progress", "output_item.added"),
        *(each.format("reasoning_text") for each in part),
        "output_item.added",
        *(each.format("output_text") for each in part),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    final = events[-1]["response"]
    for kind, item, name in (("reasoning_text", 0, "text"), ("output_text", 1, "text")):
        deltas = [event["delta"] for event in events if event["type"] == f"response.{kind}.delta"]
        assert "".join(deltas) == final["output"][item]["content"][0][name]
        assert len(deltas) > 1
    arguments = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(arguments) == final["output"][2]["arguments"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item["id"], item["status"]) for item in added] == [(item["id"], "in_progress") for item in done]
    whole = respond(start(), tools=[TOOL])
    assert [strip(item) for item in whole["output"]] == [strip(item) for item in final["output"]]
    assert whole["usage"] == final["usage"]


def last_output(server, **fields) -> list[dict]:
    return stream(server, **fields)[-1]["response"]["output"]


def strip(item: dict) -> dict:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


def test_output_items_can_be_sent_back_unchanged(start):
    server = start()
    answered = respond(server, tools=[TOOL])["output"]
    result = {"type": "function_call_output", "call_id": answered[2]["call_id"], "output": "4"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "2 + 2"}]}
    respond(server, [asked, *answered, result], tools=[TOOL], instructions="Add.", reasoning={"effort": "low"})
    assert prompt(server) == '<system>Add.<user>2 + 2<assistant>(Hm.)It is[add{"a": [2, 2]}]<tool>4<assistant>low'


@pytest.mark.parametrize("answered", [lambda server, **fields: respond(server, **fields)["output"], last_output])
def test_reasoning_comes_back_encoded_from_clients_that_keep_only_that(start, answered):
    """As the AI SDK sends it back with `store: false`."""
    server = start()
    reasoning, message, _ = answered(server, tools=[TOOL], include=["reasoning.encrypted_content"])
    assert reasoning["encrypted_content"] == "hidden:SG0u"
    kept = {name: reasoning[name] for name in ("type", "id", "encrypted_content", "summary")}
    respond(server, [kept, message])
    assert prompt(server) == "<assistant>(Hm.)It is<assistant>"
    respond(server, [{**kept, "encrypted_content": "gAAAAABo"}, message])
    assert prompt(server) == "<assistant>It is<assistant>"
    changed = refusal(server, input=[{**kept, "encrypted_content": "hidden:S"}])
    assert changed["message"].startswith("the encoded reasoning of an earlier answer was changed")


def test_a_text_input_is_a_user_message(start):
    server = start("x")
    respond(server, "hi")
    assert prompt(server) == "<user>hi<assistant>"
    respond(server, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "type": "message"}])
    assert prompt(server) == "<user>a<assistant>b<assistant>"


def test_an_output_that_is_cut_off_is_incomplete(start):
    answer = respond(start("abcdef", ends=False), max_output_tokens=3)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert stream(start("abcdef", ends=False), max_output_tokens=3)[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("fields", [{"stop": "2]"}, {}])
def test_a_call_within_which_an_output_stops_is_incomplete(start, fields):
    server = start(OUTPUT if fields else OUTPUT.partition("2]")[0])
    for answer in (respond(server, tools=[TOOL], **fields), stream(server, tools=[TOOL], **fields)[-1]["response"]):
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", None)
        assert [item["status"] for item in answer["output"]] == ["completed", "completed", "incomplete"]
        assert answer["output"][2]["arguments"] == '{"a": [2, '


def test_parameters_are_those_of_a_chat(start):
    server = start('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text = {"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}, "verbosity": "low"}
    fields = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 20, "text": text, "seed": 3}
    answer = respond(server, **fields)
    params = server.engine.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.5, 0.9, 20, 3)
    assert params.grammar is not None
    assert (answer["temperature"], answer["top_p"], answer["text"]) == (0.5, 0.9, text)


def test_logprobs_are_of_the_text(start):
    include = ["message.output_text.logprobs"]
    answer = respond(start("ab"), include=include, top_logprobs=1)
    assert [entry["token"] for entry in answer["output"][0]["content"][0]["logprobs"]][:2] == ["a", "b"]
    deltas = [event for event in stream(start("ab"), include=include) if event["type"].endswith("text.delta")]
    assert deltas[0]["logprobs"][0]["token"] == "a"


@pytest.mark.parametrize("burst", [1, 3, 100])
@pytest.mark.parametrize("per_delta", [1, 2, 5, 100])
@pytest.mark.parametrize(
    ("output", "text"),
    [
        (OUTPUT, "It is"),
        ("<think>it</think>\n\ni <tool_cal is é🎉 text", "i <tool_cal is é🎉 text"),
        (" <<tool_call>x \n", None),
        ("a << b <<<tool_call>", "a << b <<<tool_call>"),
    ],
)
def test_logprobs_are_of_the_tokens_of_the_text_however_these_come(start, output, text, per_delta, burst):
    asked = {"include": ["message.output_text.logprobs"], "tools": [TOOL]}
    server = start(output)
    server.engine.per_delta, server.engine.burst = per_delta, burst
    [message] = [item for item in respond(server, **asked)["output"] if item["type"] == "message"]
    [part] = message["content"]
    written = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"]).decode()
    assert (written, part["text"]) == ((text, text) if text else (part["text"], part["text"]))
    deltas = [event for event in stream(server, **asked) if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == part["logprobs"]


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": "auto", "tools": []}, {"tool_choice": "auto"}, {"client_metadata": {"x-codex-window-id": "a:0"}}],
    ids=str,
)
def test_fields_that_codex_always_sends_change_no_answer(start, fields):
    server = start("four")
    plain, answer = respond(server), respond(server, **fields)
    assert (answer["output"][0]["content"], answer["tools"]) == (plain["output"][0]["content"], [])
    first, second = (request.params for request in server.engine.requests)
    assert (first.seed, first.grammar) == (second.seed, second.grammar)


def test_the_body_of_guidellm_is_accepted_and_its_field_of_vllm_reaches_the_engine(start):
    """As guidellm 0.8.1 measures /v1/responses with a given number of output tokens."""
    server = start("four")
    respond(
        server,
        max_output_tokens=12,
        ignore_eos=True,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
    )
    assert server.engine.requests[-1].params.ignore_eos


def test_vllms_fields_reach_the_engine(start):
    server = start("four")
    fields = {"repetition_penalty": 1.5, "stop": ["r"], "include_stop_str_in_output": True, "logit_bias": {"5": -3}}
    answer = respond(server, **fields, skip_special_tokens=False, priority=2, cache_salt="s")
    request = server.engine.requests[-1]
    params = request.params
    assert (params.repetition_penalty, params.stop, params.logit_bias) == (1.5, ("r",), {5: -3.0})
    assert (params.skip_special_tokens, request.priority, request.cache_salt) == (False, 2, "s")
    assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", "four")
    respond(server, structured_outputs={"choice": ["four"]}, vllm_xargs={"dry_multiplier": 0.5})
    params = server.engine.requests[-1].params
    assert (params.grammar is not None, params.dry.multiplier) == (True, 0.5)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"stop": ["x"] * 17}, "stop", "length <= 16"),
        ({"structured_outputs": {"choise": ["x"]}}, "structured_outputs.choise", "did you mean 'choice'?"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the conversation so far"),
        ({"background": True}, "background", "not stored"),
        ({"truncation": "auto"}, "truncation", "send a shorter one"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not padded"),
        ({"include": ["file_search_call.results"]}, "include", "message.output_text.logprobs"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", "expected one of function"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "needs schema"),
        ({"max_output_tokens": 100_000}, "max_output_tokens", "in the input"),
        ({"input": "x" * 3000}, "input", "input"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id", "the call"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id", "not stored by this server"),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused_with_the_names_of_the_api(start, fields, param, words):
    error = refusal(start(), **fields)
    assert error["param"].startswith(param), error
    assert words in error["message"], error


def test_store_gives_a_warning_if_nothing_is_stored(start):
    assert "store" in respond(start("x"), store=True)["warnings"][0]
    assert "warnings" not in respond(start("x"), store=False)


def test_a_keyed_response_is_answered_again_with_the_same_bytes(start):
    server = start()
    body = {"input": "hi", "stream": True, "tools": [TOOL]}
    first, second = (server.ask("POST", PATH, body, **{"Idempotency-Key": "k"}).text for _ in range(2))
    assert first == second
    assert "response.completed" in first
    assert len(server.engine.requests) == 1


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "none"}, {"stream": True}])
def test_the_counted_tokens_are_those_of_the_response(start, fields):
    server = start("x", template="{{ messages | tojson }}{{ tools | tojson }}")
    given = {"input": [{"role": "user", "content": "hi"}], "instructions": "Be brief.", **fields}
    counted = server.good(f"{PATH}/input_tokens", given)
    InputTokenCountResponse.model_validate(counted, strict=True)
    assert not server.engine.requests
    answer = respond(server, given.pop("input"), **{**given, "stream": False})
    assert counted == {"object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"previous_response_id": "resp_1"}, "previous_response_id"), ({"tools": [{"type": "x"}]}, "tools[0].type")],
)
def test_a_prompt_that_cannot_be_counted_is_refused_as_the_response_would_be(start, fields, param):
    server = start()
    answer = server.ask("POST", f"{PATH}/input_tokens", {"input": "hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert refusal(server, **fields)["param"] == param
