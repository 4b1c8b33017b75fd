"""What modules of tests import at their heads, every process of pytest imports before its first test."""

import ast
import re

from house import ROOT


def is_imported_at_head(package, path):
    text = path.read_text()
    if not re.search(rf"^(from|import) {package}\b", text, re.MULTILINE):  # also in programs that tests write
        return False
    names = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return package in [name.partition(".")[0] for name in names]


def test_no_test_imports_transformers_at_its_head():
    """One to two seconds of a core, with torch.compile; a function imports it where it is used."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")
             if is_imported_at_head("transformers", path)]  # fmt: skip
    assert files == []


def test_the_process_that_distributes_tests_imports_no_torch():
    """Those of pytest-xdist that run them start when it has loaded tests/conftest.py."""
    assert not is_imported_at_head("torch", ROOT / "tests/conftest.py")
    assert is_imported_at_head("torch", ROOT / "tests/workers/conftest.py")
