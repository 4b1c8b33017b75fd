"""Reasoning and tool calls of a chat over a fake engine: fields of the answer, of its stream, and of the request."""

import msgspec
import pytest
import tokenizers

from paged_serve.protocol.messages.samplers import ThinkingBudget

from ...http_server import Server, make_model_folder

CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{# calls are <tool_call>, reasoning is <think></think> #}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "<assistant>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if opens is defined %}<think>\n{% endif %}{{ reasoning_effort }}{{ verbosity }}"
)
OUTPUT = '<think>\nTwo and\ntwo.\n</think>\n\nIt is <tool_call>{"name": "add", "arguments": {"a": [2, 2]}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
ASK = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture
def start(tmp_path):
    """The tags are special tokens, which are hidden from the text, unless `own_tags` is false."""
    (tmp_path / "t.jinja").write_text(TEMPLATE)

    def start(output: str = OUTPUT, *, own_tags: bool = True, **options) -> Server:
        folder = make_model_folder(tmp_path / "model")
        if own_tags:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.add_special_tokens(["<think>", "</think>", "<|other|>"])
            tokenizer.save(str(folder / "tokenizer.json"))
        server = Server(folder, output, {"chat_template": str(tmp_path / "t.jinja"), **options})
        server.engine.limits = msgspec.structs.replace(server.engine.limits, max_model_len=512)
        return server

    return start


