"""JSON schemas rewritten for llguidance, compared with a JSON Schema validator: no invalid output, few refusals."""

import json
import random

import jsonschema_rs
import pytest
from llguidance import LLMatcher

from paged_serve.frontend.structured_outputs.helper_messages import AddedTokens
from paged_serve.frontend.structured_outputs.json_schema import rewriting
from paged_serve.frontend.structured_outputs.json_schema.numbers import LARGEST
from paged_serve.frontend.structured_outputs.json_schema.rewriting import Rewriting, Unsupported
from paged_serve.frontend.structured_outputs.lowering import bytes_tokenizer

TOKENIZER = bytes_tokenizer(AddedTokens())


def matcher_of(schema) -> LLMatcher:
    rewritten = Rewriting(schema).schema()
    matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(rewritten), log_level=0)
    assert not matcher.is_error(), (schema, rewritten, matcher.get_error()[:200])
    return matcher


def accepts(matcher: LLMatcher, instance) -> bool:
    text = json.dumps(instance, ensure_ascii=False).encode()
    fresh = matcher.deep_copy()
    return fresh.try_consume_tokens(list(text)) == len(text) and fresh.is_accepting()


def check(schema, instances) -> None:
    """Check that the grammar and the validator agree on every instance."""
    matcher, validator = matcher_of(schema), jsonschema_rs.validator_for(schema)
    for instance in instances:
        assert accepts(matcher, instance) == validator.is_valid(instance), (schema, instance)


KIND = {"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind"]}
OTHER = {"properties": {"kind": {"enum": ["b", "c"]}, "y": {"type": "string"}}, "required": ["kind"]}
VALUES = [None, True, False, 0, 1, 2.5, -3, "", "a", "ab", "b\n", [], [1], ["a", "b"], {}, {"a": 1}, {"b": "x"}]
OBJECTS = [
    *({}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "c": 1}, {"c": 1}, {"a": "x"}),
    *({"kind": "a"}, {"kind": "b"}, {"kind": "a", "x": 1}, {"kind": "a", "x": "1"}, {"kind": "d"}),
    *({"kind": "b", "y": "s"}, {"kind": "c", "y": 3}, "text", 5),
]
ARRAYS = [
    [],
    ["x"],
    ["y"],
    ["x", "y"],
    ["y", "x"],
    ["x", "x"],
    ["x", "y", "z"],
    ["z", "y", "x"],
    ["x", "y", "x"],
    ["q"],
]
CLOSED = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "instances"),
    [
        ({"not": {"type": "string"}}, VALUES),
        ({"not": {"type": ["object", "array", "number"]}}, VALUES),
        ({"not": {"const": "a"}}, VALUES),
        ({"type": "string", "not": {"enum": ["a", "abc", ""]}}, ["", "a", "ab", "abc", "abcd", "b", "é", "\n"]),
        ({"not": {"enum": [1, True, None]}}, VALUES),
        ({"type": "object", "not": {"required": ["a"]}}, OBJECTS),
        ({"type": "object", "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}}, OBJECTS),
        ({"type": "integer", "not": {"minimum": 5}}, [3, 4, 5, 6, -1]),
        ({"type": "string", "not": {"maxLength": 2}}, ["", "ab", "abc", "abcd"]),
        ({"not": {"not": {"type": "string"}}}, VALUES),
        ({"dependentRequired": {"a": ["b"]}, "type": "object"}, OBJECTS),
        ({"dependencies": {"a": ["b"], "c": {"required": ["b"]}}, "type": "object"}, OBJECTS),
        ({"dependentSchemas": {"a": {"properties": {"a": {"type": "integer"}}}}, "type": "object"}, OBJECTS),
        ({"oneOf": [KIND, OTHER], "type": "object"}, OBJECTS),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, VALUES),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"}, OBJECTS),
        ({"oneOf": [{"$ref": "#/$defs/k"}, {"$ref": "#/$defs/o"}], "type": "object", "$defs": {"k": KIND, "o": OTHER}},
         OBJECTS),
        ({"oneOf": [{"type": "number", "maximum": 1}, {"type": "number", "minimum": 2}]}, [0, 1, 1.5, 2, 3, "a"]),
        ({"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True}, ARRAYS),
        ({"type": "array", "items": {"enum": ["x", "y"]}, "uniqueItems": True, "minItems": 2}, ARRAYS),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 1}, ARRAYS),
        ({"type": "array", "items": {"enum": [1, 1.0, 2]}, "uniqueItems": True}, [[1], [1, 2], [1, 1], [2, 2], []]),
        ({**CLOSED, "minProperties": 1, "maxProperties": 2}, OBJECTS),
        ({**CLOSED, "minProperties": 2, "required": ["b"]}, OBJECTS),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "type": "object"}, OBJECTS),
        ({"if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
          "then": {"properties": {"x": {"type": "integer"}}}, "else": {"required": ["y"]}, "type": "object"}, OBJECTS),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, OBJECTS),
        ({"type": "object", "propertyNames": {"maxLength": 1}, "properties": {"kind": True}}, OBJECTS),
        ({**CLOSED, "propertyNames": {"enum": ["a", "b"]}}, OBJECTS),
        ({"type": "object", "propertyNames": {"minLength": 1}, "additionalProperties": {"type": "integer"}}, OBJECTS),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, OBJECTS),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 3,
          "exclusiveMinimum": True}, [2, 3, 4]),
        ({"properties": {"a": {"oneOf": [{"const": 1}, {"const": "x"}]}, "b": {"$ref": "#/properties/a/oneOf/0"}},
          "type": "object"}, [{"a": 1}, {"a": "x"}, {"a": 2}, {"b": 1}, {"b": "x"}, {}]),
        ({"type": "string", "minLength": 1.0, "maxLength": 2**64 - 1}, ["", "a", "ab"]),
        ({"type": "string", "minLength": 2, "maxLength": 2**32}, ["", "a", "ab"]),
        ({"type": "array", "minItems": 1.0, "maxItems": 1e30}, ARRAYS),
        ({"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True, "minItems": 2.0}, ARRAYS),
        ({**CLOSED, "minProperties": 1.0, "maxProperties": 2.0}, OBJECTS),
        (True, VALUES),
    ],
)  # fmt: skip
def test_keywords_that_llguidance_lacks_are_rewritten(schema, instances):
    check(schema, instances)


