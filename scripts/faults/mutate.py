"""Mutation testing: count the small bugs in the engine core that the fast tests and a short simulation detect.

    python scripts/faults/mutate.py [--only block_pool] [--limit-s 150 --first 200]

The main process imports everything and collects all tests. For each mutant (mutants.py), a forked child applies it and
runs the tests, the fastest first, then a few simulations, until the first failure. A mutant that takes more than
CPU_LIMIT_S of CPU time counts as detected. Prints the undetected mutants and the score; the exit status is 1 if the
score is below 95 %.
"""

import argparse
import importlib
import io
import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
MODULES = {
    "scheduler": "scheduling",
    "row_assigner": "scheduling",
    "decode_rows": "scheduling",
    "block_pool": "kv",
    "kv_cache": "kv",
    "prefix_cache": "kv",
    "waiting_queue": "scheduling",
    "fair_share": "scheduling",
    "client_outbox": "engine/clients",
}
TESTS = [
    *(f"tests/engine_core/kv/test_{name}.py" for name in ("block_pool", "kv_group")),
    *(
        f"tests/engine_core/scheduling/test_{name}.py"
        for name in ("scheduler", "fair_share", "decode_set", "preemption", "windows", "worker_poison")
    ),
    *(f"tests/engine_core/engine/test_{name}.py" for name in ("engine", "client_outbox")),
    *(f"tests/engine_core/admission/test_{name}.py" for name in ("admission", "deadlines")),
    "tests/engine_core/requests/test_lifecycle.py",
]
SIMULATIONS, WORLDS = range(30), range(4)  # seeds
SLOW_TEST_S = 0.3  # slower tests are not used
CPU_LIMIT_S = 12
GOAL = 0.95
DETECTED, UNDETECTED = 1, 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=MODULES, help="repeatable")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--numbers", type=int, nargs="*", help="these mutants only")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="no further mutant starts after this time")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


class Judge:
    """A pytest plugin that replaces the loop over the collected tests."""

    def __init__(self, given: argparse.Namespace):
        self.given = given
        self.detected = Counter[str]()
        self.undetected: list[tuple[int, Mutant]] = []
        self.next = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        logging.disable(logging.CRITICAL)
        tests = self._quick_tests(session)
        work, running, started = iter(self._work()), dict[int, tuple[int, Mutant]](), time.monotonic()
        while True:
            is_late = time.monotonic() - started > self.given.limit_s
            if len(running) < self.given.processes and not is_late and (entry := next(work, None)):
                running[self._begin(tests, entry[1])] = entry
                self.next = entry[0] + 1
            elif running:
                child, status = os.wait()
                self._count(running.pop(child), status)
            else:
                return True

    def _work(self) -> Iterator[tuple[int, Mutant]]:
        all_mutants = [
            mutant
            for name in self.given.only or MODULES
            for path in (f"engine_core/{MODULES[name]}/{name}.py",)
            for mutant in mutants(ROOT / path, path)
        ]
        print(f"{len(all_mutants)} mutants", flush=True)
        for number, mutant in enumerate(all_mutants):
            if number >= self.given.first and (self.given.numbers is None or number in self.given.numbers):
                yield number, mutant

    def _quick_tests(self, session: pytest.Session) -> list[pytest.Item]:
        """The tests that pass quickly without a mutant, the fastest first.

        They are timed in a child, because no test can run twice in one process.
        """
        reading, writing = os.pipe()
        if not (child := os.fork()):
            took_s = [time_of(item) for item in session.items]
            os.write(writing, json.dumps(took_s).encode())
            os._exit(int(simulations_fail()))
        os.close(writing)
        with os.fdopen(reading) as pipe:
            took_s = json.load(pipe)
        assert os.waitpid(child, 0)[1] == 0, "a simulation fails without a mutant"
        wrong = [item.nodeid for item, seconds in zip(session.items, took_s, strict=True) if seconds is None]
        assert not wrong, f"tests fail without a mutant: {wrong}"
        quick = [pair for pair in zip(took_s, session.items, strict=True) if pair[0] < SLOW_TEST_S]
        quick_s = sum(seconds for seconds, _ in quick)
        print(f"{len(quick)} of {len(took_s)} tests are used, {quick_s:.1f} s in all", flush=True)
        return [item for _, item in sorted(quick, key=lambda pair: pair[0])]

    def _begin(self, tests: list[pytest.Item], mutant: Mutant) -> int:
        sys.stdout.flush()
        if child := os.fork():
            return child
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)  # its signal ends the child even in an endless loop
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                name = "paged_serve." + mutant.file.removesuffix(".py").replace("/", ".")
                mutant.plant(importlib.import_module(name))
                code = DETECTED if not all(map(passes, tests)) or simulations_fail() else UNDETECTED
            except BaseException:
                code = DETECTED
        os._exit(code)

    def _count(self, entry: tuple[int, Mutant], status: int) -> None:
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == UNDETECTED:
            self.undetected.append(entry)
            print(f"not detected: {entry[0]} {entry[1]}", flush=True)
        else:
            self.detected[entry[1].file] += 1


def passes(item: pytest.Item) -> bool:
    return all(report.passed or report.skipped for report in runtestprotocol(item, log=False, nextitem=None))


def time_of(item: pytest.Item) -> float | None:
    """Seconds of CPU time; None if the test fails."""
    started = time.process_time()
    is_good = passes(item)
    return time.process_time() - started if is_good else None


def simulations_fail() -> bool:
    from paged_serve.engine_core.simulation.simulator import simulate
    from tests.simulation.world import World

    try:
        for seed in SIMULATIONS:
            simulate(seed)
        for seed in WORLDS:
            World(seed).run()
    except Exception:
        return True
    return False


def main() -> int:
    given = parse()
    importlib.import_module("paged_serve.engine_core.simulation.simulator")
    importlib.import_module("tests.simulation.world")
    judge, started = Judge(given), time.monotonic()
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0"]
    pytest.main(["-q", "--no-header", *plugins, *(str(ROOT / test) for test in TESTS)], [judge])
    detected, total = judge.detected.total(), judge.detected.total() + len(judge.undetected)
    for file in sorted({*judge.detected, *(mutant.file for _, mutant in judge.undetected)}):
        missed = sum(mutant.file == file for _, mutant in judge.undetected)
        print(f"{file:32s} {judge.detected[file]} of {judge.detected[file] + missed}")
    print(f"{detected} of {total} detected, {detected / max(1, total):.1%}, {time.monotonic() - started:.0f} s")
    print(f"next: --first {judge.next}")
    return int(detected < GOAL * total)


if __name__ == "__main__":
    sys.exit(main())
