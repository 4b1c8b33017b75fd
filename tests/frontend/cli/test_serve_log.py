"""What `serve` writes to standard error goes through its log, which waits for no reader."""

import contextlib
import logging
import os

import pytest

from paged_serve.frontend import progress_bar
from paged_serve.frontend.cli.serve import serve
from paged_serve.frontend.config.model_folder import demo_model_folder
from paged_serve.protocol.messages.config import Config, ServerConfig
from paged_serve.protocol.process import log_writer

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


class LoadingSupervisor:
    """A supervisor that only reports its progress."""

    def __init__(self, config, http_socket):
        http_socket.close()

    def signals(self):
        return contextlib.nullcontext()

    def start(self):
        pass

    def run(self, on_progress, on_ready):
        for done in range(3):
            on_progress("loading weights", done, 2)
        return 0


@pytest.fixture
def log_pipe(monkeypatch):
    """The end of a pipe to read the log from; the root logger is restored."""
    reading, writing = os.pipe()
    monkeypatch.setattr(log_writer, "_STDERR", writing)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield reading
    root.handlers[:] = handlers
    root.setLevel(level)
    os.close(reading)
    os.close(writing)


def test_a_server_writes_its_progress_to_its_log(log_pipe, monkeypatch):
    monkeypatch.setattr("paged_serve.frontend.supervision.supervisor.Supervisor", LoadingSupervisor)
    monkeypatch.setattr(progress_bar, "PLAIN_LINE_S", 0.0)
    assert serve(Config(server=ServerConfig(port=0))) == 0
    logging.getLogger().handlers[0].flush()
    assert os.read(log_pipe, 4096).splitlines() == [b"loading weights %d%%" % done for done in (0, 50, 100)]
