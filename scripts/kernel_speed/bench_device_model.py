"""Compare the time of a whole step of an 8B-class model on a CUDA device with the device's limits.

    python scripts/kernel_speed/bench_device_model.py [--executor emulator]

Random weights in the shape of Llama 3.1 8B are created on the device and run with a worker's runner, graphs and
sampler, without a server. Decode: ms per step for 1 and for 32 rows with 1,024 tokens of context each, two steps in
flight, next to the time in which a copy moves the bytes that the step must read (weights without the embedding, keys
and values), and the share of the time in which the device computes (torch's profiler). Prefill: tokens per second for
chunks of 2,048. The same follows with weights and KV cache in fp8 if the device supports it. The last line is JSON.
With --executor emulator, a tiny model runs on the CPU to check that the program works.
"""

import argparse
import json
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

import torch
from bench_cuda import limits, setting_for
from cuda_timing import EagerTimer, GraphTimer

from paged_serve.protocol.messages.config import ModelConfig, SchedulerConfig
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import Chunk, NewRow, SchedulerOutput
from paged_serve.workers.backends.cuda.backend import CudaBackend
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.checkpoint.safetensors_files import Checkpoint
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.decode_step import EagerDecodeStep
from paged_serve.workers.models.assembly import Assembly
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.models.loading import read_model
from paged_serve.workers.models.readers.layer_reader import LayerReader
from paged_serve.workers.pooling.head import PoolingHead
from paged_serve.workers.pooling.spec import PoolingSpec
from paged_serve.workers.quantization.source import matrix_source
from paged_serve.workers.runner.cuda_device import GraphPool
from paged_serve.workers.runner.cuda_graphs import CudaGraphs, ladder
from paged_serve.workers.runner.model_runner import ModelRunner

COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "rms_norm_eps": 1e-5}
LARGE = {"vocab_size": 128256, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
LARGE |= {"head_dim": 128, "intermediate_size": 14336, "num_hidden_layers": 32, "max_position_embeddings": 8192}
TINY = {"vocab_size": 320, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"head_dim": 16, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 256}
BLOCK_SIZE = 16
IN_FLIGHT = 2
Quantization = Literal["auto", "fp8"]
BATCHES = (1, 32)
KINDS: dict[Quantization, torch.dtype] = {"auto": torch.bfloat16, "fp8": torch.float8_e4m3fn}


class RandomCheckpoint(Checkpoint):
    """Creates every requested tensor on the device, with random values."""

    def __init__(self, folder: Path, device: str):
        self.folder, self.entries, self.used, self.read_bytes, self.total_bytes = folder, {}, set(), 0, 0
        self._device = device
        self._open, self._parts, self._file_of, self._of_projection = {}, {}, {}, {}

    def read(
        self,
        name: str,
        shape: tuple[int, ...],
        dim: int = 0,
        start: int = 0,
        stop: int | None = None,
        dtypes: tuple[str, ...] = (),
    ) -> torch.Tensor:
        sizes = list(shape)
        sizes[dim] = (shape[dim] if stop is None else stop) - start
        if len(sizes) == 1:
            return torch.ones(sizes, dtype=torch.bfloat16, device=self._device)
        return torch.randn(sizes, dtype=torch.bfloat16, device=self._device).mul_(0.02)


def random_model(shape: dict[str, Any], backend: CudaBackend, quantization: Quantization) -> Model:
    config = ModelConfig(device=backend.device, quantization=quantization)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "config.json").write_text(json.dumps({**COMMON, **shape}))
        family, geometry = read_model(folder, config)
        checkpoint = RandomCheckpoint(folder, backend.device)
        source = matrix_source(folder, checkpoint, config, geometry.dtype)
        group = TensorParallelGroup()
        reader = LayerReader(
            checkpoint, source, family.weight_names, geometry, group, backend, lambda done, total: None
        )
        return Assembly(reader).model(PoolingHead(PoolingSpec(("generate",)), geometry.hidden_size))


