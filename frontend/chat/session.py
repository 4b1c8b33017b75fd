"""One conversation and the fields of its requests: the body of a chat completion, which grows with each turn."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest

Message = dict[str, Any]
OWN_FIELDS = ("messages", "model", "tools", "stream", "stream_options", "n")  # not settable by /set


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Custom(msgspec.Struct):
    name: str
    input: str


class _Call(msgspec.Struct):
    function: _Function | None = None
    custom: _Custom | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None


class _Saved(msgspec.Struct):
    """The fields of a saved conversation that the chat reads; the server checks the others."""

    messages: list[_Message]
    tools: list[dict[str, Any]] | None = None


class _Tool(msgspec.Struct):
    function: dict[str, Any] | None = None
    custom: dict[str, Any] | None = None


@dataclass(slots=True)
class Session:
    """`fields`: the fields of the body other than OWN_FIELDS; `messages`: without the system message."""

    model: str
    system: str | list[dict[str, Any]] = ""
    fields: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        beginning = [{"role": "system", "content": self.system}] if self.system else []
        tools = {"tools": self.tools} if self.tools else {}
        return {"model": self.model, **self.fields, **tools, "messages": [*beginning, *self.messages]}

    def undo(self) -> Any:
        """Remove the last question and its answers. Returns its content, text or parts; None if there is none."""
        for place in range(len(self.messages) - 1, -1, -1):
            if self.messages[place]["role"] == "user":
                question = self.messages[place].get("content") or ""
                del self.messages[place:]
                return question
        return None

    def save(self, path: Path) -> None:
        """Write the conversation as a request body for curl. Raises InvalidRequest when the file is unwritable."""
        try:
            path.write_text(json.dumps(self.body(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None
        except ValueError as error:  # a null byte in the path
            raise InvalidRequest(f"{path} cannot be written: {error}") from None

    def load(self, path: Path) -> None:
        """Load a file written by `save`; the model stays. Raises InvalidRequest and then changes nothing."""
        body = read_json(path)
        try:
            msgspec.convert(body, _Saved)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"{path} holds no conversation; give an object with messages, as /save writes it: {error}"
            ) from None
        messages = body["messages"]
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.system = (messages[0].get("content") or "") if has_system else ""
        self.messages = messages[1:] if has_system else messages
        self.tools = body.get("tools") or []
        self.fields = {name: value for name, value in body.items() if name not in OWN_FIELDS}


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Read a JSON list of tools, or of bare functions. Raises InvalidRequest when the file holds none."""
    given = read_json(path)
    try:
        msgspec.convert(given, list[_Tool])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{path} holds no list of tools: {error}") from None
    return [tool if "type" in tool else {"type": "function", "function": tool} for tool in given]


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from None
