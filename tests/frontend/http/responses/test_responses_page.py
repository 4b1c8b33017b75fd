"""docs/responses.md names every field, item and part of this API."""

import re
from pathlib import Path
from typing import get_args

import pytest

from paged_serve.frontend.http.responses import schemas, tool_schemas

PAGE = (Path(__file__).parents[4] / "docs" / "responses.md").read_text()
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}


@pytest.mark.parametrize(
    "body",
    [schemas.ResponsesRequest, schemas.Reasoning, *get_args(tool_schemas.Tool)],
    ids=lambda body: body.__name__,
)
def test_every_field_of_a_body_is_named(body):
    assert set(body.__struct_fields__) - {"type"} <= NAMED


def test_every_item_and_part_is_named():
    kinds = (*get_args(schemas.InputItem), *get_args(tool_schemas.Tool), *get_args(schemas.Part), schemas.ReasoningText)
    assert {kind.__struct_config__.tag for kind in kinds} <= NAMED
