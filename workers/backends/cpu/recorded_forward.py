"""A decode step's kernels in one call: what Python asked of them for so many rows once is asked again without it.

Python between the kernels of a step costs 25 us a kernel: its objects have left the caches while the weights passed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...batch.input_batch import InputBatch
from ...kernels.cpu.library import Pool
from ...kernels.cpu.program import Program, noted

log = logging.getLogger(__name__)

VIEWS = {torch.ops.aten.view.default, torch.ops.aten.flatten.using_ints, torch.ops.aten.slice.Tensor}

Places = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """What is left of a pass through Python."""

    places: Places
    program: Program
    hidden: Tensor  # where it leaves its result


class RecordedForward:
    """A forward pass over the decode set, which runs through Python once for each number of rows.

    Meanwhile the kernels' parameters are noted: addresses and sizes, and nothing that grows with the contexts, because
    attention plans by itself from kv_lens. So the same calls do any later step whose memory lies at the same `places`.
    If torch computes anything (ranks exchange sums), the kernels are not the whole pass, and all steps run through
    Python.
    """

    def __init__(self, forward: Callable[[InputBatch], Tensor], pool: Pool, places: Callable[[InputBatch], Places]):
        self._forward = forward
        self._pool = pool
        self._places = places
        self._recordings: dict[int, Recording] = {}  # by number of rows
        self._is_recordable = True

    def __call__(self, batch: InputBatch) -> Tensor:
        """[rows, hidden], valid until the next step."""
        if not (self._is_recordable and self._pool.runs_programs):
            return self._forward(batch)
        recording = self._recordings.get(len(batch.kv_lens))
        if recording is None or recording.places != self._places(batch):
            return self._record(batch)
        recording.program.run()
        return recording.hidden

    def _record(self, batch: InputBatch) -> Tensor:
        before = self._places(batch)
        with noted(self._pool) as calls, TorchWatch() as watch:
            hidden = self._forward(batch)
        if before != self._places(batch):
            return hidden  # buffers were made meanwhile, by torch: the next such step will tell
        if watch.computed:
            self._is_recordable = False
            self._recordings.clear()
            log.debug("decode steps run through Python torch_computes=%s", ",".join(sorted(watch.computed)))
        else:
            self._recordings[len(batch.kv_lens)] = Recording(before, Program(self._pool, calls), hidden)
        return hidden


class TorchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Takes down what torch itself computes or allocates in this thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks; a yes has the first call import all of torch.compile, 0.75 s of every start."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Flattening copies what is not contiguous.
        if func not in VIEWS or result.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr():
            self.computed.add(str(func))
        return result
