"""The files of deploy/, read as their programs read them."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
INSTRUCTIONS = {
    *("ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL"),
    *("USER", "VOLUME", "WORKDIR"),
}


@dataclass(frozen=True)
class Instruction:
    """One line of a Dockerfile, continued ones joined."""

    name: str
    words: list[str]

    @property
    def flags(self) -> dict[str, str]:
        return dict(word.removeprefix("--").split("=", 1) for word in self.words if re.match(r"--[a-z-]+=", word))

    @property
    def plain(self) -> list[str]:
        return [word for word in self.words if not re.match(r"--[a-z-]+=", word)]


def dockerfile(path: Path) -> list[Instruction]:
    """The instructions of a Dockerfile. Raises ValueError for a line that is none."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        if name not in INSTRUCTIONS:
            raise ValueError(f"{path.name}: {line!r} begins with no instruction")
        exec_form = re.search(r"\[.*\]$", rest)
        before = rest[: exec_form.start()] if exec_form else rest
        found.append(Instruction(name, shlex.split(before) + (json.loads(exec_form[0]) if exec_form else [])))
    return found


def unit(path: Path) -> dict[str, dict[str, list[str]]]:
    """Section -> option -> values, in their order: options may come several times."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = sections.setdefault(header[1], {})
        else:
            name, equals, value = line.partition("=")
            assert equals, f"{path.name}: {line!r} is no option"
            section.setdefault(name, []).append(value)
    return sections
