"""Computes the tokens that a grammar allows next, by one matcher per row, advanced by the row's output (llguidance: an
Earley parser over lexemes that are derivatives of regular expressions).

The thread that runs the model does little here: a step's masks are computed in other threads during the forward pass.

A mask depends only on the grammar and the output, so a row restored with its output after preemption or a restart has
the same masks.

Copies of a matcher share the states of its expressions and llguidance's limits on them (LLParserLimits): the states of
one row may exhaust the limits of all. A row that fails while it shares a matcher is therefore retried with a matcher
that it does not share, which reads the output again mask by mask; only a row that fails then has failed.
"""

import contextlib
import math
import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.errors import ConfigError
from paged_serve.protocol.messages.structured_outputs import Grammar

from .grammar_tokenizer import tokenizer_for_grammars
from .token_constraints import MAX_REASON_CHARS

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_THREADS = 4
MAX_COMPILED = 64  # compiled grammars kept; later rows copy them
MASK_EVERY = 16  # tokens of an output read again: computing a mask renews the limit of a step
THREADED_BITS = 1 << 13  # masks of fewer bits in all cost less than waking a thread for them
MANY_BITS = 1 << 17  # masks of more bits cost more than waiting for a thread that is late
STEPS_WITHOUT_THREAD = 64  # after the thread was late, as it is on a busy machine
NO_OUTPUT = "no output satisfies the grammar"


@dataclass(slots=True)
class RowGrammar:
    """One row's matcher."""

    source: str
    matcher: "LLMatcher"
    origin: "LLMatcher | None"  # the matcher that `matcher` is a copy of; None: not shared
    bits: NDArray[np.int32]  # [words] mask of the next token: bit i is set if token i is allowed; no bit if it failed
    free_bits: NDArray[np.int32]  # mask while the output is free: all but end tokens, since the grammar must follow
    after: frozenset[int]  # like Grammar.after; empty once one of these tokens has been output
    opens: frozenset[int]  # like Grammar.opens; empty after the first token
    binds: bool = True  # false while the output is free
    address: int = 0  # of `bits`
    tokens: list[int] = field(default_factory=list)  # of the output, from where the grammar begins
    num_read: int = 0  # of `tokens`, by the matcher
    failure: str = ""  # why no token can follow

    def __post_init__(self) -> None:
        self.address = self.bits.ctypes.data
        if self.after and not self.opens:
            self._set_free()

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; call it after `wait`."""
        return bool(self.bits.view(np.uint32)[token // 32] >> np.uint32(token % 32) & 1)

    def allow_opening(self) -> None:
        """Allow, besides the grammar's first tokens, those with which free text begins."""
        for token in self.opens:
            self.bits.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def append(self, token: int) -> None:
        """Record the row's next output token."""
        if self.opens:
            opens, self.opens = self.opens, frozenset()
            if token in opens:
                self._set_free()
                return
        if self.binds:
            self.tokens.append(token)
        elif token in self.after:
            self.binds = True

    def _set_free(self) -> None:
        self.binds = False
        self.bits[:] = self.free_bits

    def read(self) -> None:
        """Advance the matcher by the tokens that it has not read; a token that cannot follow leaves it in error."""
        for token in self.tokens[self.num_read :]:
            self.matcher.consume_token(token)
        self.num_read = len(self.tokens)


NewTokens = Sequence[tuple[RowGrammar, int]]
NOTHING: tuple[Sequence[RowGrammar], NewTokens] = (), ()