class Bench:
    """A runner whose rows have a context of zero-valued keys and values."""

    def __init__(self, model: Model, cached: torch.dtype, rows: int, context: int, chunk: int, on_device: bool):
        self.model, self.cached, self.rows, self.context, self.chunk = model, cached, rows, context, chunk
        self.blocks_of_row = -(-2 * max(context, chunk) // BLOCK_SIZE)
        cache = KVCache.allocate(model.geometry, rows * self.blocks_of_row, BLOCK_SIZE, 1, model.device, cached)
        for tensor in (*cache.keys, *cache.values):
            tensor.view(torch.uint8).zero_()
        scheduler = SchedulerConfig(max_num_seqs=rows, max_num_batched_tokens=chunk)
        self.runner = ModelRunner(
            model,
            cache,
            TensorParallelGroup(),
            DeviceSampler(model.backend.launcher, model.geometry.vocab_size, model.device),
            num_rows=rows,
            max_model_len=self.blocks_of_row * BLOCK_SIZE,
            max_tokens=scheduler.max_num_batched_tokens,
            steps_in_flight=IN_FLIGHT,
            decode_step=CudaGraphs(ladder(rows), GraphPool()) if on_device else EagerDecodeStep(),
        )
        self.runner.prepare(lambda prepared, of: None)

    def new_row(self, row: int, length: int, computed: int) -> NewRow:
        blocks = pack_ids(range(row * self.blocks_of_row, (row + 1) * self.blocks_of_row))
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        return NewRow(row, pack_ids([1] * length), length, computed, (blocks,), 0, (), params)

    def decode_s(self, batch: int, steps: int) -> float:
        """Seconds per step, with two steps always in flight."""
        rows = tuple(self.new_row(row, self.context, self.context - 1) for row in range(batch))
        self.runner.execute(SchedulerOutput(0, 1, new_rows=rows, decode_joins=pack_ids(range(batch))))
        self._decode(8)
        began = time.perf_counter()
        self._decode(steps)
        taken = (time.perf_counter() - began) / steps
        self.runner.execute(SchedulerOutput(0, 1, decode_leaves=pack_ids(range(batch))))
        return taken

    def prefill_s(self) -> float:
        """Seconds of the first chunk of a prompt, the fastest of five."""
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            new_row = self.new_row(0, self.chunk + 1, 0)
            self.runner.execute(SchedulerOutput(0, 1, new_rows=(new_row,), chunks=(Chunk(0, self.chunk),)))
            if self.model.device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        return min(taken)

    def _decode(self, steps: int) -> None:
        started = deque(self.runner.launch(SchedulerOutput(0, 1)) for _ in range(IN_FLIGHT - 1))
        for _ in range(steps - IN_FLIGHT + 1):
            started.append(self.runner.launch(SchedulerOutput(0, 1)))
            self.runner.result(started.popleft())
        while started:
            self.runner.result(started.popleft())

    def bytes_of_step(self, batch: int) -> int:
        geometry = self.model.geometry
        embedding = geometry.vocab_size * geometry.hidden_size * 2
        per_token = geometry.kv_bytes_per_block(BLOCK_SIZE, 1, self.cached) // BLOCK_SIZE
        return self.model.weights_bytes - embedding + batch * self.context * per_token


def busy_share(bench: Bench, batch: int) -> float:
    """The share of the time of several steady steps in which the device computes."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        bench.decode_s(batch, 30)
    spans = sorted((e.time_range.start, e.time_range.end) for e in profiled.events() if e.device_type.name == "CUDA")
    steady = spans[len(spans) // 2 :]
    busy, reached = 0.0, steady[0][0]
    for start, end in steady:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / (reached - steady[0][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=("cuda", "emulator"), default="cuda")
    on_device = parser.parse_args().executor == "cuda"
    setting = setting_for("cuda" if on_device else "emulator")
    bandwidth, _ = limits(setting, GraphTimer() if on_device else EagerTimer(lambda: None, samples=3))
    backend = CudaBackend(setting.launcher, setting.arch, setting.multiprocessors, setting.device)
    rows: list[dict[str, Any]] = []
    for quantization, cached in KINDS.items():
        if quantization == "auto" or not backend.lacks_for_fp8(torch.bfloat16):
            rows += [
                {"weights, cache": str(cached).removeprefix("torch.")} | row
                for row in figures(backend, quantization, on_device, bandwidth)
            ]
            print(json.dumps(rows), flush=True)


def figures(
    backend: CudaBackend, quantization: Quantization, on_device: bool, bandwidth: float
) -> list[dict[str, Any]]:
    shape, context, chunk, steps = (LARGE, 1024, 2048, 200) if on_device else (TINY, 40, 32, 3)
    model, batches = random_model(shape, backend, quantization), BATCHES if on_device else (1, 3)
    bench = Bench(model, KINDS[quantization], max(batches), context, chunk, on_device)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        step_s, floor_s = bench.decode_s(batch, steps), bench.bytes_of_step(batch) / bandwidth
        row = {"decode rows": batch, "ms": step_s * 1e3, "floor ms": floor_s * 1e3, "of floor": floor_s / step_s}
        rows.append(row | ({"device busy": busy_share(bench, batch)} if on_device else {}))
    prefill_s = bench.prefill_s()
    return [*rows, {"prefill tokens": chunk, "ms": prefill_s * 1e3, "tok/s": chunk / prefill_s}]


if __name__ == "__main__":
    main()
