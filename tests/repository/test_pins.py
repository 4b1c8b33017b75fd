"""constraints.txt pins every direct dependency within its declared range, and nothing twice."""

import re
import tomllib

from house import ROOT
from packaging.requirements import Requirement


def test_every_direct_dependency_is_pinned_within_its_range():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pins = dict(re.fullmatch(r"([a-z0-9.-]+)==(\S+)", line).groups() for line in lines)
    assert len(pins) == len(lines)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in map(Requirement, declared):
        if requirement.name != "torch":
            assert requirement.specifier.contains(pins[requirement.name.replace("_", "-")])
