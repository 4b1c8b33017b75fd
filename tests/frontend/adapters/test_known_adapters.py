"""The adapters of several frontends, of which some start long after the first."""

import shutil

import pytest

from paged_serve.frontend.adapters.known_adapters import KnownAdapters
from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.config import Config, LoraConfig

from ..adapter_folders import make_adapter_folder


@pytest.fixture
def sql(tmp_path):
    return make_adapter_folder(tmp_path / "sql")


@pytest.fixture
def start(tmp_path, sql):
    """Starts a frontend of one server."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()

    def start() -> KnownAdapters:
        known = KnownAdapters(Config(lora=LoraConfig(adapters=(f"sql={sql}",), max_loras=1)), str(run_dir))
        known.read_configured()
        return known

    return start


def test_a_frontend_that_is_replaced_knows_an_adapter_whose_folder_has_changed_as_the_others_do(start, tmp_path):
    first = start()
    make_adapter_folder(tmp_path / "sql", b"new weights")
    assert start().get("sql") == first.get("sql")


@pytest.mark.parametrize("is_unloaded", [False, True])
def test_a_frontend_is_replaced_although_the_folder_of_an_adapter_is_gone(start, sql, is_unloaded):
    first = start()
    if is_unloaded:
        assert first.unload("sql")
    shutil.rmtree(sql)
    assert start().all() == first.all()
    assert len(first.all()) == (not is_unloaded)


def test_an_unloaded_adapter_of_the_options_can_be_loaded_again(start, sql):
    first, second = start(), start()
    assert second.unload("sql")
    assert first.get("sql") is None
    assert first.load("sql", sql) == second.get("sql") == start().get("sql")


def test_a_folder_that_is_missing_at_the_first_start_is_refused(start, sql):
    shutil.rmtree(sql)
    with pytest.raises(ConfigError, match="'sql'"):
        start()
