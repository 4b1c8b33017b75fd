"""paged-serve: a multi-process server for large language models over ZeroMQ."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paged_serve.frontend.adapters.lora_requests import LoRARequest
    from paged_serve.frontend.client.async_client import AsyncClient
    from paged_serve.frontend.client.sync_client import Client
    from paged_serve.frontend.config.engine_args import EngineArgs, FlexibleArgumentParser
    from paged_serve.frontend.offline.async_llm import AsyncLLM
    from paged_serve.frontend.offline.llm import LLM, CompletionOutput, RequestOutput
    from paged_serve.frontend.text.beam_search import BeamSearchParams
    from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
    from paged_serve.protocol.messages.samplers import Dry, ThinkingBudget, Xtc
    from paged_serve.protocol.messages.sampling_params import RequestOutputKind, SamplingParams
    from paged_serve.protocol.messages.structured_outputs import StructuredOutputsParams

    from .protocol.errors import (
        ConfigError,
        EngineDead,
        InvalidRequest,
        Overloaded,
        PagedServeError,
        ProtocolError,
        RequestExpired,
        RequestFailed,
    )

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "frontend.client.async_client",
    "AsyncLLM": "frontend.offline.async_llm",
    "BeamSearchParams": "frontend.text.beam_search",
    "Client": "frontend.client.sync_client",
    "CompletionOutput": "frontend.offline.llm",
    "ConfigError": "protocol.errors",
    "Dry": "protocol.messages.samplers",
    "EngineArgs": "frontend.config.engine_args",
    "EngineDead": "protocol.errors",
    "FlexibleArgumentParser": "frontend.config.engine_args",
    "InvalidRequest": "protocol.errors",
    "LLM": "frontend.offline.llm",
    "LoRARequest": "frontend.adapters.lora_requests",
    "Overloaded": "protocol.errors",
    "PagedServeError": "protocol.errors",
    "Pooled": "protocol.messages.pooling_params",
    "PoolingParams": "protocol.messages.pooling_params",
    "ProtocolError": "protocol.errors",
    "RequestExpired": "protocol.errors",
    "RequestFailed": "protocol.errors",
    "RequestOutput": "frontend.offline.llm",
    "RequestOutputKind": "protocol.messages.sampling_params",
    "SamplingParams": "protocol.messages.sampling_params",
    "StructuredOutputsParams": "protocol.messages.structured_outputs",
    "ThinkingBudget": "protocol.messages.samplers",
    "Xtc": "protocol.messages.samplers",
}
__all__ = [
    "LLM",
    "AsyncClient",
    "AsyncLLM",
    "BeamSearchParams",
    "Client",
    "CompletionOutput",
    "ConfigError",
    "Dry",
    "EngineArgs",
    "EngineDead",
    "FlexibleArgumentParser",
    "InvalidRequest",
    "LoRARequest",
    "Overloaded",
    "PagedServeError",
    "Pooled",
    "PoolingParams",
    "ProtocolError",
    "RequestExpired",
    "RequestFailed",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "ThinkingBudget",
    "Xtc",
    "__version__",
]


def __getattr__(name: str) -> Any:  # lazy, so that a client pays for pyzmq and msgspec alone
    if name not in _HOMES:
        raise AttributeError(f"module 'paged_serve' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
