"""docs/compatibility.md names tests as its evidence: each of them exists, and a row that says "has" has one."""

import re

from house import ROOT

from .test_known_failures import names_in

PAGE = (ROOT / "docs" / "compatibility.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.endswith("| state | test |")]


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(\S+\.py)::(\w+)`", PAGE))
    assert [f"{file}::{name}" for file, name in sorted(named) if name not in names_in(file)] == []
    assert len(named) > 35


def test_what_the_server_has_is_shown_by_a_test():
    states = [row.split(" | ")[1] for row in ROWS]
    assert [row for row, state in zip(ROWS, states, strict=True) if state.startswith("has") and "::" not in row] == []
    assert {re.split(r"[ ,;:]", state)[0] for state in states} <= {
        "has",
        "not",
        "refused",
        "true",
        "1",
        "false",
        "`auto`",
    }
