"""A quick check that fails for any bug in the attention kernels; mutations_attention.py lists bugs."""

from dataclasses import replace

import torch

from paged_serve.workers.kernels.cuda.attention_kernels import AttentionShape

from ..emulated import EmulatorLauncher
from .attention_case import ALL_DECODE, ALL_PREFILL, PLAIN, Batch, Options, Request, assert_right, batch, run

BFLOAT16, FLOAT16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
USUAL = AttentionShape(BFLOAT16, BFLOAT16, 8, 2, 64, 16)
NARROWED = AttentionShape(FLOAT16, FP8, 4, 1, 80, 32)
WIDE = AttentionShape(BFLOAT16, BFLOAT16, 2, 1, 464, 16)


def check_attention(launcher: EmulatorLauncher, device: str = "cpu") -> None:
    """Raises AssertionError or EmulatorError."""
    lengths = [(1, 0), (1, 64), (3, 574), (21, 500)]
    _agree(launcher, batch(USUAL, lengths), Options(blocks=1), ALL_PREFILL)  # one after another in the same memory
    _agree(launcher, batch(USUAL, lengths, window=75), Options(window=75, cap=5.0, sinks=True), ALL_DECODE)
    cancelling = [Request.cancelling(USUAL, 1, 1090, seed=1)]
    _agree(launcher, Batch(USUAL, cancelling), PLAIN, ALL_PREFILL)
    chunks = batch(NARROWED, [(2, 126), (17, 50)])
    _agree(launcher, chunks, Options(scales=(0.5, 2.0)), ALL_PREFILL)
    chunked = batch(replace(USUAL, attention_chunk=520), [(1, 64), (21, 510), (1, 519), (1, 1100)])
    _agree(launcher, chunked, Options(sinks=True), ALL_PREFILL)
    alibi = replace(USUAL, has_alibi=True)
    slanted = batch(replace(alibi, attention_chunk=510), [(1, 64), (21, 500)])
    _agree(launcher, slanted, Options(sinks=True), ALL_PREFILL)
    _agree(launcher, batch(replace(alibi, is_bidirectional=True), [(33, 0), (70, 0)]), Options(cap=5.0), ALL_PREFILL)
    wide = batch(WIDE, [(1, 600), (17, 500)])
    _agree(launcher, wide, PLAIN, ALL_PREFILL)
    assert torch.equal(run(launcher, wide, arch="sm_89"), run(launcher, wide)), "with a single slot"
    assert launcher.stats.bank_conflicts == 0


def _agree(launcher: EmulatorLauncher, cases: Batch, options: Options, max_decode_rows: int) -> None:
    """Assert that results are close to the oracle, and have the same bits with another shape of blocks."""
    found = run(launcher, cases, options)
    assert_right(found, cases, options)
    assert torch.equal(found, run(launcher, cases, replace(options, max_decode_rows=max_decode_rows)))
