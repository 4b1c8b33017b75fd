"""Replays the kernel calls of a decode step in one call, as Python made them for an equal number of rows before.

Python between the kernels of a step costs 25 us a kernel: streaming the weights evicts its objects from the caches.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...batch.input_batch import InputBatch
from ...kernels.cpu.library import Pool
from ...kernels.cpu.program import Program, noted
from ...layers.decode_step import Inputs, Logits

log = logging.getLogger(__name__)

ATEN = torch.ops.aten
VIEWS = {ATEN.view.default, ATEN.flatten.using_ints, ATEN.slice.Tensor, ATEN.alias.default, ATEN.to.dtype}

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What a forward pass through Python leaves for its replays."""

    places: Places
    program: Program
    logits: Tensor  # where each replay leaves its result


class RecordedForward:
    """The DecodeStep of our CPU kernels, which runs through Python once for each number of rows.

    That run records the kernels' parameters: addresses and sizes, and nothing that grows with the contexts, because
    attention plans by itself from kv_lens. So the same calls serve any later step with memory at the same `places`.
    If torch computes anything (ranks exchange sums), the kernels are not the whole pass, and all steps run through
    Python.
    """

    sizes: Sequence[int] = ()  # none before the first step: the first step of each size is recorded

    def __init__(self, pool: Pool, places: Callable[[InputBatch], Places]):
        self._pool = pool
        self._places = places
        self._recordings: dict[int, Recording] = {}  # by number of rows
        self._is_recordable = True

    def prepare(self, num_rows: int, inputs: Inputs, logits: Logits) -> None:
        raise AssertionError("it has no sizes")

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, num_rows: int, inputs: Inputs, logits: Logits) -> Tensor:
        batch = inputs()
        if not (self._is_recordable and self._pool.runs_programs):
            return logits(batch)
        recording = self._recordings.get(num_rows)
        if recording is None or recording.places != self._places(batch):
            return self._record(batch, logits)
        recording.program.run()
        return recording.logits

    def _record(self, batch: InputBatch, logits: Logits) -> Tensor:
        before = self._places(batch)
        with noted(self._pool) as calls, TorchWatch() as watch:
            result = logits(batch)
        if before != self._places(batch):
            return result  # torch allocated buffers meanwhile: the next step of this size decides
        if watch.computed:
            self._is_recordable = False
            self._recordings.clear()
            log.debug("decode steps run through Python torch_computes=%s", ",".join(sorted(watch.computed)))
        else:
            self._recordings[len(batch.kv_lens)] = Recording(before, Program(self._pool, calls), result)
        return result


class TorchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Records what torch itself computes or allocates in this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Called by torch; with True the first call would import all of torch.compile, 0.75 s of every start."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Flattening copies a tensor that is not contiguous, `to` one of another dtype.
        if func not in VIEWS or result.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr():
            self.computed.add(str(func))
        return result
