"""Fixtures shared by the tests of the frontend."""

import pytest

from paged_serve.protocol.transport.run_dir import make_run_dir, remove_run_dir

from .fake_core import FakeCore
from .frontend_process import FrontendUnderTest
from .http_server import make_model_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model folder with a tokenizer of one token per byte."""
    return make_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run_dir():
    path = make_run_dir()
    yield path
    remove_run_dir(path)


@pytest.fixture
def start_core(run_dir):
    """start_core(...) -> a FakeCore in this run's directory, ended with the test."""
    cores = []

    def start(**options):
        cores.append(FakeCore(run_dir, **options))
        return cores[-1]

    yield start
    for core in cores:
        core.kill()


@pytest.fixture
def start_frontend(run_dir, folder):
    """start_frontend(**server options) -> a FrontendUnderTest with the tiny tokenizer, ended with the test."""
    frontends = []

    def start(**server):
        frontends.append(FrontendUnderTest(run_dir, folder, **server))
        return frontends[-1]

    yield start
    for frontend in frontends:
        frontend.close()
