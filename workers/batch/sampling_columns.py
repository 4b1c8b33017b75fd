"""The sampling parameters of all rows as columns, which a step reads for many rows at once.

The mask of a row's next token is a column, too: a grammar writes into it in each step, a list of allowed tokens once.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

from .grammars import Grammars, RowGrammar
from .penalties import Penalties
from .philox import uniforms
from .reasoning import Reasoning
from .repetitions import Repetitions
from .token_constraints import MAX_REASON_CHARS, Constraints, Failure, mask_of_allowed

NO_LOGPROBS = -2
NO_EXCLUSION = 2.0  # a threshold that no probability reaches
GRAMMAR = "structured_outputs"  # the parameter from which a grammar comes
_EXCLUSIONS = 1  # the stream of random numbers of XTC
_BLOCK = 64  # random numbers computed at once for a row: Philox costs the same for one position as for 64


class SamplingColumns:
    """Columns with one entry per row. Rare parameters are prepared objects, None in rows without them."""

    def __init__(self, num_rows: int, vocab_size: int, grammars: Grammars | None = None):
        self.vocab_size = vocab_size
        self._grammars = grammars
        self.temperature = np.ones(num_rows, np.float32)
        self.greedy = np.ones(num_rows, np.bool_)
        self.log_min_p = np.full(num_rows, -np.inf, np.float32)  # -inf: off
        self.top_k = np.zeros(num_rows, np.int64)  # 0: off
        self.top_p = np.ones(num_rows, np.float64)
        self.xtc_probability = np.zeros(num_rows, np.float64)  # 0: off
        self.xtc_threshold = np.full(num_rows, NO_EXCLUSION, np.float64)
        self.seed = np.zeros(num_rows, np.int64)
        self.logprobs = np.full(num_rows, NO_LOGPROBS, np.int64)
        self.logprob_tokens: list[NDArray[np.int64] | None] = [None] * num_rows  # the named tokens, instead of the best
        self.custom: list[tuple[LogitsProcessorParams, ...]] = [()] * num_rows  # logits processors of plugins
        self.is_custom = np.zeros(num_rows, np.bool_)  # has any
        self.adjusted = np.zeros(num_rows, np.bool_)  # has any of the parameters below
        self.has_rules = np.zeros(num_rows, np.bool_)  # changes the logits by more than a mask
        self.has_no_rules = np.ones(num_rows, np.bool_)  # a token depends on its logits, position and seed alone
        self.masks = np.zeros((num_rows, -(-vocab_size // 32)), np.int32)  # word i / 32, bit i % 32: allows token i
        self.is_masked = np.zeros(num_rows, np.bool_)
        self.allowed: list[NDArray[np.int32] | None] = [None] * num_rows  # the masks of allowed_token_ids
        self.penalties: list[Penalties | None] = [None] * num_rows
        self.repetitions: list[Repetitions | None] = [None] * num_rows
        self.constraints: list[Constraints | None] = [None] * num_rows
        self.grammars: list[RowGrammar | None] = [None] * num_rows
        self.reasonings: list[Reasoning | None] = [None] * num_rows  # of rows with a thinking budget
        self._has_budget = np.zeros(num_rows, np.bool_)
        self._readers: list[tuple[Callable[[int], None], ...]] = [()] * num_rows  # of the tokens of the row's output
        self._is_read = np.zeros(num_rows, np.bool_)  # has readers
        self._random = np.zeros((num_rows, _BLOCK), np.float64)
        self._random_block = np.full(num_rows, -1, np.int64)  # position // _BLOCK of the numbers in `_random`

    def reset(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        token_ids: NDArray[np.int32],
        prompt_len: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        """Set every column of `row` for a request with these tokens, prompt then output."""
        self.greedy[row] = params.greedy
        self.temperature[row] = 1.0 if params.greedy else params.temperature
        self.log_min_p[row] = math.log(params.min_p) if params.min_p > 0 else -np.inf
        self.top_k[row] = params.top_k if 0 < params.top_k < self.vocab_size else 0
        self.top_p[row] = params.top_p
        self.xtc_probability[row], self.xtc_threshold[row] = 0.0, NO_EXCLUSION
        if (xtc := params.xtc) is not None:
            self.xtc_probability[row], self.xtc_threshold[row] = xtc.probability, xtc.threshold
        self.seed[row] = seed
        self.logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        self.logprob_tokens[row] = None
        if params.logprob_token_ids:
            self.logprobs[row], self.logprob_tokens[row] = 0, np.array(params.logprob_token_ids, np.int64)
        self.custom[row], self.is_custom[row] = params.logits_processors, bool(params.logits_processors)
        self.penalties[row] = Penalties.prepare(params, token_ids, prompt_len, self.vocab_size)
        self.repetitions[row] = Repetitions.prepare(params.dry, self.vocab_size)
        self.constraints[row] = Constraints.prepare(params, eos_token_ids)
        rules = (self.penalties, self.repetitions, self.constraints)
        self.has_rules[row] = any(each[row] is not None for each in rules)
        self._reset_mask(row, params, token_ids[prompt_len:].tolist())
        readers = self.penalties[row], self.reasonings[row]
        self._readers[row] = tuple(each.append for each in readers if each is not None)
        self._is_read[row] = bool(self._readers[row])
        self.adjusted[row] = self.has_rules[row] or self.is_masked[row] or self._has_budget[row]
        # By the parameters: grammars exist on rank 0 only, and all ranks must agree.
        self.has_no_rules[row] = not (self.adjusted[row] or self.is_custom[row] or params.grammar is not None)
        self._random_block[row] = -1

    def _reset_mask(self, row: int, params: SamplingParams, output: list[int]) -> None:
        """Set what the row's mask depends on."""
        if self._grammars is not None:
            self._grammars.settle()  # it may still write the mask of the row's last request
        self.reasonings[row] = reasoning = Reasoning.prepare(params.thinking, self.vocab_size, output)
        self._has_budget[row] = reasoning is not None
        self.grammars[row], self.allowed[row] = None, mask_of_allowed(params, self.vocab_size)
        if params.grammar is not None and self._grammars is not None:
            # A forced token replaces a mask for a step, so a row with a budget keeps its grammar's mask elsewhere.
            bits = self.masks[row] if reasoning is None else None
            self.grammars[row] = self._grammars.prepare(params.grammar, output, bits)
        elif (allowed := self.allowed[row]) is not None:
            self.masks[row] = allowed
        self.is_masked[row] = self.grammars[row] is not None or self.allowed[row] is not None

    def append(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Count one output token of each of these distinct rows."""
        is_read = self._is_read[rows]
        if is_read.any():
            for row, token in zip(rows[is_read].tolist(), token_ids[is_read].tolist(), strict=True):
                for read in self._readers[row]:
                    read(token)
        if self._grammars is not None and self.is_masked[rows].any():
            each = zip(map(self.grammars.__getitem__, rows.tolist()), token_ids.tolist(), strict=True)
            self._grammars.append((grammar, token) for grammar, token in each if grammar is not None)

    def is_forced(self, row: int) -> bool:
        """Whether the row's next token must end its reasoning, which overrides all other rules of the request."""
        reasoning, grammar = self.reasonings[row], self.grammars[row]
        if reasoning is None or (token := reasoning.forced) is None:
            return False
        return grammar is None or grammar.allows(token)

    def start_masks(self, rows: NDArray[np.int64]) -> None:
        """Start computing the grammar masks of `rows`, whose tokens must be known."""
        if self._grammars is not None and self.is_masked[rows].any():
            self._grammars.start([grammar for row in rows.tolist() if (grammar := self.grammars[row]) is not None])

    def await_masks(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Wait for the masks of `rows`. Returns each one's place in `masks`, or -1: it has none; both [n]."""
        if self._grammars is not None:
            self._grammars.wait()
        for row in rows[self._has_budget[rows]].tolist():
            self._choose_mask(row)
        return np.where(self.is_masked[rows], rows, -1)

    def _choose_mask(self, row: int) -> None:
        """Set the mask of a row with a budget: the forced token's, or the one without a budget."""
        reasoning, grammar, bits = self.reasonings[row], self.grammars[row], self.allowed[row]
        if reasoning is not None and self.is_forced(row):
            bits = reasoning.forced_bits()
        elif grammar is not None:
            bits = grammar.bits
        self.is_masked[row] = bits is not None
        if bits is not None:
            self.masks[row] = bits

    def grammar_failures(self, rows: NDArray[np.int64], indices: NDArray[np.int64]) -> dict[int, Failure]:
        """By index, why no token can follow, for those of `rows` at `indices` whose grammars have failed."""
        grammars = {
            index: self.grammars[row] for index, row in zip(indices.tolist(), rows[indices].tolist(), strict=True)
        }
        failed = {index: one.failure for index, one in grammars.items() if one is not None and one.failure}
        return {index: Failure(reason[:MAX_REASON_CHARS], GRAMMAR) for index, reason in failed.items()}

    def rule_failures(self, rows: NDArray[np.int64], indices: NDArray[np.int64]) -> dict[int, Failure]:
        """By index, the failure of those of `rows` at `indices` that have constraints, should these leave no token."""
        constraints = {
            index: self.constraints[row] for index, row in zip(indices.tolist(), rows[indices].tolist(), strict=True)
        }
        return {index: one.failure for index, one in constraints.items() if one is not None}

    def random(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The uniform number of each row's output position; both [n]."""
        blocks = positions // _BLOCK
        stale = rows[self._random_block[rows] != blocks]
        if len(stale):
            self._fill(stale, blocks[self._random_block[rows] != blocks])
        numbers: NDArray[np.float64] = self._random[rows, positions % _BLOCK]
        elsewhere = np.flatnonzero(self._random_block[rows] != blocks)
        if len(elsewhere):  # a row occurs with positions of two blocks
            numbers[elsewhere] = uniforms(self.seed[rows[elsewhere]], positions[elsewhere])
        return numbers

    def exclusions(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The probability from which XTC excludes tokens in this step; above 1: it excludes none. All [n]."""
        probability = self.xtc_probability[rows]
        thresholds = np.full(len(rows), NO_EXCLUSION)
        asked = np.flatnonzero(probability > 0.0)
        if len(asked):
            happens = uniforms(self.seed[rows[asked]], positions[asked], _EXCLUSIONS) < probability[asked]
            thresholds[asked[happens]] = self.xtc_threshold[rows[asked[happens]]]
        return thresholds

    def _fill(self, rows: NDArray[np.int64], blocks: NDArray[np.int64]) -> None:
        positions = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        seeds = np.repeat(self.seed[rows], _BLOCK)
        self._random[rows] = uniforms(seeds, positions.reshape(-1)).reshape(-1, _BLOCK)
        self._random_block[rows] = blocks
