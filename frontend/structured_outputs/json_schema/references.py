"""Copies targets of local references into `$defs`, which rewriting does not move, and detects circular references."""

import re
from typing import Any

from .schema_walk import Schema, look_up


def with_named_targets(root: dict[str, Any], *, divides: bool = False) -> dict[str, Any]:
    """A copy in which every local reference points into `$defs` or to the root, because rewriting moves other parts.

    `divides`: only into definitions, because parts of the schema become schemas of their own.
    """
    targets: dict[str, str] = {}

    def moves(ref: str) -> bool:
        return _moves(ref) or (divides and ref == "#")

    def copied(value: Any) -> Any:
        if isinstance(value, list):
            return [copied(part) for part in value]
        if not isinstance(value, dict):
            return value
        found = {name: copied(part) for name, part in value.items()}
        if isinstance(ref := found.get("$ref"), str) and moves(ref) and look_up(root, ref) is not None:
            found["$ref"] = f"#/$defs/{targets.setdefault(ref, f'at{len(targets)}')}"
        return found

    whole: dict[str, Any] = copied(root)
    named: dict[str, Any] = {}
    while len(named) < len(targets):
        for ref, name in list(targets.items()):
            if name not in named:
                named[name] = copied(look_up(root, ref))
    if named:
        whole["$defs"] = {**whole.get("$defs", {}), **named}
    return whole


def _moves(ref: str) -> bool:
    return ref.startswith("#/") and not re.fullmatch(r"#/(\$defs|definitions)/[^/]+", ref)


def leads_back(root: Schema, ref: str) -> bool:
    """Whether a chain of bare references from `ref` is circular."""
    seen: set[str] = set()
    target: Schema | None = {"$ref": ref}
    while isinstance(target, dict) and isinstance(following := target.get("$ref"), str):
        if following in seen:
            return True
        seen.add(following)
        target = look_up(root, following)
    return False
