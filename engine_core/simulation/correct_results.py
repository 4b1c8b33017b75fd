"""The only correct results of a simulated model: tokens and vectors are functions of the tokens before."""

from array import array
from collections.abc import Sequence

from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import SamplingParams

VECTOR_SIZE = 3


def start_hash(adapter_digest: str) -> int:
    """The hash before the first token; "" for the base model."""
    return int(adapter_digest[:12] or "0", 16)


def extend_hash(prefix: int, token: int) -> int:
    return hash((prefix, token))


def sample(prefix: int, seed: int, position: int, vocab_size: int, masked: frozenset[int]) -> int:
    """The only correct token at output `position` after the tokens whose hash is `prefix`."""
    token = hash((prefix, seed, position)) % vocab_size
    while token in masked:
        token = (token + 1) % vocab_size
    return token


def vector(prefixes: Sequence[int], pooling: PoolingParams) -> Pooled:
    """The only correct answer for a prompt; `prefixes` are the hashes of its first token, its first two and so on."""
    used = prefixes if pooling.task == "token_embed" else prefixes[-1:]
    columns = pooling.dimensions or VECTOR_SIZE
    numbers = [hash((prefix, column)) % 1000 for prefix in used for column in range(columns)]
    return Pooled(len(used), columns, array("f", numbers).tobytes())


def masked_ids(params: SamplingParams, eos_ids: frozenset[int], position: int) -> frozenset[int]:
    """Tokens that min_tokens forbids at output `position`."""
    return eos_ids.union(params.stop_token_ids) if position < params.min_tokens else frozenset()


def pooling_mark(prefix: int) -> int:
    """Takes the place of a seed for a pooling request; it depends only on the prompt."""
    return prefix % 12
