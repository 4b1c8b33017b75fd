"""Folders that a server writes to may begin with a "~": a shell replaces it only at the beginning of a word."""

from pathlib import Path

import pytest

from paged_serve.frontend.chat.reader import history_file
from paged_serve.frontend.cli.serve import with_local_model
from paged_serve.frontend.config.llm_options import config_of
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.frontend.config.options import resolve
from paged_serve.frontend.supervision.flight_recorder.bundle import dump_folder
from paged_serve.protocol.errors import ConfigError

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


@pytest.mark.parametrize(
    ("option", "layer", "field"),
    [
        ("kv_tier_dir", "kv_tier", "dir"),
        ("packed_weights_dir", "model", "packed_weights_dir"),
        ("store_responses", "server", "store_responses"),
    ],
)
def test_the_home_folder_is_put_in_place_of_a_tilde(monkeypatch, option, layer, field):
    monkeypatch.setenv("HOME", "/home/me")
    for given, expected in (("~/kept", "/home/me/kept"), ("kept", "kept"), ("", "")):
        for config in (with_local_model(resolve({option: given}, {}).config)[0], config_of("", {option: given})):
            assert getattr(getattr(config, layer), field) == expected


@pytest.fixture
def homeless(monkeypatch):
    """A user that the system does not know, as in a container with `--user`, without HOME."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)


def test_without_a_home_folder_none_is_made_in_the_current_one(homeless):
    with pytest.raises(ConfigError, match="kv_tier_dir=~/kept: this user has no home folder"):
        with_local_model(resolve({"kv_tier_dir": "~/kept"}, {}).config)
    assert dump_folder("") is None
    assert history_file() is None
    assert dump_folder("/var/lib") == Path("/var/lib/paged-serve/dumps")


def test_reports_are_below_the_home_folder_too(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert dump_folder("~/mine") == Path("/home/me/mine/paged-serve/dumps")


def test_xdg_folders_that_are_relative_are_ignored():
    given = resolve({}, {"XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "/cache"}).config
    assert (given.server.dump_dir, given.model.cache_dir) == ("/state", "/cache")
    assert resolve({}, {"XDG_STATE_HOME": "state", "XDG_CACHE_HOME": "../cache"}).config == resolve({}, {}).config
