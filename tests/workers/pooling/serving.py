"""Computes vectors with the real engine core and the real runner."""

import numpy as np
from numpy.typing import NDArray

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..one_process import OneProcess

MAX_LEN = 256
Item = tuple[list[int], PoolingParams | SamplingParams]  # (prompt, parameters)


def new_process(model, kind: type[OneProcess] = OneProcess, *, num_blocks: int = 64, caches=True, **scheduler):
    options = {"max_num_seqs": 8, "max_num_batched_tokens": MAX_LEN, **scheduler}
    config = Config(cache=CacheConfig(enable_prefix_caching=caches), scheduler=SchedulerConfig(**options))
    return kind(model, config, num_blocks, MAX_LEN)


def request_of(request_id: int, item: Item) -> EngineCoreRequest:
    prompt, wanted = item
    if isinstance(wanted, PoolingParams):
        return EngineCoreRequest(request_id, pack_ids(prompt), SamplingParams(), pooling_params=wanted)
    return EngineCoreRequest(request_id, pack_ids(prompt), wanted)


def finish(process: OneProcess) -> None:
    while not process.is_idle:
        for act in (process.plan, process.execute, process.apply, process.read):
            act()
        check_invariants(process.engine)


def answer_of(process: OneProcess, request_id: int) -> Pooled | list[int]:
    received = process.received[request_id]
    assert received.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), received
    return received.token_ids if received.pooled is None else received.pooled


def alone(model, item: Item) -> Pooled | list[int]:
    """The result of an item in a new engine, computed in one chunk."""
    process = new_process(model, caches=False, max_num_seqs=1)
    process.add(request_of(1, item))
    finish(process)
    return answer_of(process, 1)


def numbers(pooled: Pooled) -> NDArray[np.float32]:
    return np.frombuffer(pooled.values, "<f4").reshape(pooled.rows, pooled.columns)


def vectors(model, prompt: list[int], **params) -> NDArray[np.float32]:
    """[rows, columns]."""
    return numbers(alone(model, (prompt, PoolingParams(**params))))
