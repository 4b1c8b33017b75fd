"""One step of one rank: deltas in, tokens out."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from paged_serve.protocol.messages.worker import Chunk, ModelRunnerOutput, SchedulerOutput

from ..batch.input_batch import DecodeInputs, Step, build_step
from ..batch.request_rows import RequestRows
from ..distributed.tensor_parallel import TensorParallelGroup
from ..kv.kv_cache import KVCache
from ..layers.backend import HostBackend
from ..layers.model import Model
from ..sampling.sampler import SampledTokens, Sampler
from .step_output import PromptLogprobs, row_logprobs


class ModelRunner:
    """Executes plans in the order they were made. All ranks hold equal rows; rank 0 samples for all of them."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        group: TensorParallelGroup,
        *,
        num_rows: int,
        max_model_len: int,
        device: str = "cpu",
    ):
        self._model = model
        self._cache = cache
        self._group = group
        self._device = device
        vocab_size, backend = model.geometry.vocab_size, model.backend
        assert isinstance(backend, HostBackend), backend
        self._rows = RequestRows(num_rows, max_model_len, cache.block_size, vocab_size)
        self._decode_inputs = DecodeInputs(self._rows, device)
        self._decode = backend.recorded(partial(model.forward, cache=cache))
        self._sampler = Sampler(backend.sampling(vocab_size))
        self._prompt_logprobs = PromptLogprobs(model.logits, self._sampler, self._rows)

    @torch.inference_mode()
    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step; the answer of ranks other than 0 has the tokens but no logprobs."""
        started = time.perf_counter()
        self._rows.apply(plan)
        step = self._step(plan.chunks)
        hidden = self._forward(step)
        num_decode_rows, starts = step.batch.num_decode_rows, step.batch.row_starts.numpy()
        prompt_logprobs = self._prompt_logprobs.find(plan.chunks, num_decode_rows, starts, hidden)
        sampled = self._sample(step, hidden)
        self._advance(step, sampled)
        return ModelRunnerOutput(
            epoch=plan.epoch,
            step=plan.step,
            token_ids=sampled.token_ids.astype("<i4").tobytes(),
            step_s=time.perf_counter() - started,
            logprobs=row_logprobs(sampled),
            prompt_logprobs=prompt_logprobs,
            nan_indices=sampled.bad.astype("<i4").tobytes(),
        )

    def _step(self, chunks: Sequence[Chunk]) -> Step:
        if chunks:
            return build_step(self._rows, self._rows.decode_set, chunks, self._device)
        return self._decode_inputs.step(self._rows.decode_set)

    def _forward(self, step: Step) -> Tensor:
        """[tokens, hidden]; writes the tokens' K and V."""
        if len(step.rows) == 0:
            return torch.empty((0, self._model.geometry.hidden_size), device=self._device)
        if step.batch.num_decode_rows == len(step.rows):
            return self._decode(step.batch)
        return self._model.forward(step.batch, self._cache)

    def _sample(self, step: Step, hidden: Tensor) -> SampledTokens:
        """The same tokens on every rank; the rest of the answer on rank 0 alone."""
        if len(step.sampled_rows) == 0:
            return SampledTokens(np.zeros(0, np.int64), np.zeros(0, np.int64), {})
        ends = hidden if len(step.sampled_rows) == len(hidden) else hidden[step.batch.logit_tokens]
        logits = self._model.logits(ends)  # on every rank: the vocabulary may be sharded
        if self._group.rank == 0:
            sampled = self._sampler.sample(logits, step.sampled_rows, self._rows)
        else:
            sampled = SampledTokens(np.empty(len(step.sampled_rows), np.int64), np.zeros(0, np.int64), {})
        if self._group.size > 1:
            token_ids = torch.from_numpy(sampled.token_ids).to(self._device)
            sampled.token_ids[:] = self._group.broadcast(token_ids).numpy(force=True)
        return sampled

    def _advance(self, step: Step, sampled: SampledTokens) -> None:
        self._rows.num_computed[step.rows] = step.batch.kv_lens.numpy()
        self._rows.append_tokens(step.sampled_rows, sampled.token_ids)
