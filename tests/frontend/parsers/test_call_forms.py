"""Forced calls in every format: every output that the form allows is parsed as valid calls of the tools."""

import functools
import json
import operator
import random

import jsonschema_rs
import llguidance
import pytest

from paged_serve.frontend.conversation.messages import Conversation, Function, Tool
from paged_serve.frontend.parsers.call_forms import CallableTool, CallForm, calls_form, written_call
from paged_serve.frontend.parsers.detection import ALL_TOOL_FORMATS
from paged_serve.frontend.parsers.formats import ToolFormat
from paged_serve.frontend.parsers.output_parser import OutputParser
from paged_serve.frontend.parsers.output_reading import output_format
from paged_serve.frontend.parsers.readers.states import Format
from paged_serve.frontend.parsers.tool_choice import tool_choice_of
from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, lowered
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

from .test_formats import read

FORMATS = [each for each in ALL_TOOL_FORMATS if isinstance(each.form, CallForm)]
ONE_BY_ONE = [each for each in FORMATS if each.form.parameter_begin]  # they write arguments one by one
SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "units": {"enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
    "set": {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "at": {"$ref": "#/$defs/place"}},
        "additionalProperties": False,
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer", "maximum": 9, "minimum": 0}},
                            "required": ["x"], "additionalProperties": False}},
    },
}  # fmt: skip
TOOLS = [CallableTool(name, schema, strict=True) for name, schema in SCHEMAS.items()]
BYTES = bytes_tokenizer(AddedTokens())
NAME = operator.attrgetter("name")


def source(written: ToolFormat, mode: str, tools: list[CallableTool], *, parallel: bool) -> str:
    form = calls_form(written.form, tools, mode, parallel=parallel)
    return lowered(StructuredOutputsParams(structural_tag=form), AddedTokens()).source


