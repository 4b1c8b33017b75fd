"""Pooling over HTTP as a service: refusals, full engines, keys, limits, and its documents."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from paged_serve.frontend.http.routes.pooling.routes import POOLING_ROUTES
from paged_serve.frontend.run_batch.batch_file import POOLING_URLS
from paged_serve.protocol.errors import EngineDead, InvalidRequest, Overloaded, RequestExpired, RequestFailed

from ...http_server import Server
from .pooling_server import numbers, pooling_server

PAGE = (Path(__file__).parents[4] / "docs" / "pooling.md").read_text()
E, P = "/v1/embeddings", "/pooling"


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (InvalidRequest("no", "input"), 400),
        (Overloaded("full", 3.0), 429),
        (Overloaded("ends", 3.0, draining=True), 503),
        (RequestExpired("late"), 504),
        (RequestFailed("kills"), 500),
        (EngineDead("gone"), 500),
    ],
)
def test_a_refusal_has_its_status_and_aborts_running_prompts(folder, refusal, status):
    server = pooling_server(folder)
    server.engine.refusals = [refusal]
    response = server.ask("POST", E, {"input": ["a", "b", "c"]})
    assert response.status_code == status
    assert all(each.aborted for each in server.engine.pooled)
    assert server.admission.num_active == 0


def test_prompts_refused_by_a_full_engine_are_submitted_again(folder):
    server = pooling_server(folder)
    texts = [chr(97 + i) for i in range(20)]
    data, asked = [], len(texts)
    server.engine.pool = _full_in_between(server, Overloaded("full", 0.01))
    data = server.good(E, {"input": texts})["data"]
    assert [each["embedding"] for each in data] == [numbers(server, server.tokenizer.encode(text)) for text in texts]
    assert len(server.engine.pooled) == asked + 1


def _full_in_between(server: Server, full: Overloaded):
    pool = server.engine.pool

    def asked(*args: object, **terms: object):
        request = pool(*args, **terms)
        request.refusals = [full] if len(server.engine.pooled) == 12 else []
        return request

    return asked


def test_few_prompts_of_one_request_are_in_flight_at_once(folder):
    server = pooling_server(folder)
    most, num_asked, pool = 2 * server.engine.limits.max_num_seqs, [], server.engine.pool

    def asked(*args: object, **terms: object):
        num_asked.append(sum(each.answer.times is None for each in server.engine.pooled))
        return pool(*args, **terms)

    server.engine.pool = asked
    server.good(E, {"input": ["a"] * 100})
    assert max(num_asked) == most - 1
    assert len(num_asked) == 100


def test_a_request_with_a_key_is_computed_once(folder):
    server = pooling_server(folder)
    key = {"Idempotency-Key": "k" * 16}
    first, second = (server.ask("POST", E, {"input": "abc"}, **key) for _ in range(2))
    assert first.content == second.content
    assert first.json()["data"]
    assert len(server.engine.pooled) == 1
    other = server.ask("POST", E, {"input": "abd"}, **key)
    assert other.status_code == 422


def test_request_ids_logs_and_metrics_are_those_of_generations(folder, caplog):
    server = pooling_server(folder)
    with caplog.at_level("INFO", "http.access"):
        response = server.ask("POST", E, {"input": ["abc", "d"]}, **{"X-Request-Id": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert response.json()["id"] == "embd-mine"
    assert "path=/v1/embeddings status=200" in caplog.text
    metrics = server.metrics()
    assert 'paged:request_prompt_tokens_sum{engine="0",frontend="0",model_name="tiny"} 4.0' in metrics
    ended = 'engine="0",finished_reason="stop",frontend="0",model_name="tiny"'
    assert f"paged:request_success_total{{{ended}}} 2.0" in metrics


def test_each_key_has_separate_prefixes(folder):
    server = pooling_server(folder, api_keys=("key-of-one", "key-of-another"))
    for key in ("key-of-one", "key-of-another"):
        assert server.ask("POST", E, {"input": "abc"}, Authorization=f"Bearer {key}").status_code == 200
    first, second = (each.terms for each in server.engine.pooled)
    assert first["tenant"] != second["tenant"]
    assert first["cache_salt"] != second["cache_salt"]
    assert server.ask("POST", E, {"input": "abc"}).status_code == 401


def test_a_proxys_prefix_is_stripped(folder):
    server = pooling_server(folder, root_path="/api")
    assert server.ask("POST", "/api/v1/embeddings", {"input": "abc"}).status_code == 200


def test_an_answer_that_never_fits_is_refused_with_the_remedy(folder):
    server = pooling_server(folder, ("token_embed",), max_buffered_bytes=8 << 20)
    body = {"input": ["a" * 64] * 150}
    response = server.ask("POST", P, body)
    assert response.status_code == 400
    assert "Ask for less at a time" in response.json()["error"]["message"]
    assert not server.engine.pooled
    assert server.ask("POST", P, {"input": ["a" * 64] * 20}).status_code == 200


def test_the_openapi_document_has_the_bodies(folder):
    document = json.loads(pooling_server(folder).ask("GET", "/openapi.json").content)
    post = document["paths"][E]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/EmbeddingRequest"
    }
    assert "dimensions" in document["components"]["schemas"]["EmbeddingRequest"]["properties"]
    ids = [document["paths"][spec.path]["post"]["operationId"] for spec in POOLING_ROUTES]
    assert len(ids) == len(set(ids))


def test_the_page_names_every_route_and_field_and_its_examples_are_requests():
    named = {word for code in re.findall(r"`([^`\n]+)`", PAGE) for word in re.findall(r"\w+", code)}
    bodies = {spec.path: spec.bodies[0] for spec in POOLING_ROUTES}
    for path, body in bodies.items():
        assert path in PAGE
        assert {*body.__struct_fields__} <= named
    found = re.findall(r"curl http://127.0.0.1:8000(/\S+) [^{]*?-d '(\{.*?\})'", PAGE, re.DOTALL)
    assert len(found) == 7
    for path, body in found:
        msgspec.json.decode(body, type=bodies[path])


def test_a_batch_file_accepts_every_pooling_route():
    assert {*POOLING_URLS} == {spec.path for spec in POOLING_ROUTES}
