"""Speculation, adapters, tiers, ranks, preemption and kills change no byte of any output, in real processes.

    .venv/bin/python -m tests.random_workloads.test_random_workloads --count 1000 --seed 0 --processes 1

Each workload draws requests with every sampling parameter, structured outputs and adapters. Each request is computed
alone on an engine that drafts nothing and is not disturbed; then all of them together on an engine that speculates,
with few blocks, a tier, ranks and SIGKILLs. ENGINE workloads in a row use one engine, so its prefix cache, tier and
earlier answers meet them; `--seed N --count 1` plays one of them on the same kind of engine. An engine with a tier is
then started again, and finds the longest prompt there.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from pathlib import Path

import pytest

from paged_serve import AsyncLLM
from paged_serve.frontend.config.model_folder import demo_model_folder

from .drawn_requests import DrawnRequest, draw_workload
from .engines import EngineChoice, draw_engine, undisturbed
from .models import ADAPTERS, Models
from .play import Player, Undisturbed, check, play

ENGINE = 10  # workloads of one engine
SLICE = (38394, 38397)  # one preempts, in the other a worker and the core are killed; a fixed number of drafts, a tier
STATS = ("draft_tokens", "accepted_tokens", "num_preemptions", "prefix_cache_hits")
EVENTS = (*STATS, "with adapters", "structured", "worker killed", "engine-core killed")

pytestmark = pytest.mark.skipif(not demo_model_folder().is_dir(), reason="needs the demo model")


class Workloads:
    """Plays workloads; engines without disturbances are started once for each form. An async context."""

    def __init__(self, folder: Path):
        self.counts = Counter[str]()
        self._folder = folder
        self._stack = AsyncExitStack()
        self._models = Models(folder)
        self._references: dict[str, Undisturbed] = {}

    async def __aenter__(self) -> "Workloads":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def play(self, seeds: Iterable[int]) -> None:
        """Workloads of one engine, by their seeds."""
        seeds = list(seeds)
        choice = draw_engine(seeds[0] // ENGINE)
        reference = await self._reference(choice.form)
        options = choice.options(self._models, self._folder / f"tier {seeds[0]}")
        adapters = self._models.adapters(choice.form)
        async with AsyncLLM(**options) as llm:
            player = Player(llm, adapters, has_priorities=choice.policy == "priority")
            for seed in seeds:
                try:
                    await self._play(seed, player, reference)
                except BaseException as error:
                    error.add_note(f"{choice}\nto repeat: python -m {__spec__.name} --count 1 --seed {seed}")
                    raise
            await player.check_nothing_is_left()
        if choice.has_tier:
            async with AsyncLLM(**options) as llm:
                await self._restart(Player(llm, adapters), seeds, reference)
        self.counts += player.counts
        self._count(choice)

    async def _play(self, seed: int, player: Player, reference: Undisturbed) -> None:
        before = await player.llm.get_metrics()
        await play(seed, draw_workload(seed), player, reference)
        after = await player.llm.get_metrics()
        for name in STATS:  # a new core begins with zero
            player.counts[name] += after[name] - before[name] if after[name] >= before[name] else after[name]
        player.counts["workloads"] += 1

    async def _restart(self, player: Player, seeds: list[int], reference: Undisturbed) -> None:
        """On a new engine, whose cache is empty, what it finds of the longest prompt comes from the tier."""
        requests = [request for seed in seeds for request in draw_workload(seed).first if may_load(request)]
        request = max(requests, key=lambda each: len(each.prompt), default=None)
        if request is not None:
            [expected], found = await reference.alone([request], []), await player.alone(request, [])
            check(f"seeds {seeds}, restarted, {request}", expected, found, may_be_cut=False)
            self.counts["tokens loaded after a restart"] += found.num_cached_tokens

    async def _reference(self, form: str) -> Undisturbed:
        if form not in self._references:
            engines = [AsyncLLM(**undisturbed(form, self._models, max_loras)) for max_loras in (0, len(ADAPTERS))]
            adapters = self._models.adapters(form)
            players = [Player(await self._stack.enter_async_context(llm), adapters) for llm in engines]
            self._references[form] = Undisturbed(*players)
        return self._references[form]

    def _count(self, choice: EngineChoice) -> None:
        drafts = "adaptive" if choice.adaptive else "fixed number of drafts"
        for kind in (choice.form, choice.speculative, drafts, f"tp {choice.ranks}"):
            self.counts[f"engines: {kind}"] += 1
        self.counts["engines: tier"] += choice.has_tier


def may_load(request: DrawnRequest) -> bool:
    """Whether its prompt is so long that loading a block pays, and may be read from the prefix cache."""
    params = request.params
    return (
        not isinstance(request.prompt, str) and not params.skip_reading_prefix_cache and params.prompt_logprobs is None
    )


async def play_all(folder: Path, seeds: Iterable[int], *, shows: bool = False) -> Counter[str]:
    """Returns what happened in them."""
    by_engine: dict[int, list[int]] = {}
    for seed in seeds:
        by_engine.setdefault(seed // ENGINE, []).append(seed)
    started = time.monotonic()
    async with Workloads(folder) as workloads:
        for of_one in by_engine.values():
            await workloads.play(of_one)
            if shows:
                count, seconds = workloads.counts["workloads"], time.monotonic() - started
                last = f"the last of them seeds {of_one[0]} to {of_one[-1]}"
                print(f"{count} workloads alike, {last}, {seconds:.0f} s, {dict(workloads.counts)}", flush=True)
    return workloads.counts


@pytest.mark.timeout(600)
def test_random_workloads_keep_their_bytes(tmp_path):
    """What is loaded from a tier depends on measured times, so only longer runs count that."""
    counts = asyncio.run(play_all(tmp_path, SLICE))
    for event in EVENTS:
        assert counts[event], f"there were no {event}, so the slice does not test them"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_two_hundred_random_workloads_keep_their_bytes(tmp_path):
    counts = asyncio.run(play_all(tmp_path, range(200)))
    print(dict(counts))
    for event in (*EVENTS, "aborted", "tokens loaded after a restart"):
        assert counts[event], f"there were no {event}"


def play_part(seeds: list[int]) -> Counter[str]:
    """`play_all` in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(play_all(Path(folder), seeds, shows=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1, help="engines that play at the same time")
    given = parser.parse_args()
    engines = range(given.seed // ENGINE, (given.seed + given.count - 1) // ENGINE + 1)
    seeds = range(given.seed, given.seed + given.count)
    parts = [
        [seed for seed in seeds if seed // ENGINE % given.processes == part]
        for part in range(min(given.processes, len(engines)))
    ]
    with ProcessPoolExecutor(len(parts), get_context("spawn")) as pool:
        counts = sum(pool.map(play_part, parts), Counter[str]())
    for name, count in sorted(counts.items()):
        print(f"{name:32s} {count}")


if __name__ == "__main__":
    main()
