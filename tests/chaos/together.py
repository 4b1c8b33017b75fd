"""Several simultaneous faults under a small load, of which every stream is compared."""

import asyncio
import itertools
import json
from collections.abc import Iterator, Sequence

from ..end_to_end.server_process import ServerProcess
from .cell import loading, until_all_have_begun
from .faults import HELPER, check_nothing_is_left, send, wait_for_process
from .streams.load import Expected
from .streams.load_requests import LoadRequest
from .streams.transports import NUM_TRANSPORTS

Injection = tuple[str, str]  # (role, signal)
SIGNALS = ("SIGKILL", "SIGSTOP", "SIGSEGV")
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 24}


def children_of(tensor_parallel_size: int) -> tuple[str, ...]:
    """One process of each kind, and each rank."""
    return (*(f"worker {rank}" for rank in range(tensor_parallel_size)), "engine-core", "frontend", "standby", HELPER)


def all_signals(children: Sequence[str], count: int) -> Iterator[tuple[Injection, ...]]:
    """`count` children at once, with every combination of signals."""
    for victims in itertools.combinations(children, count):
        for signals in itertools.product(SIGNALS, repeat=count):
            yield tuple(zip(victims, signals, strict=True))


def same_signal(children: Sequence[str], count: int) -> Iterator[tuple[Injection, ...]]:
    """`count` children at once, with the same signal."""
    for victims, signal in itertools.product(itertools.combinations(children, count), SIGNALS):
        yield tuple((role, signal) for role in victims)


async def run_injections(
    server: ServerProcess, injections: Sequence[Injection], requests: list[LoadRequest], expected: Expected
) -> None:
    """Accepted requests finish with identical bytes, and the engine keeps nothing of them."""
    async with loading(server, requests, expected) as load:
        victims = [(wait_for_process(server, role), signal) for role, signal in injections]
        asking = asyncio.create_task(load.once())
        await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(requests))
        for victim, signal in victims:
            send(victim, signal)
        await asking
        ledger, context = load.ledger, f"{injections}\n{load.ledger.report()}"
        assert not ledger.wrong, context
        assert not ledger.lost, context
        assert not ledger.broken or any(role == "frontend" for role, _ in injections), context
    if any(role == HELPER for role, _ in injections):
        await asyncio.to_thread(check_chat, server)
    await check_nothing_is_left(server)


def check_chat(server: ServerProcess) -> None:
    """A conversation needs the helper that renders templates."""
    with server.ask("POST", "/v1/chat/completions", CHAT) as response:
        answer = json.loads(response.read())
        assert response.status == 200, answer
        assert answer["choices"][0]["message"]["content"], answer
