"""The layout of the packages: the number of files, the longest import chain and the import cycles of each folder.

A folder's entries are its files and its subfolders; imports of files in a subfolder count for the subfolder. A floor is
one entry of the longest chain of imports among the entries. A circle is a set of entries that import each other.
Imports for types count, too. tests/repository/test_architecture.py checks the figures.
"""

import argparse
import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parent.parent
ROOMS = ("protocol", "engine_core", "workers", "frontend")
SCRIPTS = "scripts"

Graph: TypeAlias = Mapping[str, set[str]]  # node → the nodes that it imports


@dataclass(frozen=True, slots=True)
class Folder:
    path: str  # from the root: "engine_core/kv"
    num_files: int  # without __init__.py
    floors: tuple[str, ...]  # the longest chain of imports among the entries, the importing entry first
    circles: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]  # the other entries of the parent folder that this one imports


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(path: Path, *, types: bool) -> list[str]:
    """The absolute dotted names that `path` imports anywhere in the file; with `types` also the imports for types."""
    return [name for name, is_for_types in all_imports(path) if types or not is_for_types]


@cache
def all_imports(path: Path) -> list[tuple[str, bool]]:
    """(name, whether it is imported for types alone)."""
    package, text = ["paged_serve", *path.relative_to(ROOT).parent.parts], path.read_text()
    tree = ast.parse(text)
    blocks = type_blocks(tree) if "TYPE_CHECKING" in text else []
    for_types = {id(node) for block in blocks for node in ast.walk(block)}
    found: list[tuple[str, bool]] = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        found += [(name, id(node) in for_types) for name in names]
    return found


def type_blocks(tree: ast.Module) -> list[ast.If]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]


@cache
def file_imports(room: str) -> dict[str, frozenset[str]]:
    """For each file of a room, the files of the room that it imports; paths from the root, without __init__.py."""
    paths = [path for path in sources(room) if path.name != "__init__.py"]
    names = {".".join(["paged_serve", *path.relative_to(ROOT).with_suffix("").parts]): path for path in paths}
    as_file = {name: path.relative_to(ROOT).as_posix() for name, path in names.items()}
    return {
        as_file[name]: frozenset(
            as_file[other]
            for imported in imports(path, types=True)
            for other in full_names(imported, name, room)
            if other in names
        )
        - {as_file[name]}
        for name, path in names.items()
    }


def full_names(imported: str, importer: str, room: str) -> tuple[str, ...]:
    """A script imports the files beside it, and packages in scripts/, as top-level modules."""
    if room != SCRIPTS:
        return (imported,)
    return imported, f"{importer.rpartition('.')[0]}.{imported}", f"paged_serve.{SCRIPTS}.{imported}"


def entry_imports(folder: str) -> dict[str, set[str]]:
    """Which of a folder's entries import which: files by their stem, subfolders by their name with a slash."""
    edges: dict[str, set[str]] = {}
    for path, others in file_imports(folder.partition("/")[0]).items():
        if (here := entry(folder, path)) is not None:
            edges.setdefault(here, set()).update(there for other in others if (there := entry(folder, other)))
    return {name: others - {name} for name, others in edges.items()}


def entry(folder: str, path: str) -> str | None:
    if not path.startswith(f"{folder}/"):
        return None
    head, slash, _ = path.removeprefix(f"{folder}/").partition("/")
    return head + slash if slash else head.removesuffix(".py")


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """The sets of two or more nodes in which every node reaches every other."""
    reached = {node: reachable(graph, node) for node in graph}
    found = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in graph}
    return sorted(circle for circle in found if len(circle) > 1)


def reachable(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(graph[node])
    return seen


def longest_chain(graph: Graph) -> tuple[str, ...]:
    """The longest chain of imports; each node of a circle counts once."""
    known: dict[str, tuple[str, ...]] = {}

    def chain(node: str, above: tuple[str, ...]) -> tuple[str, ...]:
        if node not in known:
            below = [chain(other, (*above, node)) for other in sorted(graph[node]) if other not in above]
            known[node] = (node, *max(below, key=len, default=()))
        return known[node]

    return max((chain(node, ()) for node in sorted(graph)), key=len, default=())


def folders(room: str) -> list[str]:
    """The paths of the room itself and of every folder in it that has files."""
    paths = {path.parent.relative_to(ROOT).as_posix() for path in sources(room) if path.parent != ROOT / room}
    return [room, *sorted(paths)]


@cache
def read_folder(path: str) -> Folder:
    edges = entry_imports(path)
    parent, _, name = path.rpartition("/")
    imported = entry_imports(parent).get(f"{name}/", set()) if parent else set()
    num_files = sum(1 for file in (ROOT / path).glob("*.py") if file.name != "__init__.py")
    return Folder(path, num_files, longest_chain(edges), tuple(circles(edges)), tuple(sorted(imported)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join((*ROOMS, SCRIPTS))}; default: all")
    for room in parser.parse_args().rooms or (*ROOMS, SCRIPTS):
        whole = {path: set(others) for path, others in file_imports(room).items()}
        print(f"\n{room}: {len(whole)} files, longest chain of files {len(longest_chain(whole))}, ", end="")
        print(f"circles of files {len(circles(whole))}")
        print(f"{'folder':34} files floors circles imports")
        for folder in map(read_folder, folders(room)):
            print(f"{folder.path:34} {folder.num_files:5} {len(folder.floors):6} {len(folder.circles):7} ", end="")
            print(" ".join(folder.imports))
            for circle in folder.circles:
                print(f"{'':34} circle: {' '.join(circle)}")


if __name__ == "__main__":
    main()