class Grammars:
    """Compiles grammars for one model and computes masks.

    Exists on the sampling rank only.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        cpus: Collection[int] = (),
        num_unused: int = 0,
    ):
        """Reads tokenizer.json, which takes seconds for a vocabulary of 128k tokens. Raises ConfigError.

        `cpus`: the CPUs for its threads, which would otherwise inherit the single CPU of the pinned caller.
        `num_unused`: further tokens that the tokenizer may have and the model does not write.
        """
        import llguidance.numpy  # imported here: a worker without a tokenizer does not need it

        self._library = llguidance
        try:
            self._tokenizer = tokenizer_for_grammars(tokenizer_file, vocab_size, eos_token_ids, num_unused)
        except ValueError as error:
            raise ConfigError(f"structured outputs cannot read {tokenizer_file}: {error}") from None
        self.end_token_ids = tuple(eos_token_ids) or (self._tokenizer.eos_token,)  # after a complete output
        self._words = -(-vocab_size // 32)
        free = np.full(self._words, 0xFFFFFFFF, np.uint32)
        for token in self.end_token_ids:
            free[token // 32] &= ~np.uint32(1 << token % 32)
        self._free_bits = free.view(np.int32)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "grammar", _run_on, (cpus,))
        # A thread without a CPU of its own is of no use.
        self._threaded_rows = math.inf if len(cpus) == 1 else THREADED_BITS / vocab_size
        self._many_rows = max(self._threaded_rows, MANY_BITS / vocab_size)
        self._steps_without_thread = 0  # that are left
        num_threads = min(MAX_THREADS, max(1, len(cpus)))
        self._executor = self._thread.submit(llguidance.LLExecutor, num_threads).result()
        self._new_tokens: list[tuple[RowGrammar, int]] = []
        self._started = NOTHING  # rows whose masks are computed, or will be in `wait`, and new tokens
        self._running: Future[list[RowGrammar]] | None = None

    def prepare(self, grammar: Grammar, output: Sequence[int], bits: NDArray[np.int32] | None = None) -> RowGrammar:
        """The matcher of a row whose output so far is `output`. Its masks are written to `bits`, if given."""
        self.wait()
        bits = np.zeros(self._words, np.int32) if bits is None else bits
        origin, matcher = self._matcher(grammar.source)
        after = frozenset(grammar.after)
        opens = frozenset(grammar.opens) if after else after
        row = RowGrammar(grammar.source, matcher, origin, bits, self._free_bits, after, opens)
        for number, token in enumerate(output, 1):
            row.append(token)
            if number % MASK_EVERY == 0 and row.binds:
                row.read()
                row.matcher.compute_bitmask()
        row.read()
        return row

    def forced(self, row: RowGrammar) -> list[int]:
        """The tokens that spell all text without an alternative from here on. Masks may allow other tokens for it."""
        self.settle()
        row.read()
        if not row.binds or row.opens or row.failure or row.matcher.is_error() or row.matcher.is_stopped():
            return []
        copy = row.matcher.deep_copy()  # so that an error does not end the row
        tokens: list[int] = copy.compute_ff_tokens()
        return tokens

    def append(self, tokens: Iterable[tuple[RowGrammar, int]]) -> None:
        """Record the next output tokens of rows, which the next `start` takes into account."""
        self._new_tokens.extend(tokens)

    def settle(self) -> None:
        """Finish everything begun: after it, no mask changes before the next `start`."""
        self.wait()
        for row, token in self._new_tokens:
            row.append(token)
        self._new_tokens = []

    def start(self, rows: Sequence[RowGrammar]) -> None:
        """Compute the masks of `rows` until `wait` returns, in a thread unless they are few or it was late."""
        self.wait()
        self._started, self._new_tokens = (rows, self._new_tokens), []
        if self._steps_without_thread and len(rows) < self._many_rows:
            self._steps_without_thread -= 1
        elif len(rows) >= self._threaded_rows:
            self._running = self._thread.submit(self._fill_in_parallel, *self._started)

    def wait(self) -> None:
        """Wait for the masks started last. If the thread has not begun them, they are computed here."""
        if self._running is not None and not self._running.done():
            self._steps_without_thread = STEPS_WITHOUT_THREAD
        if self._running is not None and not self._running.cancel():
            unusual = self._running.result()
        else:
            unusual = self._fill(*self._started)
        self._started, self._running = NOTHING, None
        for row in unusual:
            if row.matcher.is_error():
                self._on_error(row)
            if not row.failure:
                row.allow_opening()

    def _fill(self, rows: Sequence[RowGrammar], new_tokens: NewTokens) -> list[RowGrammar]:
        """Compute the masks of `rows`. Returns the rows that failed, or that may begin with free text."""
        bound, num_bytes = _bound(rows, new_tokens), 4 * self._words
        for row in bound:  # one by one: the memory that a matcher has just read is still in the cache
            row.read()
            row.matcher.unsafe_compute_mask_ptr(row.address, num_bytes)
        return _unusual(bound)

    def _fill_in_parallel(self, rows: Sequence[RowGrammar], new_tokens: NewTokens) -> list[RowGrammar]:
        """Do as `_fill` in the library's threads, which do not need Python's lock."""
        if not (bound := _bound(rows, new_tokens)):
            return []
        if unread := [row for row in bound if row.num_read < len(row.tokens)]:
            self._library.numpy.consume_token_par(self._executor, [(row.matcher, row.tokens[-1]) for row in unread])
        for row in unread:
            row.num_read += 1
            assert row.num_read == len(row.tokens), "a row has several new tokens"
        masks = np.empty((len(bound), self._words), np.int32)
        places = [(row.matcher, i) for i, row in enumerate(bound)]
        self._library.numpy.fill_next_token_bitmask_par(self._executor, places, masks)
        for row, mask in zip(bound, masks, strict=True):
            row.bits[:] = mask
        return _unusual(bound)

    def _on_error(self, row: RowGrammar) -> None:
        """Retry a row whose matcher failed while it was shared; any other row has failed."""
        if row.origin is not None and _reason(row.matcher) != NO_OUTPUT:
            self._unshare(row)
            self._library.numpy.fill_next_token_bitmask(row.matcher, row.bits[None])
        if row.matcher.is_error() and not row.failure:
            row.failure = _reason(row.matcher)
        if row.failure:
            row.bits[:] = 0

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


def _bound(rows: Sequence[RowGrammar], new_tokens: NewTokens) -> list[RowGrammar]:
    """Those of `rows` that their grammars bind after the new tokens."""
    for row, token in new_tokens:
        row.append(token)
    return [row for row in rows if row.binds and not row.failure]


def _unusual(rows: Sequence[RowGrammar]) -> list[RowGrammar]:
    return [row for row in rows if row.opens or row.matcher.is_error()]


def _run_on(cpus: Collection[int]) -> None:
    """Let the calling thread run on any of `cpus`; where that is refused it stays on the one of its parent."""
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)


def _reason(matcher: "LLMatcher") -> str:
    """The first line of llguidance's error; the rest describes its internal state."""
    reason = matcher.get_error().strip().split("\n")[0][:MAX_REASON_CHARS]
    return NO_OUTPUT if reason.startswith("NoExtension") else reason
