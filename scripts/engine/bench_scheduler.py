"""Measure the time per step of the engine core alone, without a model and without sockets.

    python scripts/engine/bench_scheduler.py [--steps 400]

Regime: pure Python on one core. A steady step is bounded by one pass over the new tokens at C speed (append each to its
sequence, ~25 ns; look for a stop token, ~12 ns) plus ~1 us for each row that needs a block (one in block_size). A step
with churn adds a copy of the decode set's columns and the admission of each new sequence. Hashing is bounded by SHA-256
of 96 bytes per block (~0.3 us with SHA-NI, most of it call overhead); allocation and prefix hits by one list and one
dict operation per block. The time in which msgspec encodes the frames is listed separately.
"""

import argparse
import gc
import json
import statistics
import subprocess
import time
from collections.abc import Callable

import msgspec

from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.kv.block_pool import BlockPool
from paged_serve.protocol.block_hash import chain_blocks, chain_root
from paged_serve.protocol.messages.config import Config, SchedulerConfig, SpeculationConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest, OutputsReceived
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import ModelRunnerOutput

CLIENT = b"client:0"
BLOCK_SIZE = 16
VLLM_US = {"decode 256": 2653, "decode 1024": 10967, "hash": 481, "allocate": 336, "prefix hit": 287}
TARGET_US = {"decode 256": 100, "decode 1024": 350, "hash": 150, "allocate": 60, "prefix hit": 60}


class Bench:
    """An engine with `num_rows` running decodes, and the times of its steps in seconds."""

    def __init__(self, num_rows: int, num_clients: int = 1):
        scheduler = SchedulerConfig(max_num_seqs=num_rows, max_num_batched_tokens=8192, max_num_queued_requests=1 << 20)
        config = Config(scheduler=scheduler, speculation=SpeculationConfig("off"))
        self.engine = EngineCore(config, ModelFacts(200_000, BLOCK_SIZE, 8192, 50_000, frozenset({0})))
        self.clients = [b"client:%d" % index for index in range(num_clients)]
        self.num_requests = 0
        self.plan_s: list[float] = []
        self.apply_s: list[float] = []
        self.encode_s: list[float] = []
        self.frame_bytes: list[tuple[int, int, int]] = []  # plan, answer, to all clients
        for client in self.clients:
            self.engine.add_client(client, 0.0)
        for index in range(num_rows):
            self.add(100 + index % BLOCK_SIZE, max_tokens=6000)
        while len(self.engine.scheduler.decode_rows.decode_set) < num_rows:
            self.step()
        self.plan_s, self.apply_s, self.encode_s, self.frame_bytes = [], [], [], []

    def add(self, prompt_len: int, max_tokens: int) -> None:
        number = self.num_requests = self.num_requests + 1
        prompt = pack_ids((number * 131 + j) % 4000 + 1 for j in range(prompt_len))
        params = SamplingParams(ignore_eos=True, max_tokens=max_tokens, stop_token_ids=(49_999,))
        client = self.clients[number % len(self.clients)]
        self.engine.add_request(client, EngineCoreRequest(number, prompt, params), 0.0)

    def step(self) -> None:
        clock = time.perf_counter
        start = clock()
        plan = self.engine.plan(0.0)
        planned = clock()
        assert plan is not None
        in_flight = self.engine.scheduler.in_flight[-1]
        num_tokens = len(in_flight.decode) + sum(chunk.samples for chunk in in_flight.chunks)
        answer = ModelRunnerOutput(0, plan.step, pack_ids([7 + plan.step % 100] * num_tokens), 0.001)
        before = clock()
        outgoing = self.engine.apply(answer, 0.0)
        applied = clock()
        plan_frame = msgspec.msgpack.encode(plan)
        client_frames = [msgspec.msgpack.encode(message) for _, message in outgoing]
        encoded = clock()
        self.frame_bytes.append((len(plan_frame), len(msgspec.msgpack.encode(answer)), sum(map(len, client_frames))))
        for client, _ in outgoing:
            self.engine.outputs_received(client, OutputsReceived(1).frames)
        self.plan_s.append(planned - start)
        self.apply_s.append(applied - before)
        self.encode_s.append(encoded - applied)


def decode(num_rows: int, steps: int, num_clients: int = 1) -> Bench:
    bench = Bench(num_rows, num_clients)
    for _ in range(steps):
        bench.step()
    return bench


def churn(num_rows: int, steps: int, num_leaving: int) -> Bench:
    """Before each step, `num_leaving` rows end by length and as many requests arrive."""
    bench = Bench(num_rows)
    lifetime = num_rows // num_leaving
    for step in range(lifetime + steps):
        for _ in range(num_leaving):
            bench.add(32, max_tokens=lifetime)
        if step < lifetime:  # replace the first rows by rows whose ends are spread evenly
            streams = list(bench.engine.clients[CLIENT].streams.values())[:num_leaving]
            bench.engine.endings.end(streams)
        bench.step()
    for times in (bench.plan_s, bench.apply_s, bench.encode_s):
        del times[:lifetime]
    return bench


