"""Turns `structured_outputs` into `grammar` in a helper process, so that no schema can delay other requests."""

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.structured_outputs import Grammar, StructuredOutputsParams

from ..helpers.helper_main import MAX_CPU_S
from ..helpers.helper_pool import MAX_PROCESSES, HelperPool, OutOfTime
from ..helpers.helper_process import HelperProcess
from .helper_messages import AddedTokens, Compiled

MODULE = "paged_serve.frontend.structured_outputs.grammar_process"
MAX_KEPT = 256  # compiled forms in the cache
MAX_KEPT_CHARS = 1 << 22
_encode = msgspec.json.Encoder().encode


class GrammarCompiler:
    """Compiles for any number of callers; the first call starts a helper."""

    def __init__(self, added_tokens: AddedTokens):
        self._helpers = HelperPool(lambda: _started(added_tokens), "compiles grammars")
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, "grammar")
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._kept_chars = 0
        self._lock = threading.Lock()  # guards the cache

    async def compile(self, params: StructuredOutputsParams) -> tuple[Grammar, list[str]]:
        """Like `compile_now`, in a thread unless the result is cached."""
        if (found := self._kept.get(_encode(params))) is not None:
            return Grammar(found.source), found.warnings
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.compile_now, params)

    def compile_now(self, params: StructuredOutputsParams) -> tuple[Grammar, list[str]]:
        """The grammar, and warnings about parts of the form that it does not enforce.

        Raises InvalidRequest for a form that cannot be enforced; its message is a sentence about the form. Raises
        PagedServeError if no helper answers.
        """
        key = _encode(params)
        found = self._kept.get(key)
        if found is None:
            found = self._ask(params)
            self._keep(key, found)
        return Grammar(found.source), found.warnings

    def _ask(self, params: StructuredOutputsParams) -> Compiled:
        try:
            found = self._helpers.ask(params, Compiled)
        except OutOfTime:
            raise InvalidRequest(f"it takes more than {MAX_CPU_S:g} s to compile; use a smaller form") from None
        if found.refusal:
            raise InvalidRequest(found.refusal)
        return found

    def _keep(self, key: bytes, found: Compiled) -> None:
        with self._lock:
            self._kept_chars += len(key) + len(found.source) if key not in self._kept else 0
            self._kept[key] = found
            while len(self._kept) > MAX_KEPT or self._kept_chars > MAX_KEPT_CHARS:
                old, compiled = self._kept.popitem(last=False)
                self._kept_chars -= len(old) + len(compiled.source)

    def close(self) -> None:
        self._threads.shutdown()
        self._helpers.close()


def _started(added_tokens: AddedTokens) -> HelperProcess:
    process = HelperProcess(MODULE)
    try:
        process.ask(added_tokens, Compiled)
    except BaseException:
        process.close()
        raise
    return process
