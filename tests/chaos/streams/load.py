"""The load: concurrent streams, each compared with the output of the same request without a fault."""

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from .ledger import Ledger
from .load_requests import LoadRequest, Received
from .transports import Attempt, Broken, Failed, Refused, Transport

PATIENCE_S = 90.0  # how long a request is retried before it counts as lost
ASK_AGAIN_S = 0.2
Expected = dict[tuple[str, int], list[Received]]  # by transport and request
ABORTED = 0.1  # share of requests that are aborted


class Load:
    """`compute_expected` once without faults; then `once` or `until`. The results are in `ledger`."""

    def __init__(self, transports: Sequence[Transport], requests: Sequence[LoadRequest], expected: Expected, seed: int):
        """`expected` is empty, or was filled by another load with equal requests and transports."""
        self.ledger = Ledger()
        self.num_begun = 0  # attempts that have had their first token
        self._transports = transports
        self._requests = requests
        self._expected = expected
        self._rng = random.Random(f"load {seed}")

    async def compute_expected(self) -> None:
        """Run each request on each transport, all at once; the transports with the same prompt must agree."""
        await asyncio.gather(
            *(self._expect(transport, request) for transport in self._transports for request in self._requests)
        )
        for request in self._requests:
            for is_chat in (False, True):
                alike = [transport.name for transport in self._transports if transport.is_chat == is_chat]
                answers = [self._expected[name, request.number] for name in alike]
                tokens = [[received.token_ids for received in answer] for answer in answers]
                assert all(ids == tokens[0] for ids in tokens), f"transports differ on request {request.number}"

    async def _expect(self, transport: Transport, request: LoadRequest) -> None:
        attempt = Attempt(request)
        async for _ in transport.ask(attempt):
            pass
        assert all(received.finish_reason in ("stop", "length") for received in attempt.received), attempt.received
        self._expected[transport.name, request.number] = attempt.received

    async def once(self, *, again: bool = True) -> None:
        """Run every request once on every transport, all at once. `again`: retry if refused or disconnected."""
        todo = [(transport, request) for transport in self._transports for request in self._requests]
        await asyncio.gather(*(self._run_to_the_end(transport, request, None, again) for transport, request in todo))

    async def until(self, end: float, streams: int) -> None:
        """Keep `streams` streams running, divided among the transports, until `end` (monotonic)."""
        await asyncio.gather(*(self._stream(self._transports[i % len(self._transports)], end) for i in range(streams)))

    async def _stream(self, transport: Transport, end: float) -> None:
        rng = self._rng
        while time.monotonic() < end:
            request = rng.choice(self._requests)
            leaves = transport.needs_client and rng.random() < ABORTED
            leave_after = rng.randint(1, 40) if leaves else None
            await self._run_to_the_end(transport, request, leave_after)

    async def _run_to_the_end(
        self, transport: Transport, request: LoadRequest, leave_after: int | None, again: bool = True
    ) -> None:
        """Send the request until it is answered, as a client that needs its answer."""
        ledger, deadline, attempt = self.ledger, time.monotonic() + PATIENCE_S, Attempt(request)
        ledger.requests += 1
        for number in range(10**6):
            try:
                await self._read(transport, attempt, leave_after)
                return
            except Refused as refusal:
                ledger.refused += not number
                ledger.reasons[f"{transport.name}: {str(refusal)[:160]}"] += 1
            except Broken:
                ledger.broken += 1
                ledger.resumed += transport.can_resume
                attempt = attempt if transport.can_resume else Attempt(request)
            except (Failed, TimeoutError) as error:
                ledger.lost.append(f"request {request.number} by {transport.name}: {type(error).__name__} {error}")
                return
            if not again:
                return
            if time.monotonic() > deadline:
                ledger.lost.append(f"request {request.number} by {transport.name}: not answered in {PATIENCE_S:.0f} s")
                return
            await asyncio.sleep(ASK_AGAIN_S)

    async def _read(self, transport: Transport, attempt: Attempt, leave_after: int | None) -> None:
        ledger, request = self.ledger, attempt.request
        whole = self._expected[transport.name, request.number]
        try:
            async with contextlib.aclosing(transport.ask(attempt)) as deltas:  # type: ignore[type-var]
                async for _ in deltas:
                    self.num_begun += attempt.num_outputs == 1
                    if leave_after is not None and attempt.num_tokens >= leave_after:
                        break
        finally:
            ledger.attempts[id(attempt)] = attempt
            for index, (received, expected) in enumerate(zip(attempt.received, whole, strict=True)):
                if not received.is_prefix_of(expected):
                    ledger.wrong.append(
                        f"request {request.number}.{index} by {transport.name}: {received} is not in {expected}"[:2000]
                    )
        if leave_after is not None and attempt.received != whole:
            ledger.aborted += 1
            return
        ledger.completed += 1
        ledger.tokens += attempt.num_tokens
        if attempt.received != whole:
            ledger.wrong.append(
                f"request {request.number} by {transport.name}: {attempt.received} is not {whole}"[:2000]
            )
