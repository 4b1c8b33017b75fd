"""The process that renders chat templates. A template is code, and the messages that it loops over are a stranger's.

Sandboxed as it is, a template may still compute for hours or ask for all memory, and a thread cannot be stopped. Here
the kernel does it: each rendering may take a second of processor time, and half a gigabyte.

The link carries frames of JSON, each behind its length (uint32, little-endian): first the templates, which the empty
object answers; then one rendering after the other.
"""

import contextlib
import resource
import signal
import socket
import sys
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.lifeline import arm_lifeline

from .chat_template import ChatTemplate

MODULE = "paged_serve.frontend.text.template_process"
MAX_MEMORY_BYTES = 512 << 20
MAX_RENDER_CPU_S = 1.0
MAX_TEXT_CHARS = 16 << 20
SUBJECT = "the model's chat template"


class Templates(msgspec.Struct):
    """The first frame."""

    sources: dict[str, str]
    variables: dict[str, str]


class Rendering(msgspec.Struct):
    """What `ChatTemplate.render` takes."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    moment: float
    kwargs: dict[str, Any]


class Rendered(msgspec.Struct, omit_defaults=True):
    """The prompt, or why there is none."""

    text: str = ""
    refusal: str = ""


def send_frame(link: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.json.encode(message)
    link.sendall(len(data).to_bytes(4, "little") + data)


def receive_frame(link: socket.socket) -> bytes:
    """Raises EOFError when the other side has closed."""
    return _receive_exactly(link, int.from_bytes(_receive_exactly(link, 4), "little"))


def _receive_exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        if not (count := link.recv_into(view)):
            raise EOFError
        view = view[count:]
    return bytes(data)


def render(template: ChatTemplate, rendering: Rendering) -> Rendered:
    try:
        text = template.render(
            rendering.messages,
            tools=rendering.tools,
            add_generation_prompt=rendering.add_generation_prompt,
            continue_final_message=rendering.continue_final_message,
            moment=rendering.moment,
            **rendering.kwargs,
        )
    except InvalidRequest as refused:
        return Rendered(refusal=str(refused))
    except MemoryError:
        return Rendered(refusal=f"{SUBJECT} needs more than {MAX_MEMORY_BYTES >> 20} MiB for these messages")
    if len(text) > MAX_TEXT_CHARS:
        return Rendered(refusal=f"{SUBJECT} makes {len(text)} characters of these messages; {MAX_TEXT_CHARS} may be")
    return Rendered(text)


def serve(link: socket.socket) -> None:
    """Until the other side closes."""
    first = msgspec.json.decode(receive_frame(link), type=Templates)
    template = ChatTemplate(first.sources, first.variables)
    send_frame(link, Rendered())
    decode = msgspec.json.Decoder(Rendering).decode
    while True:
        rendering = decode(receive_frame(link))
        signal.setitimer(signal.ITIMER_PROF, MAX_RENDER_CPU_S)  # then SIGPROF, which ends the process
        send_frame(link, render(template, rendering))
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _limit(kind: int, soft: int) -> None:
    resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))


def main() -> None:
    arm_lifeline(int(sys.argv[1]))
    _limit(resource.RLIMIT_AS, MAX_MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    link = socket.socket(fileno=int(sys.argv[2]))
    with link, contextlib.suppress(EOFError, ConnectionError):  # the frontend has ended
        serve(link)


if __name__ == "__main__":
    main()
