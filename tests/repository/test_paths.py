"""Every script, program and test that a page, a recipe or a comment names exists."""

import functools
import re

from house import ROOMS, ROOT, SCRIPTS

ENDINGS = ("md", "py", "h", "cpp", "cu", "cuh")
FOLDERS = (*ROOMS, SCRIPTS, "docs", "csrc", "tests", "examples", "deploy")
AT_THE_TOP = ("README.md", "justfile", "setup.py", "pyproject.toml", "constraints.txt", ".ci/run")
NAMED_TEST = r"((?:\w+/)*test_\w+\.py)(?:::(test_\w+))?"
PROGRAMS = {path.name for path in (ROOT / SCRIPTS).rglob("*.py")}


@functools.cache
def texts() -> dict[str, str]:
    files = [path for folder in FOLDERS for ending in ENDINGS for path in (ROOT / folder).rglob(f"*.{ending}")]
    files += [ROOT / name for name in AT_THE_TOP]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}


def test_every_script_that_is_named_by_its_path_exists():
    named = [(where, path) for where, text in texts().items() for path in re.findall(r"\bscripts/[\w/]+\.\w+", text)]
    assert [f"{where} names {path}" for where, path in named if not (ROOT / path).is_file()] == []
    assert {where for where, _ in named} >= {"README.md", "justfile", "docs/benchmarks.md", ".ci/run"}


def test_every_program_explains_itself_with_help():
    """One that reads its arguments itself takes --help for a folder, or ignores it and runs."""
    programs = {path: path.read_text() for path in (ROOT / SCRIPTS).rglob("*.py")}
    silent = [str(path) for path, text in programs.items() if "__main__" in text and "ArgumentParser(" not in text]
    assert silent == []


def test_every_benchmark_that_a_page_names_without_its_folder_exists():
    pages = {where: text for where, text in texts().items() if where.endswith(".md")}
    named = [(where, name) for where, text in pages.items() for name in re.findall(r"\bbench_\w+\.py", text)]
    assert [f"{where} names {name}" for where, name in named if name not in PROGRAMS] == []
    assert {where for where, _ in named} >= {"docs/benchmarks.md"}


def test_every_test_that_is_named_exists():
    """Comments of nightly tests name the fast tests that stand for them."""
    files = [path for path in texts() if re.search(r"(^|/)test_\w+\.py$", path)]
    named = [(where, *found) for where, text in texts().items() for found in re.findall(NAMED_TEST, text)]
    wrong = []
    for where, path, function in named:
        found = [file for file in files if f"/{file}".endswith(f"/{path}")]
        if not found or (function and not any(f"def {function}(" in texts()[file] for file in found)):
            wrong.append(f"{where} names {path}::{function}")
    assert wrong == []
    assert len(named) > 100
