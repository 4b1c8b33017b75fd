"""Requests of a recurrent model, computed by an engine and its worker in one process, alone or not."""

from paged_serve.engine_core.engine.debug import check_invariants
from paged_serve.protocol.messages.config import CacheConfig, Config, SchedulerConfig
from paged_serve.protocol.messages.engine_core import EngineCoreRequest
from paged_serve.protocol.messages.message import pack_ids
from paged_serve.protocol.messages.sampling_params import SamplingParams

from ..one_process import OneProcess

SERVER = Config(cache=CacheConfig(), scheduler=SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64))


def request(prompt: list[int], number: int = 1, **params) -> EngineCoreRequest:
    sampling = SamplingParams(**{"max_tokens": 12, "seed": 7, "logprobs": 3, "ignore_eos": True} | params)
    return EngineCoreRequest(1000 * number, pack_ids(prompt), sampling)


def run(process: OneProcess) -> int:
    """Run to the end; returns how many tokens were computed in chunks."""
    computed = 0
    while not process.is_idle:
        process.plan()
        computed += sum(chunk.num_tokens for chunk in process.plans[-1].chunks) if process.plans else 0
        for act in (process.execute, process.apply, process.read):
            act()
    check_invariants(process.engine)
    return computed


def alone(model, one: EngineCoreRequest, max_model_len: int = 400):
    """What is received, by stream."""
    process = OneProcess(model, SERVER, num_blocks=max_model_len // 4, max_model_len=max_model_len)
    process.add(one)
    run(process)
    return process.received
