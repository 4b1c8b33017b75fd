"""The architecture: which package may import which, the layout of folders, the length of files, no pickle."""

import ast
import re

import house
import pytest
from house import ROOMS, ROOT, SCRIPTS, sources

MAY_IMPORT_ROOMS = {"protocol": set(), "engine_core": {"protocol"}, "workers": {"protocol"}, "frontend": {"protocol"}}
NEVER = {
    "protocol": {"torch", "numpy", "transformers", "cupy", "starlette", "uvicorn"},
    "engine_core": {"torch", "numpy", "transformers", "cupy", "starlette", "uvicorn"},
    "workers": {"transformers", "starlette", "uvicorn", "click"},
    "frontend": {"torch", "numpy", "cupy", "transformers"},
}
TRANSFORMERS_ONLY_IN = {"workers/models/transformers_impl/library.py"}  # an optional extra, loaded when it is needed
ZMQ_ONLY_IN = {
    *(f"protocol/transport/{name}.py" for name in ("channel", "async_channel", "authentication", "curve")),
    *("engine_core/process/engine_process.py", "engine_core/process/event_sockets.py"),
    "workers/process/worker_process.py",
}
PICKLES = {"pickle", "cloudpickle", "marshal", "dill", "shelve"}
MAX_LINES = 500
MAX_LINES_OF_A_FUNCTION = 40  # without its signature and docstring
MAY_BE_TOO_LONG = re.compile(
    rf"^( *)(?:async )?def .*(?:\n(?:\1[ )].*)?){{{MAX_LINES_OF_A_FUNCTION + 1}}}", re.MULTILINE
)
MAX_FILES = 12  # of a folder
MAX_FLOORS = 6  # of a folder's entries: the longest chain of imports among its files and subfolders
READ_ONLY_ASCII = {  # files of /proc and /sys, and numbers and names that this server has written
    *(f"workers/{name}.py" for name in ("distributed/cpu_quota", "distributed/memory", "distributed/threads")),
    *("workers/process/machine.py", "workers/tier/identity.py"),
    *("protocol/process/lifecycle.py", "protocol/process/lifeline.py", "protocol/transport/authentication.py"),
    *("frontend/cli/main.py", "frontend/supervision/processes/out_of_memory.py"),
    *("frontend/bench/processes.py", "frontend/bench/report/report.py"),
}
CATALOGUES = {"workers/models/families"}  # files that are equals, of which any number may lie in one folder


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_table_allows(room):
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        for name in house.imports(path, types=False):
            top, _, rest = name.partition(".")
            assert top not in NEVER[room] or (top == "transformers" and where in TRANSFORMERS_ONLY_IN), (
                f"{where} imports {name}"
            )
            assert top not in PICKLES, f"{where} imports {name}"
            assert top != "zmq" or room == "frontend" or where in ZMQ_ONLY_IN, f"{where} imports zmq"
            assert top not in ROOMS, f"{where} imports {name} as a top-level package; say paged_serve.{name}"
            if top == "paged_serve" and (other := rest.partition(".")[0]) in ROOMS:
                assert other == room or other in MAY_IMPORT_ROOMS[room], f"{where} imports {name}"


FOLDERS = [folder for room in (*ROOMS, SCRIPTS) for folder in house.folders(room)]


@pytest.mark.parametrize("path", FOLDERS)
def test_a_folder_has_few_files_few_floors_and_no_circle(path):
    folder = house.read_folder(path)
    assert folder.num_files <= MAX_FILES or folder.path in CATALOGUES, f"{folder.path} has {folder.num_files} files"
    assert len(folder.floors) <= MAX_FLOORS, f"{folder.path}: a tower of imports: " + " -> ".join(folder.floors)
    assert not folder.circles, f"{folder.path} has circles of imports: {folder.circles}"


