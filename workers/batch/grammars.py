"""Which tokens a grammar allows next: a matcher a row, advanced by the row's own output (llguidance: an Earley parser
over lexemes that are derivatives of regular expressions).

A mask depends on the grammar and the output alone, so a row that returns with its output after preemption or a restart
has the masks that it would have had.
"""

import os
from collections import OrderedDict
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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
MAX_COMPILED = 64  # grammars, which later rows begin with a copy of
MAX_REASON_CHARS = 256
NO_OUTPUT = "no output satisfies the grammar"


@dataclass(slots=True)
class RowGrammar:
    """One row's matcher."""

    matcher: "LLMatcher"
    bits: NDArray[np.int32]  # [words] of the next token: bit i is set if token i is allowed
    free_bits: NDArray[
        np.int32
    ]  # the same while the output is free: all but its end, since the grammar's part must come
    after: frozenset[int]  # as Grammar.after; empty once one of them has come
    opens: frozenset[int] = frozenset()  # as Grammar.opens; empty behind the first token
    failure: str = ""  # why no token can follow

    @property
    def binds(self) -> bool:
        """False while the output is still free."""
        return not self.after or bool(self.opens)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next, once masks are there."""
        return not self.failure and bool(self.bits.view(np.uint32)[token // 32] >> np.uint32(token % 32) & 1)

    def append(self, token: int) -> None:
        """Take the row's next output token."""
        if self.opens:
            begins, self.opens = token in self.opens, frozenset()
            if begins:
                self.bits = self.free_bits
                return
            self.after = frozenset()
        if not self.binds:
            if token in self.after:
                self.after = frozenset()
        elif not self.failure and not self.matcher.consume_token(token):
            self.failure = _reason(self.matcher)


class Grammars:
    """Compiles for one model, and computes the masks of a step's rows beside its forward pass; on the sampling rank."""

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: Sequence[int], cpus: Collection[int] = ()):
        """Reads tokenizer.json, which takes seconds for a vocabulary of 128k tokens. Raises ConfigError.

        `cpus`: where its threads may run; they would inherit the caller's, which is pinned to one.
        """
        import llguidance.numpy  # here: a worker without a tokenizer does without

        self._library = llguidance
        try:
            text = tokenizer_for_grammars(tokenizer_file)
            self._tokenizer = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos_token_ids))
        except ValueError as error:
            raise ConfigError(f"structured outputs cannot read {tokenizer_file}: {error}") from None
        self._words = -(-vocab_size // 32)
        free = np.full(self._words, 0xFFFFFFFF, np.uint32)
        for token in eos_token_ids:
            free[token // 32] &= ~np.uint32(1 << token % 32)
        self._free_bits = free.view(np.int32)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammar", _run_on, (cpus,))
        num_threads = min(MAX_THREADS, max(1, len(cpus)))
        self._executor = self._thread.submit(llguidance.LLExecutor, num_threads).result()
        self._running: Future[None] | None = None

    def prepare(self, grammar: Grammar, output: Sequence[int]) -> RowGrammar:
        """For a row whose output so far is `output`."""
        self.wait()
        matcher = self._matcher(grammar.source)
        opens = frozenset(grammar.opens) if grammar.after else frozenset()
        row = RowGrammar(matcher, self._free_bits, self._free_bits, frozenset(grammar.after), opens)
        if matcher.is_error():
            row.failure = _reason(matcher)
        for token in output:
            row.append(token)
        return row

    def start(self, rows: Sequence[RowGrammar]) -> None:
        """Compute the masks of `rows` in a thread."""
        self.wait()
        if bound := [row for row in rows if row.binds and not row.failure]:
            self._running = self._thread.submit(self._fill, bound)

    def wait(self) -> None:
        """Until the masks that were started are there."""
        if self._running is not None:
            self._running.result()
            self._running = None

    def _fill(self, rows: list[RowGrammar]) -> None:
        masks = np.zeros((len(rows), self._words), np.int32)
        self._library.numpy.fill_next_token_bitmask_par(
            self._executor, [(row.matcher, i) for i, row in enumerate(rows)], masks
        )
        for row, bits in zip(rows, masks, strict=True):
            for token in row.opens:
                bits.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
            row.bits = bits
            if row.matcher.is_error():
                row.failure = _reason(row.matcher)

    def _matcher(self, source: str) -> "LLMatcher":
        """A matcher at its start; a grammar's first one takes milliseconds, a copy microseconds."""
        compiled = self._compiled.pop(source, None) or self._library.LLMatcher(self._tokenizer, source, log_level=0)
        self._compiled[source] = compiled
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return compiled.deep_copy()


def _run_on(cpus: Collection[int]) -> None:
    if cpus:
        os.sched_setaffinity(0, cpus)


def _reason(matcher: "LLMatcher") -> str:
    """In a line; the rest of what llguidance writes describes its own state."""
    reason = matcher.get_error().strip().split("\n")[0][:MAX_REASON_CHARS]
    return NO_OUTPUT if reason.startswith("NoExtension") else reason
