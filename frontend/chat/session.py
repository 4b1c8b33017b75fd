"""One conversation and the fields of its requests: the body of a chat completion, which grows with each turn."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

Message = dict[str, Any]
OWN_FIELDS = ("messages", "model", "tools", "stream", "stream_options", "n")  # not settable by /set


@dataclass(slots=True)
class Session:
    """`fields`: the fields of the body other than OWN_FIELDS; `messages`: without the system message."""

    model: str
    system: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        beginning = [{"role": "system", "content": self.system}] if self.system else []
        tools = {"tools": self.tools} if self.tools else {}
        return {"model": self.model, **self.fields, **tools, "messages": [*beginning, *self.messages]}

    def undo(self) -> str | None:
        """Remove the last question and its answers. Returns the question; None if there is none."""
        for place in range(len(self.messages) - 1, -1, -1):
            if self.messages[place]["role"] == "user":
                question = self.messages[place]["content"]
                del self.messages[place:]
                return str(question)
        return None

    def save(self, path: Path) -> None:
        """Write the conversation as a request body for curl. Raises InvalidRequest when the file is unwritable."""
        try:
            path.write_text(json.dumps(self.body(), ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None

    def load(self, path: Path) -> None:
        """Load a file written by `save`; the model stays. Raises InvalidRequest and then changes nothing."""
        body = read_json(path)
        messages = body.get("messages") if isinstance(body, dict) else None
        if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise InvalidRequest(f"{path} holds no conversation; give an object with messages, as /save writes it")
        has_system = bool(messages) and messages[0]["role"] == "system"
        self.system = str(messages[0].get("content") or "") if has_system else ""
        self.messages = messages[1:] if has_system else messages
        self.tools = body.get("tools") or []
        self.fields = {name: value for name, value in body.items() if name not in OWN_FIELDS}


def read_tools(path: Path) -> list[dict[str, Any]]:
    """Read a JSON list of tools, or of bare functions. Raises InvalidRequest when the file holds none."""
    given = read_json(path)
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise InvalidRequest(f"{path} holds no list of tools")
    return [tool if "type" in tool else {"type": "function", "function": tool} for tool in given]


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} is not JSON: {error}") from None
