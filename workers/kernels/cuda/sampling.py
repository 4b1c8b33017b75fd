"""The sampler's passes over logits on a device; csrc/cuda/sampler/sampler.cuh describes them and their order."""

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .kernel import Kernel, Launcher, pointer

MAX_VOCAB = 1 << 19  # the total mass of this many tokens fits 64 bits
WEIGHT_OF_BEST = 1 << 44
GREEDY, MAY_BE_MASKED = 1, 2
NONE_LEFT = 2  # in `bad`: all logits are finite or masked, and the best one is masked
TILE, BINS, LEVELS = 256, 2048, 3

ROW = np.dtype(
    [
        *((name, "<i8") for name in ("seed", "position")),
        *((name, "<f8") for name in ("top_p", "xtc_probability", "xtc_threshold")),
        *((name, "<f4") for name in ("temperature", "log_min_p")),
        *((name, "<i4") for name in ("top_k", "flags", "source", "index")),
        ("list", "<i8"),
    ]
)
STATE = np.dtype(
    [
        *((name, "<u8") for name in ("uniform", "goal", "total", "rank", "last")),
        *((name, "<f4") for name in ("top", "chosen")),
        *((name, "<u4") for name in ("bad", "cut_key", "cut_ties", "prefix")),
        *((name, "<u4") for name in ("gathered", "is_excluding", "skipped_ties", "unused")),
    ]
)
ADJUSTMENT = np.dtype(
    [
        *((name, "<u8") for name in ("allowed", "seen")),  # addresses, 0: none
        *((name, "<i4") for name in ("source", "index", "forbidden", "num_forbidden", "biased", "num_biased")),
        *((name, "<f4") for name in ("repetition", "frequency", "presence")),
        *((name, "<i4") for name in ("repeating", "num_repeating", "unused")),
    ]
)


class SamplerParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "rows", "states", "partials", "histograms", "tiles")),
        *((name, ctypes.c_void_p) for name in ("finished", "token_ids", "bad", "lists")),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("vocab", "level", "by_mass")),
    )


