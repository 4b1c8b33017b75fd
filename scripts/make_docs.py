"""Generate the pages of docs/ that can be derived from the code, so that they are always up to date."""

import argparse
import ast
import enum
import functools
import importlib
import inspect
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from configuration_page import configuration_page
from msgspec import inspect as types

from paged_serve.protocol.messages.engine_core import MAX_UNACKNOWLEDGED_FRAMES, EngineCoreRequest
from paged_serve.protocol.messages.handshake import UNIONS
from paged_serve.protocol.messages.message import (
    MAX_FRAME_BYTES,
    MAX_STEP_FRAME_BYTES,
    PROTOCOL_VERSION,
    Message,
    pack_ids,
    struct_types,
)
from paged_serve.protocol.messages.sampling_params import BOUNDS, SamplingParams
from paged_serve.protocol.process.lifecycle import HEARTBEAT_S

ROOT = Path(__file__).parent.parent
INTRODUCTION = Path(__file__).parent / "protocol_introduction.md"
SECTIONS = {
    "client to engine core": "Client → engine core",
    "engine core to client": "Engine core → client",
    "engine core to worker": "Engine core → worker",
    "worker to engine core": "Worker → engine core",
    "supervisor to child": "Supervisor → child",
    "child to supervisor": "Child → supervisor",
}
SCALARS: dict[type, str] = {
    types.IntType: "integer",
    types.FloatType: "number",
    types.StrType: "text",
    types.BytesType: "bytes",
    types.BoolType: "boolean",
}
# Structs are listed by their name; the three structs named Welcome are distinguished by their module.
AMBIGUOUS = {"Welcome"}


def protocol_page() -> str:
    example = EngineCoreRequest(7, pack_ids([1, 2, 3]), SamplingParams(temperature=0, max_tokens=16))
    parts = [
        INTRODUCTION.read_text().format(
            max_frame=size(MAX_FRAME_BYTES),
            max_step_frame=size(MAX_STEP_FRAME_BYTES),
            version=PROTOCOL_VERSION,
            credits=MAX_UNACKNOWLEDGED_FRAMES,
            heartbeat_ms=1000 * HEARTBEAT_S,
            example="EngineCoreRequest(7, pack_ids([1, 2, 3]), SamplingParams(temperature=0, max_tokens=16))",
            example_bytes="\n".join(hex_lines(msgspec.msgpack.encode(example))),
        )
    ]
    for link, union in UNIONS.items():
        parts.append(f"## {SECTIONS[link]}\n")
        parts += [struct_section(cls) for cls in get_args(union) if cls.__module__ != Message.__module__]
    everything = struct_types(*UNIONS.values())
    shared = [cls for cls in everything if cls.__module__ == Message.__module__]
    records = [cls for cls in everything if not issubclass(cls, Message)]
    parts += ["## In both directions\n", *map(struct_section, shared)]
    parts += ["## Parts of messages\n", *map(struct_section, records)]
    parts += ["## Numbers with names\n", *map(enum_section, enums_of(everything))]
    return "\n".join(parts)


def struct_section(cls: Any) -> str:
    if not cls.__struct_fields__:
        return f"### {title(cls)}\n\n{inspect.getdoc(cls)}\n\nNo fields.\n"
    rows = [
        f"| `{field.name}` | {describe(field.type)} | {bounds(cls, field)} | {default(field)} | {comment} |"
        for field in types.type_info(cls).fields
        for comment in [cell(field_comments(cls.__module__, cls.__qualname__).get(field.name, ""))]
    ]
    head = "| field | type | bounds | default | meaning |\n|---|---|---|---|---|\n"
    return f"### {title(cls)}\n\n{inspect.getdoc(cls)}\n\n{head}" + "\n".join(rows) + "\n"


def enum_section(cls: type[enum.Enum]) -> str:
    comments = field_comments(cls.__module__, cls.__qualname__)
    rows = [f"| {member.value} | `{member.name}` | {cell(comments.get(member.name, ''))} |" for member in cls]
    own = cls.__doc__ if cls.__doc__ != enum.IntEnum.__doc__ else None
    words = f"{inspect.cleandoc(own)}\n\n" if own else ""
    return f"### {cls.__qualname__}\n\n{words}| value | name | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def enums_of(structs: list[Any]) -> list[type[enum.Enum]]:
    def walk(node: Any) -> Iterator[type[enum.Enum]]:
        if isinstance(node, types.EnumType):
            yield node.cls
        for part in getattr(node, "types", ()):
            yield from walk(part)

    fields = [field for struct in structs for field in types.type_info(struct).fields]
    return list(dict.fromkeys(cls for field in fields for cls in walk(field.type)))


