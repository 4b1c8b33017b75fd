"""A table of bad bodies: each gets its status and an error that names the field."""

import json

import msgspec
import pytest

from ..http_server import Server

C, H, T, D = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
USER = {"role": "user", "content": "x"}
CHAT = {"messages": [USER]}
DEEP = b'{"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f","parameters":' + b'{"a":' * 20000


@pytest.fixture(scope="module")
def server(folder):
    return Server(folder)


def completion(**fields: object) -> dict:
    return {"prompt": "x"} | fields


def chat(**fields: object) -> dict:
    return CHAT | fields


def deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def tool(parameters: object) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def called(arguments: object) -> dict:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


# (path, body, param, part of the message)
BAD = [
    (H, chat(chat_template_kwargs={"self": 1}), "chat_template_kwargs", "cannot set 'self'"),
    (C, b"", None, "not valid JSON"),
    (C, b"{", None, "not valid JSON"),
    (C, b"\xff", None, "not valid JSON"),
    (C, b'{"prompt": "\xff"}', None, "not UTF-8"),
    (C, b'{"prompt": "\\ud800"}', None, "not valid JSON"),
    (C, b"[]", None, "expected object, got array"),
    (C, b'"x"', None, "expected object"),
    (C, b"[" * 100000, None, "expected object"),
    (C, b'{"prompt": [' + b"[]," * 250000 + b"[]]}", None, "more than 100000 lists"),
    (C, b'{"prompt": ["' + b"x" * 300000 + b'", 1.5]}', "prompt[1]", "prompt[1]: expected"),
    (C, completion(n=1.5), "n", "n is 1.5: expected int, got float"),
    (C, completion(prompt=[1.0, 2.5]), "prompt[1]", "prompt[1] is 2.5: expected"),
    (C, completion(seed=1e30), "seed", "seed is 1e30: expected int"),
    (C, completion(n=1000.0), "n", "n is 1000.0: expected int <= 128"),
    (C, b'{"' + b"k" * 300000 + b'": 1}', "k" * 200, "not a known field"),
    (C, b'{"prompt": NaN}', None, "not valid JSON"),
    (H, DEEP, None, "nested too deeply"),
    (C, {}, "prompt", "prompt is required"),
    (C, {"prompt": None}, "prompt", "prompt is null"),
    (C, {"prompt": 5}, "prompt", "prompt is 5"),
    (C, {"prompt": ""}, "prompt", "prompt is empty"),
    (C, {"prompt": []}, "prompt", "prompt is []"),
    (C, {"prompt": [[]]}, "prompt", "prompt is empty"),
    (C, {"prompt": ["a", ""]}, "prompt", "prompt is empty"),
    (C, {"prompt": ["a", 1]}, "prompt", "mixes"),
    (C, {"prompt": [1, [2]]}, "prompt", "mixes"),
    (C, {"prompt": [[1, "a"]]}, "prompt[0][1]", "expected int, got str"),
    (C, {"prompt": [True]}, "prompt[0]", "got bool"),
    (C, {"prompt": [-1]}, "prompt[0]", "expected int >= 0"),
    (C, {"prompt": [2**31]}, "prompt[0]", "expected int <= 2147483647"),
    (C, {"prompt": [5, 400]}, "prompt", "token 400; the vocabulary is 0..399"),
    (C, {"prompt": ["a"] * 257}, "prompt", "at most 256"),
    (C, {"prompt": [1] * 1_500_000}, "prompt", "the request has 1500000 in the prompt"),
    (C, {"prompt": [1, "a"] * 500_000}, "prompt", "the request has 1000000 in the prompt"),
    (C, completion(allowed_token_ids=[1] * 300_000), "allowed_token_ids", "length <= 262144"),
    (
        C,
        completion(prompt=["a", "b"], allowed_token_ids=[1] * 200_000),
        "allowed_token_ids",
        "2 prompts; a request may have at most 262",
    ),
    (
        C,
        completion(prompt=["a"] * 256, bad_words=["xyz"[i] * 200 for i in range(3)]),
        "bad_words",
        "for each of 256 prompts",
    ),
    (C, completion(prompt=["a" * 60] * 128, n=2, prompt_logprobs=20), "prompt_logprobs", "322560 log-prob"),
    (C, {"prompt": ["a"] * 100, "n": 3}, "n", "300 sequences; a request may have at most 256"),
    (C, {"prompt": "x" * 64}, "prompt", "maximum context length is 64 tokens; the request has 64 in the prompt"),
    (C, {"prompt": "x" * 100000}, "prompt", "maximum context length is 64 tokens"),
    (C, completion(max_tokens=64), "max_tokens", "the request has 1 in the prompt and asks for 64 more"),
    (C, completion(max_tokens=0), "max_tokens", "only a completion with echo"),
    (C, completion(max_tokens=-1), "max_tokens", "max_tokens is -1: expected int >= 0"),
    (C, completion(max_tokens=1.5), "max_tokens", "max_tokens is 1.5: expected int, got float"),
    (C, completion(max_tokens="5"), "max_tokens", 'max_tokens is "5": expected int, got str'),
    (C, completion(max_tokens=2**40), "max_tokens", "expected int <= 2147483647"),
    (C, completion(n=0), "n", "n is 0: expected int >= 1"),
    (C, completion(n=129), "n", "n is 129: expected int <= 128"),
    (C, completion(n=True), "n", "expected int, got bool"),
    (C, completion(temperature=-0.1), "temperature", "temperature is -0.1: expected float >= 0"),
    (C, completion(temperature=2.1), "temperature", "expected float <= 2.0"),
    (C, completion(temperature="hot"), "temperature", 'temperature is "hot"'),
    (C, b'{"prompt": "x", "temperature": 1e999}', "temperature", "number out of range"),
    (C, completion(top_p=0), "top_p", "expected float > 0"),
    (C, completion(top_p=1.01), "top_p", "expected float <= 1.0"),
    (C, completion(top_k=-2), "top_k", "expected int >= -1"),
    (C, completion(min_p=1.5), "min_p", "expected float <= 1.0"),
    (C, completion(presence_penalty=3), "presence_penalty", "expected float <= 2.0"),
    (C, completion(frequency_penalty=-3), "frequency_penalty", "expected float >= -2.0"),
    (C, completion(repetition_penalty=0), "repetition_penalty", "expected float > 0"),
    (C, completion(seed=-2), "seed", "expected int >= -1"),
    (C, completion(seed=2**63), "seed", "seed is 9223372036854775808"),
    (C, completion(seed=10**40), "seed", "seed"),
    (C, completion(min_tokens=-1), "min_tokens", "expected int >= 0"),
    (C, completion(min_tokens=9, max_tokens=8), "min_tokens", "above max_tokens=8"),
    (C, completion(stop=""), "stop", "length >= 1"),
    (C, completion(stop=["a", ""]), "stop[1]", "length >= 1"),
    (C, completion(stop=["a"] * 17), "stop", "length <= 16"),
    (C, completion(stop="a" * 257), "stop", "length <= 256"),
    (C, completion(stop=[1]), "stop[0]", "expected str, got int"),
    (C, completion(stop_token_ids=[-1]), "stop_token_ids[0]", "expected int >= 0"),
    (C, completion(stop_token_ids=[400]), "stop_token_ids", "token 400"),
    (C, completion(bad_words=[""]), "bad_words[0]", "length >= 1"),
    (C, completion(bad_words=["a"] * 257), "bad_words", "length <= 256"),
    (C, completion(logit_bias={"x": 1}), "logit_bias", "expected int, got str"),
    (C, completion(logit_bias={"5": 101}), "logit_bias", "expected float <= 100.0"),
    (C, completion(logit_bias={"400": 1}), "logit_bias", "token 400"),
    (C, completion(logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "length <= 1024"),
    (C, completion(allowed_token_ids=[]), "allowed_token_ids", "length >= 1"),
    (C, completion(allowed_token_ids=[400]), "allowed_token_ids", "token 400"),
    (C, completion(logprobs=-2), "logprobs", "expected int >= -1"),
    (C, completion(logprobs=21), "logprobs", "logprobs is 21; this server returns at most 20"),
    (C, completion(logprobs=True), "logprobs", "got bool"),
    (C, completion(prompt_logprobs=21), "prompt_logprobs", "at most 20"),
    (C, completion(prompt_logprobs=1, stream=True), "prompt_logprobs", "cannot be streamed"),
    (C, completion(stream="yes"), "stream", "expected bool"),
    (C, completion(stream_options={"include_usage": True}), "stream_options", "needs stream"),
    (
        C,
        completion(stream=True, stream_options={"include_usages": True}),
        "stream_options.include_usages",
        "did you mean",
    ),
    (C, completion(priority=2**31), "priority", "expected int <= 2147483647"),
    (C, completion(cache_salt="s" * 129), "cache_salt", "length <= 128"),
    (C, completion(request_id="a b"), "request_id", "matching regex"),
    (C, completion(user=5), "user", "expected str"),
    (C, completion(temprature=1), "temprature", "did you mean 'temperature'?"),
    (C, completion(max_token=1), "max_token", "did you mean 'max_tokens'?"),
    (C, completion(messages=[USER]), "messages", "not supported; use /v1/chat/completions"),
    (C, completion(xyzzy=1), "xyzzy", "not a known field"),
    (C, completion(best_of=2, n=3), "best_of", "best_of must be at least n"),
    (C, completion(suffix="s"), "suffix", "no fill-in-the-middle tokens"),
    (C, completion(prompt_embeds="AA"), "prompt_embeds", "not supported"),
    (C, completion(use_beam_search=True, stop="x"), "stop", "no effect with use_beam_search"),
    (C, completion(guided_json={}), "guided_json", "not supported"),
    (C, completion(**{f"x{i}": i for i in range(9)}), "x0", "not a known field"),
    (C, completion(**{f"x{i}": i for i in range(120_000)}), None, "more than 100000 lists, objects and fields"),
    (C, b'{"prompt": "x", "' + b"k" * 3_000_000 + b'": 1}', "k" * 200, "not a known field"),
    (
        C,
        {"prompt": [5] * 400_000, "best_of": 1, "suffix": None, "new": None, "store": False},
        "prompt",
        "400000 in the prompt",
    ),
    (C, {"prompt": [[5] * 60] * 250, "n": 128, "echo": True, "temperature": 1}, "n", "at most 256"),
    (H, chat(tools=[tool(deep(65))]), "tools[0].function.parameters", "more than 64 levels deep"),
    (H, chat(messages=[called(deep(65))]), "messages[0].tool_calls", "more than 64 levels deep"),
    (H, chat(messages=[called(json.dumps(deep(65)))]), "messages[0].tool_calls", "more than 64 levels deep"),
    (H, chat(messages=[called('{"a":[' + "[]," * 30_000 + "1]}")] * 4), None, "more than 100000 lists"),
    (T, {"prompt": "a b " * 80_000}, "prompt", "tokens or more; at most 262144"),
    (D, {"tokens": [1] * 262_145}, "tokens", "262145 tokens or more; at most 262144"),
    (H, {}, "messages", "messages is required"),
    (H, {"messages": []}, "messages", "length >= 1"),
    (H, {"messages": "hi"}, "messages", "expected array, got str"),
    (H, {"messages": [5]}, "messages[0]", "expected object, got int"),
    (H, {"messages": [{"content": "x"}]}, "messages[0].role", "messages[0].role is required"),
    (H, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", '"robot": expected one of'),
    (H, {"messages": [{"role": "user"}]}, "messages[0].content", "required for the role 'user'"),
    (H, chat(max_tokens=5, max_completion_tokens=6), "max_completion_tokens", "give one"),
    (H, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "content is 5"),
    (H, {"messages": [{"role": "user", "contnt": "x"}]}, "messages[0].contnt", "did you mean 'content'?"),
    (
        H,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        "messages[0].content[0].type",
        "expected one of text",
    ),
    (H, {"messages": [{"role": "user", "content": "x" * 70}]}, "messages", "maximum context length is 64"),
    (H, chat(max_tokens=0), "max_tokens", "expected int >= 1"),
    (H, chat(max_completion_tokens=64), "max_completion_tokens", "asks for 64 more"),
    (H, chat(top_logprobs=2), "top_logprobs", "needs logprobs"),
    (H, chat(logprobs=True, top_logprobs=21), "top_logprobs", "at most 20"),
    (H, chat(logprobs=5), "logprobs", "expected bool"),
    (H, chat(echo=True), "echo", "needs continue_final_message"),
    (H, chat(response_format={"type": "json_schema"}), "response_format", "needs json_schema"),
    (H, chat(response_format={"type": "json_schema", "json_schema": {}}), "response_format.json_schema.name", "name"),
    (H, chat(response_format={"type": "json_object", "triggers": []}), "response_format", "another type"),
    (H, chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), "response_format", "both"),
    (H, chat(structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs", "exactly one"),
    (H, chat(structured_outputs={"regex": "("}), "structured_outputs", "unclosed group"),
    (H, chat(structured_outputs={"json": {"contains": {}}}), "structured_outputs", "at /contains"),
    (H, chat(structured_outputs={"regex": "a"}, ignore_eos=True), "ignore_eos", "contradicts"),
    (H, chat(structured_outputs={"regex": "a"}, min_tokens=3), "min_tokens", "contradicts"),
    (H, chat(tool_choice="required"), "tool_choice", "no tools"),
    (C, {"prompt": "x", "guided_regex": "a"}, "guided_regex", 'use structured_outputs: {"regex": …}'),
    (H, chat(tool_choice="must"), "tool_choice", "must be 'none'"),
    (H, chat(tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice", "tools has none"),
    (H, chat(tool_choice={"type": "function"}), "tool_choice", "an object is"),
    (H, chat(tool_choice="auto"), "tool_choice", "no tools"),
    (H, chat(tools=[{"type": "function"}]), "tools[0].function", "is required"),
    (H, chat(tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name", "length >= 1"),
    (H, chat(functions=[{"name": "f"}], function_call="g"), "function_call", "must be 'none', 'auto'"),
    (H, chat(chat_template="{{ 1 }}"), "chat_template", "not supported"),
    (H, chat(chat_template_kwargs={"tokenize": True}), "chat_template_kwargs", "cannot set 'tokenize'"),
    (H, chat(chat_template_kwargs={"messages": "x"}), "chat_template_kwargs", "cannot set 'messages'"),
    (H, chat(chat_template_kwargs={"a": [1]}), "chat_template_kwargs", "got array"),
    (H, chat(chat_template_kwargs={"a b": 1}), "chat_template_kwargs", "cannot set 'a b'"),
    (H, chat(chat_template_kwargs={str(i): 1 for i in range(17)}), "chat_template_kwargs", "length <= 16"),
    (H, chat(modalities=["audio"]), "modalities", "not supported"),
    (H, chat(reasoning_effort="huge"), "reasoning_effort", "huge"),
    (H, chat(audio={"voice": "alloy"}), "audio", "not supported"),
    (T, {}, "prompt", "prompt is required"),
    (T, {"prompt": 5}, "prompt", "prompt is 5"),
    (T, {"prompt": "x", "add_special": True}, "add_special", "did you mean 'add_special_tokens'?"),
    (T, {"messages": []}, "messages", "length >= 1"),
    (D, {}, "tokens", "tokens is required"),
    (D, {"tokens": "x"}, "tokens", "expected array"),
    (D, {"tokens": [-1]}, "tokens[0]", "expected int >= 0"),
    (D, {"tokens": [2**31]}, "tokens[0]", "expected int <= 2147483647"),
]


@pytest.mark.parametrize(("path", "body", "param", "part"), BAD)
def test_a_bad_body_is_refused_by_name(server, path, body, param, part):
    response = server.ask("POST", path, body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["type"], error["param"]) == (400, "BadRequestError", param)
    assert part in error["message"]
    assert len(error["message"]) < 600
    assert not server.engine.requests
    assert server.admission.num_active == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", C, completion(model="other"), 404, "model"),
        ("POST", H, chat(model="other"), 404, "model"),
        ("POST", T, {"prompt": "x", "model": "other"}, 404, "model"),
        ("POST", D, {"tokens": [], "model": "other"}, 404, "model"),
        ("GET", "/v1/models/other", None, 404, "model"),
        ("GET", "/v1/nothing", None, 404, None),
        ("GET", "/page.html", None, 404, None),
        ("GET", "/v1/models/", None, 404, "model"),
        ("GET", C, None, 405, None),
        ("DELETE", "/v1/models", None, 405, None),
        ("POST", "/metrics", b"", 404, None),
        ("OPTIONS", C, None, 405, None),
        ("TRACE", "/live", None, 405, None),
        ("POST", C, b"x" * ((4 << 20) + 1), 413, None),
    ],
)
def test_other_refusals_have_the_same_form(server, method, path, body, status, param):
    response = server.ask(method, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, status, param)


def test_brackets_and_colons_in_strings_do_not_count_as_structure(server):
    text = '[{":\\' * 30_000
    answer = server.ask("POST", T, {"prompt": text})
    assert answer.json()["count"] == len(text)


def test_the_allowed_nesting_depth_is_accepted(server):
    fresh = Server(server.folder)
    fresh.engine.limits = msgspec.structs.replace(fresh.engine.limits, max_model_len=10_000)
    fresh.good(H, chat(tools=[tool(deep(64))], messages=[called(deep(64)), called(json.dumps(deep(64))), USER]))


@pytest.mark.parametrize(
    ("path", "begin", "end"),
    [
        (H, '{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"custom","custom":{"name":"f","a":', "}}]}"),
        (H, '{"messages":[{"role":"user","content":"x"}],"tool_choice":{"type":"custom","a":', "}}"),
        (H, '{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_object","schema":', "}}"),
        ("/v1/responses", '{"input":"x","tools":[{"type":"function","name":"f","parameters":', "}]}"),
        ("/v1/responses", '{"input":"x","tool_choice":{"type":"allowed_tools","mode":"auto","tools":[', "]}}"),
        ("/v1/responses", '{"input":[{"role":"user","content":"x"},', "]}"),
        ("/v1/messages", '{"model":"m","max_tokens":3,"messages":[],"tools":[{"name":"f","input_schema":', "}]}"),
        ("/v1/messages/count_tokens", '{"model":"m","messages":[],"tools":[{"name":"f","input_schema":', "}]}"),
        ("/inference/v1/generate", '{"token_ids":[1],"sampling_params":{"a":', "}}"),
    ],
)  # fmt: skip
def test_no_depth_of_a_body_fails_the_server(server, path, begin, end):
    """The result of parsing may be nested slightly deeper than the body."""
    for levels in (*range(900, 970, 10), *range(970, 1005), 100_000):
        response = server.ask("POST", path, (begin + '{"a":' * levels + "1" + "}" * levels + end).encode())
        assert response.status_code == 400 or (response.status_code == 200 and "response_format" in begin), levels


def test_allowed_tools_within_allowed_tools_are_refused(server):
    flat, nested = '{"type":"custom","name":"x"}', '{"type":"custom","custom":{"name":"x"}}'
    for levels in range(1, 345):
        flat = f'{{"type":"allowed_tools","mode":"auto","tools":[{flat}]}}'
        nested = f'{{"type":"allowed_tools","allowed_tools":{{"mode":"auto","tools":[{nested}]}}}}'
        if levels > 2 and levels % 19:
            continue
        for path, given, choice in (
            ("/v1/responses", '"input":"x"', flat),
            (H, '"messages":[{"role":"user"}]', nested),
        ):
            response = server.ask("POST", path, f'{{{given},"tool_choice":{choice}}}'.encode())
            assert response.status_code == 400, (levels, response.text)


def test_echoed_prompt_text_is_bounded_over_all_choices(server):
    fresh = Server(server.folder)
    fresh.engine.limits = msgspec.structs.replace(fresh.engine.limits, max_model_len=100_000)
    many = {"prompt": [5] * 9000, "n": 128, "temperature": 1, "max_tokens": 1}
    for path, body, field in (
        (C, many | {"echo": True}, "echo"),
        (C, many | {"return_token_ids": True}, "return_token_ids"),
        (H, chat(messages=[USER | {"content": "x" * 9000}], n=128, return_token_ids=True), "return_token_ids"),
    ):
        answer = fresh.ask("POST", path, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert "at most 1048576" in answer.json()["error"]["message"]
    assert not fresh.engine.requests
    fresh.good(C, many)


HARMLESS = {
    "service_tier": "auto",
    "store": False,
    "best_of": 1,
    "suffix": None,
    "structured_outputs": None,
    "logit_bias": None,
    "metadata": None,
}


def test_an_integer_may_be_written_with_a_decimal_point(server):
    fresh = Server(server.folder)
    fresh.complete(prompt=[65.0, 66], max_tokens=2.0, n=1e0, stop_token_ids=[7.0], stream_options=None, best_of=1)
    request = fresh.engine.requests[0]
    assert (request.prompt_token_ids, request.params.max_tokens, request.params.n) == ([65, 66], 2, 1)
    assert request.params.stop_token_ids == (7,)
    call = {"index": 0.0, "function": {"name": "f", "arguments": {"x": 1.5}}}
    fresh.good("/v1/chat/completions", chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}]))


def test_meaningless_fields_that_clients_send_are_accepted(server):
    fresh = Server(server.folder)
    assert "warnings" not in fresh.complete(**HARMLESS)
    fresh.good("/v1/chat/completions", chat(safety_identifier="s", prompt_cache_key="k", user="u"))
    assert fresh.ask("POST", C, json.dumps({"prompt": "x"}).encode()).status_code == 200
