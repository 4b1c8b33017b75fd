"""Every format of tool calls and reasoning: calls and reasoning are found in whatever pieces they arrive."""

import json
import random
from collections.abc import Sequence

import pytest

from paged_serve.frontend.parsers.channel_forms import ChannelForm
from paged_serve.frontend.parsers.detection import ALL_TOOL_FORMATS
from paged_serve.frontend.parsers.events import Arguments, CallStart, Content, Event, Reasoning
from paged_serve.frontend.parsers.families.reasoning import THINK
from paged_serve.frontend.parsers.output_parser import OutputParser
from paged_serve.frontend.parsers.output_reading import output_format
from paged_serve.frontend.parsers.readers.collector import joined
from paged_serve.frontend.parsers.readers.states import Format

from ..conversation.chat_template_cases import conversation_input
from .outputs import TOOLS, WRITERS, Output, damaged, drawn_output, drawn_pieces

FORMATS = {each.name: each for each in ALL_TOOL_FORMATS}
CHANNELS = {each.name for each in ALL_TOOL_FORMATS if isinstance(each.form, ChannelForm)}  # they include reasoning


def form_of(name: str, *, reasons: bool = True) -> Format:
    form = output_format(FORMATS[name], THINK if reasons and name not in CHANNELS else None)
    assert form is not None
    return form


def events_of(form: Format, pieces: Sequence[str]) -> list[Event]:
    parser = OutputParser(form, TOOLS)
    found = [event for piece in pieces for event in parser.push(piece)]
    return joined([*found, *parser.push("", final=True)])


def read(events: Sequence[Event]) -> Output:
    calls = [
        (start.name, "".join(each.text for each in events if isinstance(each, Arguments) and each.index == start.index))
        for start in events
        if isinstance(start, CallStart)
    ]
    return Output(
        "",
        "".join(each.text for each in events if isinstance(each, Reasoning)),
        "".join(each.text for each in events if isinstance(each, Content)),
        [(name, json.loads(arguments)) for name, arguments in calls],
    )