class AdjustParams(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "adjustments", "words", "token_ids")),
        ("stride", ctypes.c_int64),
        ("vocab", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class Blocks:
    """The division of the work among thread blocks; results do not depend on it."""

    threads: int = 256
    slice_tokens: int = 8192  # tokens per block: 16 blocks for a row of 131,072

    def kernel(self, function: str) -> Kernel:
        scratch = self.threads // 32 * 8 + 24
        shared = {"cut": BINS * 8 + scratch, "adjust": 0, "count": 4}.get(function, scratch)
        slices = (("SLICE", self.slice_tokens),)
        return Kernel(f"sampler/{function}.cu", f"sampler_{function}", slices, self.threads, shared)


FUNCTIONS = ("adjust", "scan", "cut", "exclude", "draw", "count", "rank", "gather")


def production_kernels() -> list[Kernel]:
    """Every kernel as the sampler launches it; vocabulary and rows are parameters."""
    return [Blocks().kernel(function) for function in FUNCTIONS]


class Workspace:
    """Memory in which launches over the same rows leave results for later launches."""

    def __init__(self, num_rows: int, vocab_size: int, blocks: Blocks, device: torch.device):
        self.num_rows = num_rows
        slices, tiles = -(-vocab_size // blocks.slice_tokens), -(-vocab_size // TILE)
        self.states = torch.zeros((num_rows, STATE.itemsize), dtype=torch.uint8, device=device)
        self.partials = torch.zeros((num_rows, slices), dtype=torch.int64, device=device)
        self.histograms = torch.zeros((num_rows, BINS), dtype=torch.int64, device=device)
        self.tiles = torch.zeros((num_rows, tiles), dtype=torch.int64, device=device)
        self.finished = torch.zeros(num_rows, dtype=torch.int32, device=device)


class SamplerKernels:
    """Launches the sampler's kernels for one vocabulary on the current stream of a device."""

    def __init__(self, launcher: Launcher, vocab_size: int, device: torch.device, blocks: Blocks | None = None):
        assert 0 < vocab_size <= MAX_VOCAB, vocab_size
        self._launcher = launcher
        self._blocks = blocks or Blocks()
        self._vocab_size = vocab_size
        self._slices = -(-vocab_size // self._blocks.slice_tokens)
        self._kernels = {function: self._blocks.kernel(function) for function in FUNCTIONS}
        self._device = device
        self._workspace = Workspace(0, vocab_size, self._blocks, device)

    def over(
        self, logits: Tensor, rows: Tensor, token_ids: Tensor, bad: Tensor | None = None, lists: Tensor | None = None
    ) -> "RowPasses":
        """The passes over `rows` [n, ROW.itemsize] bytes, which refer to rows of `logits` [sources, vocab] float32.

        They write tokens to `token_ids` int64, and to `bad` uint8 0, 1 or NONE_LEFT; without `bad` they read
        `token_ids` instead. Gathered tokens are written to `lists` int64. Passes of a later call may overwrite results
        in the workspace.
        """
        self._check(logits, token_ids, rows)
        assert rows.shape[1] == ROW.itemsize, rows.shape
        assert bad is None or bad.dtype == torch.uint8
        assert lists is None or lists.dtype == torch.int64
        if self._workspace.num_rows < len(rows):
            size = max(len(rows), 2 * self._workspace.num_rows)
            self._workspace = Workspace(size, self._vocab_size, self._blocks, self._device)
        work = self._workspace
        tensors = logits, rows, work.states, work.partials, work.histograms, work.tiles, work.finished, token_ids
        pointers = *(tensor.data_ptr() for tensor in tensors), *map(pointer, (bad, lists))
        params = SamplerParams(*pointers, logits.stride(0), self._vocab_size, 0, 0)
        return RowPasses(self, params, work.states[: len(rows)])

    def adjust(self, logits: Tensor, adjustments: Tensor, words: Tensor) -> None:
        """Apply `adjustments` [n, ADJUSTMENT.itemsize] bytes to their rows of `logits`; `words` int32 is their data."""
        self._launch_adjust("adjust", self._slices, logits, adjustments, words, None)

    def count(self, logits: Tensor, adjustments: Tensor, words: Tensor, token_ids: Tensor) -> None:
        """Add the new `token_ids` int64 to the counts that penalties use."""
        self._launch_adjust("count", 1, logits, adjustments, words, token_ids)

    def launch(self, function: str, rows: int, params: SamplerParams) -> None:
        self._launcher.launch(self._kernels[function], (self._slices, rows, 1), params)

    def _launch_adjust(
        self, function: str, slices: int, logits: Tensor, adjustments: Tensor, words: Tensor, token_ids: Tensor | None
    ) -> None:
        self._check(logits, token_ids, adjustments)
        assert adjustments.shape[1] == ADJUSTMENT.itemsize, adjustments.shape
        assert words.dtype == torch.int32
        pointers = logits.data_ptr(), adjustments.data_ptr(), words.data_ptr(), pointer(token_ids)
        params = AdjustParams(*pointers, logits.stride(0), self._vocab_size)
        self._launcher.launch(self._kernels[function], (slices, len(adjustments), 1), params)

    def _check(self, logits: Tensor, token_ids: Tensor | None, records: Tensor) -> None:
        assert logits.dtype == torch.float32, logits.dtype
        assert logits.shape[1] == self._vocab_size, logits.shape
        assert logits.stride(1) == 1
        assert token_ids is None or token_ids.dtype == torch.int64
        assert records.dtype == torch.uint8
        assert records.is_contiguous()
        assert records.data_ptr() % 8 == 0
        assert len(records) > 0


class RowPasses:
    """The passes over one set of rows; `scan` must come first."""

    def __init__(self, kernels: SamplerKernels, params: SamplerParams, states: Tensor):
        self._kernels = kernels
        self._params = params
        self.states = states  # [n, STATE.itemsize] bytes

    def scan(self) -> None:
        """Start each row: find its best token and whether it is bad, and advance its position."""
        self._launch("scan")

    def cut(self, *, by_mass: bool) -> None:
        """Find the last token that is kept, by top-k or, after that, by top-p."""
        self._params.by_mass = by_mass
        for level in range(LEVELS):
            self._params.level = level
            self._launch("cut")

    def exclude(self) -> None:
        """Mask the tokens that XTC excludes, in rows where it applies in this step; must come after the cuts."""
        for level in range(LEVELS):
            self._params.level = level
            self._launch("exclude")

    def draw(self) -> None:
        """Draw a token for each row that is neither greedy nor bad."""
        self._launch("draw")

    def rank(self) -> None:
        """Compute each row's mass, and the rank of its token."""
        self._launch("rank")

    def gather(self) -> None:
        """List the tokens that the cut leaves, unordered, as unsigned rank keys (see `rank_keys` in ordering.py)."""
        self._launch("gather")

    def _launch(self, function: str) -> None:
        self._kernels.launch(function, len(self.states), self._params)