@functools.cache
def tokens_of(bits: bytes) -> tuple[list[int], list[int]]:
    """The tokens of a mask, and those of them that close something. Few masks occur, each thousands of times."""
    allowed = [token for token in range(BYTES.vocab_size) if bits[token // 8] >> token % 8 & 1]
    return allowed, [token for token in allowed if token < 256 and token in b'"\n<>]})abc019']


def drawn(source: str, rng: random.Random, ending: str, limit: int = 2000) -> str:
    """A random text of the grammar, byte by byte; closing characters, and `ending` in free text, are more likely."""
    matcher = llguidance.LLMatcher(BYTES, source)
    text, end = bytearray(), ending.encode()
    while len(text) < limit:
        allowed, closing = tokens_of(matcher.compute_bitmask())
        if len(allowed) > 100 and rng.random() < 0.2 and matcher.validate_tokens([*end]) == len(end):
            assert matcher.consume_tokens([*end])
            text += end
            continue
        token = rng.choice(closing if closing and rng.random() < 0.9 else allowed)
        if token == BYTES.eos_token:
            return text.decode(errors="replace")
        assert matcher.consume_token(token), matcher.get_error()
        text.append(token)
    return ""


@pytest.mark.parametrize(
    "written", [each for each in FORMATS if each.name in ("hermes", "pythonic", "glm45")], ids=NAME
)
def test_a_call_has_only_arguments_that_its_tool_declares(written):
    """Though schemas that do not forbid others allow any."""
    texts = {
        name: json.dumps(schema).replace(', "additionalProperties": false', "") for name, schema in SCHEMAS.items()
    }
    tools = [CallableTool(name, json.loads(text), strict=False) for name, text in texts.items()]
    assert "additional" not in str(tools)
    grammar, found = source(written, "required", tools, parallel=True), []
    for seed in range(16):
        text = drawn(grammar, random.Random(seed), written.form.parameter_end)
        found += read(OutputParser(output_format(written, None), SCHEMAS).push(text, final=True)).calls
    assert len(found) > 8
    for name, arguments in found:
        jsonschema_rs.validate(SCHEMAS[name], arguments)


@pytest.mark.parametrize("written", FORMATS, ids=NAME)
@pytest.mark.parametrize("parallel", [True, False])
def test_forced_calls_are_parsed_as_valid_calls(written, parallel):
    grammar, found = source(written, "required", TOOLS, parallel=parallel), []
    for seed in range(16):
        text = drawn(grammar, random.Random(seed), written.form.text_end or written.form.parameter_end)
        if not text:
            continue
        parser = OutputParser(output_format(written, None), SCHEMAS)
        whole = read(parser.push(text, final=True))
        assert whole.calls, text
        assert not whole.content.strip(), text
        assert parallel or len(whole.calls) == 1
        for name, arguments in whole.calls:
            jsonschema_rs.validate(SCHEMAS[name], arguments)
        found += whole.calls
    assert {name for name, _ in found} == set(SCHEMAS)


@pytest.mark.parametrize("written", FORMATS, ids=NAME)
@pytest.mark.parametrize("name", ["user-id", "1st", "files.read", "mcp:files", "files/read", "é", "functions.now"])
def test_tools_and_their_parameters_may_have_any_name(written, name):
    schema = {**SCHEMAS["now"], "properties": {f"${name}": {"enum": [1]}}, "required": [f"${name}"]}
    text = drawn(source(written, "required", [CallableTool(name, schema, True)], parallel=False), random.Random(1), "")
    for pieces in ([text], text):
        parser = OutputParser(output_format(written, None), {name: schema})
        events = [event for piece in pieces for event in parser.push(piece)] + parser.push("", final=True)
        assert read(events).calls == [(name, {f"${name}": 1})], text


_BRACKETS = ("a[b]", "a{b}", "a<b>", "a(b)")
_ODD_NAMES = (
    "get weather",
    " a",
    "a ",
    "a\nb",
    *_BRACKETS,
    "a>b",
    "a=b",
    "a,b",
    'a"b',
    "a'b",
    "```json",
    "function",
    "a:0",
)


@pytest.mark.parametrize("written", ALL_TOOL_FORMATS, ids=NAME)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_name_that_a_call_cannot_have_is_refused(written, mode):
    refused, form = set(), written.form if isinstance(written.form, CallForm) else written.form.call
    for name in _ODD_NAMES:
        choice = tool_choice_of(Conversation(messages=[], tools=[Tool(function=Function(name=name))], tool_choice=mode))
        text = written_call(form, name)
        parser = OutputParser(Format(written.states, written.start), {name: {}})
        if read(parser.push(text, final=True)).calls == [(name, {})]:
            choice.form(written)
            continue
        refused.add(name)
        with pytest.raises(InvalidRequest, match=written.name):
            choice.form(written)
    writes_json = "{json}" in form.begin
    assert refused >= ({"a\nb"} if writes_json else {"get weather", " a", "a\nb"})
    assert "a:0" not in refused


@pytest.mark.parametrize("written", FORMATS, ids=NAME)
def test_with_auto_any_text_is_allowed_and_every_call_is_valid(written):
    grammar = source(written, "auto", TOOLS, parallel=True)
    matcher = llguidance.LLMatcher(BYTES, grammar)
    for byte in b"Hello, no calls. ":
        assert matcher.consume_token(byte)
    assert matcher.is_accepting()
    begun = (written.form.before or written.form.begin.split("{")[0] or written.form.begin[:9]).encode()
    allowed = llguidance.LLMatcher(BYTES, grammar)
    for byte in [*begun, 0]:
        last = allowed.consume_token(byte)
    assert not last, "not every text may follow the beginning of a call"


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("pythonic", "see [1] and [link](http://x)", True),
        ("pythonic", " [now()]", True),
        ("pythonic", "\n[link](http://x)", False),
        ("pythonic", "[now(x=1)]", False),
        ("pythonic", "", True),
        ("llama3_json", '{"a": 1}', True),
        ("llama3_json", '{"na', True),
        ("llama3_json", 'Ada is {"name": "Ada"}', True),
        ("llama3_json", '\n{"name": "now", "parameters": {}}', True),
        ("llama3_json", '\n{"name": "Ada"}', False),
        ("phi4_mini_json", "the module functools", True),
        ("phi4_mini_json", 'functools[{"name": "now", "arguments": {}}]', True),
        ("phi4_mini_json", "functools[1]", False),
    ],
)
def test_with_auto_only_what_would_be_parsed_as_a_call_is_constrained(name, text, accepted, parallel):
    written = next(each for each in FORMATS if each.name == name)
    matcher = llguidance.LLMatcher(BYTES, source(written, "auto", TOOLS, parallel=parallel))
    if written.form.after:
        text = text.replace("}]", "}]" + written.form.after[1:])
    assert (matcher.try_consume_tokens(list(text.encode())) == len(text) and matcher.is_accepting()) == accepted


