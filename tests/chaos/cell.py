"""One cell of the matrix: a signal to a process in a phase, under a small load, and the checks that follow."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

from paged_serve.frontend.client.async_client import AsyncClient

from ..end_to_end.server_process import ServerProcess
from .faults import (
    CHILDREN,
    check_no_file_is_left,
    check_nothing_is_left,
    resume,
    run_dir,
    send,
    wait_ended,
    wait_for_process,
)
from .streams.load import Expected, Load
from .streams.load_requests import LoadRequest
from .streams.transports import NUM_TRANSPORTS, transports

HALT_S = 0.3  # between SIGSTOP and SIGCONT: shorter than a hang
LONG_HALT_S = 4.0  # for a supervisor, while there may be no frontend to continue it
OPTIONS = ("--max-restarts", "1000000", "--num-blocks", "600", "--max-num-batched-tokens", "128")
NO_KEY = ""
PHASES = ("loading", "idle", "prefill", "decode", "draining")


@dataclass(frozen=True, slots=True)
class Cell:
    """`signal` is a name, or SIGSTOP+SIGCONT."""

    phase: str
    role: str
    signal: str

    def __str__(self) -> str:
        return f"{self.phase} {self.role} {self.signal}"

    @property
    def ends_all(self) -> bool:
        """Whether the server ends; then only its cleanup is checked."""
        at_once = ("SIGKILL", "SIGSEGV") + (("SIGTERM",) if self.phase in ("loading", "draining") else ())
        return self.role == "supervisor" and self.signal in at_once

    @property
    def ends_server(self) -> bool:
        return self.role == "supervisor" and not self.signal.startswith("SIGSTOP")

    @property
    def breaks_connections(self) -> bool:
        return self.role == "frontend" and self.signal != "SIGSTOP+SIGCONT"


@contextlib.asynccontextmanager
async def loading(
    server: ServerProcess, requests: list[LoadRequest], expected: Expected, seed: int = 0
) -> AsyncIterator[Load]:
    """A load over both transports; the first call fills `expected` for the others."""
    async with await AsyncClient.connect(str(run_dir(server)), away_s=90.0) as client:
        load = Load(transports(server.port, client), requests, expected, seed)
        if not expected:
            await load.compute_expected()
        yield load


async def inject(server: ServerProcess, cell: Cell) -> None:
    wait_for_process(server, CHILDREN[0])  # the signal handlers are set before children start
    victim = wait_for_process(server, cell.role)
    send(victim, cell.signal)
    if cell.signal == "SIGSTOP+SIGCONT":
        await asyncio.sleep(HALT_S)
        resume(victim)
    elif cell.signal == "SIGSTOP" and cell.role == "supervisor" and cell.phase in ("loading", "draining"):
        await asyncio.sleep(LONG_HALT_S)
        resume(victim)


def check_load(cell: Cell, load: Load) -> None:
    ledger = load.ledger
    assert not ledger.wrong, ledger.report()
    if not cell.ends_all:
        assert not ledger.lost, ledger.report()
        assert cell.breaks_connections or not ledger.broken, ledger.report()


async def run_while_serving(server: ServerProcess, cell: Cell, requests: list[LoadRequest], expected: Expected) -> None:
    """The phases idle, prefill and decode; the server continues unless the supervisor is the victim."""
    async with loading(server, requests, expected) as load:
        if cell.phase == "idle" and cell.role != NO_KEY:
            await inject(server, cell)
            if cell.ends_server:
                return
        asking = asyncio.create_task(load.once(again=cell.role != "supervisor"))
        if cell.phase == "prefill":
            await asyncio.sleep(0.01)  # long enough to send, too short to finish at 128 tokens per step
        elif cell.phase == "decode":
            await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(requests))
        if cell.phase != "idle":
            await inject(server, cell)
        await asking
        check_load(cell, load)
    if not cell.ends_server:
        await check_nothing_is_left(server)


async def run_draining(server: ServerProcess, cell: Cell, requests: list[LoadRequest], expected: Expected) -> None:
    async with loading(server, requests, expected) as load:
        asking = asyncio.create_task(load.once(again=False))
        await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(requests))
        server.process.send_signal(signal.SIGTERM)
        if cell.role == "supervisor" or server.process.poll() is None:
            await inject(server, cell)
        await asking
        check_load(cell, load)


async def until_all_have_begun(load: Load, asking: "asyncio.Task[None]", count: int) -> None:
    """Wait until each stream has a token or has ended."""
    while load.num_begun < count and not asking.done():
        await asyncio.sleep(0.005)


def check_end(server: ServerProcess, cell: Cell) -> None:
    """After the end of the server: no process and no file is left, and the exit code is right."""
    code = wait_ended(server)
    sudden = {"SIGKILL": -signal.SIGKILL, "SIGSEGV": -signal.SIGSEGV}
    if cell.role == "supervisor" and cell.signal in sudden:
        assert code == sudden[cell.signal], server.stderr()
        return  # the next server on this machine clears the run directory
    assert code == 0, server.stderr()
    check_no_file_is_left(server)
