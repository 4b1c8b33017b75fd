"""Random faults at random moments under a steady load, all drawn from one seed."""

import asyncio
import random
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from paged_serve.frontend.adapters.folders import read_adapter
from paged_serve.frontend.client.async_client import AsyncClient
from paged_serve.frontend.config.model_folder import demo_model_folder

from ..end_to_end.server_process import ServerProcess
from ..workers.tiny_models.made_adapters import make_adapter
from .cell import HALT_S, OPTIONS
from .faults import (
    CHILDREN,
    HELPER,
    SIGNALS,
    check_no_file_is_left,
    check_nothing_is_left,
    processes_of,
    resume,
    run_dir,
    send,
    wait_ended,
)
from .streams.ledger import Fault, Ledger
from .streams.load import Load
from .streams.load_requests import draw_requests
from .streams.transports import chats, transports

EVERYTHING = (
    *(f"{role}:{name}" for role in (*CHILDREN, "standby", HELPER) for name in SIGNALS),
    *("supervisor:SIGSTOP", "supervisor:SIGSTOP+SIGCONT"),
)
NUM_REQUESTS = 32
ADAPTERS = ("red", "green", "blue")
MAX_RANK = 16
MAX_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Campaign:
    """`kinds`: ROLE:SIGNAL; `every_s`: mean time between faults, each drawn from half to one and a half of it;
    `pairs`: share of the faults that hit two processes at one moment."""

    seed: int
    seconds: float
    every_s: float
    streams: int = 32
    kinds: tuple[str, ...] = EVERYTHING
    tensor_parallel_size: int = 1
    pairs: float = 0.5
    frontends: int = 1

    @property
    def options(self) -> tuple[str, ...]:
        """Those of the server that `prepare` has prepared. Adapters have fewer places than there are adapters."""
        adapters = (f"--lora={name}={name}" for name in ADAPTERS)
        features = ("--speculative", "auto", "--kv-tier-dir", "tier", "--max-loras", str(len(ADAPTERS) - 1), *adapters)
        parallel = ("--tp", str(self.tensor_parallel_size), "--api-server-count", str(self.frontends))
        return (*OPTIONS, *features, *parallel)

    @property
    def command_line(self) -> str:
        kinds = "" if self.kinds == EVERYTHING else "".join(f" --only {kind}" for kind in self.kinds)
        return (
            f"python scripts/faults/chaos.py --minutes {self.seconds / 60:g} --every {self.every_s:g} "
            f"--seed {self.seed} --streams {self.streams} --tp {self.tensor_parallel_size} --pairs {self.pairs:g} "
            f"--frontends {self.frontends}{kinds}"
        )


def prepare(folder: Path) -> None:
    """Write the adapters to the folder in which the server will run."""
    for seed, name in enumerate(ADAPTERS):
        make_adapter(folder / name, demo_model_folder(), seed, scale=0.02)


def run(campaign: Campaign, server: ServerProcess) -> Ledger:
    """Run load and faults, check, stop. Raises AssertionError if a block, a process or a file is left."""
    server.wait_ready()
    ledger = asyncio.run(_run(campaign, server))
    server.process.terminate()
    code = wait_ended(server)
    assert code == 0, f"exit code {code}\n{server.stderr()}"
    check_no_file_is_left(server)
    return ledger


async def _run(campaign: Campaign, server: ServerProcess) -> Ledger:
    adapters = [read_adapter(name, str(server.temporary / name), MAX_RANK) for name in ADAPTERS]
    requests = draw_requests(campaign.seed, NUM_REQUESTS, MAX_TOKENS, adapters)
    async with await AsyncClient.connect(str(run_dir(server))) as client:
        load = Load(transports(server.port, client) + chats(server.port), requests, {}, campaign.seed)
        await load.compute_expected()
        end = time.monotonic() + campaign.seconds
        await asyncio.gather(load.until(end, campaign.streams), _break(campaign, server, client, load.ledger, end))
        load.ledger.saw(client)
    await check_nothing_is_left(server)
    return load.ledger


async def _break(campaign: Campaign, server: ServerProcess, client: AsyncClient, ledger: Ledger, end: float) -> None:
    rng = random.Random(f"faults {campaign.seed}")
    while True:
        pause_s = campaign.every_s * rng.uniform(0.5, 1.5)
        kinds = rng.choices(campaign.kinds, k=2 if rng.random() < campaign.pairs else 1)
        if time.monotonic() + pause_s > end:
            return
        await asyncio.sleep(pause_s)
        ledger.saw(client)
        victims = _victims(server, kinds, rng)
        if not victims:  # the processes are still starting
            continue
        kind = " & ".join(sorted(victims.values()))
        ledger.faults.append(Fault(kind, time.monotonic(), next(iter(victims)).pid))
        for victim, kind in victims.items():
            send(victim, kind.partition(":")[2])
        halted = [victim for victim, kind in victims.items() if kind.endswith("SIGSTOP+SIGCONT")]
        if halted:
            await asyncio.sleep(HALT_S * rng.uniform(0.1, 1.0))
            for victim in halted:
                resume(victim)


def _victims(server: ServerProcess, kinds: list[str], rng: random.Random) -> dict[psutil.Process, str]:
    """A process for each kind, no process twice; kinds without a process are left out."""
    victims: dict[psutil.Process, str] = {}
    for kind in kinds:
        role = kind.partition(":")[0]
        if free := [process for process in processes_of(server, role) if process not in victims]:
            victims[rng.choice(free)] = kind
    return victims
