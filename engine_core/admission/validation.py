"""Validates a request once and completely, so that no later stage can fail because of it."""

import logging
from dataclasses import dataclass, field

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES, chain_blocks, chain_root
from paged_serve.protocol.errors import ConfigError, InvalidRequest
from paged_serve.protocol.messages.config import Config
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.loading.startup import KVGroup
from paged_serve.protocol.messages.message import MAX_FRAME_BYTES, unpack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..kv.kv_cache import KVCache
from ..kv.kv_group import KVGroups
from ..requests.order import queue_order
from ..requests.request import Request, Sequence
from ..requests.tenant import Tenant
from .pooling import PoolingFacts
from .seeds import seed_of, sequence_seed

log = logging.getLogger(__name__)

MAX_PROMPT_LOGPROBS_BYTES = MAX_FRAME_BYTES * 3 // 4  # of all sequences of a request

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Properties of the model that the workers reported once its weights were loaded."""

    num_blocks: int
    block_size: int  # tokens
    max_model_len: int  # tokens, prompt and output
    vocab_size: int
    eos_token_ids: frozenset[int]
    arithmetic: str = ""  # as in WorkerReady
    kv_groups: tuple[KVGroup, ...] = (KVGroup(),)
    pooling: PoolingFacts = field(default_factory=PoolingFacts)
    kv_bytes_per_block: int = 0  # of one rank
    device: str = "cpu"  # as in WorkerReady
    grammar_end_token_ids: frozenset[int] = frozenset()  # likewise


def fitting_model_len(
    config: Config, num_blocks: int, block_size: int, max_model_len: int, kv_groups: tuple[KVGroup, ...] = (KVGroup(),)
) -> int:
    """The longest context that the cache holds for one sequence; logs a warning if it is shorter than the model's.

    Raises ConfigError when a longer one is configured, or the cache holds no sequence at all.
    """
    max_chunk = config.scheduler.max_num_batched_tokens
    groups = KVGroups.of(kv_groups, block_size, max_chunk)
    capacity = groups.capacity_tokens(num_blocks)
    if config.model.max_model_len is not None and max_model_len > capacity:
        smaller_chunk = f", or lower --max-num-batched-tokens, which is {max_chunk} now" if groups.windows else ""
        raise ConfigError(
            f"max_model_len={max_model_len} needs {groups.num_blocks_for(max_model_len)} KV blocks of "
            f"{block_size} tokens; there are {num_blocks}. Lower --max-model-len to {capacity}, or raise "
            f"--kv-cache-memory-bytes or --num-blocks{smaller_chunk}"
        )
    if not capacity:
        raise ConfigError(
            f"{num_blocks} KV blocks of {block_size} tokens hold no sequence, which needs at least "
            f"{groups.num_blocks_for(block_size)}; the longest needs {groups.num_blocks_for(max_model_len)}. Raise "
            "--kv-cache-memory-bytes or --num-blocks"
        )
    if capacity < max_model_len:
        log.warning(
            "%d KV blocks of %d tokens limit the context to %d tokens, prompt and output; the model's %d need %d: "
            "raise --kv-cache-memory-bytes or --num-blocks",
            *(num_blocks, block_size, capacity, max_model_len, groups.num_blocks_for(max_model_len)),
        )
    return min(max_model_len, capacity)


@dataclass(frozen=True, slots=True)
class Validation:
    """Turns messages into requests. Raises InvalidRequest with the field, the value and the limit."""

    facts: ModelFacts
    kv_cache: KVCache
    seed: int  # of the server; requests without a seed derive theirs from it
    use_priority: bool
    max_logprobs: int
    max_num_batched_tokens: int
    logits_processors: frozenset[str] = frozenset()
    max_loras: int = 0

    def request(self, client: bytes, message: EngineCoreRequest, tenant: Tenant, arrival: int, now: float) -> Request:
        """The request with all its sequences, none of them queued yet. `arrival` counts requests."""
        params, pooling = message.sampling_params, message.pooling_params
        self._check_priority(message.priority)
        prompt_len = self._check_prompt(message.prompt_token_ids, self.facts.max_model_len - (pooling is None))
        self.facts.pooling.check(message, prompt_len, self.max_num_batched_tokens)
        params.check_vocabulary(self.facts.vocab_size)
        _check_no_field_of_frontends(params)
        self._check_adapter(message.adapter)
        self._check_logits_processors(params)
        self._check_logprobs(params, prompt_len)
        token_limit = self._fitting(prompt_len) if pooling else self._token_limit(prompt_len, params.max_tokens)
        outputs = self._resumed_outputs(message, token_limit - prompt_len)
        stop_ids, eos_ids = self._end_ids(params)
        self._check_a_token_is_left(params, stop_ids)
        digest = "" if message.adapter is None else message.adapter.digest
        root = chain_root(self.kv_cache.block_size, message.cache_salt, digest)
        params_bytes = len(_encode(params))
        request = Request(
            client, message.request_id, message.prompt_token_ids, params, params_bytes, now, root, tenant, arrival
        )
        if pooling is not None:
            request.pooling, request.needs_whole_prompt = pooling, self.facts.pooling.reads_whole_prompt(pooling)
        request.adapter = message.adapter
        if message.ttl_s:
            request.deadline_s = now + message.ttl_s
        seed = seed_of(message, self.seed, self.facts.vocab_size)
        hashes = []
        if self.kv_cache.prefix_cache.enabled:
            hashes = chain_blocks(root, message.prompt_token_ids, self.kv_cache.block_size)
        for index, output in enumerate(outputs):
            order = queue_order(message.priority if self.use_priority else 0, arrival, index)
            sequence = Sequence(
                request, index, sequence_seed(seed, index), order, output, token_limit, stop_ids, eos_ids, hashes[:]
            )
            request.sequences.append(sequence)
        return request

    def _check_priority(self, priority: int) -> None:
        if priority and not self.use_priority:
            raise InvalidRequest(
                f"priority is {priority}, but this server's policy is fcfs; leave it out, or start the server with "
                "--scheduling-policy priority",
                "priority",
            )

    def _check_adapter(self, adapter: Adapter | None) -> None:
        if adapter is not None and not self.max_loras:
            raise InvalidRequest(
                f"adapter is {adapter.name:.100}; this server serves the base model only (max_loras=0). Start it with "
                "--lora NAME=PATH or --max-loras N",
                "model",
            )

    def _check_logits_processors(self, params: SamplingParams) -> None:
        for processor in params.logits_processors:
            if processor.name not in self.logits_processors:
                served = ", ".join(sorted(self.logits_processors)) or "none; --plugin NAME loads one"
                raise InvalidRequest(
                    f"logits_processors names {processor.name:.100}, which is not loaded; this server has: {served}",
                    "logits_processors",
                )

    def _check_prompt(self, prompt: bytes, longest: int) -> int:
        """The prompt's length in tokens."""
        if not prompt:
            raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
        prompt_len, limit = len(prompt) // TOKEN_BYTES, self.facts.max_model_len
        if prompt_len > longest:
            what = "it" if longest == limit else "prompt and output together"
            raise InvalidRequest(
                f"the prompt has {prompt_len} tokens; {what} may have {limit} "
                f"(max_model_len). Shorten it to {longest} or raise max_model_len",
                "prompt",
            )
        self._check_ids(prompt, "prompt")
        return prompt_len

    def _check_ids(self, ids: bytes, param: str) -> None:
        if not ids:
            return
        unsigned = memoryview(unpack_ids(ids)).cast("B").cast("I")  # a negative id becomes a large one
        if (highest := max(unsigned)) >= self.facts.vocab_size:
            token = highest - (highest >> 31 << 32)
            raise InvalidRequest(
                f"{param} names token {token}; the vocabulary is 0..{self.facts.vocab_size - 1}", param
            )

    def _check_logprobs(self, params: SamplingParams, prompt_len: int) -> None:
        counts = {}
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(params, name)
            counts[name] = self.facts.vocab_size if wanted == -1 else wanted or 0
            if counts[name] > self.max_logprobs:
                raise InvalidRequest(f"{name} is {wanted}; this server returns at most {self.max_logprobs}", name)
        if params.prompt_logprobs is None:
            return
        # each sequence's first output brings them
        num_bytes = params.n * prompt_len * (counts["prompt_logprobs"] + 2) * 8
        if num_bytes > MAX_PROMPT_LOGPROBS_BYTES:
            raise InvalidRequest(
                f"prompt_logprobs={params.prompt_logprobs} for n={params.n} and {prompt_len} prompt tokens takes "
                f"{num_bytes} bytes; at most {MAX_PROMPT_LOGPROBS_BYTES} are allowed",
                "prompt_logprobs",
            )

    def _end_ids(self, params: SamplingParams) -> tuple[frozenset[int], frozenset[int]]:
        """The tokens that end an output, and those of them that are the model's, not the request's."""
        eos_ids = frozenset() if params.ignore_eos else self.facts.eos_token_ids
        if params.grammar is not None:
            eos_ids |= self.facts.grammar_end_token_ids
        return eos_ids.union(params.stop_token_ids) if params.stop_token_ids else eos_ids, eos_ids

    def _check_a_token_is_left(self, params: SamplingParams, stop_ids: frozenset[int]) -> None:
        """Raise InvalidRequest if the sampling rules together forbid every token."""
        forbidden = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
        if params.min_tokens:
            forbidden |= stop_ids
        allowed = params.allowed_token_ids
        if not forbidden or (
            len(forbidden) < self.facts.vocab_size if allowed is None else not forbidden.issuperset(allowed)
        ):
            return
        raise InvalidRequest(
            f"no token is left to generate: allowed_token_ids, bad_words and min_tokens={params.min_tokens} (which "
            f"forbids the {len(stop_ids)} tokens that end the output) exclude each other",
            "allowed_token_ids",
        )

    def _token_limit(self, prompt_len: int, max_tokens: int | None) -> int:
        """The most tokens a sequence may have. The last one needs no cache slot: nothing is computed from it."""
        cache, limit = self.kv_cache, self.facts.max_model_len
        if max_tokens is None:
            limit = min(limit, max(cache.capacity_tokens + 1, prompt_len + 1))
        else:
            limit = min(limit, prompt_len + max_tokens)
        needed = cache.groups.num_blocks_for(limit - 1)
        if needed > cache.pool.num_blocks:
            raise InvalidRequest(
                f"{prompt_len} prompt tokens and up to {limit - prompt_len} output tokens need {needed} KV blocks; "
                f"there are {cache.pool.num_blocks}. Lower max_tokens, shorten the prompt, or enlarge the cache",
                "max_tokens",
            )
        return limit

    def _fitting(self, prompt_len: int) -> int:
        """The length of a prompt for which a vector is computed; raises InvalidRequest when the cache is too small."""
        needed, num_blocks = self.kv_cache.groups.num_blocks_for(prompt_len), self.kv_cache.pool.num_blocks
        if needed > num_blocks:
            raise InvalidRequest(
                f"{prompt_len} prompt tokens need {needed} KV blocks; there are {num_blocks}. Shorten the prompt, or "
                "enlarge the cache",
                "prompt",
            )
        return prompt_len

    def _resumed_outputs(self, message: EngineCoreRequest, max_output: int) -> list[list[int]]:
        n, resumed = message.sampling_params.n, message.resume_token_ids
        if not resumed:
            return [[] for _ in range(n)]
        if len(resumed) != n:
            raise InvalidRequest(f"resume_token_ids has {len(resumed)} entries for n={n}", "resume_token_ids")
        for ids in resumed:
            if len(ids) // TOKEN_BYTES > max_output:
                raise InvalidRequest(
                    f"resume_token_ids has {len(ids) // TOKEN_BYTES} tokens; the output may have {max_output}",
                    "resume_token_ids",
                )
            self._check_ids(ids, "resume_token_ids")
        return [unpack_ids(ids).tolist() for ids in resumed]


def _check_no_field_of_frontends(params: SamplingParams) -> None:
    if params.structured_outputs is not None:
        raise InvalidRequest("structured_outputs is for frontends, which send `grammar`", "structured_outputs")
    if params.best_of is not None:
        raise InvalidRequest("best_of is for frontends, which send n and choose among the outputs", "best_of")
    if params.thinking_token_budget is not None and params.thinking_token_budget >= 0:
        raise InvalidRequest(
            "thinking_token_budget needs the tokens of the model's tags; a client of tokens sends them as "
            "thinking=ThinkingBudget(max_tokens, begin, end)",
            "thinking_token_budget",
        )
