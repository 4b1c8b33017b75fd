"""The sampling parameters of all rows as columns, which a step reads for many rows at once."""

import math

import numpy as np
from numpy.typing import NDArray

from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

from .grammars import Grammars, RowGrammar
from .penalties import Penalties
from .philox import uniforms
from .reasoning import Reasoning
from .repetitions import Repetitions
from .token_constraints import Constraints

NO_LOGPROBS = -2
NO_EXCLUSION = 2.0  # a threshold that no probability reaches
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
        self.penalties: list[Penalties | None] = [None] * num_rows
        self.repetitions: list[Repetitions | None] = [None] * num_rows
        self.constraints: list[Constraints | None] = [None] * num_rows
        self.grammars: list[RowGrammar | None] = [None] * num_rows
        self.reasonings: list[Reasoning | None] = [None] * num_rows  # of rows with a thinking budget
        self._readers: list[tuple[Penalties | RowGrammar | Reasoning, ...]] = [()] * num_rows  # of the row's output
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
        self.constraints[row] = Constraints.prepare(params, eos_token_ids, self.vocab_size)
        output = token_ids[prompt_len:].tolist()
        self.reasonings[row] = Reasoning.prepare(params.thinking, self.vocab_size, output)
        self.grammars[row] = None
        if params.grammar is not None and self._grammars is not None:
            self.grammars[row] = self._grammars.prepare(params.grammar, output)
        readers = self.penalties[row], self.grammars[row], self.reasonings[row]
        self._readers[row] = tuple(each for each in readers if each is not None)
        rules = (self.penalties, self.repetitions, self.constraints)
        self.has_rules[row] = any(each[row] is not None for each in rules)
        self.adjusted[row] = self.has_rules[row] or self.grammars[row] is not None or self.reasonings[row] is not None
        self._random_block[row] = -1

    def append(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Count one output token of each of these distinct rows."""
        adjusted = self.adjusted[rows]
        if adjusted.any():
            for row, token in zip(rows[adjusted].tolist(), token_ids[adjusted].tolist(), strict=True):
                for reader in self._readers[row]:
                    reader.append(token)

    def is_forced(self, row: int) -> bool:
        """Whether the row's next token must end its reasoning, which overrides all other rules of the request."""
        reasoning, grammar = self.reasonings[row], self.grammars[row]
        if reasoning is None or (token := reasoning.forced) is None:
            return False
        return grammar is None or grammar.allows(token)

    def allowed(self, row: int) -> NDArray[np.int32] | None:
        """The mask of the next token, valid after `await_masks`; None: the row has no mask."""
        grammar, constraints, reasoning = self.grammars[row], self.constraints[row], self.reasonings[row]
        if reasoning is not None and self.is_forced(row):
            return reasoning.forced_bits()
        if grammar is not None:
            return grammar.bits
        return None if constraints is None else constraints.allowed

    def start_masks(self, rows: NDArray[np.int64]) -> None:
        """Start computing the grammar masks of `rows`, whose tokens must be known."""
        if self._grammars is not None and self.adjusted[rows].any():
            self._grammars.start([grammar for row in rows.tolist() if (grammar := self.grammars[row]) is not None])

    def await_masks(self) -> None:
        """Wait for the masks."""
        if self._grammars is not None:
            self._grammars.wait()

    def random(self, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """The uniform number of each row's output position; both [n]."""
        blocks = positions // _BLOCK
        stale = rows[self._random_block[rows] != blocks]
        if len(stale):
            self._fill(stale, blocks[self._random_block[rows] != blocks])
        return self._random[rows, positions % _BLOCK]

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
