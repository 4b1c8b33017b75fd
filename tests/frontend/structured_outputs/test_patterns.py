"""Regular expressions for JSON texts, character by character: a text that does not match is never accepted."""

import json
import random

import jsonschema_rs
import pytest
from llguidance import LLMatcher

from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.json_schema.patterns import translated
from paged_serve.frontend.structured_outputs.json_schema.rewriting import Rewriting
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer, lowered
from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

TOKENIZER = bytes_tokenizer(AddedTokens())
CHARACTERS = [*map(chr, range(1, 128)), "é", "€", "😀"]
ATOMS = ["a", "b-f", '"', r"\\", r"\n", r"\]", r"\-", r"\x01-\x1f", r"\x00-\x2f", "é"]
ATOMS += [rf"\{name}" for name in "dDsSwW"]


def written(value: str) -> bytes:
    """llguidance writes U+007F with an escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f").encode()


def check(schema, wrap=lambda text: text):
    """Check each character as a text: it is accepted exactly if it is valid."""
    validator = jsonschema_rs.validator_for(schema)
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(Rewriting(schema).schema()), log_level=0)
    if matcher.is_error():  # the class is empty
        assert not any(validator.is_valid(wrap(text)) for text in CHARACTERS), (schema, matcher.get_error()[:200])
        return
    for text in CHARACTERS:
        assert accepts(matcher, wrap(text)) == validator.is_valid(wrap(text)), (schema, text)


def accepts(matcher, value):
    fresh, data = matcher.deep_copy(), b"".join(written_parts(value))
    return fresh.try_consume_tokens(list(data)) == len(data) and fresh.is_accepting()


def written_parts(value):
    if isinstance(value, str):
        return [written(value)]
    return [b"{", *(part for name in value for part in (written(name), b": 1")), b"}"]


@pytest.mark.parametrize(
    "pattern",
    [r"^[^\\]+$", r'^[^"]+$', r"^[^\n]$", r"^[^/\\:*?\"<>|]+$", r"^[^]]$", r"^[^^\]]$", r"^[^-]$", r"^[\x00-\x1f]$",
     r"^[\x00-\x5b]$", r"^[^\\\x00]$", r"^\P{P}$", r"^[\p{Cc}]$", r"^[^\W\d]$", r"^(?:[^\"a-z]|b)$", "^[^\x01]$",
     r"^\[\^[^\\]\]$|^[^\"]$", r"^[\s\S]$", r"^\W$"],
)  # fmt: skip
def test_a_class_allows_only_its_characters(pattern):
    check({"type": "string", "pattern": pattern})
    schema = {"type": "object", "patternProperties": {pattern: {"const": 1}}, "additionalProperties": False}
    check(schema, lambda text: {text: 1})


def test_a_dot_allows_every_character_but_the_ends_of_lines():
    schema = Rewriting({"type": "string", "pattern": "^.$"}).schema()
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(schema), log_level=0)
    ends = ["\n", "\r", "\u2028", "\u2029"]
    assert [text for text in [*CHARACTERS, *ends] if accepts(matcher, text)] == [
        text for text in CHARACTERS if text not in ends
    ]


def test_the_negation_of_a_character_allows_every_other_one():
    for text in ('"', "\\", "a", "\n"):
        check({"type": "string", "maxLength": 1, "not": {"const": text}})


@pytest.mark.parametrize("seed", range(3))
def test_random_classes_allow_only_their_characters(seed):
    rng = random.Random(seed)
    for _ in range(40):
        atoms = "".join(rng.sample(ATOMS, rng.randint(1, 4)))
        negation = rng.choice(["", "^"])
        check({"type": "string", "pattern": f"^[{negation}{atoms}]$"})


def test_schemas_within_a_grammar_have_the_same_patterns():
    grammar = r"""start: "x %json {" a b
a: %json {"type": "object", "properties": {"q": {"type": "string", "pattern": "^[^\"]$"}}, "required": ["q"]}
b: %json   {"type": "string", "pattern": "^[^\\\\]$"}"""
    source = lowered(StructuredOutputsParams(grammar=grammar)).source
    check_text(source, r'x %json {{"q": "/"}"a"', True)
    check_text(source, r'x %json {{"q": "\""}"a"', False)
    check_text(source, r'x %json {{"q": "a"}"\""', True)
    check_text(source, r'x %json {{"q": "a"}"\\"', False)
    plain = 'start: a\na: %json {"type": "integer"} | "%json {"'
    assert json.loads(lowered(StructuredOutputsParams(grammar=plain)).source)["grammars"][0]["lark_grammar"] == plain


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a/b", "a/b"),
        (r"https?:\/\/x", "https://x"),
        (r"[\/]", "/"),
        (r"a\\/b", r"a\/b"),
        (r"\\\/", r"\/"),
        ("a\n", "a\n"),
    ],
)
def test_an_expression_may_escape_its_slashes(pattern, text):
    for form in ({"regex": pattern}, {"structural_tag": {"format": {"type": "regex", "pattern": pattern}}}):
        check_text(lowered(StructuredOutputsParams(**form)).source, text, True)


def check_text(source: str, text: str, accepted: bool) -> None:
    matcher = LLMatcher(TOKENIZER, source, log_level=0)
    assert not matcher.is_error(), matcher.get_error()[:300]
    data = list(text.encode())
    assert (matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()) == accepted, text


def test_text_outside_of_classes_is_not_changed():
    for pattern in (r"^a\[^b\]$", r"^[a-z]+\\$", r"\d{3}", "[a"):
        assert translated(pattern) == pattern
    assert translated(r"[^a][^]b][[^c]d]") == r"[[^a]--\x00][[^]b]--\x00][[[^c]d]--\x00]"
    deep = "[^" * 100_000
    assert translated(deep) == rf"[{deep}--\x00]"
