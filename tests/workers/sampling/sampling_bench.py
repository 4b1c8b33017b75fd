"""Rows and a sampler for a small vocabulary: in numpy, on the CPU kernels, and on the CUDA kernels in the emulator."""

import functools

import numpy as np
import pytest
import torch

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.backends.cpu.sampling import CpuPasses
from paged_serve.workers.backends.cuda.sampler import DeviceSampler
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.sampling.numpy_passes import NumpyPasses
from paged_serve.workers.sampling.sampler import Sampler

from ...cuda.checks.checks_sampler import BLOCKS
from ...cuda.emulated import COMPILER, EmulatorLauncher

EOS = (2, 3)
DEMO_VOCAB_SIZE = 1024
PROMPT, OUTPUT = [5, 6, 7, 5], [8, 5, 9, 9]
WAYS = ("numpy", "kernels", "device")


@functools.cache
def emulator():
    return EmulatorLauncher() if COMPILER else None


def samplers(request, pools):
    """A fixture: the sampler of all benches is in numpy, on the CPU kernels, or on the CUDA kernels in the emulator."""
    if request.param == "numpy":
        Bench.make_sampler = lambda vocab_size: Sampler(NumpyPasses(vocab_size))
    elif request.param == "kernels":
        if pools[-1] is None:
            pytest.skip("the kernels are not built")
        Bench.make_sampler = lambda vocab_size: Sampler(CpuPasses(pools[-1]))
    else:
        if emulator() is None:
            pytest.skip("the emulator needs g++")
        Bench.make_sampler = lambda vocab_size: DeviceSampler(emulator(), vocab_size, "cpu", BLOCKS)


class Bench:
    """Rows and a sampler for a small vocabulary."""

    make_sampler = None

    def __init__(self, vocab_size: int, num_rows: int = 16, grammars: Grammars | None = None):
        self.rows = RequestRows(num_rows, max_len=64, block_size=16, vocab_size=vocab_size, grammars=grammars)
        self.sampler = Bench.make_sampler(vocab_size)

    def put(self, row: int, params: SamplingParams, seed: int = 0, prompt=PROMPT, output=OUTPUT, eos=EOS) -> None:
        ids = pack_ids([*prompt, *output])
        self.rows.reset(NewRow(row, ids, len(prompt), 0, (pack_ids([1]),), seed, eos, params))

    def sample(self, logits: np.ndarray, rows: list[int]):
        self.rows.sampling.start_masks(np.array(rows))
        return self.sampler.sample(torch.from_numpy(logits.astype(np.float32)), np.array(rows), self.rows)


def one(logits, params: SamplingParams, **state):
    bench = Bench(len(logits))
    bench.put(0, params, **state)
    return bench.sample(np.array(logits)[None], [0])


def random_logits(seed: int, vocab_size: int) -> np.ndarray:
    """Logits of both signs with many ties."""
    return (np.random.default_rng(seed).normal(0, 3, vocab_size) * 4).round().astype(np.float32) / 4


def demo_grammars():
    return Grammars(DEMO_MODEL / "tokenizer.json", DEMO_VOCAB_SIZE, EOS)
