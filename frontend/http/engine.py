"""The part of the client library that the routes use; tests answer in its place."""

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from paged_serve.protocol.messages.engine_core import Utility, Welcome
from paged_serve.protocol.messages.loading.adapters import Adapter
from paged_serve.protocol.messages.pooling_params import Pooled, PoolingParams
from paged_serve.protocol.messages.sampling_params import FinishReason, SamplingParams

from ..client.pooling import PoolingAnswer
from ..client.streams.deltas import SequenceDelta


class EngineRequest(Protocol):
    """The part of client.AsyncRequest that the routes use."""

    async def __anext__(self) -> SequenceDelta: ...
    def take(self) -> SequenceDelta | None: ...
    def abort(self, index: int | None = None, finish_reason: FinishReason = FinishReason.ABORT) -> None: ...


class EnginePooling(Protocol):
    """The part of client.AsyncPoolingRequest that the routes use."""

    answer: PoolingAnswer

    def __await__(self) -> Generator[Any, None, Pooled]: ...
    def abort(self) -> None: ...


class Engine(Protocol):
    """The part of client.AsyncClient that the routes use."""

    @property
    def ready(self) -> bool: ...
    @property
    def limits(self) -> Welcome: ...
    def submit(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        timeout_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> EngineRequest: ...
    def pool(
        self,
        prompt_token_ids: Sequence[int],
        pooling_params: PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        weight: float = 1.0,
        timeout_s: float = 0.0,
        adapter: Adapter | None = None,
    ) -> EnginePooling: ...
    async def utility(self, utility: Utility) -> bytes: ...