@pytest.mark.parametrize(
    ("schema", "where", "keyword"),
    [
        ({"type": "array", "contains": {"type": "string"}}, "/contains", "contains"),
        ({"properties": {"a/b": {"unevaluatedItems": False}}}, "/properties/a~1b/unevaluatedItems", "use items"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems"),
        ({"not": {"pattern": "a"}}, "/not", "not"),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, "/oneOf", "oneOf"),
        ({"oneOf": [{"enum": [{"a": 1}, 2]}, {"enum": [{"a": 1.0}, 3]}]}, "/oneOf", "oneOf"),
        ({"$ref": "https://example.com/schema"}, "/$ref", r"\$ref"),
        ({"$ref": "#"}, "/$ref", "leads back"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "", "leads back"),
        ({"allOf": [{"required": ["a"]}], "unevaluatedProperties": False}, "/unevaluatedProperties", "without allOf"),
        ({"properties": {"id": {"const": 2**53 + 1}}}, "/properties/id/const", "9007199254740993 is not exact"),
        ({"enum": ["a", {"b": [1, 10**20 + 1]}]}, "/enum", "100000000000000000001 is not exact"),
        ({"const": 10**400}, "/const", "is not exact"),
        ({"enum": [float("inf")]}, "/enum", "inf is not exact"),
        ({"type": "number", "minimum": 1e20}, "/minimum", "beyond the 64-bit integers"),
        ({"type": "integer", "minimum": 10**20}, "/minimum", "beyond the 64-bit integers"),
        ({"items": {"exclusiveMaximum": -1e400}}, "/items/exclusiveMaximum", "beyond the 64-bit integers"),
        ({"properties": {"a": {"minLength": 2**32}}}, "/properties/a/minLength", "4294967296, more than an output"),
    ],
)  # fmt: skip
def test_inexpressible_schemas_are_refused_by_pointer_and_keyword(schema, where, keyword):
    with pytest.raises(Unsupported, match=keyword) as refused:
        Rewriting(schema).schema()
    assert refused.value.pointer.startswith(where)


