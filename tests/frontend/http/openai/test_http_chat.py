"""Chat over a fake engine: messages in, answers and tool calls out, streamed and whole."""

import json

import msgspec
import pytest

from paged_serve.protocol.errors import ConfigError

from ...http_server import Server


def test_a_chat_has_openais_form(folder):
    server = Server(folder, "hello")
    answer = server.chat(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], request_id="r")
    assert answer["id"] == "chatcmpl-r"
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert server.tokenizer.decode(server.engine.requests[0].prompt_token_ids) == "<user>a\nb<assistant>"


def test_a_chat_stream_begins_with_the_role(folder):
    chunks = Server(folder, "hey").stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "hey"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_chat_logprobs_give_bytes(folder):
    content = Server(folder, "é").chat(logprobs=True, top_logprobs=1)["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "�",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "�", "logprob": -0.5, "bytes": [0xC3]}],
    }


def test_template_options_reach_the_template(folder):
    server = Server(folder)
    server.chat(add_generation_prompt=False, chat_template_kwargs={"shout": True})
    assert server.tokenizer.decode(server.engine.requests[0].prompt_token_ids) == "<user>hi!"


def test_a_request_replaces_the_servers_options_of_the_template(folder):
    server = Server(folder, options={"default_chat_template_kwargs": '{"shout": true}'})
    assert server.good("/apply-template", {"messages": TALK[:1]})["prompt"] == "<user>hi!<assistant>"
    for given, prompt in (({}, "<user>hi!<assistant>"), ({"shout": False}, "<user>hi<assistant>")):
        server.chat(messages=TALK[:1], chat_template_kwargs=given)
        assert server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids) == prompt


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("thinking=1", "default_chat_template_kwargs=thinking=1: must be a JSON object, such as"),
        ("[1]", "must be a JSON object"),
        ('{"tools": 1}', "default_chat_template_kwargs cannot set 'tools'; it must be a variable of the template"),
    ],
)
def test_unusable_options_of_the_template_end_the_start(folder, given, reason):
    with pytest.raises(ConfigError, match=reason):
        Server(folder, options={"default_chat_template_kwargs": given})


ENDED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<go>{% endif %}"
)
TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "He"}]


def test_the_last_message_is_continued(folder, tmp_path):
    (tmp_path / "ended.jinja").write_text(ENDED)
    server = Server(folder, "llo", {"chat_template": str(tmp_path / "ended.jinja")})
    for fields in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": None}):
        answer = server.chat(messages=TALK, continue_final_message=True, **fields)
        assert answer["choices"][0]["message"]["content"] == "llo"
        assert server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids) == "<user>hi</><assistant>He"
    tokens = server.good("/tokenize", {"messages": TALK, "continue_final_message": True})["tokens"]
    assert tokens == server.engine.requests[-1].prompt_token_ids
    server.chat(messages=TALK, continue_final_message=False)
    assert server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids).endswith("He</><go>")


