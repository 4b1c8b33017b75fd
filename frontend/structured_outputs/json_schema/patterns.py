"""Regular expressions for texts and for property names."""

import re
from collections.abc import Callable
from typing import Any

from .schema_walk import Schema, children, compiled_pattern, put

_NULL_CHARACTER = r"\x00"
_DOT = r"[^\n\r\u{2028}\u{2029}]"  # ECMAScript's, whose syntax JSON Schema names; llguidance's leaves out only \n
# Parts of a pattern that match one character, and that may match all control characters.
_PROPERTY = re.compile(r"\\[pP](?:\{[^}]*\}|[A-Za-z])")
_WITH_CONTROLS = re.compile(r"\[\^|\[:|\\[pPxu0c]|\x00")


def with_fixed_patterns(schema: Schema) -> Schema:
    """The schema with all its patterns changed by `translated`."""
    if isinstance(schema, bool):
        return schema
    found = dict(schema)
    fix_patterns(found)
    for keys, part in children(found):
        put(found, keys, with_fixed_patterns(part))
    return found


def fix_patterns(schema: dict[str, Any]) -> None:
    """Change the patterns of this schema in place, but not those of its subschemas."""
    if "pattern" in schema:
        schema["pattern"] = translated(schema["pattern"])
    if "patternProperties" in schema:
        schema["patternProperties"] = {
            translated(pattern): part for pattern, part in schema["patternProperties"].items()
        }


def translated(pattern: str) -> str:
    r"""The pattern with U+0000 removed from its character classes, and with JSON Schema's dot.

    For a class that has all control characters, like `[^"]`, llguidance (1.9.1) would also allow `\"` and `\\`, whether
    the class has these two or not. The syntax is that of Rust's regex, with nested classes and `--`.
    """
    parts, at = list[str](), 0
    while at < len(pattern):
        if pattern[at] == "[":
            end = _end_of_class(pattern, at)
            found = pattern[at:end]
            parts.append(f"[{found}--{_NULL_CHARACTER}]" if _WITH_CONTROLS.search(found) else found)
        elif match := _PROPERTY.match(pattern, at):
            end = match.end()
            parts.append(f"[{match[0]}--{_NULL_CHARACTER}]")
        elif pattern[at] == ".":
            end = at + 1
            parts.append(_DOT)
        else:
            end = at + (2 if pattern[at] == "\\" else 1)
            parts.append(pattern[at:end])
        at = end
    return "".join(parts)


def _end_of_class(pattern: str, start: int) -> int:
    """The position after the bracket that closes the class at `start`; a leading bracket is an ordinary character."""
    at, depth = start, 0
    while at < len(pattern):
        if pattern[at] == "[":
            depth += 1
            at += 1 + pattern.startswith("^", at + 1)
            at += pattern.startswith("]", at)
            continue
        depth -= pattern[at] == "]"
        at += 2 if pattern[at] == "\\" else 1
        if depth == 0:
            break
    return at


def name_pattern(names: Schema) -> tuple[str, Callable[[str], bool]] | None:
    """A regular expression for the names that a schema of names allows, and the same as a predicate."""
    if not isinstance(names, dict) or not set(names) <= {"type", "enum", "const", "pattern", "minLength", "maxLength"}:
        return None
    given = [name for name in ("enum", "const", "pattern") if name in names]
    lengths = {"minLength", "maxLength"} & set(names)
    if len(given) + bool(lengths) != 1:
        return None
    if not all(isinstance(names[name], int) for name in lengths):
        return None
    if lengths:
        pattern = rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    elif given == ["pattern"]:
        pattern = names["pattern"]
    else:
        texts = names["enum"] if given == ["enum"] else [names["const"]]
        pattern = "^(?:" + "|".join(re.escape(text) for text in texts if isinstance(text, str)) + ")$"
    if (compiled := compiled_pattern(pattern)) is None:
        return None
    return pattern, lambda name: compiled.search(name) is not None
