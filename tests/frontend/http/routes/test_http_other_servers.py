"""Routes of other servers: served in the same way, or refused with the reason."""

import json

import pytest

from paged_serve.frontend.http.routes.table import ROUTES
from paged_serve.frontend.http.routes.unsupported_routes import UNSUPPORTED_BELOW, UNSUPPORTED_ROUTES

from ...http_server import TEMPLATE, Server


def test_sagemakers_route_serves_completions_and_chats(folder):
    server = Server(folder, "hello")
    chat = server.good("/invocations", {"messages": [{"role": "user", "content": "x"}]})
    text = server.good("/invocations", {"prompt": "x"})
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "hello")
    assert (text["object"], text["choices"][0]["text"]) == ("text_completion", "hello")
    assert server.stream("/invocations", {"prompt": "x"})[0]["object"] == "text_completion"


@pytest.mark.parametrize(("body", "param"), [({}, "prompt"), ({"messages": []}, "messages"), (b"no JSON", None)])
def test_a_body_with_neither_prompt_nor_messages_is_refused(folder, body, param):
    response = Server(folder).ask("POST", "/invocations", body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_an_invocation_with_a_key_is_computed_once(folder):
    server = Server(folder)
    for _ in range(2):
        assert server.ask("POST", "/invocations", {"prompt": "x"}, **{"Idempotency-Key": "k" * 16}).status_code == 200
    assert len(server.engine.requests) == 1


def test_the_tokenizers_configuration_names_no_path(folder, tmp_path):
    for each in folder.iterdir():
        (tmp_path / each.name).write_bytes(each.read_bytes())
    declared = {"eos_token": "<|end|>", "model_max_length": 64, "name_or_path": "/home/x", "tokenizer_file": "/x/y"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
    assert Server(tmp_path).ask("GET", "/tokenizer_info").json() == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "model_max_length": 64,
        "chat_template": TEMPLATE,
    }


@pytest.mark.parametrize(
    "path",
    [
        *("/embeddings", "/reranking", "/v1/audio/transcriptions", "/sleep", "/start_profile"),
        *("/v1/responses/compact", "/v1/conversations", "/v2/chat", "/v1/chat/completions/render"),
        *("/pause", "/resume", "/is_paused", "/abort_requests", "/generative_scoring", "/scale_elastic_ep"),
    ],
)
def test_an_unsupported_route_is_refused_with_the_reason(folder, path):
    response = Server(folder).ask("POST", path, {})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (501, "NotImplementedError")
    assert error["message"] == f"{path} is not served here: {UNSUPPORTED_ROUTES[path]}."
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["/v1/conversations/c_1/items", "/v1/files/f_1", "/v1/batches/b_1/cancel"])
def test_what_is_in_an_unsupported_collection_is_refused_with_its_reason(folder, path):
    response = Server(folder).ask("GET", path)
    assert response.status_code == 501
    assert UNSUPPORTED_ROUTES["/".join(path.split("/")[:3])] in response.json()["error"]["message"]


def test_ollamas_clients_get_the_reason_in_their_form(folder):
    """They show the value of "error" as it is."""
    response = Server(folder).ask("POST", "/api/chat", {"model": "small", "messages": []})
    assert (response.status_code, response.headers["x-should-retry"]) == (501, "false")
    assert response.json() == {"error": f"/api/chat is not served here: {UNSUPPORTED_BELOW['/api/']}."}


def test_googles_clients_get_the_reason_for_every_model(folder):
    path = "/v1beta/models/small:generateContent"
    response = Server(folder).ask("POST", path, {})
    assert response.status_code == 501
    assert response.json()["error"]["message"] == f"{path} is not served here: {UNSUPPORTED_BELOW['/v1beta/']}."


def test_no_route_is_both_served_and_refused():
    assert not set(UNSUPPORTED_ROUTES) & {spec.path for spec in ROUTES}
    assert not [spec.path for spec in ROUTES if spec.path.startswith(tuple(UNSUPPORTED_BELOW))]