@pytest.mark.parametrize("bound", [2**53 + 1, -(2**53) - 1, 2**60 + 1, 2**60 - 1, 2**62 + 3, 3 - 2**62])
@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"])
def test_a_large_bound_accepts_no_integer_beyond_it(keyword, bound):
    sign = 1 if keyword in ("minimum", "exclusiveMinimum") else -1
    opposite = {"maximum": 2**62 + 2**20} if sign > 0 else {"minimum": -(2**62) - 2**20}
    matcher = matcher_of({"type": "integer", keyword: bound, **opposite})
    for distance in range(1, 200):
        assert not accepts(matcher, bound - sign * distance), distance
    assert accepts(matcher, bound + sign * 2**10)


def test_the_bounds_of_64_bit_integers_are_accepted():
    for least in ({"minimum": -(2**63)}, {"exclusiveMinimum": -(2**63) - 1}, {"minimum": -1e20}):
        matcher = matcher_of({"type": "integer", **least, "maximum": 2**63 - 1})
        assert all(accepts(matcher, value) for value in (0, -(2**62), 2**62))


@pytest.mark.parametrize("bound", [2**62 + 2**10, 2**60 + 1, -(2**62) - 2**10, 2**63 - 900, 900 - 2**63])
@pytest.mark.parametrize("keyword", ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"])
@pytest.mark.parametrize("kind", [{}, {"type": "number"}, {"type": ["integer", "null"]}])
def test_a_large_bound_of_numbers_accepts_none_beyond_it(kind, keyword, bound):
    sign = 1 if keyword in ("minimum", "exclusiveMinimum") else -1
    if sign * bound > LARGEST:
        return  # refused
    matcher = matcher_of({**kind, keyword: bound})
    for distance in (1, 2, 71, 100, 200, 500):
        assert not accepts(matcher, bound - sign * distance), distance
    assert accepts(matcher, bound + sign * 2**12) == (abs(bound + sign * 2**12) < 2**63)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_bound_beyond_the_64_bit_integers_or_without_its_opposite_is_enforced_in_their_range(kind, sign):
    names = ("minimum", "maximum")[::sign]
    for bound in (10**18, 2**60, 2**62, 9 * 10**18):
        matcher = matcher_of({"type": kind, names[0]: sign * bound})
        assert accepts(matcher, sign * (bound + 2**12))
        assert not accepts(matcher, sign * (bound - 1))
    for bound in (3.4028234663852886e38, 1.7976931348623157e308, 10**400):
        matcher = matcher_of({"type": kind, names[0]: -sign * bound, names[1]: sign * bound})
        assert all(accepts(matcher, value) for value in (0, -(2**62), 2**62))


def test_large_numbers_that_are_exact_are_enforced():
    check({"enum": [2**53, -(2**53), 2**60]}, [2**53, 2**53 + 1, -(2**53), 2**60, 2**60 + 1])
    check({"type": "string", "minimum": 1e20}, ["a", 1])


def test_formats_without_a_grammar_are_annotations_with_a_warning():
    rewriting = Rewriting({"type": "object", "properties": {"a": {"type": "string", "format": "color"}}})
    assert rewriting.schema()["properties"]["a"] == {"type": "string"}
    assert rewriting.warnings == ["the schema at /properties/a: format 'color' is not enforced"]


def test_a_schema_is_not_changed_by_rewriting_it():
    schema = {
        "type": "object",
        "properties": {"a": {"not": {"const": 1}, "format": "x"}},
        "dependentRequired": {"a": ["b"]},
    }
    before = json.dumps(schema)
    Rewriting(schema).schema()
    assert json.dumps(schema) == before


def test_depth_is_bounded():
    deep: dict = {}
    for _ in range(80):
        deep = {"items": deep}
    with pytest.raises(Unsupported, match="deeper than 64"):
        Rewriting(deep).schema()


@pytest.mark.parametrize("size", [40, pytest.param(400, marks=pytest.mark.nightly)])
def test_size_is_bounded(size, monkeypatch):
    assert rewriting.MAX_SUBSCHEMAS == 100_000
    monkeypatch.setattr(rewriting, "MAX_SUBSCHEMAS", 10 * size**2 // 16)
    required = {f"q{j}": ["r"] for j in range(size)}
    wide = {f"p{i}": {"type": "object", "dependentRequired": required} for i in range(size)}
    with pytest.raises(Unsupported, match=f"{10 * size**2 // 16} parts"):
        Rewriting({"properties": wide}).schema()


LEAVES = [
    {"type": "string"},
    {"type": "integer"},
    {"const": "a"},
    {"enum": ["a", "b", 1]},
    {"type": "null"},
    {"minimum": 1},
    {},
]
NAMES = ("a", "b", "c")


def draw_schema(rng: random.Random, depth: int):
    """A random combination of the keywords that are rewritten."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(LEAVES)
    below = [draw_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    match rng.randrange(9):
        case 0:
            return {"not": below[0]}
        case 1:
            return {rng.choice(("anyOf", "allOf", "oneOf")): below}
        case 2:
            return {"if": below[0], "then": below[-1]}
        case 3:
            return {"type": "object", "dependentRequired": {rng.choice(NAMES): [rng.choice(NAMES)]}}
        case 4:
            return {"type": "array", "items": {"enum": ["a", "b", 1][: rng.randint(1, 3)]}, "uniqueItems": True}
        case 5:
            return {"type": "array", "items": below[0], "maxItems": 2}
        case 6:
            more = {"minProperties": rng.randint(0, 2), "maxProperties": rng.randint(1, 3)}
            return {
                "type": "object",
                "properties": dict.fromkeys(NAMES, below[0]),
                "additionalProperties": False,
                **more,
            }
        case _:
            required = rng.sample(NAMES, rng.randint(0, 2))
            properties = dict(zip(NAMES, below, strict=False))
            return {"type": "object", "properties": properties, "required": required}


def draw_instance(rng: random.Random, depth: int):
    """A random instance. Keys are sorted, because grammars require properties in the order of the schema."""
    match rng.randrange(7 if depth else 5):
        case 0:
            return rng.choice(["a", "b", "c", ""])
        case 1:
            return rng.choice([0, 1, 2, -1])
        case 2:
            return None
        case 3:
            return rng.choice([True, False])
        case 4:
            return rng.choice([[], {}])
        case 5:
            return [draw_instance(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        case _:
            return {name: draw_instance(rng, depth - 1) for name in NAMES if rng.random() < 0.5}


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(i, marks=pytest.mark.nightly) for i in range(4, 100))])
def test_no_invalid_output_is_accepted_whatever_the_schema(seed):
    """Instances refused only by the grammar have their properties in another order than the schema."""
    rng, served, valid, missed = random.Random(seed), 0, 0, 0
    for _ in range(150):
        schema = draw_schema(rng, 3)
        try:
            rewritten = Rewriting(schema).schema()
        except Unsupported:
            continue
        matcher = LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(rewritten), log_level=0)
        if matcher.is_error():
            continue
        served += 1
        validator = jsonschema_rs.validator_for(schema)
        for _ in range(30):
            instance = draw_instance(rng, 2)
            is_valid, is_accepted = validator.is_valid(instance), accepts(matcher, instance)
            assert is_valid or not is_accepted, (schema, instance)
            valid += is_valid
            missed += is_valid and not is_accepted
    assert served > 60
    assert missed <= 0.1 * valid
