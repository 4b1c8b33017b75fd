"""docs/protocol.md agrees with the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from paged_serve.protocol.messages.handshake import UNIONS
from paged_serve.protocol.messages.message import Message, Record, struct_types

ROOT = Path(__file__).parents[3]
STRUCTS = struct_types(*UNIONS.values())


@pytest.fixture(scope="module")
def make_docs():
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts/make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_up_to_date(make_docs):
    assert make_docs.main(["--check"]) == 0, "run `just docs` and commit the result"


def test_a_check_detects_a_stale_page_and_does_not_overwrite_it(make_docs, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(make_docs, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs/protocol.md"
    page.write_text("old")
    assert make_docs.main(["--check"]) == 1
    assert "docs/protocol.md" in capsys.readouterr().err
    assert page.read_text() == "old"
    assert make_docs.main([]) == 0
    assert make_docs.main(["--check"]) == 0
    assert page.read_text() == make_docs.protocol_page()


@pytest.mark.parametrize("cls", STRUCTS)
def test_every_message_and_part_states_its_purpose(cls):
    assert cls.__doc__
    assert cls.__doc__ not in (Message.__doc__, Record.__doc__)


def test_every_message_and_field_is_on_the_page(make_docs):
    page = make_docs.protocol_page()
    for cls in STRUCTS:
        section = page.partition(f"### {make_docs.title(cls)}\n")[2].partition("\n### ")[0]
        assert section, cls
        for name in cls.__struct_fields__:
            assert f"| `{name}` |" in section


def test_the_comment_beside_a_field_is_its_meaning(make_docs):
    page = make_docs.protocol_page()
    assert "| required | assigned by the client, unique on its connection, never reused |" in page
    assert (
        "token_classify: the columns of the answer, in this order; empty: all" in page
    )  # on a line of its own in the source


def test_every_link_inside_the_page_has_a_target(make_docs):
    page = make_docs.protocol_page()
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert set(re.findall(r"\(#([^)]+)\)", page)) <= set(anchors)
    assert len(anchors) == len(set(anchors)), "two headings have one anchor"