def check(name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    reasons = rng.random() < 0.5
    form, given = form_of(name, reasons=reasons), drawn_output(name, rng, reasons=reasons)
    whole = events_of(form, [given.text])
    found = read(whole)
    assert (found.calls, found.reasoning) == (given.calls, given.reasoning), given.text
    assert found.content == given.content, given.text
    assert events_of(form, drawn_pieces(given.text, rng)) == whole, given.text
    text = damaged(given.text, rng)
    whole = events_of(form, [text])
    assert events_of(form, drawn_pieces(text, rng)) == whole, text
    assert events_of(form, list(text)) == whole, text
    indices = [each.index for each in whole if isinstance(each, CallStart)]
    assert indices == [*range(len(indices))]


@pytest.mark.parametrize("name", FORMATS)
def test_calls_and_reasoning_are_found_in_any_pieces(name):
    for seed in range(100):
        check(name, seed)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_outputs_of_a_format_are_found_in_any_pieces(name):
    for seed in range(100, 10_100):
        check(name, seed)


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_are_reported_piece_by_piece(name):
    """The arguments are an object, or, in formats that write each argument separately, a text."""
    calls = [("get_weather", {"city": "x" * 200, "days": 3})]
    num_pieces = []
    for seed in range(4):  # arguments before the name are held back until the name is known
        text, parser = WRITERS[name](calls, random.Random(seed)), OutputParser(form_of(name), TOOLS)
        events = [event for char in text for event in parser.push(char)]
        num_pieces.append(sum(isinstance(event, Arguments) for event in events))
    at_once = 3 if name in ("pythonic", "olmo3", "lfm2") else 100  # a Python literal is parsed when it is complete
    assert max(num_pieces) >= at_once


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_is_cut_off_until_its_arguments_are_an_object(name):
    for seed in range(3):
        calls = [("get_weather", {"city": "a } b", "days": 3}), ("search", {"flags": [1, "]"]})]
        text, parser = WRITERS[name](calls, random.Random(seed)), OutputParser(form_of(name), TOOLS)
        arguments = [""]
        for char in text:
            for event in parser.push(char):
                match event:
                    case CallStart():
                        arguments.append("")
                    case Arguments(text=piece):
                        arguments[-1] += piece
            assert parser.is_in_call == (len(arguments) > 1 and not is_json(arguments[-1]))
        assert len(arguments) == 3


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", FORMATS)
def test_no_tag_of_a_state_begins_another(name):
    for state in form_of(name).states.values():
        tags = [*getattr(state, "tags", ()), *getattr(state, "begins", ())]
        assert not [(a, b) for a in tags for b in tags if a != b and b.startswith(a)]


def test_states_of_reasoning_have_distinct_names():
    names = {"in reasoning", "before reasoning", "reasoning", "after reasoning"}
    assert not [each.name for each in ALL_TOOL_FORMATS if each.name not in CHANNELS and names & each.states.keys()]


F, G = ("f", {}), ("g", {})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [F]),
        ('<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [F]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", [("f", {"a": 1})]),
        ('<tool_call>{"name": "f", "arguments": null, "parameters": {}}</tool_call>', "", [F]),
        ('<tool_call>{"arguments": {"a": [1]}, "x": 1, "name": "f"}</tool_call>', "", [("f", {"a": [1]})]),
        (
            'a <tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call> b',
            "ab",
            [("f", {"a": "</tool_call>"})],
        ),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', "", [("f", {"a": "x\ny"})]),
        ('<tool_call>{"name": "f"}\n<tool_call>\n{"name": "g"}</tool_call>', "", [F, G]),
        ('<tool_call>{"name": "f"} more', "more", [F]),
        ('<tool_call>{"name": "f"}</tool_c', "", [F]),
        ('<tool_call>{"name": "a\nb"}</tool_call><tool_call>{"name": "g"}</tool_call>', None, [G]),
        ('<tool_call>{"name": "a</tool_call><tool_call>{"name": "g"}</tool_call>', None, [G]),
        ("a <tool_call> not json </tool_call> b", None, []),
        ("<tool_call>a <tool_call>{}</tool_call><tool_call>", None, []),
        ("x <tool_cal", None, []),
        (" spaces  \n", None, []),
        *(
            (f'<tool_call>{{"name": "f", "arguments": {wrong}}}</tool_call>', None, [])
            for wrong in ('"abc"', "[]", "1", '"[1]"')
        ),
    ],
)
def test_a_hermes_call_needs_arguments_that_begin_as_an_object(text, content, calls):
    for pieces in ([text], list(text)):
        found = read(events_of(form_of("hermes"), pieces))
        assert found.calls == calls
        assert content is None or found.content == content
        assert calls or found.content == text
    for name, arguments in calls:
        function = {"name": name, "arguments": json.dumps(arguments)}
        conversation_input(
            [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}], None
        )


@pytest.mark.parametrize(
    ("name", "call", "text"),
    [
        ("hermes", '<tool_call>{"name": "now"}</tool_call>', "<tool_call>no JSON</tool_call> b"),
        ("mistral", "[TOOL_CALLS]now[ARGS]{}", "[TOOL_CALLS]no call b"),
        ("qwen3_coder", "<tool_call><function=now></function></tool_call>", "<tool_call>no</tool_call> b"),
        ("function_tag", "<function=now>{}</function>", "<function=a b>{}</function> b"),
        ("glm45", "<tool_call>now</tool_call>", "<tool_call>a b</tool_call> b"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>a b"),
        ("kimi_k2", "<|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>", "<|tool_call_begin|>a b"),
    ],
)
@pytest.mark.parametrize("between", ["", "\n"])
def test_text_after_a_call_that_only_begins_like_another_is_unchanged(name, call, text, between):
    for pieces in ([call, between, text], [*call, *between, *text]):
        events = events_of(form_of(name), pieces)
        assert [type(event) for event in events] == [CallStart, Arguments, Content]
        assert read(events).calls == [("now", {})]
        assert read(events).content == text


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        ("openai", "<|channel|>final<|message|>a<|end|><|start|>"),
        ("mistral", "[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]"),
        ("glm45", "<tool_call>now<arg_key>"),
        ("qwen3_coder", "<tool_call><function=now><parameter="),
    ],
)
def test_where_a_header_or_a_name_is_too_long_does_not_depend_on_the_pieces(name, begun):
    text = begun + "".join(f"{i} " for i in range(400))
    whole = events_of(form_of(name), [text])
    for size in (1, 7, 100, 600):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert events_of(form_of(name), pieces) == whole


