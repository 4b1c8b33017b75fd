"""The commands of the chat itself, which begin with a slash."""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paged_serve.protocol.errors import InvalidRequest

from .conversation import Chat, shown_content
from .session import OWN_FIELDS, read_tools


@dataclass(frozen=True, slots=True)
class Command:
    """`run` takes the text after the command's name, and returns the text to show."""

    argument: str
    text: str
    run: Callable[[Chat, str], str]


def run(chat: Chat, line: str) -> str:
    """Run a command line. Raises InvalidRequest when the command is unknown or impossible now."""
    name, _, argument = line.partition(" ")
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidRequest(f"there is no {name}; {hint}/help lists all commands, and // begins a text with /")
    return COMMANDS[name].run(chat, argument.strip())


def _help(chat: Chat, _: str) -> str:
    names = [f"{name} {command.argument}".strip() for name, command in COMMANDS.items()]
    width = max(map(len, names))
    lines = [f"{name:{width}}  {command.text}" for name, command in zip(names, COMMANDS.values(), strict=True)]
    return "\n".join(
        [*lines, '"""…"""'.ljust(width) + "  a text of several lines; ctrl-C ends an answer, ctrl-D the chat"]
    )


def _exit(chat: Chat, _: str) -> str:
    chat.has_ended = True
    return ""


def _clear(chat: Chat, _: str) -> str:
    chat.session.messages.clear()
    return "a new conversation"


def _system(chat: Chat, text: str) -> str:
    if text:
        chat.session.system = "" if text == "off" else text
    return f"system: {shown_content(chat.session.system)}" if chat.session.system else "no system message"


def _set(chat: Chat, argument: str) -> str:
    fields = chat.session.fields
    name, _, value = argument.partition(" ")
    if name in OWN_FIELDS:
        raise InvalidRequest(f"{name} is the chat's own; see /help")
    if name and not value:
        fields.pop(name, None)
    elif name:
        fields[name] = _value(value)
    return "\n".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()) or "defaults"


def _value(text: str) -> Any:
    """The value of a JSON text; text that is not JSON stands for itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _model(chat: Chat, name: str) -> str:
    names = chat.client.models()
    if name and name not in names:
        raise InvalidRequest(f"the server has {', '.join(names)}, and no {name}")
    chat.session.model = name or chat.session.model
    return "\n".join(f"{'*' if each == chat.session.model else ' '} {each}" for each in names)


def _tools(chat: Chat, path: str) -> str:
    if path:
        chat.session.tools = [] if path == "off" else read_tools(_path(path))
    named = [(tool.get("function") or tool.get(tool.get("type", "")) or {}) for tool in chat.session.tools]
    return "\n".join(f"{tool.get('name')}: {tool.get('description', '')}" for tool in named) or "no tools"


def _retry(chat: Chat, _: str) -> str:
    before = list(chat.session.messages)
    if (question := chat.session.undo()) is None:
        raise InvalidRequest("there is no question yet")
    if not chat.ask(question, is_new=False):
        chat.session.messages[:] = before
    return ""


def _undo(chat: Chat, _: str) -> str:
    if (question := chat.session.undo()) is None:
        raise InvalidRequest("there is no question yet")
    return f"taken back: {shown_content(question)}"


def _show(chat: Chat, _: str) -> str:
    return "\n".join(chat.shown(message) for message in chat.session.messages) or "no messages yet"


def _save(chat: Chat, path: str) -> str:
    chat.session.save(_path(path))
    return f"saved in {path}, as the body of a request to /v1/chat/completions"


def _load(chat: Chat, path: str) -> str:
    chat.session.load(_path(path))
    return f"{len(chat.session.messages)} messages"


def _path(text: str) -> Path:
    if not text:
        raise InvalidRequest("name a file")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of an unknown user
        raise InvalidRequest(f"{text}: {error}") from None


def _switch(name: str) -> Callable[[Chat, str], str]:
    def run(chat: Chat, argument: str) -> str:
        if argument not in ("", "on", "off"):
            raise InvalidRequest(f"{argument!r:.60} is neither on nor off")
        setattr(chat, name, argument == "on" if argument else not getattr(chat, name))
        return "on" if getattr(chat, name) else "off"

    return run


COMMANDS = {
    "/help": Command("", "this list", _help),
    "/clear": Command("", "begin a new conversation", _clear),
    "/retry": Command("", "answer the last question again, with another seed", _retry),
    "/undo": Command("", "remove the last question and its answer", _undo),
    "/show": Command("", "the conversation so far", _show),
    "/system": Command("[TEXT|off]", "the instructions before the conversation", _system),
    "/set": Command(
        "[NAME [VALUE]]", "set a field of the request, like temperature 0.7; without a value, reset it", _set
    ),
    "/model": Command("[NAME]", "list the server's models, or switch to one", _model),
    "/tools": Command(
        "[FILE|off]", "functions that the model may call, from a JSON list; you type the results", _tools
    ),
    "/reasoning": Command("[on|off]", "show the model's reasoning before its answer", _switch("shows_reasoning")),
    "/stats": Command("[on|off]", "show tokens per second", _switch("shows_figures")),
    "/save": Command("FILE", "write the conversation as JSON", _save),
    "/load": Command("FILE", "continue a saved conversation", _load),
    "/exit": Command("", "end the chat", _exit),
}
ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help", "/regenerate": "/retry", "/history": "/show"}
