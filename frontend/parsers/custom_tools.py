"""Custom tools, whose input is a text. The model gets each as a function with that text as its only argument."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from .custom_input import FIELD


class AnyText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="grammar"):
    syntax: Literal["lark", "regex"]
    definition: str


InputFormat = AnyText | Grammar


def as_function(name: str, description: str | None, form: InputFormat | None, place: str) -> dict[str, Any]:
    """The function that replaces the tool. Raises InvalidRequest for an input format that no schema expresses."""
    text: dict[str, Any] = {"type": "string", "description": "All of the tool's input, as plain text."}
    if isinstance(form, Grammar):
        if form.syntax == "lark":
            raise InvalidRequest(
                f"{place}.format has the syntax 'lark', but only 'regex' is supported; use a regex, or describe the "
                "language in description and leave out format",
                f"{place}.format",
            )
        text = {
            "type": "string",
            "pattern": f"^(?:{form.definition})$",
            "description": f"All of the tool's input; it matches the regular expression {form.definition}",
        }
    parameters = {"type": "object", "properties": {FIELD: text}, "required": [FIELD], "additionalProperties": False}
    described = {} if description is None else {"description": description}
    strict = {"strict": True} if isinstance(form, Grammar) else {}
    return {"name": name, **described, "parameters": parameters, **strict}


def arguments_of(text: str) -> str:
    """The JSON arguments that the model gets for an earlier call of the tool."""
    return msgspec.json.encode({FIELD: text}).decode()


def check_names(all_names: Sequence[str], custom: Sequence[str]) -> None:
    """Raises InvalidRequest if a custom tool has the name of another tool."""
    for name in custom:
        if all_names.count(name) > 1:
            raise InvalidRequest(f"tools has {name!r:.100} twice; the name of a custom tool must be unique", "tools")