def test_the_map_of_the_docs_names_every_folder_and_only_what_exists():
    page = (ROOT / "docs/architecture.md").read_text()
    tops = (*ROOMS, SCRIPTS)
    named = set(re.findall(rf"`((?:{'|'.join(tops)})/[a-z_/]+)/`", page))
    with_files = {path for path in FOLDERS if house.read_folder(path).num_files}
    assert with_files - {*tops} <= named <= {*FOLDERS}
    for path in re.findall(rf"`((?:{'|'.join(tops)})/[a-z_/]+\.py)`", page):
        assert (ROOT / path).is_file(), f"docs/architecture.md names {path}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_file_to_open_first_exists(room):
    for path in sources(room):
        if path.name == "__init__.py" and (named := re.search(r"Open (\S+?\.py) first", path.read_text())):
            assert (path.parent / named[1]).is_file(), f"{path.relative_to(ROOT)} names {named[1]}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_itself_holds_no_code(room):
    """Otherwise `from ..package import name` would add imports that the count of chains and circles misses."""
    for path in sources(room):
        if path.name == "__init__.py":
            assert len(ast.parse(path.read_text()).body) <= 1, f"{path.relative_to(ROOT)} holds more than a docstring"


@pytest.mark.parametrize("room", [*ROOMS, "scripts", "tests"])
def test_no_file_exceeds_the_length_limit(room):
    for path in sources(room):
        lines = path.read_text().count("\n")
        assert lines <= MAX_LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it (aim under 300)"


@pytest.mark.parametrize("room", [*ROOMS, "scripts", "tests"])
def test_a_function_fits_on_a_page(room):
    for path in sources(room):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if MAY_BE_TOO_LONG.search(text) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body if ast.get_docstring(node) is None else node.body[1:] or node.body
                lines = body[-1].end_lineno - body[0].lineno + 1
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                assert lines <= MAX_LINES_OF_A_FUNCTION, f"{place}: {node.name} has {lines} lines; split it"


@pytest.mark.parametrize("room", ROOMS)
def test_only_the_configuration_reads_the_environment(room):
    allowed = {
        "frontend/config/options.py",
        "frontend/state_folder.py",
        "protocol/process/log_format.py",
        "frontend/python_command.py",
        "workers/process/worker_process.py",
    }
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if where not in allowed and re.search("environ|getenv", text):
            for node in ast.walk(ast.parse(text)):
                bad = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
                assert not bad, (
                    f"{where}:{getattr(node, 'lineno', 0)} reads the environment; configuration comes in Config"
                )


@pytest.mark.parametrize("room", ROOMS)
def test_text_files_are_read_in_an_encoding_that_does_not_depend_on_the_locale(room):
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        if where in READ_ONLY_ASCII or not re.search(r"_text\b|\bopen\b", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name, has_encoding = ast.unparse(node.func), any(word.arg == "encoding" for word in node.keywords)
                is_text = re.search(r"\.(read|write)_text$", name) or (name == "open" and "b" not in _mode(node))
                assert has_encoding or not is_text, f"{where}:{node.lineno} reads or writes text without an encoding"


def _mode(call):
    return call.args[1].value if len(call.args) > 1 else "r"


@pytest.mark.parametrize("room", ROOMS)
def test_no_file_decides_by_the_wall_clock(room):
    """It may jump. These show it to users, number events by it, or delay the removal of old files."""
    allowed = {
        *(
            "engine_core/process/event_sockets.py",
            "engine_core/engine/step_log.py",
            "protocol/transport/run_dir.py",
            "frontend/cli/doctor.py",
        ),
        *(f"frontend/supervision/flight_recorder/{name}.py" for name in ("bundle", "diagnosis", "recorder")),
        *(
            f"frontend/http/{name}.py"
            for name in ("exchange/metrics", "routes/generate", "routes/idempotent", "service")
        ),
        *(f"frontend/http/{name}.py" for name in ("routes/stored/create", "stored_responses/database")),
        *(f"frontend/conversation/{name}.py" for name in ("chat_template", "template_renderer")),
        "frontend/hub/cache.py",
        *(f"workers/tier/{name}.py" for name in ("block_files", "identity")),
    }
    for path in sources(room):
        where = path.relative_to(ROOT).as_posix()
        if where in allowed or where.startswith("frontend/bench/"):
            continue
        text = path.read_text()
        for node in (
            ast.walk(ast.parse(text)) if re.search(r"\b(time\.time|now|utcnow)\b|\btime\.time_ns", text) else ()
        ):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                assert name not in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow"), (
                    f"{where}:{node.lineno} reads {name}; decide by time.monotonic"
                )
