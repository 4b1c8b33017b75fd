"""docs/known-failures.md names tests as its evidence: each of them exists, and a row without one is marked open."""

import ast
import re

from house import ROOT

PAGE = (ROOT / "docs" / "known-failures.md").read_text()
NAMED = sorted(set(re.findall(r"`(\S+\.py)::(\w+)`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| reported")]


def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_test_that_the_page_names_exists():
    missing = [f"{file}::{name}" for file, name in NAMED if name not in names_in(file)]
    assert not missing
    assert len(NAMED) > 50


def test_every_row_has_a_test_or_is_marked_open():
    assert [row for row in ROWS if "::test_" not in row and "**open**" not in row] == []
    assert [row for row in ROWS if row.count("|") != 5] == [], "a row has four columns"
