"""docs/glossary.md is kept: its terms exist, and retired words do not come back as names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import ROOMS, ROOT, sources

RETIRED = {  # word of an identifier or file name: the term
    **dict.fromkeys(("orphan", "orphans", "adopt", "adopts", "adopted"), "abandoned request, reuse"),
    **dict.fromkeys(("quarantine", "culprit", "culprits"), "poison request"),
    **dict.fromkeys(("suspect", "suspects", "suspected"), "candidate, or invalidate for a block"),
    **dict.fromkeys(("trial", "trials"), "isolation"),
    **dict.fromkeys(("spare", "spares"), "standby worker"),
    **dict.fromkeys(("porter",), "early health"),
    **dict.fromkeys(("desk", "clerk"), "client link"),
    **dict.fromkeys(("tally",), "outcomes"),
    **dict.fromkeys(("news", "loud"), "output, detailed"),
    **dict.fromkeys(("reception",), "child messages"),
    **dict.fromkeys(("forget", "forgets"), "remove, or drop"),
    **dict.fromkeys(("who", "whom", "whoever", "nobody", "somebody", "everybody", "anybody"), "the thing's own name"),
}
ORDINARY: set[tuple[str, str]] = set()  # (file, word): where it is ordinary English
GLOSSARY = ROOT / "docs/glossary.md"
PERSONS = re.compile(r"\b(who|whom|whoever|whomever|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
METAPHORS = re.compile(r"\b(give|gives|gave|given|giving) way\b|(give|gives|giving)_way|\b(orphan|culprit|quarantine)")
OLD_NAMES = re.compile(r"\b(padded_rows|must_leave_rows|num_spare|silence_judge|PagedPlan|CudaPlan)\b")
QUOTED = ("scripts/demo_model/", "tests/frontend/cli/test_cli_chat.py")  # prompts


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file gives or uses."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.Name():
                yield node.lineno, node.id
            case ast.Attribute():
                yield node.lineno, node.attr
            case ast.arg() | ast.keyword() if node.arg:
                yield node.lineno, node.arg


def words(text: str) -> set[str]:
    """Identifiers are split at underscores and capitals."""
    return {word.lower() for word in re.findall(r"[A-Z]+[a-z]*|[a-z]+", text)}


@pytest.mark.parametrize("room", [*ROOMS, "tests", "scripts"])
def test_no_retired_word_is_a_name(room):
    found = []
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        to_parse = not RETIRED.keys().isdisjoint(words(text))  # parsing all files takes seconds
        for line, name in [(1, path.stem), *(names(ast.parse(text)) if to_parse else ())]:
            found += [
                f"{where}:{line}: {name}: say {RETIRED[word]}"
                for word in words(name)
                if word in RETIRED and (where, word) not in ORDINARY
            ]
    assert not found, "\n".join(sorted(set(found)))


def test_no_person_stands_for_a_thing():
    """The subject of a sentence is the process, the request, the block. docs/log.md is history."""
    files = [path for folder in (*ROOMS, "tests", "scripts") for path in sources(folder) if path != Path(__file__)]
    files += [path for ending in ("h", "cpp", "cu", "cuh") for path in (ROOT / "csrc").rglob(f"*.{ending}")]
    files += [path for path in (ROOT / "docs").rglob("*.md") if path.name != "log.md"] + [ROOT / "README.md"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if METAPHORS.search(line)
        or OLD_NAMES.search(line)
        or (PERSONS.search(line) and not path.relative_to(ROOT).as_posix().startswith(QUOTED))
    ]
    assert not found, "name the thing:\n" + "\n".join(found)


def test_the_glossary_is_short_and_its_terms_are_in_the_code():
    page = GLOSSARY.read_text()
    assert page.count("\n") <= 60
    code = "\n".join(f"{path.name}\n{path.read_text()}" for room in ROOMS for path in sources(room))
    spelled = set(re.findall(r"[A-Za-z_]+(?:\.py)?", code))
    in_code = [
        term for row in re.findall(r"^\|.*\| (`.*`) \|$", page, re.MULTILINE) for term in re.findall(r"`(.*?)`", row)
    ]
    assert len(in_code) > 40
    assert not [term for term in in_code if term not in spelled]
