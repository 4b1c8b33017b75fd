"""Adapters loaded and unloaded over HTTP: with whose permission, what is refused, and what a full disk leaves."""

import sys

import pytest

from paged_serve.frontend.adapters.known_adapters import KnownAdapters, NotRecorded
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, LoraConfig

from ....plugins.test_loading import PACKAGE
from ....workers.tier.accidents import full_disk
from ...adapter_folders import make_adapter_folder
from ...http_server import Server
from .adapter_server import models, serving, sql_folders

model = pytest.fixture(scope="module")(models)
sql = pytest.fixture(sql_folders)


def test_clients_load_and_unload_adapters(model, sql):
    server = serving(model, allow_loading=True)
    load = server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": sql})
    assert (load.status_code, load.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "model": "sql"}).status_code == 200
    unload = server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "sql"})
    assert (unload.status_code, unload.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "model": "sql"}).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("load", {"lora_name": "x"}, 400, "Both 'lora_name' and 'lora_path' must be provided."),
        (
            "load",
            {"lora_name": "x", "lora_path": "/none"},
            404,
            "LoRA adapter 'x': /none/adapter_config.json cannot be",
        ),
        ("load", {"lora_name": "x", "lora_path": "/"}, 400, "LoRA adapter 'x': /adapter_config.json"),
        ("load", {"lora_name": "model", "lora_path": "/none"}, 400, "The base model has the name 'model'"),
        ("load", {"lora_name": "sql", "lora_path": "/none"}, 400, "The lora adapter 'sql' has already been loaded."),
        ("load", {"lora_name": "x", "lora_path": "~\0"}, 404, "LoRA adapter 'x': its name and path are UTF-8 "),
        ("unload", {}, 400, "'lora_name' needs to be provided to unload a LoRA adapter."),
        ("unload", {"lora_name": "y"}, 404, "The lora adapter 'y' cannot be found."),
    ],
)
def test_wrong_loads_and_unloads_are_refused_by_name(model, sql, path, body, status, message):
    server = serving(model, f"sql={sql}", allow_loading=True)
    answer = server.ask("POST", f"/v1/{path}_lora_adapter", body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(message)


def test_a_name_that_is_too_long_is_refused_also_for_a_folder_that_is_known(model, tmp_path, sql):
    server = Server(model, run_dir=str(tmp_path), lora=LoraConfig(adapters=(f"sql={sql}",), allow_loading=True))
    answer = server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x" * 257, "lora_path": sql})
    assert answer.status_code == 400
    assert "has 1 to 256 characters" in answer.json()["error"]["message"]
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "model": "model"}).status_code == 200


def test_a_folder_below_the_home_folder_is_found_before_it_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    server = serving(model, allow_loading=True)
    for path, status in (("~", 400), ("~/none", 404)):
        answer = server.ask("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert answer.status_code == status
        assert f"{tmp_path}/" in answer.json()["error"]["message"]


def test_loading_needs_the_operators_permission(model, sql):
    answer = serving(model).ask("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": sql})
    assert answer.status_code == 403
    assert "--allow-lora-loading" in answer.json()["error"]["message"]


def test_all_frontends_know_what_one_has_loaded_and_unloaded(model, tmp_path, sql):
    lora = LoraConfig(adapters=(f"first={sql}",), allow_loading=True)
    one, other = (Server(model, lora=lora, run_dir=str(tmp_path)) for _ in range(2))
    assert one.ask("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": sql}).status_code == 200
    assert other.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "first"}).status_code == 200
    for server in (one, other, Server(model, lora=lora, run_dir=str(tmp_path))):  # the last replaces one that died
        assert [each["id"] for each in server.ask("GET", "/v1/models").json()["data"]] == ["model", "sql"]
    assert one.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "sql"}).status_code == 200
    assert len(other.ask("GET", "/v1/models").json()["data"]) == 1


@pytest.mark.parametrize(
    ("route", "body"), [("load", {"lora_name": "sql", "lora_path": ""}), ("unload", {"lora_name": "first"})]
)
def test_a_full_run_directory_is_named_with_the_remedy(model, tmp_path, sql, route, body):
    lora = LoraConfig(adapters=(f"first={sql}",), allow_loading=True)
    server = Server(model, run_dir=str(tmp_path), lora=lora)
    body = {name: value or sql for name, value in body.items()}
    with full_disk(10):
        answer = server.ask("POST", f"/v1/{route}_lora_adapter", body)
    assert answer.status_code == 503, answer.text
    message = answer.json()["error"]["message"]
    assert f"run directory {tmp_path}" in message
    assert "free space there" in message
    assert server.ask("POST", f"/v1/{route}_lora_adapter", body).status_code == 200


def test_what_a_full_disk_refuses_is_not_half_known(tmp_path, sql):
    known = KnownAdapters(Config(lora=LoraConfig(adapters=(f"first={sql}",), max_loras=1)), str(tmp_path))
    known.read_configured()
    with full_disk(10):
        for change in (lambda: known.load("sql", sql), lambda: known.unload("first")):
            with pytest.raises(OSError, match="File too large"):
                change()
    assert known.all().keys() == {"first"}
    known.load("sql", sql)
    assert known.unload("first")
    assert known.all().keys() == {"sql"}


def test_a_run_directory_without_a_place_for_a_lock_is_named_too(tmp_path, sql):
    known = KnownAdapters(Config(lora=LoraConfig(max_loras=1)), str(tmp_path / "gone"))
    for change in (lambda: known.load("sql", sql), lambda: known.unload("sql")):
        with pytest.raises(NotRecorded, match=f"run directory {tmp_path / 'gone'}: "):
            change()


@pytest.fixture
def installed_plugin(monkeypatch):
    monkeypatch.syspath_prepend(PACKAGE)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_serve"]:
        del sys.modules[name]


def test_a_plugin_finds_the_folder_of_an_unknown_name(model, sql, installed_plugin):
    server = Server(model, plugins=("acme",), lora=LoraConfig(allow_loading=True))
    name = f"acme:{sql}"
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "model": name}).status_code == 200
    assert server.engine.adapters[0].path == sql
    assert server.ask("POST", "/v1/completions", {"prompt": "a", "model": "unknown"}).status_code == 404
    bad = server.ask("POST", "/v1/completions", {"prompt": "a", "model": "acme:/none"})
    assert bad.status_code == 404
    assert "/none/" not in bad.text
    assert server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}).status_code == 200
    assert len(server.ask("GET", "/v1/models").json()["data"]) == 1


def test_a_rank_beyond_the_limit_is_refused_with_the_remedy(model, tmp_path):
    large = make_adapter_folder(tmp_path / "large", r=128)
    with pytest.raises(ConfigError, match=r"LoRA adapter 'x': its rank is 128; this server accepts at most 64. Raise"):
        serving(model, f"x={large}")