_UNIT = {"$ref": "#/$defs/Unit"}
_TREE = {"type": "array", "maxItems": 1, "items": {"$ref": "#"}}


@pytest.mark.parametrize("written", ONE_BY_ONE, ids=NAME)
@pytest.mark.parametrize(
    "part",
    [
        {"enum": ["", "1"]},
        {"const": ""},
        {"anyOf": [{"type": "null"}]},
        {"anyOf": [{"type": "string", "enum": ["1", "a"]}, {"type": "null"}]},
        {"oneOf": [{"const": "null"}, {"type": "null"}]},
        {"type": ["string", "null"], "enum": ["1", "true", None]},
        _UNIT,
        {"allOf": [_UNIT], "description": "a unit"},
        {"anyOf": [_UNIT, {"type": "null"}], "default": None},
        {"$ref": "#/properties/first"},
        _TREE,
    ],
)
def test_every_value_that_a_forced_call_may_have_is_valid(written, part):
    schema = {
        "type": "object",
        "properties": {"first": {"enum": ["1", "2"]}, "value": part},
        "required": ["first", "value"],
        "additionalProperties": False,
        "$defs": {"Unit": {"type": "string", "enum": ["1", "true", "C"]}},
    }
    grammar = source(written, "required", [CallableTool("f", schema, strict=True)], parallel=False)
    for seed in range(4):
        text = drawn(grammar, random.Random(seed), "", 400)
        if not text:
            continue  # white space without end
        ((_, arguments),) = read(OutputParser(output_format(written, None), {"f": schema}).push(text, final=True)).calls
        assert jsonschema_rs.is_valid(schema, arguments), text


def test_an_argument_may_be_a_tree_of_the_whole_schema():
    schema = {**SCHEMAS["now"], "properties": {"children": _TREE}, "required": ["children"]}
    written = next(each for each in FORMATS if each.name == "pythonic")
    grammar = source(written, "required", [CallableTool("f", schema, strict=True)], parallel=False)
    for text, accepted in (('[f(children=[{"children": []}])]', True), ("[f(children=[[]])]", False)):
        matcher = llguidance.LLMatcher(BYTES, grammar)
        assert (matcher.try_consume_tokens(list(text.encode())) == len(text)) == accepted


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "null"}]}, "/properties/x/anyOf/0/pattern"),
        ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "/properties/x/oneOf"),
        ({"enum": ["a", "bb"], "maxLength": 1}, "/properties/x/maxLength"),
    ],
)
def test_what_a_text_must_have_is_enforced_or_refused_in_alternatives_too(part, where):
    written = next(each for each in FORMATS if each.name == "qwen3_coder")
    with pytest.raises(InvalidRequest, match=where):
        source(written, "required", [CallableTool("f", {"properties": {"x": part}}, strict=True)], parallel=True)
    with pytest.raises(InvalidRequest, match="/required"):
        source(written, "required", [CallableTool("f", {"required": ["x"]}, strict=True)], parallel=True)


def test_unenforceable_parts_are_refused_for_strict_tools_and_warned_about_for_others():
    schema = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}}, "minProperties": 1}
    written = next(each for each in FORMATS if each.name == "qwen3_coder")
    strict = calls_form(written.form, [CallableTool("f", schema, strict=True)], "required", parallel=True)
    with pytest.raises(InvalidRequest, match="/minProperties: this model writes arguments one by one"):
        lowered(StructuredOutputsParams(structural_tag=strict), AddedTokens())
    lenient = calls_form(written.form, [CallableTool("f", schema, strict=False)], "required", parallel=True)
    warnings = lowered(StructuredOutputsParams(structural_tag=json.dumps(lenient)), AddedTokens()).warnings
    assert [warning.split(":")[0] for warning in warnings] == [
        "the schema at /minProperties",
        "the schema at /properties/city/pattern",
    ]


@pytest.mark.parametrize("written", ONE_BY_ONE, ids=NAME)
@pytest.mark.parametrize("strict", [True, False])
def test_an_argument_whose_name_contains_the_text_that_ends_names_is_refused(written, strict):
    behind = written.form.parameter_begin.partition("{key}")[2].split("\n")[0]
    schema = {"type": "object", "properties": {f"a{behind}b": {"type": "string"}}}
    with pytest.raises(InvalidRequest, match=r"ends an argument's name with") as refused:
        source(written, "required", [CallableTool("get", schema, strict)], parallel=True)
    assert "/properties/a" in str(refused.value)
