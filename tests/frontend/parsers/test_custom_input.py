"""Inputs of custom tools, extracted from JSON in every division into pieces."""

import itertools
import json
import random

import pytest

from paged_serve.frontend.parsers.custom_input import CustomInput


def read(*pieces: str) -> str:
    reader = CustomInput()
    return "".join([*map(reader.push, pieces), reader.end()])


def divisions(text: str):
    """All divisions into two and three pieces, and the one into characters."""
    yield [*text]
    for first, second in itertools.combinations_with_replacement(range(len(text) + 1), 2):
        yield text[:first], text[first:second], text[second:]


INPUTS = [
    "",
    "x",
    'a "quote" \\ and / \n\t\b\f\r',
    "é€😀\u2028",
    "\x00\x1f",
    '{"input": "inner"}',
    "\\u0041",
    "print(1)\n",
]


@pytest.mark.parametrize("text", INPUTS)
@pytest.mark.parametrize("is_ascii", [True, False])
@pytest.mark.parametrize("layout", ["{%s}", " {\n  %s }  ", '{%s, "more": "x"}'])
def test_every_division_into_pieces_gives_the_same_input(text, is_ascii, layout):
    member = f'"input": {json.dumps(text, ensure_ascii=is_ascii)}'
    for pieces in divisions(layout % member):
        assert read(*pieces) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("", ""),
        ("{}", "{}"),
        ('{"text": "x"}', '{"text": "x"}'),
        ('{"input": 5}', '{"input": 5}'),
        ('{" input": "x"}', '{" input": "x"}'),
        ("plain text", "plain text"),
        ('{"inp', '{"inp'),
        ('{"input": "cut of', "cut of"),
        ('{"input": "cut \\', "cut "),
        ('{"input": "cut \\u00', "cut "),
        ('{"input": "half \\ud83d', "half \ufffd"),
        ('{"input": "half \\ud83dx\\ude00"}', "half \ufffdx\ufffd"),
        ('{"input": "\\q \\uzzzz"}', "\\q \\uzzzz"),
    ],
)
def test_other_json_is_passed_on_unchanged(written, text):
    for pieces in divisions(written):
        assert read(*pieces) == text, pieces


def test_random_texts_in_random_pieces_give_the_same_input():
    rng = random.Random(7)
    for _ in range(3000):
        text = "".join(rng.choices('ab"\\\n/é😀\x01', k=rng.randrange(30)))
        written = json.dumps({"input": text}, ensure_ascii=rng.random() < 0.5)
        cuts = sorted(rng.choices(range(len(written) + 1), k=rng.randrange(12)))
        assert read(*(written[a:b] for a, b in itertools.pairwise([0, *cuts, len(written)]))) == text
