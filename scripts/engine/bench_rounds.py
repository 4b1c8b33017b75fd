"""Measure the sampling of a step that verifies drafts: in rounds, or at once, as rows without rules allow.

    nice -n -15 .venv/bin/python scripts/engine/bench_rounds.py --vocab 32000

No model: logits are random. Every draft but the last is right. Both ways must give the same tokens and logprobs. Times
are medians in microseconds; the last line is JSON.
"""

import argparse
import json
import statistics
import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams
from paged_serve.protocol.messages.worker import NewRow
from paged_serve.workers.backends.cpu.sampling import CpuPasses
from paged_serve.workers.batch.input_batch import StepArrays
from paged_serve.workers.batch.request_rows import RequestRows
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kernels.cpu import library as cpu
from paged_serve.workers.sampling.host_sampling import HostSampling
from paged_serve.workers.sampling.sampler import SampledTokens, Sampler
from paged_serve.workers.speculation.drafts import NO_DRAFT
from paged_serve.workers.speculation.rounds import Rounds
from paged_serve.workers.speculation.verified_step import VerifiedStep

PROMPT = 4


class Case:
    """Rows of one request each, and the logits of their positions."""

    def __init__(self, num_rows: int, positions: int, vocab: int, temperature: float, sampling: HostSampling):
        self.state = RequestRows(num_rows, 256, 16, vocab)
        params = SamplingParams(temperature=temperature, logprobs=2, top_p=0.95 if temperature else 1.0)
        for row in range(num_rows):
            self.state.reset(NewRow(row, pack_ids(range(PROMPT)), PROMPT, 0, (b"",), 7 + row, (), params))
            self.state.append_tokens(np.full(1, row), np.full(1, 9))  # 61 more cross a block of random numbers
            self.state.length[row] += 58
        self.rows = np.arange(num_rows)
        self.positions = positions
        generator = torch.Generator().manual_seed(0)
        self.logits = 3 * torch.randn((num_rows * positions, vocab), generator=generator)
        self.rounds = Rounds(self.state, TensorParallelGroup(), sampling)
        self.drafts = np.full((num_rows, positions), NO_DRAFT)
        for _ in range(positions - 1):  # each round finds one more right draft
            found, counts = self.sample(at_once=False)[1:]
            lasts = found.token_ids[np.cumsum(counts) - 1]
            self.drafts[self.rows, counts - 1] = lasts

    def sample(self, *, at_once: bool) -> tuple[float, SampledTokens, np.ndarray]:
        lengths = self.state.length.copy()
        self.state.sampling.has_no_rules[:] = at_once
        logits: Tensor = self.logits.clone()
        arrays = cast(StepArrays, SimpleNamespace(sampled_rows=self.rows))
        step = VerifiedStep(arrays, self.drafts, self.rows * self.positions, self.rows)
        started = time.perf_counter()
        found, counts = self.rounds.sample(logits, step)
        seconds = time.perf_counter() - started
        self.state.length[:] = lengths
        return seconds, found, counts


def compare(case: Case, repeats: int) -> tuple[float, float]:
    times: dict[bool, list[float]] = {False: [], True: []}
    results = {}
    for _ in range(repeats):
        for at_once in (False, True):
            seconds, found, counts = case.sample(at_once=at_once)
            times[at_once].append(seconds)
            logprobs = {
                index: (one.token_ids.tobytes(), one.logprobs.tobytes()) for index, one in found.logprobs.items()
            }
            results[at_once] = found.token_ids.tolist(), counts.tolist(), logprobs
        assert results[False] == results[True]
    return 1e6 * statistics.median(times[False]), 1e6 * statistics.median(times[True])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    library = cpu.best_library()
    assert library is not None, "the kernels are not built: python setup.py build_ext --inplace"
    sampling = HostSampling(Sampler(CpuPasses(cpu.Pool(library, [-1]))))
    results = {}
    for temperature in (0.0, 1.0):
        for num_rows, positions in ((1, 2), (1, 4), (1, 9), (4, 4), (4, 9)):
            case = Case(num_rows, positions, options.vocab, temperature, sampling)
            in_rounds, at_once = compare(case, options.repeats)
            name = f"{num_rows} rows of {positions} positions, temperature {temperature}"
            results[name] = round(in_rounds), round(at_once)
            print(f"{name:45} {in_rounds:6.0f} us in rounds, {at_once:6.0f} us at once")
    print(json.dumps({"vocab": options.vocab, "us": results}))


if __name__ == "__main__":
    main()
