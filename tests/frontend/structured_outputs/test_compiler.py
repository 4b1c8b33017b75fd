"""Compiling forms to grammars in a confined process: refusals, time limits, and lost processes."""

import contextlib
import copy
import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLMatcher

from paged_serve.frontend.structured_outputs.compiler import MAX_KEPT, GrammarCompiler
from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, check, lowered
from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

TOKENIZER = bytes_tokenizer(AddedTokens())
ADDED = AddedTokens(special={"<|end|>": 3}, plain={"<call>": 7})


@pytest.fixture(scope="module")
def compiler():
    compiler = GrammarCompiler(ADDED)
    yield compiler
    compiler.close()


def pid(compiler) -> int:
    [found] = [process.pid for process in compiler._helpers.places.queue if process is not None]
    return found


def source(compiler, **form) -> dict:
    grammar, warnings = compiler.compile_now(StructuredOutputsParams(**form))
    assert not warnings
    [found] = json.loads(grammar.source)["grammars"]
    return found


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "start: nothing"}, "nothing"),
        ({"grammar": 'root ::= "a" | [0-9'}, "is not valid GBNF"),
        ({"grammar": "root ::= item"}, "is not valid GBNF: Rule 'item' not found"),
        ({"grammar": 'item ::= "a"'}, "is not valid GBNF: No 'root' rule found"),
        ({"grammar": 'root ::= "a\\'}, "is not valid GBNF: it ends within a character"),
        ({"grammar": "start: <|none|>"}, "none"),
        ({"json": '{"type": '}, "json is not JSON"),
        ({"json": "[1]"}, "a JSON schema is an object"),
        ({"json": {"type": "foo"}}, "the schema at /: Invalid type: foo"),
        ({"json": {"properties": {"a": {"type": "string", "pattern": "("}}}}, "at /properties/a: .*unclosed"),
        ({"json": {"properties": []}}, "properties must be an object|wrong type"),
        ({"json": {"enum": []}}, "at /"),
        ({"json": {"type": "string", "minLength": 3, "maxLength": 2}}, "at /"),
        ({"structural_tag": {"type": "structural_tag"}}, "neither format nor structures"),
        ({"structural_tag": {"format": {"type": "tag", "begin": "<a>"}}}, "format of type 'tag' lacks or misuses"),
        ({"structural_tag": {"format": {"type": "sequence", "elements": [{"type": "x"}]}}}, r"format\.elements has"),
        ({"structural_tag": {"format": {"type": "sequence", "elements": []}}}, "'sequence' has no elements"),
        ({"structural_tag": {"format": {"type": "or", "elements": []}}}, "'or' has no elements"),
    ],
)
def test_a_form_that_cannot_be_enforced_is_refused_with_the_reason(compiler, form, words):
    with pytest.raises(InvalidRequest, match=words) as refused:
        compiler.compile_now(StructuredOutputsParams(**form))
    assert "\n" not in str(refused.value)
    assert source(compiler, regex="ok")


@pytest.mark.parametrize("char", [*map(chr, range(33)), '"', "\\", "\x7f", "\x80", "\u2028"], ids=ascii)
def test_a_choice_and_a_structural_tag_may_have_any_character(char):
    added = AddedTokens()
    tokenizer, text = bytes_tokenizer(added), f"a{char}b"
    node = {"type": "const_string", "value": text}
    tag = json.dumps({"type": "structural_tag", "format": node})
    for form in StructuredOutputsParams(choice=(text,)), StructuredOutputsParams(structural_tag=tag):
        matcher = LLMatcher(tokenizer, lowered(form, added).source, log_level=0)
        assert matcher.consume_tokens(list(text.encode()))
        assert matcher.is_accepting()


def test_added_tokens_replace_the_text_of_tags(compiler):
    tag = {"type": "tag", "begin": "<call>\n", "content": {"type": "any_text"}, "end": "<|end|>"}
    grammar = source(compiler, structural_tag={"type": "structural_tag", "format": tag})["lark_grammar"]
    assert '<[7]> "\\n"' in grammar
    assert "<[3]>" in grammar
    assert "<call>" not in grammar


def test_a_schemas_own_options_for_llguidance_are_dropped(compiler):
    found = source(compiler, json={"type": "object", "x-guidance": {"lenient": True}}, disable_any_whitespace=True)
    assert found["json_schema"]["x-guidance"] == {"whitespace_flexible": False}


def test_objects_can_be_closed(compiler):
    schema = {"properties": {"a": {"properties": {"b": {}}}, "c": {"properties": {}, "additionalProperties": True}}}
    found = source(compiler, json=schema, disable_additional_properties=True)["json_schema"]
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False
    assert found["properties"]["c"]["additionalProperties"] is True


def test_a_form_that_takes_too_long_is_refused_and_the_next_is_answered(compiler):
    branches = [{"required": [f"a{i}"], "properties": {f"b{i}": {"enum": list(range(i, i + 40))}}} for i in range(40)]
    hostile = {"type": "object", "allOf": [{"anyOf": branches} for _ in range(3)]}
    with pytest.raises(InvalidRequest, match=r"takes more than 1 s|too large|exceeded"):
        compiler.compile_now(StructuredOutputsParams(json=hostile))
    assert source(compiler, choice=["a"])


