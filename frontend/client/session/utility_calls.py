"""Utility calls under way. Each may run twice without harm, and is sent again to a core that was restarted."""

from collections.abc import Callable
from dataclasses import dataclass

from paged_serve.protocol.errors import EngineDead, PagedServeError
from paged_serve.protocol.messages.engine_core import Utility, UtilityCall, UtilityResult


@dataclass(slots=True, eq=False)
class PendingCall:
    """A utility call under way; over when `result` or `error` is set."""

    call: UtilityCall
    result: bytes | None = None
    error: PagedServeError | None = None
    on_done: Callable[[], None] | None = None

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    def answer(self) -> bytes:
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise EngineDead(f"the engine core did not answer {self.call.utility.name} in time")
        return self.result


class UtilityCalls:
    """The calls without an answer yet."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingCall] = {}
        self._next_id = 0

    def start(self, utility: Utility, on_done: Callable[[], None] | None, error: PagedServeError | None) -> PendingCall:
        """A call to be sent; with `error`, a call that has already failed."""
        pending = PendingCall(UtilityCall(self._next_id, utility), error=error, on_done=on_done)
        if error is None:
            self._pending[self._next_id] = pending
            self._next_id += 1
        return pending

    @property
    def unanswered(self) -> list[UtilityCall]:
        return [pending.call for pending in self._pending.values()]

    def end(self, pending: PendingCall) -> bytes:
        self._pending.pop(pending.call.call_id, None)
        return pending.answer()

    def finish(self, message: UtilityResult) -> None:
        pending = self._pending.pop(message.call_id, None)
        if pending is not None:
            pending.result = message.result
            pending.error = PagedServeError(message.error) if message.error else None
            if pending.on_done is not None:
                pending.on_done()

    def fail(self, error: PagedServeError) -> None:
        calls, self._pending = self._pending, {}
        for pending in calls.values():
            pending.error = error
            if pending.on_done is not None:
                pending.on_done()
