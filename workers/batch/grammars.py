"""Computes the tokens that a grammar allows next, by one matcher per row, advanced by the row's output (llguidance: an
Earley parser over lexemes that are derivatives of regular expressions).

A mask depends only on the grammar and the output, so a row restored with its output after preemption or a restart has
the same masks.

Copies of a matcher share the states of its expressions and llguidance's limits on them (LLParserLimits): the states of
one row may exhaust the limits of all. A row that fails while it shares a matcher is therefore retried with a matcher
that it does not share, which reads the output again mask by mask; only a row that fails then has failed.
"""

import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.structured_outputs import Grammar

from .grammar_tokenizer import tokenizer_for_grammars

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_THREADS = 4
MAX_COMPILED = 64  # compiled grammars kept; later rows copy them
MAX_REASON_CHARS = 256
MASK_EVERY = 16  # tokens of an output read again: computing a mask renews the limit of a step
THREADED_VOCAB = 4096  # from this many tokens on, a mask costs more than waking a thread for it
NO_OUTPUT = "no output satisfies the grammar"


@dataclass(slots=True)
class RowGrammar:
    """One row's matcher."""

    source: str
    matcher: "LLMatcher"
    origin: "LLMatcher | None"  # the matcher that `matcher` is a copy of; None: not shared
    bits: NDArray[np.int32]  # [words] mask of the next token: bit i is set if token i is allowed
    free_bits: NDArray[np.int32]  # mask while the output is free: all but end tokens, since the grammar must follow
    after: frozenset[int]  # like Grammar.after; empty once one of these tokens has been output
    opens: frozenset[int] = frozenset()  # like Grammar.opens; empty after the first token
    tokens: list[int] = field(default_factory=list)  # of the output, from where the grammar begins
    num_read: int = 0  # of `tokens`, by the matcher
    failure: str = ""  # why no token can follow

    @property
    def binds(self) -> bool:
        """False while the output is still free."""
        return not self.after or bool(self.opens)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; call it after `wait`."""
        return not self.failure and bool(self.bits.view(np.uint32)[token // 32] >> np.uint32(token % 32) & 1)

    def append(self, token: int) -> None:
        """Record the row's next output token."""
        if self.opens:
            begins, self.opens = token in self.opens, frozenset()
            if begins:
                self.bits = self.free_bits
                return
            self.after = frozenset()
        if not self.binds:
            if token in self.after:
                self.after = frozenset()
        elif not self.failure:
            self.tokens.append(token)

    def read(self) -> None:
        """Advance the matcher by the tokens that it has not read; a token that cannot follow leaves it in error."""
        for token in self.tokens[self.num_read :]:
            self.matcher.consume_token(token)
        self.num_read = len(self.tokens)


class Grammars:
    """Compiles grammars for one model and computes masks, those of a large vocabulary during the forward pass.

    Exists on the sampling rank only.
    """

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: Sequence[int], cpus: Collection[int] = ()):
        """Reads tokenizer.json, which takes seconds for a vocabulary of 128k tokens. Raises ConfigError.

        `cpus`: the CPUs for its threads, which would otherwise inherit the single CPU of the pinned caller.
        """
        import llguidance.numpy  # imported here: a worker without a tokenizer does not need it

        self._library = llguidance
        try:
            self._tokenizer = tokenizer_for_grammars(tokenizer_file, vocab_size, eos_token_ids)
        except ValueError as error:
            raise ConfigError(f"structured outputs cannot read {tokenizer_file}: {error}") from None
        self._words = -(-vocab_size // 32)
        free = np.full(self._words, 0xFFFFFFFF, np.uint32)
        for token in eos_token_ids:
            free[token // 32] &= ~np.uint32(1 << token % 32)
        self._free_bits = free.view(np.int32)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammar", _run_on, (cpus,))
        self._is_threaded = vocab_size >= THREADED_VOCAB
        num_threads = min(MAX_THREADS, max(1, len(cpus)))
        self._executor = self._thread.submit(llguidance.LLExecutor, num_threads).result()
        self._running: Future[None] | None = None

    def prepare(self, grammar: Grammar, output: Sequence[int]) -> RowGrammar:
        """The matcher of a row whose output so far is `output`."""
        self.wait()
        origin, matcher = self._matcher(grammar.source)
        opens = frozenset(grammar.opens) if grammar.after else frozenset()
        free = self._free_bits
        row = RowGrammar(grammar.source, matcher, origin, free, free, frozenset(grammar.after), opens)
        for number, token in enumerate(output, 1):
            row.append(token)
            if number % MASK_EVERY == 0 and row.binds:
                row.read()
                row.matcher.compute_bitmask()
        return row

    def start(self, rows: Sequence[RowGrammar]) -> None:
        """Compute the masks of `rows`, in a thread unless the vocabulary is small."""
        self.wait()
        if not (bound := [row for row in rows if not row.failure and row.binds]):
            return
        if self._is_threaded:
            self._running = self._thread.submit(self._fill, bound)
        else:
            self._fill(bound)

    def wait(self) -> None:
        """Wait for the masks started last."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def _fill(self, rows: list[RowGrammar]) -> None:
        masks = np.zeros((len(rows), self._words), np.int32)
        self._compute(rows, masks)
        for row, bits in zip(rows, masks, strict=True):
            row.bits = bits
            if row.matcher.is_error():
                self._on_error(row)
            for token in row.opens:
                bits.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def _compute(self, rows: list[RowGrammar], masks: NDArray[np.int32]) -> None:
        """The mask of each row into its place in `masks`."""
        if self._is_threaded:
            for row in rows:
                row.read()
            places = [(row.matcher, i) for i, row in enumerate(rows)]
            self._library.numpy.fill_next_token_bitmask_par(self._executor, places, masks)
            return
        address, nbytes = masks.ctypes.data, masks.strides[0]
        for i, row in enumerate(rows):  # one by one: the memory that a matcher has just read is still in the cache
            row.read()
            row.matcher.unsafe_compute_mask_ptr(address + i * nbytes, nbytes)

    def _on_error(self, row: RowGrammar) -> None:
        """Retry a row whose matcher failed while it was shared; any other row has failed."""
        if row.origin is not None and _reason(row.matcher) != NO_OUTPUT:
            self._unshare(row)
            self._library.numpy.fill_next_token_bitmask(row.matcher, row.bits[None])
        if row.matcher.is_error() and not row.failure:
            row.failure = _reason(row.matcher)

    def _unshare(self, row: RowGrammar) -> None:
        """Give the row a matcher that it does not share, and let later rows copy a new one."""
        if self._compiled.get(row.source) is row.origin:
            del self._compiled[row.source]
        row.matcher, row.origin = self._library.LLMatcher(self._tokenizer, row.source, log_level=0), None
        for token in row.tokens:
            row.matcher.compute_bitmask()
            if not row.matcher.consume_token(token):
                row.failure = _reason(row.matcher)
                return

    def _matcher(self, source: str) -> "tuple[LLMatcher, LLMatcher]":
        """(a matcher of the grammar, a copy at its start). Compiling takes milliseconds, copying microseconds."""
        compiled = self._compiled.pop(source, None) or self._library.LLMatcher(self._tokenizer, source, log_level=0)
        self._compiled[source] = compiled
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return compiled, compiled.deep_copy()


def _run_on(cpus: Collection[int]) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)


def _reason(matcher: "LLMatcher") -> str:
    """The first line of llguidance's error; the rest describes its internal state."""
    reason = matcher.get_error().strip().split("\n")[0][:MAX_REASON_CHARS]
    return NO_OUTPUT if reason.startswith("NoExtension") else reason
