"""Renders chat templates in processes of their own, so that no conversation can hold up the others."""

import asyncio
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from paged_serve.protocol.errors import InvalidRequest, PagedServeError
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.lifeline import lifeline_pipe

from .chat_template import ChatTemplate
from .template_process import (
    MAX_RENDER_CPU_S,
    MODULE,
    SUBJECT,
    Rendered,
    Rendering,
    Templates,
    receive_frame,
    send_frame,
)

MAX_PROCESSES = 4  # of which each but the first is started when all others are busy
ANSWERS_WITHIN_S = 5.0  # by the wall; a halted process is replaced then
TRIES = 3  # a process that was killed from outside costs the request nothing
TOO_LONG = (
    f"{SUBJECT} needs more than {MAX_RENDER_CPU_S:g} s of processor time for these messages; send fewer or shorter ones"
)


class _Process:
    """One helper, and the link to it."""

    def __init__(self, templates: Templates):
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = lifeline_pipe()
        inherited = (lifeline_read, theirs.fileno())
        try:
            command = [sys.executable, "-P", "-m", MODULE, *map(str, inherited)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=inherited)
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline_read)
        self._link = ours
        ours.settimeout(ANSWERS_WITHIN_S)
        self.pid = self._process.pid
        try:
            self.ask(templates)
        except (OSError, EOFError):
            self.close()
            raise

    def ask(self, message: msgspec.Struct) -> Rendered:
        """Raises OSError (TimeoutError) or EOFError when there is no answer; close it then."""
        send_frame(self._link, message)
        return msgspec.json.decode(receive_frame(self._link), type=Rendered)

    def close(self) -> int:
        """End it; the exit code, negative for the signal that ended it."""
        self._link.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)  # it may be ending by itself, and how is what we want to know
        self._process.kill()
        os.close(self._lifeline)
        return self._process.wait()


class TemplateRenderer:
    """For any number of callers. A helper starts when there is work and all others are busy; the kernel kills one that
    computes for too long, and the next request finds another."""

    def __init__(self, template: ChatTemplate):
        self._templates = Templates(template.sources, template.variables)
        self._places: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # the last one used is the next one
        for _ in range(MAX_PROCESSES):
            self._places.put(None)
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, "template")
        self._finalizer = weakref.finalize(self, _end_all, self._places)
        in_forked_child(self, lambda renderer: renderer._finalizer.detach())

    async def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: dict[str, Any],
        continue_final_message: bool = False,
        moment: float | None = None,
    ) -> str:
        """The prompt, as ChatTemplate.render makes it.

        Raises InvalidRequest when the template refuses the messages, cannot render them, or takes too much for them;
        PagedServeError when no helper answers.
        """
        moment = time.time() if moment is None else moment
        rendering = Rendering(messages, tools, add_generation_prompt, continue_final_message, moment, kwargs)
        rendered = await asyncio.get_running_loop().run_in_executor(self._threads, self._render, rendering)
        if rendered.refusal:
            raise InvalidRequest(rendered.refusal, "messages")
        return rendered.text

    def start(self) -> None:
        """Start the first helper before somebody waits for it."""
        self._places.put(self._places.get() or _Process(self._templates))

    def _render(self, rendering: Rendering) -> Rendered:
        for _ in range(TRIES):
            if (rendered := self._try(rendering)) is not None:
                return rendered
        raise PagedServeError("the process that renders chat templates ends again and again, or does not answer")

    def _try(self, rendering: Rendering) -> Rendered | None:
        """None: the helper ended by no fault of the request."""
        process = self._places.get()
        try:
            process = process or _Process(self._templates)
            return process.ask(rendering)
        except (OSError, EOFError):
            exit_code = 0 if process is None else process.close()
            process = None
            return Rendered(refusal=TOO_LONG) if exit_code == -signal.SIGPROF else None
        finally:
            self._places.put(process)

    def close(self) -> None:
        """End all helpers, once the last rendering has."""
        self._threads.shutdown()
        self._finalizer()


def _end_all(places: "queue.LifoQueue[_Process | None]") -> None:
    while not places.empty():
        if (process := places.get()) is not None:
            process.close()
