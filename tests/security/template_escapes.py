"""A program that renders each template that it reads from its input, and prints the audit events of each.

It is a separate process, because an audit hook cannot be removed.
"""

import contextlib
import json
import sys

from paged_serve.frontend.conversation.chat_template import ChatTemplate
from paged_serve.protocol.errors import ConfigError, InvalidRequest

HARMLESS = {"object.__getattr__", "object.__setattr__", "sys._getframe", "gc.get_referrers"}
MESSAGES = [{"role": "user", "content": "hello"}]


def by_the_traceback_writer() -> bool:
    """Whether Jinja's error reporting is the caller: it compiles a line to name the template's line in an error."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith("/jinja2/debug.py"):
        frame = frame.f_back
    return frame is not None


def main() -> None:
    events: list[str] = []
    watching = False

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event not in HARMLESS and not by_the_traceback_writer():
            events.append(event)

    sys.addaudithook(watch)
    for source in ("{{ 1 // 0 }}", "{{ strftime_now('%Y') }}"):  # the first error, the first time: modules are imported
        with contextlib.suppress(InvalidRequest):
            ChatTemplate(source).render(MESSAGES)
    found = []
    for source in json.load(sys.stdin):
        try:
            template = ChatTemplate(source, {"bos_token": "<s>"})
        except ConfigError:
            found.append(("does not compile", "", []))
            continue
        events.clear()
        watching = True
        try:
            outcome, text = "rendered", template.render(MESSAGES)
        except InvalidRequest as refused:
            outcome, text = "refused", str(refused)
        finally:
            watching = False
        found.append((outcome, text, [*events]))
    json.dump(found, sys.stdout)


main()
