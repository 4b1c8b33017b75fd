"""The real engine core and the real model runner in one process, with a client that records its messages."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paged_serve.engine_core.admission.pooling import PoolingFacts
from paged_serve.engine_core.admission.validation import ModelFacts
from paged_serve.engine_core.engine.engine import EngineCore
from paged_serve.engine_core.engine.outputs import Outgoing
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.engine_core import AbortRequests, EngineCoreOutputs, EngineCoreRequest, Logprobs
from paged_serve.protocol.messages.message import unpack_ids, unpack_int64
from paged_serve.protocol.messages.pooling_params import Pooled
from paged_serve.protocol.messages.sampling_params import FinishReason
from paged_serve.protocol.messages.worker import ModelRunnerOutput, SchedulerOutput
from paged_serve.workers.backends.cpu.backend import QUEUED_WEIGHTS_BYTES
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.decode_step import DecodeStep, EagerDecodeStep
from paged_serve.workers.models.decoder import Model
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.runner.pending_step import PendingStep
from paged_serve.workers.sampling.device_sampler import DeviceSampling
from paged_serve.workers.sampling.host_sampling import HostSampling
from paged_serve.workers.sampling.sampler import Sampler

from .ranks import SharedModel

CLIENT = b"client:0"


@dataclass
class Received:
    """The output of one sequence as received by a client; logprobs as bytes."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=lambda: [b"", b"", b""])  # of ids, logprobs and ranks
    prompt_logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str = ""
    pooled: Pooled | None = None


def pooling_facts(model: Model | SharedModel) -> PoolingFacts:
    """The model's pooling facts, as a worker reports them."""
    head = model.pooling
    return PoolingFacts(
        head.spec.tasks,
        head.embedding_size,
        head.spec.num_labels,
        head.spec.kind != "last",
        model.geometry.is_bidirectional,
        head.spec.matryoshka_dimensions,
    )


