"""Decodes JSON into the Structs of schemas.py; unsupported features are refused by name."""

from typing import TypeVar

import msgspec

from paged_serve.protocol.errors import InvalidRequest

from ...conversation.strict_json import decode_body
from .schemas import CountTokensRequest

Body = TypeVar("Body", bound=CountTokensRequest)

_INSTEAD_OF_BLOCKS = {
    "image": "images are not supported: only text is served",
    "document": "documents are not supported; send the document's text",
    "search_result": "search results are not supported; send them as text",
}


class _Typed(msgspec.Struct, frozen=True):
    type: str | None = None


class _Turn(msgspec.Struct, frozen=True):
    content: str | list["_Part"]


class _Part(_Typed, frozen=True):
    content: str | list[_Typed] | None = None


class _Turns(msgspec.Struct, frozen=True):
    messages: list[_Turn]


class _Tools(msgspec.Struct, frozen=True):
    tools: list[_Typed]


_decode_turns = msgspec.json.Decoder(_Turns).decode
_decode_tools = msgspec.json.Decoder(_Tools).decode


def decode_messages(kind: type[Body], raw: bytes, lenient: bool) -> tuple[Body, list[str]]:
    """(body, warnings). `lenient`: an unknown field is ignored with a warning. Raises InvalidRequest."""
    try:
        return decode_body(kind, raw, lenient)
    except InvalidRequest as refusal:
        place = refusal.param or ""
        if place.startswith("tools["):
            _check_tools(raw)
        elif place.startswith("messages["):
            _check_blocks(raw)
        raise


def _check_tools(raw: bytes) -> None:
    """Raises InvalidRequest for the first tool of an unsupported type."""
    try:
        tools = _decode_tools(raw).tools
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return  # the body is invalid for another reason
    for i, tool in enumerate(tools):
        if tool.type not in (None, "custom"):
            raise InvalidRequest(
                f"tools[{i}] has the type {tool.type!r:.60}, a tool that Anthropic's service runs; this server accepts "
                "tools with name, description and input_schema, which the client runs",
                f"tools[{i}].type",
            )


def _check_blocks(raw: bytes) -> None:
    """Raises InvalidRequest for the first block that is not text."""
    try:
        turns = _decode_turns(raw).messages
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    for i, turn in enumerate(turns):
        for j, part in enumerate(turn.content if isinstance(turn.content, list) else ()):
            at = f"messages[{i}].content[{j}]"
            _check_block(part, at)
            for k, inner in enumerate(part.content if isinstance(part.content, list) else ()):
                _check_block(inner, f"{at}.content[{k}]")


def _check_block(block: _Typed, at: str) -> None:
    if instead := _INSTEAD_OF_BLOCKS.get(block.type or ""):
        raise InvalidRequest(f"{at} has the type {block.type!r}; {instead}", f"{at}.type")
