"""Rows that GGUF files have in another order than Hugging Face checkpoints.

A gated delta net has several value heads for each key head. A checkpoint has those of one key head side by side, and
some files instead the first of every key head, then the second of every one, and so on ("tiled").
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.gguf.container import GgufTensor
from paged_serve.protocol.gguf.metadata import Metadata

Order = Callable[[Tensor], Tensor]  # of rows of a checkpoint: where the file has them
MAX_ROWS = 1 << 30
Kind = Literal["values", "heads", "after_keys", "b_of_both", "alpha_of_both"]


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """The heads of a model's gated delta nets."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def read(cls, metadata: Metadata, architecture: str) -> "DeltaHeads":
        """Raises ConfigError."""
        names = ("group_count", "time_step_rank", "state_size", "inner_size")
        key_heads, heads, key_dim, inner = (metadata.whole(f"{architecture}.ssm.{name}") for name in names)
        if not 0 < key_heads <= heads <= inner < MAX_ROWS or heads % key_heads or inner % heads or key_dim < 1:
            raise metadata.refused(
                f"ssm.group_count={key_heads}, time_step_rank={heads}, state_size={key_dim} and inner_size={inner} "
                "are no sizes of a gated delta net"
            )
        return cls(key_heads, heads, key_dim, inner // heads)

    @property
    def sharing(self) -> int:
        """Value heads of one key head."""
        return self.heads // self.key_heads


@dataclass(frozen=True, slots=True)
class Reordered:
    """One tensor's order."""

    rows: int  # in a checkpoint
    stored_rows: int
    order: Order
    unit: int  # rows that stay together


def reordered(kind: Kind, heads: DeltaHeads) -> Reordered:
    """The order of rows of that kind: whole value heads, a row a head, values after queries and keys, or a half."""
    size = heads.value_dim if kind in ("values", "after_keys") else 1
    first = 2 * heads.key_heads * heads.key_dim if kind == "after_keys" else 0
    if kind in ("b_of_both", "alpha_of_both"):  # of each key head b of its heads, then alpha of them
        half = heads.sharing * (kind == "alpha_of_both")
        return Reordered(
            heads.heads,
            2 * heads.heads,
            lambda rows: rows // heads.sharing * 2 * heads.sharing + half + rows % heads.sharing,
            1,
        )

    def order(rows: Tensor) -> Tensor:
        head, within = (rows - first) // size, (rows - first) % size
        tiled = (head % heads.sharing * heads.key_heads + head // heads.sharing) * size + within
        return torch.where(rows < first, rows, first + tiled)

    total = first + heads.heads * size
    return Reordered(total, total, order, size)


def interleaved(num_rows: int, heads: int) -> Order:
    """Of queries or keys: the rows i and i + head_dim / 2 of each head are side by side in the file."""
    half = num_rows // heads // 2

    def order(rows: Tensor) -> Tensor:
        head, within = rows // (2 * half), rows % (2 * half)
        return head * 2 * half + within % half * 2 + within // half

    return order


def checked(found: Reordered, tensor: GgufTensor, size: int, source: str) -> Reordered:
    """Raises ConfigError if the tensor has another number of rows, or of columns, `size`."""
    if size != found.stored_rows:
        raise ConfigError(f"{source}: tensor {tensor.name} {list(tensor.shape)} needs {found.stored_rows}, not {size}")
    return found
