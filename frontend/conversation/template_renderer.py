"""Renders chat templates in helper processes, so that no conversation can delay others."""

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor

from paged_serve.protocol.errors import ConfigError, InvalidRequest

from ..helpers.helper_main import MAX_CPU_S
from ..helpers.helper_pool import IDLE_S, MAX_PROCESSES, HelperPool, OutOfTime
from ..helpers.helper_process import HelperProcess
from .conversation import TemplateInput
from .template_process import MODULE, SUBJECT, Rendered, Rendering, Templates

TOO_LONG = f"{SUBJECT} needs more than {MAX_CPU_S:g} s of processor time for these messages; send fewer or shorter ones"
TOO_LONG_TO_COMPILE = (
    f"{SUBJECT} needs more than {MAX_CPU_S:g} s of processor time to compile, or for one short message"
)


def _started(templates: Templates) -> HelperProcess:
    """Start a helper that compiles `templates`. Raises ConfigError when they do not compile."""
    process = HelperProcess(MODULE)
    try:
        refusal = process.ask(templates, Rendered).refusal
    except BaseException as error:
        if process.close() and isinstance(error, OSError | EOFError):
            raise ConfigError(TOO_LONG_TO_COMPILE) from None
        raise
    if refusal:
        process.close()
        raise ConfigError(refusal)
    return process


class TemplateRenderer:
    """Renders for any number of callers."""

    def __init__(self, templates: Templates, idle_s: float = IDLE_S):
        self.templates = templates
        self.helpers = HelperPool(lambda: _started(templates), "renders chat templates", idle_s)
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, "template")

    async def render(self, given: TemplateInput, *, moment: float | None = None, mark: str = "") -> str:
        """Like `render_now`, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, functools.partial(self.render_now, given, moment=moment, mark=mark)
        )

    def render_now(self, given: TemplateInput, *, moment: float | None = None, mark: str = "") -> str:
        """The prompt, as ChatTemplate.render makes it.

        Raises InvalidRequest when the template refuses the messages, cannot render them, or exceeds the limits of time
        and memory; ConfigError when it does not compile; PagedServeError when no helper answers.
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
        try:
            rendered = self.helpers.ask(rendering, Rendered)
        except OutOfTime:
            raise InvalidRequest(TOO_LONG, "messages") from None
        if rendered.refusal:
            raise InvalidRequest(rendered.refusal, rendered.param)
        return rendered.text

    def start(self) -> None:
        """Start the first helper before a request waits for it.

        Raises ConfigError if the template does not compile, PagedServeError if no helper answers.
        """
        self.helpers.start()

    def close(self) -> None:
        """End all helpers after the last rendering."""
        self._threads.shutdown()
        self.helpers.close()