def micro(repeat: int, prepare: Callable[[], tuple[Callable[[], object], Callable[[], object]]]) -> list[float]:
    """Times of the first function that `prepare` returns; the second function undoes its effect."""
    do, undo = prepare()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        do()
        times.append(time.perf_counter() - start)
        undo()
    return times[5:]


def prompt_benches(repeat: int) -> dict[str, list[float]]:
    """Times of the operations on a prompt of 4,096 tokens: 256 blocks of 16."""
    token_bytes = pack_ids(range(4096))
    names = chain_blocks(chain_root(BLOCK_SIZE, ""), token_bytes, BLOCK_SIZE)

    def allocation() -> tuple[Callable[[], object], Callable[[], object]]:
        pool, taken = BlockPool(4096), list[int]()
        return lambda: taken.extend(pool.allocate(256)), lambda: (pool.release(taken), taken.clear())

    def eviction() -> tuple[Callable[[], object], Callable[[], object]]:
        pool = BlockPool(256)
        owned = pool.allocate(256)

        def undo() -> None:
            pool.publish(owned, names)
            pool.release(owned)

        undo()
        return lambda: owned.__setitem__(slice(None), pool.allocate(256)), undo

    def hit() -> tuple[Callable[[], object], Callable[[], object]]:
        pool = BlockPool(4096)
        owned = pool.allocate(256)
        pool.publish(owned, names)
        pool.release(owned)

        def do() -> None:
            found = pool.find(names)
            pool.num_free_among(found)
            pool.share(found)

        return do, lambda: pool.release(owned)

    root = chain_root(BLOCK_SIZE, "")
    return {
        "hash": micro(repeat, lambda: (lambda: chain_blocks(root, token_bytes, BLOCK_SIZE), lambda: None)),
        "allocate": micro(repeat, allocation),
        "allocate, evicting": micro(repeat, eviction),
        "prefix hit": micro(repeat, hit),
    }


def spread(times: list[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile in us."""
    ordered = sorted(1e6 * value for value in times)
    return statistics.median(ordered), ordered[len(ordered) // 10], ordered[len(ordered) * 9 // 10]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    gc.freeze()
    benches = {
        "decode 16": decode(16, steps),
        "decode 32": decode(32, steps),
        "decode 64": decode(64, steps),
        "decode 256": decode(256, steps),
        "decode 1024": decode(1024, steps),
        "decode 1024, 4 clients": decode(1024, steps, num_clients=4),
        "churn 8 of 1024": churn(1024, steps, 8),
    }
    columns = ("us", "p10", "p90", "plan", "apply", "encode", "target", "vLLM")
    print(" " * 24 + "".join(f" {column:>7s}" for column in columns))
    result: dict[str, object] = {}
    for name, bench in benches.items():
        rows = [plan + apply for plan, apply in zip(bench.plan_s, bench.apply_s, strict=True)]
        parts = [spread(times)[0] for times in (bench.plan_s, bench.apply_s, bench.encode_s)]
        report(name, rows, result, "".join(f" {part:7.1f}" for part in parts))
        result[f"{name} encode_us"] = round(parts[2], 1)
    for name, times in prompt_benches(max(steps, 50)).items():
        report(name, times, result, " " * 24)
    report_bytes(benches, result)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    print(json.dumps({"bench": "scheduler", "commit": commit.stdout.strip(), "unit": "us", "median": result}))


def report_bytes(benches: dict[str, Bench], result: dict[str, object]) -> None:
    """Print the sizes of a step's messages: to the workers, from them, and to all clients together."""
    print(f"{'bytes of a step, median (largest)':42s} {'plan':>12s} {'answer':>12s} {'to clients':>12s}")
    for name, bench in benches.items():
        columns_of_bytes = list(zip(*bench.frame_bytes, strict=True))
        medians = [int(statistics.median(column)) for column in columns_of_bytes]
        cells = [f"{middle} ({max(column)})" for middle, column in zip(medians, columns_of_bytes, strict=True)]
        print(f"{name:42s}" + "".join(f" {text:>12s}" for text in cells))
        result[f"{name} bytes"] = medians


def report(name: str, times: list[float], result: dict[str, object], parts: str) -> None:
    median, low, high = spread(times)
    target, rival = TARGET_US.get(name, ""), VLLM_US.get(name, "")
    print(f"{name:24s} {median:7.1f} {low:7.1f} {high:7.1f}{parts} {target:>7} {rival:>7}")
    result[name] = round(median, 1)


if __name__ == "__main__":
    main()
