"""GGUF models on the hub: `org/name:Q4_K_M`, or one file of a repository, `org/name/file.gguf`."""

import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from paged_serve.protocol.errors import ConfigError

OTHERS = ["*mmproj*", "*imatrix*"]  # parts of a model that are not served, and statistics
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_TAG = re.compile(r"((UD|i1)-)?(IQ\d|Q\d|TQ\d|BF16|F16|F32|FP16|MXFP4|NVFP4)\w*$", re.IGNORECASE)


def split_name(model: str) -> tuple[str, str, str]:
    """The repository, and the tag or the path of the file that `model` names besides, "" if none."""
    repository, _, tag = model.partition(":")
    if tag or not model.endswith(".gguf"):
        return repository, tag, ""
    organisation, name, path = model.split("/", 2)
    return f"{organisation}/{name}", "", path


def patterns(tag: str, path: str) -> list[str]:
    """Shell patterns of the files to download: those with this tag, in any case of its letters, or this one."""
    if path:
        first = _PART.search(Path(path).stem)
        return [path if first is None else f"{path[: path.rindex(first[0])]}-*.gguf"]
    anycase = "".join(f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in tag)
    return [f"{before}{anycase}{after}" for before in ("", "*[-._/]") for after in (".gguf", "-*-of-*.gguf", "/*.gguf")]


def choose(model: str, folder: Path, tag: str, path: str) -> Path:
    """The file to serve among the downloaded ones, the first of its parts.

    Raises ConfigError that names what there is instead.
    """
    if path:
        if not (folder / path).is_file():
            raise ConfigError(f"it has no file {path}")
        return folder / path
    wanted = re.compile(rf"(?:^|.*[-._/]){re.escape(tag)}(?:[-./].*)?\.gguf", re.IGNORECASE)
    names = [name for name in _models(folder) if wanted.fullmatch(name)]
    firsts = [name for name in names if not _PART.search(Path(name).stem) or "-00001-of-" in name]
    if len(firsts) == 1:
        return folder / firsts[0]
    repository = model.partition(":")[0]
    if not firsts:
        raise ConfigError(f"it has no GGUF file {tag}")
    raise ConfigError(f"several files are called {tag}; name one: {', '.join(f'{repository}/{n}' for n in firsts)}")


def tags(names: Iterable[str]) -> list[str]:
    """The tags by which the models among these files can be named."""
    stems = {_PART.sub("", Path(name).stem) for name in names if name.endswith(".gguf") and not _is_other(name)}
    found = (_TAG.search(stem) for stem in stems)
    return sorted({match[0] for match in found if match})


def _models(folder: Path) -> list[str]:
    """The GGUF files in `folder` that are models or parts of one, as paths in it."""
    names = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.gguf")))
    return [name for name in names if not _is_other(name)]


def _is_other(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in OTHERS)
