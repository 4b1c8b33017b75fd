"""docs/messages.md names every field, block, stop reason and error of this API, and its examples are valid."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from paged_serve.frontend.http.anthropic import answers, errors, schemas

PAGE = (Path(__file__).parents[4] / "docs" / "messages.md").read_text()
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}
BODIES = (schemas.MessagesRequest, schemas.CountTokensRequest, schemas.ToolSelection, schemas.ThinkingConfig)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_of_a_body_is_named(body):
    assert set(body.__struct_fields__) <= NAMED


def test_every_block_stop_reason_and_error_is_named():
    tags = {block.__struct_config__.tag for block in get_args(schemas.ContentBlock)}
    types = {errors.error_type(status) for status in range(400, 600)}
    assert tags | types | {*get_args(answers.StopReason)} <= NAMED


def test_the_examples_match_the_schemas():
    found = re.findall(r"curl http://127.0.0.1:8000(/\S+) [^{]*?-d '(\{.*?\})'", PAGE, re.DOTALL)
    kinds = {"/v1/messages": schemas.MessagesRequest, "/v1/messages/count_tokens": schemas.CountTokensRequest}
    assert len(found) == 3
    for path, body in found:
        if '"max_token"' not in body:
            msgspec.json.decode(body, type=kinds[path])
