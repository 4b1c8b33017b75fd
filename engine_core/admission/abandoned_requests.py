"""Keeps the outputs of requests whose client is lost, for the next equal request.

An answer is a function of the request. A client that repeats its request after its frontend has died therefore starts
with the outputs of the lost request instead of computing them again; their KV blocks are usually still in the prefix
cache. Nothing is kept for requests with logprobs, which are delivered once, or for requests whose prompt must be
computed.
"""

from dataclasses import dataclass, field

import msgspec

from paged_serve.protocol.block_hash import TOKEN_BYTES
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids, unpack_ids
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..requests.request import Request

KEPT_S = 30.0  # time for a frontend to restart and its clients to repeat their requests
MAX_KEPT_TOKENS = 1 << 22  # 16 MB
# Everything that an answer depends on, and the tenant.
RequestKey = tuple[str, bytes, bytes, SamplingParams, PoolingParams | None]


@dataclass(frozen=True, slots=True, eq=False)
class AbandonedRequest:
    """A request whose client is lost, and the output of each of its sequences."""

    key: RequestKey
    outputs: tuple[bytes, ...]  # int32
    until_s: float

    @property
    def prompt(self) -> bytes:
        return self.key[1]

    @property
    def num_tokens(self) -> int:
        return (len(self.prompt) + sum(map(len, self.outputs))) // TOKEN_BYTES


@dataclass(slots=True)
class AbandonedRequests:
    """Abandoned requests, bounded by age and by total tokens; the oldest are dropped first."""

    num_tokens: int = 0
    _kept: dict[bytes, list[AbandonedRequest]] = field(default_factory=dict)  # by prompt
    _by_age: dict[AbandonedRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_age)

    def keep(self, request: Request, now: float) -> None:
        """Keep the outputs of a request whose client is lost. Must be called before its sequences end."""
        params = request.params
        delivered_once = params.logprobs is not None or params.prompt_logprobs is not None
        if delivered_once or params.skip_reading_prefix_cache or not any(each.output for each in request.sequences):
            return
        outputs = tuple(pack_ids(sequence.output) for sequence in request.sequences)
        abandoned = AbandonedRequest(_key_of(request), outputs, now + KEPT_S)
        self._kept.setdefault(abandoned.prompt, []).append(abandoned)
        self._by_age[abandoned] = None
        self.num_tokens += abandoned.num_tokens
        self._drop_old(now)

    def reuse(self, request: Request, message: EngineCoreRequest, now: float) -> EngineCoreRequest:
        """Start `request`, just accepted, with the outputs of an equal abandoned request, which is then dropped.

        Returns `message` as if its client had sent those outputs as `resume_token_ids`.
        """
        if not self._by_age or message.resume_token_ids:
            return message
        self._drop_old(now)
        key = _key_of(request)
        abandoned = next((each for each in self._kept.get(request.prompt, []) if each.key == key), None)
        if abandoned is None:
            return message
        self._drop(abandoned)
        for sequence, output in zip(request.sequences, abandoned.outputs, strict=True):
            sequence.output = unpack_ids(output).tolist()
        return msgspec.structs.replace(message, resume_token_ids=abandoned.outputs)

    def _drop_old(self, now: float) -> None:
        while self._by_age:
            oldest = next(iter(self._by_age))
            if oldest.until_s > now and self.num_tokens <= MAX_KEPT_TOKENS:
                return
            self._drop(oldest)

    def _drop(self, abandoned: AbandonedRequest) -> None:
        del self._by_age[abandoned]
        self.num_tokens -= abandoned.num_tokens
        same_prompt = self._kept[abandoned.prompt]
        same_prompt.remove(abandoned)
        if not same_prompt:
            del self._kept[abandoned.prompt]


def _key_of(request: Request) -> RequestKey:
    return (request.tenant.name, request.prompt, request.chain_root, request.params, request.pooling)
