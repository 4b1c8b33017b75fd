"""Ctrl-C before the command has begun."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

INTERRUPTED = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as from a terminal, wherever the tests were started
sys.meta_path.insert(0, Finder())
from paged_serve.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "status"),
    [("click", -signal.SIGINT), ("paged_serve.frontend.cli.main", -signal.SIGINT), ("paged_serve.protocol.errors", 1)],
)
def test_an_interrupt_while_modules_are_imported_ends_the_command_without_a_traceback(module, status):
    command = [sys.executable, "-c", INTERRUPTED.format(module=module), "ls"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_the_command_begins_there():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"paged-serve": "paged_serve.__main__:main"}
