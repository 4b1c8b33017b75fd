"""The helper process that renders chat templates. A template is code that loops over untrusted messages.

Even in the sandbox a template may compute for hours or allocate all memory, and a thread cannot be stopped. In a
process the kernel enforces limits: a rendering may take one second of processor time, and half a gigabyte.

The first frame of the link holds the templates; the answer is an empty object, or the reason why they do not compile.
Each further frame is one rendering.
"""

import contextlib
import socket
from typing import TYPE_CHECKING, Any

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest

from ..helpers.confinement import forbid_system_calls
from ..helpers.frames import receive_frame, send_frame
from ..helpers.helper_main import MAX_MEMORY_BYTES, limited_time, run_helper

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

MODULE = "paged_serve.frontend.conversation.template_process"
MAX_TEXT_CHARS = 16 << 20
SUBJECT = "the model's chat template"


class Templates(msgspec.Struct):
    """The first frame: sources by name ("default", "tool_use"), and the variables of every rendering."""

    sources: dict[str, str]
    variables: dict[str, str] = {}


class Rendering(msgspec.Struct):
    """The arguments of `ChatTemplate.render`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    moment: float
    utc_offset_s: int
    mark: str
    kwargs: dict[str, Any]


class Rendered(msgspec.Struct, omit_defaults=True):
    """The prompt, or why there is none."""

    text: str = ""
    refusal: str = ""
    param: str = "messages"  # the field that is refused


def render(template: "ChatTemplate", rendering: Rendering) -> Rendered:
    try:
        text = template.render(
            rendering.messages,
            tools=rendering.tools,
            add_generation_prompt=rendering.add_generation_prompt,
            continue_final_message=rendering.continue_final_message,
            moment=rendering.moment,
            utc_offset_s=rendering.utc_offset_s,
            mark=rendering.mark,
            **rendering.kwargs,
        )
    except InvalidRequest as refused:
        return Rendered(refusal=_encodable(str(refused)), param=refused.param or "messages")
    except MemoryError:
        return Rendered(refusal=f"{SUBJECT} needs more than {MAX_MEMORY_BYTES >> 20} MiB for these messages")
    if len(text) > MAX_TEXT_CHARS:
        return Rendered(
            refusal=f"{SUBJECT} makes {len(text)} characters of these messages; at most {MAX_TEXT_CHARS} are allowed"
        )
    if text != _encodable(text):
        return Rendered(refusal=f"{SUBJECT} writes half a surrogate pair, which is not text")
    return Rendered(text)


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def compiled(templates: Templates) -> tuple["ChatTemplate | None", Rendered]:
    """The template, or why there is none."""
    from .chat_template import ChatTemplate  # imports jinja2, which only this process needs

    try:
        template = ChatTemplate(templates.sources, templates.variables)
        template.probe()
        return template, Rendered()
    except ConfigError as refused:
        return None, Rendered(refusal=_encodable(str(refused)))
    except MemoryError:
        return None, Rendered(refusal=f"{SUBJECT} needs more than {MAX_MEMORY_BYTES >> 20} MiB for one short message")


def serve(link: socket.socket) -> None:
    """Answer renderings until the other side closes."""
    templates = msgspec.json.decode(receive_frame(link), type=Templates)
    decode = msgspec.json.Decoder(Rendering).decode
    _warm_up()
    forbid_system_calls()
    with limited_time():
        template, outcome = compiled(templates)
    send_frame(link, outcome)
    while template is not None:
        rendering = decode(receive_frame(link))
        with limited_time():
            rendered = render(template, rendering)
        send_frame(link, rendered)


def _warm_up() -> None:
    """Trigger all lazy imports now: files are inaccessible later."""
    from .chat_template import ChatTemplate

    template = ChatTemplate("{{ strftime_now('%Y') }}{{ messages | tojson }}{{ 1 // (messages | length) }}")
    for messages in ([{"role": "user", "content": ""}], []):
        with contextlib.suppress(InvalidRequest):
            template.render(messages)


def main() -> None:
    run_helper(serve)


if __name__ == "__main__":
    main()
