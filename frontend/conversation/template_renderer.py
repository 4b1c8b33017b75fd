"""Renders chat templates in processes of their own, so that no conversation can hold up the others."""

import asyncio
import contextlib
import functools
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import msgspec

from paged_serve.protocol.errors import ConfigError, InvalidRequest, PagedServeError
from paged_serve.protocol.forks import in_forked_child
from paged_serve.protocol.process.lifeline import is_stopped, lifeline_pipe

from .conversation import TemplateInput
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
IDLE_S = 30.0  # after which all but one end
ANSWERS_WITHIN_S = 5.0  # by the wall; a halted process is replaced then, and one that gets no processor has longer
STARVES_WITHIN_S = 60.0
TRIES = 3  # a process that was killed from outside costs the request nothing
TOO_LONG = (
    f"{SUBJECT} needs more than {MAX_RENDER_CPU_S:g} s of processor time for these messages; send fewer or shorter ones"
)
TOO_LONG_TO_COMPILE = (
    f"{SUBJECT} needs more than {MAX_RENDER_CPU_S:g} s of processor time to compile, or for one short message"
)
# With no environment, the program finds its modules where this one does.
_PROGRAM = f"import sys; sys.path[:] = sys.argv.pop().split({os.pathsep!r}); from {MODULE} import main; main()"


class _Process:
    """One helper, and the link to it. Raises ConfigError when the templates do not compile."""

    def __init__(self, templates: Templates):
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = lifeline_pipe()
        inherited = (lifeline_read, theirs.fileno())
        try:
            arguments = [*map(str, inherited), os.pathsep.join(sys.path)]
            command = [sys.executable, "-I", "-c", _PROGRAM, *arguments]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=inherited, env={})
        except OSError:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline_read)
        self._link = ours
        ours.settimeout(ANSWERS_WITHIN_S)
        self.patience_s = ANSWERS_WITHIN_S
        self.pid = self._process.pid
        self.used_at = time.monotonic()
        self._compile(templates)

    def _compile(self, templates: Templates) -> None:
        try:
            refusal = self.ask(templates).refusal
        except (OSError, EOFError):
            if self.close() != -signal.SIGPROF:
                raise
            raise ConfigError(TOO_LONG_TO_COMPILE) from None
        if refusal:
            self.close()
            raise ConfigError(refusal)

    def ask(self, message: msgspec.Struct) -> Rendered:
        """Raises OSError (TimeoutError) or EOFError when there is no answer; close it then."""
        send_frame(self._link, message)
        self._await_answer()
        return msgspec.json.decode(receive_frame(self._link), type=Rendered)

    def _await_answer(self) -> None:
        readable = select.poll()
        readable.register(self._link, select.POLLIN)
        gives_up_at = time.monotonic() + STARVES_WITHIN_S
        while not readable.poll(1000 * self.patience_s):
            if is_stopped(self.pid) or time.monotonic() >= gives_up_at:
                raise TimeoutError

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

    def __init__(self, templates: Templates, idle_s: float = IDLE_S):
        self.templates = templates
        self._idle_s = idle_s
        self._places: queue.LifoQueue[_Process | None] = queue.LifoQueue()  # the last one used is the next one
        for _ in range(MAX_PROCESSES):
            self._places.put(None)
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, "template")
        self._timer: threading.Timer | None = None  # runs while there may be helpers to end
        self._timer_lock = threading.Lock()
        self._finalizer = weakref.finalize(self, _end_all, self._places)
        in_forked_child(self, lambda renderer: renderer._finalizer.detach())

    async def render(self, given: TemplateInput, *, moment: float | None = None, mark: str = "") -> str:
        """As `render_now`, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, functools.partial(self.render_now, given, moment=moment, mark=mark)
        )

    def render_now(self, given: TemplateInput, *, moment: float | None = None, mark: str = "") -> str:
        """The prompt, as ChatTemplate.render makes it.

        Raises InvalidRequest when the template refuses the messages, cannot render them, or takes too much for them;
        ConfigError when it does not compile; PagedServeError when no helper answers.
        """
        moment = time.time() if moment is None else moment
        rendering = Rendering(
            messages=given.messages,
            tools=given.tools,
            add_generation_prompt=given.add_generation_prompt,
            continue_final_message=given.continue_final_message,
            moment=moment,
            utc_offset_s=time.localtime(moment).tm_gmtoff,
            mark=mark,
            kwargs=given.kwargs,
        )
        rendered = self._render(rendering)
        if rendered.refusal:
            raise InvalidRequest(rendered.refusal, "messages")
        return rendered.text

    def start(self) -> None:
        """Start the first helper, before a request waits for it. Raises ConfigError when the template does not compile,
        PagedServeError when no helper answers."""
        process = self._places.get()
        try:
            process = process or _Process(self.templates)
        except (OSError, EOFError) as error:
            raise PagedServeError(f"no process that renders chat templates starts: {error!r}") from None
        finally:
            self._places.put(process)

    def _render(self, rendering: Rendering) -> Rendered:
        for _ in range(TRIES):
            if (rendered := self._try(rendering)) is not None:
                return rendered
        raise PagedServeError("the process that renders chat templates ends again and again, or does not answer")

    def _try(self, rendering: Rendering) -> Rendered | None:
        """None: the helper ended by no fault of the request."""
        process = self._places.get()
        try:
            process = process or _Process(self.templates)
            rendered = process.ask(rendering)
            process.used_at = time.monotonic()
            return rendered
        except (OSError, EOFError):
            exit_code = 0 if process is None else process.close()
            process = None
            return Rendered(refusal=TOO_LONG) if exit_code == -signal.SIGPROF else None
        finally:
            self._places.put(process)
            self._end_idle_later()

    def _end_idle_later(self) -> None:
        with self._timer_lock:
            several = sum(process is not None for process in [*self._places.queue]) > 1
            if several and self._timer is None and self._finalizer.alive:
                self._timer = threading.Timer(self._idle_s, _end_idle, (weakref.ref(self),))
                self._timer.daemon = True
                self._timer.start()

    def end_idle(self) -> None:
        """End all helpers but one that were not used for a while; those that work are left alone."""
        with self._timer_lock:
            self._timer = None
        long_ago = time.monotonic() - self._idle_s
        taken = list[_Process | None]()  # the last one used comes first
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._places.get_nowait())
        helpers = [process for process in taken if process is not None]
        idle = [process for process in helpers[1:] if process.used_at <= long_ago]
        kept = [None if process in idle else process for process in taken]
        for process in reversed(kept):
            self._places.put(process)
        for process in idle:
            process.close()
        self._end_idle_later()

    def close(self) -> None:
        """End all helpers, once the last rendering has."""
        self._threads.shutdown()
        self._finalizer()
        with self._timer_lock:
            if self._timer is not None:
                self._timer.cancel()


def _end_idle(renderer: "weakref.ref[TemplateRenderer]") -> None:
    if (found := renderer()) is not None:
        found.end_idle()


def _end_all(places: "queue.LifoQueue[_Process | None]") -> None:
    while not places.empty():
        if (process := places.get()) is not None:
            process.close()
