"""Which objects are closed: all that name properties, except where that would forbid what another subschema demands."""

import random

import jsonschema_rs
import pytest

from paged_serve.frontend.structured_outputs.json_schema.closed import closed

A, B = {"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {"type": "integer"}}}
CLOSED = {"additionalProperties": False}


def reference(name):
    return {"$ref": f"#/$defs/{name}"}


IN_A = {"properties": {"a": reference("y")}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, A | CLOSED),
        ({**A, "required": ["a"]}, {**A, "required": ["a"], **CLOSED}),
        ({"type": "object", "title": "T", **A}, {"type": "object", "title": "T", **A, **CLOSED}),
        ({"properties": {"x": A}}, {"properties": {"x": A | CLOSED}, **CLOSED}),
        ({"items": A}, {"items": A | CLOSED}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [A | CLOSED, {"type": "null"}]}),
        ({"allOf": [A], "default": None}, {"allOf": [A | CLOSED], "default": None}),
        (
            {"items": reference("x/y"), "$defs": {"x/y": A}},
            {"items": reference("x/y"), "$defs": {"x/y": A | CLOSED}},
        ),
    ],
)
def test_an_object_that_names_its_properties_has_no_others(schema, expected):
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "object"},
        {**A, "additionalProperties": True},
        {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["b"]},
        {**A, "minProperties": 2},
        {"allOf": [A, B]},
        {**A, "anyOf": [B, {"required": ["c"]}]},
        {"not": A},
        {"allOf": [reference("x"), B], "$defs": {"x": A}},
        {"allOf": [{"properties": {"a": reference("x")}}, {"properties": {"a": B}}], "$defs": {"x": A}},
        {
            "allOf": [reference("x"), {"properties": {"a": B}}],
            "$defs": {"x": {"properties": {"a": reference("y")}}, "y": A},
        },
        {"items": {"allOf": [{"$ref": "#/items/allOf/1"}, B]}},
    ],
    ids=str,
)
def test_an_object_stays_open_where_others_are_allowed_or_demanded(schema):
    assert closed(schema) == schema


def test_a_reference_to_the_root_is_followed_no_further():
    tree = {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert closed(tree) == tree | CLOSED


def random_schema(rng, depth=3):
    kind = rng.choice(["object", "object", "anyOf", "allOf", "items", "ref", "leaf"]) if depth else "leaf"

    def inner():
        return random_schema(rng, depth - 1)

    match kind:
        case "object":
            names = rng.sample("abcd", rng.randint(0, 3))
            required = rng.sample("abcd", rng.randint(0, 1))
            return {"type": "object", "properties": {name: inner() for name in names}, "required": required}
        case "anyOf" | "allOf":
            beside = {"properties": {"a": inner()}} if rng.random() < 0.3 else {}
            return {kind: [inner() for _ in range(rng.randint(1, 2))], **beside}
        case "items":
            return {"type": "array", "items": inner(), "maxItems": 2}
        case "ref":
            return reference(rng.choice("xy"))
    return {"type": rng.choice(["integer", "boolean"])}


def random_value(rng, depth=3):
    kind = rng.choice(["object", "array", "leaf"]) if depth else "leaf"
    if kind == "object":
        return {name: random_value(rng, depth - 1) for name in rng.sample("abcd", rng.randint(0, 3))}
    if kind == "array":
        return [random_value(rng, depth - 1) for _ in range(rng.randint(0, 2))]
    return rng.choice([1, True])


def subsets(value):
    """The value with some of its properties left out, at every depth."""
    if isinstance(value, list):
        return [value, []] if value else [value]
    if not isinstance(value, dict):
        return [value]
    found = [{}]
    for name, part in value.items():
        found = [*found, *({**each, name: smaller} for each in found for smaller in subsets(part))]
    return found


def test_what_a_closed_schema_accepts_the_open_one_does_and_no_schema_becomes_unsatisfiable():
    rng, seen = random.Random(5), {"closed": 0, "satisfied": 0}
    for _ in range(600):
        definitions = {name: random_schema(rng, 2) for name in "xy"}
        definitions = {name: part for name, part in definitions.items() if "$ref" not in str(part)}
        schema = {**random_schema(rng), "$defs": {name: definitions.get(name, A) for name in "xy"}}
        ours = closed(schema)
        both = jsonschema_rs.validator_for(schema), jsonschema_rs.validator_for(ours)
        seen["closed"] += ours != schema
        values = [random_value(rng) for _ in range(60)]
        assert all(both[0].is_valid(value) for value in values if both[1].is_valid(value)), (schema, ours)
        accepted = [value for value in values if both[0].is_valid(value)]
        seen["satisfied"] += bool(accepted)
        for value in accepted:
            assert any(map(both[1].is_valid, subsets(value))), (schema, ours, value)
    assert min(seen.values()) > 200, seen
