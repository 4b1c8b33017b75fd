"""LoRA adapters over HTTP: as names of models, and their answers, keys and fingerprints."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

from paged_serve.frontend.adapters.folders import named_paths, read_adapter, with_adapters
from paged_serve.frontend.adapters.known_adapters import KnownAdapters
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, LoraConfig, ModelConfig

from ...adapter_folders import make_adapter_folder
from ...http_server import Server
from ..responses.stored_server import client_of, ended
from .adapter_server import models, serving, sql_folders

model = pytest.fixture(scope="module")(models)
sql = pytest.fixture(sql_folders)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


REQUESTS = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 2, "use_beam_search": True}),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"max_tokens": 4, **CHAT}),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 2}}),
    ("/v1/chat/completions/batch", {"messages": [CHAT["messages"]]}),
]
WITH_FINGERPRINT = [REQUESTS[number] for number in (0, 2, 5)]
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_the_model_of_a_request_chooses_the_adapter(model, sql, path, body):
    server = serving(model, f"sql={sql}")
    for name, adapter in (("sql", "sql"), ("model", None)):
        answer = server.ask("POST", path, {**body, "model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", name) == name
        [used] = {each and each.name for each in server.engine.adapters}
        assert used == adapter
        server.engine.adapters.clear()


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]}), ("/apply-template", CHAT)]
)
def test_routes_without_the_engine_know_the_names_of_adapters(model, sql, path, body):
    server = serving(model, f"sql={sql}")
    assert server.ask("POST", path, {**body, "model": "sql"}).status_code == 200
    assert server.ask("POST", path, {**body, "model": "sqk"}).status_code == 404


def test_models_lists_adapters_with_their_parent(model, sql):
    server = serving(model, f"sql={sql}")
    base, adapter = server.ask("GET", "/v1/models").json()["data"]
    assert (base["id"], base["parent"]) == ("model", None)
    assert (adapter["id"], adapter["parent"], adapter["root"]) == ("sql", "model", sql)
    assert server.ask("GET", "/v1/models/sql").json() == adapter
    anthropic = server.ask("GET", "/v1/models", **{"anthropic-version": "2023-06-01"}).json()
    assert [each["id"] for each in anthropic["data"]] == ["model", "sql"]


def test_an_unknown_name_is_answered_with_the_names_that_are_served(model, sql):
    answer = serving(model, f"sql={sql}").ask("POST", "/v1/completions", {"prompt": "a", "model": "sq"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "The model 'sq' does not exist; this server has model, sql."


def test_each_adapter_has_its_own_fingerprint(model, tmp_path, sql):
    other = make_adapter_folder(tmp_path / "other", b"other weights")
    server = serving(model, f"sql={sql}", f"other={other}", f"same={sql}")
    ask = {"prompt": "a", "max_tokens": 1}
    found = {
        name: server.ask("POST", "/v1/completions", {**ask, "model": name}).json()["system_fingerprint"]
        for name in ("model", "sql", "other", "same")
    }
    assert found["sql"] == found["same"]
    assert len(set(found.values())) == 3


@pytest.mark.parametrize(
    ("path", "body"),
    [*WITH_FINGERPRINT, *((path, {**body, **STREAMED}) for path, body in WITH_FINGERPRINT[:2])],
)
def test_an_answer_has_the_fingerprint_of_the_adapter_that_it_began_with(model, tmp_path, sql, path, body):
    """Another frontend replaces the adapter, then unloads it, each time while a request runs."""
    new = make_adapter_folder(tmp_path / "new", b"new weights")
    server = Server(model, run_dir=str(tmp_path), lora=LoraConfig(allow_loading=True))
    other, submit = KnownAdapters(Config(lora=LoraConfig(max_loras=1)), str(tmp_path)), server.engine.submit
    found = []
    for change in (lambda: None, lambda: other.load("sql", new, in_place=True), lambda: other.unload("sql")):
        other.load("sql", sql, in_place=True)

        def submit_and_change(*prompt, change=change, **terms):
            change()
            return submit(*prompt, **terms)

        server.engine.submit = submit_and_change
        answer = server.ask("POST", path, {**body, "model": "sql"})
        assert answer.status_code == 200, answer.text
        found.append(re.findall(r'"system_fingerprint":"([^"]+)"', answer.text))
    assert found[0] == found[1] == found[2] != []


def test_a_key_is_not_answered_with_the_former_adapter_of_the_same_name(model, tmp_path, sql):
    server = serving(model, allow_loading=True)
    load = {"lora_name": "sql", "lora_path": sql}
    assert server.ask("POST", "/v1/load_lora_adapter", load).status_code == 200
    body = {"prompt": "a", "model": "sql", "max_tokens": 1}
    first = server.ask("POST", "/v1/completions", body, **{"idempotency-key": "k"}).json()
    assert server.ask("POST", "/v1/completions", body, **{"idempotency-key": "k"}).json() == first
    make_adapter_folder(tmp_path / "sql", b"new weights")
    assert server.ask("POST", "/v1/load_lora_adapter", {**load, "load_inplace": True}).status_code == 200
    assert server.ask("POST", "/v1/completions", body, **{"idempotency-key": "k"}).status_code == 422


@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_repeated_key_has_its_stored_answer_after_its_adapter_was_unloaded(model, sql, more):
    server = serving(model, allow_loading=True)
    assert server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": sql}).status_code == 200
    body = {"prompt": "a", "model": "sql", "max_tokens": 3, **more}
    ask = partial(server.ask, "POST", "/v1/completions")
    first = ask(body, **{"idempotency-key": "k"})
    assert server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "sql"}).status_code == 200
    again = ask(body, **{"idempotency-key": "k"})
    assert (again.status_code, again.text) == (200, first.text)
    other = ask({**body, "max_tokens": 4}, **{"idempotency-key": "k"})
    assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
    assert ask(body, **{"idempotency-key": "new"}).status_code == 404
    if more:
        event_id = re.findall("id: (.*)", first.text)[1]
        rest = ask(body, **{"idempotency-key": "k", "last-event-id": event_id})
        assert rest.text == first.text.split(f"id: {event_id}\n")[1].partition("\n\n")[2]


@pytest.mark.parametrize("more", [{}, {"stream": True}])
def test_a_repeated_key_has_its_background_response_after_its_adapter_was_unloaded(model, sql, tmp_path, more):
    server = serving(model, allow_loading=True, server={"store_responses": str(tmp_path)})
    body = {"input": "hi", "model": "sql", "background": True, **more}

    async def run():
        async with client_of(server) as client:
            load = await client.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": sql})
            assert load.status_code == 200
            keyed = {"headers": {"idempotency-key": "k"}}
            first = await client.post("/v1/responses", json=body, **keyed)
            answer_id = re.search("resp_[0-9a-f]+", first.text)[0]
            await ended(client, answer_id)
            whole = first if more else await client.get(f"/v1/responses/{answer_id}")
            unload = await client.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
            assert unload.status_code == 200
            again = await client.post("/v1/responses", json=body, **keyed)
            assert (again.status_code, again.text) == (200, whole.text)
            other = await client.post("/v1/responses", json=body | {"input": "other"}, **keyed)
            assert (other.status_code, other.json()["error"]["param"]) == (422, "Idempotency-Key")
            new = await client.post("/v1/responses", json=body, headers={"idempotency-key": "new"})
            assert new.status_code == 404

    asyncio.run(run())


def test_a_changed_folder_is_another_adapter(tmp_path, sql):
    known = KnownAdapters(Config(lora=LoraConfig(max_loras=1)))
    first = known.load("sql", sql)
    assert known.load("sql", sql, in_place=True) == first
    make_adapter_folder(tmp_path / "sql", b"new weights")
    assert known.load("sql", sql, in_place=True).digest != first.digest


def test_a_folder_may_be_a_path_object(sql):
    assert read_adapter("sql", Path(sql), 64) == read_adapter("sql", sql, 64)


@pytest.mark.parametrize("entry", ["sql", "=path", "sql=", "{", '{"name": "sql"}'])
def test_a_wrong_entry_is_refused_with_the_form(entry):
    with pytest.raises(ConfigError, match="--lora"):
        named_paths(LoraConfig(adapters=(entry,)))


@pytest.mark.parametrize("name", ["a=b", "{a}", "="])
def test_a_name_in_json_may_have_the_characters_of_the_other_form(model, sql, name):
    entry = json.dumps({"name": name, "path": sql})
    server = serving(model, *with_adapters(Config(lora=LoraConfig(adapters=(entry,)))).lora.adapters)
    assert [each["id"] for each in server.ask("GET", "/v1/models").json()["data"]] == ["model", name]


@pytest.mark.parametrize(("name", "folder"), [("x", "\0"), ("x", "\udcff"), ("\udcff", "link")])
def test_a_name_and_a_folder_that_no_message_can_carry_are_refused_at_the_start(tmp_path, name, folder):
    with pytest.raises(ConfigError, match=r"LoRA adapter .*: its name and path are UTF-8 without NUL"):
        with_adapters(Config(lora=LoraConfig(adapters=(f"{name}={tmp_path}/{folder}",))))


def test_a_link_to_a_folder_whose_name_is_not_utf_8_leaves_the_other_adapters(model, tmp_path, sql):
    make_adapter_folder(tmp_path / "\udcff")
    (tmp_path / "link").symlink_to(tmp_path / "\udcff")
    server = Server(model, run_dir=str(tmp_path), lora=LoraConfig(allow_loading=True))
    for path, status in ((f"{tmp_path}/link", 400), (sql, 200)):
        load = {"lora_name": "sql", "lora_path": path}
        assert server.ask("POST", "/v1/load_lora_adapter", load).status_code == status


def test_one_name_cannot_mean_two_models(tmp_path):
    with pytest.raises(ConfigError, match="the base model has this name"):
        with_adapters(Config(model=ModelConfig(served_model_names=("x",)), lora=LoraConfig(adapters=("x=y",))))
    with pytest.raises(ConfigError, match="given twice"):
        with_adapters(Config(lora=LoraConfig(adapters=("x=y", "x=z"))))


def test_places_are_made_if_there_can_be_adapters():
    made = {
        options: with_adapters(Config(lora=LoraConfig(**dict(options)))).lora.max_loras
        for options in (
            (),
            (("adapters", ("x=y", '{"name": "z", "path": "y"}')),),
            (("enabled", True),),
            (("allow_loading", True),),
            (("enabled", True), ("max_loras", 3)),
        )
    }
    assert [*made.values()] == [0, 8, 8, 8, 3]
