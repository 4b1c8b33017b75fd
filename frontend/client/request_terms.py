"""How a request is scheduled relative to others: priority, tenant, weight, time limit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from paged_serve.protocol.errors import InvalidRequest
from paged_serve.protocol.messages.engine_core import Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.message import MAX_TOKENS_PER_MESSAGE, has_half_pair, plain
from paged_serve.protocol.messages.pooling_params import PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

MAX_CACHE_SALT_CHARS = 128
MAX_TENANT_CHARS = 256
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_TIMEOUT_S = 86400.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """The scheduling fields of an EngineCoreRequest; `timeout_s` 0: no limit."""

    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    timeout_s: float = 0.0
    adapter: Adapter | None = None

    def check(self) -> None:
        """Raise InvalidRequest for values outside the message's bounds."""
        check_priority(self.priority)
        for name, most in (("cache_salt", MAX_CACHE_SALT_CHARS), ("tenant", MAX_TENANT_CHARS)):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > most:
                raise InvalidRequest(f"{name} is {text!r:.100}; it must be a string of at most {most} characters", name)
            if has_half_pair(text):
                raise InvalidRequest(
                    f"{name} is {text!r:.100}, with half of a surrogate pair, which is not valid text", name
                )
        for name, low, high in (("weight", MIN_WEIGHT, MAX_WEIGHT), ("timeout_s", 0.0, MAX_TIMEOUT_S)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidRequest(f"{name} is {value!r:.100}; it must be a number from {low:g} to {high:g}", name)
        if self.adapter is not None:
            _check_types(instance_of(Adapter, self.adapter, "adapter"), _decode_adapter, "adapter")


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode
_decode_adapter = msgspec.msgpack.Decoder(Adapter).decode
_decode_params = msgspec.msgpack.Decoder(SamplingParams).decode
_decode_pooling = msgspec.msgpack.Decoder(PoolingParams).decode


def check_priority(priority: Any) -> None:
    """Raises InvalidRequest."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise InvalidRequest(f"priority is {priority!r:.100}; it must be an integer of 32 bits", "priority")


def instance_of(kind: type[T], value: Any, name: str) -> T:
    """`value`. Raises InvalidRequest if the argument `name` has another type, which Python accepts in a call."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} is {value!r:.100}; it must be of the class {kind.__name__}", name)
    return value


def listed(prompt: Sequence[int]) -> Sequence[int]:
    """`prompt`. Raises TypeError for what an array of ids would take: bytes, iterators and booleans."""
    if isinstance(prompt, bytes | bytearray | Iterator):
        raise TypeError(f"{type(prompt).__name__} is not a list")
    if bool in map(type, prompt):
        raise TypeError("a boolean is no token id")
    return prompt


def check_request(
    prompt: Sequence[int],
    params: SamplingParams,
    pooling: PoolingParams | None,
    terms: RequestTerms,
    limits: Welcome | None,
) -> None:
    """Raise InvalidRequest for a request that the core would refuse; `limits` is None before the first Welcome."""
    if not len(prompt):
        raise InvalidRequest("the prompt is empty; at least one token is needed", "prompt_token_ids")
    terms.check()
    _check_types(params, _decode_params, "sampling_params")
    if pooling is not None:
        _check_types(pooling, _decode_pooling, "pooling_params")
    _check_length(len(prompt), 1 if pooling is None else 0, limits)
    if limits is not None:
        _check_task(pooling, limits)
    if limits is not None and not 0 <= min(prompt) <= max(prompt) < limits.vocab_size:
        wrong = next(token for token in prompt if not 0 <= token < limits.vocab_size)
        raise InvalidRequest(
            f"the prompt has token {wrong}; the vocabulary is 0..{limits.vocab_size - 1}", "prompt_token_ids"
        )


def _check_types(params: msgspec.Struct, decode: Callable[[bytes], Any], name: str) -> None:
    """Check the types of the fields, which msgspec does not do for a Struct built in Python."""
    try:
        decode(_encode(params))
    except (msgspec.MsgspecError, TypeError, OverflowError, UnicodeError) as error:
        raise InvalidRequest(f"{name}: {error}", name) from None


def _check_task(pooling: PoolingParams | None, limits: Welcome) -> None:
    task = "generate" if pooling is None else pooling.task
    if task not in limits.tasks:
        raise InvalidRequest(f"task is {task}; this model serves {', '.join(limits.tasks)}", "task")
    if pooling is None or pooling.dimensions is None:
        return
    if task not in ("embed", "token_embed"):
        raise InvalidRequest(
            f"dimensions is {pooling.dimensions}; only embeddings take it, and task is {task}", "dimensions"
        )
    if pooling.dimensions > limits.embedding_size:
        raise InvalidRequest(
            f"dimensions is {pooling.dimensions}; this model's embeddings have {limits.embedding_size}", "dimensions"
        )


def _check_length(num_tokens: int, num_new: int, limits: Welcome | None) -> None:
    """`num_new`: tokens that must fit after the prompt."""
    longest = MAX_TOKENS_PER_MESSAGE if limits is None else min(limits.max_model_len, MAX_TOKENS_PER_MESSAGE)
    if num_tokens + num_new > longest:
        raise InvalidRequest(
            f"the prompt has {num_tokens} tokens; this server's context holds {longest}"
            f"{', output included' if num_new else ''} (max_model_len={longest}). Shorten it or raise --max-model-len",
            "prompt_token_ids",
        )
