"""Encodes vectors as JSON in pieces and lets other requests run between the pieces."""

import asyncio
import binascii
from typing import Any

import msgspec

from paged_serve.protocol.messages.pooling_params import Pooled

from ....pooling.similarity import numbers, signs

PIECE_NUMBERS = 12 << 10  # about 1 ms as decimals; a multiple of 3, so that base64 has no padding between pieces
_encode = msgspec.json.Encoder().encode


class VectorEncoder:
    """Encodes the vectors of one answer."""

    def __init__(self, *, as_base64: bool = False):
        self._as_base64 = as_base64
        self._since_turn = 0  # numbers

    async def encoded(self, pooled: Pooled, *, in_rows: bool = False) -> Any:
        """JSON of all numbers of one vector. `in_rows`: one list per row, always as decimals."""
        parts = list[bytes]()  # joined once, because copying a large answer takes 10 ms
        if self._as_base64:
            await self._add_base64(parts, pooled.values)
        elif not in_rows:
            await self._add_decimals(parts, pooled.values)
        else:
            size = 4 * pooled.columns
            for row in range(pooled.rows):
                parts.append(b"," if row else b"[")
                await self._add_decimals(parts, pooled.values[row * size : (row + 1) * size])
            parts.append(b"]" if pooled.rows else b"[]")
        joined = b"".join(parts)
        await self.turn(len(joined) // 64)
        return msgspec.Raw(joined)

    async def signs(self, pooled: Pooled, *, below_zero: bool) -> Any:
        """A list of its signs, eight to a number: 0 to 255, or with `below_zero` that less 128."""
        packed = signs(pooled.values)
        await self.turn(pooled.columns)
        return [byte - 128 for byte in packed] if below_zero else list(packed)

    async def _add_decimals(self, parts: list[bytes], values: bytes) -> None:
        """Each number has enough digits to give the same float32 when it is parsed as a double."""
        between = b"["
        for piece in _pieces(values):
            parts += (between, _encode(numbers(piece).tolist())[1:-1])
            between = b","
            await self.turn(len(piece) // 4)
        parts.append(b"]" if values else b"[]")

    async def _add_base64(self, parts: list[bytes], values: bytes) -> None:
        parts.append(b'"')
        for piece in _pieces(values):
            parts.append(binascii.b2a_base64(piece, newline=False))
            await self.turn(len(piece) // 32)  # base64 is faster than decimals
        parts.append(b'"')

    async def turn(self, num_numbers: int) -> None:
        """Count `num_numbers` of work, and let other tasks run once there is a piece of it."""
        self._since_turn += num_numbers
        if self._since_turn >= PIECE_NUMBERS:
            self._since_turn = 0
            await asyncio.sleep(0)


def _pieces(values: bytes) -> list[bytes]:
    size = 4 * PIECE_NUMBERS
    return [values[start : start + size] for start in range(0, len(values), size)]
