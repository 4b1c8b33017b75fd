"""An event loop whose time passes only while it has nothing to do: a slow machine makes nothing late."""

import asyncio
import selectors

SETTLED_S = 0.005  # without an event for so long, none is on its way through the kernel


class SkippingSelector(selectors.DefaultSelector):
    """Does not wait until a time, but counts it as passed."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if not timeout or timeout < 0:
            return super().select(timeout)
        if not (events := super().select(min(timeout, SETTLED_S))):
            self.skipped_s += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.skipped_s
