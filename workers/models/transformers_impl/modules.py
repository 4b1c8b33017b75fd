"""Replacements of the library's modules: our products, tables, norms and activations, as torch modules.

Each result has its own memory, because callers may keep it for any length of time.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ...geometry.model_options import Activation
from ...layers.embedding import OutputHead, Table, VocabularyEmbedding
from ...layers.linear import Linear
from ...layers.norm import Norm
from ...layers.ops import Ops

POSITIONS_AT_ONCE = 2048  # a table of angles grows by multiples of this


class ProductModule(nn.Module):
    """Replaces nn.Linear."""

    def __init__(self, product: Linear, in_features: int, out_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features  # of this rank
        self._product = product

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self._product(x.reshape(-1, x.shape[-1]).contiguous()).clone().view(*x.shape[:-1], -1)


class EmbeddingModule(nn.Module):
    """Replaces nn.Embedding."""

    def __init__(self, table: Table | VocabularyEmbedding):
        super().__init__()
        self.rows = table if isinstance(table, VocabularyEmbedding) else table.rows

    def forward(self, indices: Tensor) -> Tensor:
        """[1, tokens] -> [1, tokens, hidden]."""
        return self.rows(indices.reshape(-1)).clone().view(*indices.shape, -1)


class HeadModule(nn.Module):
    """Replaces the output head; the result is float32, and valid until the next call."""

    def __init__(self, head: OutputHead):
        super().__init__()
        self._head = head

    def forward(self, hidden: Tensor) -> Tensor:
        """[1, n, hidden] -> [1, n, vocab] float32."""
        return self._head(hidden[0]).unsqueeze(0)


class NormModule(nn.Module):
    """Replaces a norm over the last dimension."""

    def __init__(self, ops: Ops, norm: Norm):
        super().__init__()
        self._ops = ops
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self._ops.norm(rows, self.norm, out=torch.empty_like(rows)).view(x.shape)


class ActivationModule(nn.Module):
    """Replaces an activation without a gate."""

    def __init__(self, ops: Ops, activation: Activation):
        super().__init__()
        self._ops = ops
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        return self._ops.activate(rows, self._activation).clone().view(x.shape)


class FeedForwardModule(nn.Module):
    """Replaces a feed-forward with a gate: one product for gate and up, one kernel for the activation, and down."""

    def __init__(self, ops: Ops, gate_up: Linear, activation: Activation, down: Linear):
        super().__init__()
        self._ops = ops
        self.gate_up, self.down = gate_up, down
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        both = self.gate_up(x.reshape(-1, x.shape[-1]).contiguous())
        return self.down(self._ops.activate(both, self.activation)).clone().view(x.shape)


class RotationModule(nn.Module):
    """Replaces a module that computes cosines and sines: reads them from tables that the module has computed.

    Tables are computed in pieces that begin at fixed positions, so that no row's bits depend on a batch. Every piece
    includes the last position that is served, so a scaling that depends on the length (longrope) uses that length.
    """

    def __init__(self, rotation: nn.Module, num_positions: int):
        super().__init__()
        self._rotation = rotation
        self._num_positions = num_positions
        self._tables: dict[Any, tuple[Tensor, ...]] = {}

    def forward(self, x: Tensor, position_ids: Tensor, *which: Any, **named: Any) -> tuple[Tensor, ...]:
        """Cosines and sines [1, tokens, size] in the dtype of `x`; `which` selects one of several tables."""
        key, positions = (x.dtype, which, *sorted(named.items())), position_ids[0]
        needed, tables = int(positions.max()) + 1, self._tables.get(key, ())
        if not tables or len(tables[0]) < needed:
            held = len(tables[0]) if tables else 0
            wanted = -(-max(needed, 2 * held) // POSITIONS_AT_ONCE) * POSITIONS_AT_ONCE
            pieces = [self.piece(first, x, *which, **named) for first in range(held, wanted, POSITIONS_AT_ONCE)]
            each = [torch.cat(parts) for parts in zip(*([tables] if tables else []), *pieces, strict=True)]
            tables = self._tables[key] = tuple(each)
        return tuple(table.index_select(0, positions).unsqueeze(0) for table in tables)

    def __getattr__(self, name: str) -> Any:
        """The other attributes of the replaced module."""
        return self._modules["_rotation"] if name == "_rotation" else getattr(self._rotation, name)

    def piece(self, first: int, x: Tensor, *which: Any, **named: Any) -> tuple[Tensor, ...]:
        """Cosines and sines of POSITIONS_AT_ONCE positions, [positions, size] each."""
        last = self._num_positions - 1
        positions = torch.cat([torch.arange(first, first + POSITIONS_AT_ONCE).clamp_max(last), torch.tensor([last])])
        found = self._rotation(x[:, :1], positions.unsqueeze(0), *which, **named)
        return tuple(table[0, :POSITIONS_AT_ONCE] for table in found)


class GivenHidden(nn.Module):
    """Replaces a model without its head: returns its input, the hidden states."""

    def __init__(self, output: Any):
        super().__init__()
        self._output = output  # the library's class of a model's results

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> Any:
        return self._output(last_hidden_state=inputs_embeds)