def test_a_helper_that_is_killed_costs_its_request_nothing(compiler):
    assert source(compiler, regex="before")
    os.kill(pid(compiler), signal.SIGKILL)
    assert source(compiler, regex="after")


def test_a_compiled_form_is_cached_and_old_ones_are_dropped(compiler):
    first = compiler.compile_now(StructuredOutputsParams(regex="kept"))
    os.kill(pid(compiler), signal.SIGSTOP)
    assert compiler.compile_now(StructuredOutputsParams(regex="kept")) == first
    os.kill(pid(compiler), signal.SIGCONT)
    with ThreadPoolExecutor(8) as threads:
        forms = [StructuredOutputsParams(regex=f"a{{{number}}}") for number in range(MAX_KEPT + 20)]
        assert len(set(threads.map(lambda form: compiler.compile_now(form)[0].source, forms))) == len(forms)
    assert len(compiler._kept) == MAX_KEPT
    assert compiler._kept_chars == sum(len(key) + len(found.source) for key, found in compiler._kept.items())


def test_a_lenient_schema_that_cannot_be_enforced_becomes_any_object_with_a_warning():
    node = {"type": "json_schema", "json_schema": {"contains": {}}, "lenient": True}
    found = lowered(StructuredOutputsParams(structural_tag={"format": node}))
    assert '%json {\\"type\\": \\"object\\"}' in found.source
    assert found.warnings == [
        "the schema at /contains: contains is not supported: it cannot be enforced for arrays of any length; "
        "any object is accepted"
    ]


CLOSED = {"type": "object", "additionalProperties": False}
SCHEMA = {
    "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}, "c": {}}, "minProperties": 1, **CLOSED}},
    "type": "object",
    "properties": {
        "x": {"oneOf": [{"const": 1}, {"type": "string", "pattern": "^a", "minLength": 1}]},
        "y": {"type": "array", "items": {"enum": ["p", "q"]}, "uniqueItems": True, "minItems": 1, "maxItems": 2},
        "z": {"$ref": "#/$defs/a"},
        "w": {"not": {"enum": ["u", 2, None]}, "format": "color"},
    },
    "required": ["x"],
    "dependentRequired": {"x": ["y"]},
    "if": {"properties": {"x": {"const": 1}}, "required": ["x"]},
    "then": {"required": ["z"]},
    "propertyNames": {"maxLength": 9},
    "additionalProperties": False,
    "maxProperties": 3,
}
VALUES = [None, True, 0, -1, 1.5, 1e400, 2**70, "", "x", "(", "#/$defs/a", "#", [], ["x"], [[]], {}, {"": {}}, [None]]


def places(value, path=()):
    """The key paths to all parts of a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def test_a_damaged_schema_compiles_or_is_refused_by_name_and_nothing_else():
    rng, outcomes = random.Random(1), [0, 0]
    for _ in range(400):
        schema = json.loads(json.dumps(SCHEMA))
        for _ in range(rng.randint(1, 3)):
            *path, last = rng.choice(list(places(schema))[1:])
            holder = schema
            for key in path:
                holder = holder[key]
            holder[last] = copy.deepcopy(rng.choice(VALUES))
        with contextlib.suppress(InvalidRequest):
            outcomes[1] += 1
            check(lowered(StructuredOutputsParams(json=json.dumps(schema))).source, TOKENIZER)
            outcomes[0] += 1
    assert 15 < outcomes[0] < outcomes[1] - 100


GRAMMARS = (
    'root ::= "a" | item+ # comment\nitem ::= [a-z0-9^]{2,4} ("," ws)?\nws ::= [ \\t\\x0a]*\n',
    'start: a b+ "c"i\na: /[a-z]+/\nb: a | %json {"type": "object"} | C\nC: "x".."y"\n%ignore /\\s+/\n',
)
PIECES = (
    '"',
    "[",
    "]",
    "(",
    ")",
    "::=",
    "|",
    "{",
    "}",
    "*",
    "?",
    "\\",
    "\n",
    "#",
    "^",
    "x ",
    "{1,}",
    "é",
    "\0",
    "/",
    "%",
    "<",
    "$",
)


def test_a_damaged_grammar_compiles_or_is_refused_and_nothing_else():
    rng, outcomes = random.Random(1), [0, 0]
    for _ in range(400):
        grammar = rng.choice(GRAMMARS)
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(grammar))
            grammar = grammar[:place] + rng.choice(PIECES) * rng.randint(0, 1) + grammar[place + rng.randint(0, 4) :]
        with contextlib.suppress(InvalidRequest):
            outcomes[1] += 1
            check(lowered(StructuredOutputsParams(grammar=grammar)).source, TOKENIZER)
            outcomes[0] += 1
    assert 15 < outcomes[0] < outcomes[1] - 100


def test_an_endlessly_nested_form_is_refused():
    deep = "[" * 5000 + "]" * 5000
    for text in (deep, '{"items": ' * 900 + "{}" + "}" * 900, json.dumps({"not": {"const": "a" * 20000}})):
        with pytest.raises(InvalidRequest):
            lowered(StructuredOutputsParams(json=text))