def test_reasoning_content_and_calls_are_separate(start):
    choice = start().chat(tools=[TOOL])["choices"][0]
    message = choice["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Two and\ntwo."
    assert message["content"] == "It is"
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": [2, 2]}'}
    assert choice["finish_reason"] == "tool_calls"


def test_a_stream_has_the_same_parts_piece_by_piece(start):
    deltas = [chunk["choices"][0]["delta"] for chunk in start().stream(CHAT, {**ASK, "tools": [TOOL]})]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "Two and\ntwo."
    assert "".join(delta.get("content", "") for delta in deltas) == "It is"
    assert sum("reasoning" in delta for delta in deltas) > 3
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": [2, 2]}'


def test_reasoning_can_be_left_out(start):
    message = start().chat(include_reasoning=False)["choices"][0]["message"]
    assert message.keys() == {"role", "content"}
    deltas = [each["choices"][0]["delta"] for each in start().stream(CHAT, {**ASK, "include_reasoning": False})]
    assert not any("reasoning" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("fields", "output", "reasoning", "content"),
    [
        ({"chat_template_kwargs": {"opens": True}}, "a</think>b", "a", "b"),
        ({"reasoning_effort": "none"}, "<think>a</think>b", "a", "b"),
        ({}, "b</think>c", None, "b</think>c"),
        ({}, "<think>a", "a", None),
    ],
)
def test_the_prompt_determines_where_reasoning_begins(start, fields, output, reasoning, content):
    message = start(output).chat(**fields)["choices"][0]["message"]
    assert (message.get("reasoning"), message["content"]) == (reasoning, content)


@pytest.mark.parametrize("own_tags", [True, False])
@pytest.mark.parametrize(
    ("begun", "output", "reasoning", "content"),
    [
        ("<think>\nTwo", " and two.\n</think>\n\n4", "and two.", "4"),
        ([{"type": "text", "text": "<think>Two"}], "</think>4", None, "4"),
        ("<think>Two</think>It", " is <think>", None, " is <think>"),
        ("It is <think>", "</think>4", None, "4"),
        ("It is", " 4", None, " 4"),
    ],
)
def test_a_continued_message_determines_whether_the_output_is_reasoning(
    start, own_tags, begun, output, reasoning, content
):
    messages = [*ASK["messages"], {"role": "assistant", "content": begun}]
    server = start(output, own_tags=own_tags)
    message = server.chat(messages=messages, continue_final_message=True)["choices"][0]["message"]
    assert (message.get("reasoning"), message["content"]) == (reasoning, content)


def test_a_budget_counts_continued_reasoning_and_a_form_waits_for_its_end(start):
    messages = [*ASK["messages"], {"role": "assistant", "content": "<think>Two"}]
    server = start("</think>4")
    server.chat(messages=messages, continue_final_message=True, thinking_token_budget=5, **FORM)
    params = server.engine.requests[0].params
    assert params.thinking.num_prompt_tokens == 0, "the tag is text of the request, not the template's token"
    assert params.grammar.after
    assert not params.grammar.opens


@pytest.mark.parametrize("fields", [{}, {"stop": ["</think>d", "ik>"]}, {"stream_interval": 3}])
@pytest.mark.parametrize(
    ("parts", "reasoning", "content"),
    [
        (["<think>", "é </think>, so", "</think>", "b</think>"], "é </think>, so", "b</think>"),
        (["<think>a</think>b"], None, "<think>a</think>b"),
        (["<think>", "<think>a", "</think>", "b<think>", "</think>", "c"], "<think>a", "b<think></think>c"),
    ],
)
def test_a_tag_in_other_tokens_than_its_own_is_quoted(start, parts, reasoning, content, fields):
    server = start()
    tokens = server.tokenizer
    spelled = [[part] if part in ("<think>", "</think>") else list(part) for part in parts]
    server.engine.outputs = [[token for texts in spelled for text in texts for token in tokens.encode(text)]]
    message = server.chat(**fields)["choices"][0]["message"]
    assert (message.get("reasoning"), message["content"]) == (reasoning, content)
    deltas = [chunk["choices"][0]["delta"] for chunk in server.stream(CHAT, {**ASK, **fields})]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == (reasoning or "")
    assert "".join(delta.get("content", "") for delta in deltas) == content


def test_effort_and_verbosity_reach_the_template(start):
    server = start()
    server.chat(content="x", reasoning_effort="high", verbosity="low")
    prompt = server.tokenizer.decode(server.engine.requests[0].prompt_token_ids)
    assert prompt.endswith("<assistant>highlow")
    body = {**ASK, "reasoning_effort": "high", "verbosity": "low"}
    tokens = server.good("/tokenize", body)["tokens"]
    assert tokens == server.engine.requests[0].prompt_token_ids


@pytest.mark.parametrize("parser", ["tool_call_parser", "reasoning_parser"])
def test_parser_none_leaves_everything_content(start, parser):
    message = start(**{parser: "none"}).chat(tools=[TOOL])["choices"][0]["message"]
    assert ("tool_calls" in message, "reasoning" in message) == (
        parser != "tool_call_parser",
        parser != "reasoning_parser",
    )


def test_without_a_known_format_calls_are_content_with_a_warning(start):
    server = start(tool_call_parser="none")
    assert "--tool-call-parser" in server.chat(tools=[TOOL])["warnings"][0]
    refused = server.ask("POST", CHAT, {**ASK, "tools": [TOOL], "parallel_tool_calls": False})
    assert refused.status_code == 400
    assert "--tool-call-parser" in refused.json()["error"]["message"]


NAMED = {"type": "function", "function": {"name": TOOL["function"]["name"]}}


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_without_a_known_format_forced_calls_are_written_as_json(start, choice, reason):
    name = TOOL["function"]["name"]
    server = start(f'[{{"name": "{name}", "arguments": {{"city": "Rome"}}}}]', tool_call_parser="none")
    answer = server.chat(tools=[TOOL], tool_choice=choice)
    assert answer["choices"][0]["finish_reason"] == reason
    assert "warnings" not in answer
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [{"name": name, "arguments": '{"city": "Rome"}'}]
    form = server.engine.requests[0].params.grammar
    assert form is not None


FORM = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "after", "opens"),
    [
        ({}, "</think>", "<think>"),
        ({"chat_template_kwargs": {"opens": True}}, "</think>", ""),
        ({"reasoning_effort": "none"}, "", ""),
    ],
)
def test_a_form_constrains_the_text_after_the_reasoning(start, fields, after, opens):
    server = start("{}")
    server.chat(**FORM, **fields)
    grammar = server.engine.requests[0].params.grammar
    assert grammar.after == ((server.tokenizer.token_id(after),) if after else ())
    assert grammar.opens == ((server.tokenizer.token_id(opens),) if opens else ())


@pytest.mark.parametrize(
    ("form", "content"),
    [({"structured_outputs": {"regex": r"\s+4\s"}}, "\n\n4 "), (FORM, "\n\n4 "), ({"tools": [TOOL]}, "4 "), ({}, "4 ")],
)
def test_white_space_after_reasoning_belongs_to_a_form(start, form, content):
    server = start("<think>a</think>\n\n4 ")
    assert server.chat(**form)["choices"][0]["message"]["content"] == content
    deltas = [chunk["choices"][0]["delta"] for chunk in server.stream(CHAT, {**ASK, **form})]
    assert "".join(delta.get("content", "") for delta in deltas) == content


def test_without_tokens_for_the_tags_a_constrained_answer_has_no_reasoning(start):
    server = start("{}", own_tags=False)
    server.chat(**FORM)
    grammar = server.engine.requests[0].params.grammar
    assert (grammar.after, grammar.opens) == ((), ())
    refused = server.ask("POST", CHAT, {**ASK, **FORM, "chat_template_kwargs": {"opens": True}})
    assert refused.status_code == 400
    assert "reasoning_effort 'none'" in refused.json()["error"]["message"]


