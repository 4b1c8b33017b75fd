"""Keys of a server: what they protect, and that each is a tenant with its own prefixes; pages of other origins."""

import pytest

from paged_serve.protocol.messages.config import CacheConfig

from ...http_server import Server


def test_each_key_has_separate_prefixes_unless_they_are_shared(folder):
    def salts(share=False, **options):
        server = Server(folder, options=options, cache=CacheConfig(share_prefixes=share))
        for key, salt in (("one", ""), ("one", ""), ("two", ""), ("one", "s"), ("two", "s")):
            body = {"prompt": "a", "cache_salt": salt} if salt else {"prompt": "a"}
            assert server.ask("POST", "/v1/completions", body, authorization=f"Bearer {key}").status_code == 200
        return [request.cache_salt for request in server.engine.requests]

    first, again, other, salted, other_salted = salts(api_keys=("one", "two"))
    assert first == again
    assert len({"", first, other, salted, other_salted}) == 5
    assert salts() == salts(share=True, api_keys=("one", "two")) == ["", "", "", "s", "s"]


def test_each_key_is_a_tenant_with_its_weight_and_a_name_other_than_the_key(folder):
    server = Server(folder, options={"api_keys": ("one", "two=2", "three"), "api_key_weights": (1.0, 3.0)})
    for key in ("one", "two=2", "three", "two=2"):
        answer = server.ask("POST", "/v1/completions", {"prompt": "x"}, authorization=f"Bearer {key}")
        assert answer.status_code == 200
    one, two, three, again = server.engine.requests
    assert [request.weight for request in (one, two, three)] == [1.0, 3.0, 1.0]
    assert len({one.tenant, two.tenant, three.tenant}) == 3
    assert again.tenant == two.tenant
    assert "two" not in two.tenant
    assert len(two.tenant) == 32
    keyless = Server(folder)
    keyless.complete()
    assert (keyless.engine.requests[0].tenant, keyless.engine.requests[0].weight) == ("", 1.0)


def test_keys_protect_everything_except_liveness(folder):
    server = Server(folder, options={"api_keys": ("one", "two")})
    for path in ("/v1/models", "//v1/models", "/metrics", "/openapi.json", "/ready", "/nothing", "/LIVE", "/live/"):
        for authorization in ("", "Bearer wrong", "Bearer ", "Basic one", "one", "Bearer one two"):
            response = server.ask("GET", path, authorization=authorization)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == 401
    assert server.ask("GET", "/live").status_code == 200
    for key in ("Bearer one", "bearer two"):
        assert server.ask("GET", "/v1/models", authorization=key, host="any.name").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost", "origin": "http://evil.example"}, 403),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
    ],
)
def test_a_local_server_refuses_pages_of_other_origins(folder, headers, status):
    assert Server(folder).ask("GET", "/v1/models", **headers).status_code == status


@pytest.mark.parametrize(
    ("served_on", "host", "status"),
    [("127.0.0.2", "127.0.0.2:8000", 200), ("0:0:0:0:0:0:0:1", "evil.example", 403), ("::1", "[::1]", 200)],
)
def test_every_spelling_of_this_machine_is_local(folder, served_on, host, status):
    assert Server(folder, options={"host": served_on}).ask("GET", "/v1/models", host=host).status_code == status
