"""The rows of a checkpoint's projections that a rank holds, and their order.

Kernels rotate element j of a head with element j + head_dim / 2, and expect all queries, then all keys, then all
values. A file in another layout is permuted to this order as it is read. The scores do not change: they are dot
products of queries and keys, whose elements are permuted in the same way.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..geometry.geometry import Geometry

Span = tuple[int, int]  # rows [start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of one projection."""

    name: str
    total: int  # in the file
    span: Span  # the rows to read
    order: Tensor | None = None  # [n] i64, indices into the rows read, in the model's order; None: the file's order

    def __len__(self) -> int:
        return self.span[1] - self.span[0] if self.order is None else len(self.order)

    def chosen_rows(self) -> Tensor:
        """The rows [n] i64, as they are in the file, in the model's order."""
        rows = torch.arange(*self.span)
        return rows if self.order is None else rows[self.order]

    @classmethod
    def chosen(cls, name: str, total: int, rows: Tensor) -> "Rows":
        """The given `rows` [n] i64, in this order."""
        start, stop = int(rows.min()), int(rows.max()) + 1
        as_they_lie = torch.arange(start, stop)
        return cls(name, total, (start, stop), None if torch.equal(rows, as_they_lie) else rows - start)


def query_key_value_rows(
    names: tuple[str, str, str],
    geometry: Geometry,
    queries: Span,
    keys: Span,
    layer: int,
    *,
    are_grouped: bool,
    num_parts: int = 1,
) -> list[Rows]:
    """The rows of query heads `queries` and of KV heads `keys` of a layer. Equal `names`: one matrix holds all three.

    `are_grouped`: this matrix stores for each KV head its queries, its key and its value. `num_parts`: of this matrix;
    each of several stores the queries of its heads, then their values, then their keys.
    """
    heads, kv_heads, head_dim = geometry.num_heads, geometry.num_kv_heads, geometry.head_dim
    rotated, plain = order_of_head(geometry, layer), torch.arange(head_dim)
    value_dim = geometry.value_dim or head_dim
    query, key = torch.arange(*queries), torch.arange(*keys)
    if len(set(names)) > 1:
        # A narrower value is padded with its own first elements, which the output projection does not read.
        values = (key.unsqueeze(1) * value_dim + plain % value_dim).flatten()
        return [
            Rows.chosen(names[0], heads * head_dim, rows_of(query, rotated)),
            Rows.chosen(names[1], kv_heads * head_dim, rows_of(key, rotated)),
            Rows.chosen(names[2], kv_heads * value_dim, values),
        ]
    total = (heads + 2 * kv_heads) * head_dim
    if num_parts > 1:
        part = heads // num_parts
        first, other = (head // part * 3 * part + head % part for head in (query, key))
        rows = torch.cat([rows_of(first, rotated), rows_of(other + 2 * part, rotated), rows_of(other + part, plain)])
        return [Rows.chosen(names[0], total, rows)]
    if not are_grouped:
        starts = (query, rotated), (heads + key, rotated), (heads + kv_heads + key, plain)
        return [Rows.chosen(names[0], total, rows_of(*place)) for place in starts]
    sharing = heads // kv_heads
    first, last = query // sharing * (sharing + 2) + query % sharing, key * (sharing + 2) + sharing
    rows = torch.cat([rows_of(first, rotated), rows_of(last, rotated), rows_of(last + 1, plain)])
    return [Rows.chosen(names[0], total, rows)]


def differential_rows(
    names: tuple[str, str, str], geometry: Geometry, pairs: Span, layer: int
) -> tuple[list[Rows], Tensor]:
    """The rows of some `pairs` of KV heads, and of their queries; and whether each belongs to its head, [n] bool.

    In the file heads are half as wide, KV heads n and n + count / 2 are a pair, and the values of a pair are those of
    both. A query is padded with its own elements, which must be multiplied by 0; what pads a key is then not read.
    """
    order, size, half = order_of_head(geometry, layer), geometry.head_dim // 2, geometry.num_kv_heads // 2
    sharing, first = geometry.num_heads // geometry.num_kv_heads, torch.arange(*pairs)
    keys = torch.stack([first, first + half], 1).flatten()
    queries = rows_of(keys, torch.arange(sharing))
    values = torch.stack([keys % half, keys % half + half], 1).flatten()
    of_queries, of_keys = (each.unsqueeze(1) * size + order % size for each in (queries, keys))
    rows = [
        Rows.chosen(names[0], geometry.num_heads * size, of_queries.flatten()),
        Rows.chosen(names[1], geometry.num_kv_heads * size, of_keys.flatten()),
        Rows.chosen(names[2], geometry.num_kv_heads * size, rows_of(values, torch.arange(size))),
    ]
    return rows, torch.cat([(order < size).repeat(len(queries)), torch.ones(4 * len(keys) * size, dtype=torch.bool)])


def stacked_rows(names: list[str], total: int, span: Span) -> list[Rows]:
    """`span` of each named projection of `total` rows. Equal names mean one matrix with the projections stacked."""
    if len(set(names)) == len(names):
        return [Rows(name, total, span) for name in names]
    starts = range(0, len(names) * total, total)
    return [
        Rows(name, len(names) * total, (at + span[0], at + span[1])) for name, at in zip(names, starts, strict=True)
    ]


def order_of_head(geometry: Geometry, layer: int) -> Tensor:
    """The permutation from a query or key head in the file to the kernels' layout: [head_dim] i64.

    In each half the rotated elements come first, then the others. A layer without rotation has the order of the first
    one that rotates.
    """
    head_dim = geometry.head_dim
    ropes = [*geometry.ropes[layer : layer + 1], *geometry.ropes]
    rotated = next((rope.rotary_dim for rope in ropes if rope.kind != "none"), None) or head_dim
    one = torch.arange(0, rotated, 2) if geometry.interleaved else torch.arange(rotated // 2)
    other = one + (1 if geometry.interleaved else rotated // 2)
    low, high = torch.arange(rotated, head_dim).chunk(2) if rotated < head_dim else (one[:0], one[:0])
    return torch.cat([one, low, other, high])


def rows_of(parts: Tensor, order: Tensor) -> Tensor:
    """The rows of some `parts` [n], each of which has len(order) rows, in this order."""
    return (parts.unsqueeze(1) * len(order) + order).flatten()
