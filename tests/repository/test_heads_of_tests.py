"""What modules of tests import at their heads, every process of pytest imports before its first test."""

import ast
import re

from house import ROOT


def imported_at_heads(name):
    """The modules of tests whose first level imports the package."""
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if not re.search(rf"^(from|import) {name}\b", text, re.MULTILINE):
            continue
        for node in ast.parse(text).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            if name in [each.split(".")[0] for each in names]:
                yield path.relative_to(ROOT).as_posix()


def test_no_test_imports_transformers_at_its_head():
    """One to two seconds of a core, with torch.compile; a function imports it where it is used."""
    assert list(imported_at_heads("transformers")) == []


def test_the_process_that_distributes_tests_imports_no_torch():
    """pytest-xdist's first process loads tests/conftest.py, and nothing waits for less than that."""
    assert "tests/conftest.py" not in imported_at_heads("torch")
    assert "tests/workers/conftest.py" in imported_at_heads("torch")