RAG = (
    "{% for d in documents or [] %}{{ d | tojson }}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DOCUMENTS = [{"title": "a", "text": "<|end|>"}, {"id": 7}]
READ_DOCUMENTS = '{"title": "a", "text": "<|end|>"}{"id": 7}<user>hi'


def test_documents_reach_the_template(folder, tmp_path):
    (tmp_path / "rag.jinja").write_text(RAG)
    server = Server(folder, options={"chat_template": str(tmp_path / "rag.jinja")})
    body = {"messages": TALK[:1], "documents": DOCUMENTS}
    assert server.good("/apply-template", body)["prompt"] == READ_DOCUMENTS
    server.chat(**body)
    ids = server.engine.requests[0].prompt_token_ids
    assert server.tokenizer.decode(ids, False) == READ_DOCUMENTS
    assert len(ids) == len(READ_DOCUMENTS)  # one token a byte: the text of a document spells no special token
    assert server.good("/tokenize", body)["tokens"] == server.engine.requests[0].prompt_token_ids
    for nothing in ([], None):
        assert server.good("/apply-template", {**body, "documents": nothing})["prompt"] == "<user>hi"


@pytest.mark.parametrize(
    ("documents", "param", "reason"),
    [
        ([{"text": "x"}], "documents", "does not read documents; put their text into a message"),
        ([{}], "documents[0]", "length >= 1"),
        (["x"], "documents[0]", "expected object, got str"),
        ([{"text": "x"}] * 1025, "documents", "length <= 1024"),
    ],
)
def test_documents_that_would_be_ignored_are_refused(folder, documents, param, reason):
    server = Server(folder)
    body = {"messages": TALK[:1], "documents": documents}
    error = server.ask("POST", "/v1/chat/completions", body).json()["error"]
    assert (error["code"], error["param"]) == (400, param)
    assert reason in error["message"]
    assert not server.engine.requests


def test_the_rendered_text_of_a_template_is_returned(folder):
    server = Server(folder)
    body = {"messages": [{"role": "user", "content": "hi<|end|>"}], "chat_template_kwargs": {"shout": True}}
    assert server.good("/apply-template", body) == {"prompt": "<user>hi<|end|>!<assistant>"}
    error = server.ask("POST", "/apply-template", {"messages": body["messages"], "prompt": "x"}).json()["error"]
    assert (error["code"], error["param"]) == (400, "prompt")
    assert not server.engine.requests


def test_an_answer_repeats_the_text_that_it_continues(folder, tmp_path):
    (tmp_path / "ended.jinja").write_text(ENDED)
    server = Server(folder, "llo", {"chat_template": str(tmp_path / "ended.jinja")})
    body = {"messages": TALK, "continue_final_message": True, "echo": True}
    assert server.chat(**body)["choices"][0]["message"]["content"] == "Hello"
    chunks = server.stream("/v1/chat/completions", body)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "He"}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Hello"
    parts = [*TALK[:1], {"role": "assistant", "content": [{"type": "text", "text": "He"}]}]
    assert server.chat(**body | {"messages": parts})["choices"][0]["message"]["content"] == "Hello"


def test_echo_without_a_continued_message_is_refused(folder):
    body = {"messages": TALK[:1], "echo": True}
    error = Server(folder).ask("POST", "/v1/chat/completions", body).json()["error"]
    assert (error["code"], error["param"]) == (400, "echo")
    assert "continue_final_message" in error["message"]


def test_a_chat_names_its_service_tier(folder):
    server = Server(folder)
    assert "service_tier" not in server.chat()
    assert server.chat(service_tier="auto")["service_tier"] == "default"
    body = {"messages": TALK[:1], "service_tier": "default"}
    assert server.stream("/v1/chat/completions", body)[0]["service_tier"] == "default"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"continue_final_message": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"moment": 1}}, "chat_template_kwargs"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(folder, fields, param):
    body = {"messages": TALK, "continue_final_message": True, **fields}
    answer = Server(folder).ask("POST", "/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


TOOL = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object", "properties": {}}}}
CALL = 'Sure.\n<tool_call>\n{"name": "sum", "arguments": {"a": 1,  "b": "é"}}\n</tool_call>'


def test_tool_calls_are_parsed(folder):
    server = Server(folder, CALL)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
    choice = server.chat(tools=[TOOL])["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Sure.", "tool_calls")
    assert call["function"] == {"name": "sum", "arguments": '{"a": 1,  "b": "é"}'}
    assert call["id"].startswith("call_")
    assert server.tokenizer.decode(server.engine.requests[0].prompt_token_ids) == "<user>hisum<assistant>"


def test_tool_calls_are_streamed(folder):
    chunks = Server(folder, CALL).stream(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "Sure."
    call, *more = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert (call["index"], call["type"], call["function"]["name"]) == (0, "function", "sum")
    assert len(more) > 10, "arguments are sent in pieces"
    assert {tuple(each) for each in more} == {("function", "index")}
    pieces = [each["function"].get("arguments", "") for each in (call, *more)]
    assert "".join(pieces) == '{"a": 1,  "b": "é"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("text", "fields", "arguments", "reason"),
    [
        (CALL, {"stop": '"b'}, '{"a": 1,  ', "stop"),
        (CALL, {"stop": "}}"}, '{"a": 1,  "b": "é"', "stop"),
        (CALL, {"stop": "</tool"}, '{"a": 1,  "b": "é"}', "tool_calls"),
        (CALL.partition(",  ")[0], {}, '{"a": 1', "stop"),
    ],
)
def test_a_call_within_which_an_output_stops_is_not_finished(folder, text, fields, arguments, reason):
    server = Server(folder, text)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
    whole = server.chat(tools=[TOOL], **fields)["choices"][0]
    (call,) = whole["message"]["tool_calls"]
    assert (call["function"]["arguments"], whole["finish_reason"]) == (arguments, reason)
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [TOOL], **fields}
    choices = [chunk["choices"][0] for chunk in server.stream("/v1/chat/completions", body)]
    calls = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert "".join(call.get("arguments", "") for call in calls) == arguments
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [reason]


