"""One step of one rank: deltas in, tokens out, without waiting for the device. The CPU counts as a device too.

A step starts before the host has seen the previous step's tokens: the device keeps what the next step needs of them
(DeviceRows). The host's rows count a token when its step starts and record its value when it arrives. A step whose
sampling needs earlier tokens on the host (bad words of several tokens) waits for them. A step that verifies drafts
waits for its own tokens, too. On the CPU a step is complete once it has started.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, RowPromptLogprobs, SchedulerOutput

from ..batch.device_rows import Adapting, DeviceRows
from ..batch.grammars import Grammars
from ..batch.input_batch import AdapterGroups, InputBatch, StepArrays, adapter_groups, step_arrays
from ..batch.request_rows import RequestRows
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.kv_cache import KVCache
from ..kv.table_units import TableUnits
from ..layers.decode_step import DecodeStep, EagerDecodeStep
from ..layers.model import Model
from ..pooling.rows import PendingPooled, PoolingRows
from ..sampling.device_sampler import DeviceSampling, PendingSample
from ..sampling.sampler import SampledTokens
from ..speculation.accepted_states import AcceptedStates
from ..speculation.drafter import Drafter
from ..speculation.verification import Verification, may_start_from_a_late_token, verifies
from ..speculation.verified_step import VerifiedStep
from .pending_step import NO_TOKENS, PendingStep, RemoteSample
from .step_output import PromptLogprobs

Passed = tuple[Tensor, Tensor, tuple[RowPromptLogprobs, ...], PendingPooled | None]  # see ModelRunner._forward


class ModelRunner:
    """Runs scheduler outputs in order. All ranks hold the same rows; rank 0 samples for all ranks."""

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
        grammars: Grammars | None = None,
        drafter: Drafter | None = None,
    ):
        self._model = model
        self._cache = cache
        self._group = group
        self._sampling = sampling
        self._decode_step = decode_step or EagerDecodeStep()
        sizes, num_groups = (num_rows, max_model_len, cache.block_size), len(cache.groups.windows)
        self._rows = RequestRows(*sizes, model.geometry.vocab_size, grammars, num_groups)
        adapting: Adapting = "never" if model.adapters is None else "always" if self._decode_step.sizes else "if any"
        self._device_rows = DeviceRows(*sizes, max_tokens, model.device, steps_in_flight, num_groups, adapting)
        self._table_units = TableUnits(cache.groups.table_units, cache.num_blocks)
        self._max_model_len = max_model_len
        # Shared by decode steps of every size: graphs of all sizes write to the same memory.
        self._logits = self._empty_logits(num_rows) if self._decode_step.sizes else None
        self._prompt_logprobs = PromptLogprobs(sampling, self._rows)
        self._pooling = PoolingRows(model.pooling)
        speculation = drafter, grammars, model.device, max_model_len
        self._verification = Verification(self._rows, group, sampling, *speculation)
        # Only rank 0 has a draft head, but all ranks must exchange the same tokens.
        self._needs_all_tokens = bool(group.broadcast(torch.tensor([int(model.needs_all_tokens)], device=model.device)))
        self._accepted_states = AcceptedStates(cache.draft_inputs, self._device_rows, cache.block_size)
        self._unknown: deque[PendingStep] = deque()  # started steps whose tokens are not yet in the host's rows

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Start a step and wait for it."""
        return self.result(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> PendingStep:
        """Put the step on the device's stream. Waits for earlier steps only if sampling needs their tokens."""
        started = time.perf_counter()
        if plan.copied_blocks:
            self._cache.copy_blocks(plan.copied_blocks)
        plan = self._table_units.of(plan)
        self._verification.learn(plan, num_late=len(self._unknown))
        self._device_rows.apply(plan, self._rows.apply(plan))
        self._pooling.apply(plan.new_rows)
        if verifies(plan.chunks):
            return self._verify(plan, started)
        if may_start_from_a_late_token(plan.chunks):
            self._learn_all()
        arrays = step_arrays(self._rows, self._rows.decode_set, plan.chunks)
        sampled_rows = arrays.sampled_rows
        if self._sampling.needs_tokens(sampled_rows, self._rows):
            self._learn_all()
            self._rows.sampling.start_masks(sampled_rows)
        logits, rows_on_device, prompt_logprobs, pooling = self._forward(plan.chunks, arrays)
        sample = self._sample(logits, sampled_rows, rows_on_device) if len(sampled_rows) else None
        step = PendingStep(
            plan,
            started,
            rows=sampled_rows,
            places=self._rows.length[sampled_rows],
            generations=self._rows.generation[sampled_rows],
            sample=sample,
            prompt_logprobs=prompt_logprobs,
            pooling=pooling,
        )
        self._rows.num_computed[arrays.rows] = arrays.kv_lens
        self._rows.length[sampled_rows] += 1
        self._unknown.append(step)
        self._verification.observe(arrays, num_late=len(self._unknown))
        return step

    def _verify(self, plan: SchedulerOutput, started: float) -> PendingStep:
        """Do as `launch`, and wait for the step: its tokens decide how many there are."""
        self._learn_all()
        verified = self._verification.start(self._rows.decode_set, plan.chunks)
        self._accepted_states.begin(verified)
        logits, rows_on_device, prompt_logprobs, pooling = self._forward_drafts(plan.chunks, verified)
        found = self._verification.sample(logits, verified)
        self._accepted_states.store(verified, found.num_sampled)
        self._verification.observe(verified.arrays, num_late=0)
        self._device_rows.feed(rows_on_device, torch.from_numpy(found.last_tokens).to(logits.device))
        return PendingStep(
            plan,
            started,
            rows=NO_TOKENS,  # nothing is left to learn
            places=NO_TOKENS,
            generations=NO_TOKENS,
            sample=None,
            prompt_logprobs=prompt_logprobs,
            pooling=pooling,
            sampled=found.sampled,
            pooled=() if pooling is None else pooling.result(),
            num_drafted=found.num_drafted.astype("<i4").tobytes(),
            num_sampled=found.num_sampled.astype("<i4").tobytes(),
        )

    def result(self, step: PendingStep) -> ModelRunnerOutput:
        """Wait for `step` and all earlier ones. Ranks other than 0 return tokens, but no logprobs."""
        while step.sampled is None:
            self._learn(self._unknown.popleft())
        return step.output()

    @torch.inference_mode()
    def prepare(self, on_progress: Callable[[int, int], None]) -> None:
        """Before the first plan, run one decode step of padding for each size that has to be prepared.

        Ranks exchange sums in these steps, so all ranks of a group must call this at the same point.
        `on_progress(prepared, of)` is called after each.
        """
        padding, sizes = step_arrays(self._rows, NO_TOKENS, ()), self._decode_step.sizes
        for count, num_rows in enumerate(sizes, start=1):
            inputs, _ = self._staged_decode(padding, num_rows)
            self._decode_step.prepare(num_rows, inputs, self._decode_logits)
            on_progress(count, len(sizes))

    def _forward(self, chunks: Sequence[Chunk], arrays: StepArrays) -> Passed:
        """Logits [sampled, vocab], their row numbers [sampled], prompt logprobs and pooled vectors."""
        self._device_rows.update()
        num_rows = len(arrays.rows)
        if num_rows == 0:
            return torch.empty(0), torch.empty(0), (), None
        if chunks:
            return self._forward_chunks(chunks, arrays)
        inputs, rows = self._staged_decode(arrays, self._decode_step.padded(num_rows))
        logits = self._decode_step(len(rows), inputs, self._decode_logits)
        return (logits, rows, (), None) if len(rows) == num_rows else (logits[:num_rows], rows[:num_rows], (), None)

    def _forward_drafts(self, chunks: Sequence[Chunk], step: VerifiedStep) -> Passed:
        """Compute `_forward` for a step that verifies: logits [logit tokens, vocab], row numbers [sampled]."""
        if step.is_decode_step:
            return self._forward((), step.arrays)
        if not step.samples_all:
            return self._forward(chunks, step.arrays)
        self._device_rows.update()
        staged = self._device_rows.stage(step.arrays, len(step.arrays.rows))
        inputs = partial(self._device_rows.batch, staged, step.arrays.longest)
        return self._decode_step.verify(inputs, self._all_logits), staged.sampled_rows, (), None

    def _forward_chunks(self, chunks: Sequence[Chunk], arrays: StepArrays) -> Passed:
        """Compute `_forward` for a step with chunks."""
        step = self._device_rows.stage(arrays, len(arrays.rows))
        batch = self._device_rows.batch(step, arrays.longest)
        if self._model.geometry.embeddings.num_token_types > 1:
            types = torch.from_numpy(self._pooling.token_types(chunks, arrays.positions))
            batch = replace(batch, token_types=types.to(self._model.device))
        if not self._returns_all_tokens(chunks, arrays):
            return self._logits_of_ends(batch), step.sampled_rows, (), None
        with self._decode_step.queue():
            hidden = self._hidden(batch)
        # First, because logits are valid only until the model's next call.
        places = arrays.num_decode_rows, arrays.row_starts
        found = self._prompt_logprobs.find(chunks, *places, hidden, self._row_logits)
        pooling = self._pool(chunks, arrays, hidden) if self._group.rank == 0 else None
        self._use(logits=batch.logit_adapters)
        ends = hidden[step.logit_tokens]
        return self._model.logits(ends) if len(ends) else ends, step.sampled_rows, found, pooling

    def _returns_all_tokens(self, chunks: Sequence[Chunk], arrays: StepArrays) -> bool:
        """Whether hidden states without logits are read, or rows have adapters, which the last layer finds by token."""
        if self._needs_all_tokens or arrays.adapters is not None:
            return True
        rows = [chunk.row for chunk in chunks]
        return any(self._rows.pools[rows]) or any(self._rows.prompt_logprobs[row] is not None for row in rows)

    def _logits_of_ends(self, batch: InputBatch) -> Tensor:
        """[logits, vocab] float32, without the hidden states of other tokens."""
        count = len(batch.logit_tokens)
        # Of a chunk without logits, one token is as good as any: kernels expect at least one row.
        returned = batch.logit_tokens if count else torch.zeros(1, dtype=torch.int64, device=self._model.device)
        with self._decode_step.queue():
            hidden = self._hidden(replace(batch, returned_tokens=returned))
            return self._model.logits(hidden) if count else hidden[:0]

    def _pool(self, chunks: Sequence[Chunk], arrays: StepArrays, hidden: Tensor) -> PendingPooled | None:
        """Starts the copy of the hidden states that pooling requests need."""
        of_chunks = slice(arrays.num_decode_rows, None)
        rows, starts = arrays.rows[of_chunks], arrays.row_starts[:-1][of_chunks]
        return self._pooling.launch(chunks, starts, self._rows.num_computed[rows], self._rows.length[rows], hidden)

    def _staged_decode(self, arrays: StepArrays, num_rows: int) -> tuple[Callable[[], InputBatch], Tensor]:
        """A function that gathers the inputs of `num_rows` rows, and their row numbers [num_rows]."""
        step = self._device_rows.stage(arrays, num_rows)
        # The rotary table covers the longest row; it must not move once prepared steps read it.
        longest = self._max_model_len if self._decode_step.sizes else arrays.longest
        return partial(self._device_rows.batch, step, longest), step.sampled_rows

    def _decode_logits(self, batch: InputBatch) -> Tensor:
        """[rows, vocab] float32; prepared steps of all sizes write to the same memory."""
        out = None if self._logits is None else self._logits[: len(batch.kv_lens)]
        return self._model.logits(self._hidden(batch), out=out)

    def _all_logits(self, batch: InputBatch) -> Tensor:
        """[tokens, vocab] float32."""
        return self._model.logits(self._hidden(batch))

    def _hidden(self, batch: InputBatch) -> Tensor:
        """The hidden states of all tokens; the logits of the batch may follow."""
        self._use(batch.adapters, batch.logit_adapters)
        return self._model.forward(batch, self._cache)

    def _row_logits(self, hidden: Tensor, row: int) -> Tensor:
        """Logits of hidden states [n, hidden] of one row, [n, vocab] float32."""
        if self._model.adapters is not None:
            table, most = adapter_groups(np.full(len(hidden), self._rows.adapters[row]), len(hidden))
            self._use(logits=AdapterGroups(torch.from_numpy(table).to(hidden.device), most) if most else None)
        return self._model.logits(hidden)

    def _use(self, tokens: AdapterGroups | None = None, logits: AdapterGroups | None = None) -> None:
        """The adapters of the pass that follows."""
        if self._model.adapters is not None:
            self._model.adapters.step.tokens, self._model.adapters.step.logits = tokens, logits

    def _empty_logits(self, num_rows: int) -> Tensor:
        shape = num_rows, self._model.geometry.vocab_size
        return torch.empty(shape, dtype=torch.float32, device=self._model.device)

    def _sample(self, logits: Tensor, rows: NDArray[np.int64], rows_on_device: Tensor) -> PendingSample:
        """Samples on rank 0 and broadcasts the tokens; the rest of the result stays on rank 0."""
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
        """Write a step's tokens into the host's rows, except rows that another request has taken since."""
        empty = SampledTokens(NO_TOKENS, NO_TOKENS, {})
        step.sampled = empty if step.sample is None else step.sample.result()
        step.pooled = () if step.pooling is None else step.pooling.result()
        same = self._rows.generation[step.rows] == step.generations
        self._rows.fill(step.rows[same], step.places[same], step.sampled.token_ids[same])
