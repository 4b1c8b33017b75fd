"""docs/api.md and docs/llm.md name every route, request field, status, metric, and field of an output."""

import re
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from paged_serve.frontend.conversation import messages
from paged_serve.frontend.http.exchange import errors
from paged_serve.frontend.http.exchange.metrics import Metrics
from paged_serve.frontend.http.openai.request import schemas
from paged_serve.frontend.http.openai.token_generation.request import TokensRequest
from paged_serve.frontend.http.routes.table import ROUTES
from paged_serve.frontend.offline.outputs import CompletionOutput, RequestOutput
from paged_serve.protocol.messages.stats import KVTierStats

from ...fake_engine import STATS

PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
NAMED = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"[\w:]+", code)}
LLM_PAGE = (Path(__file__).parents[4] / "docs" / "llm.md").read_text()
BODIES = (
    schemas.CompletionRequest,
    schemas.ChatCompletionRequest,
    schemas.TokenizeTextRequest,
    schemas.TokenizeChatRequest,
    schemas.DetokenizeRequest,
    schemas.StreamOptions,
    messages.ChatMessage,
    messages.TextPart,
    messages.RefusalPart,
    messages.ToolCall,
    messages.FunctionCall,
)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_of_a_request_is_named(body):
    assert set(body.__struct_fields__) <= NAMED


@pytest.mark.parametrize("output", [RequestOutput, CompletionOutput], ids=lambda output: output.__name__)
def test_every_field_of_an_output_is_named(output):
    table = LLM_PAGE.split(f"| `{output.__name__}` | |\n")[1].split("\n\n")[0]
    assert {field.name for field in fields(output)} <= set(re.findall(r"`(\w+)`", table))


def test_every_first_cell_of_the_field_tables_names_a_field():
    known = {field for body in BODIES for field in body.__struct_fields__}
    rows = re.findall(r"^\| (`.*?) \|", section("Request fields"), re.M)
    assert len(rows) > 30
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} <= known


def test_every_route_and_every_status_is_listed():
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in section("Routes")
    for status, name in errors._TYPES.items():
        assert str(status) in section("Errors")
        assert name in section("Errors")


def test_every_metric_is_listed_and_none_that_is_not():
    metrics = Metrics("demo")
    text = metrics.exposition(msgspec.structs.replace(STATS, kv_tier=KVTierStats(used_bytes=0))).decode()
    there = set(re.findall(r"^# TYPE (paged:\w+)", text, re.M))
    assert set(re.findall(r"paged:\w+", section("Metrics"))) == there


def test_the_examples_match_the_schemas():
    found = re.findall(r"curl http://127.0.0.1:8000(/\S+) [^{]*?-d '(\{.*?\})'", PAGE, re.DOTALL)
    kinds = {"/v1/completions": schemas.CompletionRequest, "/v1/chat/completions": schemas.ChatCompletionRequest}
    kinds |= {"/tokenize": schemas.TokenizeTextRequest, "/inference/v1/generate": TokensRequest}
    assert len(found) == 7
    for path, body in found:
        if "temprature" not in body:
            msgspec.json.decode(body, type=kinds[path])
