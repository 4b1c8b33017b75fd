"""The load: so many streams at once, each compared with the output of the same request without a fault."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from .ledger import Ledger
from .orders import Order, Received
from .transports import Attempt, Broken, Failed, Refused, Transport

PATIENCE_S = 90.0  # how long an order is asked again before it counts as lost
ASK_AGAIN_S = 0.2
Expected = dict[tuple[str, int], list[Received]]  # by transport and order
ABORTED = 0.1  # share of orders that are left in the middle


class Load:
    """`compute_expected` once without faults; then `once` or `until`. The results are in `ledger`."""

    def __init__(self, transports: Sequence[Transport], orders: Sequence[Order], expected: Expected, seed: int):
        """`expected` is empty, or was filled by another load with equal orders and transports."""
        self.ledger = Ledger()
        self.num_begun = 0  # attempts that have had their first token
        self._transports = transports
        self._orders = orders
        self._expected = expected
        self._rng = random.Random(f"load {seed}")

    async def compute_expected(self) -> None:
        """Each order on each transport, all at once; the transports must agree, too."""
        await asyncio.gather(*(self._expect(way, order) for way in self._transports for order in self._orders))
        for order in self._orders:
            tokens = [
                [received.token_ids for received in self._expected[way.name, order.number]] for way in self._transports
            ]
            assert all(ids == tokens[0] for ids in tokens), f"transports differ on order {order.number}"

    async def _expect(self, way: Transport, order: Order) -> None:
        attempt = Attempt(order)
        async for _ in way.ask(attempt):
            pass
        assert all(received.finish_reason in ("stop", "length") for received in attempt.received), attempt.received
        self._expected[way.name, order.number] = attempt.received

    async def once(self, *, again: bool = True) -> None:
        """Every order once on every transport, all at once. `again`: ask again when refused or cut off."""
        todo = [(way, order) for way in self._transports for order in self._orders]
        await asyncio.gather(*(self._fulfil(way, order, None, again) for way, order in todo))

    async def until(self, end: float, streams: int) -> None:
        """`streams` at once, shared by the transports, always a new one for one that ended, until `end` (monotonic)."""
        await asyncio.gather(*(self._stream(self._transports[i % len(self._transports)], end) for i in range(streams)))

    async def _stream(self, way: Transport, end: float) -> None:
        rng = self._rng
        while time.monotonic() < end:
            order = rng.choice(self._orders)
            leaves = way.name != "http with key" and rng.random() < ABORTED  # with a key it would go on without us
            leave_after = rng.randint(1, 40) if leaves else None
            await self._fulfil(way, order, leave_after)

    async def _fulfil(self, way: Transport, order: Order, leave_after: int | None, again: bool = True) -> None:
        """Ask until it is answered, as a client does that needs its answer."""
        ledger, deadline, attempt = self.ledger, time.monotonic() + PATIENCE_S, Attempt(order)
        ledger.orders += 1
        for number in range(10**6):
            try:
                await self._read(way, attempt, leave_after)
                return
            except Refused as refusal:
                ledger.refused += not number
                ledger.reasons[f"{way.name}: {str(refusal)[:160]}"] += 1
            except Broken:
                ledger.broken += 1
                ledger.resumed += way.can_resume
                attempt = attempt if way.can_resume else Attempt(order)
            except (Failed, TimeoutError) as error:
                ledger.lost.append(f"order {order.number} by {way.name}: {type(error).__name__} {error}")
                return
            if not again:
                return
            if time.monotonic() > deadline:
                ledger.lost.append(f"order {order.number} by {way.name}: not answered in {PATIENCE_S:.0f} s")
                return
            await asyncio.sleep(ASK_AGAIN_S)

    async def _read(self, way: Transport, attempt: Attempt, leave_after: int | None) -> None:
        ledger, order = self.ledger, attempt.order
        whole = self._expected[way.name, order.number]
        try:
            async with contextlib.aclosing(way.ask(attempt)) as deltas:  # type: ignore[type-var]
                async for _ in deltas:
                    self.num_begun += attempt.num_outputs == 1
                    if leave_after is not None and attempt.num_tokens >= leave_after:
                        break
        finally:
            ledger.attempts[id(attempt)] = attempt
            for index, (received, expected) in enumerate(zip(attempt.received, whole, strict=True)):
                if not received.is_prefix_of(expected):
                    ledger.wrong.append(
                        f"order {order.number}.{index} by {way.name}: {received} is not in {expected}"[:2000]
                    )
        if leave_after is not None and attempt.received != whole:
            ledger.aborted += 1
            return
        ledger.completed += 1
        ledger.tokens += attempt.num_tokens
        if attempt.received != whole:
            ledger.wrong.append(f"order {order.number} by {way.name}: {attempt.received} is not {whole}"[:2000])