class OneProcess:
    """The caller chooses the order of events: `plan`, `execute`, `apply` and `read` each do one thing, if possible."""

    cache_dtype: torch.dtype | None = None  # None: the model's

    def __init__(self, model: Model | SharedModel, config: Config, num_blocks: int, max_model_len: int):
        """`num_blocks` is per KV group, in blocks of the configured size: a model with states may have larger ones."""
        self.model, self.config, self.max_model_len = model, config, max_model_len
        geometry = model.geometry
        layout = CacheLayout.of(geometry, max_model_len, config.cache.block_size, model.tp_size, self.cache_dtype)
        self.groups, self.block_size = layout.groups, layout.block_size
        is_larger = self.block_size > config.cache.block_size
        per_group = num_blocks * config.cache.block_size // self.block_size + 1 if is_larger else num_blocks
        self.num_blocks = per_group * len(self.groups.windows)
        facts = ModelFacts(
            self.num_blocks,
            self.block_size,
            max_model_len,
            geometry.vocab_size,
            frozenset(geometry.eos_token_ids),
            pooling=pooling_facts(model),
            kv_groups=self.groups.kinds,
            device="in process",  # method auto is off here: whether it drafts depends on measured times
        )
        self.engine = EngineCore(config, facts)
        self.engine.add_client(CLIENT, 0.0)
        self.received: dict[int, Received] = {}  # by stream id
        self.inbox: deque[EngineCoreOutputs] = deque()
        self.plans: deque[SchedulerOutput] = deque()
        self.answers: deque[ModelRunnerOutput] = deque()
        self.runner = self.new_runner()

    def new_runner(self) -> Any:
        if isinstance(self.model, SharedModel):
            return self.model.runner(self.runner_of)
        return self.runner_of(self.model, TensorParallelGroup())

    def runner_of(self, model: Model, group: TensorParallelGroup) -> Any:
        if self.num_blocks % 2:
            model = replace(model, weights_bytes=QUEUED_WEIGHTS_BYTES)  # kernels of steps with chunks are queued
        return host_runner(model, self.new_cache(model, group), group, self.config.scheduler, self.max_model_len)

    def new_cache(self, model: Model, group: TensorParallelGroup) -> KVCache:
        """A cache filled with values that a failed request may have left behind."""
        shape = model.geometry, self.num_blocks, self.block_size, group.size
        cache = KVCache.allocate(*shape, dtype=self.cache_dtype, groups=self.groups)
        for tensor in (*cache.keys, *cache.values):
            tensor.fill_(float("nan") if tensor.is_floating_point() else -128)
        for scales in cache.scales:
            for tensor in scales:
                tensor.fill_(float("nan"))
        for states in cache.states:
            states.fill_(0xFF)  # NaN in every float dtype
        return cache

    @property
    def is_idle(self) -> bool:
        return self.engine.is_drained and not self.inbox

    def add(self, request: EngineCoreRequest) -> None:
        for index in range(request.sampling_params.n):
            self.received[request.request_id + index] = Received()
        self._take(self.engine.add_request(CLIENT, request, 0.0))

    def abort(self, stream_id: int) -> None:
        self._take(self.engine.abort(CLIENT, AbortRequests((stream_id,)), 0.0))

    def plan(self) -> None:
        if (plan := self.engine.plan(0.0)) is not None:
            self.plans.append(plan)

    def execute(self) -> None:
        if self.plans:
            self.answers.append(self.runner.execute(self.plans.popleft()))

    def apply(self) -> None:
        if self.answers:
            self._take(self.engine.apply(self.answers.popleft(), 0.0))

    def replace_workers(self) -> None:
        """Simulate a crash: the steps in flight are lost, and the new worker has no state."""
        self.plans.clear()
        self.answers.clear()
        self._take(self.engine.workers_replaced(self.engine.worker_epoch + 1, 0.0, from_outside=True))
        self.runner = self.new_runner()

    def read(self) -> None:
        """Let the client read its next message."""
        if self.inbox:
            self._note(self.inbox.popleft())
            self._take(self.engine.outputs_received(CLIENT, 1))

    def _take(self, outgoing: Outgoing) -> None:
        for _, message in outgoing:
            assert isinstance(message, EngineCoreOutputs), message
            self.inbox.append(message)

    def _note(self, message: EngineCoreOutputs) -> None:
        if (columns := message.columns) is not None:
            places = zip(unpack_int64(columns.stream_ids), unpack_ids(columns.first_positions), strict=True)
            for (stream_id, first), token in zip(places, unpack_ids(columns.token_ids), strict=True):
                self._append(self.received[stream_id], first + columns.advance, [token])
        for output in message.outputs:
            received = self.received[output.stream_id]
            assert received.finish_reason is None, "a stream that has ended got more output"
            self._append(received, output.position, list(unpack_ids(output.token_ids)))
            if (found := output.logprobs) is not None:
                columns_of_it = (found.token_ids, found.logprobs, found.ranks)
                received.logprobs = [old + new for old, new in zip(received.logprobs, columns_of_it, strict=True)]
            received.prompt_logprobs = output.prompt_logprobs or received.prompt_logprobs
            received.finish_reason, received.stop_token_id = output.finish_reason, output.stop_token_id
            received.error, received.pooled = output.error, output.pooled

    def _append(self, received: Received, position: int, token_ids: list[int]) -> None:
        assert position == len(received.token_ids), "tokens are missing or sent twice"
        received.token_ids += token_ids


class NotWaiting(OneProcess):
    """Starts steps before the tokens of earlier ones are known, as on a device."""

    decode_step: DecodeStep = EagerDecodeStep()

    def __init__(self, *args: Any, **kwargs: Any):
        self.started: deque[PendingStep] = deque()
        super().__init__(*args, **kwargs)

    def runner_of(self, model: Model, group: TensorParallelGroup) -> ModelRunner:
        scheduler = self.config.scheduler
        return ModelRunner(
            model,
            self.new_cache(model, group),
            group,
            self.new_sampling(model),
            num_rows=scheduler.max_num_seqs,
            max_model_len=self.max_model_len,
            max_tokens=scheduler.max_num_batched_tokens,
            steps_in_flight=scheduler.pipeline_depth,
            decode_step=self.decode_step,
        )

    def new_sampling(self, model: Model) -> DeviceSampling:
        return HostSampling(Sampler(model.backend.sampling(model.geometry.vocab_size)))

    def execute(self) -> None:
        if self.plans:
            self.started.append(self.runner.launch(self.plans.popleft()))

    def apply(self) -> None:
        if self.started and not self.answers:
            self.answers.append(self.runner.result(self.started.popleft()))
        super().apply()

    def replace_workers(self) -> None:
        self.started.clear()
        super().replace_workers()
