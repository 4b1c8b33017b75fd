"""Starts other Python processes of this package, from the same checkout and never from the current folder."""

import os
import sys


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module; without -P, a json.py in the current folder would be executed."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_environment() -> dict[str, str]:
    """The environment of such a process: this one with this import path."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def loader_environment() -> dict[str, str]:
    """Only what the dynamic linker may need to start this interpreter, as on clusters with environment modules."""
    return {name: value for name in ("LD_LIBRARY_PATH",) if (value := os.environ.get(name))}