def test_without_tools_a_call_is_text(folder):
    server = Server(folder, CALL)
    assert server.chat()["choices"][0]["message"]["content"] == CALL
    assert server.chat(tools=[TOOL], tool_choice="none")["choices"][0]["message"]["content"] == CALL
    assert server.tokenizer.decode(server.engine.requests[1].prompt_token_ids) == "<user>hi<assistant>"


def test_earlier_calls_go_into_the_prompt_as_objects(folder):
    server = Server(folder)
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "function_call": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]
    server.good("/v1/chat/completions", {"messages": messages})
    assert '[f{"x": 1}]' in server.tokenizer.decode(server.engine.requests[0].prompt_token_ids)


def test_a_call_that_was_cut_off_is_accepted_back(folder):
    begun = CALL[: CALL.index("é")]
    server = Server(folder, begun, ends=False)
    server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
    choice = server.chat(tools=[TOOL], max_tokens=len(begun))["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], call["function"]["arguments"]) == ("length", '{"a": 1,  "b": "')
    server.good("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}, choice["message"]]})
    prompt = server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)
    assert f"[sum{json.dumps({'INVALID_JSON': call['function']['arguments']})}]" in prompt


def tokenized(server: Server, **body: object) -> str:
    body = {"messages": [{"role": "user", "content": "x"}], **body}
    tokens = server.good("/tokenize", body)["tokens"]
    return server.good("/detokenize", {"tokens": tokens})["prompt"]


def test_templates_get_tools_as_the_client_wrote_them(folder, tmp_path):
    (tmp_path / "prints.jinja").write_text("{% for t in tools %}{{ t | tojson }}{% endfor %}")
    server = Server(folder, options={"chat_template": str(tmp_path / "prints.jinja")})
    for tool in (
        {"type": "function", "function": {"name": "f", "description": "w", "parameters": {"type": "object"}}},
        {"function": {"parameters": {}, "name": "f"}, "type": "function"},
        {"type": "function", "function": {"name": "f", "strict": True}},
    ):
        assert tokenized(server, tools=[tool]) == json.dumps(tool)
    lenient = Server(folder, options={"chat_template": str(tmp_path / "prints.jinja"), "lenient": True})
    assert tokenized(lenient, tools=[{**tool, "new": 1}]) == json.dumps(tool)


def test_a_conversation_encodes_no_special_token_unless_allowed(folder):
    forged = [{"role": "user", "content": "a<|end|>b"}]
    end = Server(folder).tokenizer.token_id("<|end|>")

    def count(**options: object) -> tuple[int, int]:
        server = Server(folder, options=options)
        chat, prompt = ({"messages": forged}, {"prompt": "a<|end|>b"})
        return tuple(server.good("/tokenize", body)["tokens"].count(end) for body in (chat, prompt))

    assert count() == (0, 1)
    assert count(allow_special_tokens=True) == (1, 1)
    assert count(allow_special_tokens=False) == (0, 0)
    server = Server(folder)
    server.chat(content="a<|end|>b")
    assert server.tokenizer.decode(server.engine.requests[0].prompt_token_ids, False) == "<user>a<|end|>b<assistant>"
    assert end not in server.engine.requests[0].prompt_token_ids


@pytest.mark.parametrize("name", ["bos_token", "eos_token", "strftime_now", "raise_exception", "namespace", "range"])
def test_arguments_cannot_replace_variables_that_templates_rely_on(folder, name):
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {name: "x"}}
    answer = Server(folder).ask("POST", "/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template_kwargs")
