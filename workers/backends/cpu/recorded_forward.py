"""Replays the kernel calls of a step in one call, as recorded in an earlier step with as many rows and tokens.

Python between the kernels of a step costs 25 us per kernel, because streaming the weights evicts Python's objects from
the caches.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from ...batch.input_batch import InputBatch
from ...kernels.cpu.library import Pool
from ...kernels.cpu.programs.program import Program, recorded_calls
from ...kernels.cpu.programs.queued_calls import QueuedCalls
from ...kernels.cpu.programs.torch_watch import TorchWatch
from ...layers.decode_step import Inputs, Logits

log = logging.getLogger(__name__)

MAX_RECORDINGS = 512  # kept, the last used; one of 28 layers takes 24 kB

Places = tuple[int, ...]
Size = tuple[int, int, bool]  # the numbers of rows and of tokens, and whether any of them has a LoRA adapter


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The recording of a forward pass through Python."""

    places: Places
    program: Program
    logits: Tensor  # each replay writes its result here


class RecordedForward:
    """The DecodeStep of our CPU kernels, which runs through Python once for each Size.

    A step that verifies drafts does so twice: recording costs several times what it saves, and a size may not recur.

    That run records the parameters of the kernels. They are addresses and sizes and do not depend on context lengths,
    or on which tokens are a row's, because attention plans itself from kv_lens and row_starts. The same calls are
    therefore valid for any later step with memory at the same `places`. If torch computes anything (when ranks exchange
    sums), the kernels are not the whole pass, and all steps run through Python.
    """

    sizes: Sequence[int] = ()  # none before the first step: the first step of each size is recorded

    def __init__(self, pool: Pool, places: Callable[[InputBatch], Places], *, queues: bool = False):
        self._pool = pool
        self._queues = queues
        self._places = places
        # None: there was one such step, which was not recorded.
        self._recordings: OrderedDict[Size, Recording | None] = OrderedDict()
        self._is_recordable = True

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        raise AssertionError("there are no sizes to prepare")

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        return self.verify(inputs, logits)

    def verify(self, inputs: Inputs, logits: Logits) -> Tensor:
        batch = inputs()
        if not (self._is_recordable and self._pool.runs_programs):
            return logits(batch)
        num_rows, num_tokens = len(batch.kv_lens), len(batch.token_ids)
        size = num_rows, num_tokens, batch.adapters is not None
        if num_tokens > num_rows and size not in self._recordings:
            self._keep(size, None)
            return logits(batch)
        recording = self._recordings.get(size)
        if recording is None or recording.places != self._places(batch):
            return self._record(size, batch, logits)
        self._recordings.move_to_end(size)
        recording.program.run()
        return recording.logits

    def queue(self) -> AbstractContextManager[object]:
        gains = self._queues and self._is_recordable and self._pool.runs_programs
        return QueuedCalls(self._pool) if gains else nullcontext()

    def _record(self, size: Size, batch: InputBatch, logits: Logits) -> Tensor:
        before = self._places(batch)
        with recorded_calls(self._pool) as calls, TorchWatch() as watch:
            result = logits(batch)
        if before != self._places(batch):
            return result  # torch allocated buffers during the pass: the next step of this size is recorded instead
        if watch.computed:
            self._is_recordable = False
            self._recordings.clear()
            log.debug("decode steps run through Python torch_computes=%s", ",".join(sorted(watch.computed)))
        else:
            self._keep(size, Recording(before, Program(self._pool, calls), result))
        return result

    def _keep(self, size: Size, recording: Recording | None) -> None:
        self._recordings[size] = recording
        if len(self._recordings) > MAX_RECORDINGS:
            self._recordings.popitem(last=False)
