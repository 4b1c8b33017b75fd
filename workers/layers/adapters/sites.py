"""The places of a model that adapters may change: which rows of which module's B they take, on this rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...checkpoint.adapters.deltas import Deltas, DeltaShape
from ...distributed.tensor_parallel import TensorParallelGroup
from ..embedding import VocabularyEmbedding
from ..linear import Linear
from .adapted import AdaptedEmbedding, AdaptedHead, AdaptedLinear, StepAdapters
from .ops import AdapterOps

SEGMENTS = (4, 2)  # numbers of segments of divided inputs, the first that divides them


@dataclass(frozen=True, slots=True, eq=False)
class SitePart:
    """The part of a projection that one module of the checkpoint gives."""

    name: str  # of the module
    outputs: int  # of the module
    rows: Tensor  # [n] i64: the module's outputs that this rank computes, in its order
    num_outputs: int  # of this part, at least n; the rest stays unchanged
    multiplier: float = 1.0  # of the module's result


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """One projection, or the embedding."""

    parts: tuple[SitePart, ...]
    inputs: int  # of the modules
    span: tuple[int, int]  # the inputs of this rank
    deltas: Deltas


class Adapters:
    """All sites of a rank's share of a model, and the adapters of the running step."""

    def __init__(
        self,
        num_places: int,
        max_rank: int,
        ops: AdapterOps,
        dtype: torch.dtype,
        device: str,
        group: TensorParallelGroup,
        folder: Path,
    ):
        self.folder = folder  # of the base model
        self.step = StepAdapters()
        self.sites: list[Site] = []
        self.num_places = num_places
        self.max_rank = max_rank
        self.dtype = dtype
        self.device = device
        self._ops = ops
        self._group = group

    def column_parallel(self, product: Linear, parts: Sequence[SitePart], inputs: int) -> Linear:
        """A product whose outputs are divided among ranks. Adjacent parts of one module become one."""
        deltas = self._site(_merged(parts), inputs, (0, inputs))
        return AdaptedLinear(product, deltas, self._ops, self.step)

    def row_parallel(self, product: Linear, name: str, outputs: int, inputs: int, span: tuple[int, int]) -> Linear:
        """A product whose inputs are divided among ranks; `span` are this rank's."""
        size = self._group.size
        segments = next((count for count in SEGMENTS if inputs % count == 0), 1)
        own = segments // size if segments % size == 0 else 1
        deltas = self._site([SitePart(name, outputs, torch.arange(outputs), outputs)], inputs, span, own)
        return AdaptedLinear(product, deltas, self._ops, self.step, self._group)

    def head(self, product: Linear, part: SitePart, inputs: int) -> Linear:
        return AdaptedHead(product, self._site([part], inputs, (0, inputs)), self._ops, self.step)

    def embedding(
        self, embedding: VocabularyEmbedding, name: str, vocab_size: int, size: int, multiplier: float
    ) -> VocabularyEmbedding:
        """The embedding of `vocab_size` tokens as vectors of `size` elements, which are multiplied by `multiplier`."""
        part = SitePart(name, size, torch.arange(size), size, multiplier)
        deltas = self._site([part], vocab_size, (0, vocab_size), is_table=True)
        return AdaptedEmbedding(embedding, deltas, self._ops, self.step)

    def most_bytes(self) -> int:
        """The memory of adapters of the largest rank in all places, embedding and head left out."""
        elements = sum(
            site.span[1] - site.span[0] + sum(site.deltas.shape.outputs)
            for site in self.sites
            if not site.deltas.shape.is_table
        )
        return self.num_places * self.max_rank * elements * self.dtype.itemsize

    def _site(
        self,
        parts: Sequence[SitePart],
        inputs: int,
        span: tuple[int, int],
        segments: int = 1,
        is_table: bool = False,
    ) -> Deltas:
        outputs = tuple(part.num_outputs for part in parts)
        shape = DeltaShape(span[1] - span[0], outputs, segments, is_table)
        deltas = Deltas(shape, self.num_places, self.max_rank, self.dtype, self.device)
        self.sites.append(Site(tuple(parts), inputs, span, deltas))
        return deltas


def _merged(parts: Sequence[SitePart]) -> list[SitePart]:
    """Adjacent parts of one module as one: A x is then computed once."""
    merged: list[SitePart] = []
    for part in parts:
        if merged and merged[-1].name == part.name:
            before = merged.pop()
            rows = torch.cat((before.rows, part.rows))
            part = SitePart(part.name, part.outputs, rows, before.num_outputs + part.num_outputs)
        merged.append(part)
    return merged
