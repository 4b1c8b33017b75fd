"""Random requests with every sampling parameter, played plainly and with drafts of any quality."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from paged_serve.protocol.messages.config import SchedulerConfig
from paged_serve.protocol.messages.logits_processors import LogitsProcessorParams
from paged_serve.protocol.messages.structured_outputs import Grammar
from paged_serve.workers.batch.grammars import Grammars
from paged_serve.workers.distributed.tensor_parallel import TensorParallelGroup
from paged_serve.workers.kv.cache_layout import CacheLayout
from paged_serve.workers.kv.kv_cache import KVCache
from paged_serve.workers.layers.model import Model
from paged_serve.workers.process.rank import DEMO_MODEL
from paged_serve.workers.runner.host_runner import host_runner
from paged_serve.workers.runner.model_runner import ModelRunner
from paged_serve.workers.speculation.drafter import Drafter, DraftRequest

from ..invariance.planner import Odds, Planner, Request, Result
from ..invariance.workloads.random_workload import draw_params
from ..ranks import SharedModel

NUM_ROWS, BLOCK_SIZE, MAX_LEN, NUM_BLOCKS = 6, 16, 256, 400
TOKENIZER = DEMO_MODEL / "tokenizer.json"
TOKENS_OF_GRAMMARS = 1024  # of the demo model, in whose vocabulary grammars are
EOS = 2
PLAIN = Odds(admit=1, chunk=1, whole_chunk=1, preempt=0, pause=0, share=0)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
SOURCES = (
    json.dumps({"grammars": [{"json_schema": SCHEMA}]}),
    '{"grammars": [{"lark_grammar": "start: /[a-f]{1,3}/ \\" and then there are \\" /[0-9]{2}/"}]}',
    '{"grammars": [{"lark_grammar": "start: \\"always the same answer\\""}]}',
)


class Favour:
    """A logits processor that reads the tokens: the longer the output, the more it favours one token."""

    def __init__(self, vocab_size: int, token: int):
        self._token = token

    def apply(self, logits: NDArray[np.float32], token_ids: NDArray[np.int32], prompt_len: int) -> None:
        logits[self._token] += 0.3 * (len(token_ids) - prompt_len) + 0.01 * int(token_ids[-1])


class KnownDrafter:
    """Drafts the right tokens with a given probability each, and otherwise random ones, for the rows of a planner."""

    def __init__(self, seed: int, right: float, vocab_size: int):
        self._rng = random.Random(seed)
        self._right = right
        self._vocab_size = vocab_size
        self.planner: Planner | None = None
        self.expected: dict[int, list[int]] = {}  # by id of request

    def draft(self, requests: Sequence[DraftRequest]) -> list[NDArray[np.int32]]:
        assert self.planner is not None
        by_row = {one.row: one.request for one in self.planner.running}
        return [self._drafts(by_row[request.row], request) for request in requests]

    def _drafts(self, of: Request, request: DraftRequest) -> NDArray[np.int32]:
        first = len(request.tokens) - len(of.prompt)
        right = self.expected.get(id(of), [])[first:]
        count = self._rng.randint(0, request.most) if self._rng.random() < 0.3 else request.most
        drafts = [
            right[i] if i < len(right) and self._rng.random() < self._right else self._rng.randrange(self._vocab_size)
            for i in range(count)
        ]
        return np.array(drafts, np.int32)


@dataclass
class Bench:
    """A model, and what a runner needs besides it."""

    model: Model | SharedModel
    grammars: Grammars | None = None
    cache_dtype: torch.dtype | None = None
    new_runner: Callable[..., ModelRunner] = host_runner

    def planner(self, seed: int, drafter: Drafter | None = None, max_len: int = MAX_LEN) -> Planner:
        layout = CacheLayout.of(self.model.geometry, max_len, BLOCK_SIZE, self.model.tp_size, self.cache_dtype)

        def make(model: Model, group: TensorParallelGroup) -> ModelRunner:
            shape = model.geometry, NUM_BLOCKS, layout.block_size, group.size
            cache = KVCache.allocate(*shape, dtype=self.cache_dtype, groups=layout.groups)
            for tensor in cache.states:
                tensor.fill_(255)
            for tensor in (*cache.keys, *cache.values):
                tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
            scheduler = SchedulerConfig(max_num_seqs=NUM_ROWS, max_num_batched_tokens=2048)
            grammars = self.grammars if group.rank == 0 else None
            return self.new_runner(model, cache, group, scheduler, max_len, grammars, {"favour": Favour}, drafter)

        is_shared = isinstance(self.model, SharedModel)
        runner = self.model.runner(make) if is_shared else make(self.model, TensorParallelGroup())
        sizes = {"num_rows": NUM_ROWS, "num_blocks": NUM_BLOCKS, "block_size": layout.block_size}
        return Planner(runner, **sizes, seed=seed, groups=layout.groups.kinds)


def draw_requests(rng: random.Random, vocab_size: int, has_grammars: bool, most: int = 7) -> list[Request]:
    """Requests whose prompts often repeat themselves."""
    text = [rng.randrange(3, vocab_size) for _ in range(20)]
    requests = []
    for _ in range(rng.randint(min(3, most), most)):
        own = [rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 30))]
        prompt = tuple((text * rng.randint(0, 3) + own)[: rng.randint(1, 90)])
        params = draw_params(rng, vocab_size, len(prompt), grows=True)
        if rng.random() < 0.2:
            params = structs.replace(
                params, logits_processors=(LogitsProcessorParams("favour", {"token": rng.randrange(3, vocab_size)}),)
            )
        ends: frozenset[int] = frozenset()
        if has_grammars and rng.random() < 0.4:
            grammar = Grammar(rng.choice(SOURCES))
            without = {"ignore_eos": False, "min_tokens": 0, "allowed_token_ids": None, "bad_words_token_ids": ()}
            params = structs.replace(params, grammar=grammar, **without)
            ends = frozenset({0, EOS})
        requests.append(Request(prompt, params, rng.randrange(2**63), rng.randint(1, 40), ends))
    return requests


def siblings(request: Request) -> list[Request]:
    """A request for each of its n outputs, as the engine core makes rows of them."""
    return [replace(request, seed=request.seed ^ index) for index in range(request.params.n)]


def played_alike(
    bench: Bench,
    seed: int,
    drafter: Drafter | None = None,
    ranks: Bench | None = None,
    most_requests: int = 7,
    has_siblings: bool = False,
) -> Planner:
    """Play random requests plainly, each alone, and then together with drafts of a random quality, or of `drafter`.

    The outputs must be equal in every bit. `ranks` plays the second time if given.
    """
    rng = random.Random(seed)
    vocab_size = bench.model.geometry.vocab_size
    requests = draw_requests(rng, vocab_size, bench.grammars is not None, most_requests)
    if has_siblings:
        requests = [each for request in requests for each in siblings(request)]
    expected = [bench.planner(0).play([request], PLAIN)[0] for request in requests]
    chosen = drafter or known_drafter(seed, rng.choice((0.0, 0.5, 0.9, 1.0)), vocab_size, requests, expected)
    planner = (ranks or bench).planner(seed, chosen)
    if isinstance(chosen, KnownDrafter):
        chosen.planner = planner
    odds = Odds(
        admit=rng.uniform(0.2, 1),
        chunk=rng.uniform(0.3, 1),
        whole_chunk=rng.random(),
        preempt=rng.choice((0, 0.05)),
        pause=rng.uniform(0.05, 0.8),
        verify=rng.choice((0.5, 1)),
        most_drafts=rng.choice((1, 4, 12)),
    )
    for request, plain, found in zip(requests, expected, planner.play(requests, odds), strict=True):
        assert found == plain, f"seed {seed}: {request}"
    return planner


def known_drafter(
    seed: int, right: float, vocab_size: int, requests: Sequence[Request], expected: Sequence[Result]
) -> KnownDrafter:
    drafter = KnownDrafter(seed, right, vocab_size)
    drafter.expected = {id(request): result.token_ids for request, result in zip(requests, expected, strict=True)}
    return drafter