def test_without_tags_an_unknown_name_is_not_a_call():
    text = '{"name": "Ada", "parameters": {}}'
    assert events_of(form_of("llama3_json"), [text]) == [Content(text)]
    assert events_of(form_of("pythonic"), ["[link](http://x)"]) == [Content("[link](http://x)")]


def test_values_have_the_types_that_the_tool_declares():
    text = (
        "<tool_call><function=search><parameter=query>\n12\n</parameter><parameter=filters>\n{'a': True}\n</parameter>"
        "<parameter=unknown>\n[1]\n</parameter><parameter=exact>\nyes\n</parameter></function></tool_call>"
    )
    (call,) = read(events_of(form_of("qwen3_coder"), [text])).calls
    assert call == ("search", {"query": "12", "filters": {"a": True}, "unknown": [1], "exact": "yes"})


@pytest.mark.parametrize(
    "part", [{"$ref": "#/$defs/Unit"}, {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}], "title": "Unit"}]
)
def test_a_value_has_the_type_that_a_reference_leads_to(part):
    schema = {"properties": {"unit": part}, "$defs": {"Unit": {"type": "string", "enum": ["1", "2"]}}}
    output = "<tool_call><function=f><parameter=unit>\n1\n</parameter></function></tool_call>"
    parser = OutputParser(form_of("qwen3_coder"), {"f": schema})
    assert read(parser.push(output, final=True)).calls == [("f", {"unit": "1"})]


@pytest.mark.parametrize("text", ["{'a', 'b', 'c'}", "[{'a', 'b'}]", "b'abc'", "1e999", "-1e999", "'\\ud800'"])
def test_a_literal_without_a_form_in_json_stays_text(text):
    """The order of a set differs between processes."""
    output = f"<tool_call><function=search><parameter=flags>\n{text}\n</parameter></function></tool_call>"
    assert read(events_of(form_of("qwen3_coder"), [output])).calls == [("search", {"flags": text})]


def test_after_many_failed_beginnings_a_text_has_no_calls():
    text = "<tool_call>no " * 64 + '<tool_call>{"name": "f"}</tool_call>'
    for pieces in ([text], list(text)):
        assert events_of(form_of("hermes"), pieces) == [Content(text)]
    assert read(events_of(form_of("hermes"), [text.removeprefix("<tool_call>no ")])).calls == [F]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('city:<|"|>a "b"\n{c}<|"|>,days:3}', {"city": 'a "b"\n{c}', "days": 3}),
        ('at:{x:-1.5,tags:[<|"|>a<|"|>,[],{}]},deep:null}', {"at": {"x": -1.5, "tags": ["a", [], {}]}, "deep": None}),
        ('"city": "Paris", "days": [1, 2]}', {"city": "Paris", "days": [1, 2]}),
        ('<|"|>user id<|"|>:C,on:true}', {"user id": "C", "on": True}),
        ("}", {}),
        ("city}", {"city": None}),
        ("a:[1,2}", {"a": [1, 2]}),
    ],
)
def test_arguments_between_marks_become_json(text, arguments):
    whole = f"<|tool_call>call:get_weather{{{text}<tool_call|>"
    for pieces in ([whole], list(whole)):
        assert read(events_of(form_of("gemma4", reasons=False), pieces)).calls == [("get_weather", arguments)]
