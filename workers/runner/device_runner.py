"""A ModelRunner that does not wait for the device: it starts a step before the host has seen the last one's tokens.

The device keeps what the next step needs of the last one (DeviceRows). The host's rows count a token when it is
started and learn it when it is there; a step whose sampling needs earlier tokens on the host (bad words of several
tokens) waits for them.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import ModelRunnerOutput, RowPromptLogprobs, SchedulerOutput

from ..batch.device_rows import DeviceRows
from ..batch.input_batch import StepArrays, step_arrays
from ..batch.request_rows import RequestRows
from ..batch.staging import HostCopy
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.kv_cache import KVCache
from ..layers.model import Model
from ..sampling.device_sampler import DeviceSampling, PendingSample
from ..sampling.sampler import SampledTokens
from .step_output import PromptLogprobs, row_logprobs

NO_TOKENS = np.zeros(0, np.int64)


class DecodeStep(Protocol):
    """A decode set's forward pass, down to the logits.

    A pass of `num_rows` reads and writes the same addresses each time, and leaves its logits where all sizes do.
    """

    @property
    def sizes(self) -> Sequence[int]:
        """The numbers of rows to prepare before the first step, in an order that is the same on all ranks."""
        ...

    def prepare(self, num_rows: int, run: Callable[[], None]) -> None:
        """Make ready what does `run` again."""
        ...

    def padded(self, num_rows: int) -> int:
        """With how many rows a step of `num_rows` is best done."""
        ...

    def __call__(self, num_rows: int, run: Callable[[], None]) -> None:
        """Do `run`, or what was prepared in its place."""
        ...


class EagerDecodeStep:
    sizes: Sequence[int] = ()

    def prepare(self, num_rows: int, run: Callable[[], None]) -> None:
        raise AssertionError("it has no sizes")

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, num_rows: int, run: Callable[[], None]) -> None:
        run()


@dataclass(slots=True, eq=False)
class PendingStep:
    """A step that was started. `result` waits for it; steps must be asked in the order they were started."""

    plan: SchedulerOutput
    started: float
    rows: NDArray[np.int64]  # those that get a token
    places: NDArray[np.int64]  # of those tokens in their rows
    generations: NDArray[np.int64]  # of the rows when the step was started
    sample: PendingSample | None  # None: no row gets a token
    prompt_logprobs: tuple[RowPromptLogprobs, ...]
    sampled: SampledTokens | None = None  # once it is known

    def output(self) -> ModelRunnerOutput:
        assert self.sampled is not None, "the step's tokens are not known yet"
        return ModelRunnerOutput(
            epoch=self.plan.epoch,
            step=self.plan.step,
            token_ids=self.sampled.token_ids.astype("<i4").tobytes(),
            step_s=time.perf_counter() - self.started,
            logprobs=row_logprobs(self.sampled),
            prompt_logprobs=self.prompt_logprobs,
            nan_indices=self.sampled.bad.astype("<i4").tobytes(),
        )


class DeviceRunner:
    """Starts plans in the order they were made. All ranks hold equal rows; rank 0 samples for all of them."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        group: TensorParallelGroup,
        sampling: DeviceSampling,
        *,
        num_rows: int,
        max_model_len: int,
        max_tokens: int,
        steps_in_flight: int,
        decode_step: DecodeStep | None = None,
    ):
        self._model = model
        self._cache = cache
        self._group = group
        self._sampling = sampling
        self._decode_step = decode_step or EagerDecodeStep()
        self._rows = RequestRows(num_rows, max_model_len, cache.block_size, model.geometry.vocab_size)
        self._device_rows = DeviceRows(
            num_rows, max_model_len, cache.block_size, max_tokens, model.device, steps_in_flight
        )
        # Of every decode step, whatever its number of rows: graphs of all sizes write the same memory.
        self._logits = torch.empty((num_rows, model.geometry.vocab_size), dtype=torch.float32, device=model.device)
        self._prompt_logprobs = PromptLogprobs(model.logits, sampling, self._rows)
        self._unknown: deque[PendingStep] = deque()  # started, their tokens not yet in the host's rows

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Start a step and wait for it."""
        return self.result(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> PendingStep:
        """Put the step on the device's stream. Waits for earlier steps only if this one samples by their tokens."""
        started = time.perf_counter()
        self._device_rows.apply(plan, self._rows.apply(plan))
        arrays = step_arrays(self._rows, self._rows.decode_set, plan.chunks)
        sampled_rows = arrays.rows[arrays.is_sampled]
        if self._sampling.needs_tokens(sampled_rows, self._rows):
            self._learn_all()
        logits, rows_on_device, hidden = self._forward(arrays)
        prompt_logprobs: tuple[RowPromptLogprobs, ...] = ()
        if hidden is not None:
            starts = arrays.row_starts
            prompt_logprobs = self._prompt_logprobs.find(plan.chunks, arrays.num_decode_rows, starts, hidden)
        sample = self._sample(logits, sampled_rows, rows_on_device) if len(sampled_rows) else None
        places = self._rows.length[sampled_rows]
        step = PendingStep(
            plan, started, sampled_rows, places, self._rows.generation[sampled_rows], sample, prompt_logprobs
        )
        self._rows.num_computed[arrays.rows] = arrays.kv_lens
        self._rows.length[sampled_rows] += 1
        self._unknown.append(step)
        return step

    def result(self, step: PendingStep) -> ModelRunnerOutput:
        """Wait for `step` and those before it. Ranks other than 0 answer tokens, but no logprobs."""
        while step.sampled is None:
            self._learn(self._unknown.popleft())
        return step.output()

    @torch.inference_mode()
    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        """Take decode steps of padding alone, one of each size that has to be prepared, before the first plan.

        Ranks exchange sums in these steps, so all ranks of a group must do it at the same point of their work.
        `on_progress(prepared, of)` is called after each.
        """
        padding, sizes = step_arrays(self._rows, NO_TOKENS, ()), self._decode_step.sizes
        for count, num_rows in enumerate(sizes, start=1):
            run, _ = self._staged_decode(padding, num_rows)
            self._decode_step.prepare(num_rows, run)
            on_progress(count, len(sizes))

    def _forward(self, arrays: StepArrays) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits [sampled, vocab], whose they are [sampled], and if there are chunks hidden states [tokens, hidden]."""
        self._device_rows.update()
        num_rows = len(arrays.rows)
        if num_rows == 0:
            return torch.empty(0), torch.empty(0), None
        if arrays.num_decode_rows < num_rows:
            step = self._device_rows.stage(arrays, num_rows)
            hidden = self._model.forward(self._device_rows.batch(step), self._cache)
            return self._model.logits(hidden[step.logit_tokens]), step.sampled_rows, hidden
        run, rows = self._staged_decode(arrays, self._decode_step.padded(num_rows))
        self._decode_step(len(rows), run)
        return self._logits[:num_rows], rows[:num_rows], None

    def _staged_decode(self, arrays: StepArrays, num_rows: int) -> tuple[Callable[[], None], Tensor]:
        """What writes the first `num_rows` of the logits, and whose they are, [num_rows]."""
        step = self._device_rows.stage(arrays, num_rows)

        def run() -> None:
            hidden = self._model.forward(self._device_rows.batch(step), self._cache)
            self._model.logits(hidden, out=self._logits[:num_rows])

        return run, step.sampled_rows

    def _sample(self, logits: Tensor, rows: NDArray[np.int64], rows_on_device: Tensor) -> PendingSample:
        """The same tokens on every rank; the rest of the answer on rank 0 alone."""
        sample: PendingSample
        if self._group.rank == 0:
            sample = self._sampling.launch(logits, rows, self._rows)
            self._group.broadcast(sample.token_ids)
        else:
            token_ids = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
            sample = RemoteSample(self._group.broadcast(token_ids))
        self._device_rows.feed(rows_on_device, sample.token_ids)
        return sample

    def _learn_all(self) -> None:
        while self._unknown:
            self._learn(self._unknown.popleft())

    def _learn(self, step: PendingStep) -> None:
        """Take a step's tokens into the rows that are still the same requests'."""
        empty = SampledTokens(NO_TOKENS, NO_TOKENS, {})
        step.sampled = empty if step.sample is None else step.sample.result()
        same = self._rows.generation[step.rows] == step.generations
        self._rows.fill(step.rows[same], step.places[same], step.sampled.token_ids[same])


class RemoteSample:
    """What another rank sampled."""

    def __init__(self, token_ids: Tensor):
        self.token_ids = token_ids
        self._on_host = HostCopy(token_ids)

    def result(self) -> SampledTokens:
        [token_ids] = self._on_host.wait()
        return SampledTokens(token_ids, NO_TOKENS, {})
