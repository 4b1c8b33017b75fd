"""The sampler's passes over logits; one thread processes a row. A row's result depends only on that row."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .library import Pool
from .parameters import DrawParams, LogprobParams, MaskParams, ScanParams, packer

SCAN, MASK, DRAW, LOGPROBS = packer(ScanParams), packer(MaskParams), packer(DrawParams), packer(LogprobParams)


def scan_logits(pool: Pool, logits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """For logits [n, vocab]: each row's best token (the lowest id among equals), and whether the row is finite."""
    stride = _stride(logits)
    best, finite = np.empty(len(logits), np.int64), np.empty(len(logits), np.bool_)
    fields = SCAN(*_pointers(logits, best, finite), stride, *logits.shape)
    pool.functions["scan_logits"](pool.handle, fields)
    return best, finite


def mask_logits(
    pool: Pool,
    logits: NDArray[np.float32],
    indices: NDArray[np.int64],
    masks: NDArray[np.int32],
    mask_of: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Set rows `indices` [n] of `logits` to -infinity where the bits of their masks are 0.

    Row `indices[i]` has the mask `mask_of[i]` of `masks` [masks, ceil(vocab / 32)]. Returns each row's best token [n]
    (the lowest id among equals), or -1 if no token is allowed.
    """
    assert _are(np.int64, indices, mask_of)
    assert _are_masks(masks, mask_of, indices, logits.shape[1], least=0)
    best = np.empty(len(indices), np.int64)
    pointers = _pointers(logits, indices, masks, mask_of, best)
    fields = MASK(*pointers, _stride(logits), len(indices), logits.shape[1])
    pool.functions["mask_logits"](pool.handle, fields)
    return best


def draw_tokens(
    pool: Pool,
    logits: NDArray[np.float32],
    indices: NDArray[np.int64],
    rows: NDArray[np.int64],
    temperature: NDArray[np.float32],
    log_min_p: NDArray[np.float32],
    top_k: NDArray[np.int64],
    top_p: NDArray[np.float64],
    uniform: NDArray[np.float64],
    exclusions: NDArray[np.float64],
    masks: NDArray[np.int32],
    mask_of: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Draw a token for each of the rows `indices` [n] of `logits`, with the numbers `uniform` [n].

    `mask_of` [n] is the index of a row's mask in `masks` [masks, ceil(vocab / 32)], as in `mask_logits`: the token is
    one that the mask allows, or -1 if it allows none; negative: no mask. `rows` [n] index the four columns, which
    SamplingColumns describes.
    """
    assert _are(np.int64, indices, rows, top_k, mask_of)
    assert _are(np.float32, temperature, log_min_p)
    assert _are(np.float64, top_p, uniform, exclusions)
    assert len(indices) == len(rows) == len(uniform) == len(exclusions)
    assert _are_masks(masks, mask_of, indices, logits.shape[1], least=-1)
    tokens = np.empty(len(indices), np.int64)
    columns = _pointers(temperature, log_min_p, top_k, top_p)
    own = _pointers(uniform, exclusions, masks, mask_of, tokens)
    fields = DRAW(*_pointers(logits, indices, rows), *columns, *own, _stride(logits), len(indices), logits.shape[1])
    pool.functions["draw_tokens"](pool.handle, fields)
    return tokens


def _are_masks(
    masks: NDArray[np.int32], mask_of: NDArray[np.int64], indices: NDArray[np.int64], vocab_size: int, least: int
) -> bool:
    """Whether `masks` fit the vocabulary, and `mask_of` are places in them, or `least`."""
    fits = _are(np.int32, masks) and masks.shape[1] == -(-vocab_size // 32) and len(mask_of) == len(indices)
    return fits and bool(mask_of.min(initial=0) >= least) and bool(mask_of.max(initial=-1) < len(masks))


def token_logprobs(
    pool: Pool,
    logits: NDArray[np.float32],
    indices: NDArray[np.int64],
    tokens: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Ids and log-probabilities [n, most + 1] of `tokens` [n] and then each row's best tokens; ranks [n] of `tokens`.

    The result of row `indices[i]` of `logits` has 1 + `counts[i]` entries; the rest of it is not written.
    """
    assert _are(np.int64, indices, tokens, counts)
    assert len(indices) == len(tokens) == len(counts)
    width = 1 + int(counts.max(initial=0))
    ids, values = np.empty((len(indices), width), np.int32), np.empty((len(indices), width), np.float32)
    ranks = np.empty(len(indices), np.int32)
    pointers = _pointers(logits, indices, tokens, counts, ids, values, ranks)
    fields = LOGPROBS(*pointers, _stride(logits), len(indices), logits.shape[1], width)
    pool.functions["token_logprobs"](pool.handle, fields)
    return ids, values, ranks


def _pointers(*arrays: NDArray[Any]) -> list[int]:
    return [array.__array_interface__["data"][0] for array in arrays]


def _are(dtype: type[np.generic], *vectors: NDArray[Any]) -> bool:
    """Assert dtypes and shapes, because kernels do not check their pointers."""
    return all(vector.dtype == dtype and vector.flags.c_contiguous for vector in vectors)


def _stride(logits: NDArray[np.float32]) -> int:
    """The distance between rows, in elements."""
    assert logits.dtype == np.float32
    assert logits.strides[1] == 4
    return logits.strides[0] // 4
