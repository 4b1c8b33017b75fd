"""One cell of the matrix: a signal to a process in a phase, under a small load, with everything that must then hold."""

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
from .load import Expected, Load
from .orders import Order
from .transports import NUM_TRANSPORTS, transports

HALT_S = 0.3  # of SIGSTOP with SIGCONT: shorter than what counts as a hang
LONG_HALT_S = 4.0  # of a supervisor while no frontend may be there to continue it
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
        """Nothing is promised beyond leaving nothing behind."""
        at_once = ("SIGKILL", "SIGSEGV") + (("SIGTERM",) if self.phase in ("loading", "draining") else ())
        return self.role == "supervisor" and self.signal in at_once

    @property
    def ends_server(self) -> bool:
        return self.role == "supervisor" and not self.signal.startswith("SIGSTOP")

    @property
    def breaks_connections(self) -> bool:
        return self.role == "frontend" and self.signal != "SIGSTOP+SIGCONT"


@contextlib.asynccontextmanager
async def loading(server: ServerProcess, orders: list[Order], expected: Expected, seed: int = 0) -> AsyncIterator[Load]:
    """A load over both transports; `expected` is filled by the first one and kept for the others."""
    async with await AsyncClient.connect(str(run_dir(server)), away_s=90.0) as client:
        load = Load(transports(server.port, client), orders, expected, seed)
        if not expected:
            await load.compute_expected()
        yield load


async def inject(server: ServerProcess, cell: Cell) -> None:
    wait_for_process(server, CHILDREN[0])  # its signal handlers are there before its children
    victim = wait_for_process(server, cell.role)
    send(victim, cell.signal)
    if cell.signal == "SIGSTOP+SIGCONT":
        await asyncio.sleep(HALT_S)
        resume(victim)
    elif cell.signal == "SIGSTOP" and cell.role == "supervisor" and cell.phase in ("loading", "draining"):
        await asyncio.sleep(LONG_HALT_S)
        resume(victim)


def judge(cell: Cell, load: Load) -> None:
    ledger = load.ledger
    assert not ledger.wrong, ledger.report()
    if not cell.ends_all:
        assert not ledger.lost, ledger.report()
        assert cell.breaks_connections or not ledger.broken, ledger.report()


async def run_while_serving(server: ServerProcess, cell: Cell, orders: list[Order], expected: Expected) -> None:
    """The phases idle, prefill and decode; the server goes on unless the supervisor was hit."""
    async with loading(server, orders, expected) as load:
        if cell.phase == "idle" and cell.role != NO_KEY:
            await inject(server, cell)
            if cell.ends_server:
                return
        asking = asyncio.create_task(load.once(again=cell.role != "supervisor"))
        if cell.phase == "prefill":
            await asyncio.sleep(0.01)  # sent, and too little time for 128 tokens a step to be over
        elif cell.phase == "decode":
            await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(orders))
        if cell.phase != "idle":
            await inject(server, cell)
        await asking
        judge(cell, load)
    if not cell.ends_server:
        await check_nothing_is_left(server)


async def run_draining(server: ServerProcess, cell: Cell, orders: list[Order], expected: Expected) -> None:
    async with loading(server, orders, expected) as load:
        asking = asyncio.create_task(load.once(again=False))
        await until_all_have_begun(load, asking, NUM_TRANSPORTS * len(orders))
        server.process.send_signal(signal.SIGTERM)
        if cell.role == "supervisor" or server.process.poll() is None:
            await inject(server, cell)
        await asking
        judge(cell, load)


async def until_all_have_begun(load: Load, asking: "asyncio.Task[None]", count: int) -> None:
    """Until each stream has had a token, or has ended already."""
    while load.num_begun < count and not asking.done():
        await asyncio.sleep(0.005)


def check_end(server: ServerProcess, cell: Cell) -> None:
    """After the end of the server, asked for or not: no process and no file is left, and the exit code shows how."""
    code = wait_ended(server)
    sudden = {"SIGKILL": -signal.SIGKILL, "SIGSEGV": -signal.SIGSEGV}
    if cell.role == "supervisor" and cell.signal in sudden:
        assert code == sudden[cell.signal], server.stderr()
        return  # the next server on this machine clears the run directory
    assert code == 0, server.stderr()
    check_no_file_is_left(server)
