"""Similarity of two embeddings, identical to the bit on every machine, and the signs of an embedding."""

import math
from operator import mul


def numbers(values: bytes) -> "memoryview[float]":
    """The numbers of a vector's message, which has them as little-endian float32."""
    return memoryview(values).cast("f")


def signs(values: bytes) -> bytes:
    """One bit per number, 1 if it is above 0, the first in the highest bit; zeros fill the last byte."""
    given = numbers(values)
    size = -(-len(given) // 8)
    bits = "".join("1" if number > 0 else "0" for number in given)
    return int(bits.ljust(8 * size, "0"), 2).to_bytes(size)


def dot(a: "memoryview[float]", b: "memoryview[float]") -> float:
    """The dot product, rounded once: products of float32 are exact in a double, and fsum adds doubles exactly."""
    return math.fsum(map(mul, a, b))


def cosine(a: bytes, b: bytes) -> float:
    """The cosine of two embeddings of equal size, from -1 to 1; 0 if either is zero."""
    first, second = numbers(a), numbers(b)
    norms = dot(first, first) * dot(second, second)
    return max(-1.0, min(1.0, dot(first, second) / math.sqrt(norms))) if norms > 0 else 0.0