@functools.cache
def field_comments(module: str, class_name: str) -> dict[str, str]:
    """Field or enum member -> the comment on its lines, wherever the formatter has placed it."""
    source = Path(importlib.import_module(module).__file__ or "").read_text()
    on_line = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for field in node.body:
                target = field.target if isinstance(field, ast.AnnAssign) else None
                target = field.targets[0] if isinstance(field, ast.Assign) else target
                if isinstance(target, ast.Name):
                    lines = range(field.lineno, (field.end_lineno or field.lineno) + 1)
                    found[target.id] = " ".join(on_line[line] for line in lines if line in on_line)
    return found


def title(cls: Any) -> str:
    """The heading of a struct, unique on the page."""
    name = str(cls.__qualname__)
    return f"{name} ({cls.__module__.rpartition('.')[2]})" if name in AMBIGUOUS else name


def link_to(cls: Any) -> str:
    anchor = title(cls).lower().replace(" ", "-").replace("(", "").replace(")", "")
    return f"[{title(cls)}](#{anchor})"


def describe(node: Any) -> str:
    match node:
        case types.UnionType():
            inner = [describe(part) for part in node.types if not isinstance(part, types.NoneType)]
            return " or ".join([*inner, "nil"])
        case types.StructType() | types.EnumType():
            return link_to(node.cls)
        case types.VarTupleType():
            return f"list of {describe(node.item_type)}"
        case types.DictType():
            return f"map of {describe(node.key_type)} to {describe(node.value_type)}"
        case types.LiteralType():
            return ", ".join(f'`"{value}"`' if isinstance(value, str) else f"`{value}`" for value in node.values)
    return SCALARS[type(node)]


def bounds(cls: Any, field: Any) -> str:
    if cls is SamplingParams and field.name in BOUNDS:
        low, high = BOUNDS[field.name]
        return f"{power(low)} … {power(high)}"
    return " ".join(limits(field.type))


def limits(node: Any) -> Iterator[str]:
    match node:
        case types.IntType() | types.FloatType() if node.le is not None:
            low = f"above {power(node.gt)}" if node.ge is None else power(node.ge)
            yield f"{low} … {power(node.le)}"
        case types.StrType() if node.max_length:
            yield f"≤ {node.max_length} characters"
        case types.BytesType() if node.max_length:
            yield f"≤ {size(node.max_length)}"
        case types.VarTupleType() | types.DictType():
            if node.max_length:
                yield f"≤ {node.max_length} entries"
            inner = [node.item_type] if isinstance(node, types.VarTupleType) else [node.key_type, node.value_type]
            if each := [limit for part in inner for limit in limits(part)]:
                yield "of " + ", ".join(each)
        case types.UnionType():
            for part in node.types:
                yield from limits(part)


def power(number: float | None) -> str:
    """2147483647 as `2³¹ - 1`: large bounds are powers of two."""
    digits = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    if isinstance(number, int) and abs(number) >= 2**16 - 1:
        for offset, suffix in ((0, ""), (1, " - 1")):
            if (whole := abs(number) + offset) & (whole - 1) == 0:
                return f"{'-' * (number < 0)}2{str(whole.bit_length() - 1).translate(digits)}{suffix}"
    return f"{number:g}" if isinstance(number, float) else str(number)


def size(count: int) -> str:
    return f"{count >> 20} MiB" if count % (1 << 20) == 0 else f"{count} bytes"


def default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if isinstance(value, msgspec.Struct):
        return f"`{type(value).__name__}()`"
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    spelled = {None: "nil", True: "true", False: "false", "": "empty", b"": "empty", (): "empty"}
    return spelled[value] if isinstance(value, bool | str | bytes | tuple | None) and value in spelled else f"`{value}`"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def hex_lines(data: bytes, width: int = 32) -> list[str]:
    return [data[start : start + width].hex(" ") for start in range(0, len(data), width)]


PAGES: dict[str, Callable[[], str]] = {
    "docs/protocol.md": protocol_page,
    "docs/configuration.md": configuration_page,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and exit with 1 if a page is stale")
    checks = parser.parse_args(arguments).check
    stale = []
    for name, make in PAGES.items():
        page, path = make(), ROOT / name
        if not path.exists() or path.read_text() != page:
            stale.append(name)
            if not checks:
                path.write_text(page)
                print(f"wrote {name}")
    if stale and checks:
        print(f"stale: {', '.join(stale)}; run `python scripts/make_docs.py` and commit the result", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
