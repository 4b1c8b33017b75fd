"""Vectors as JSON, in pieces between which other requests have their turn."""

import asyncio
import binascii
from typing import Any

import msgspec

from paged_serve.protocol.messages.pooling_params import Pooled

from ....pooling.similarity import numbers

PIECE_NUMBERS = 12 << 10  # about 1 ms as decimals; a multiple of three, so that base64 has no padding within
_encode = msgspec.json.Encoder().encode


class VectorEncoder:
    """Of one answer."""

    def __init__(self, *, as_base64: bool = False):
        self._as_base64 = as_base64
        self._since_turn = 0  # numbers

    async def encoded(self, pooled: Pooled, *, in_rows: bool = False) -> Any:
        """JSON of all its numbers; `in_rows`: of a list a row."""
        if self._as_base64:
            return msgspec.Raw(b'"' + b"".join([await self._base64(part) for part in _pieces(pooled.values)]) + b'"')
        if not in_rows:
            return msgspec.Raw(await self._decimals(pooled.values))
        size = 4 * pooled.columns
        rows = [await self._decimals(pooled.values[row * size : (row + 1) * size]) for row in range(pooled.rows)]
        return msgspec.Raw(b"[" + b",".join(rows) + b"]")

    async def _decimals(self, values: bytes) -> bytes:
        """Each number is written so that reading it as a double, too, gives the float32 again."""
        parts = []
        for part in _pieces(values):
            parts.append(_encode(numbers(part).tolist())[1:-1])
            await self.turn(len(part) // 4)
        return b"[" + b",".join(parts) + b"]"

    async def _base64(self, part: bytes) -> bytes:
        await self.turn(len(part) // 32)  # it is faster
        return binascii.b2a_base64(part, newline=False)

    async def turn(self, num_numbers: int) -> None:
        """Others' turn, when so many more numbers have made enough work."""
        self._since_turn += num_numbers
        if self._since_turn >= PIECE_NUMBERS:
            self._since_turn = 0
            await asyncio.sleep(0)


def _pieces(values: bytes) -> list[bytes]:
    size = 4 * PIECE_NUMBERS
    return [values[start : start + size] for start in range(0, len(values), size)]