BUDGET = {"thinking_token_budget": 5}


@pytest.mark.parametrize(
    ("fields", "num_prompt_tokens"),
    [({}, None), ({"chat_template_kwargs": {"opens": True}}, 1), ({"reasoning_effort": "none"}, None)],
)
def test_a_budget_of_reasoning_reaches_the_engine_in_tokens(start, fields, num_prompt_tokens):
    server = start()
    begin, end = (server.tokenizer.token_id(tag) for tag in ("<think>", "</think>"))
    server.chat(**BUDGET, **fields, **FORM)
    params = server.engine.requests[0].params
    assert params.thinking == ThinkingBudget(5, (begin,), (end,), num_prompt_tokens)
    assert params.thinking_token_budget is None
    server.chat(thinking_token_budget=-1)
    assert server.engine.requests[1].params.thinking is None


def test_the_tokens_of_a_prompt_determine_whether_it_ends_in_reasoning(start):
    server = start()
    begin, end = (server.tokenizer.token_id(tag) for tag in ("<think>", "</think>"))
    prompts = ["ab", "<think>ab", "<think>a</think>b", "<think>a</think><think>bcd"]
    server.complete(prompt=prompts, **BUDGET)
    for prompt in prompts:
        ids = server.tokenizer.encode(prompt)
        server.good("/inference/v1/generate", {"token_ids": ids, "sampling_params": BUDGET})
    found = [request.params.thinking for request in server.engine.requests]
    assert found[:4] == found[4:]
    assert [(each.begin, each.end) for each in found[:4]] == [((begin,), (end,))] * 4
    assert [each.num_prompt_tokens for each in found[:4]] == [None, 2, None, 3]


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"reasoning_parser": "none"}, "--reasoning-parser"), ({"own_tags": False}, "single tokens")],
)
def test_a_budget_is_refused_if_the_tags_are_unknown(start, options, remedy):
    server = start(**options)
    for path, body in ((CHAT, ASK), ("/v1/completions", {"prompt": "x"})):
        refused = server.ask("POST", path, {**body, **BUDGET})
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "thinking_token_budget")
        assert remedy in error["message"]
        server.good(path, {**body, "thinking_token_budget": -1})


@pytest.mark.parametrize(
    ("fields", "output", "count"),
    [
        ({}, "<think>abc</think>d", 5),
        ({}, "<think>ab", 4),  # includes the token that ends the output
        ({}, "d</think>", 0),
        ({}, "\n <think>abc</think>d", 5),  # white space before reasoning is left out of the answer
        ({}, " d<think>e</think>", 0),
        ({"chat_template_kwargs": {"opens": True}}, "abc</think>d", 4),
    ],
)
def test_tokens_of_reasoning_are_counted(start, fields, output, count):
    server = start(output)
    body = {**ASK, **fields, "stream_options": {"include_usage": True}}
    for usage in (server.chat(**fields)["usage"], server.stream(CHAT, body)[-1]["usage"]):
        assert usage["completion_tokens_details"] == {"reasoning_tokens": count}
    plain = start(output, own_tags=False).chat(**fields)["usage"]
    assert "completion_tokens_details" not in plain, "unknown without tokens for the tags"


def test_other_special_tokens_stay_hidden(start):
    message = start("<think>a<|other|></think>b<|other|>").chat()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("a", "b")


CHANNELS = {
    # <|end|> ends the outputs of this tokenizer
    "final": '<|channel|>analysis<|message|>Hm.<|start|>assistant<|channel|>final<|message|>{"a": 1}',
    "call": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
}


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        (FORM, "final"),
        ({"tools": [TOOL], "tool_choice": "required"}, "call"),
        ({}, "final"),
        ({"tools": [TOOL]}, "call"),
    ],
)
def test_outputs_in_channels_are_constrained_and_parsed(start, fields, output):
    server = start(CHANNELS[output], tool_call_parser="openai")
    choice = server.chat(**fields)["choices"][0]
    grammar = server.engine.requests[0].params.grammar
    assert (grammar is not None) == bool(fields.keys() - {"tools"})
    assert grammar is None or "<|channel|>analysis<|message|>" in grammar.source
    if output == "final":
        assert (choice["message"]["reasoning"], choice["message"]["content"]) == ("Hm.", '{"a": 1}')
    else:
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert choice["finish_reason"] == "tool_calls"
