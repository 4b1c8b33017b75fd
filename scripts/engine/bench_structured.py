"""Measure how much a grammar slows a decode step down.

    python scripts/engine/bench_structured.py [MODEL] [--rows 32] [--steps 100] [--threads 2]

Regime: one process with the CPU kernels. Four runners of one model alternate their steps. Their rows are all
unconstrained, all limited to a long list of allowed tokens, or all limited to a JSON schema, either with tokens sampled
at temperature 1 or with tokens of realistic names and numbers, because masks for random text take longer. The figures
are wall times of a step, median and lower quartile. Target: 5 % at 32 rows, 10 % at 256.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paged_serve.frontend.bench.report.report import environment
from paged_serve.frontend.text.tokenizer import Tokenizer
from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.structured_outputs import Grammar
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu.library import Pool, best_library
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.runner.host_runner import host_runner

BLOCK_SIZE, PROMPT = 16, [5] * 8
ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 30}, "number": {"type": "integer"}},
    "required": ["name", "number"],
    "additionalProperties": False,
}
SCHEMA = {"x-guidance": {"whitespace_flexible": False}, "type": "array", "items": ITEM, "minItems": 1000}


class FixedTokens:
    """Sampling passes that return the tokens of a given text in each row, whatever the logits are."""

    def __init__(self, passes: Any, tokens: list[int], rows: int):
        self._passes, self._tokens = passes, np.array(tokens)
        self._next = np.zeros(rows, np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._passes, name)

    def draw(self, logits: Any, best: Any, indices: Any, rows: Any, *rest: Any) -> Any:
        self._passes.draw(logits, best, indices, rows, *rest)
        self._next[rows] += 1
        return self._tokens[self._next[rows] - 1]


def realistic_tokens(model_folder: Path, steps: int) -> list[int]:
    """More than `steps` tokens of a text that follows the schema."""
    names = ["Anna Lindqvist", "Bridge over the river", "central station", "Dr. Okafor", "east gate, 2nd floor"]
    items = [{"name": names[i % len(names)], "number": i * 7919 % 100_000} for i in range(steps)]
    text = json.dumps(items, separators=(",", ":"))
    return Tokenizer(str(model_folder)).encode(text, add_special_tokens=False)


def stepper(model: Model, grammars: Grammars, params: SamplingParams, rows: int, steps: int) -> Callable[[], object]:
    """Returns a function that executes a decode step of `rows` rows with these parameters."""
    blocks = -(-(len(PROMPT) + steps + 2) // BLOCK_SIZE)
    cache = KVCache.allocate(model.geometry, rows * blocks, BLOCK_SIZE)
    scheduler = SchedulerConfig(max_num_seqs=rows)
    runner = host_runner(model, cache, TensorParallelGroup(), scheduler, blocks * BLOCK_SIZE, grammars)
    for row in range(rows):
        ids = pack_ids(range(row * blocks, (row + 1) * blocks))
        new = NewRow(row, pack_ids(PROMPT), len(PROMPT), 0, (ids,), row, model.geometry.eos_token_ids, params)
        runner.execute(SchedulerOutput(0, 1, (new,), chunks=(Chunk(row, len(PROMPT)),)))
    runner.execute(SchedulerOutput(0, 1, decode_joins=pack_ids(range(rows))))
    return lambda: runner.execute(SchedulerOutput(0, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=DEMO_MODEL)
    for name, default in (("rows", 32), ("steps", 100), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    library, cpus = best_library(), sorted(os.sched_getaffinity(0))
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    torch.set_num_threads(1)
    pool = Pool(library, cpus[: options.threads], pin_caller=True)
    model = load_model(
        str(options.model), ModelConfig(device="cpu"), TensorParallelGroup(), lambda done, of: None, pool
    )
    geometry = model.geometry
    grammars = Grammars(options.model / "tokenizer.json", geometry.vocab_size, geometry.eos_token_ids, cpus)
    source = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    parameters = {
        "free": SamplingParams(),
        "allowed tokens": SamplingParams(allowed_token_ids=tuple(range(3, geometry.vocab_size))),
        "JSON, noise": SamplingParams(grammar=Grammar(source)),
    }
    steppers = {
        name: stepper(model, grammars, params, options.rows, options.steps) for name, params in parameters.items()
    }
    backend, tokens = model.backend, realistic_tokens(options.model, options.steps)
    passes = backend.sampling(geometry.vocab_size)
    backend.sampling = lambda vocab_size: FixedTokens(passes, tokens, options.rows)
    grammar = SamplingParams(grammar=Grammar(source))
    steppers["JSON, sense"] = stepper(model, grammars, grammar, options.rows, options.steps)
    times: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(options.steps):
        for name, step in steppers.items():
            started = time.perf_counter()
            step()
            times[name].append(1000 * (time.perf_counter() - started))
    print(f"ms per step of {options.rows} rows   median  lower quartile")
    for name, found in times.items():
        print(f"{name:24} {statistics.median(found):8.2f} {statistics.quantiles(found)[0]:8.2f}")
    print(json.dumps({"bench": "structured", **environment(), "ms": times}))


if __name__ == "__main__":
    main()
