"""The house's walls: which room may import what, no cycles inside a room, no file too long to read, no pickle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("protocol", "engine_core", "workers", "frontend")
MAY_IMPORT_ROOMS = {"protocol": set(), "engine_core": {"protocol"}, "workers": {"protocol"}, "frontend": {"protocol"}}
NEVER = {
    "protocol": {"torch", "numpy", "transformers", "cupy", "starlette", "uvicorn"},
    "engine_core": {"torch", "numpy", "transformers", "cupy", "starlette", "uvicorn"},
    "workers": {"transformers", "starlette", "uvicorn", "click"},
    "frontend": {"torch", "numpy", "cupy", "transformers"},
}
ZMQ_ONLY_IN = {
    *(f"protocol/{name}.py" for name in ("channel", "async_channel", "authentication", "curve")),
    *("engine_core/process.py", "workers/process.py"),
}
PICKLES = {"pickle", "cloudpickle", "marshal", "dill", "shelve"}
MAX_LINES = 500


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Absolute dotted names of everything `path` imports at run time, wherever in the file."""
    package = ["paged_serve", *path.relative_to(ROOT).parent.parts]
    tree = ast.parse(path.read_text())
    type_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_table_allows(room):
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        for name in imports(path):
            top, _, rest = name.partition(".")
            assert top not in NEVER[room], f"{where} imports {name}"
            assert top not in PICKLES, f"{where} imports {name}"
            assert top != "zmq" or room == "frontend" or where in ZMQ_ONLY_IN, f"{where} imports zmq"
            assert top not in ROOMS, f"{where} imports {name} as a top-level package; say paged_serve.{name}"
            if top == "paged_serve" and (other := rest.partition(".")[0]) in ROOMS:
                assert other == room or other in MAY_IMPORT_ROOMS[room], f"{where} imports {name}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_no_import_cycle(room):
    names = {}
    for path in sources(room):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(["paged_serve", *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    edges = {name: {other for other in imports(path) if other in names} - {name} for name, path in names.items()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join([*trail, name])
        if name not in done:
            for other in sorted(edges[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in names:
        visit(name, ())


@pytest.mark.parametrize("room", [*ROOMS, "scripts", "tests"])
def test_every_file_can_be_read_in_one_sitting(room):
    for path in sources(room):
        lines = path.read_text().count("\n")
        assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it (aim under 300)"


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_reads_the_environment_behind_the_configurations_back(room):
    allowed = {"frontend/cli/options.py", "protocol/log.py", "frontend/supervisor.py", "workers/process.py"}
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        if where not in allowed:
            for node in ast.walk(ast.parse(path.read_text())):
                bad = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
                assert not bad, (
                    f"{where}:{getattr(node, 'lineno', 0)} reads the environment; configuration comes in Config"
                )


@pytest.mark.parametrize("room", ROOMS)
def test_nobody_decides_by_the_clock_on_the_wall(room):
    """It may jump. These tell it to people, or let the removal of old files wait."""
    tells = {
        *("engine_core/step_log.py", "protocol/run_dir.py", "frontend/cli/doctor.py"),
        *(f"frontend/supervision/{name}.py" for name in ("bundle", "diagnosis", "flight_recorder")),
        *(f"frontend/http/{name}.py" for name in ("generate", "once", "service")),
        *(f"frontend/text/{name}.py" for name in ("chat_template", "template_renderer")),
    }
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        if where in tells or where.startswith("frontend/bench/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                assert name not in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow"), (
                    f"{where}:{node.lineno} reads {name}; decide by time.monotonic"
                )
