"""csrc/README.md lists the kernels: the folders of csrc have rows, and the files that it names exist."""

import re

from house import ROOT

CSRC = ROOT / "csrc"
PARTS = ("cpu", "cuda")


def rows_of(part: str) -> list[str]:
    """The rows of the part's table; both parts begin with their name and a colon."""
    text = (CSRC / "README.md").read_text().partition(f"\n`{part}/`: ")[2]
    return re.findall(r"^\| (`.*) \|$", text.partition("\n`cuda/`: ")[0], re.MULTILINE)


def test_every_folder_has_a_row():
    for part in PARTS:
        named = {folder for row in rows_of(part) for folder in re.findall(r"^`(\w+)/`", row)}
        assert named == {path.name for path in (CSRC / part).iterdir() if path.is_dir()}, part


def test_the_files_that_rows_name_exist():
    for part in PARTS:
        for row in rows_of(part):
            folder = (re.findall(r"^`(\w+)/`", row) or ["."])[0]
            for name in re.findall(r"`([\w/]+\.(?:h|cpp|cuh?))`", row):
                here = CSRC / part
                assert (here / folder / name).exists() or (here / name).exists(), (part, folder, name)
