"""Similarity of embeddings, identical to the bit on every machine, and the signs of an embedding."""

import math
from operator import mul
from typing import Literal

from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.pooling_params import Pooled

ScoreType = Literal["bi-encoder", "cross-encoder", "late-interaction"]  # vLLM's names


def score_type(limits: Welcome) -> ScoreType | None:
    """How a model scores pairs of texts: by an embedding of each, both at once, or an embedding of each token.

    None: it has several classes, and so no score.
    """
    if "embed" in limits.tasks:
        return "bi-encoder"
    if "token_embed" in limits.tasks:
        return "late-interaction"
    return "cross-encoder" if "classify" in limits.tasks and limits.num_labels == 1 else None


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


def max_sim(query: Pooled, document: Pooled) -> float:
    """Late interaction (Khattab and Zaharia, ColBERT): the sum over the query's tokens of their largest dot products
    with tokens of the document. Each dot product is rounded once, and so is the sum.
    """
    others = _rows(document)
    return math.fsum(max(math.fsum(map(mul, row, other)) for other in others) for row in _rows(query))


def _rows(pooled: Pooled) -> list[list[float]]:
    given, columns = [*numbers(pooled.values)], pooled.columns
    return [given[start : start + columns] for start in range(0, len(given), columns)]
