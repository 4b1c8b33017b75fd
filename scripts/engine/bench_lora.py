"""Measure decode steps of rows with LoRA adapters beside those of the base model, in alternation, in one process.

    taskset -c 0,1 python scripts/engine/bench_lora.py MODEL --threads 2 --rows 32 --adapters 32 --rank 16

Every row has its own adapter, or shares one with others if there are fewer. Adapters are made, for all linear
projections or for those of --targets. What bounds a step: at batch 32 the base model's arithmetic; an adapter's weights
are read once a step, 20 MB for rank 16 of Qwen3-0.6B. Loading is timed too, from the folder to the place. Times are
medians in milliseconds; the last line is JSON.
"""

import argparse
import json
import select
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from paged_serve.protocol.adapter_folder import adapter_digest
from paged_serve.protocol.messages.config import LoraConfig, ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.loading.adapters import Adapter, LoadAdapter
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.adapters.loading import AdapterLoading
from paged_serve.workers.distributed.allocator import keep_freed_memory
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.models.loading import load_model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner

BLOCK_SIZE, CONTEXT = 16, 32
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_adapter(folder: Path, model: Model, seed: int, rank: int, targets: tuple[str, ...]) -> Adapter:
    """A folder with random matrices in the model's dtype."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    assert model.adapters is not None
    for site in model.adapters.sites:
        for part in site.parts:
            if part.name.endswith(targets):
                for side, shape in (("A", (rank, site.inputs)), ("B", (part.outputs, rank))):
                    values = torch.randn(shape, generator=generator) * 0.02
                    tensors[f"base_model.model.{part.name}.lora_{side}.weight"] = values.to(model.dtype)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "target_modules": list(targets)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return Adapter(folder.name, str(folder), adapter_digest(folder))


def load_adapters(model: Model, folder: Path, count: int, rank: int, targets: tuple[str, ...]) -> tuple[float, int]:
    """Fill the places 1 to `count`. Returns the median time of a load in ms, and an adapter's bytes."""
    loading, times, num_bytes = AdapterLoading(model.adapters, 0), [], 0
    for place in range(1, count + 1):
        adapter = make_adapter(folder / str(place), model, place, rank, targets)
        started = time.perf_counter()
        loading.start(LoadAdapter(place, adapter))
        select.select([loading.fd], [], [])
        answer = loading.take()
        times.append(1e3 * (time.perf_counter() - started))
        assert answer is not None
        assert not answer.error, answer.error
        num_bytes = answer.num_bytes
    loading.close()
    return statistics.median(times), num_bytes


class Rows:
    """Requests of CONTEXT random tokens each, with the given adapters."""

    def __init__(self, model: Model, adapters: list[int], length: int):
        blocks, count = -(-length // BLOCK_SIZE), len(adapters)
        cache = KVCache.allocate(model.geometry, count * blocks, BLOCK_SIZE)
        scheduler = SchedulerConfig(max_num_seqs=count)
        self.runner: ModelRunner = host_runner(model, cache, TensorParallelGroup(), scheduler, length)
        rng, params = np.random.default_rng(0), SamplingParams(temperature=0.0)
        for row, adapter in enumerate(adapters):
            tokens = pack_ids(rng.integers(0, model.geometry.vocab_size, CONTEXT).tolist())
            ids = pack_ids(range(row * blocks, (row + 1) * blocks))
            new = NewRow(row, tokens, CONTEXT, 0, (ids,), row, (), params, None, adapter)
            self.runner.execute(SchedulerOutput(0, 1, (new,), chunks=(Chunk(row, CONTEXT),)))
        self.runner.execute(SchedulerOutput(0, 1, decode_joins=pack_ids(range(count))))

    def decode(self) -> float:
        """One step; returns its time in ms."""
        started = time.perf_counter()
        self.runner.execute(SchedulerOutput(0, 1))
        return 1e3 * (time.perf_counter() - started)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--targets", default=",".join(LINEAR))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quantization", default="auto")
    return parser.parse_args()


def medians(ways: dict[str, Rows], rounds: int) -> dict[str, float]:
    """Milliseconds of a decode step in each way, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, rows in ways.items():
            took = rows.decode()
            if turn > 1:  # earlier ones record the kernels
                times[name].append(took)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    keep_freed_memory()
    library = cpu.best_library()
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    pool = cpu.Pool(library, list(range(options.threads)))
    config = ModelConfig(device="cpu", quantization=options.quantization)
    lora = LoraConfig(max_loras=options.adapters, max_lora_rank=options.rank)
    nothing = lambda done, total: None  # noqa: E731
    model = load_model(options.model, config, TensorParallelGroup(), nothing, pool, None, lora)
    with tempfile.TemporaryDirectory() as folder:
        targets = tuple(options.targets.split(","))
        load_ms, num_bytes = load_adapters(model, Path(folder), options.adapters, options.rank, targets)
    print(f"an adapter of rank {options.rank}: {num_bytes / 1e6:.1f} MB, loaded in {load_ms:.1f} ms")
    results = {}
    for count in map(int, options.rows.split(",")):
        length = CONTEXT + options.rounds + 8
        ways = {
            "base": Rows(model, [0] * count, length),
            "one adapter": Rows(model, [1] * count, length),
            "mixed": Rows(model, [1 + row % options.adapters for row in range(count)], length),
        }
        results[count] = medians(ways, options.rounds)
        base = results[count]["base"]
        shown = ", ".join(f"{name} {value:.2f} ({value / base - 1:+.1%})" for name, value in results[count].items())
        print(f"{count} rows: {shown}")
    print(json.dumps({"model": options.model, "adapter_bytes": num_bytes, "load_ms": load_ms, "ms": results}))


if __name__ == "__main__":
    main()
